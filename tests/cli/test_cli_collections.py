"""index, search, inspect and verify: data on stdout, the rest in sentences on stderr, exit codes 0, 1, 2 and 130."""

import contextlib
import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tiny import WORDS
from typer.testing import CliRunner

from cde_rag import Collection, FunctionEmbedder
from cde_rag import records as intake
from cde_rag.cli import app
from cde_rag.cli.collections import existing
from cde_rag.cli.output import explain_no_hits, print_hits
from cde_rag.errors import ContextMismatchError
from cde_rag.records import Hit
from cde_rag.search.calibration import CALIBRATION, calibration_of
from cde_rag.search.searcher import Searcher
from cde_rag.server.search_results import with_matches
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreCalls


@pytest.fixture
def collection(run, records: Path, tmp_path: Path) -> Path:
    run("index", records, tmp_path / "papers.faiss", "--parent-key", "book")
    return tmp_path / "papers.faiss"


def contents(path: Path, model: Path) -> dict[str, Any]:
    """Everything that a search depends on."""
    with Collection.open(FaissStore(path), model=model) as opened:
        ids = [record.id for record in opened.scroll()]
        vectors = opened.store.vectors(ids, fingerprint=opened.embedder.fingerprint)
        return {"fingerprint": opened.embedder.fingerprint, **dict(zip(ids, vectors.tolist(), strict=True))}


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_a_context_of_one_passage_is_named_as_one(run, tmp_path: Path):
    (tmp_path / "a.txt").write_text("A text.")
    for time in range(2):
        found = run("index", tmp_path / "a.txt", tmp_path / "p").stderr
        assert ("The context has only one passage, too few" in found) == (time == 0)
    assert "exists and keeps its context of 1 passage.\n" in found


def test_index_counts_what_it_did(run, records: Path, tmp_path: Path):
    command = ("index", records, tmp_path / "papers.faiss", "--json")
    first = run(*command)
    counts = {"added": 20, "replaced": 0, "updated": 0, "unchanged": 0, "truncated": 1, "skipped": 0, "deleted": 0}
    assert json.loads(first.stdout) == {"documents": 20, **counts}
    assert "Warning: 1 of 20 embedded records exceed the model's limit of 32 tokens" in first.stderr
    assert (
        "Warning: The context has only 20 different passages, too few to show the common features of a corpus. When "
        "there are 64 or more, make a larger one: cde-rag recontextualize COLLECTION, or in Python "
        "collection.recontextualize()."
    ) in first.stderr
    again = run(*command)
    assert json.loads(again.stdout) == {"documents": 20, **counts, "added": 0, "unchanged": 20, "truncated": 0}
    assert "keeps its context of 20 passages" in again.stderr


def test_index_says_in_words_what_it_did(run, records: Path, tmp_path: Path):
    result = run("index", records, tmp_path / "papers.faiss")
    assert result.stdout == f"{tmp_path / 'papers.faiss'}: 20 passages (20 added, 1 truncated)\n"
    result = run("index", records, tmp_path / "papers.faiss")
    assert result.stdout.endswith("20 passages (20 unchanged)\n")


def test_options_reach_context_and_collection(run, records: Path, tmp_path: Path):
    run("index", records, tmp_path / "p", "--context-size", "7", "--seed", "3", "--parent-key", "book")
    found = json.loads(run("inspect", tmp_path / "p", "--json").stdout)
    assert {"documents": 20, "model": "tiny", "context_size": 7, "generation": 1}.items() <= found.items()
    assert (found["context_seed"], found["parent_key"], len(found["fingerprint"])) == (3, "book", 64)


@pytest.mark.parametrize(
    "named",
    [
        ["--fields", "id=key,text=body,title=heading"],
        ["--id-field", "key", "--text-field", "body", "--title-field", "heading"],
    ],
    ids=["fields", "before"],
)
def test_fields_can_be_named(run, tmp_path: Path, named: list[str]):
    (tmp_path / "a.csv").write_text("key,body,heading\nk1,the river,Water\n")
    told = run("index", tmp_path / "a.csv", tmp_path / "p", *named).stderr
    assert ("Write: --fields id=key,text=body,title=heading" in told) == (named[0] != "--fields")
    hits = json.loads(run("search", tmp_path / "p", "river", "--json").stdout)["hits"]
    assert [(hit["id"], hit["text"], hit["title"], hit["metadata"]) for hit in hits] == [
        ("k1", "the river", "Water", {"table": {"file": str(tmp_path / "a.csv"), "row": 2}})
    ]


@pytest.mark.parametrize("wrong", ["key", "id=", "id=a,id=b", "page=a"])
def test_fields_without_a_role_are_wrong_usage(run, records: Path, tmp_path: Path, wrong: str):
    assert "--fields" in run("index", records, tmp_path / "p", "--fields", wrong, code=2).stderr


def test_a_folder_is_its_passages_with_their_files_as_parents(run, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# Money\n\nthe bank\n\nthe loan")
    run("index", tmp_path / "docs", tmp_path / "p", "--max-characters", "9")
    found = json.loads(run("inspect", tmp_path / "p", "--json").stdout)
    assert (found["documents"], found["parent_key"]) == (3, "source")


def test_standard_input_is_read_twice(run, records: Path, tmp_path: Path, model_folder: Path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(records.read_bytes())))
    run("index", "-", tmp_path / "piped", stdin=records.read_bytes())
    run("index", records, tmp_path / "read")
    assert contents(tmp_path / "piped", model_folder) == contents(tmp_path / "read", model_folder)


def test_several_sources_are_one_corpus(run, records: Path, tmp_path: Path, model_folder: Path):
    lines = records.read_bytes().splitlines(keepends=True)
    for number, part in enumerate((lines[:8], lines[8:])):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(part))
    run("index", tmp_path / "0.jsonl", tmp_path / "1.jsonl", tmp_path / "parts")
    run("index", records, tmp_path / "whole")
    assert contents(tmp_path / "parts", model_folder) == contents(tmp_path / "whole", model_folder)


def test_search_prints_what_the_collection_finds(run, collection: Path, model_folder: Path):
    asked = ("search", collection, "money in the bank", "-k", 3, "--json", "--where", '{"year": {"lt": 2010}}')
    shown = run(*asked)
    assert shown.stdout == run(*asked, "--by", "hybrid").stdout
    with Collection.open(FaissStore(collection), model=model_folder) as opened:
        expected = opened.search("money in the bank", k=3, by="hybrid", where={"year": {"lt": 2010}})
    hits = json.loads(shown.stdout)["hits"]
    assert [set(hit) for hit in hits] == [{"id", "score", "title", "text", "metadata"}] * 3
    assert [(hit["id"], hit["score"], hit["metadata"]) for hit in hits] == [
        (hit.id, pytest.approx(hit.score, abs=1e-6), hit.metadata) for hit in expected
    ]


def test_search_pages_and_cuts_and_groups_as_the_collection_does(run, collection: Path, model_folder: Path):
    def hits(*options: object) -> list[tuple[str, float]]:
        found = json.loads(run("search", collection, "river", "--json", *options).stdout)["hits"]
        return [(hit["id"], pytest.approx(hit["score"], abs=1e-6)) for hit in found]

    with Collection.open(FaissStore(collection), model=model_folder) as opened:
        every = [(hit.id, hit.score) for hit in opened.search("river", 20, by="vectors")]
        both = [(hit.id, hit.score) for hit in opened.search("river", 5, by="hybrid", offset=1)]
        words = [(hit.id, hit.score) for hit in opened.search("river", 5, by="bm25")]
        groups = opened.searcher("hybrid").search_groups("river", 2, group_by="year", offset=1)
    assert every[2:6] == hits("-k", 4, "--offset", 2, "--by", "vectors")
    assert every[:3] == hits("-k", 20, "--score-threshold", every[2][1] - 1e-6, "--by", "vectors")
    assert both == hits("-k", 5, "--offset", 1)
    assert words == hits("-k", 5, "--by", "words")
    asked = ("search", collection, "river", "--group-by", "year", "-k", 2, "--offset", 1)
    found = json.loads(run(*asked, "--json").stdout)["groups"]
    assert [(one["value"], [hit["id"] for hit in one["hits"]]) for one in found] == [
        (group.value, [hit.id for hit in group.hits]) for group in groups
    ]
    shown = run(*asked).stdout.splitlines()
    assert [line for line in shown if not line.startswith(" ")] == [str(group.value) for group in groups]
    told = run("search", collection, "river", "--score-threshold", 2).stderr
    assert told == "No hits: 20 of 20 passages match, none beyond the offset with such a score.\n"
    told = run("search", collection, "river", "--group-by", "yaer").stderr
    assert "what was found has no field 'yaer'. The first passage has {" in told


@pytest.mark.parametrize(
    "option",
    ["-k=0", "-k=99999999999999999999", "--offset=-1", "--score-threshold=nan", "--score-threshold=x",
     "--group-by=and", "--by=both"],
)  # fmt: skip
def test_a_search_with_a_senseless_option_is_wrong_usage(run, collection: Path, option: str):
    name, value = option.split("=")
    assert name in run("search", collection, "river", name, value, code=2).stderr


def test_a_collection_without_words_is_searched_by_vectors_and_says_so(run, records: Path, tmp_path: Path):
    with mock.patch("cde_rag.stores.faiss.database.has_fts5", return_value=False):
        run("index", records, tmp_path / "wordless")
    found = run("search", tmp_path / "wordless", "river", "--json")
    assert found.stdout == run("search", tmp_path / "wordless", "river", "--json", "--by", "vectors").stdout
    assert found.stderr.startswith("Searched by vectors alone. Expected a collection whose words can be searched")
    assert run("search", tmp_path / "wordless", "river", "--json", "--by", "hybrid").stdout == found.stdout
    for by in ("words", "bm25"):
        assert "cde-rag reindex" in run("search", tmp_path / "wordless", "river", "--by", by, code=1).stderr
    assert (
        run("reindex", tmp_path / "wordless", "--json").stdout == run("reindex", tmp_path / "wordless", "--json").stdout
    )
    assert run("search", tmp_path / "wordless", "river", "--by", "words").stderr.startswith("Scores: BM25")


def test_search_shows_score_title_and_text(run, collection: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("search", collection, "river", "--where", '{"year": 2007}').stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].split() == [lines[0].split()[0], "flood", "[r7]"]
    assert -1 <= float(lines[0].split()[0]) <= 1
    assert "records.jsonl, row 8 · book: b1" in lines[1]
    assert lines[2] == " " * 8 + ("river " * 100)[:31] + "…"
    monkeypatch.delenv("COLUMNS")  # no terminal either: what is piped is whole
    piped = run("search", collection, "river", "--where", '{"year": 2007}')
    assert piped.stdout.splitlines()[2].split() == ["river"] * 100
    assert "the collection has fewer than 64 passages" in piped.stderr


@pytest.mark.parametrize(
    ("title", "section", "columns", "shown"),
    [
        ("Swifts", "Sleep > On the wing", 80, "Swifts · Sleep > On the wing  [docs/swifts.md#12]"),
        ("Swifts", "Sleep > On the wing", 56, "Swifts · Sleep > On the wi…  [docs/swifts.md#12]"),
        ("Swifts", "Sleep > On the wing", 40, "Swifts · Sleep > On the wing [d…"),
        ("Swifts", " ", 80, "Swifts  [docs/swifts.md#12]"),
        ("Swifts", 3, 80, "Swifts  [docs/swifts.md#12]"),
        ("", "Sleep", 80, "Sleep  [docs/swifts.md#12]"),
        ("", None, 80, "docs/swifts.md#12"),
    ],
)
def test_a_hit_shows_where_it_stands_and_keeps_its_id(capsys, monkeypatch, title, section, columns, shown):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_hits([Hit("docs/swifts.md#12", 0.5, title, "Text.", {"section": section})])
    assert capsys.readouterr().out.splitlines() == [f" 0.500  {shown}", f"{'':8}Text."]


def test_a_hit_in_a_file_shows_the_line_that_an_editor_opens(run, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "swifts.md"
    page.write_text("# Swifts\n\nFirst line.\n\nriver stone\n", encoding="utf-8")
    metadata = {"source": "docs/swifts.md", "folder": str(tmp_path / "docs"), "offset": 23}
    hit = Hit("docs/swifts.md#1", 0.5, "Swifts", "river stone", metadata)
    print_hits([hit])
    assert capsys.readouterr().out.splitlines()[1].strip() == "docs/swifts.md:5"
    page.write_text("new\n" + page.read_text(encoding="utf-8"), encoding="utf-8")
    print_hits([hit])
    assert capsys.readouterr().out.splitlines()[1].strip() == "docs/swifts.md:6"  # the file as it is now
    page.write_text("other\n", encoding="utf-8")
    print_hits([hit])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_search_says_what_its_scores_are(run, collection: Path):
    for by, said in (("vectors", "cosine"), ("words", "BM25"), ("hybrid", "vectors and words together")):
        assert said in run("search", collection, "river", "--by", by).stderr
    assert "Scores" not in run("search", collection, "river", "--json").stderr


def test_a_group_has_as_many_hits_as_asked(run, collection: Path):
    found = run("search", collection, "river", "--by", "vectors", "--group-by", "book", "--group-size", 1, "--json")
    groups = json.loads(found.stdout)["groups"]
    assert len(groups) == 4
    assert {len(group["hits"]) for group in groups} == {1}


def test_the_size_of_groups_needs_groups(run, collection: Path):
    told = run("search", collection, "river", "--group-size", 1, code=2).stderr
    assert "--group-size" in told
    assert "it needs --group-by KEY" in told


def test_one_passage_is_one(run, tmp_path: Path):
    (tmp_path / "one.jsonl").write_text('{"text": "Swifts sleep on the wing."}\n')
    told = run("index", tmp_path / "one.jsonl", tmp_path / "one.faiss").stdout
    assert told.endswith("one.faiss: 1 passage (1 added)\n")


def test_a_list_without_elements_is_a_dash(run, collection: Path):
    assert "headers                 –\n" in run("inspect", collection).stdout


def test_words_that_no_passage_has_are_told_without_an_offset_that_nobody_gave(run, collection: Path):
    told = run("search", collection, "xylophone", "--by", "words").stderr
    assert told == "No hits: no word of the query is in any passage.\n"
    told = run("search", collection, "xylophone", "--by", "words", "--offset", 1).stderr
    assert "at this offset and score" in told


def test_count_is_that_of_the_filter(run, collection: Path):
    assert run("count", collection).stdout == "20\n"
    assert run("count", collection).stderr.endswith("Write: cde-rag inspect COLLECTION --where JSON\n")
    after = ("count", collection, "--where", '{"year": {"gte": 2015}}')
    assert run(*after).stdout == "5\n"
    assert json.loads(run(*after, "--json").stdout) == {"passages": 5}
    none = run("count", collection, "--where", '{"jaar": 2015}')
    assert none.stdout == "0\n"
    assert "no passage has the field 'jaar'" in none.stderr


def test_inspect_counts_what_matches_a_filter(run, collection: Path):
    after = ("inspect", collection, "--where", '{"year": {"gte": 2015}}')
    assert "matching" in run(*after).stdout
    found, plain = (json.loads(run(*asked, "--json").stdout) for asked in (after, after[:2]))
    assert found.pop("matching") == 5
    assert found == plain
    assert "no passage has the field 'jaar'" in run("inspect", collection, "--where", '{"jaar": 2015}').stderr


def test_inspect_tells_what_contexts_keep_of_deleted_documents(run, collection: Path, model_folder: Path):
    with Collection.open(FaissStore(collection), model=model_folder) as opened:
        opened.delete(["r0", "r1"])
    found = json.loads(run("inspect", collection, "--erasure", "--json").stdout)["erasure"]
    assert found == [{"generation": 1, "active": True, "context_size": 20, "gone": 2}]
    told = run("inspect", collection, "--erasure")
    assert "generation 1 holds 2 of 20 passages that are not in the collection any more." in told.stdout
    assert "cde-rag recontextualize" in told.stderr
    assert "erasure" not in json.loads(run("inspect", collection, "--json").stdout)


def test_verify_finds_a_flipped_bit(run, collection: Path):
    assert run("verify", collection).stdout == f"{collection} is intact.\n"
    assert json.loads(run("verify", collection, "--json").stdout) == {"damage": []}
    vectors = max(collection.glob("vectors-*"), key=lambda path: path.stat().st_size)
    data = bytearray(vectors.read_bytes())
    data[len(data) // 2] ^= 1
    vectors.write_bytes(data)
    damage = json.loads(run("verify", collection, "--json", code=1).stdout)["damage"]
    assert damage
    assert set(damage[0]) == {"where", "found"}
    assert damage[0]["found"] in run("verify", collection, code=1).stdout


def test_verify_needs_neither_model_nor_context(run, collection: Path):
    (context,) = collection.glob("context-1-*")
    context.write_bytes(context.read_bytes()[:-1])
    damage = json.loads(run("verify", collection, "--json", code=1).stdout)["damage"]
    assert [one["where"] for one in damage] == [context.name]


def test_a_bad_line_stops_before_anything_is_written(run, records: Path, tmp_path: Path):
    records.write_bytes(records.read_bytes() + b"oops\n")
    result = run("index", records, tmp_path / "p", code=1)
    assert result.stderr.startswith(f"Error: {records}, line 21: not JSON")
    assert result.stdout == ""
    assert not (tmp_path / "p").exists()


def test_a_bad_line_keeps_what_was_written(run, records: Path, collection: Path):
    (records.parent / "more.jsonl").write_text('{"id": "new", "text": "a boat"}\n{"id": "worse"}\n')
    assert (
        "more.jsonl, line 2: no field 'text'" in run("index", records.parent / "more.jsonl", collection, code=1).stderr
    )
    assert json.loads(run("inspect", collection, "--json").stdout)["documents"] == 20
    assert run("verify", collection)


def test_skipped_lines_are_counted_and_named(run, records: Path, tmp_path: Path):
    records.write_bytes(b"oops\n" + records.read_bytes() + b'{"id": "empty", "text": " "}\n')
    result = run("index", records, tmp_path / "p", "--skip-bad", "--json")
    found = json.loads(result.stdout)
    assert (found["documents"], found["skipped"]) == (20, 2)
    assert f"Skipped 2 bad records:\n  {records}, line 1: not JSON" in result.stderr
    assert "line 22: the text in 'text' is blank" in result.stderr


def test_ctrl_c_says_how_to_continue(run, records: Path, tmp_path: Path, model_folder: Path, monkeypatch):
    monkeypatch.setattr(intake, "CHUNK", 8)
    add, calls = StoreCalls.add, []

    def interrupted(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        add(*arguments, **named)

    monkeypatch.setattr(StoreCalls, "add", interrupted)
    stopped = run("index", records, tmp_path / "p", code=130)
    assert "Stopped at 8 of 20 passages. Run the same command again to continue." in stopped.stderr
    monkeypatch.setattr(StoreCalls, "add", add)
    assert run("index", records, tmp_path / "p").stdout.endswith("20 passages (12 added, 8 unchanged, 1 truncated)\n")
    run("index", records, tmp_path / "q")
    assert contents(tmp_path / "p", model_folder) == contents(tmp_path / "q", model_folder)


def test_ctrl_c_elsewhere_is_no_traceback(run, collection: Path, monkeypatch):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Searcher, "search", interrupt)
    assert run("search", collection, "river", code=130).stderr == "Stopped. Run the same command again to continue.\n"


def test_progress_goes_to_stderr_when_asked(run, records: Path, tmp_path: Path):
    shown = run("index", records, tmp_path / "p", "--progress")
    assert "20/20" in shown.stderr
    assert "20/20" not in shown.stdout
    assert "20/20" not in run("index", records, tmp_path / "q").stderr  # not a terminal


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["index", "missing.jsonl", "p"], 1, "Error: missing.jsonl does not exist."),
        (["index", "empty.jsonl", "p"], 1, "Error: empty.jsonl: expected documents, found none"),
        (["index", "records.jsonl", "file/p"], 1, "Error: "),
        (["index", "records.jsonl", "p", "--model", "none"], 1, "Error: Expected a bundled model"),
        (["index", "records.jsonl", "p", "--parent-key", "a.b"], 2, "--parent-key"),
        (["index", "records.jsonl", "p", "--context-size", "0"], 2, "--context-size"),
        (["index", "records.jsonl"], 2, "Missing argument"),
        (["index", "records.jsonl", "papers.faiss", "--parent-key", "year"], 1, "made with the parent key 'book'"),
        (["search", "missing.faiss", "river"], 1, "Error: "),
        (["search", ".", "river"], 1, "found a folder with other files"),
        (["search", "papers.faiss", " "], 2, "QUERY"),
        (["search", "papers.faiss", "river", "-k", "0"], 2, "-k"),
        (["search", "papers.faiss", "river", "--where", "{"], 2, "expected a JSON object such as"),
        (["search", "river", "papers.faiss"], 2, "papers.faiss is the collection, and comes first"),
        (["search", "papers.faiss", "river", "--offset", "-1"], 2, "--offset"),
        (["search", "papers.faiss", "river", "--where", "[]"], 2, "expected a JSON object"),
        (["search", "papers.faiss", "river", "--where", '{"year": 1, "year": 2}'], 2, "the key 'year' stands twice"),
        (["search", "papers.faiss", "river", "--where", '{"year": {"near": 1}}'], 1, "near"),
        (["search", "papers.faiss", "river", "--model", "none"], 1, "Error: Expected a bundled model"),
        (["search", "papers.faiss", "river", "--model", "cde-mini-0"], 1, "--to-model cde-mini-0"),
        (["inspect", "missing.faiss"], 1, "Error: "),
        (["verify", "missing.faiss"], 1, "Error: "),
        (["find"], 2, "No such command"),
    ],
)
def test_errors_are_one_sentence_on_stderr(
    collection: Path, model_folder: Path, monkeypatch, arguments: list[str], code: int, sentence: str
):
    monkeypatch.chdir(collection.parent)
    Path("empty.jsonl").touch()
    Path("file").touch()
    command = (
        arguments
        if "--model" in arguments or arguments[0] in ("find", "inspect", "verify")
        else [*arguments, "--model", str(model_folder)]
    )
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    assert result.stdout == ""
    assert not Path("p").exists()


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--top-k=3", "--top-k. Write -k for it."),
        ("--limit=3", "--limit. Write -k for it."),
        ("--filter={}", "--filter. Write --where for it."),
        ("--nonsense", "--nonsense"),
    ],
)
def test_an_option_of_other_tools_names_the_one_that_is_meant(run, collection: Path, option: str, hint: str):
    assert run("search", collection, "river", option, code=2).stderr.strip().endswith(f"No such option: {hint}")


def test_a_search_without_hits_says_so(run, collection: Path):
    found = run("search", collection, "river", "--where", '{"yaer": 2007}')
    assert found.stdout == ""
    assert found.stderr.startswith("No hits: no passage has the field 'yaer'. The commonest fields: 'book', 'table',")
    assert "'year'" in found.stderr
    found = run("search", collection, "river", "--where", '{"year": "2007"}')
    assert found.stderr.startswith("No hits: 0 of 20 passages match 'year'. The first that has it: {")
    found = run("search", collection, "river", "--where", '{"or": [{"year": 1}, {"year": 2}]}')
    assert found.stderr.startswith("No hits: 0 of 20 passages match the filter. The first passage has {")
    found = run("search", collection, "river", "--where", '{"yaer": 2007}', "--json")
    assert json.loads(found.stdout) == {"hits": []}
    assert found.stderr.startswith("No hits: no passage has the field 'yaer'.")


def test_a_filter_that_leaves_nothing_near_the_query_is_named(collection: Path):
    """A passage that it leaves out may have the query's words."""
    with contextlib.closing(FaissStore(collection)) as store:
        told = explain_no_hits(store, {"year": {"gte": 2018}}, None, "hybrid")
        assert told.startswith("2 of 20 passages match the filter; none of these has a word of the query, or is nearer")
        assert told.endswith("without --where all are searched.")
        assert explain_no_hits(store, None, None, "hybrid").startswith("no passage has a word of the query")


def test_other_weights_under_the_collections_own_name_are_told_as_they_are(collection: Path, monkeypatch):
    def mismatch(*args: object, **asked: object) -> Collection:
        raise ContextMismatchError(expected="a" * 64, found="b" * 64)

    monkeypatch.setattr(Collection, "open", mismatch)
    result = CliRunner().invoke(app, ["search", str(collection), "river"])
    assert result.exit_code == 1
    assert "--model" not in result.stderr
    assert "aaaa" in result.stderr


def test_a_terminal_shows_the_lines_around_the_querys_words_which_are_bold(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "48")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    around = "more words about it " * 20
    text = f"{around}\nRivers flood.\n    def bank():\n        return 1\n{around}"
    print_hits([Hit("a", 0.5, "", text, {})], query="the river banks")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        f"{'':8}\x1b[1mRivers\x1b[0m flood.",
        f"{'':8}    def \x1b[1mbank\x1b[0m(): …",
    ]
    assert lines[1].startswith(f"{'':8}… ")
    assert max(map(len, lines[:2])) <= 48
    print_hits([Hit("a", 0.5, "", "Nothing of it.", {}), Hit("b", 0.4, "b", "", {})], query="the river banks")
    assert capsys.readouterr().out.splitlines()[1:] == [f"{'':8}Nothing of it.", " 0.400  b  [b]"]


def test_the_command_and_the_page_mark_the_same_words(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    query = "How do I get from the river to the banks?"
    hit = Hit("a", 0.5, "", "How do I float? Get down the RIVER; a river_bank, banked sand, the rivers\u00ad.", {})
    print_hits([hit], query=query)
    bold = set(re.findall(r"\x1b\[1m(.*?)\x1b\[0m", capsys.readouterr().out))
    assert sorted(bold) == with_matches(hit, query)["matches"] == ["RIVER", "banked", "river_bank", "rivers\u00ad"]
    print_hits([hit], query="How do I?")  # a query of such words alone has them marked
    assert "\x1b[1mHow\x1b[0m" in capsys.readouterr().out


def test_full_shows_whole_texts_with_their_line_breaks(run, tmp_path: Path):
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"id": "a", "text": "first\n  second\n\nthird " + "word " * 200}) + "\n")
    run("index", source, tmp_path / "a.faiss")
    lines = run("search", tmp_path / "a.faiss", "first", "--full").stdout.splitlines()
    assert [line.strip() for line in lines[2:5]] == ["first", "second", ""]
    assert " ".join(lines).count("word") == 200


def test_a_collection_of_a_function_says_what_works_without_it(tmp_path: Path):
    runner, place = CliRunner(), str(tmp_path / "letters.faiss")

    def letters(texts: list[str]) -> list[list[float]]:
        return [[1.0 + text.count(letter) for letter in "abcde"] for text in texts]

    function = FunctionEmbedder(letters, name="letters-1")
    with Collection.create(place, function) as papers:
        papers.add(["a bee", "a cab"], ids=["bee", "cab"])
    result = runner.invoke(app, ["search", place, "bee"])
    assert result.exit_code == 1
    assert "made with 'letters-1', an API's model or a Python function" in result.stderr
    found = runner.invoke(app, ["search", place, "bee", "--by", "words", "--json"])
    assert [hit["id"] for hit in json.loads(found.stdout)["hits"]] == ["bee"]
    missing = runner.invoke(app, ["search", place, "zebra", "--by", "words"])
    assert "no word of the query is in any passage" in missing.stderr


@pytest.mark.parametrize("tenant", [(), ("--tenant", "acme & sons")])
def test_upgrade_adopts_what_inspect_names(run, tmp_path: Path, tenant: tuple[str, ...]):
    (tmp_path / "docs").mkdir()
    for n in range(70):
        (tmp_path / "docs" / f"{n}.md").write_text(f"## Part\n\n{WORDS[n % 9]} {WORDS[n // 9]} delta {n}")
    old = tmp_path / "old.faiss"
    run("index", tmp_path / "docs", old, *(tenant or ("--context-size", "8")), "--no-progress")
    store = existing(str(old), tenant[1]) if tenant else FaissStore(old)
    settings = dict(store.manifest().settings)
    store.write(
        lambda state: state._session.put_settings(
            {key: settings[key] for key in settings.keys() - {CALIBRATION, "reading"}}
        )
    )
    named = json.loads(run("inspect", old, *tenant, "--json").stdout)["newer_defaults"]
    assert [name.partition(" ")[0] for name in named] == ["passages", "a", "hybrid"]
    shown = run("inspect", old, *tenant).stderr.splitlines()[-1]
    assert shown == f"To adopt the newer defaults: {shlex.join(['cde-rag', 'upgrade', str(old), *tenant])}"
    run(*shlex.split(shown)[6:], "--no-progress")
    (backup,) = tmp_path.glob("*.before-upgrade")
    kept = json.loads((backup / "backup.json").read_text())["settings"]
    assert kept.get("tenant") == (tenant[1] if tenant else None)
    assert json.loads(run("inspect", old, *tenant, "--json").stdout)["newer_defaults"] == []
    manifest = store.manifest()
    assert (known := calibration_of(manifest.settings, manifest.fingerprint)) is not None
    assert known.records == 70
    assert "has the newest defaults" in run("upgrade", old, *tenant).stderr
    store.close()

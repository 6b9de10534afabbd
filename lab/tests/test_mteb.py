"""MTEB with contextual models, offline: each task has a context of its own texts, and retrieval scores are ours."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import mteb
import mteb_tasks
import numpy as np
import pytest
from beir_folders import write_set
from datasets import Dataset
from mteb.types import PromptType
from tiny import WORDS

from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import ContextMissingError, CorpusError, MissingExtraError
from cde_rag.evaluation import Corpus, RetrievalSet, evaluate, read_beir
from cde_rag.models import CDEModel
from lab.mteb import CDEForMTEB, SweepProgress, find_tasks, local_retrieval_task, sweep
from lab.mteb.task_prefixes import task_prefixes

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")
SIZE = 6  # context documents
AT = {"hf_split": "test", "hf_subset": "default"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of which three have a title, one ends in blanks, and one is a query."""
    rng = np.random.default_rng(0)
    corpus: list[dict[str, object]] = [
        {"_id": f"d{number}", "text": " ".join(rng.choice(WORDS, 8)), "title": WORDS[number] if number < 3 else ""}
        for number in range(30)
    ]
    corpus[4]["text"] = "river bank  "
    corpus.append({"_id": "q0", "text": "the river bank"})
    queries = {"q0": "the river bank"} | {f"q{number}": " ".join(rng.choice(WORDS, 3)) for number in range(1, 9)}
    judged = {(f"q{number}", f"d{int(rng.integers(30))}"): int(rng.integers(1, 3)) for number in range(9) for _ in "ab"}
    return write_set(tmp_path / "little set", corpus, queries, [(*pair, grade) for pair, grade in judged.items()])


@pytest.fixture
def encoder(tiny_model: CDEModel) -> CDEForMTEB:
    return CDEForMTEB(tiny_model, context_size=SIZE)


def run(encoder: CDEForMTEB, task: Any) -> Any:
    (result,) = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results
    return result


def context_of(tiny_model: CDEModel, texts: list[str], seed: int = 0) -> Context:
    return ContextualEmbedder.from_corpus(texts, model=tiny_model, context_size=SIZE, seed=seed).context


def test_retrieval_scores_are_those_of_evaluate(folder: Path, tiny_model: CDEModel) -> None:
    found = sweep([local_retrieval_task(folder)], model=tiny_model, context_size=SIZE, seeds=[0, 1, 2])
    own = [
        evaluate([folder], model=tiny_model, context_size=SIZE, seeds=[seed], systems=["own"]).mean("own")
        for seed in found.seeds
    ]
    assert len(set(own)) == 3  # the context acts
    np.testing.assert_allclose(found.tasks[0].scores, own, atol=1e-4)
    assert found.tasks[0].mean == pytest.approx(np.mean(own), abs=1e-4)
    assert found.tasks[0].spread == pytest.approx(np.std(own, ddof=1), abs=1e-4)


def test_no_context_and_one_of_other_texts(folder: Path, tiny_model: CDEModel) -> None:
    """Table 2 of the paper: scores are those of embedders that never saw the task's texts."""
    data, others = read_beir(folder), [" ".join(WORDS[n : n + 5]) for n in range(12)]
    contexts = {
        "null": ("null", Context.null(tiny_model)),
        "others": (others, context_of(tiny_model, others)),
        "own": ("own", context_of(tiny_model, list(data.corpus.texts))),
    }
    found = {}
    for name, (given, context) in contexts.items():
        encoder = CDEForMTEB(tiny_model, context_size=SIZE, context=given)
        found[name] = run(encoder, local_retrieval_task(folder)).get_score()
        assert encoder.embedder.fingerprint == context.fingerprint
        swept = sweep([local_retrieval_task(folder)], model=tiny_model, context_size=SIZE, context=given)
        assert swept.mean == pytest.approx(found[name])
        settings = encoder.mteb_model_meta.experiment_kwargs
        assert ("context" in settings) == (name != "own")  # results of different contexts are kept apart
    assert len(set(found.values())) == 3


def test_retrieval_scores_on_a_real_set(shared_data: Path, tiny_model: CDEModel) -> None:
    whole = read_beir(shared_data / "eval/cisi").sample_queries(30)
    corpus = Corpus("cisi", whole.corpus.ids[:500], whole.corpus.texts[:500])
    data = RetrievalSet(corpus, whole.query_ids, whole.queries, whole.judgments)
    own = evaluate([data], model=tiny_model, context_size=64, systems=["own"]).mean("own")
    found = sweep([local_retrieval_task(data)], model=tiny_model, context_size=64)
    assert own > 0
    assert found.tasks[0].scores[0] == pytest.approx(own, abs=1e-4)


def test_a_corpus_gives_its_own_context(folder: Path, encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    run(encoder, local_retrieval_task(folder))
    expected = context_of(tiny_model, list(read_beir(folder).corpus.texts))
    assert encoder.embedder.fingerprint == expected.fingerprint


def test_titles_are_part_of_a_document(encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    corpus = Dataset.from_list([{"id": str(n), "title": WORDS[n], "text": WORDS[n + 1]} for n in range(9)])
    task = mteb_tasks.metadata("titles", "Retrieval", "ndcg_at_10")
    encoder.index(corpus, task_metadata=task, encode_kwargs={}, **AT)
    texts = [f"{WORDS[n]} {WORDS[n + 1]}" for n in range(9)]
    assert encoder.embedder.fingerprint == context_of(tiny_model, texts).fingerprint


def labelled(shared_data: Path, name: str, labels: int) -> list[dict[str, str]]:
    """Six training texts and four to be told of each of some labels."""
    with gzip.open(shared_data / "eval" / name / "data.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    kept = sorted({row["label"] for row in rows})[:labels]
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["label"], row["split"]), []).append(row)
    return [
        row
        for (label, split), group in groups.items()
        for row in group[: 6 if split == "train" else 4]
        if label in kept
    ]


@pytest.mark.parametrize("name", ["banking77", "clinc150"])
def test_classification(name: str, shared_data: Path, encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    rows = labelled(shared_data, name, 5)
    result = run(encoder, mteb_tasks.classification(name, rows))
    assert 0 < result.get_score() <= 1
    training = [row["text"] for row in rows if row["split"] == "train"]
    assert encoder.embedder.fingerprint == context_of(tiny_model, training).fingerprint  # of both splits


def test_clustering(shared_data: Path, encoder: CDEForMTEB) -> None:
    result = run(encoder, mteb_tasks.clustering("clusters", labelled(shared_data, "clinc150", 6)))
    assert 0 <= result.get_score() <= 1


def test_sts(shared_data: Path, encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    with gzip.open(shared_data / "eval/stsb/data.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    sentences = [(row["s1"], row["s2"], row["score"]) for row in rows if row["split"] == "test"][:60]
    result = run(encoder, mteb_tasks.sts("stsb", sentences))
    assert result.get_score() > 0.1  # letters are enough for that
    scores = result.scores["test"][0]
    assert scores["cosine_pearson"] == pytest.approx(scores["pearson"], abs=1e-5)  # similarity_pairwise
    assert encoder.embedder.fingerprint == context_of(tiny_model, [first for first, _, _ in sentences]).fingerprint


def test_reranking_and_pairs(encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    corpus = {f"d{number}": f"{WORDS[number]} {WORDS[-1 - number]}" for number in range(20)}
    queries = {"q0": WORDS[3], "q1": WORDS[15]}
    result = run(encoder, mteb_tasks.reranking("again", corpus, queries, {"q0": {"d3": 1}, "q1": {"d15": 1}}))
    assert 0 < result.get_score() <= 1
    assert encoder.embedder.fingerprint == context_of(tiny_model, list(corpus.values())).fingerprint
    same = [(text, text, 1) for text in list(corpus.values())[:10]]
    other = [(WORDS[number], WORDS[number + 5], 0) for number in range(10)]
    assert run(encoder, mteb_tasks.pairs("pairs", same + other)).get_score() == pytest.approx(1)


def test_every_task_has_its_own_context(folder: Path, encoder: CDEForMTEB) -> None:
    tasks = [
        local_retrieval_task(folder),
        mteb_tasks.sts("one", [(word, word, 1.0) for word in WORDS[:7]] + [("river", "bank", 0.0)]),
        mteb_tasks.sts("two", [(word, word, 1.0) for word in WORDS[7:14]] + [("river", "bank", 0.0)]),
    ]
    fingerprints: list[str] = []
    for task in [*tasks, tasks[0]]:
        run(encoder, task)
        fingerprints.append(encoder.embedder.fingerprint)
    assert len(set(fingerprints)) == 3
    assert fingerprints[0] == fingerprints[3]


def test_queries_and_documents_are_told_apart(encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    task = mteb_tasks.metadata("roles", "STS", "cosine_spearman")
    texts = ["river", "bank of the river", " ", "loan"]
    batches = [{"text": texts[:3]}, {"text": texts[3:]}]
    documents = encoder.encode(batches, task_metadata=task, **AT)
    queries = encoder.encode(batches, task_metadata=task, prompt_type=PromptType.query, **AT)
    own = ContextualEmbedder(tiny_model, encoder.embedder.context)
    there = [0, 1, 3]
    np.testing.assert_allclose(documents[there], own.embed_documents([texts[i] for i in there]), atol=1e-6)
    np.testing.assert_allclose(queries[there], own.embed_queries([texts[i] for i in there]), atol=1e-6)
    assert np.abs(documents - queries).max() > 1e-2
    assert not documents[2].any()  # blank
    assert not queries[2].any()
    np.testing.assert_allclose(encoder.similarity(queries, documents), queries @ documents.T, atol=1e-6)
    np.testing.assert_allclose(
        encoder.similarity_pairwise(queries, documents), np.diagonal(queries @ documents.T), atol=1e-6
    )


def test_nothing_is_searched_without_its_corpus(encoder: CDEForMTEB) -> None:
    task = mteb_tasks.metadata("unseen", "Retrieval", "ndcg_at_10")
    with pytest.raises(ContextMissingError, match="found none yet"):
        _ = encoder.embedder
    with pytest.raises(ContextMissingError, match="unseen: expected its corpus"):
        encoder.encode([{"text": ["river"]}], task_metadata=task, prompt_type=PromptType.query, **AT)
    with pytest.raises(ContextMissingError, match="Expected a corpus before queries"):
        encoder.search(Dataset.from_list([]), task_metadata=task, top_k=1, encode_kwargs={}, **AT)


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("SciFact", "search_query: ", "search_document: "),
        ("QuoraRetrieval", "search_query: ", "search_query: "),
        ("Core17InstructionRetrieval", "search_query: ", "search_document: "),
        ("SciDocsRR", "classification: ", "classification: "),
        ("STSBenchmark", "classification: ", "classification: "),
        ("Banking77Classification", "classification: ", "classification: "),
        ("SprintDuplicateQuestions", "classification: ", "classification: "),
        ("SummEval", "classification: ", "classification: "),
        ("RedditClustering", "clustering: ", "clustering: "),
    ],
)
def test_prefixes_of_published_tasks(name: str, query: str, document: str) -> None:
    assert task_prefixes(mteb.get_task(name).metadata) == {"query": query, "document": document}


def test_what_is_written_down_about_a_model(encoder: CDEForMTEB, tiny_model: CDEModel) -> None:
    meta = encoder.mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.max_tokens, meta.license) == ("local/tiny", 16, 32, None)
    assert meta.n_parameters == sum(each.numel() for each in tiny_model.network.parameters())
    assert meta.revision == tiny_model.identity.weights_sha256[:40]
    assert meta.experiment_kwargs is not None
    assert meta.experiment_kwargs["seed"] == 0
    encoder.reseed(5)
    assert encoder.mteb_model_meta.experiment_kwargs == {**meta.experiment_kwargs, "seed": 5}
    bundled = CDEForMTEB().mteb_model_meta
    assert (bundled.name, bundled.license, bundled.languages) == ("cde-rag/cde-mini-2", "apache-2.0", ["eng-Latn"])


def test_a_sweep_tells_the_context_apart_from_all_else(tiny_model: CDEModel) -> None:
    """Clustering draws at random: the same draw under each seed, so that equal contexts have equal scores."""
    few = [{"text": f"{one} {other}", "label": other} for one in WORDS[:12] for other in WORDS[12:15]]
    task = mteb_tasks.clustering("few", few)
    whole = sweep([task], model=tiny_model, context_size=200, seeds=[0, 1, 2])  # every context is all texts
    assert len(set(whole.tasks[0].scores)) == 1
    assert whole.tasks[0].spread == 0
    drawn = sweep([task], model=tiny_model, context_size=3, seeds=[0, 1, 2])
    assert len(set(drawn.tasks[0].scores)) > 1


def test_a_sweep_goes_on_where_it_stopped(
    folder: Path, tiny_model: CDEModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"model": tiny_model, "context_size": SIZE, "output": tmp_path / "results"}
    stopped: list[SweepProgress] = []

    def stop(now: SweepProgress) -> None:
        stopped.append(now)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep([local_retrieval_task(folder)], seeds=[0, 1], on_progress=stop, **asked)
    assert stopped == [SweepProgress(1, 2, "little_set", 0)]
    fitted: list[int] = []
    fit = CDEForMTEB.index
    monkeypatch.setattr(CDEForMTEB, "index", lambda self, *a, **k: (fitted.append(self.seed), fit(self, *a, **k))[1])
    found = sweep([local_retrieval_task(folder)], seeds=[0, 1], **asked)
    assert fitted == [1]
    assert sweep([local_retrieval_task(folder)], seeds=[0, 1], **asked) == found
    assert fitted == [1]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")  # other data, same name
    assert sweep([local_retrieval_task(folder)], seeds=[0, 1], **asked).tasks != found.tasks
    assert fitted == [1, 0, 1]


def test_a_result_that_was_being_written_is_scored_again(tiny_model: CDEModel, tmp_path: Path) -> None:
    task = mteb_tasks.sts("words", [(one, other, float(one < other)) for one in WORDS[:4] for other in WORDS[:4]])
    asked: dict[str, Any] = {"model": tiny_model, "context_size": SIZE, "output": tmp_path}
    found = sweep([task], **asked)
    (result,) = tmp_path.rglob("words.json")
    whole = result.read_text()
    for share in (0, 50, len(whole) - 2):
        result.write_text(whole[:share])
        assert sweep([task], **asked) == found
        assert json.loads(result.read_text())["scores"] == json.loads(whole)["scores"]


def test_other_data_of_a_task_has_its_own_context(encoder: CDEForMTEB) -> None:
    task = mteb_tasks.metadata("words", "STS", "cosine_spearman")
    other = task.model_copy(update={"dataset": {"path": "words", "revision": "2"}})
    encoder.encode([{"text": WORDS[:7]}], task_metadata=task, **AT)
    first = encoder.embedder.fingerprint
    encoder.encode([{"text": WORDS[7:14]}], task_metadata=task, **AT)  # the other side of its pairs
    assert encoder.embedder.fingerprint == first
    encoder.encode([{"text": WORDS[7:14]}], task_metadata=other, **AT)
    assert encoder.embedder.fingerprint != first


def test_a_table_and_json(folder: Path, tiny_model: CDEModel) -> None:
    pairs = [(one, other, float(one < other)) for one in WORDS[:4] for other in WORDS[:4]]
    tasks = [mteb_tasks.sts("words", pairs), local_retrieval_task(folder)]
    found = sweep(tasks, model=tiny_model, context_size=SIZE, seeds=[3, 4])
    assert [task.name for task in found.tasks] == ["words", "little_set"]  # as asked, whatever ran first
    value = found.to_json()
    assert value["mean"] == pytest.approx(np.mean([np.mean(task.scores) for task in found.tasks]))
    assert value["tasks"]["little_set"]["metric"] == "ndcg_at_10"
    lines = str(found).splitlines()
    assert "tiny · 6 context documents · seeds 3, 4" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["task", "words", "little_set", "mean"]
    assert sweep(tasks[:1], model=tiny_model, context_size=SIZE).tasks[0].spread is None


def test_what_is_refused(folder: Path, tmp_path: Path, tiny_model: CDEModel) -> None:
    with pytest.raises(CorpusError, match=r"found 'SciFaxt'.*Did you mean: 'SciFact'"):
        find_tasks(["SciFaxt"])
    with pytest.raises(CorpusError, match="little_set more than once"):
        find_tasks([str(folder), str(folder)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"expected corpus\.jsonl"):
        find_tasks([str(tmp_path / "empty")])
    with pytest.raises(CorpusError, match="expected uncut documents, found passages"):
        local_retrieval_task(read_beir(folder, max_characters=10))
    with pytest.raises(ValueError, match="at least one task and one seed"):
        sweep([], model=tiny_model)


def test_tasks_are_found_by_name() -> None:
    assert [task.metadata.name for task in find_tasks(["STSBenchmark", "NFCorpus"])] == ["STSBenchmark", "NFCorpus"]
    assert {"Banking77Classification", "TwentyNewsgroupsClustering"} <= {
        task.metadata.name for task in find_tasks(["MTEB(eng, v1)"])
    }


def test_without_network_a_task_by_name_is_one_sentence(tiny_model: CDEModel) -> None:
    with pytest.raises(CorpusError, match=r"SciFact: its data is not in the cache .*Run once with network"):
        sweep(find_tasks(["SciFact"]), model=tiny_model)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lab.mteb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(MissingExtraError, match=r"cde-rag\[mteb\]"):
        __import__("lab.mteb")

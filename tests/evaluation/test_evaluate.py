"""evaluate() from folders to figures, with a tiny random model whose context acts."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from beir_folders import write_set
from plain_model import write_static, write_transformer
from tiny import WORDS

import cde_rag
from cde_rag import Collection, ContextualEmbedder, PlainEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.errors import CorpusError, ModelError
from cde_rag.evaluation import Evaluation, EvaluationProgress, evaluate, harness, read_beir
from cde_rag.evaluation.baselines import FOR_PARENTS
from cde_rag.evaluation.encoding import headed
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import METRICS, ndcg, score
from cde_rag.evaluation.ranking import rank_vectors
from cde_rag.evaluation.report import SYSTEMS
from cde_rag.models import CDEModel
from cde_rag.models.plain.corpus_map import unit
from cde_rag.stores.faiss import FaissStore

WITH_PARENTS = {"parents", "parents_hybrid", "headers", "headers_hybrid", *FOR_PARENTS}
PLAIN = {"own", "null", "foreign", "bm25", "minilm", "centred", "whitened", "hybrid", "own_hybrid"}


class Hashed:
    """A plain embedder: the sum of a random vector for each word."""

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        rows = [
            sum(np.random.default_rng(WORDS.index(word)).normal(size=8) for word in text.split() if word in WORDS)
            for text in texts
        ]
        return unit(np.array(rows, dtype=np.float32))

    def late_chunking(self, texts: Sequence[str], parents: Sequence[str | None]) -> np.ndarray:
        return self(texts)


@pytest.fixture(scope="module", autouse=True)
def no_minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    plain = write_transformer(tmp_path_factory.mktemp("minilm") / "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "MiniLM", lambda device: Hashed())
        patch.setattr(harness, "MINILM", str(plain))  # it is timed
        yield


def make_folder(folder: Path, *, documents: int, seed: int, parents: bool = False) -> Path:
    """Documents of ten words; each query is three words of its document."""
    rng = random.Random(seed)
    corpus = [{"_id": f"d{i}", "text": " ".join(rng.choices(WORDS, k=10))} for i in range(documents)]
    if parents:
        for i, row in enumerate(corpus):
            row["parent"] = f"p{i // 4}"
    queries = {f"q{i}": " ".join(rng.sample(corpus[i]["text"].split(), 3)) for i in range(documents // 2)}
    return write_set(folder, corpus, queries, [(f"q{i}", f"d{i}", 1) for i in range(len(queries))])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("sets")
    return [
        make_folder(home / "one", documents=20, seed=1),
        make_folder(home / "two", documents=30, seed=2, parents=True),
        make_folder(home / "xquad_en", documents=12, seed=3),
    ]


@pytest.fixture(scope="module")
def evaluation(folders: list[Path], tiny_model: CDEModel) -> Evaluation:
    return evaluate(folders, model=tiny_model, context_size=8, seeds=(0, 1))


def test_the_json_says_all(evaluation: Evaluation) -> None:
    found = json.loads(json.dumps(evaluation.to_json()))
    assert found.keys() >= {*METRICS, "intervals", "foreign_corpus", "model", "context_size", "seeds", "sets"}
    assert (found["model"], found["context_size"], found["seeds"]) == ("tiny", 8, [0, 1])
    assert found["saturated"] == ["xquad_en"]
    assert found["sets"]["one"].keys() - METRICS.keys() == {
        "blank_documents",
        "blank_queries",
        "context_documents",
        "documents",
        "foreign_corpus",
        "intervals",
        "missing_documents",
        "passages",
        "queries",
        "truncated_passages",
        "truncated_queries",
    }
    assert found["sets"]["one"]["documents"] == 20
    assert found["sets"]["one"]["queries"] == 10
    assert found["sets"]["one"]["context_documents"] == 8
    for metric in METRICS:
        assert found[metric].keys() == PLAIN | WITH_PARENTS  # what ran on a counted set
        assert all(0 <= figure <= 1 for figure in found[metric].values())


def test_every_set_has_the_systems_that_it_gives_ground_for(evaluation: Evaluation) -> None:
    one, two, small = (set(result.scores) for result in evaluation.sets)
    assert one == PLAIN
    assert two == PLAIN | WITH_PARENTS
    assert small == PLAIN | {"own_without_relevant"}  # 12 documents are less than two contexts of 8
    assert evaluation.systems == tuple(system for system in SYSTEMS if system in one | two | small)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
@pytest.mark.parametrize(
    ("system", "parent_key", "headers"),
    [("own_hybrid", None, []), ("parents_hybrid", "parent", []), ("headers_hybrid", None, ["parent"])],
)
def test_a_hybrid_is_what_a_collection_finds_and_shows_no_part(
    folders: list[Path],
    tiny_model: CDEModel,
    tmp_path: Path,
    system: str,
    parent_key: str | None,
    headers: list[str],
) -> None:
    data = read_beir(folders[1], parent_key="parent")
    corpus = data.corpus
    by_hand = []
    for seed in (0, 1):
        texts = headed(data).corpus.texts if headers else corpus.texts
        embedder = ContextualEmbedder.from_corpus(texts, model=tiny_model, context_size=8, seed=seed)
        store = FaissStore(tmp_path / str(seed))
        with Collection.create(store, embedder, parent_key=parent_key, headers=headers) as papers:
            parents = [{} if one is None else {"parent": one} for one in corpus.parents or ()]
            papers.add(corpus.texts, ids=corpus.ids, metadata=parents)
            found = [[hit.id for hit in papers.search(query, 100, by="hybrid")] for query in data.queries]
        others = ([id_ for id_ in ids if id_ != query] for query, ids in zip(data.query_ids, found, strict=True))
        by_hand.append([ndcg(ids, judged, 10) for ids, judged in zip(others, data.judgments, strict=True)])
    ran = evaluate([data], model=tiny_model, context_size=8, seeds=(0, 1), systems=[system])
    (found,) = ran.sets
    assert list(found.scores) == [system]
    assert found.scores[system]["ndcg@10"] == pytest.approx(np.mean(by_hand, axis=0))


def test_means_are_over_queries_then_over_counted_sets(evaluation: Evaluation) -> None:
    one, two, _ = evaluation.sets
    for metric in METRICS:
        by_hand = (one.scores["own"][metric].mean() + two.scores["own"][metric].mean()) / 2
        assert evaluation.to_json()[metric]["own"] == pytest.approx(by_hand)
    assert evaluation.mean("parents") == pytest.approx(two.mean("parents"))
    assert evaluation.mean("own_without_relevant") is None  # it ran on the saturated set only


def test_differences_are_paired_within_the_counted_sets(evaluation: Evaluation) -> None:
    by_hand = compare(
        [
            PairedQueries(one.scores["own"]["ndcg@10"] - one.scores["null"]["ndcg@10"], one.blocks)
            for one in evaluation.sets[:2]
        ]
    )
    assert evaluation.differences["own", "null"] == by_hand
    assert evaluation.to_json()["intervals"]["own-null"] == {
        "mean": by_hand.mean,
        "queries": by_hand.queries,
        "sets": by_hand.sets,
    }
    assert by_hand.mean == pytest.approx(evaluation.mean("own") - evaluation.mean("null"))  # type: ignore[operator]
    assert set(evaluation.differences) == {
        ("own", "null"),
        ("own_hybrid", "hybrid"),
        ("parents", "minilm"),
        ("own", "foreign"),
        ("own", "minilm"),
        ("own", "hybrid"),
        ("own", "centred"),
        ("own", "whitened"),
        ("own_hybrid", "own"),
        ("own_hybrid", "bm25"),
        ("parents", "own"),
        ("parents", "hybrid"),
        ("parents", "siblings_mean"),
        ("parents", "lead"),
        ("parents", "whitened_lead"),
        ("parents", "neighbours"),
        ("parents", "late_chunking"),
        ("parents_hybrid", "parents"),
        ("parents_hybrid", "bm25"),
        ("parents_hybrid", "hybrid"),
        ("parents_hybrid", "own_hybrid"),
        ("headers", "own"),
        ("headers_hybrid", "own_hybrid"),
        ("headers_hybrid", "parents_hybrid"),
        ("siblings_mean", "minilm"),
    }


def test_each_set_has_differences_of_its_own(evaluation: Evaluation) -> None:
    one, two, small = evaluation.sets
    gain = two.scores["parents"]["ndcg@10"] - two.scores["own"]["ndcg@10"]
    assert two.differences["parents", "own"] == compare([PairedQueries(gain, two.blocks)])
    assert two.differences["parents", "own"] == evaluation.differences["parents", "own"]  # the only set with parents
    assert evaluation.to_json()["sets"]["two"]["intervals"]["parents-own"] == {
        "mean": pytest.approx(gain.mean()),
        "queries": two.differences["parents", "own"].queries,
        "sets": None,
    }
    assert ("parents", "own") not in one.differences
    assert ("own_without_relevant", "own") in small.differences
    assert ("own_without_relevant", "own") not in evaluation.differences


def test_saturated_sets_are_counted_where_there_are_no_others(folders: list[Path], tiny_model: CDEModel) -> None:
    found = evaluate(folders[2:], model=tiny_model, systems=["null"])
    assert found.mean("null") == found.sets[0].mean("null")
    assert found.to_json()["saturated"] == []


def test_the_context_acts_and_seeds_are_averaged_per_query(tmp_path: Path, tiny_model: CDEModel) -> None:
    folder = make_folder(tmp_path / "four", documents=80, seed=5)

    def own(*seeds: int) -> np.ndarray:
        found = evaluate([folder], model=tiny_model, context_size=1, seeds=seeds, systems=["own"])
        return found.sets[0].scores["own"]["ndcg@10"]

    assert not np.array_equal(own(0), own(1))
    np.testing.assert_allclose(own(0, 1), (own(0) + own(1)) / 2)


def test_it_measures_what_the_public_embedder_does(folders: list[Path], tiny_model: CDEModel) -> None:
    data = read_beir(folders[1])
    embedder = cde_rag.ContextualEmbedder.from_corpus(data.corpus.texts, model=tiny_model, context_size=4, seed=0)
    documents = embedder.embed_documents(data.corpus.texts, parents=data.corpus.parents)
    expected = []
    for query, judged in zip(embedder.embed_queries(data.queries), data.judgments, strict=True):
        order = np.argsort(-(documents @ query))
        rank = [data.corpus.ids[i] for i in order].index(next(iter(judged))) + 1
        expected.append(1 / math.log2(rank + 1) if rank <= 10 else 0)
    found = evaluate([data], model=tiny_model, context_size=4, systems=["parents"])
    np.testing.assert_allclose(found.sets[0].scores["parents"]["ndcg@10"], expected)


def test_judged_documents_that_are_not_there_are_told(tmp_path: Path, tiny_model: CDEModel) -> None:
    corpus = [{"_id": "d0", "text": "river bank"}, {"_id": "d1", "text": "money"}]
    queries = {"q0": "river", "q1": "money"}
    folder = write_set(tmp_path / "some", corpus, queries, [("q0", "d0", 1), ("q1", "d1", 1), ("q1", "gone", 2)])
    found = evaluate([folder], model=tiny_model, systems=["null"])
    assert found.to_json()["sets"]["some"]["missing_documents"] == 1
    assert "some: judged documents that the corpus lacks: 1" in str(found)


def test_systems_that_no_set_gives_ground_for_are_an_error(folders: list[Path], tiny_model: CDEModel) -> None:
    with pytest.raises(
        CorpusError, match=r"found parents, lead\. Systems with siblings or headers need documents with"
    ):
        evaluate(folders[:1], model=tiny_model, systems=["parents", "lead"])
    assert evaluate(folders[:2], model=tiny_model, systems=["parents"]).systems == ("parents",)


def test_a_foreign_context_is_that_of_the_other_corpus(folders: list[Path], tiny_model: CDEModel) -> None:
    data, other = (read_beir(folder) for folder in folders[:2])
    embedder = ContextualEmbedder.from_corpus(other.corpus.texts, model=tiny_model, context_size=8)
    documents, queries = embedder.embed_documents(data.corpus.texts), embedder.embed_queries(data.queries)
    rankings = rank_vectors(queries, documents, data.corpus.ids, data.query_ids)
    by_hand = [ndcg(found, judged, 10) for found, judged in zip(rankings, data.judgments, strict=True)]
    found = evaluate(folders[:2], model=tiny_model, context_size=8, systems=["own", "foreign"]).sets[0].scores
    assert found["foreign"]["ndcg@10"] == pytest.approx(by_hand)
    assert (found["foreign"]["ndcg@10"] != found["own"]["ndcg@10"]).any()


def test_whose_context_is_foreign(folders: list[Path], tiny_model: CDEModel, tmp_path: Path) -> None:
    def names(count: int, foreign: Path | None = None) -> list[str | None]:
        found = evaluate(folders[:count], model=tiny_model, foreign=foreign, systems=["foreign"])
        return [found.foreign_corpus, *(one.foreign_corpus for one in found.sets)]

    assert names(2) == ["the next set", "two", "one"]
    assert names(1) == ["python_stdlib", "python_stdlib"]
    assert names(2, foreign=folders[2]) == ["xquad_en"] * 3
    with pytest.raises(CorpusError, match="two: expected a foreign corpus, found its own in two"):
        names(2, foreign=folders[1])
    alone = evaluate(folders[:1], model=tiny_model, systems=["null"])
    assert alone.to_json()["foreign_corpus"] is None


def test_progress_counts_every_system_of_every_set(folders: list[Path], tiny_model: CDEModel) -> None:
    seen: list[EvaluationProgress] = []
    found = evaluate(folders, model=tiny_model, context_size=8, on_progress=seen.append)
    assert [one.done for one in seen] == list(range(1, len(seen) + 1))
    assert {one.total for one in seen} == {len(seen)}
    assert {(one.set, one.system) for one in seen} == {(one.name, name) for one in found.sets for name in one.scores}


def test_the_table_is_for_people(evaluation: Evaluation) -> None:
    lines = str(evaluation).splitlines()
    assert lines[0] == "NDCG@10 × 100 · tiny · 8 context documents · seeds 0, 1"
    starts = [line.split("  ")[0] for line in lines]
    assert starts.index("one") < starts.index("two") < starts.index("mean") < starts.index("(apart)")
    assert starts.index("(apart)") < starts.index("xquad_en") < starts.index("difference")
    mean = next(line for line in lines if line.startswith("mean")).split()
    assert len(mean) == 1 + len(PLAIN)  # parents ran on one of the two
    assert mean[1] == f"{100 * evaluation.mean('own'):.1f}"
    assert "foreign context: the next set" in lines


def test_a_single_set_has_neither_a_mean_nor_an_interval_over_sets(folders: list[Path], tiny_model: CDEModel) -> None:
    found = evaluate(folders[:1], model=tiny_model, systems=["own", "null"], context_size=8)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines if line][2:5] == ["own", "null", "difference"]
    assert "95 % (queries)" in str(found)
    assert "(sets)" not in str(found)
    assert found.to_json()["intervals"]["own-null"]["sets"] is None


def test_models_are_compared_on_the_same_queries(folders: list[Path], tiny_model: CDEModel, tmp_path: Path) -> None:
    """The second model's systems have its name; all have costs, and differences to MiniLM."""
    folder = make_folder(tmp_path / "many", documents=60, seed=5, parents=True)
    plain = write_transformer(tmp_path / "plain", dim=32)
    asked = ["own", "parents", "own_hybrid", "minilm", "bm25"]
    first = evaluate([folder], model=tiny_model, systems=asked, parent_key="parent", context_size=8)
    other = evaluate([folder], model=plain, systems=asked[:3], parent_key="parent", context_size=8)
    found = first.with_model("plain", other)
    assert found.systems == (
        "own",
        "parents",
        "bm25",
        "minilm",
        "own_hybrid",
        "own --model plain",
        "own_hybrid --model plain",
        "parents --model plain",
    )
    compared = found.to_json()["comparison"]
    assert compared["reference"] == "minilm"
    expected = other.sets[0].scores["own"]["ndcg@10"] - first.sets[0].scores["minilm"]["ndcg@10"]
    assert compared["differences"]["own --model plain"]["mean"] == pytest.approx(expected.mean())
    costs = compared["costs"]
    assert costs["bm25"] == {"seconds": 0.0, "vector_bytes": 0, "model_bytes": 0}
    assert costs["own --model plain"]["vector_bytes"] == 2 * costs["own"]["vector_bytes"] == 60 * 32 * 4
    assert costs["own"]["seconds"] == costs["parents"]["seconds"] > 0
    size = sum(path.stat().st_size for path in plain.rglob("*") if path.suffix in {".json", ".safetensors"})
    assert costs["own --model plain"]["model_bytes"] == size
    assert compared["take"] in found.systems


def test_what_is_cut_is_counted(tmp_path: Path, tiny_model: CDEModel) -> None:
    corpus = [{"_id": "long", "text": "river " * 50}, {"_id": "short", "text": "river"}, {"_id": "none", "text": ""}]
    folder = write_set(
        tmp_path / "cut", corpus, {"q": "river", "r": "bank " * 60}, [("q", "short", 1), ("r", "long", 1)]
    )
    found = evaluate([folder], model=tiny_model, systems=["own", "null"])
    result = found.sets[0]
    assert (result.documents, result.blank_documents) == (2, 1)
    assert (result.truncated_passages, result.truncated_queries) == (1, 1)
    assert "· up to 512 context documents ·" in str(found).splitlines()[0]  # the corpus has two
    assert "cut: 1 of 2 texts were cut" in str(found)


def test_at_most_so_many_queries(folders: list[Path], tiny_model: CDEModel) -> None:
    found = evaluate(folders[:1], model=tiny_model, systems=["null"], max_queries=4)
    assert found.sets[0].query_ids == read_beir(folders[0]).sample_queries(4).query_ids
    assert len(found.sets[0].query_ids) == 4


def test_wrong_calls(folders: list[Path], tiny_model: CDEModel, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a list of folders"):
        evaluate(str(folders[0]))  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="at least one folder"):
        evaluate([])
    with pytest.raises(CorpusError, match="each of another name"):
        evaluate([folders[0], folders[0]], model=tiny_model)
    with pytest.raises(ValueError, match=r"Expected systems among own, .*; found bm52"):
        evaluate(folders, model=tiny_model, systems=["own", "bm52"])
    with pytest.raises(ValueError, match="one seed and one query"):
        evaluate(folders, model=tiny_model, seeds=())
    with pytest.raises(ValueError, match="max_queries=0"):
        evaluate(folders, model=tiny_model, max_queries=0)
    with pytest.raises(ModelError):
        evaluate(folders, model=tmp_path / "no model", systems=["null"])


def test_long_documents_are_ranked_by_their_best_passage(tmp_path: Path, tiny_model: CDEModel) -> None:
    filler = "the a of in\n\n" * 4
    pairs = zip("ab", WORDS[2:4], strict=True)
    corpus = [{"_id": name, "text": f"{filler}{word} {word}"} for name, word in pairs]
    folder = write_set(tmp_path / "long", corpus, {"q": WORDS[2], "r": WORDS[3]}, [("q", "a", 1), ("r", "b", 1)])
    (whole,) = evaluate([folder], model=tiny_model, systems=["bm25", "minilm", "own"]).sets
    (split,) = evaluate([folder], model=tiny_model, max_characters=20).sets
    assert (whole.documents, whole.passages) == (2, 2)
    assert split.documents == 2
    assert split.passages > 4
    assert {"parents", *FOR_PARENTS} < set(split.scores)  # a document is a parent
    assert all(0 < split.mean(system) <= 1 for system in split.scores)
    assert split.mean("minilm") == 1  # the passage with the word is the nearest


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_a_plain_model_by_name_is_mapped_by_the_corpus(folders: list[Path], tmp_path: Path) -> None:
    """Its figures are those of the embedder in the corpus' context, and its own vectors' are those of "null"."""
    plain = write_static(tmp_path / "table")
    found = evaluate(folders[1:2], model=plain, systems=("own", "null", "parents", "headers"))
    assert found.model == str(plain.resolve())
    assert set(found.systems) == {"own", "null", "headers", "parents"}
    data, (result,) = read_beir(folders[1]), found.sets
    for system, embedder in (
        ("own", ContextualEmbedder.from_corpus(data.corpus.texts, model=plain)),
        ("null", PlainEmbedder(plain)),
        ("parents", ArithmeticEmbedder.from_corpus(data.corpus.texts, model=PlainEmbedder(plain), weight=0.3)),
    ):
        parents = data.corpus.parents if system == "parents" else None
        documents = embedder.embed_documents(data.corpus.texts, parents=parents)
        queries = embedder.embed_queries(data.queries)
        rankings = rank_vectors(queries, documents, data.corpus.ids, data.query_ids)
        np.testing.assert_allclose(result.scores[system]["ndcg@10"], score(rankings, data.judgments)["ndcg@10"])
    assert (result.truncated_passages, result.truncated_queries) == (0, 0)  # it reads texts of any length


def test_texts_that_a_plain_model_cuts_are_counted(folders: list[Path], tmp_path: Path) -> None:
    plain = write_transformer(tmp_path / "model")  # it reads 12 tokens, of which 4 are the prefix and two special ones
    (result,) = evaluate(folders[:1], model=plain, systems=("null",)).sets
    assert (result.truncated_passages, result.truncated_queries) == (20, 0)

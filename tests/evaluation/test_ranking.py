"""Rankings: rows are queries, columns documents; the order of the columns never matters."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cde_rag import FunctionEmbedder
from cde_rag.embedders.active import ActiveEmbedder
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.ranking import DEPTH, rank, rank_hybrid, rank_vectors
from cde_rag.indexing.pending import OnDemandVectors
from cde_rag.records import Record, Row
from cde_rag.search.fusion import CANDIDATES, WEIGHTS
from cde_rag.search.retrievers import HybridRetriever
from cde_rag.stores.faiss import FaissStore

WORDS = "river bank money loan water flood rate interest fish boat delta".split()

few_scores = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])  # many ties
scores = st.integers(1, 12).flatmap(
    lambda documents: st.integers(1, 4).flatmap(
        lambda queries: arrays(np.float32, (queries, documents), elements=few_scores)
    )
)


def names(count: int) -> list[str]:
    return [f"d{i}" for i in range(count)]  # d10 stands before d2: ids are strings


def test_by_hand() -> None:
    rows = np.array([[0.1, 0.9, 0.5], [0.7, 0.7, -np.inf]], dtype=np.float32)
    assert rank(rows, ["b", "a", "c"], ["q1", "q2"]) == [["a", "c", "b"], ["a", "b"]]


def test_the_best_passage_counts() -> None:
    rows = np.array([[0.1, 0.9, 0.5, 0.7, 0.2], [0.3, -np.inf, 0.4, -np.inf, 0.5]], dtype=np.float32)
    assert rank(rows, ["b", "a", "b", "c", "c"], ["q1", "q2"]) == [["a", "c", "b"], ["c", "b"]]
    assert rank(rows[:1], ["b", "a", "b", "c", "c"], ["q1"], depth=2) == [["a", "c"]]


def test_a_query_does_not_find_itself() -> None:
    rows = np.array([[0.9, 0.5], [0.9, 0.5]], dtype=np.float32)
    assert rank(rows, ["x", "y"], ["x", "z"], depth=1) == [["y"], ["x"]]


@given(scores, st.integers(1, 14), st.randoms(use_true_random=False))
def test_equals_sorting_and_ignores_the_order_of_the_corpus(rows: np.ndarray, depth: int, random) -> None:
    ids, queries = names(rows.shape[1]), [f"d{i}" for i in range(rows.shape[0])]
    expected = []
    for row, query in zip(rows, queries, strict=True):
        found = [(-score, name) for name, score in zip(ids, row, strict=True) if score > -np.inf and name != query]
        expected.append([name for _, name in sorted(found)][:depth])
    assert rank(rows, ids, queries, depth=depth) == expected
    shuffled = random.sample(range(len(ids)), len(ids))
    assert rank(rows[:, shuffled], [ids[i] for i in shuffled], queries, depth=depth) == expected


@pytest.mark.parametrize("queries", [1, 127, 128, 300])
def test_vectors_are_ranked_by_dot_product(queries: int) -> None:
    rng = np.random.default_rng(0)
    asked, documents = (rng.normal(size=(count, 8)).astype(np.float32) for count in (queries, 40))
    query_ids = [f"q{i}" for i in range(queries)]
    expected = [[f"d{i}" for i in np.argsort(-row)] for row in asked @ documents.T]
    assert rank_vectors(asked, documents, names(40), query_ids) == expected


def test_rank_wants_a_row_for_each_query() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        rank(np.zeros((1, 2), dtype=np.float32), ["a", "b"], ["q1", "q2"])


def test_hybrid_by_hand() -> None:
    documents = np.array([[1, 0], [0.8, 0.6], [0, 1], [0.6, 0.8]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    words = [[("2", 4.0), ("3", 2.0)]]  # 0.65 · (1, 0.8, 0, 0.6) + 0.35 · (0, 0, 1, 0.5)
    assert rank_hybrid(query, documents, words, ["a", "b", "c", "d"], ["q"]) == [["a", "d", "b", "c"]]
    assert rank_hybrid(query, documents, [[]], ["a", "b", "c", "d"], ["a"]) == [["b", "d", "c"]]  # not its own
    assert rank_hybrid(query, documents, words, ["x", "y", "y", "x"], ["q"]) == [["x", "y"]]  # the best passage counts


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_an_evaluated_hybrid_finds_what_a_collection_finds(seed: int) -> None:
    dice = np.random.default_rng(seed)
    texts = [" ".join(dice.choice(WORDS, dice.integers(2, 9))) for _ in range(130)]
    queries = [" ".join(dice.choice(WORDS, 3)) for _ in range(3)]
    documents, asked = (dice.normal(size=(count, 8)).astype(np.float32) for count in (len(texts), len(queries)))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)

    vectors = dict(zip(queries, asked, strict=True))
    embedder = FunctionEmbedder(lambda some: [vectors.get(text, np.ones(8, np.float32)) for text in some], name="dice")
    with tempfile.TemporaryDirectory() as folder:
        store = FaissStore(Path(folder, "papers"))
        store.create(dim=8, fingerprint=embedder.fingerprint, context=b"", settings={})
        rows = [Row(Record(f"d{place:03}", text), "digest") for place, text in enumerate(texts)]
        store.add(rows, documents, fingerprint=embedder.fingerprint)
        active, on_demand = ActiveEmbedder(store, embedder), OnDemandVectors(store, None)
        searched = HybridRetriever(store, active, CANDIDATES, "convex", WEIGHTS["convex"], on_demand, 0.0)
        found = searched.best(queries, DEPTH, None)
        store.close()
    ids, names_ = [row.record.id for row in rows], [f"q{place}" for place in range(len(queries))]
    evaluated = rank_hybrid(asked, documents, word_hits(texts, queries), ids, names_)
    for hits, ranking in zip(found, evaluated, strict=True):
        scores = [round(hit.score, 6) for hit in hits]
        assert len(set(scores)) > 50
        places = {hit.id: scores.index(round(hit.score, 6)) for hit in hits}  # ties stand in another order
        assert [places[document] for document in ranking] == sorted(places.values())

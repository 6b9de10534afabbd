"""Which context and which texts each system of the contextual model is given: a stub embedder writes it down."""

from collections.abc import Sequence

import numpy as np
import pytest

from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.evaluation.encoding import contextual_rankings, without_relevant

DOCUMENTS = 8


def a_set(*, parents: bool = False, judgments: Sequence[dict[str, int]] | None = None) -> RetrievalSet:
    """Query i asks for document i."""
    judged = tuple(judgments or ({f"d{i}": 1} for i in range(DOCUMENTS)))
    corpus = Corpus(
        "stub",
        tuple(f"d{i}" for i in range(DOCUMENTS)),
        tuple(f"document {i}" for i in range(DOCUMENTS)),
        tuple("ab"[i % 2] for i in range(DOCUMENTS)) if parents else None,
    )
    count = len(judged)
    return RetrievalSet(corpus, tuple(f"q{i}" for i in range(count)), tuple(f"query {i}" for i in range(count)), judged)


class StubEmbedder:
    """Query i finds document i first, document i + shift where the context has that shift."""

    def __init__(self, corpus: Sequence[str] | None, seed: int) -> None:
        self.corpus, self.seed = corpus, seed
        self.queries: list[str] = []
        self.parents: Sequence[str | None] | None = None
        self.fingerprint = repr((sorted(corpus), seed)) if corpus is not None else "null"

    def embed_documents(self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None) -> np.ndarray:
        self.parents = parents
        return np.eye(DOCUMENTS, dtype=np.float32)[[int(text.split()[-1]) for text in texts]]

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.queries += texts
        shift = self.seed if self.corpus is not None else 0
        return np.eye(DOCUMENTS, dtype=np.float32)[[(int(text.split()[1]) + shift) % DOCUMENTS for text in texts]]


class Binder:
    def __init__(self) -> None:
        self.made: list[StubEmbedder] = []

    def __call__(self, corpus: Sequence[str] | None, seed: int) -> StubEmbedder:
        self.made.append(StubEmbedder(corpus, seed))
        return self.made[-1]

    def with_siblings(self, embedder: StubEmbedder, corpus: Sequence[str]) -> StubEmbedder:
        assert corpus == embedder.corpus
        return embedder


def run(data: RetrievalSet, systems: Sequence[str], *, seeds: Sequence[int] = (0,)):
    bind = Binder()
    found = dict(contextual_rankings(data, systems, bind, foreign=["elsewhere"], seeds=seeds))
    assert list(found) == [name for name in found if name in systems]
    return found, bind.made


@pytest.mark.parametrize(
    ("system", "corpus"),
    [("own", [f"document {i}" for i in range(DOCUMENTS)]), ("null", None), ("foreign", ["elsewhere"])],
)
def test_each_system_has_its_context(system: str, corpus: list[str] | None) -> None:
    found, made = run(a_set(), [system])
    assert [None if one.corpus is None else list(one.corpus) for one in made] == [corpus]
    assert [ranking[0] for ranking in found[system][0]] == [f"d{i}" for i in range(DOCUMENTS)]


def test_seeds_make_runs_of_their_own() -> None:
    found, made = run(a_set(), ["own", "foreign", "null"], seeds=(0, 2))
    assert [one.seed for one in made] == [0, 2, 0, 0, 2]  # own twice, null once, foreign twice
    assert [ranking[0] for ranking in found["own"][1]] == [f"d{(i + 2) % DOCUMENTS}" for i in range(DOCUMENTS)]
    assert [len(runs) for runs in found.values()] == [2, 1, 2]


def test_seeds_that_give_one_context_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        StubEmbedder, "fingerprint", property(lambda self: "the same", lambda self, _: None), raising=False
    )
    found, _ = run(a_set(), ["own"], seeds=(0, 1, 2))
    assert len(found["own"]) == 1


def test_only_the_parents_system_sees_parents() -> None:
    data = a_set(parents=True)
    _, made = run(data, ["own"])
    assert made[0].parents is None
    _, made = run(data, ["parents"])
    assert made[0].parents == data.corpus.parents


def test_headers_are_in_front_of_documents_and_of_the_context_and_of_no_query() -> None:
    data = a_set(parents=True)
    found, made = run(data, ["headers"])
    assert made[0].corpus == tuple(f"{'ab'[i % 2]} document {i}" for i in range(DOCUMENTS))
    assert made[0].queries == list(data.queries)
    assert made[0].parents is None
    assert [ranking[0] for ranking in found["headers"][0]] == [f"d{i}" for i in range(DOCUMENTS)]


def test_relevant_documents_stay_out_of_the_context() -> None:
    data = a_set()
    found, made = run(data, ["own_without_relevant"])
    asked = [query for one in made for query in one.queries]
    assert sorted(asked) == sorted(data.queries)  # each once
    for one in made:
        assert one.corpus is not None
        assert {query.split()[1] for query in one.queries}.isdisjoint(text.split()[1] for text in one.corpus)
        assert len(one.corpus) == DOCUMENTS - len(one.queries)
    assert [ranking[0] for ranking in found["own_without_relevant"][0]] == [f"d{i}" for i in range(DOCUMENTS)]


def test_a_copy_of_a_relevant_document_stays_out_too() -> None:
    corpus = Corpus("copies", ("a", "b", "c", "d"), ("same", "same", "other", "more"))
    data = RetrievalSet(corpus, ("q", "r"), ("q", "r"), ({"a": 1}, {"c": 1}))
    assert without_relevant(data) == [([0], ["other", "more"]), ([1], ["same", "same", "more"])]


def test_queries_of_one_document_stay_together() -> None:
    folds = without_relevant(a_set(judgments=[{"d1": 1}, {"d1": 2, "d3": 1}, {"d2": 1}]))
    assert folds is not None
    assert sorted(positions for positions, _ in folds) == [[0, 1], [2]]


def test_one_block_needs_one_context() -> None:
    folds = without_relevant(a_set(judgments=[{"d1": 1}, {"d1": 2}]))
    assert folds == [([0, 1], [f"document {i}" for i in range(DOCUMENTS) if i != 1])]


def test_no_document_left_for_a_context() -> None:
    everything = {f"d{i}": 1 for i in range(DOCUMENTS)}
    assert without_relevant(a_set(judgments=[everything, everything])) is None

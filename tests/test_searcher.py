"""Searches of a collection: the same calls on all stores, whatever ranks, each as if all hits had been looked at."""

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient
from test_collection import StubEmbedder

from cde_rag.collection.collection import Collection
from cde_rag.errors import CorpusError, FilterError, StoreError, TextIndexError, TextIndexWarning
from cde_rag.records import Hit, Record
from cde_rag.search.fusion import CANDIDATES, ranking_of
from cde_rag.search.grouping import Grouping
from cde_rag.search.searcher import Searcher
from cde_rag.server.collection_routes import SearchRequest
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.filter_conditions import number
from cde_rag.stores.filters import matches
from cde_rag.stores.postgres import PgVectorStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store

WORDS = "river bank money loan water flood rate interest fish boat".split()
PLACES: list[Any] = ["a", "b", "c", "d", 1, 1.0, True, 0, 2**70, float(2**70), None, "", ["a"], ["a", "b"], {"a": 1}]


def records(count: int = 60) -> list[Record]:
    dice = np.random.default_rng(0)
    made: list[Record] = []
    for place in range(count):
        text = " ".join(dice.choice(WORDS, dice.integers(1, 6)))
        metadata: dict[str, Any] = {"even": place % 2 == 0, "parent": [None, "", "p", "q", 7, "r"][dice.integers(6)]}
        if dice.integers(8):
            found = PLACES[dice.choice(len(PLACES), p=_often_the_first(len(PLACES)))]
            metadata |= {"place": found} | ({"in.place": found} if place % 2 else {"in": {"place": found}})
            if place % 9 == 0:  # a second value: in no group
                metadata |= {"in.place": "a", "in": {"place": "b"}}
        made.append(Record(f"id {place}", text, metadata=metadata))
    return made


def _often_the_first(count: int) -> np.ndarray:
    shares = np.ones(count)
    shares[0] = count
    return shares / shares.sum()


def store_of(kind: str, folder: Path) -> Store:
    if kind == "faiss":
        return FaissStore(folder / "papers.faiss")
    return QdrantStore(QdrantClient(":memory:"), "papers") if kind == "qdrant" else QdrantEdgeStore(folder / "papers")


KINDS = ("faiss", "qdrant", "edge", "postgres")


@pytest.fixture(scope="module", params=["faiss", "qdrant", pytest.param("edge", marks=pytest.mark.long), "postgres"])
def papers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    if request.param == "postgres":
        store: Store = PgVectorStore(request.getfixturevalue("postgres"), "searched")
    else:
        store = store_of(request.param, tmp_path_factory.mktemp("store"))
    with Collection.create(store, StubEmbedder(), parent_key="parent") as papers:
        papers.add_records(records())
        yield papers


def shout(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A reranker to check by eye: long texts first, all queries alike."""
    return [float(len(text) // 4) for _, text in pairs]


RANKED: dict[str, Callable[[Collection], Searcher]] = {
    "vectors": lambda papers: papers.searcher("vectors"),
    "bm25": lambda papers: papers.searcher("bm25"),
    "hybrid": lambda papers: papers.searcher("hybrid", candidates=9),
    "ranks": lambda papers: papers.searcher("hybrid", candidates=9, fusion="reciprocal_ranks"),
    "reranked": lambda papers: papers.searcher("vectors").reranked(shout, candidates=23),
    "hybrid reranked": lambda papers: papers.searcher("hybrid", candidates=30).reranked(shout, candidates=17),
}


def name_of(value: object) -> object:
    """What has no group has None; True is not 1, and 1.0 is."""
    if isinstance(value, bool | str):
        return str(type(value)), value
    return ("number", number(value)) if isinstance(value, int | float) else None


def grouped(hits: list[Hit], key: str, size: int, *, alone: bool) -> list[list[Hit]]:
    """The slow, obvious way: all hits."""
    groups: defaultdict[object, list[Hit]] = defaultdict(list)
    for hit in hits:
        value = hit.metadata.get(key)
        name = None if alone and value == "" else name_of(value)
        if name is not None or alone:
            groups[name or hit.id].append(hit)
    return [group[:size] for group in groups.values()]


filters = st.sampled_from([None, {"even": True}, {"place": "a"}, {"not": {"place": {"in": ["a", 1]}}}, {"even": 5}])
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
few_examples = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("way", RANKED)
@few_examples
@example(query="river", k=5, offset=1, where=None, cut=3)
@given(
    query=queries, k=st.integers(1, 12), offset=st.integers(0, 12), where=filters, cut=st.none() | st.integers(0, 40)
)
def test_pages_and_thresholds_are_those_of_all_hits(
    papers: Collection, way: str, query: str, k: int, offset: int, where: dict[str, Any] | None, cut: int | None
) -> None:
    ranked = RANKED[way](papers)
    every = ranked.search(query, 100, where=where)
    assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True)
    least = every[cut].score if cut is not None and cut < len(every) else None
    passing = [hit for hit in every if least is None or hit.score >= least]
    assert ranked.search(query, k, where=where, score_threshold=least, offset=offset) == passing[offset : offset + k]
    both = ranked.search_batch([query, "fish"], k, where=where, score_threshold=least, offset=offset)
    assert both == [
        passing[offset : offset + k],
        ranked.search("fish", k, where=where, score_threshold=least, offset=offset),
    ]


@pytest.mark.parametrize("way", RANKED)
@few_examples
@example(query="river", k=5, size=2, offset=1, where=None, cut=5)
@given(
    query=queries,
    k=st.integers(1, 8),
    size=st.integers(1, 6),
    offset=st.integers(0, 4),
    where=filters,
    cut=st.none() | st.integers(0, 40),
)
def test_groups_are_those_of_all_hits(
    papers: Collection,
    way: str,
    query: str,
    k: int,
    size: int,
    offset: int,
    where: dict[str, Any] | None,
    cut: int | None,
) -> None:
    ranked = RANKED[way](papers)
    every = ranked.search(query, 100, where=where)
    least = every[cut].score if cut is not None and cut < len(every) else None
    passing = [hit for hit in every if least is None or hit.score >= least]
    found = ranked.search_groups(
        query, k, group_by="place", group_size=size, where=where, score_threshold=least, offset=offset
    )
    assert [group.hits for group in found] == grouped(passing, "place", size, alone=False)[offset : offset + k]
    for group in found:
        assert {name_of(hit.metadata["place"]) for hit in group.hits} == {name_of(group.value)}
        assert group.score == group.hits[0].score


@pytest.mark.parametrize("way", RANKED)
@few_examples
@given(query=queries, k=st.integers(1, 12), size=st.integers(1, 4), offset=st.integers(0, 4), where=filters)
def test_parents_are_those_of_all_hits_with_their_passages_in_order(
    papers: Collection, way: str, query: str, k: int, size: int, offset: int, where: dict[str, Any] | None
) -> None:
    ranked = RANKED[way](papers)
    every = ranked.search(query, 100, where=where)
    found = ranked.search_parents(query, k, group_size=size, where=where, offset=offset)
    assert [parent.hits for parent in found] == grouped(every, "parent", size, alone=True)[offset : offset + k]
    for parent in found:
        first = parent.hits[0]
        if parent.parent is None:
            assert [record.id for record in parent.passages] == [first.id]
            assert first.metadata["parent"] in (None, "")
        else:
            assert parent.passages == [one for one in records() if one.metadata["parent"] == parent.parent]
        assert parent.score == first.score


@few_examples
@given(query=queries, k=st.integers(1, 20), where=filters)
def test_hybrid_is_the_sum_of_normalised_scores(
    papers: Collection, query: str, k: int, where: dict[str, Any] | None
) -> None:
    dense, words = (papers.searcher(by).search(query, 9, where=where) for by in ("vectors", "bm25"))
    sums: dict[str, float] = {}
    least, best = min((hit.score for hit in dense), default=0), max((hit.score for hit in dense), default=0)
    for hit in dense:
        sums[hit.id] = 0.65 * ((hit.score - least) / (best - least) if best > least else 1)
    least, best = words[-1].score if len(words) == 9 else 0, words[0].score if words else 0
    for hit in words:
        sums[hit.id] = sums.get(hit.id, 0) + 0.35 * ((hit.score - least) / (best - least) if best > least else 1)
    expected = sorted(sums.values(), reverse=True)[:k]
    found = papers.searcher("hybrid", candidates=9).search(query, k, where=where)
    assert [hit.score for hit in found] == pytest.approx(expected)
    assert all(hit.score == pytest.approx(sums[hit.id]) for hit in found)


@few_examples
@given(query=queries, k=st.integers(1, 20), where=filters)
def test_hybrid_by_reciprocal_ranks_is_their_sum(
    papers: Collection, query: str, k: int, where: dict[str, Any] | None
) -> None:
    dense, words = (papers.searcher(by).search(query, 9, where=where) for by in ("vectors", "bm25"))
    sums: dict[str, float] = {}
    for hits in (dense, words):
        for rank, hit in enumerate(hits, start=1):
            sums[hit.id] = sums.get(hit.id, 0) + 1 / (60 + rank)
    expected = sorted(sums, key=lambda id_: -sums[id_])[:k]
    found = papers.searcher("hybrid", candidates=9, fusion="reciprocal_ranks").search(query, k, where=where)
    assert [(hit.id, hit.score) for hit in found] == [(id_, sums[id_]) for id_ in expected]


@pytest.mark.parametrize("fusion", ["convex", "reciprocal_ranks"])
def test_a_hybrid_of_weight_0_or_1_ranks_as_one_side(papers: Collection, fusion: str) -> None:
    for query in ("river", "bank loan", "fish"):
        ids = {by: [hit.id for hit in papers.search(query, 20, by=by)] for by in ("vectors", "bm25")}
        for weight, by in ((1.0, "vectors"), (0.0, "bm25")):
            found = papers.searcher("hybrid", candidates=20, fusion=fusion, weight=weight).search(query, 100)
            assert [hit.id for hit in found] == ids[by]


def test_by_names_a_way_to_rank(papers: Collection) -> None:
    for query in ("river", "bank loan"):
        asked = {"where": {"even": True}, "score_threshold": 0.2, "offset": 2}
        found = {by: papers.search(query, 7, by=by, **asked) for by in ("hybrid", "vectors", "bm25")}
        for by, hits in found.items():
            searcher = papers.searcher(by)
            assert hits == searcher.search(query, 7, **asked)
            assert papers.search_batch([query], 7, by=by, **asked) == [hits]
            groups, parents = searcher.search_groups, searcher.search_parents
            assert papers.search_groups(query, 2, group_by="place", by=by) == groups(query, 2, group_by="place")
            assert papers.search_parents(query, 2, by=by) == parents(query, 2)
        assert len({tuple(hit.id for hit in hits) for hits in found.values()}) == 3


def test_hybrid_is_the_default_of_all_searches(papers: Collection) -> None:
    hybrid = papers.searcher("hybrid")
    assert papers.search("bank loan") == hybrid.search("bank loan") == papers.searcher().search("bank loan")
    assert papers.search_batch(["bank loan"]) == hybrid.search_batch(["bank loan"])
    assert papers.search_groups("river", group_by="place") == hybrid.search_groups("river", group_by="place")
    assert papers.search_parents("river") == hybrid.search_parents("river")
    assert papers.reranked(shout).search("river") == hybrid.reranked(shout).search("river")


def test_a_hybrid_ranking_ends_where_its_documentation_says(tmp_path: Path) -> None:
    """The end is at twice the candidates, in one page or in many; the vectors rank every record."""
    with Collection.create(FaissStore(tmp_path / "papers"), StubEmbedder()) as papers:
        texts = [f"river {place}" if place < 200 else f"bank {place}" for place in range(400)]
        papers.add(texts, ids=map(str, range(400)))
        found, page, pages = papers.search("river", 1000), [], 0
        while page := papers.search("river", 50, offset=50 * pages):
            pages += 1
            assert page == found[50 * (pages - 1) : 50 * pages]
        assert CANDIDATES < len(found) <= 50 * pages
        assert len(found) <= 2 * CANDIDATES
        assert len(papers.search("river", 1000, by="vectors")) == 400
    for documented in (Collection.search.__doc__, SearchRequest.model_fields["by"].description):
        assert f"{2 * CANDIDATES} hits" in str(documented)


def test_words_is_another_name_for_bm25(papers: Collection) -> None:
    assert papers.search("bank loan", by="words") == papers.search("bank loan", by="bm25") != []


def test_search_hybrid_finds_what_only_words_find(papers: Collection) -> None:
    papers.add_records([Record("rare", "zyzzyva", metadata={"even": True})])
    try:
        hits = papers.search("zyzzyva", 61, by="hybrid")
        assert len(hits) == 61
        assert hits[0].id == "rare"
        assert hits[0].score >= 0.35
        assert papers.search("zyzzyva", 5, by="hybrid", offset=3) == hits[3:8]
        assert papers.search("zyzzyva", 5, by="hybrid", where={"even": False}) == papers.searcher("hybrid").search(
            "zyzzyva", 5, where={"even": False}
        )
        assert [hit.id for hit in papers.searcher("bm25").search("zyzzyvas")] == ["rare"]
    finally:
        papers.delete(["rare"])


def test_a_reranker_gets_titles_and_texts_and_must_answer_for_each(papers: Collection) -> None:
    seen: list[tuple[str, str]] = []

    def rerank(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        seen.extend(pairs)
        return np.arange(len(pairs), dtype=np.float32)

    papers.add_records([Record("titled", "delta", "Tide")])
    try:
        hits = papers.reranked(rerank, candidates=4).search("Tide delta", 3)
        assert seen[0] == ("Tide delta", "Tide delta")
        assert [hit.score for hit in hits] == [3, 2, 1]
        assert papers.reranked(rerank).search("river", where={"even": 5}) == []
    finally:
        papers.delete(["titled"])
    for wrong in (lambda pairs: [1.0], lambda pairs: [float("nan")] * len(pairs)):
        with pytest.raises(ValueError, match="rerank: expected a number for each of 50"):
            papers.reranked(wrong).search("river")


def test_one_dominant_group_hides_no_other() -> None:
    """The best two thousand hits would be of one group: the others are found without reading them."""
    asked: list[int] = []
    hits = [Hit(str(place), -float(place), "", "", {"key": "big"}) for place in range(2000)]
    hits += [Hit(str(place), -float(place), "", "", {"key": f"small {place % 3}"}) for place in range(2000, 2030)]

    def best(limit: int, where: Any) -> list[Hit]:
        asked.append(limit)
        return [hit for hit in hits if where is None or matches(where, hit.metadata)][:limit]

    found = Grouping("key", 2, alone=False, where=None, score_threshold=None).best(best, 3, None)
    assert [group[0].metadata["key"] for group in found] == ["big", "small 2", "small 0"]
    assert [len(group) for group in found] == [2, 2, 2]
    assert sum(asked) < 50


@pytest.mark.parametrize("way", ["vectors", "bm25"])
def test_groups_are_by_any_field(papers: Collection, way: str) -> None:
    ranked = RANKED[way](papers)
    every = ranked.search("river bank", 100)
    assert any({"in", "in.place"} <= hit.metadata.keys() for hit in every)
    one = [hit for hit in every if not {"in", "in.place"} <= hit.metadata.keys()]
    found = ranked.search_groups("river bank", 20, group_by="in.place")
    assert [group.hits for group in found] == grouped(one, "place", 3, alone=False)
    assert [name_of(group.value) for group in found] == [name_of(group.hits[0].metadata["place"]) for group in found]


def test_senseless_searches_are_refused(papers: Collection) -> None:
    for call, error in {
        lambda: papers.search("river", 0): ValueError,
        lambda: papers.search("river", offset=-1): ValueError,
        lambda: papers.search("river", offset=True): TypeError,
        lambda: papers.search_groups("river", group_by="place", offset="1"): TypeError,  # type: ignore[arg-type]
        lambda: papers.search("river", score_threshold=float("nan")): ValueError,
        lambda: papers.search(["river"]): TypeError,  # type: ignore[arg-type]
        lambda: papers.searcher("bm25").search(" "): CorpusError,
        lambda: papers.search("\ud800", by="hybrid"): CorpusError,
        lambda: papers.search_batch("river"): TypeError,
        lambda: papers.search_groups("river", group_by=""): ValueError,
        lambda: papers.search_groups("river", group_by="and"): ValueError,
        lambda: papers.search_groups("river", group_by="place", group_size=0): ValueError,
        lambda: papers.search_groups("", group_by="place"): CorpusError,
        lambda: papers.search_groups("river", group_by="place", where={"a": {"$gt": 1}}): FilterError,
        lambda: papers.search_parents("river", 0): ValueError,
        lambda: papers.searcher("hybrid", candidates=0): ValueError,
        lambda: papers.searcher("hybrid", weight=1.1): ValueError,
        lambda: papers.searcher("words", weight=0.5): ValueError,
        lambda: papers.searcher("vectors", candidates=50): ValueError,
        lambda: papers.searcher("hybrid", weight=float("nan")): ValueError,
        lambda: ranking_of("both"): ValueError,
        lambda: papers.reranked(shout, candidates=0): ValueError,
    }.items():
        with pytest.raises(error):
            call()


def test_parents_need_a_parent_key(tmp_path: Path) -> None:
    with Collection.create(FaissStore(tmp_path / "papers"), StubEmbedder()) as papers:
        with pytest.raises(ValueError, match="parent_key"):
            papers.search_parents("river")
        with pytest.raises(ValueError, match="parent_key"):
            papers.searcher("hybrid").search_parents("river")


def test_a_collection_without_words_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("cde_rag.stores.faiss.database.has_fts5", lambda _: False)
        papers = Collection.create(FaissStore(tmp_path / "papers"), StubEmbedder())
    papers.add_records(records())
    by_vectors = papers.search("river", 3, by="vectors")
    with pytest.warns(TextIndexWarning, match="cde-rag reindex") as warned:
        assert papers.search("river", 3) == papers.search("river", 3, by="hybrid") == by_vectors
    assert {one.filename for one in warned} == {__file__}
    with pytest.raises(TextIndexError, match="index_texts"):
        papers.search("river", by="bm25")
    papers.store.index_texts()
    assert papers.search("river", 3)[0].score != by_vectors[0].score
    papers.close()


# --- coroutines


# That stores bear threads is in their contract.
@pytest.mark.parametrize(
    "papers",
    [pytest.param(kind, marks=pytest.mark.long) if kind in ("qdrant", "edge") else kind for kind in KINDS],
    indirect=True,
)
def test_fifty_coroutines_at_once_find_what_calls_find(papers: Collection) -> None:
    asked = [" ".join(pair) for pair in itertools.islice(itertools.permutations(WORDS, 2), 50)]
    threads: set[int] = set()
    there = papers.embedder.embed_queries

    def embed(texts: Sequence[str]) -> np.ndarray:
        threads.add(threading.get_ident())
        return there(texts)

    async def all_at_once() -> list[list[Hit]]:
        return await asyncio.gather(*(asyncio.to_thread(papers.search, query, 5) for query in asked))

    async def hybrid_and_more() -> list[Any]:
        new = [Record(f"new {place}", f"boat {place}", metadata={"parent": "new"}) for place in range(10)]
        done = await asyncio.gather(
            *(asyncio.to_thread(papers.search, query, 5, by="hybrid") for query in asked[:25]),
            *(asyncio.to_thread(papers.add_records, [record]) for record in new[:9]),
            *(asyncio.to_thread(papers.search_groups, query, 2, group_by="even") for query in asked[:5]),
            *(asyncio.to_thread(papers.searcher("hybrid").search_parents, query, 2) for query in asked[:5]),
            asyncio.to_thread(papers.add, [new[9].text], ids=["new 9"], metadata=[new[9].metadata]),
        )
        found = await asyncio.to_thread(papers.get, [record.id for record in new])
        assert {record.id for record in found} == {record.id for record in new}
        assert await asyncio.to_thread(papers.delete, where={"parent": "new"}) == 10
        return done[:25]

    before = papers.search_batch(asked, 5)
    papers.embedder.embed_queries = embed  # type: ignore[method-assign]
    assert asyncio.run(all_at_once()) == before
    assert threading.get_ident() not in threads
    assert len(threads) > 1
    assert all(len(hits) == 5 for hits in asyncio.run(hybrid_and_more()))
    assert papers.store.verify() == []


def test_the_loop_goes_on_while_a_search_is_at_work(papers: Collection) -> None:
    free, steps = threading.Event(), 0

    def rerank(pairs: Sequence[tuple[str, str]]) -> list[float]:
        assert free.wait(30)
        return [0.0] * len(pairs)

    async def both() -> None:
        nonlocal steps
        search = asyncio.create_task(asyncio.to_thread(papers.reranked(rerank).search, "river"))
        for _ in range(5):
            await asyncio.sleep(0)
            steps += 1
        assert not search.done()
        free.set()
        assert len(await search) == 10

    asyncio.run(both())
    assert steps == 5


def test_a_diverse_search_ends_though_hits_are_deleted(papers: Collection, monkeypatch: pytest.MonkeyPatch):
    tries = itertools.count()

    def gone(*_: object, **__: object) -> None:
        next(tries)
        raise KeyError("id 0")

    monkeypatch.setattr(papers.store, "vectors", gone)
    with pytest.raises(StoreError, match="deleted in each of 8 tries"):
        papers.search_diverse("river", k=2)
    assert next(tries) == 8

"""Context by arithmetic for users' own embedders: vectors are plain ones with their siblings' mean, whoever makes them,
in whichever store and after whichever changes; the model sees each text once."""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from intact import damages
from plain_model import write_transformer
from qdrant_client import QdrantClient
from tiny import WORDS

from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import bare
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, FunctionEmbedder, PlainEmbedder
from cde_rag.embedders.process_pool import ProcessPool
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import CDEWarning, ContextMismatchError, CorpusError, ModelError, StoreError, StoreFormatError
from cde_rag.indexing import backfill
from cde_rag.indexing.backfill import Recontextualization
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.upsert import Progress
from cde_rag.models.files.vector_cache import FILE, PlainVectors
from cde_rag.models.plain.corpus_map import CorpusMap, unit
from cde_rag.models.plain.fixed_texts import PROBES
from cde_rag.server.token_batcher import BatchedEmbedder, TokenBatcher
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.transfer.backup import back_up, restore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 6)) + f" {i}" for i in range(30)]
PARENTS = [{"page": f"p{i // 5}"} for i in range(30)]
DIM = 32


class Service:
    """A service that embeds texts: the sum of a random vector for each word. Remembers what it embedded.

    Args:
        seed: Another seed, another model.
        noise: Of each answer, as services have that compute in half precision.
    """

    def __init__(self, *, seed: int = 0, noise: float = 0.0) -> None:
        self.seed, self.noise = seed, noise
        self.embedded: list[str] = []
        self.fails_at = -1

    def __call__(self, texts: list[str]) -> list[list[float]]:
        if 0 <= self.fails_at <= len(self.embedded):
            raise TimeoutError("the service does not answer")
        self.embedded += texts
        answers = np.random.default_rng(len(self.embedded))
        return [(self._vector(text) + self.noise * answers.normal(size=DIM)).tolist() for text in texts]

    def _vector(self, text: str) -> np.ndarray:
        seeds = [int.from_bytes(word.encode()[:7], "big") for word in text.split()]
        return np.sum([np.random.default_rng([self.seed, seed]).normal(size=DIM) for seed in seeds], axis=0)

    def called_for(self, work: Callable[[], object]) -> list[str]:
        """Return the texts that are embedded during some work, without the fixed one of each call."""
        before = len(self.embedded)
        work()
        return [text for text in self.embedded[before:] if text != PROBES[0]]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def plain(service: Service) -> ContextualEmbedder:
    return FunctionEmbedder(service, name="words-1", mini_batch_size=4)


@pytest.fixture(params=["faiss", pytest.param("edge", marks=pytest.mark.long), "qdrant"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "faiss":
        return FaissStore(tmp_path / "papers")
    if request.param == "edge":
        return QdrantEdgeStore(tmp_path / "papers")
    return QdrantStore(QdrantClient(":memory:"), "papers")


@pytest.fixture
def papers(store: Store, plain: ContextualEmbedder, tmp_path: Path) -> Collection:
    embedder = ArithmeticEmbedder.from_corpus([], model=plain, weight=0.3, corpus=False)
    papers = Collection.create(store, embedder, parent_key="page")
    if isinstance(store, QdrantStore):
        papers.embedder = siblings_of(papers).with_plain_vectors(PlainVectors(tmp_path / "papers.sqlite"))
    papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
    return papers


def siblings_of(papers: Collection) -> ContextualEmbedder:
    assert isinstance(papers.embedder, ContextualEmbedder)
    return papers.embedder


def plain_of(embedder: ContextualEmbedder) -> ContextualEmbedder:
    """The embedder of the same model that knows no corpus and no siblings."""
    return embedder.with_context(bare(embedder.model, embedder.model.identity))


def stored(papers: Collection, ids: Sequence[str]) -> np.ndarray:
    return papers.store.vectors(list(ids), fingerprint=papers.embedder.fingerprint)


def test_a_vector_is_the_plain_one_with_a_share_of_its_siblings_mean(plain: ContextualEmbedder) -> None:
    """By hand: one parent of three, and a lone text."""
    embedder = ArithmeticEmbedder.from_corpus([], model=plain, weight=0.3, corpus=False)
    vectors = embedder.embed_documents(TEXTS[:4], parents=["a", "a", None, "a"])
    p = plain.embed_documents(TEXTS[:4])
    by_hand = np.stack(
        [p[0] + 0.3 * (p[1] + p[3]) / 2, p[1] + 0.3 * (p[0] + p[3]) / 2, p[2], p[3] + 0.3 * (p[0] + p[1]) / 2]
    )
    np.testing.assert_allclose(vectors, unit(by_hand), atol=1e-6)
    np.testing.assert_allclose(embedder.embed_queries(TEXTS[:2]), p[:2], atol=1e-6)


def test_the_map_of_a_corpus_is_that_of_its_second_moments(plain: ContextualEmbedder) -> None:
    """Documents and queries alike; the sample is all of a small corpus, without the fixed texts of the function."""
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=plain)
    identity = embedder.context.identity
    assert (identity.corpus_map, identity.sibling_weight, embedder.max_siblings) == (True, 0.0, 0)
    p = plain.embed_documents(TEXTS)
    values, vectors = np.linalg.eigh(p.T.astype(np.float64) @ p / len(p))
    matrix = vectors @ np.diag((values.clip(min=0) / values.mean() + 5) ** -0.25) @ vectors.T
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), unit((p @ matrix).astype(np.float32)), atol=1e-5)
    np.testing.assert_allclose(embedder.embed_queries(TEXTS), embedder.embed_documents(TEXTS), atol=1e-5)
    assert embedder.fingerprint != ArithmeticEmbedder.from_corpus(TEXTS[:20], model=plain, corpus=True).fingerprint
    assert np.abs(CorpusMap.fit(p).apply(p) - p).max() > 1e-2


def test_a_collection_holds_the_vectors_of_one_call(papers: Collection) -> None:
    expected = (
        siblings_of(papers).with_plain_vectors(None).embed_documents(TEXTS, parents=[one["page"] for one in PARENTS])
    )
    np.testing.assert_allclose(stored(papers, [str(i) for i in range(30)]), expected, atol=1e-6)
    assert papers.search(TEXTS[7], 1)[0].id == "7"


def test_a_new_sibling_is_the_only_text_that_is_embedded(papers: Collection, service: Service) -> None:
    """All five other passages of its parent get new vectors, without the model."""
    before = stored(papers, ["0", "5"])
    new = "a river of money"
    assert service.called_for(lambda: papers.add([new], ids=["new"], metadata=[{"page": "p0"}])) == [new]
    after = stored(papers, ["0", "5"])
    assert np.abs(after[0] - before[0]).max() > 1e-2
    np.testing.assert_array_equal(after[1], before[1])
    group = [*TEXTS[:5], new]
    expected = siblings_of(papers).embed_documents(group, parents=["p0"] * 6)
    np.testing.assert_allclose(stored(papers, ["0", "1", "2", "3", "4", "new"]), expected, atol=1e-6)


def test_deleting_a_sibling_embeds_nothing_and_leaves_no_plain_vector(papers: Collection, service: Service) -> None:
    file = siblings_of(papers).plain_vectors
    assert file is not None
    held = np.asarray(plain_of(siblings_of(papers)).embed_documents([TEXTS[0]]), "<f4").tobytes()
    assert held in file.path.read_bytes()
    assert service.called_for(lambda: papers.delete(["0"])) == []
    assert held not in file.path.read_bytes()
    expected = siblings_of(papers).embed_documents(TEXTS[1:5], parents=["p0"] * 4)
    np.testing.assert_allclose(stored(papers, ["1", "2", "3", "4"]), expected, atol=1e-6)


def test_in_a_server_a_deleted_text_leaves_no_plain_vector(papers: Collection) -> None:
    own, batcher = siblings_of(papers), TokenBatcher()
    assert own.plain_vectors is not None
    held = np.asarray(plain_of(own).embed_documents([TEXTS[0]]), "<f4").tobytes()
    assert held in own.plain_vectors.path.read_bytes()
    papers.embedder = BatchedEmbedder(own, batcher)
    papers.delete(["0"])
    batcher.close()
    assert held not in own.plain_vectors.path.read_bytes()


def test_a_replaced_text_leaves_no_plain_vector(papers: Collection, service: Service) -> None:
    file = siblings_of(papers).plain_vectors
    assert file is not None
    held = np.asarray(plain_of(siblings_of(papers)).embed_documents([TEXTS[0]]), "<f4").tobytes()
    new = "another text"
    assert service.called_for(lambda: papers.add([new], ids=["0"], metadata=[PARENTS[0]])) == [new]
    assert held not in file.path.read_bytes()


def test_recontextualizing_calls_no_model(store: Store, service: Service, tmp_path: Path) -> None:
    """A new corpus map from 30 documents, where the first was made from 10."""
    plain = FunctionEmbedder(service, name="words-1")
    first = ArithmeticEmbedder.from_corpus(TEXTS[:10], model=plain, weight=0.3)
    papers = Collection.create(store, first, parent_key="page")
    if isinstance(store, QdrantStore):
        papers.embedder = first.with_plain_vectors(PlainVectors(tmp_path / "papers.sqlite"))
    papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
    before = stored(papers, ["0"])

    assert service.called_for(lambda: papers.recontextualize()) == []
    assert papers.embedder.fingerprint != first.fingerprint
    assert np.abs(stored(papers, ["0"]) - before).max() > 1e-3
    fresh = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.3)
    assert papers.embedder.fingerprint == fresh.fingerprint
    expected = fresh.embed_documents(TEXTS, parents=[one["page"] for one in PARENTS])
    np.testing.assert_allclose(stored(papers, [str(i) for i in range(30)]), expected, atol=1e-6)

    assert service.called_for(papers.rollback) == []
    assert papers.embedder.fingerprint == first.fingerprint
    np.testing.assert_allclose(stored(papers, ["0"]), before, atol=1e-6)
    assert papers.recontextualize(context_size=20).embedded == 30
    assert damages(papers) == []


def test_without_a_corpus_there_is_nothing_to_recontextualize(papers: Collection, service: Service) -> None:
    assert service.called_for(lambda: papers.recontextualize()) == []
    assert papers.recontextualize().embedded == 0


def test_another_weight_is_another_space_and_costs_no_call(papers: Collection, service: Service) -> None:
    heavy = ArithmeticEmbedder.from_corpus(
        [], model=siblings_of(papers), weight=0.6, corpus=False, plain_vectors=siblings_of(papers).plain_vectors
    )
    assert heavy.fingerprint != papers.embedder.fingerprint
    assert service.called_for(lambda: papers.recontextualize(embedder=heavy)) == []
    expected = heavy.embed_documents(TEXTS[:5], parents=["p0"] * 5)
    np.testing.assert_allclose(stored(papers, list("01234")), expected, atol=1e-6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(data=st.data())
def test_each_text_is_embedded_once_whatever_happens(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Adds to any parents in any portions, deletions of other passages, and recontextualizations in between."""
    service = Service()
    plain = FunctionEmbedder(service, name="words-1")
    corpus = data.draw(st.booleans())
    embedder = ArithmeticEmbedder.from_corpus(TEXTS[:5], model=plain, weight=0.3, corpus=corpus)
    papers = Collection.create(FaissStore(tmp_path_factory.mktemp("any") / "papers"), embedder, parent_key="page")
    start = len(service.embedded)
    sampled = TEXTS[:5] if corpus else []  # whose vectors the Context has
    pages: dict[str, str] = {}
    while len(pages) < 20:
        some = [str(len(pages) + i) for i in range(data.draw(st.integers(1, 8)))]
        pages.update({one: data.draw(st.sampled_from("abc")) for one in some})
        papers.add([TEXTS[int(one)] for one in some], ids=some, metadata=[{"page": pages[one]} for one in some])
        if data.draw(st.booleans()):
            papers.recontextualize(seed=data.draw(st.integers(0, 3)))
    embedded = [text for text in service.embedded[start:] if text != PROBES[0]]
    assert len(set(embedded)) == len(embedded)
    assert {TEXTS[int(one)] for one in pages}.difference(sampled) <= set(embedded) <= set(TEXTS)
    expected = siblings_of(papers).embed_documents([TEXTS[int(one)] for one in pages], parents=list(pages.values()))
    np.testing.assert_allclose(stored(papers, list(pages)), expected, atol=1e-6)


def test_a_collection_is_opened_with_its_function(
    papers: Collection, plain: ContextualEmbedder, service: Service
) -> None:
    with pytest.raises(ModelError, match=r"Give it: Collection\.open\(store, model=FunctionEmbedder"):
        Collection.open(papers.store)
    again = Collection.open(papers.store, model=plain)
    assert again.embedder.fingerprint == papers.embedder.fingerprint
    if not isinstance(papers.store, QdrantStore):  # which has no folder for the plain vectors
        assert service.called_for(lambda: again.add(["delta"], metadata=[{"page": "p1"}])) == ["delta"]


def test_a_model_that_changed_behind_its_name_is_noticed(papers: Collection) -> None:
    changed = FunctionEmbedder(Service(seed=1), name="words-1")
    with pytest.raises(ContextMismatchError, match="The model of that name has changed"):
        Collection.open(papers.store, model=changed)
    renamed = FunctionEmbedder(Service(), name="words-2")
    with pytest.raises(ContextMismatchError, match="They were made with 'words-1'"):
        Collection.open(papers.store, model=renamed)
    prefixed = FunctionEmbedder(Service(), name="words-1", prefixes={"query": "q: ", "document": ""})
    with pytest.raises(ContextMismatchError, match="prefixes"):
        Collection.open(papers.store, model=prefixed)
    asked = FunctionEmbedder(Service(), name="words-1", query_function=Service(seed=2))
    with pytest.raises(ContextMismatchError, match="has changed"):
        Collection.open(papers.store, model=asked)


def test_a_service_that_rounds_differently_is_the_same_model(tmp_path: Path) -> None:
    """Its own vectors of the fixed texts differ from call to call, and the stored ones count: also for kept vectors."""
    service = Service(noise=1e-3)
    first = FunctionEmbedder(service, name="words-1")
    papers = Collection.create(
        FaissStore(tmp_path / "papers"),
        ArithmeticEmbedder.from_corpus(TEXTS, model=first, weight=0.3),
        parent_key="page",
    )
    papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
    second = FunctionEmbedder(service, name="words-1")
    assert second.fingerprint != first.fingerprint
    again = Collection.open(papers.store, model=second)
    assert again.embedder.fingerprint == papers.embedder.fingerprint
    assert service.called_for(lambda: again.recontextualize(context_size=20)) == []
    assert Collection.open(papers.store, model=FunctionEmbedder(service, name="words-1")).search(TEXTS[3])[0].id == "3"


def test_a_function_alone_is_an_embedder_of_a_collection(plain: ContextualEmbedder, tmp_path: Path) -> None:
    papers = Collection.create(FaissStore(tmp_path / "papers"), plain)
    papers.add(TEXTS, ids=map(str, range(30)))
    np.testing.assert_array_equal(stored(papers, ["4"]), plain.embed_documents([TEXTS[4]]))
    again = Collection.open(FaissStore(tmp_path / "papers"), model=plain)
    assert again.search(TEXTS[4])[0].id == "4"
    with pytest.raises(ModelError, match="reads no siblings"):
        plain.embed_documents(TEXTS[:2], parents=["a", "a"])


def test_an_error_of_the_service_loses_nothing(tmp_path: Path) -> None:
    """It fails after 600 of 1,000 texts: what was embedded before is not embedded again."""
    service = Service()
    plain = FunctionEmbedder(service, name="words-1", mini_batch_size=64)
    papers = Collection.create(
        FaissStore(tmp_path / "papers"), ArithmeticEmbedder.from_corpus([], model=plain, corpus=False)
    )
    texts = [f"{WORDS[i % 20]} {i}" for i in range(1000)]
    start, service.fails_at = len(service.embedded), len(service.embedded) + 600
    with pytest.raises(TimeoutError):
        papers.add(texts)
    assert papers.count() == 512  # as many as were written together
    service.fails_at = -1
    papers.add(texts)
    assert papers.count() == 1000
    embedded = Counter(text for text in service.embedded[start:] if text != PROBES[0])
    assert not Counter(texts) - embedded
    assert sum(embedded.values()) == 1000 + 112  # each once, and the queries of the calibration


def test_an_error_of_the_service_during_sampling_costs_one_call(tmp_path: Path) -> None:
    service, kept = Service(), PlainVectors(tmp_path / "kept.sqlite")
    plain = FunctionEmbedder(service, name="words-1", mini_batch_size=16)
    start, service.fails_at = len(service.embedded), len(service.embedded) + 40
    texts = [f"{WORDS[i % 20]} {i}" for i in range(100)]
    with pytest.raises(TimeoutError):
        ArithmeticEmbedder.from_corpus(texts, model=plain, plain_vectors=kept)
    service.fails_at = -1
    ArithmeticEmbedder.from_corpus(texts, model=plain, plain_vectors=kept)
    assert sorted(text for text in service.embedded[start:] if text != PROBES[0]) == sorted(texts)


def test_a_text_that_the_service_refuses_is_left_out_of_the_context() -> None:
    service = Service()

    def picky(texts: list[str]) -> list[list[float]]:
        if any("zzz" in text for text in texts):
            raise ValueError("status 400")
        return service(texts)

    plain = FunctionEmbedder(picky, name="words-1", mini_batch_size=16)
    texts = [f"{WORDS[i % 20]} {i}" for i in range(100)]
    with pytest.warns(CDEWarning, match=r"2 of 102 sampled documents are left out .*, such as 'zzz \d': status 400"):
        found = ArithmeticEmbedder.from_corpus([*texts, "zzz 1", "zzz 2"], model=plain)
    expected = ArithmeticEmbedder.from_corpus(texts, model=plain)
    np.testing.assert_allclose(found.embed_queries(["river"]), expected.embed_queries(["river"]), atol=1e-6)
    with pytest.raises(ValueError, match="status 400"):
        ArithmeticEmbedder.from_corpus(["zzz 1", "zzz 2"], model=plain)


def test_a_model_that_changes_while_it_is_in_use_is_an_error(papers: Collection, service: Service) -> None:
    before = papers.count()
    service.seed = 1
    with pytest.raises(ModelError, match="words-1 changed while it was in use"):
        papers.add(["a new text"], ids=["new"])
    assert papers.count() == before
    service.seed = 0
    assert damages(papers) == []
    papers.add(["a new text"], ids=["new"])
    assert papers.search("a new text")[0].id == "new"


def test_a_second_collection_in_its_place_is_refused(papers: Collection) -> None:
    with pytest.raises(StoreError, match="Open it with"):
        Collection.create(papers.store, siblings_of(papers), parent_key="page")


def test_a_collection_opens_with_the_embedder_that_made_it(papers: Collection, plain: ContextualEmbedder) -> None:
    mixed = siblings_of(papers)
    hits = papers.search("river")
    papers.close()
    again = Collection.open(papers.store, model=mixed)
    assert again.search("river") == hits
    again.close()
    for other in (None, str, "a folder"):
        with pytest.raises(ModelError, match="which no file holds"):
            Collection.open(papers.store, model=other)  # type: ignore[arg-type]


def test_options_of_opening_go_to_an_embedder_that_is_given(plain: ContextualEmbedder, tmp_path: Path) -> None:
    """Its own batch size and pool stay where the options have none; its device was chosen where it was made."""
    Collection.create(FaissStore(tmp_path / "papers"), plain)
    opened = partial(Collection.open, FaissStore(tmp_path / "papers"), model=plain)
    with ProcessPool(1) as pool:
        with_pool = opened(options=EmbedderOptions(pool=pool)).embedder.options
        assert (with_pool.pool, with_pool.mini_batch_size) == (pool, 4)
        kept = Collection.open(FaissStore(tmp_path / "papers"), model=plain.with_pool(pool)).embedder.options
        assert (kept.pool, kept.mini_batch_size) == (pool, 4)
    assert opened(options=EmbedderOptions(mini_batch_size=2)).embedder.options.mini_batch_size == 2
    for other in (EmbedderOptions(device="cpu"), EmbedderOptions(dtype="float32"), EmbedderOptions(runtime="torch")):
        with pytest.raises(TypeError, match="chosen where a model is loaded"):
            opened(options=other)


@pytest.mark.parametrize("corpus", [False, True])
def test_an_audit_embeds_what_is_kept_again(
    store: Store, service: Service, plain: ContextualEmbedder, tmp_path: Path, corpus: bool
) -> None:
    """Neither kept vectors nor those of the Context answer for the model, and none is written."""
    kept = PlainVectors(tmp_path / "kept.sqlite")
    embedder = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.3, corpus=corpus).with_plain_vectors(kept)
    papers = Collection.create(store, embedder, parent_key="page")
    papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
    place = siblings_of(papers).plain_vectors
    assert place is not None
    before = place.path.read_bytes()
    service.seed = 1
    with pytest.raises(ModelError, match="changed while it was in use"):
        papers.audit()
    service.seed = 0
    asked = service.called_for(lambda: papers.audit(sample=30))
    assert sorted(asked) == sorted(TEXTS)
    assert place.path.read_bytes() == before


def test_a_dry_run_writes_nothing(plain: ContextualEmbedder, service: Service, tmp_path: Path) -> None:
    """Not even plain vectors, which a copy without them lacks; those that are kept are not embedded again."""
    embedder = ArithmeticEmbedder.from_corpus([], model=plain, weight=0.3, corpus=False)
    with Collection.create(FaissStore(tmp_path / "papers"), embedder, parent_key="page") as papers:
        papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
        assert service.called_for(lambda: papers.recontextualize(dry_run=True)) == []
        papers.export(tmp_path / "papers.parquet")
    Collection.import_(tmp_path / "papers.parquet", FaissStore(tmp_path / "copy"), model=plain).close()
    with Collection.open(FaissStore(tmp_path / "copy"), model=plain) as copy:
        copy.close()
        before = {path.name: path.read_bytes() for path in (tmp_path / "copy").rglob("*")}
        assert copy.recontextualize(dry_run=True).documents == 30
        copy.close()
        assert {path.name: path.read_bytes() for path in (tmp_path / "copy").rglob("*")} == before


@pytest.fixture
def of_words(tmp_path: Path) -> Collection:
    """A collection of another function, whose vectors are as long."""
    made = Collection.create(FaissStore(tmp_path / "of words"), FunctionEmbedder(Service(seed=7), name="words-0"))
    made.add(TEXTS, ids=map(str, range(30)))
    return made


def test_a_move_to_an_embedders_model_keeps_its_batch_size_and_its_vectors(
    of_words: Collection, plain: ContextualEmbedder, service: Service
) -> None:
    """Texts of the sample and of the records go to the service once, in calls of the size that it takes."""
    sizes, answer = list[int](), Service.__call__

    def sized(self: Service, texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return answer(self, texts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Service, "__call__", sized)
        asked = service.called_for(lambda: of_words.recontextualize(model=plain, context_size=10))
        assert max(sizes) <= 4
        assert sorted(asked) == sorted(TEXTS)
        assert of_words.embedder.options.mini_batch_size == 4
        assert service.called_for(lambda: of_words.recontextualize(seed=1, context_size=10)) == []
    with ProcessPool(1) as pool:
        of_words.recontextualize(model=plain.with_pool(pool), seed=2, context_size=10)
        of_words.recontextualize(model=plain, seed=3, context_size=10)
        assert of_words.embedder.options.pool is pool


def ended(_: Progress) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["model", "embedder", "mapped"])
def test_an_interrupted_move_goes_on_although_the_service_rounds_differently(
    of_words: Collection, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """In another process, where the function's vectors of the fixed texts are others than before."""
    service = Service(noise=1e-3)

    def move(**more: Any) -> Recontextualization:
        made = FunctionEmbedder(service, name="words-1")
        if way == "model":
            return of_words.recontextualize(model=made, context_size=10, **more)
        mapped = ContextualEmbedder.from_corpus(TEXTS, model=made, context_size=10)
        return of_words.recontextualize(embedder=made if way == "embedder" else mapped, **more)

    monkeypatch.setattr(backfill, "FIRST_PART", 8)
    with pytest.raises(KeyboardInterrupt):
        move(on_progress=ended)
    report = move()
    assert (report.documents, report.embedded, report.generation) == (30, 22, 2)
    again = move()
    assert (again.embedded, again.fingerprint) == (0, report.fingerprint)
    of_words.close()


@pytest.mark.parametrize("way", ["interrupted", "rolled back"])
def test_a_deleted_text_leaves_no_plain_vector_of_another_generation(
    of_words: Collection, plain: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The active embedder keeps none, and the one of the generation beside it does."""
    if way == "interrupted":
        monkeypatch.setattr(backfill, "FIRST_PART", 8)
        with pytest.raises(KeyboardInterrupt):
            of_words.recontextualize(model=plain, context_size=10, on_progress=ended)
    else:
        of_words.recontextualize(model=plain, context_size=10)
        of_words.close()
        of_words = Collection.open(of_words.store, model=plain)
        of_words.recontextualize(embedder=FunctionEmbedder(Service(seed=7), name="words-0"))
    file = FaissStore(of_words.store.folder).folder / FILE  # pyright: ignore[reportAttributeAccessIssue]
    held, replaced = (np.asarray(plain.embed_documents([text]), "<f4").tobytes() for text in TEXTS[:2])
    assert held in file.read_bytes()
    assert replaced in file.read_bytes()
    of_words.delete(["0"])
    of_words.add(["another text"], ids=["1"])
    assert held not in file.read_bytes()
    assert replaced not in file.read_bytes()
    of_words.close()


@pytest.mark.usefixtures("unchecked")
def test_what_a_run_refuses_a_dry_run_refuses(
    of_words: Collection, plain: ContextualEmbedder, papers: Collection, tmp_path: Path
) -> None:
    short = FunctionEmbedder(lambda texts: [[1.0, float(len(text))] for text in texts], name="short-1")
    canary = Canary({"a river": ["nosuch"]})
    refused: list[tuple[Collection, type[Exception], str, dict[str, Any]]] = [
        (of_words, ModelError, "is a plain model, which reads no context", {}),
        (of_words, TypeError, "by its own setting", {"model": plain, "windows": True}),
        (of_words, TypeError, "by its own setting", {"model": plain, "windows": False}),
        (of_words, StoreError, "vectors of length 32, found 2", {"model": short}),
        (of_words, StoreError, "vectors of length 32, found 2", {"embedder": short}),
        (of_words, TypeError, "has its model and Context", {"embedder": plain, "context_size": 8}),
        (of_words, ValueError, "Expected strategy 'random' or 'clusters'", {"model": plain, "strategy": "strata"}),
        (of_words, ValueError, "context_size", {"model": plain, "context_size": 0}),
        (of_words, ValueError, "grace_s", {"model": plain, "grace_s": -1.0}),
        (of_words, CorpusError, "'nosuch'", {"model": plain, "canary": canary}),
        (papers, ModelError, "by its own setting", {"windows": True}),
        (papers, ModelError, "reads no siblings", {"model": plain}),
    ]
    for collection, error, message, asked in refused:
        for dry_run in (True, False):
            with pytest.raises(error, match=message):
                collection.recontextualize(**asked, dry_run=dry_run)
        assert len(collection.store.generations()) == 1
    assert of_words.recontextualize(model=plain, dry_run=True).documents == 30
    of_words.close()


def test_without_its_file_a_collection_is_as_before(papers: Collection, service: Service) -> None:
    file = siblings_of(papers).plain_vectors
    assert file is not None
    file.path.unlink()
    new = "a river of money"
    called = service.called_for(lambda: papers.add([new], ids=["new"], metadata=[{"page": "p0"}]))
    assert sorted(called) == sorted([*TEXTS[:5], new])
    expected = siblings_of(papers).with_plain_vectors(None).embed_documents([*TEXTS[:5], new], parents=["p0"] * 6)
    np.testing.assert_allclose(stored(papers, ["0", "1", "2", "3", "4", "new"]), expected, atol=1e-6)


def test_a_damaged_plain_vector_is_an_error(papers: Collection) -> None:
    file = siblings_of(papers).plain_vectors
    assert file is not None
    with sqlite3.connect(file.path) as connection:
        connection.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
    with pytest.raises(StoreFormatError, match="Delete the file"):
        papers.add(["a river of money"], metadata=[{"page": "p0"}])
    file.path.write_bytes(b"no database" * 100)
    with pytest.raises(StoreFormatError, match="Delete the file"):
        papers.add(["a river of money"], metadata=[{"page": "p0"}])
    file.path.unlink()
    file.path.symlink_to("elsewhere.sqlite")
    with pytest.raises(StoreError, match="Links are not followed"):
        papers.add(["a river of money"], metadata=[{"page": "p0"}])


def test_where_nothing_can_be_written_vectors_are_not_kept(plain: ContextualEmbedder, tmp_path: Path) -> None:
    embedder = ArithmeticEmbedder.from_corpus([], model=plain, corpus=False).with_plain_vectors(
        PlainVectors(tmp_path / "missing" / FILE)
    )
    with pytest.warns(CDEWarning, match="cannot be read or written"):
        vectors = embedder.embed_documents(TEXTS[:2])
    np.testing.assert_allclose(vectors, plain.embed_documents(TEXTS[:2]), atol=1e-6)


def test_a_backup_is_a_collection_without_its_plain_vectors(
    papers: Collection, service: Service, tmp_path: Path
) -> None:
    back_up(papers.store, tmp_path / "backup")
    kinds = {FaissStore: FaissStore, QdrantEdgeStore: QdrantEdgeStore, QdrantStore: FaissStore}
    restored = kinds[type(papers.store)](tmp_path / "restored")
    restore(tmp_path / "backup", restored)
    again = Collection.open(restored, model=siblings_of(papers))
    np.testing.assert_array_equal(stored(again, ["0", "7"]), stored(papers, ["0", "7"]))
    new = "a river of money"
    called = service.called_for(lambda: again.add([new], metadata=[{"page": "p0"}]))
    assert sorted(called) == sorted([*TEXTS[:5], new])
    assert again.verify() == []


def test_a_sentence_transformer_is_found_by_its_name(tmp_path: Path) -> None:
    plain = PlainEmbedder(write_transformer(tmp_path / "model"), options=EmbedderOptions(device="cpu"))
    embedder = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.3)
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder, parent_key="page")
    papers.add(TEXTS, ids=map(str, range(30)), metadata=PARENTS)
    again = Collection.open(FaissStore(tmp_path / "papers"), options=EmbedderOptions(device="cpu", mini_batch_size=7))
    assert again.embedder.options.mini_batch_size == 7
    np.testing.assert_allclose(
        again.embedder.embed_documents(TEXTS, parents=[one["page"] for one in PARENTS]),
        stored(papers, [str(i) for i in range(30)]),
        atol=1e-5,
    )
    other = PlainEmbedder(write_transformer(tmp_path / "other", seed=1), options=EmbedderOptions(device="cpu"))
    with pytest.raises(ContextMismatchError):
        Collection.open(FaissStore(tmp_path / "papers"), model=other)


def test_a_context_is_saved_and_loaded(plain: ContextualEmbedder, tmp_path: Path) -> None:
    embedder = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=1.0)
    embedder.context.save(tmp_path / "any.context.safetensors")
    again = ContextualEmbedder(plain, Context.load(tmp_path / "any.context.safetensors"))
    identity = again.context.identity
    assert (again.fingerprint, identity.sibling_weight, identity.corpus_map) == (embedder.fingerprint, 1.0, True)
    np.testing.assert_array_equal(again.embed_documents(TEXTS[:3]), embedder.embed_documents(TEXTS[:3]))
    assert isinstance(again, Embedder)
    assert again.mini_batch_size == plain.mini_batch_size
    assert again.with_context(plain.context).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    "answer", [lambda texts: [[1.0]] * (len(texts) + 1), lambda texts: [1.0] * len(texts), lambda texts: "no",
               lambda texts: [[float("nan")]] * len(texts), lambda texts: [[0.0, 0.0]] * len(texts)]
)  # fmt: skip
def test_a_function_with_other_answers_is_refused(answer: Callable[[list[str]], object]) -> None:
    with pytest.raises(ModelError, match="expected"):
        FunctionEmbedder(answer, name="wrong")


@pytest.mark.usefixtures("unchecked")
def test_arguments_of_a_model_are_not_those_of_a_plain_embedder(plain: ContextualEmbedder) -> None:
    with pytest.raises(TypeError, match="chosen where a model is loaded"):
        ContextualEmbedder.from_corpus(TEXTS, model=plain, options=EmbedderOptions(dtype="float32"))
    with pytest.raises(TypeError, match="by its own setting"):
        ContextualEmbedder.from_corpus(TEXTS, model=plain, windows=True)
    with pytest.raises(ValueError, match="weight"):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=-1.0)
    with pytest.raises(ValueError, match="strata"):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, strategy="strata")
    unweighted = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.0)
    with pytest.raises(ModelError, match="weight of 0"):
        unweighted.embed_documents(TEXTS[:2], parents=["a", "a"])
    with pytest.raises(ValueError, match="reads no siblings"):
        Collection.create(FaissStore(os.devnull), unweighted, parent_key="page")


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
def test_weights_outside_the_range_are_refused(plain: ContextualEmbedder, weight: float) -> None:
    with pytest.raises(ValueError, match=f"Expected a weight of 0 or more, found {weight}"):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=weight)


@pytest.mark.parametrize("weight", ["0.3", True, None])
@pytest.mark.usefixtures("unchecked")
def test_weights_that_are_no_numbers_are_refused(plain: ContextualEmbedder, weight: Any) -> None:
    with pytest.raises(TypeError, match=f"weight must be a number, not {weight!r}"):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=weight)


@pytest.mark.parametrize("unknown", [len, object(), 3, None], ids=["function", "object", "number", "nothing"])
@pytest.mark.usefixtures("unchecked")
def test_unknown_embedders_are_told_how_to_become_known(
    unknown: Any, plain: ContextualEmbedder, tmp_path: Path
) -> None:
    for make in (ContextualEmbedder.from_corpus, ArithmeticEmbedder.from_corpus):
        with pytest.raises(TypeError, match=r"found .*FunctionEmbedder\(function, name="):
            make(TEXTS, model=unknown)
    with pytest.raises(TypeError, match="Expected an embedder, such as"):
        Collection.create(FaissStore(tmp_path / "none"), unknown)
    with Collection.create(FaissStore(tmp_path / "papers"), plain) as papers:
        papers.add(TEXTS)
    with pytest.raises(ModelError, match=r"Give it: .*FunctionEmbedder"):
        Collection.open(FaissStore(tmp_path / "papers"), model=unknown)


def test_an_empty_file_of_a_killed_write_holds_no_vectors(tmp_path: Path) -> None:
    kept, key = PlainVectors(tmp_path / "plain.sqlite"), bytes(32)
    kept.path.touch()
    kept.forget([key])
    assert kept.get("space", [key], DIM) == {}
    kept.put("space", {key: (np.ones(DIM, np.float32), False)})
    np.testing.assert_array_equal(kept.get("space", [key], DIM)[key][0], np.ones(DIM))

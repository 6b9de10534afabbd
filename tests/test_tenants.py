"""Tenants: whatever is done in whatever order, nobody sees another's texts, nor vectors that depend on them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from brute_force_store import BruteForceStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from intact import damages
from qdrant_client import QdrantClient
from tiny import WORDS, tiny_cde_model

from cde_rag._validation import digest
from cde_rag.collection.collection import Collection
from cde_rag.collection.info import inspect
from cde_rag.collection.tenants import Tenants
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import StoreError, TenantError
from cde_rag.models import CDEModel
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant.tenants import QdrantTenants
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.tenant_names import LONGEST_NAME, place_key
from cde_rag.stores.tenant_stores import FolderTenants, TenantStores, remove_folder

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

SHARED = ["the river", "a bank", "money to loan", "flood of water"]
HOSTILE = [
    "acme", "ACME", "Acme ", "../acme", "/etc/passwd", "..", ".", "a/b", "a\\b", "CON", "nul.txt", "a\0b", "é",
    "e\u0301", "ﬀ", "ff", "%2e%2e", "__cde_contexts", "*", "' OR 1=1 --", "x" * LONGEST_NAME, "x" * (LONGEST_NAME - 1),
    "\u202eacme",
]  # fmt: skip


def stores(kind: str, folder: Path) -> Callable[[], TenantStores]:
    """Opens the same place again and again."""
    if kind == "qdrant":
        client = QdrantClient(":memory:")
        return lambda: QdrantTenants(client, "papers")
    return lambda: FolderTenants(folder / "papers", FaissStore if kind == "faiss" else QdrantEdgeStore)


@pytest.fixture(params=["faiss", "qdrant", pytest.param("edge", marks=pytest.mark.long)])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], TenantStores]:
    return stores(request.param, tmp_path)


@pytest.fixture
def tenants(opener: Callable[[], TenantStores], tiny_model: CDEModel) -> Iterator[Tenants]:
    with Tenants.create(opener(), ContextualEmbedder.from_corpus(SHARED, model=tiny_model)) as made:
        yield made


# Nothing of one is anything to another


class Interleaved(RuleBasedStateMachine):
    """Every text names its tenant, and says so to a dict beside the collections."""

    kind = "faiss"
    model = tiny_cde_model()
    names = st.sampled_from(["acme", "ACME", "../acme"])
    ids = st.sampled_from([str(number) for number in range(6)])

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.open = stores(self.kind, self.folder)
        self.oracle: dict[str, dict[str, str]] = {}
        self.ever: dict[str, set[str]] = {}  # a context may hold texts that are deleted
        self.collections: dict[str, Collection] = {}

    @initialize()
    def create(self) -> None:
        embedder = ContextualEmbedder.from_corpus(SHARED, model=self.model)
        self.tenants = Tenants.create(self.open(), embedder, parent_key="page")

    @rule(name=names, ids=st.lists(ids, min_size=1, max_size=4, unique=True), draw=st.integers(0, 99))
    def add(self, name: str, ids: list[str], draw: int) -> None:
        words = np.random.default_rng(draw).choice(WORDS, (len(ids), 4))
        texts = [f"{name}: {' '.join(some)}" for some in words]
        self.of(name).add(texts, ids=ids, metadata=[{"page": f"p{int(id_) // 3}"} for id_ in ids])
        self.oracle[name].update(zip(ids, texts, strict=True))
        self.ever[name].update(texts)

    @rule(name=names, id_=ids)
    def delete(self, name: str, id_: str) -> None:
        there = id_ in self.oracle.get(name, {})
        assert self.of(name).delete([id_]) == there
        self.oracle[name].pop(id_, None)

    @rule(name=names, page=st.sampled_from(["p0", "p1"]))
    def delete_where(self, name: str, page: str) -> None:
        gone = [id_ for id_ in self.oracle.get(name, {}) if f"p{int(id_) // 3}" == page]
        assert self.of(name).delete(where={"page": page}) == len(gone)
        for id_ in gone:
            del self.oracle[name][id_]

    @rule(name=names, other=names)
    def delete_another(self, name: str, other: str) -> None:
        """A filter that names another tenant matches nobody."""
        if name != other:
            assert self.of(name).delete(where={"tenant": other}) == 0

    @rule(name=names, seed=st.integers(0, 3))
    def move(self, name: str, seed: int) -> None:
        if self.oracle.get(name):
            self.of(name).recontextualize(seed=seed, context_size=3)

    @rule(name=names)
    def roll_back(self, name: str) -> None:
        collection = self.of(name)
        if len(collection.store.generations()) > 1 and collection.inspect().generation > 1:
            collection.rollback()

    @rule(name=names)
    def drop(self, name: str) -> None:
        if name in self.oracle:
            self.collections.pop(name).close()
            self.tenants.drop(name)
            del self.oracle[name]

    @rule()
    def reopen(self) -> None:
        for collection in self.collections.values():
            collection.close()
        self.collections.clear()
        self.tenants = Tenants.open(self.open(), model=self.model)

    @invariant()
    def each_has_its_own(self) -> None:
        if not hasattr(self, "tenants"):
            return
        assert self.tenants.names() == sorted(self.oracle)
        for name, mine in self.oracle.items():
            collection = self.of(name)
            assert {record.id: record.text for record in collection.scroll()} == mine
            assert {record.id: record.text for record in collection.get([str(number) for number in range(6)])} == mine
            assert collection.count() == collection.count({"tenant": name}) == len(mine)
            assert {hit.id: hit.text for hit in collection.search("river bank", 99)} == mine
            assert all(record.metadata["tenant"] == name for record in collection.scroll())
            self.as_if_alone(name, collection)

    def as_if_alone(self, name: str, collection: Collection) -> None:
        """Its context is of its own texts, or of the shared ones; its vectors are as if there were nobody else."""
        common = collection.inspect().common_context
        allowed = {digest(text) for text in (SHARED if common else self.ever[name])}
        assert {bytes(row) for row in collection.embedder.context.digests} <= allowed
        alone = Collection.create(BruteForceStore(), collection.embedder, parent_key="page")
        found = list(collection.scroll())
        alone.add_records(found)
        ids = [record.id for record in found]
        assert [row.digest for row in collection.store.get(ids)] == [row.digest for row in alone.store.get(ids)]
        if found:
            np.testing.assert_allclose(
                collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint),
                alone.store.vectors(ids, fingerprint=alone.embedder.fingerprint),
                atol=1e-5,
            )

    def of(self, name: str) -> Collection:
        if name not in self.oracle:
            self.oracle[name], self.ever[name] = {}, set()
            self.collections[name] = self.tenants.add(name)
        if name not in self.collections:
            self.collections[name] = self.tenants.get(name)
        return self.collections[name]

    def teardown(self) -> None:
        for collection in self.collections.values():
            collection.close()
        shutil.rmtree(self.folder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "examples"), [("faiss", 8), ("qdrant", 8)])
def test_nobody_sees_another(kind: str, examples: int) -> None:
    machine = type("Interleaved", (Interleaved,), {"kind": kind})
    asked = settings(max_examples=examples, stateful_step_count=12, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=asked)


@given(st.text(max_size=30), st.text(max_size=30))
def test_different_names_have_different_places(one: str, other: str) -> None:
    def key(name: str) -> str | None:
        try:
            return place_key(name)
        except TenantError:
            return None

    assert (key(one) == key(other)) == (one == other or key(one) is None is key(other))
    assert {*(key(one) or "0")} <= {*"0123456789abcdef"}


def test_hostile_names_are_names(tenants: Tenants, opener: Callable[[], TenantStores], tmp_path: Path) -> None:
    names = HOSTILE[:6] if isinstance(tenants.add("x").store, QdrantEdgeStore) else HOSTILE
    for name in names:
        with tenants.add(name) as collection:
            collection.add([f"money {name!r}"], ids=["1"])
    assert tenants.names() == sorted([*names, "x"])
    for name in names:
        with tenants.get(name) as collection:
            assert [hit.text for hit in collection.search("money", 9)] == [f"money {name!r}"]
            assert collection.inspect().tenant == name
    assert {path.name for path in tmp_path.iterdir()} <= {"papers"}
    tenants.drop(names[0])
    assert tenants.names() == sorted([*names[1:], "x"])
    tenants.add(names[0]).close()
    assert tenants.get(names[0]).count() == 0


@pytest.mark.parametrize("name", ["", "  ", "\ud800", "x" * (LONGEST_NAME + 1)], ids=["", "blank", "surrogate", "long"])
def test_what_is_no_name(tenants: Tenants, name: str) -> None:
    for call in (tenants.get, tenants.add, tenants.drop):
        with pytest.raises(TenantError, match="name of a tenant"):
            call(name)
    assert tenants.names() == []


# To forget the tenant


def test_a_call_without_a_tenant(tmp_path: Path, tiny_model: CDEModel) -> None:
    embedder = ContextualEmbedder.from_corpus(SHARED, model=tiny_model)
    tenants = Tenants.create(FolderTenants(tmp_path / "papers", FaissStore), embedder)
    for call in ("add_records", "search", "scroll", "count", "delete", "embedder", "recontextualize"):
        assert hasattr(Collection, call)
        with pytest.raises(AttributeError, match=call):
            getattr(tenants, call)
    with pytest.raises(TenantError, match="name of a tenant"):
        tenants.add("")


def test_the_place_of_tenants_is_no_collection(
    tenants: Tenants, opener: Callable[[], TenantStores], tiny_model: CDEModel
) -> None:
    with pytest.raises(TenantError, match="--tenant"):
        Collection.open(opener().common(), model=tiny_model)
    with pytest.raises(TenantError, match="--tenant"):
        Collection(opener().common(), tenants.common_embedder)
    with pytest.raises(StoreError):
        Collection.create(opener().common(), tenants.common_embedder)


def test_a_collection_is_no_place_of_tenants(opener: Callable[[], TenantStores], tiny_model: CDEModel) -> None:
    embedder = ContextualEmbedder.from_corpus(SHARED, model=tiny_model)
    with pytest.raises(StoreError):
        Tenants.open(opener())
    Collection.create(opener().common(), embedder)
    for call in (lambda: Tenants.open(opener()), lambda: Tenants(opener(), embedder)):
        with pytest.raises(TenantError, match="without them"):
            call()


def test_a_record_of_another_tenant_is_refused(tenants: Tenants) -> None:
    acme = tenants.add("acme")
    theirs = Record("2", "river", metadata={"tenant": "globex"})
    for call in (
        lambda: acme.add_records([Record("1", "bank"), theirs]),
        lambda: acme.add(["river"], metadata=[{"tenant": "ACME"}]),
        lambda: acme.add(["river"], metadata=[{"tenant": ["acme"]}]),
    ):
        with pytest.raises(TenantError, match="'acme'"):
            call()
    assert acme.count() == 0
    with pytest.raises(TypeError):
        acme.add_records(iter(["river"]))  # pyright: ignore[reportArgumentType]
    report = acme.add(["river", "bank"], metadata=[{"tenant": "acme"}, {}])
    assert (report.added, acme.count({"tenant": "acme"})) == (2, 2)
    assert acme.add(["river"], metadata=[{}]).unchanged == 1
    with pytest.raises(TenantError, match=r"tenants\.add"):
        tenants.get("globex")
    with pytest.raises(TenantError, match="new"):
        tenants.add("acme")


def test_a_store_in_another_tenants_place_is_refused(tmp_path: Path, tiny_model: CDEModel) -> None:
    place = FolderTenants(tmp_path / "papers", FaissStore)
    tenants = Tenants.create(place, ContextualEmbedder.from_corpus(SHARED, model=tiny_model))
    for name in ("acme", "globex"):
        tenants.add(name).close()
    folder = tmp_path / "papers/tenants"
    shutil.rmtree(folder / place_key("acme"))
    (folder / place_key("globex")).rename(folder / place_key("acme"))
    with pytest.raises(TenantError, match="in its place"):
        tenants.get("acme")


# Small and grown


def test_a_tenant_begins_in_the_context_in_common(
    tenants: Tenants, opener: Callable[[], TenantStores], tiny_model: CDEModel
) -> None:
    acme, globex = tenants.add("acme"), tenants.add("globex")
    acme.add([f"river bank {number}" for number in range(9)])
    globex.add(["credit risk"])
    assert {name: one.common_context for name, one in tenants.inspect().items()} == {"acme": True, "globex": True}
    assert tenants.outgrown(5) == ["acme"]
    before = globex.embedder.fingerprint
    acme.recontextualize(context_size=4)
    assert acme.inspect().common_context is False
    assert acme.inspect().context_documents_seen == 9
    assert globex.embedder.fingerprint == tenants.common_embedder.fingerprint == before != acme.embedder.fingerprint
    assert (tenants.outgrown(5), tenants.outgrown(1)) == ([], ["globex"])
    assert acme.drift(context_size=4).documents == 9
    assert damages(acme) == damages(globex) == []
    acme.close()
    with Tenants.open(opener(), model=tiny_model) as again, again.get("acme") as same:
        assert same.search("river bank", 1)[0].metadata == {"tenant": "acme"}
        same.rollback()
        assert inspect(same.store).common_context is True


def test_keys_that_cannot_be(opener: Callable[[], TenantStores], tiny_model: CDEModel) -> None:
    embedder = ContextualEmbedder.from_corpus(SHARED, model=tiny_model)
    for key in ("", "or", "page"):
        with pytest.raises(ValueError, match="tenant_key"):
            Tenants.create(opener(), embedder, tenant_key=key, parent_key="page")


def test_a_tenant_key_is_any_field(opener: Callable[[], TenantStores], tiny_model: CDEModel) -> None:
    embedder = ContextualEmbedder.from_corpus(SHARED, model=tiny_model)
    with (
        Tenants.create(opener(), embedder, tenant_key="org.id") as tenants,
        tenants.add("acme") as acme,
    ):
        acme.add(["the river", "a bank"], metadata=[{}, {"org": {"id": "acme"}}])
        assert [record.metadata for record in acme.scroll({"org.id": "acme"})] == [
            {"org.id": "acme"},
            {"org": {"id": "acme"}},
        ]
        for of_another in (
            {"org.id": "globex"},
            {"org": {"id": "globex"}},
            {"org.id": "acme", "org": {"id": "globex"}},
        ):
            with pytest.raises(TenantError, match="globex"):
                acme.add(["a flood"], metadata=[of_another])


def test_names_of_collections_that_only_look_like_tenants(tiny_model: CDEModel) -> None:
    client = QdrantClient(":memory:")
    embedder = ContextualEmbedder.from_corpus(SHARED, model=tiny_model)
    for name in ("a", "a__cde_tenant_x", "a.b"):
        tenants = Tenants.create(QdrantTenants(client, name), embedder)
        tenants.add(f"of {name}").close()
    assert Tenants.open(QdrantTenants(client, "a"), model=tiny_model).names() == ["of a"]
    Tenants.open(QdrantTenants(client, "a"), model=tiny_model).drop("of a")
    found = {collection.name for collection in client.get_collections().collections}
    assert not any(name.startswith(f"a__cde_tenant_{place_key('of a')}") for name in found)
    assert QdrantStore(client, "a").exists()


def test_a_tenant_is_removed_after_a_call_that_was_killed(tmp_path: Path) -> None:
    """A folder that a killed call had renamed is removed with it, and is no tenant meanwhile."""
    place, key = FolderTenants(tmp_path / "papers", FaissStore), place_key("acme")
    folder = tmp_path / "papers" / "tenants"
    for name in (key, f".{key}.0123abcd.removed", f"{key}.removed"):  # the last is how 0.2 named it
        (folder / name).mkdir(parents=True)
        (folder / name / "part").write_text("secret")
    assert place.listed() == []  # no store is whole
    place.remove(key)
    assert list(folder.iterdir()) == []
    place.remove(key)  # there is none


def test_removing_a_folder_leaves_what_others_named_alike(tmp_path: Path) -> None:
    """As Ray does beside a user's files, when its run made a collection and was refused."""
    (tmp_path / "papers.faiss").mkdir()
    kept = sorted(("papers.faiss.removed", ".papers.faiss.removed", ".papers.faiss.mine.removed"))
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".papers.faiss.0123abcd.removed").mkdir()  # of a call that was killed
    remove_folder(tmp_path / "papers.faiss")
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    remove_folder(tmp_path / "nowhere" / "papers.faiss")

"""Values that are given count as given, and wrong ones are told: ids that are numbers, NumPy's metadata, "", 0."""

import copy
import decimal
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from brute_force_store import BruteForceStore
from qdrant_client import QdrantClient
from sqlite_store import SqliteStore
from tiny import tiny_cde_model

from cde_rag import Collection, ContextualEmbedder, Record
from cde_rag.adoption import QdrantCollection, adopt
from cde_rag.collection.tenants import Tenants
from cde_rag.errors import ContextMissingError, CorpusError, ModelError
from cde_rag.indexing.canary import Canary
from cde_rag.models.runtimes import runtime_choice
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant.contexts import read_context, write_context
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_stores import FolderTenants

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
EMBEDDER = ContextualEmbedder.from_corpus(["river bank", "money loan"], model=tiny_cde_model(), context_size=2)
KINDS: dict[str, Callable[[Path], Store]] = {
    "faiss": lambda folder: FaissStore(folder / "papers.faiss"),
    "edge": lambda folder: QdrantEdgeStore(folder / "papers.qdrant"),
    "qdrant": lambda _: QdrantStore(QdrantClient(":memory:"), "papers"),
    "tables": lambda folder: SqliteStore(folder / "papers.sqlite"),
}


@pytest.fixture(params=KINDS)
def papers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collection]:
    with Collection.create(KINDS[request.param](tmp_path), EMBEDDER) as papers:
        papers.add(["river bank", "money loan"], ids=["1", "2"])
        yield papers


IDS: dict[str, Callable[[Collection, Any], object]] = {
    "get": lambda papers, id_: papers.get([id_]),
    "delete": lambda papers, id_: papers.delete([id_]),
    "get of the store": lambda papers, id_: papers.store.get(["1", id_]),
    "delete of the store": lambda papers, id_: papers.store.delete([id_]),
    "vectors": lambda papers, id_: papers.store.vectors([id_], fingerprint=EMBEDDER.fingerprint),
    "update_metadata": lambda papers, id_: papers.store.update_metadata({id_: {}}),
    "Canary": lambda _, id_: Canary({"river": [id_]}),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call", IDS)
def test_ids_are_strings(papers: Collection, call: str) -> None:
    for id_ in (1, None, b"1", np.int64(1)):
        with pytest.raises(TypeError, match=r"takes ids that are strings, and was given .* at position"):
            IDS[call](papers, id_)
    assert papers.count() == 2


@pytest.mark.usefixtures("unchecked")
def test_ids_of_records_are_strings(papers: Collection) -> None:
    with pytest.raises(CorpusError, match=r"Record 1 \(7\): its id has to be a str, found int; give str\(…\) of it\."):
        papers.add(["one", "two"], ids=["a", 7])  # type: ignore[list-item]
    vectors = EMBEDDER.embed_documents(["one"])
    for record in (Record(7, "one"), Record("7", 1), Record("7", "one", None)):  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match=r"expected a .* of type str"):
            papers.store.add([Row(record, "")], vectors, fingerprint=EMBEDDER.fingerprint)
    assert papers.count() == 2


def test_numpys_metadata_are_taken_as_they_are(papers: Collection) -> None:
    given = {
        "i": np.int64(3),
        "f": np.float32(0.1),
        "d": np.float64(0.5),
        "b": np.bool_(True),
        "s": np.str_("x"),
        "a": np.array([[1, 2]]),
        "in": [{"u": np.uint8(255)}],
    }
    exact = {"i": 3, "f": float(np.float32(0.1)), "d": 0.5, "b": True, "s": "x", "a": [[1, 2]], "in": [{"u": 255}]}
    papers.add(["river"], ids=["3"], metadata=[given])
    assert papers.get(["3"])[0].metadata == exact
    assert papers.count({"i": 3, "b": True}) == 1
    papers.store.update_metadata({"1": given})
    assert papers.store.get(["1"])[0].record.metadata == exact
    papers.store.add(
        [Row(Record("1", "river", "", given), "")],
        EMBEDDER.embed_documents(["river"]),
        fingerprint=EMBEDDER.fingerprint,
    )
    assert papers.store.get(["1"])[0].record.metadata == exact


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"year\.of is nan, which JSON does not have; leave it out or give None"),
        (np.float32("inf"), r"year\.of is inf"),
        (np.array([1.0, np.nan]), r"year\.of is nan"),
        ({1, 2}, r"year\.of is of the type set, .*give a list, which has an order"),
        (date(2020, 1, 1), r"year\.of is of the type date, .*isoformat"),
        (np.datetime64("2020-01-01"), r"year\.of is of the type date, .*isoformat"),
        (decimal.Decimal("1.5"), r"year\.of is of the type Decimal, .*give a number or a str"),
        (uuid.UUID(int=1), r"year\.of is of the type UUID, .*give str\(…\) of it"),
        (Path("a"), r"year\.of is of the type \w*Path, .*give str\(…\) of it"),
        (pd.NaT, r"year\.of is of the type NaTType, .*leave it out or give None"),
        (pd.NA, r"year\.of is of the type NAType, .*leave it out or give None"),
        (b"x", r"year\.of is of the type bytes, .*give a str"),
        (object(), r"year\.of is of the type object, .*leave it out"),
        ({1: 2}, "the key 1 is not a string"),
    ],
)
def test_other_metadata_names_the_record_and_the_field(value: object, message: str) -> None:
    papers = Collection.create(BruteForceStore(), EMBEDDER)
    with pytest.raises(CorpusError, match=rf"Record 1 \('b'\): its metadata has to be a JSON object: {message}"):
        papers.add(["river", "boat"], ids=["a", "b"], metadata=[{}, {"year": {"of": value}}])
    assert papers.count() == 0


@pytest.mark.parametrize("work", [copy.copy, copy.deepcopy, lambda one: one.__reduce_ex__(4)])
def test_what_is_of_one_process_is_not_pickled(
    papers: Collection, work: Callable[[object], object], tmp_path: Path
) -> None:
    tenants = Tenants.create(FolderTenants(tmp_path / "tenants", FaissStore), EMBEDDER, tenant_key="who")
    for each in (papers, papers.store, papers.searcher("words"), tenants):
        with pytest.raises(
            TypeError, match=rf"A {type(each).__name__} cannot be pickled or copied: .*Collection\.open"
        ):
            work(each)
    tenants.close()


def _foreign() -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection("theirs", vectors_config={})
    write_context(client, "theirs", b"context", fingerprint="a" * 64)
    return client


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda folder: FaissStore(folder, index=""), ValueError, "index: expected one of"),
        (lambda folder: FaissStore(folder, quantization=""), ValueError, "quantization: expected"),
        (lambda _: read_context(_foreign(), "theirs", ""), ContextMissingError, "found none of that name"),
        (lambda _: adopt(QdrantCollection(_foreign(), "theirs", "text"), model=""), ModelError, "model"),
        (lambda _: Collection.create(BruteForceStore(), EMBEDDER, headers=""), TypeError, "a list of metadata keys"),
        (lambda _: Collection.create(BruteForceStore(), EMBEDDER, parent_key=""), ValueError, "parent_key is empty"),
        (lambda _: runtime_choice.asked(""), ModelError, "Expected the runtime .*, found ''"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_empty_value_is_not_the_default(
    call: Callable[[Path], object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        call(tmp_path / "papers.faiss")


def test_an_empty_model_is_not_the_stored_one(tmp_path: Path) -> None:
    Collection.create(FaissStore(tmp_path / "papers.faiss"), EMBEDDER).close()
    with pytest.raises(ModelError):
        Collection.open(tmp_path / "papers.faiss", model="")


@pytest.mark.parametrize("k", [0, -1])
def test_no_hits_are_not_the_default_number(papers: Collection, k: int) -> None:
    for search in (papers.search, papers.searcher("words").search, papers.search_diverse):
        with pytest.raises(ValueError, match="k must be at least 1"):
            cast("Any", search)("river", k)

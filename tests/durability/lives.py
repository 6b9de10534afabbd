"""One life of a collection, in operations that may be cut short anywhere, and what a store holds after each of them.

The texts have vectors that no model makes: each space has dimensions of its own, so that one vector of another space
scores 0 and changes the ten best.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cde_rag import records as intake
from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.context.identity import ModelIdentity
from cde_rag.embedders.active import stored_context
from cde_rag.embedders.protocol import Embedded, EmbedderOptions
from cde_rag.indexing import backfill as runs
from cde_rag.indexing import made_vectors
from cde_rag.indexing.upsert import Progress
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss import engine as faiss_engine
from cde_rag.stores.postgres import PgTenants, PgVectorStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_stores import FolderTenants, TenantStores

PART = 8  # records that are written together
WIDTH = 12  # dimensions of each space
SPACES = 3
DIM = WIDTH * SPACES
KINDS = ("hnsw", "ivf int8", "edge")  # all but the last are kinds of index of a FaissStore; flat ones have less
IDENTITY = ModelIdentity(
    name="stub",
    weights_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    attention="one_way",
    semantics="stub",
    roles="vector",
    prefixes={"query": "", "document": ""},
    max_length=0,
    pooling="mean",
    normalisation="unit",
    dim=DIM,
)


class StubEmbedder:
    """A direction for each text, the same in every process; no vector of one space scores anything in another."""

    max_siblings = 0
    options = EmbedderOptions(device="cpu")
    dim = DIM

    def __init__(self, space: int) -> None:
        self.space = space
        made = Context.create(
            IDENTITY,
            [f"document of space {space}"],
            np.zeros((1, DIM), np.float32),
            sampling="random",
            seed=space,
            documents_seen=1,
        )
        manifest = dataclasses.replace(made.manifest, created="2026-01-01T00:00:00+00:00")
        self.context = dataclasses.replace(made, manifest=manifest)

    @property
    def fingerprint(self) -> str:
        return self.context.fingerprint

    def embed_documents(self, texts: Sequence[str], *, parents: Any = None, progress: bool = False) -> np.ndarray:
        return self.embed_queries(texts)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), DIM), np.float32)
        for row, text in enumerate(texts):
            vectors[row, self.space * WIDTH : (self.space + 1) * WIDTH] = direction(text)
        return vectors

    def embed_passages(self, texts: Sequence[str], siblings: Any, *, progress: bool = False) -> Embedded:
        return Embedded(self.embed_queries(texts), np.zeros(len(texts), np.bool_))

    def count_tokens(self, texts: Sequence[str]) -> int:
        return len(texts)

    def with_context(self, context: Context) -> "StubEmbedder":
        return stub(context.manifest.seed)


@functools.cache
def stub(space: int) -> StubEmbedder:
    return StubEmbedder(space)


@functools.lru_cache(10_000)
def direction(text: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(WIDTH)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def opened(store: Store) -> Collection:
    return Collection(store, stub(stored_context(store).manifest.seed))


# The life


def record(number: int, version: str = "first", **more: Any) -> Record:
    return Record(f"d{number}", f"{version} text of {number}", metadata={"n": number, "odd": bool(number % 2), **more})


@dataclass(frozen=True)
class Operation:
    """Calls on a collection, which made again finish what was cut short.

    Attributes:
        name: What it is called.
        puts: Records as they are added.
        deletes: Ids.
        moves_to: Space of the new context.
        back: Whether it goes back to the space before, which is `moves_to`.
        later: Whether records wait for their vectors.
        asks: Queries, whose searches make vectors of records that wait.
        fills: Whether it makes the vectors of all.
    """

    name: str
    puts: tuple[Record, ...] = ()
    deletes: tuple[str, ...] = ()
    moves_to: int | None = None
    back: bool = False
    later: bool = False
    asks: tuple[str, ...] = ()
    fills: bool = False

    def do(self, store: Store, on_progress: Callable[[Progress], None]) -> None:
        if not store.exists():
            Collection.create(store, stub(0))
        collection = opened(store)
        embed = "later" if self.later else "first"
        if self.puts:
            collection.add_records(self.puts, embed=embed, on_progress=on_progress)
        if self.deletes:
            collection.delete(list(self.deletes))
        if self.moves_to is not None:
            if not self.back:
                collection.recontextualize(embedder=stub(self.moves_to), embed=embed, on_progress=on_progress)
            elif store.manifest().fingerprint != stub(self.moves_to).fingerprint:
                collection.rollback(on_progress=on_progress)
        for query in self.asks:
            collection.search(query)
        if self.fills:
            collection.embed_pending(on_progress=on_progress)

    def parts(self) -> list[list[str]]:
        """Ids that are written together, in the order in which that is done."""
        put = [[one.id for one in self.puts[start : start + PART]] for start in range(0, len(self.puts), PART)]
        return put + [list(self.deletes[start : start + PART]) for start in range(0, len(self.deletes), PART)]


LIFE = (
    Operation("index", puts=tuple(record(number) for number in range(44))),
    Operation(
        "add",
        puts=(
            *(record(number) for number in range(44, 54)),
            *(record(number, "another") for number in range(0, 40, 5)),
            *(record(number, new=True) for number in (1, 3, 6, 8, 11)),
            *(record(number) for number in (4, 7, 12, 13)),
        ),
    ),
    Operation("delete", deletes=("d1", "d5", *(f"d{number}" for number in range(20, 32)), "d50", "unknown")),
    Operation("recontextualize", moves_to=1),
    Operation(
        "change",
        puts=(*(record(number) for number in range(60, 67)), record(2, "third"), record(51, "third"), record(7, x=1)),
        deletes=("d3", "d9"),
    ),
    Operation("rollback", moves_to=0, back=True),
    Operation("recontextualize anew", moves_to=2),
)
WAITING = (
    Operation("index later", puts=tuple(record(number) for number in range(44)), later=True),
    Operation("ask", asks=("first text of 7", "text of 30", "another")),
    Operation(
        "add later",
        puts=(
            *(record(number) for number in range(44, 54)),
            *(record(number, "another") for number in range(0, 40, 5)),
            *(record(number, new=True) for number in (1, 3, 6, 8, 11)),
        ),
        deletes=("d2", "d40"),
        later=True,
    ),
    Operation("move and leave waiting", moves_to=1, later=True),
    Operation("recontextualize what waits", moves_to=2),
    Operation("change later", puts=tuple(record(number, "third") for number in range(0, 54, 3)), later=True),
    Operation("fill", fills=True),
)
BY_NAME = {operation.name: operation for operation in (*LIFE, *WAITING)}


def expected_records(operations: Sequence[Operation]) -> dict[str, Record]:
    """The obvious way: a dictionary, which keeps a replaced record's place as a store does."""
    held: dict[str, Record] = {}
    for operation in operations:
        held.update({one.id: one for one in operation.puts})
        for id_ in operation.deletes:
            held.pop(id_, None)
    return held


def space_after(operations: Sequence[Operation]) -> int:
    return next((one.moves_to for one in reversed(operations) if one.moves_to is not None), 0)


def nothing(_: object) -> None:
    pass


@contextlib.contextmanager
def small_parts() -> Iterator[None]:
    """Few records at once, and vector files that are written anew early, so that a short life has all there is."""
    with (
        mock.patch.multiple(intake, CHUNK=PART, LONGEST_CHUNK=PART),
        mock.patch.multiple(made_vectors, LARGEST_WRITE=PART),
        mock.patch.multiple(runs, ROWS_AT_ONCE=2 * PART, LAST_ROWS=PART),
        mock.patch.multiple(faiss_engine, _DEAD=PART),
    ):
        yield


def store_at(kind: str, folder: Path) -> Store:
    if kind == "edge":
        return QdrantEdgeStore(folder, flat_rows=32)
    if kind == "postgres":
        return PgVectorStore(os.environ["CDE_POSTGRES"], _schema(folder))
    index, _, quantization = kind.partition(" ")
    return FaissStore(folder, index=index, quantization=quantization or None)


def tenants_at(kind: str, folder: Path) -> TenantStores:
    if kind == "postgres":
        return PgTenants(os.environ["CDE_POSTGRES"], _schema(folder))
    return FolderTenants(folder, functools.partial(store_at, kind))


def _schema(folder: Path) -> str:
    return f"life_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"

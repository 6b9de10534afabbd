"""An engine without an index: the calls of `Session`, over three tables of bytes.

A new kind of store inherits `ExactEngine`, which needs three calls, and `ExactSession`, which needs nine that move
bytes. `Store` over it has records, filters, generations, search by vectors and by words, checksums and `verify`. A
search compares a query with every vector, which is exact and takes time in proportion to their number; a session with
an index overrides `nearest`, and gets a vector from its bytes by `read_vector`. `count`, `sample` and `count_vectors`
read all rows, too. Long because each call says what a guest's engine may rely on.

blobs      name → bytes: the manifest, and for each generation a Context and its checksum
records    id → bytes: title, text and metadata, in order of insertion
vectors    generation, id → the digest and the bytes of a vector

Names that a subclass adds must not be those of the base class, whose private names are `_put`, `_put_context`, `_all`,
`_placed` and `_matching` in a session, and `_place` and `_opened` in an engine.
"""

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.base import Damage
from cde_rag.stores.checks import MOST_ROWS, checksum_of, encodable_ids
from cde_rag.stores.engine import Found, Place, Placed, Result, Session, Version
from cde_rag.stores.filter_conditions import Filter, holds
from cde_rag.stores.manifests import PENDING, GenerationRow, StoredManifest
from cde_rag.stores.text_analysis import K1, B, analyzer_of, with_newest

FORMAT: Final = 1
_MANIFEST: Final = "manifest"

Access: TypeAlias = Literal["read", "write", "create"]


class RecordRow(NamedTuple):
    """A record as a table keeps it.

    Attributes:
        place: Ascends in order of insertion, from 1 on, with or without gaps. It stays when the record is replaced, and
            is not given to another record after the record is deleted: keep a counter, not the maximum of the places.
        id: The record's id.
        data: Opaque bytes.
    """

    place: int
    id: str
    data: bytes


class VectorRow(NamedTuple):
    """A vector as a table keeps it; both parts are opaque, and the digest may be empty."""

    digest: str
    data: bytes


@dataclass(frozen=True)
class TableManifest(StoredManifest[GenerationRow]):
    """Manifest of a store in three tables, a blob with its checksum first."""

    settings: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Serialise it."""
        body = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return checksum_of(body) + body

    @classmethod
    def from_bytes(cls, data: bytes | None) -> "TableManifest":
        """Parse the output of `to_bytes`.

        Raises:
            StoreFormatError: Damaged, not there, or of a newer format.
        """
        if data is None or checksum_of(data[32:]) != data[:32]:
            raise StoreFormatError("manifest: expected it as it was written, found other bytes. Restore a copy.")
        fields: dict[str, Any] = json.loads(data[32:])
        if fields.pop("format") > FORMAT:
            raise StoreFormatError(f"manifest: expected format {FORMAT} or older, found a newer one. Update cde-rag.")
        fields["generations"] = tuple(GenerationRow(*state) for state in fields["generations"])
        return cls(**fields)


class ExactSession(ABC):
    """Implements `cde_rag.stores.engine.Session` over nine calls on tables, which are inside one transaction.

    A call sees the writes of earlier calls of its session. Ids and digests are any text that UTF-8 encodes, also with
    quotes and NUL, and are equal only if their code points are. Sequences and mappings may be empty or very long; an
    engine splits them where its statements have a limit. Errors of the database are raised as `StoreError`.

    BM25 is over all records: for each word of the query, as often as it comes,
    `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, where f is how often the record has it, l how many words
    the record has, and `idf = ln(1 + (N − n + 0.5) / (n + 0.5))` of N records with words and n with this one.
    """

    run: Hashable = None

    @abstractmethod
    def blob(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None. Most calls read the manifest, so a session may cache it."""

    @abstractmethod
    def put_blob(self, name: str, data: bytes | None) -> None:
        """Write or replace the bytes of a name; None removes them. A Context may have many megabytes."""

    @abstractmethod
    def records(self, ids: Sequence[str]) -> dict[str, RecordRow]:
        """Return the records of those ids that exist."""

    @abstractmethod
    def records_after(self, place: int, limit: int) -> list[RecordRow]:
        """Return up to `limit` records whose place is above `place`, in order of place; `limit` may be 2³¹ - 1."""

    @abstractmethod
    def put_records(self, records: Mapping[str, bytes]) -> None:
        """Append records in their order here, or replace the data of those that exist, which keep their place."""

    @abstractmethod
    def delete_records(self, ids: Sequence[str]) -> None:
        """Remove records, and their vectors of all generations."""

    @abstractmethod
    def vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> dict[str, VectorRow]:
        """Return the vectors of a generation by id: those that exist of the given ids, or all."""

    @abstractmethod
    def put_vector_rows(self, generation: int, vectors: Mapping[str, VectorRow]) -> None:
        """Write or replace vectors of a generation."""

    @abstractmethod
    def delete_vector_rows(self, generation: int, ids: Sequence[str] | None = None) -> None:
        """Remove vectors of a generation: those that exist of the given ids, or all for None (none for no ids)."""

    @property
    def manifest(self) -> TableManifest:
        """The manifest."""
        return TableManifest.from_bytes(self.blob(_MANIFEST))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the collection."""
        return self.manifest.settings

    def context(self, generation: int) -> bytes:
        """Return the bytes of a generation's Context."""
        data, written = self.blob(f"context-{generation}"), self.blob(f"checksum-{generation}")
        if data is None or written not in (None, checksum_of(data)):  # older versions wrote no checksum
            found = "none" if data is None else "other bytes"
            wanted = f"the context of generation {generation} as it was written"
            raise StoreFormatError(f"Expected {wanted}, found {found}. Restore a copy.")
        return data

    def get(self, ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows of those ids that exist."""
        return {row.record.id: row for _, row in self._placed(self.records(encodable_ids(ids)).values())}

    def scan(self, where: Filter | None, *, after: Place, limit: int) -> list[Placed]:
        """Return matching rows after a place."""
        place, found = after[0], list[RecordRow]()
        while len(found) < limit and (page := self.records_after(place, limit)):
            found += [one for one in page if where is None or holds(where, read_record(one).metadata)]
            place = page[-1].place
        return self._placed(found[:limit])

    def last_place(self) -> int:
        """Return the place of the last record."""
        return max((one.place for one in self._all()), default=0)

    def count(self, where: Filter | None) -> int:
        """Count the matching records."""
        return sum(where is None or holds(where, read_record(one).metadata) for one in self._all())

    def sample(self, count: int, seed: int | None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        stored = self._all()
        count = min(count, len(stored))
        if seed is None:
            places = [number * len(stored) // count for number in range(count)]
        else:
            places = sorted(Random(seed).sample(range(len(stored)), count))
        return [row for _, row in self._placed([stored[place] for place in places])]

    def versions(self, ids: Sequence[str]) -> dict[str, Version]:
        """Return the versions of those ids that exist."""
        there, none = self.records(encodable_ids(ids)), VectorRow("", b"")
        held = self.vector_rows(self.manifest.active, list(there))
        return {id_: Version(id_, held.get(id_, none).digest) for id_ in there}

    def vectors(self, generation: int, ids: Sequence[str]) -> dict[str, Float32[np.ndarray, " dim"]]:
        """Return vectors by id."""
        held = self.vector_rows(generation, encodable_ids(ids))
        return {id_: read_vector(vector, id_) for id_, vector in held.items()}

    def count_vectors(self, generation: int) -> int:
        """Count the vectors of a generation."""
        return len(self.vector_rows(generation))

    def lacking(self, generation: int, *, after: str | None, limit: int) -> list[Row]:
        """Return rows without a vector in a generation."""
        last = None if after is None else self.records(encodable_ids([after])).get(after)
        place, missing = 0 if last is None else last.place, list[RecordRow]()
        while len(missing) < limit and (page := self.records_after(place, limit)):
            held = self.vector_rows(generation, [one.id for one in page])
            missing += [one for one in page if one.id not in held]
            place = page[-1].place
        return [row for _, row in self._placed(missing[:limit])]

    def nearest(
        self,
        generation: int,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        where: Filter | None,
        *,
        complete: bool,  # noqa: ARG002  # the records were read for the filter
    ) -> list[list[Found]]:
        """Compare each query with every vector."""
        held = self.vector_rows(generation)
        records = [record for record in self._matching(where) if record.id in held]
        vectors = [read_vector(held[record.id], record.id) for record in records]
        matrix = np.array(vectors, np.float64).reshape(-1, self.manifest.dim)
        return [_nearest(records, matrix, query, k) for query in queries]

    def matching(
        self,
        queries: Sequence[str],
        k: int,
        where: Filter | None,
        *,
        complete: bool,  # noqa: ARG002
    ) -> list[list[Found]]:
        """Count the words of every record."""
        analyzer, records = analyzer_of(self.settings), list(self._matching(None))
        counts = [Counter(analyzer.record_terms(record)) for record in records]
        kept = [where is None or holds(where, record.metadata) for record in records]
        having = Counter(word for count in counts for word in count)
        lengths = [length for count in counts if (length := count.total())]
        mean = sum(lengths) / max(1, len(lengths))
        weights = (_weights(analyzer.terms(query), len(lengths), having) for query in queries)
        return [_best(records, counts, kept, each, mean, k) for each in weights]

    def found(self, keys: Sequence[Any]) -> list[Record]:
        """Return records by id."""
        stored = self.records(list(keys))
        return [read_record(stored[key]) for key in keys]

    def put(
        self,
        records: Sequence[tuple[Record, str]],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"] | None,
    ) -> None:
        """Insert or replace records and their vectors."""
        self.put_records({record.id: pack_record(record, metadata) for record, metadata in records})
        new = {record.id: digest for (record, _), digest in zip(records, digests, strict=True)}
        manifest = self.manifest
        for state in manifest.generations:
            if state.number != manifest.active:
                held = self.vector_rows(state.number, list(new))
                self.delete_vector_rows(state.number, [id_ for id_, one in held.items() if one.digest != new[id_]])
        if vectors is None:
            self.delete_vector_rows(manifest.active, list(new))
        else:
            self.put_vector_rows(manifest.active, pack_vectors(new, vectors))

    def put_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of records."""
        found = self.records(encodable_ids(metadata))
        old = {id_: read_record(found[id_]) for id_ in metadata}  # KeyError for an unknown id
        self.put_records({id_: pack_record(record, metadata[id_]) for id_, record in old.items()})

    def delete(self, ids: Sequence[str]) -> int:
        """Remove records."""
        there = list(self.records(encodable_ids(ids)))
        self.delete_records(there)
        return len(there)

    def put_vectors(
        self,
        generation: int,
        versions: Sequence[Version],
        digests: Sequence[str],
        vectors: Float32[np.ndarray, "rows dim"],
    ) -> int:
        """Write vectors of a generation."""
        new = {version.key: digest for version, digest in zip(versions, digests, strict=True)}
        self.put_vector_rows(generation, pack_vectors(new, vectors))
        return len(versions)

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        self._put(replace(self.manifest, settings=dict(settings)))

    def index_texts(self) -> None:
        """Move to the newest analyzer; search by words reads the records themselves."""
        self.put_settings(with_newest(self.settings))

    def begin(self, fingerprint: str, context: bytes) -> int:
        """Add a generation."""
        manifest, number = self.manifest, self.manifest.last + 1
        states = (*manifest.generations, GenerationRow(number, fingerprint))
        self._put(replace(manifest, last=number, generations=states))
        self._put_context(number, context)
        return number

    def activate(self, generation: int) -> None:
        """Make a generation the active one."""
        self._put(replace(self.manifest, active=generation))

    def drop(self, generation: int) -> None:
        """Remove a generation."""
        manifest = self.manifest
        states = tuple(state for state in manifest.generations if state.number != generation)
        self._put(replace(manifest, generations=states))
        self.delete_vector_rows(generation)
        self._put_context(generation, None)

    def _put(self, manifest: TableManifest) -> None:
        self.put_blob(_MANIFEST, manifest.to_bytes())

    def _put_context(self, generation: int, context: bytes | None) -> None:
        self.put_blob(f"context-{generation}", context)
        self.put_blob(f"checksum-{generation}", None if context is None else checksum_of(context))

    def _all(self) -> list[RecordRow]:
        return self.records_after(0, MOST_ROWS)

    def _placed(self, stored: Iterable[RecordRow]) -> list[Placed]:
        """Return records with the digests of their vectors in the active generation."""
        stored = list(stored)
        held = self.vector_rows(self.manifest.active, [one.id for one in stored])
        digests = {id_: vector.digest for id_, vector in held.items()}
        return [Placed((one.place, ""), Row(read_record(one), digests.get(one.id, ""))) for one in stored]

    def _matching(self, where: Filter | None) -> Iterator[Record]:
        for stored in self._all():
            record = read_record(stored)
            if where is None or holds(where, record.metadata):
                yield record


class ExactEngine(ABC):
    """Implements `cde_rag.stores.engine.Engine` over three calls.

    Args:
        place: Names the collection in messages.
    """

    def __init__(self, place: object) -> None:
        self._place = place

    def __str__(self) -> str:
        return str(self._place)

    @abstractmethod
    def exists(self) -> bool:
        """Return True if a "create" was committed at this place. It makes nothing, and other calls check it first.

        Raises:
            StoreError: The place cannot be read.
        """

    @abstractmethod
    def session(self, access: Access) -> AbstractContextManager[ExactSession]:
        """Open the tables for one transaction. Threads and processes have sessions of one place at the same time.

        Args:
            access: "read" sees the last committed state throughout, and waits for no writer. "write" also waits for
                other writers and excludes them. It is atomic, and durable against loss of power, when the block ends;
                if the block raises, it is undone and the error is raised unchanged. "create" is "write" on tables
                that it makes first, with the folders above, where they are missing; they may be there already, by
                another process or a "create" that was killed. The tables are made before `dim` is known.

        Raises:
            StoreError: The place cannot be read or written.
        """

    @abstractmethod
    def lease(self) -> AbstractContextManager[None]:
        """Hold the only right to work on generations, until the block ends or the process does.

        It does not wait. It excludes every other `lease` of the place, also of this engine, but no session.

        Raises:
            StoreError: Another run holds it; the message contains "another". Or the store is not writable.
        """

    def close(self) -> None:  # noqa: B027  # an engine without files or connections has nothing to release
        """Release files, locks and connections; later calls take them again."""

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make an empty store with generation 1 active."""
        taken = StoreError(f"{self}: expected no store, found one: open it, or choose another place.")
        if self.exists():
            raise taken
        with self.session("create") as session:
            if session.blob(_MANIFEST) is not None:
                raise taken
            manifest = TableManifest(dim, 1, 1, (GenerationRow(1, fingerprint),), dict(settings))
            session.put_blob(_MANIFEST, manifest.to_bytes())
            session.put_blob("context-1", context)
            session.put_blob("checksum-1", checksum_of(context))

    def read(self, work: Callable[[Session], Result], *, once: bool = False) -> Result:  # noqa: ARG002
        """Call a function with one state of the store."""
        with self._opened("read") as session:
            return work(session)

    def write(self, work: Callable[[Session], Result], *, wait: bool = True) -> Result:  # noqa: ARG002
        """Call a function in one transaction, which waits for other writers."""
        with self._opened("write") as session:
            return work(session)

    def verify(self) -> list[Damage]:
        """Compare every Context, record and vector with its checksum."""
        damages: list[Damage] = []
        with self._opened("read") as session:
            manifest, stored = session.manifest, session.records_after(0, MOST_ROWS)
            for one in stored:
                damages += _damage(one.id, partial(read_record, one))
            for number, _ in manifest.generations:
                damages += _damage(f"context of generation {number}", partial(session.context, number))
                held = session.vector_rows(number)
                for id_, vector in held.items():
                    damages += _damage(f"{id_}, generation {number}", partial(read_vector, vector, id_))
                if number == manifest.active and PENDING not in manifest.settings:
                    lacking = [one.id for one in stored if one.id not in held]
                    damages += [Damage(id_, "expected a vector, found none.") for id_ in lacking]
        return damages

    def _opened(self, access: Access) -> AbstractContextManager[ExactSession]:
        if not self.exists():
            raise StoreError(f"{self}: expected a store, found none. Make one with Collection.create.")
        return self.session(access)


def pack_record(record: Record, metadata: str) -> bytes:
    """Return the bytes of a record, given with its metadata as JSON, with their checksum first."""
    body = json.dumps([record.title, record.text, json.loads(metadata)], ensure_ascii=False).encode()
    return checksum_of(record.id, body) + body


def read_record(stored: RecordRow) -> Record:
    """Return the record of a row.

    Raises:
        StoreFormatError: The bytes are not those that were written.
    """
    body = stored.data[32:]
    if checksum_of(stored.id, body) != stored.data[:32]:
        raise StoreFormatError(f"Record {stored.id!a:.80}: expected it as it was written, found other bytes.")
    title, text, metadata = json.loads(body)
    return Record(stored.id, text, title, metadata)


def pack_vectors(digests: Mapping[str, str], vectors: Float32[np.ndarray, "rows dim"]) -> dict[str, VectorRow]:
    """Return rows of vectors, which are in the order of `digests`, with their checksums."""
    rows: dict[str, VectorRow] = {}
    for (id_, digest), vector in zip(digests.items(), vectors, strict=True):
        body = np.ascontiguousarray(vector, "<f4").tobytes()
        rows[id_] = VectorRow(digest, checksum_of(id_, digest, body) + body)
    return rows


def read_vector(stored: VectorRow, id_: str) -> Float32[np.ndarray, " dim"]:
    """Return the vector of a row.

    Raises:
        StoreFormatError: The bytes are not those that were written.
    """
    body = stored.data[32:]
    if checksum_of(id_, stored.digest, body) != stored.data[:32]:
        raise StoreFormatError(f"Vector of {id_!a:.80}: expected it as it was written, found other bytes.")
    return np.frombuffer(body, "<f4")


def _nearest(
    records: Sequence[Record],
    matrix: Float64[np.ndarray, "records dim"],
    query: Float32[np.ndarray, " dim"],
    k: int,
) -> list[Found]:
    scores: list[float] = (matrix * query).sum(axis=1).tolist()  # row by row, so that equal vectors tie
    order = sorted(range(len(records)), key=lambda place: -scores[place])[:k]
    return [Found(records[place].id, scores[place], records[place]) for place in order]


def _damage(where: str, read: Callable[[], object]) -> list[Damage]:
    try:
        read()
    except StoreFormatError as error:
        return [Damage(where, str(error))]
    return []


def _weights(terms: Sequence[str], records: int, having: Mapping[str, int]) -> dict[str, float]:
    """Return the inverse document frequency of each term of a query, times its count."""
    times = Counter(terms)
    return {
        word: count * math.log(1 + (records - having[word] + 0.5) / (having[word] + 0.5))
        for word, count in times.items()
        if word in having
    }


def _best(
    records: Sequence[Record],
    counts: Sequence[Counter[str]],
    kept: Sequence[bool],
    weights: Mapping[str, float],
    mean: float,
    k: int,
) -> list[Found]:
    scores: dict[int, float] = {}
    for place, count in enumerate(counts):
        if kept[place] and (shared := weights.keys() & count.keys()):
            norm = K1 * (1 - B + B * count.total() / mean)
            scores[place] = sum(weights[word] * count[word] * (K1 + 1) / (count[word] + norm) for word in shared)
    best = sorted(scores, key=lambda place: -scores[place])[:k]
    return [Found(records[place].id, scores[place], records[place]) for place in best]

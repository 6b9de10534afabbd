"""A store over three tables, for databases that keep rows and bytes: the ready-made half of a new kind of store.

A new kind of store implements `Tables`, nine calls that move bytes, and three calls of `TableStore`: `exists`,
`transaction` and `lease`. It inherits records, filters, generations, search by vectors and by words, checksums and
`verify`. Search compares a query with every vector, which is exact and takes time in proportion to their number; a
store with an index overrides `search`. `count`, `sample` and `generations` read all rows, too, and so does the begin of
a `scroll`.
"""

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag._validation import check_ids, check_list
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.base import Completion, Damage, Hit, ProcessBound, Record, Row
from cde_rag.stores.checks import (
    MOST_ROWS,
    check_k,
    check_once,
    check_records,
    check_rows,
    check_unit,
    checksum_of,
    encodable_ids,
    encode,
)
from cde_rag.stores.filter_conditions import Filter, holds
from cde_rag.stores.filters import parse
from cde_rag.stores.manifests import Generation, GenerationRow, StoredManifest, StoreManifest, check_space
from cde_rag.stores.store_tables import RecordRow, Tables, pack_record, pack_vectors, read_record, read_vector
from cde_rag.stores.text_analysis import K1, B, analyzer_of, updated, with_newest

FORMAT: Final = 1
_MANIFEST: Final = "manifest"

Access: TypeAlias = Literal["read", "write", "create"]


@dataclass(frozen=True)
class _Manifest(StoredManifest[GenerationRow]):
    settings: dict[str, Any]

    def written(self) -> bytes:
        body = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return checksum_of(body) + body

    @classmethod
    def read(cls, data: bytes | None) -> "_Manifest":
        if data is None or checksum_of(data[32:]) != data[:32]:
            raise StoreFormatError("manifest: expected it as it was written, found other bytes. Restore a copy.")
        fields: dict[str, Any] = json.loads(data[32:])
        if fields.pop("format") > FORMAT:
            raise StoreFormatError(f"manifest: expected format {FORMAT} or older, found a newer one. Update cde-rag.")
        fields["generations"] = tuple(GenerationRow(*state) for state in fields["generations"])
        return cls(**fields)


class TableStore(ProcessBound, ABC):
    """A store whose calls are made of its tables' calls. Implements `cde_rag.stores.base.Store`.

    `search_text` is BM25 over all records: for each word of the query, as often as it comes,
    `idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · l / mean l))`, where f is how often the record has it, l how many words
    the record has, and `idf = ln(1 + (N − n + 0.5) / (n + 0.5))` of N records with words and n with this one.
    """

    @abstractmethod
    def exists(self) -> bool:
        """Return True if there is a store at this place."""

    @abstractmethod
    def transaction(self, access: Access) -> AbstractContextManager[Tables]:
        """Open the tables for one transaction.

        Args:
            access: "read" sees one state throughout; "write" also excludes other writers and is atomic and durable when
                the block ends, and undone where it raises; "create" is "write" on tables that it makes first.

        Raises:
            StoreError: The place cannot be read or written.
        """

    @abstractmethod
    def lease(self) -> AbstractContextManager[None]:
        """Hold the only right to work on generations, until the block ends or the process does.

        Raises:
            StoreError: Another run holds it.
        """

    def close(self) -> None:  # a store without files or connections has nothing to release
        """Release files, locks and connections; later calls take them again."""

    def create(self, *, dim: int, fingerprint: str, context: bytes, settings: Mapping[str, Any]) -> None:
        """Make an empty store with generation 1 active."""
        encode(settings, "The store's settings")
        if self.exists():
            raise StoreError(f"{self}: expected no store, found one: open it, or choose another place.")
        with self.transaction("create") as tables:
            if tables.blob(_MANIFEST) is not None:
                raise StoreError(f"{self}: expected no store, found one: open it, or choose another place.")
            _put(tables, _Manifest(dim, 1, 1, (GenerationRow(1, fingerprint),), dict(settings)))
            tables.put_blob("context-1", context)

    def manifest(self) -> StoreManifest:
        """Return dimensions, active generation and settings."""
        with self._opened("read") as tables:
            manifest = _manifest(tables)
        return StoreManifest(manifest.dim, manifest.serving.fingerprint, manifest.active, manifest.settings)

    def context(self, generation: int | None = None) -> bytes:
        """Return the bytes of a generation's Context."""
        with self._opened("read") as tables:
            manifest = _manifest(tables)
            number = manifest.active if generation is None else manifest.generation(generation).number
            data = tables.blob(f"context-{number}")
        if data is None:
            raise StoreFormatError(f"{self}: expected the context of generation {number}, found none.")
        return data

    def add(self, rows: Sequence[Row], vectors: Float32[np.ndarray, "rows dim"], *, fingerprint: str) -> None:
        """Insert or replace rows with their vectors in the active generation."""
        checked = check_records(row.record for row in rows)
        records = [replace(record, metadata=json.loads(encoded)) for record, encoded in checked]
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            check_space(manifest.serving, fingerprint)
            check_unit(vectors, len(rows), manifest.dim)
            tables.put_records({record.id: pack_record(record) for record in records})
            digests = {row.record.id: row.digest for row in rows}
            for state in manifest.generations:
                if state.number != manifest.active:
                    held = tables.vectors(state.number, list(digests))
                    stale = [id_ for id_, vector in held.items() if vector.digest != digests[id_]]
                    tables.delete_vectors(state.number, stale)
            tables.put_vectors(manifest.active, pack_vectors(digests, vectors))

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the metadata of records; vectors and digests stay."""
        check_ids(metadata, call="update_metadata")
        encoded = {id_: encode(new, f"Record {id_!a:.80}: its metadata") for id_, new in metadata.items()}
        with self._opened("write") as tables:
            found = tables.records(encodable_ids(metadata))
            old = {id_: read_record(found[id_]) for id_ in metadata}  # KeyError for an unknown id
            tables.put_records(
                {id_: pack_record(replace(record, metadata=json.loads(encoded[id_]))) for id_, record in old.items()}
            )

    def update_settings(self, changes: Mapping[str, Any]) -> None:
        """Add or replace settings of the collection."""
        encode(changes, "The store's settings")
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            _put(tables, replace(manifest, settings=updated(manifest.settings, changes)))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove rows from every generation; returns their number."""
        ids = check_ids(ids, call="delete")
        with self._opened("write") as tables:
            there = list(tables.records(encodable_ids(ids)))
            tables.delete_records(there)
        return len(there)

    def get(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of those ids that exist, in the order of `ids`."""
        ids = check_ids(ids, call="get")
        with self._opened("read") as tables:
            found = tables.records(encodable_ids(ids))
            rows = {row.record.id: row for row in self._rows(tables, found.values())}
        return [rows[id_] for id_ in ids if id_ in rows]

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of rows that match a filter."""
        condition = None if where is None else parse(where)
        with self._opened("read") as tables:
            return sum(1 for _ in _matching(tables, condition))

    def scroll(self, *, where: Mapping[str, Any] | None = None, page: int = 1000) -> Iterator[Row]:
        """Iterate over all rows that match a filter, in order of insertion."""
        page = check_rows(page, "page")
        return self._scrolled(None if where is None else parse(where), page)

    def sample(self, count: int, *, seed: int | None = None) -> list[Row]:
        """Return rows spread over the order of insertion."""
        count = check_rows(count, "count")
        with self._opened("read") as tables:
            stored = _scan(tables)
            count = min(count, len(stored))
            if seed is None:
                places = [number * len(stored) // count for number in range(count)]
            else:
                places = sorted(Random(seed).sample(range(len(stored)), count))
            return self._rows(tables, [stored[place] for place in places])

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        *,
        fingerprint: str,
        where: Mapping[str, Any] | None = None,
        generation: int | None = None,
    ) -> list[list[Hit]]:
        """Search a generation by the dot product with every vector."""
        condition, k = None if where is None else parse(where), check_k(k)
        with self._opened("read") as tables:
            manifest = _manifest(tables)
            state = manifest.serving if generation is None else manifest.generation(generation)
            check_space(state, fingerprint)
            check_unit(queries, len(queries), manifest.dim)
            held = tables.vectors(state.number)
            records = [record for record in _matching(tables, condition) if record.id in held]
        vectors = [read_vector(held[record.id], record.id) for record in records]
        matrix = np.array(vectors, np.float64).reshape(-1, manifest.dim)
        return [_nearest(records, matrix, query, k) for query in queries]

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """Search by words with BM25 over all records."""
        check_list(queries, call="search_text", what="queries")
        condition, k = None if where is None else parse(where), check_k(k)
        with self._opened("read") as tables:
            analyzer = analyzer_of(_manifest(tables).settings)
            records = list(_matching(tables, None))
        counts = [Counter(analyzer.record_terms(record)) for record in records]
        kept = [condition is None or holds(condition, record.metadata) for record in records]
        having = Counter(word for count in counts for word in count)
        lengths = [length for count in counts if (length := count.total())]
        mean = sum(lengths) / max(1, len(lengths))
        weights = (_weights(analyzer.terms(query), len(lengths), having) for query in queries)
        return [_best(records, counts, kept, each, mean, k) for each in weights]

    def index_texts(self) -> None:
        """Move to the newest analyzer; search by words reads the records themselves."""
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            _put(tables, replace(manifest, settings=with_newest(manifest.settings)))

    def vectors(self, ids: Sequence[str], *, fingerprint: str) -> Float32[np.ndarray, "ids dim"]:
        """Return the vectors of ids in the active generation."""
        ids = check_ids(ids, call="vectors")
        with self._opened("read") as tables:
            manifest = _manifest(tables)
            check_space(manifest.serving, fingerprint)
            held = tables.vectors(manifest.active, encodable_ids(ids))
        vectors = [read_vector(held[id_], id_) for id_ in ids]  # KeyError for an unknown id
        return np.array(vectors, np.float32).reshape(-1, manifest.dim)

    def generations(self) -> list[Generation]:
        """Return all generations, oldest first."""
        with self._opened("read") as tables:
            manifest = _manifest(tables)
            return [
                Generation(number, fingerprint, number == manifest.active, len(tables.vectors(number)))
                for number, fingerprint in manifest.generations
            ]

    def create_generation(self, *, fingerprint: str, context: bytes) -> int:
        """Begin an empty, inactive generation; returns its number."""
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            number = manifest.last + 1
            states = (*manifest.generations, GenerationRow(number, fingerprint))
            _put(tables, replace(manifest, last=number, generations=states))
            tables.put_blob(f"context-{number}", context)
        return number

    def lacking(self, generation: int, *, limit: int = 1000, after: Row | None = None) -> list[Row]:
        """Return rows that have no vector in an inactive generation."""
        limit = check_rows(limit, "limit")
        with self._opened("read") as tables:
            _manifest(tables).inactive(generation)
            last = None if after is None else tables.records(encodable_ids([after.record.id])).get(after.record.id)
            place, missing = 0 if last is None else last.place, list[RecordRow]()
            while len(missing) < limit and (page := tables.scan(place, limit)):
                held = tables.vectors(generation, [one.id for one in page])
                missing += [one for one in page if one.id not in held]
                place = page[-1].place
            return self._rows(tables, missing[:limit])

    def add_to_generation(
        self, generation: int, rows: Sequence[Row], digests: Sequence[str], vectors: Float32[np.ndarray, "rows dim"]
    ) -> int:
        """Give rows their vectors in an inactive generation; returns the number of rows that were as they were read."""
        check_once(rows)
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            manifest.inactive(generation)
            check_unit(vectors, len(rows), manifest.dim)
            now = tables.vectors(manifest.active, [row.record.id for row in rows])
            same = [
                place
                for place, row in enumerate(rows)
                if row.record.id in now and now[row.record.id].digest == row.digest
            ]
            new = {rows[place].record.id: digests[place] for place in same}
            tables.put_vectors(generation, pack_vectors(new, vectors[same]))
        return len(same)

    def activate(self, generation: int, *, last: Completion | None = None) -> None:
        """Make a generation the active one, in one transaction with the vectors of its last rows."""
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            manifest.inactive(generation)
            held, stored = tables.vectors(generation), _scan(tables)
            missing = [one for one in stored if one.id not in held]
            if missing and last is not None:
                digests, vectors = last(self._rows(tables, missing))
                check_unit(vectors, len(missing), manifest.dim)
                new = {one.id: digest for one, digest in zip(missing, digests, strict=True)}
                tables.put_vectors(generation, pack_vectors(new, vectors))
            elif missing:
                raise StoreError(
                    f"Expected vectors of generation {generation} for {len(stored)} records, found "
                    f"{len(stored) - len(missing)}. Add the lacking ones first."
                )
            _put(tables, replace(manifest, active=generation))

    def drop(self, generation: int) -> None:
        """Remove an inactive generation and its vectors."""
        with self._opened("write") as tables:
            manifest = _manifest(tables)
            manifest.inactive(generation)
            states = tuple(state for state in manifest.generations if state.number != generation)
            _put(tables, replace(manifest, generations=states))
            tables.delete_vectors(generation)
            tables.put_blob(f"context-{generation}", None)

    def verify(self) -> list[Damage]:
        """Compare every record and vector with its checksum."""
        damages: list[Damage] = []
        with self._opened("read") as tables:
            manifest, stored = _manifest(tables), _scan(tables)
            for one in stored:
                damages += _damage(one.id, partial(read_record, one))
            for number, _ in manifest.generations:
                held = tables.vectors(number)
                for id_, vector in held.items():
                    damages += _damage(f"{id_}, generation {number}", partial(read_vector, vector, id_))
                if number == manifest.active:
                    lacking = [one.id for one in stored if one.id not in held]
                    damages += [Damage(id_, "expected a vector, found none.") for id_ in lacking]
        return damages

    def _opened(self, access: Access) -> AbstractContextManager[Tables]:
        if not self.exists():
            raise StoreError(f"{self}: expected a store, found none. Make one with Collection.create.")
        return self.transaction(access)

    def _rows(self, tables: Tables, stored: Iterable[RecordRow]) -> list[Row]:
        """Return records with the digests of their vectors in the active generation."""
        stored = list(stored)
        held = tables.vectors(_manifest(tables).active, [one.id for one in stored])
        return [Row(read_record(one), held[one.id].digest if one.id in held else "") for one in stored]

    def _scrolled(self, where: Filter | None, page: int) -> Iterator[Row]:
        with self._opened("read") as tables:
            last = max((one.place for one in _scan(tables)), default=0)
        after = 0
        while after < last:
            with self._opened("read") as tables:
                stored = [one for one in tables.scan(after, page) if one.place <= last]
                rows = self._rows(tables, stored)
            yield from (row for row in rows if where is None or holds(where, row.record.metadata))
            after = stored[-1].place if stored else last


def _manifest(tables: Tables) -> _Manifest:
    return _Manifest.read(tables.blob(_MANIFEST))


def _put(tables: Tables, manifest: _Manifest) -> None:
    tables.put_blob(_MANIFEST, manifest.written())


def _scan(tables: Tables) -> list[RecordRow]:
    return tables.scan(0, MOST_ROWS)


def _matching(tables: Tables, where: Filter | None) -> Iterator[Record]:
    for stored in _scan(tables):
        record = read_record(stored)
        if where is None or holds(where, record.metadata):
            yield record


def _nearest(
    records: Sequence[Record],
    matrix: Float64[np.ndarray, "records dim"],
    query: Float32[np.ndarray, " dim"],
    k: int,
) -> list[Hit]:
    scores: list[float] = (matrix * query).sum(axis=1).tolist()  # row by row, so that equal vectors tie
    order = sorted(range(len(records)), key=lambda place: -scores[place])[:k]
    return [Row(records[place], "").hit(scores[place]) for place in order]


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
) -> list[Hit]:
    scores: dict[int, float] = {}
    for place, count in enumerate(counts):
        if kept[place] and (shared := weights.keys() & count.keys()):
            norm = K1 * (1 - B + B * count.total() / mean)
            scores[place] = sum(weights[word] * count[word] * (K1 + 1) / (count[word] + norm) for word in shared)
    best = sorted(scores, key=lambda place: -scores[place])[:k]
    return [Row(records[place], "").hit(scores[place]) for place in best]

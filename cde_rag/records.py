"""Records, stored rows and hits; construction of records from columns, validation, JSON of metadata, default ids."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast
from uuid import UUID

import numpy as np
from jaxtyping import Int64

from cde_rag._validation import check_list, unknown_attribute, utf8
from cde_rag.errors import CorpusError
from cde_rag.field_names import GROUPS, field_name, value_at

CHUNK = 512  # records that are planned together
LONGEST_CHUNK = 32 * CHUNK  # a chunk is prolonged so far, to end with its last record's parent

Parent: TypeAlias = str | int

_ENDED = object()
MAX_LEVELS: Final = 100  # of lists and objects inside each other in metadata; far below what Python's stack holds
_REMEDIES: Final[Mapping[type, str]] = {
    date: "give its isoformat()",
    time: "give its isoformat()",
    timedelta: "give a number of seconds",
    Set: "give a list, which has an order",
    bytes: "give a str",
    Decimal: "give a number or a str",
    UUID: "give str(…) of it",
    PurePath: "give str(…) of it",
}
_MISSING: Final = ("NaTType", "NAType")  # pandas' types of a value that is missing


@dataclass(frozen=True, slots=True)
class Record:
    """Input record of a collection.

    Attributes:
        id: Any non-empty string, unique in the collection.
        text: Text to embed and to return.
        title: Embedded in front of the text (`title + " " + text`) and returned with it.
        metadata: JSON object, for filters.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Row:
    """Stored record with the digest of its embedded text.

    Attributes:
        record: The record.
        digest: sha256 hex over the embedded title, text and siblings; opaque to the store.
    """

    record: Record
    digest: str

    def hit(self, score: float) -> "Hit":
        """Return the record as a search hit with this score."""
        return Hit(self.record.id, score, self.record.title, self.record.text, self.record.metadata)


@dataclass(frozen=True, slots=True)
class Hit:
    """Search result.

    Attributes:
        id: The record's id.
        score: Higher is better. Of a search by vectors the dot product of unit vectors, in [-1, 1]; of one by words
            BM25, above 0; of a hybrid one the fused score, by default in [0, 1]; of a reranked one what the reranker
            gave.
        title: The record's title.
        text: The record's text.
        metadata: The record's metadata.
    """

    id: str
    score: float
    title: str
    text: str
    metadata: Mapping[str, Any]

    if not TYPE_CHECKING:  # a checker knows the names, and reports the others

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name, _MEANT_OF_HITS)

        def __getitem__(self, name: object) -> NoReturn:
            field = _MEANT_OF_HITS.get(name, f"hit.{name}" if name in self.__slots__ else "hit.metadata[…]")
            raise TypeError(f"A hit is no dict: write {field} for hit[{name!r:.80}].")


_MEANT_OF_HITS: Final = {
    **dict.fromkeys(("document", "page_content", "content", "chunk"), "hit.text"),
    **dict.fromkeys(("payload", "meta", "metadatas"), "hit.metadata"),
    **dict.fromkeys(("distance", "similarity"), "hit.score"),
    **dict.fromkeys(("doc_id", "node_id", "key"), "hit.id"),
}


class Hits(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        pending: Number of records in the collection that were not compared by vectors, since they wait for theirs.
    """

    def __init__(self, hits: Iterable[Hit] = (), pending: int = 0) -> None:
        super().__init__(hits)
        self.pending = pending

    @classmethod
    def of(cls, hits: Iterable[Hit], found: Sequence[Hit]) -> "Hits":
        """Return some hits of a search's, with its number of records that wait."""
        return cls(hits, found.pending if isinstance(found, Hits) else 0)


@dataclass(frozen=True, slots=True)
class PartialRecord(Record):
    """Input record of which some fields were not given: they stay as they are stored, and are empty in a new record.

    Attributes:
        kept: Names of these fields: "title", "metadata" or both.
    """

    kept: frozenset[str] = frozenset()


def embedded_text(record: Record) -> str:
    """Return the text of a record that is embedded: title and text."""
    return f"{record.title} {record.text}" if record.title else record.text


def parent_of(record: Record | Hit, parent_key: str | None) -> Parent | None:
    """Return the parent of a checked record; None if its metadata lacks the field, or has null or "" there."""
    return cast(Parent | None, _named_parent(record, parent_key))


def _named_parent(record: Record | Hit, parent_key: str | None) -> object:
    value = None if parent_key is None else value_at(record.metadata, parent_key)
    return None if value == "" else value


def check_key(key: str, name: str) -> None:
    """Refuse a key that names no metadata field (`cde_rag.field_names`); `name` is for the message.

    Raises:
        TypeError: The key is no str.
        ValueError: The key is empty, as an unset variable is, or one of and, or, not, which are groups of filters.
    """
    if not isinstance(cast(object, key), str):
        raise TypeError(f"{name} has to be the name of a metadata field, a str, found {key!r:.80}.")
    if not key:
        raise ValueError(f"{name} is empty. Name a metadata field, or leave it out.")
    if key in GROUPS:
        raise ValueError(f"{name} cannot be {key!r}, a group of filters. A field of that name is {field_name(key)!r}.")


def from_columns(
    texts: Iterable[str],
    *,
    ids: Iterable[str] | None,
    titles: Iterable[str | None] | None,
    metadata: Iterable[Mapping[str, Any] | None] | None,
    parent_key: str | None,
) -> Iterator[Record]:
    """Build records from parallel columns. Without ids a record's id is a digest of title, text and parent.

    Without titles or metadata, or with None among them, they are partial records.

    Raises:
        CorpusError: Columns of different lengths; raised before the first record if the lengths are known.
        TypeError: One `str` or one mapping in place of a list.
    """
    check_list(texts, call="add")
    given = {"texts": texts, "ids": ids, "titles": titles, "metadata": metadata}
    columns: dict[str, Iterable[Any]] = {name: column for name, column in given.items() if column is not None}
    for name, column in columns.items():
        check_list(column, call="add", what=name)
        if isinstance(column, Mapping):
            raise TypeError(f"add takes a list of {name}, one for each text, and was given one mapping.")
    lengths = {name: len(column) for name, column in columns.items() if isinstance(column, Sized)}
    if len(set(lengths.values())) > 1:
        raise CorpusError(f"texts, ids, titles and metadata have to be equally many, found {lengths}.")
    return _zipped(columns, parent_key)


def _zipped(columns: Mapping[str, Iterable[Any]], parent_key: str | None) -> Iterator[PartialRecord]:
    for position, values in enumerate(zip_longest(*columns.values(), fillvalue=_ENDED)):
        row: dict[str, Any] = dict(zip(columns, values, strict=True))
        ended = [name for name, value in row.items() if value is _ENDED]
        if ended:
            raise CorpusError(f"{', '.join(ended)} ended at position {position}, before the other columns did.")
        title: str | None = row.get("titles")
        metadata: Mapping[str, Any] | None = row.get("metadata")
        kept = frozenset(name for name, value in (("title", title), ("metadata", metadata)) if value is None)
        record = PartialRecord(
            "", row["texts"], "" if title is None else title, {} if metadata is None else metadata, kept
        )
        yield replace(record, id=row["ids"] if "ids" in row else default_id(record, parent_key))


def default_id(record: Record, parent_key: str | None) -> str:
    """Compute a record's default id: a digest of title, text and parent, the same in every run.

    The parent 1 and the parent "1" are different, and so are equal strings in different fields: if joining by NUL would
    be ambiguous, the fields are encoded as JSON.
    """
    parent = _named_parent(record, parent_key)
    strings = [part for part in (record.title, record.text, parent) if part is not None]
    if all(isinstance(part, str) and "\0" not in part for part in strings):
        parts = "\0".join(cast(list[str], strings))
    else:
        parts = "\0" + json.dumps([part if isinstance(part, str | int) else repr(part) for part in strings])
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def checked(record: Record, position: int, parent_key: str | None) -> Record:
    """Validate a record like `usable`, with its position in the call in the message.

    Raises:
        CorpusError: The record cannot be used.
        TypeError: It is no Record.
    """
    if not isinstance(cast(object, record), Record):
        raise TypeError(f"Record {position} has to be a cde_rag.Record, found {type(record).__name__}.")
    try:
        return usable(record, parent_key)
    except CorpusError as reason:
        raise CorpusError(f"Record {position} ({record.id!r:.80}): {reason}") from reason


def usable(record: Record, parent_key: str | None) -> Record:
    """Validate a record, and return it with its metadata as JSON would give it back.

    Args:
        record: The caller's record.
        parent_key: The metadata key that names a parent.

    Raises:
        CorpusError: An id, title or text that is no valid string, a blank text, metadata that JSON cannot hold or that
            is nested too deep, or a parent that is neither a string nor a whole number of 64 bits.
    """
    for name, value in (("id", record.id), ("title", record.title), ("text", record.text)):
        if not isinstance(cast(object, value), str):
            remedy = "; give str(…) of it" if name == "id" else ""
            raise CorpusError(f"its {name} has to be a str, found {type(value).__name__}{remedy}.")
        utf8(value, where=f"its {name}")
    if not record.id:
        raise CorpusError("its id is empty; leave ids out to have them made of the texts.")
    if not embedded_text(record).strip():
        raise CorpusError("its text is empty or blank; leave it out or give it content.")
    record = replace(record, metadata=json.loads(encode(record.metadata, "its metadata")))
    parent = _named_parent(record, parent_key)
    whole = isinstance(parent, int) and not isinstance(parent, bool) and -(2**63) <= parent < 2**63
    if not (parent is None or isinstance(parent, str) or whole):
        raise CorpusError(
            f"its {parent_key!r} has to be a string or a whole number of 64 bits, found {json.dumps(parent):.80}."
        )
    return record


def why_none(records: Iterable[Record], parent_key: str | None) -> tuple[int, str]:
    """Return the number of records of which none can be used, and a reason; 0 and "" if there is one that can.

    Args:
        records: Records of another application.
        parent_key: As of `usable`.
    """
    number, why = 0, ""
    for record in records:
        try:
            usable(record, parent_key)
        except CorpusError as reason:
            number, why = number + 1, why or str(reason)
            continue
        return 0, ""
    return number, why


def chunks(
    records: Iterable[Record], parent_key: str | None, document_of: Callable[[Record], str | None] = lambda _: None
) -> Iterator[list[Record]]:
    """Check a stream of records and cut it into chunks which end, if they can, where a parent and a document end.

    Args:
        records: Records.
        parent_key: As of `usable`.
        document_of: Returns the name of the document that a record is a passage of; None if it is of none.

    Raises:
        CorpusError: A record cannot be used; the chunks before its own have been yielded.
    """
    chunk: list[Record] = []
    last: tuple[Parent | None, str | None] = None, None  # parent and document of the last record
    for position, record in enumerate(records):
        record = checked(record, position, parent_key)
        units = parent_of(record, parent_key), document_of(record)
        goes_on = any(unit is not None and unit == before for unit, before in zip(units, last, strict=True))
        if len(chunk) >= LONGEST_CHUNK or (len(chunk) >= CHUNK and not goes_on):
            yield chunk
            chunk = []
        chunk.append(record)
        last = units
    if chunk:
        yield chunk


def encode(metadata: Mapping[str, Any], of: str) -> str:
    """Serialise metadata to a JSON object. NumPy's numbers and arrays become plain numbers and lists.

    Args:
        metadata: Anything.
        of: Name of it in messages.

    Raises:
        CorpusError: No JSON object: other types, keys that are no strings, NaN, too deep, lone surrogates; the message
            names the field.
    """
    try:
        if not isinstance(cast(object, metadata), Mapping):
            raise TypeError(f"found {metadata!r:.80}; {{}} has no field")
        encoded = json.dumps(_plain(metadata, ""), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CorpusError(f"{of} has to be a JSON object: {error}.") from error
    utf8(encoded, where=of)
    return encoded


def _plain(value: object, field: str, depth: int = 0) -> object:
    """Return a value as JSON has it, exactly; NumPy's types converted.

    Args:
        value: Metadata, or a part of it.
        field: Path of the part, for messages; "" for the metadata as a whole.
        depth: Number of lists and objects that it is in.

    Raises:
        TypeError: JSON has no such type.
        ValueError: It is NaN or infinite, or too deep.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{field} is {value}, which JSON does not have; leave it out or give None")
        return value
    if depth == MAX_LEVELS:
        raise ValueError(f"more than {MAX_LEVELS} lists and objects inside each other")
    if isinstance(value, Mapping):
        found = cast(Mapping[object, object], value)
        if odd := [key for key in found if not isinstance(key, str)]:
            raise TypeError(f"the key {odd[0]!r:.80} is not a string")
        return {key: _plain(inner, f"{field}.{key}" if field else str(key), depth + 1) for key, inner in found.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, field, depth + 1) for inner in cast(Iterable[object], value)]
    if isinstance(value, np.generic | np.ndarray):
        kind, converted = type(cast(object, value)), cast(object, cast(Any, value).tolist())
        if type(converted) is not kind:
            return _plain(converted, field, depth)
    name = type(cast(object, value)).__name__
    remedy = next((remedy for kind, remedy in _REMEDIES.items() if isinstance(value, kind)), "leave it out")
    remedy = "leave it out or give None" if name in _MISSING else remedy
    raise TypeError(f"{field} is of the type {name}, which JSON does not have; {remedy}")


class Positions:
    """Index of the positions of ids in a call, sixteen bytes per record.

    Ids are kept as hashes in sorted runs; a run is merged with earlier runs that are not longer (as in an LSM tree), so
    that a call of n records sorts each hash log n times, and looks up an id in log n runs.
    """

    def __init__(self) -> None:
        self._count = 0
        self._runs: list[tuple[Int64[np.ndarray, " ids"], Int64[np.ndarray, " ids"]]] = []  # hashes, first positions

    def extend(self, ids: Iterable[str]) -> None:
        """Add the ids of the next records."""
        hashes = np.fromiter(map(hash, ids), np.int64)
        run, first = np.unique(hashes, return_index=True)
        positions = self._count + first
        self._count += len(hashes)
        while self._runs and len(self._runs[-1][0]) <= len(run):
            earlier, earlier_positions = self._runs.pop()
            run, first = np.unique(np.concatenate([earlier, run]), return_index=True)  # of equal ones the earlier
            positions = np.concatenate([earlier_positions, positions])[first]
        self._runs.append((run, positions))

    def first(self, ids: Sequence[str]) -> list[int]:
        """Return the first position of each of some ids, all of which occurred in the call."""
        asked = np.fromiter(map(hash, ids), np.int64)
        found = np.full(len(asked), self._count)
        for run, positions in self._runs:
            places = np.minimum(np.searchsorted(run, asked), len(run) - 1)
            found = np.where(run[places] == asked, np.minimum(found, positions[places]), found)
        return found.tolist()

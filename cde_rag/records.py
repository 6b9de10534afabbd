"""Input records: construction from columns, validation and default ids."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Int64

from cde_rag._validation import check_list, utf8
from cde_rag.errors import CorpusError
from cde_rag.stores.base import Hit, Record
from cde_rag.stores.checks import encode
from cde_rag.stores.field_names import GROUPS, field_name
from cde_rag.stores.filter_conditions import value_at

CHUNK = 512  # records that are planned together
LONGEST_CHUNK = 32 * CHUNK  # a chunk is prolonged so far, to end with its last record's parent

Parent: TypeAlias = str | int

_ENDED = object()


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
    """Refuse a key that names no metadata field (`cde_rag.stores.field_names`); `name` is for the message.

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
    titles: Iterable[str] | None,
    metadata: Iterable[Mapping[str, Any]] | None,
    parent_key: str | None,
) -> Iterator[Record]:
    """Build records from parallel columns. Without ids a record's id is a digest of title, text and parent.

    Without titles or metadata they are partial records.

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
    kept = frozenset(name for name, column in (("title", titles), ("metadata", metadata)) if column is None)
    return _zipped(columns, parent_key, kept)


def _zipped(
    columns: Mapping[str, Iterable[Any]], parent_key: str | None, kept: frozenset[str]
) -> Iterator[PartialRecord]:
    for position, values in enumerate(zip_longest(*columns.values(), fillvalue=_ENDED)):
        row: dict[str, Any] = dict(zip(columns, values, strict=True))
        ended = [name for name, value in row.items() if value is _ENDED]
        if ended:
            raise CorpusError(f"{', '.join(ended)} ended at position {position}, before the other columns did.")
        record = PartialRecord("", row["texts"], row.get("titles", ""), row.get("metadata", {}), kept)
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

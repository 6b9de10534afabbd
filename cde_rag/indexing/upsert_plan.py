"""Plans of upserts: rows that change, and passages whose siblings change with them. Needs no store and no model."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

from cde_rag.context.file_format import canonical_json
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError
from cde_rag.indexing.sibling_passages import passages
from cde_rag.readers.passages import document_of
from cde_rag.records import Parent, Positions, Record, Row, chunks, embedded_text, parent_of


class Stale(NamedTuple):
    """A row whose stored vector is not that of its text and siblings, or that has none yet.

    Attributes:
        row: The row with the digest of the vector that it needs.
        siblings: Texts of its siblings.
        before: Digest of the vector that it has; "" if it has none.
        waits: True if the call does not make its vector: it is written without one.
    """

    row: Row
    siblings: list[str]
    before: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class UpsertPlan:
    """Writes of one chunk of records, given the rows that are stored under their ids.

    Attributes:
        arriving: Each id's row after the upsert, with the digest of the vector that is stored for it, or "".
        moved: Ids of rows that go from one parent to another.
        left: Parents that these rows leave, and that no row joins.
        joined: Parents of the arriving rows.
        metadata: New metadata of rows that move, and of rows whose text stays, by id.
    """

    arriving: Mapping[str, Row]
    moved: AbstractSet[str]
    left: AbstractSet[Parent]
    joined: AbstractSet[Parent]
    metadata: Mapping[str, Mapping[str, Any]]


def difference(stored: Mapping[str, Record], chunk: Sequence[Record], start: int, positions: Positions) -> Counter[str]:
    """Count the changes by a chunk of a call, which is compared with the stored records of its ids.

    Args:
        stored: Records by id.
        chunk: Checked and complete records.
        start: Position of the first in the call.
        positions: Positions of all ids of the call so far, this chunk included.

    Returns:
        Number of records added, replaced, updated, unchanged and repeated.

    Raises:
        CorpusError: An id comes twice in the call with different texts.
    """
    known, changes = dict(stored), Counter[str](repeated=0)
    again: dict[tuple[str, str], int] = {}  # position in the call of each id that was replaced, or updated
    for position, record in enumerate(chunk, start):
        change = _change(known.get(record.id), record)
        changes[change] += 1
        if change in ("replaced", "updated"):
            again[change, record.id] = position
        known[record.id] = record
    firsts = positions.first([record_id for _, record_id in again])
    for ((change, record_id), position), first in zip(again.items(), firsts, strict=True):
        if change == "replaced" and first < position:
            raise CorpusError(
                f"The id {record_id!r} stands at position {first} and, with another text, at {position}. "
                "Give them two ids, or leave one out."
            )
        changes["repeated"] += first < position
    return changes


def first_records(records: Iterable[Record], parent_key: str | None) -> list[Record]:
    """Check the records of a collection before it is made, which would stay, empty, if it took none of them.

    Args:
        records: All of the first call.
        parent_key: Parent key of the collection.

    Raises:
        CorpusError: A record cannot be used, or an id comes twice with different texts.
    """
    found, positions = [record for chunk in chunks(records, parent_key) for record in chunk], Positions()
    positions.extend(record.id for record in found)
    difference({}, found, 0, positions)
    return found


def plan_upsert(stored: Mapping[str, Row], records: Mapping[str, Record], parent_key: str | None) -> UpsertPlan:
    """Plan the upsert of records, one for each id, over the rows that are stored under these ids."""
    moved = {
        row_id
        for row_id, row in stored.items()
        if parent_of(row.record, parent_key) != parent_of(records[row_id], parent_key)
    }
    arriving = {
        row_id: Row(record, stored[row_id].digest if row_id in stored else "") for row_id, record in records.items()
    }
    metadata = {
        row_id: records[row_id].metadata
        for row_id, row in stored.items()
        if row_id in moved or _change(row.record, records[row_id]) == "updated"
    }
    joined = parents_of(records.values(), parent_key)
    left = parents_of((stored[row_id].record for row_id in moved), parent_key) - joined
    return UpsertPlan(arriving, moved, left, joined, metadata)


def stale_passages(
    groups: "defaultdict[Parent, dict[str, Row]]",
    embedder: Embedder,
    parent_key: str | None,
    *,
    arriving: Mapping[str, Row] | None = None,
    leaving: AbstractSet[str] = frozenset(),
) -> list[Stale]:
    """Find the passages of some parents whose vectors do not match their text and siblings.

    Args:
        groups: Stored rows of each parent by id, in order of insertion; arriving rows are put into them.
        embedder: The embedder whose sibling rule applies.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
        arriving: Rows of an upsert, which replace stored ones of their ids.
        leaving: Ids treated as deleted.

    Returns:
        Stored passages first, then new ones in order of arrival.
    """
    arriving = arriving or {}
    waiting, alone = dict(arriving), list[list[Row]]()
    for group in groups.values():
        for row_id in group.keys() & leaving:
            del group[row_id]
        for row_id in group.keys() & arriving.keys():
            group[row_id] = arriving[row_id]
            waiting.pop(row_id, None)
    for row_id, row in waiting.items():
        parent = parent_of(row.record, parent_key)
        if parent is None:
            alone.append([row])
        else:
            groups[parent][row_id] = row
    stale = [
        Stale(
            Row(row.record, passage.digest),
            passage.siblings,
            row.digest,
            waits=not row.digest and row.record.id not in arriving,  # a call is not about siblings that wait
        )
        for group in [*alone, *(list(group.values()) for group in groups.values())]
        for row, passage in zip(group, passages(group, embedder), strict=True)
        if passage.digest != row.digest
    ]
    order = {row_id: place for place, row_id in enumerate(arriving)}
    return sorted(stale, key=lambda change: order.get(change.row.record.id, -1))


def still_waiting(
    stale: Sequence[Stale], plan: UpsertPlan, stored: Mapping[str, Row], parent_key: str | None
) -> list[Stale]:
    """Return the stale rows without those that wait already and whose text and siblings an upsert does not change.

    Args:
        stale: Rows as `stale_passages` found them, of which those that get no vector have `waits`.
        plan: Plan of the upsert.
        stored: Rows that are stored under its ids.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
    """
    changed = {
        row_id
        for row_id, row in plan.arriving.items()
        if row_id not in stored or embedded_text(row.record) != embedded_text(stored[row_id].record)
    } | plan.moved
    records = [plan.arriving[row_id].record for row_id in changed]
    parents = parents_of(records, parent_key) | plan.left
    parents |= parents_of((stored[row_id].record for row_id in plan.moved), parent_key)
    return [
        each
        for each in stale
        if not each.waits
        or each.before
        or each.row.record.id in changed
        or parent_of(each.row.record, parent_key) in parents
    ]


def groups_of(stale: Sequence[Stale], replaced: AbstractSet[str]) -> list[list[Stale]]:
    """Group stale rows by the writes that must not be interrupted, so that no text of a document is lost in between.

    Args:
        stale: Rows in order.
        replaced: Ids of stored rows that get another text.

    Returns:
        Replaced passages of a document as one group, after its other rows; each other row by itself, in order.
    """
    documents = [document_of(each.row.record) for each in stale]
    last = {document: place for place, document in enumerate(documents)}
    groups: list[list[Stale]] = []
    held: defaultdict[str, list[Stale]] = defaultdict(list)
    for place, (each, document) in enumerate(zip(stale, documents, strict=True)):
        if document is not None and each.row.record.id in replaced:
            held[document].append(each)
        else:
            groups.append([each])
        if document in held and last[document] == place:
            groups.append(held[document])
    return groups


def parents_of(records: Iterable[Record], parent_key: str | None) -> set[Parent]:
    """Return the parents of records, without None."""
    return {parent for record in records if (parent := parent_of(record, parent_key)) is not None}


def _change(before: Record | None, record: Record) -> str:
    """Return the kind of change from the stored record of an id to the new one."""
    if before is None:
        return "added"
    if (before.title, before.text) != (record.title, record.text):
        return "replaced"
    same = canonical_json(before.metadata) == canonical_json(record.metadata)  # unlike ==, tells True from 1
    return "unchanged" if same else "updated"

"""Bringing of writes that arrive on one side of a move, the old vectors or the new ones, to the other side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.movable import PAGE, Movable, SourceRow
from cde_rag.adoption.move_journal import MoveJournal, MoveState
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.models.model import Embedded

_BEGUN = "?"  # before the digest of a row whose copy was begun: a kill may have left the other side without it


@dataclass(frozen=True, slots=True)
class Carried:
    """Writes to one side, old or new vectors, that were brought to the other.

    Attributes:
        written: Rows.
        removed: Deleted rows.
        kept: Rows that were changed on both sides; those in use stay as they are.
    """

    written: int = 0
    removed: int = 0
    kept: int = 0


class Carrying:
    """Comparison of one side with the rows as they were noted.

    Args:
        source: Store whose vectors are moved.
        journal: Folder of the move.
        state: State of the move.
        embedder: Embedder of the other side; None: a difference is an error.
        parked: Its vector of rows without a text.
        old: True for writes to the old vectors, which are brought to the new ones.
        lost: Sentences of that error: the loss, and the remedy.
    """

    def __init__(
        self,
        source: Movable,
        journal: MoveJournal,
        state: MoveState,
        embedder: Embedder | None,
        parked: Float32[np.ndarray, " parked"],
        *,
        old: bool,
        lost: str = "",
    ) -> None:
        self._source, self._journal, self._notes = source, journal, state.notes
        self._embedder, self._parked, self._old, self._lost = embedder, parked, old, lost
        self._written = self._removed = self._kept = 0

    def run(self) -> Carried:
        """Compare all rows with their noted digests.

        Raises:
            StoreError: They differ, and there is no embedder, or the other side cannot have them.
        """
        number = self._journal.new_pass()
        for page in self._source.rows(self._notes, old=self._old):
            once = list({row.id: row for row in page}.values())
            digests = {row.id: row.digest for row in once}
            known = self._journal.digests(digests)
            changed = [row for row in once if known.get(row.id) != digests[row.id]]
            if changed:
                self._write(changed, known, number)
            self._journal.note(digests, number)
        for ids in self._journal.unseen(number, PAGE):
            self._remove(ids)
        return Carried(self._written, self._removed, self._kept)

    def _required(self, id_: str) -> Embedder:
        if self._embedder is None or not self._source.written_by_old_handles:
            raise StoreError(
                f"{self._source.target}: expected rows as they were at the switch, found others, such as {id_!r:.80}. "
                f"{self._lost}"
            )
        return self._embedder

    def _write(self, changed: Sequence[SourceRow], known: dict[str, str], number: int) -> None:
        """Write rows whose other side is as it was noted; the ones in use win."""
        embedder, other = self._required(changed[0].id), not self._old
        before = {row.id: known.get(row.id, "").removeprefix(_BEGUN) for row in changed}
        same: list[SourceRow] = []
        if noted := self._as_noted(changed, known, before):
            vectors = vectors_of(noted, embedder, self._parked).vectors
            same = self._as_noted(noted, known, before)  # embedding takes seconds, in which the application writes
            if same:
                places = {row.id: place for place, row in enumerate(noted)}
                self._journal.note({row.id: _BEGUN + before[row.id] for row in same}, number)
                self._source.put(self._notes, same, vectors[[places[row.id] for row in same]], old=other)
        self._written, self._kept = self._written + len(same), self._kept + len(changed) - len(same)

    def _as_noted(self, rows: Sequence[SourceRow], known: dict[str, str], before: dict[str, str]) -> list[SourceRow]:
        """Return the rows whose other side is as it was noted, or lacks them since their copy was cut."""
        ids = [row.id for row in rows]
        there = {row.id: row.digest for row in self._source.get(self._notes, ids, old=not self._old)}
        return [
            row
            for row in rows
            if there.get(row.id, "") in (before[row.id], row.digest)
            or (row.id not in there and known.get(row.id, "").startswith(_BEGUN))
        ]

    def _remove(self, ids: Sequence[str]) -> None:
        there = {row.id for row in self._source.get(self._notes, ids, old=self._old)}
        gone = [id_ for id_ in ids if id_ not in there]  # others were passed over: deletions move the pages
        if not gone:
            return
        self._required(gone[0])
        known = self._journal.digests(gone)
        others = self._source.get(self._notes, gone, old=not self._old)
        same = [row.id for row in others if known[row.id].removeprefix(_BEGUN) == row.digest]
        self._source.remove(self._notes, same, old=not self._old)
        self._removed, self._kept = self._removed + len(same), self._kept + len(others) - len(same)
        self._journal.drop(gone)


def vectors_of(rows: Sequence[SourceRow], embedder: Embedder, parked: Float32[np.ndarray, " parked"]) -> Embedded:
    """Embed the texts of rows; those without one get the parked vector."""
    places = [place for place, row in enumerate(rows) if row.text is not None]
    texts = [row.text for row in rows if row.text is not None]
    vectors, truncated = np.tile(parked, (len(rows), 1)), np.zeros(len(rows), np.bool_)
    if texts:
        made = embedder.embed_passages(texts, None)
        vectors[places], truncated[places] = made.vectors, made.truncated
    return Embedded(vectors, truncated)

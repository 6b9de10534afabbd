"""Moves of another application's vectors to another model, which can be resumed after any kill and undone.

with reembedding("chroma:chroma_db#papers") as move:
    embedder = move.embedder(PlainEmbedder("intfloat/multilingual-e5-small"))
    move.copy(embedder)  # next to the old vectors, which the application goes on reading and writing
    print(move.line(embedder))  # what to change in the application
    move.switch(embedder)  # after a sample was embedded again and compared
    move.rollback()  # or move.release(), which deletes the old vectors
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag._files import user_path
from cde_rag.adoption.audit_sources import movable
from cde_rag.adoption.movable import PAGE, Movable, SourceChangedError, SourceRow
from cde_rag.adoption.move_journal import MoveJournal, MoveState
from cde_rag.embedders.active import loaded
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, StoreError
from cde_rag.indexing.audit import Audit, audit
from cde_rag.indexing.upsert import Progress

_PASSES: Final = 8  # over what the application writes meanwhile; what comes after waits for the next call
_MEAN_OF: Final = 64  # vectors whose mean direction rows without a text are turned away from
_SHOWN: Final = 20  # ids in a report

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a copy.

    Attributes:
        rows: Rows of the source.
        embedded: Texts that were embedded by this call.
        removed: Rows that were deleted from the copy, since the source does not have them any more.
        without_text: Ids of rows without a text, at most 20. They keep id and metadata, and come last in searches.
        without_text_count: Number of such rows.
        audit: Comparison of a sample of the new vectors, all of which were reproduced.
    """

    rows: int
    embedded: int
    removed: int
    without_text: tuple[str, ...]
    without_text_count: int
    audit: Audit


@dataclass(frozen=True, slots=True)
class Carried:
    """Writes to one side, old or new vectors, that were brought to the other.

    Attributes:
        written: Rows.
        removed: Deleted rows.
        kept: Rows that were changed on both sides, or cannot be embedded; those in use stay as they are.
    """

    written: int = 0
    removed: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Switched:
    """Result of a switch or rollback.

    Attributes:
        gap_s: Seconds in which the source had no vectors under its name; 0 where the switch is atomic.
        carried: What was written meanwhile.
    """

    gap_s: float
    carried: Carried


@contextmanager
def reembedding(
    target: str,
    *,
    journal: str | Path | None = None,
    text: str | None = None,
    seed: int = 0,
) -> Generator["Reembedding", None, None]:
    """Open the move of a store to another model, for the duration of a `with`; one that was begun goes on.

    Args:
        target: As in `source_of`, of a kind whose vectors can be replaced: `chroma:folder#papers`,
            `chroma:http://localhost:8000#papers`, `langchain-faiss:folder` or `llamaindex:folder`.
        journal: Folder of the move's state; by default next to the store, or for a server in the present folder.
        text: As in `source_of`.
        seed: Random seed of samples.

    Raises:
        MissingExtraError: The client of that store is not installed.
        StoreError: There is no such store, it cannot be moved, or another process moves it.
    """
    with movable(target, text=text, seed=seed) as source:
        state = MoveJournal(source.home if journal is None else user_path(journal))
        with state.held():
            yield Reembedding(source, state, Random(seed))


class Reembedding:
    """A move. Each call may be repeated, and continues an interrupted one.

    Args:
        source: Store whose vectors are replaced.
        journal: Folder of the move's state.
        random: Draws samples.
    """

    def __init__(self, source: Movable, journal: MoveJournal, random: Random) -> None:
        self.source = source
        self.journal = journal
        self._random = random

    @property
    def state(self) -> MoveState | None:
        """State of the move; None before it has begun."""
        return self.journal.state()

    def embedder(self, given: Embedder | None = None) -> Embedder:
        """Return the embedder of the move, in the Context of its first run.

        Args:
            given: Embedder of the new model; by default the one that the journal names, whose model is loaded.

        Raises:
            ContextMismatchError: The first run had another model.
            ModelError: The model is not found under its name.
            StoreError: No move was begun, and no embedder is given.
        """
        if self.state is None:
            if given is None:
                raise StoreError(f"{self.source.target}: expected a move that was begun, found none. Name its model.")
            return given
        context = self.journal.context()
        if given is None:
            try:
                return loaded(context)
            except ModelError as error:
                raise ModelError(
                    f"The move to {context.identity.name!r} was begun, and that model is not found under its name. "
                    "Give it again (--model, and --base-url of an API)."
                ) from error
        try:
            return given.with_context(context)
        except ContextMismatchError as error:
            raise ContextMismatchError(
                expected=context.fingerprint,
                found=given.fingerprint,
                remedy=f"A move to {context.identity.name} was begun ({self.journal.folder}). Continue it with that "
                "model, or end it first by cde-rag release.",
            ) from error

    def line(self, embedder: Embedder) -> str:
        """Return the setting or line of the application that has to change with the vectors."""
        return self.source.line(embedder, self.journal.context_file)

    def copy(self, embedder: Embedder, *, on_progress: OnProgress | None = None) -> Copied:
        """Make the new vectors next to the old ones, until nothing is written meanwhile, and compare a sample.

        Args:
            embedder: Result of `embedder`.
            on_progress: Called after each page.

        Raises:
            CorpusError: The source has no text.
            StoreError: The vectors are switched already, the source cannot have such vectors, or the copy is not what
                the embedder makes.
        """
        state = self._begun(embedder)
        if state.step == "returning":
            self.rollback()
        elif state.step not in ("copying", "returned"):
            raise StoreError(
                f"{self.source.target}: expected old vectors in use, found step {state.step}. Nothing to copy."
            )
        state = self._noted(replace(self._known(), step="copying"))
        embedded = removed = 0
        for _ in range(_PASSES):
            version, copier = self.source.version(), _Pass(self, state, embedder, on_progress)
            copier.run()
            embedded, removed = embedded + copier.embedded, removed + copier.removed
            if copier.changed:
                continue  # what was written during the pass
            try:
                state = self._noted(replace(state, notes=self.source.seal(state.notes, self.journal.parked())))
            except SourceChangedError:
                continue
            if self.source.version() == version:
                found = self._checked(state, embedder)
                lost = tuple(copier.without_text)
                return Copied(copier.rows, embedded, removed, lost, copier.without_text_count, found)
        raise StoreError(
            f"{self.source.target}: expected a pause in its writes, found new ones in each of {_PASSES} passes. Run "
            "the same command again when its application writes less."
        )

    def switch(self, embedder: Embedder, *, on_progress: OnProgress | None = None) -> Switched:
        """Put the new vectors in the place of the old ones, which stay; then bring the writes made meanwhile.

        Change the application's model (`line`) at the same time: queries of the old model find nothing among the new
        vectors.

        Args:
            embedder: Result of `embedder`.
            on_progress: As in `copy`.

        Raises:
            StoreError: As in `copy`; or the application writes all the time.
        """
        state = self._begun(embedder)
        if state.step not in ("switching", "switched"):
            for _ in range(_PASSES):
                self.copy(embedder, on_progress=on_progress)
                try:
                    state = self._switched(self._noted(replace(self._known(), step="switching")))
                    break
                except SourceChangedError:
                    self._noted(replace(self._known(), step="copying"))
            else:
                raise StoreError(f"{self.source.target}: its application writes all the time. Run the command again.")
        elif state.step == "switching":
            state = self._switched(state)
        return Switched(state.gap_s or 0.0, self.catch_up(embedder))

    def catch_up(self, embedder: Embedder) -> Carried:
        """Bring later writes to the old vectors, by programs that opened the store before the switch, to the new ones.

        Args:
            embedder: Result of `embedder`.

        Raises:
            StoreError: The vectors are not switched, or the application has put old ones back.
        """
        state = self._known()
        if state.step != "switched":
            raise StoreError(f"{self.source.target}: expected new vectors in use, found step {state.step}.")
        if not self.source.is_switched(state.notes, embedder):
            self._noted(replace(state, step="copying"))
            raise StoreError(
                f"{self.source.target}: expected the new vectors, found others: a program that had loaded the old ones "
                "has saved them since. Restart it with the new model, and run cde-rag reembed again."
            )
        return self._carried(state, embedder, old=True) if self.source.written_by_old_handles else Carried()

    def rollback(self, old: Embedder | None = None) -> Switched:
        """Put the old vectors back. The new ones stay, and `switch` returns to them.

        Args:
            old: Embedder of the old vectors, for texts that were written since the switch.

        Raises:
            StoreError: Nothing was switched; or rows were written since, and `old` is not given or the source cannot
                have them.
        """
        state = self._known()
        if state.step == "returned":
            return Switched(state.gap_s or 0.0, Carried())
        if state.step not in ("switching", "switched", "returning"):
            raise StoreError(f"{self.source.target}: expected a switch before a rollback, found step {state.step}.")
        carried = Carried()
        if state.step == "switched":
            carried = self._carried(state, old, old=False)
        state = self._noted(replace(state, step="returning"))
        gap = self.source.rollback(state.notes)
        self._noted(replace(state, step="returned", gap_s=gap, was_switched=False))
        return Switched(gap, carried)

    def release(self) -> None:
        """Delete the vectors that are not in use, and the journal: after a switch the old ones, else the new ones.

        Programs that opened the store before the switch hold the old vectors: restart them before.

        Raises:
            StoreError: No move was begun, or a switch or rollback was interrupted: repeat that first.
        """
        state = self._known()
        if state.step in ("switching", "returning"):
            call = "switch" if state.step == "switching" else "rollback"
            raise StoreError(f"{self.source.target}: a {call} was interrupted. Repeat it, then release.")
        self._noted(replace(state, step="releasing"))
        self.source.release(state.notes, switched=state.was_switched)
        self.journal.forget()

    def _known(self) -> MoveState:
        state = self.state
        if state is None:
            raise StoreError(
                f"{self.source.target}: expected a move that was begun, found none at {self.journal.folder}."
            )
        return state

    def _noted(self, state: MoveState) -> MoveState:
        self.journal.write(state)
        return state

    def _begun(self, embedder: Embedder) -> MoveState:
        state = self.state
        if state is not None:
            if state.fingerprint != embedder.fingerprint:
                raise ContextMismatchError(expected=state.fingerprint, found=embedder.fingerprint)
            if state.target != self.source.target:
                raise StoreError(
                    f"{self.journal.folder}: expected a move of {self.source.target}, found one of {state.target}. "
                    "Give another journal."
                )
            return state
        self.source.check(embedder)
        sample = self.source.sample(_MEAN_OF)
        if not sample:
            raise CorpusError(f"{self.source.target}: expected texts, found none. There is nothing to embed.")
        made = embedder.embed_passages([each.text for each in sample], None).vectors.mean(axis=0, dtype=np.float64)
        away = -made / (np.linalg.norm(made) or 1.0)
        notes = self.source.begin(self.journal.folder, embedder)
        name = embedder.context.identity.name
        state = MoveState(self.source.target, name, embedder.fingerprint, notes=notes)
        self.journal.begin(state, embedder.context, away.astype(np.float32))
        return state

    def _checked(self, state: MoveState, embedder: Embedder) -> Audit:
        shadow = self.source.shadow(state.notes)
        stored, expected = shadow.count(), self.source.count()
        found = audit(shadow, embedder)
        if stored != expected or found.others:
            raise StoreError(
                f"{self.source.target}: expected {expected} vectors of {state.model} in the copy, found {stored}. "
                f"{found.advice} Run the command again; if that does not help, release the move and begin anew."
            )
        return found

    def _switched(self, state: MoveState) -> MoveState:
        gap = self.source.switch(state.notes)
        return self._noted(replace(state, step="switched", was_switched=True, gap_s=gap))

    def _carried(self, state: MoveState, embedder: Embedder | None, *, old: bool) -> Carried:
        return _Carrying(self, state, embedder, old=old).run()


class _Pass:
    """One pass over the source's rows, which brings the new vectors up to date.

    Attributes:
        rows: Rows that were seen.
        embedded: Texts that were embedded.
        removed: Rows that were deleted from the copy.
        without_text: Ids of the first rows without a text.
        without_text_count: Number of rows without a text.
        changed: True if a row was written or removed.
    """

    def __init__(self, move: Reembedding, state: MoveState, embedder: Embedder, report: OnProgress | None) -> None:
        self._source, self._journal = move.source, move.journal
        self._state, self._embedder, self._report = state, embedder, report
        self._parked = move.journal.parked()
        self.rows = self.embedded = self.removed = self.without_text_count = 0
        self.without_text: list[str] = []
        self.changed = False

    def run(self) -> None:
        """Compare all rows with their noted digests, and write those that are new or were changed."""
        number, notes, started = self._journal.new_pass(), self._state.notes, time.monotonic()
        total = self._source.count()
        for page in self._source.rows(notes, old=True):
            once = list({row.id: row for row in page}.values())
            known = self._journal.digests([row.id for row in once])
            lacking = {row.id for row in self._source.lacking(notes, once, old=False)}
            stale = [row for row in once if known.get(row.id) != row.digest or row.id in lacking]
            if stale:
                self.changed = True
                self._journal.note({row.id: "" for row in stale}, number)
                self._source.put(notes, stale, self._vectors(stale), old=False)
            self._journal.note({row.id: row.digest for row in once}, number)
            self._count(once)
            if self._report is not None:
                self._report(Progress(done=self.rows, total=total, elapsed_s=time.monotonic() - started))
        for ids in self._journal.unseen(number, PAGE):
            self._source.remove(notes, ids, old=False)
            self._journal.drop(ids)
            self.removed, self.changed = self.removed + len(ids), True

    def _vectors(self, rows: Sequence[SourceRow]) -> Float32[np.ndarray, "rows dim"]:
        texts = [row.text for row in rows if row.text is not None]
        self.embedded += len(texts)
        return vectors_of(rows, self._embedder, self._parked)

    def _count(self, rows: Sequence[SourceRow]) -> None:
        self.rows += len(rows)
        lost = [row.id for row in rows if row.text is None]
        self.without_text_count += len(lost)
        self.without_text += lost[: _SHOWN - len(self.without_text)]


class _Carrying:
    """Bringing of writes on one side, since it was noted, to the other side.

    Args:
        move: The move.
        state: Its state.
        embedder: Embedder of the other side; None: a difference is an error.
        old: True for writes to the old vectors, which are brought to the new ones.
    """

    def __init__(self, move: Reembedding, state: MoveState, embedder: Embedder | None, *, old: bool) -> None:
        self._source, self._journal, self._notes = move.source, move.journal, state.notes
        self._embedder, self._old = embedder, old
        self._written = self._removed = self._kept = 0

    def run(self) -> Carried:
        """Compare all rows with their noted digests."""
        number = self._journal.new_pass()
        for page in self._source.rows(self._notes, old=self._old):
            once = list({row.id: row for row in page}.values())
            known = self._journal.digests([row.id for row in once])
            changed = [row for row in once if known.get(row.id) != row.digest]
            if changed:
                self._require(changed[0].id)
                self._write(changed, known)
            self._journal.note({row.id: row.digest for row in once}, number)
        for ids in self._journal.unseen(number, PAGE):
            self._require(ids[0])
            self._remove(ids)
        return Carried(self._written, self._removed, self._kept)

    def _require(self, id_: str) -> None:
        if self._embedder is None or not self._source.written_by_old_handles:
            hint = "Give --from with the old model, which embeds them for the old vectors"
            if not self._source.written_by_old_handles:
                hint = (
                    "Their application's files hold both; move back instead: cde-rag release, then reembed --model OLD"
                )
            raise StoreError(
                f"{self._source.target}: expected rows as they were at the switch, found others, such as {id_!r:.80}. "
                f"A rollback would lose them. {hint}."
            )

    def _write(self, changed: Sequence[SourceRow], known: dict[str, str]) -> None:
        """Write rows whose other side is as it was noted; the ones in use win."""
        assert self._embedder is not None
        other = not self._old
        there = {row.id: row.digest for row in self._source.get(self._notes, [row.id for row in changed], old=other)}
        same = [
            row
            for row in changed
            if there.get(row.id) in (known.get(row.id), row.digest) and (self._old or row.text is not None)
        ]
        self._kept += len(changed) - len(same)
        if same:
            parked = self._journal.parked()
            self._source.put(self._notes, same, vectors_of(same, self._embedder, parked), old=other)
            self._written += len(same)

    def _remove(self, ids: Sequence[str]) -> None:
        known = self._journal.digests(ids)
        there = self._source.get(self._notes, ids, old=not self._old)
        same = [row.id for row in there if known.get(row.id) == row.digest]
        self._source.remove(self._notes, same, old=not self._old)
        self._removed, self._kept = self._removed + len(same), self._kept + len(there) - len(same)
        self._journal.drop(ids)


def vectors_of(
    rows: Sequence[SourceRow], embedder: Embedder, parked: Float32[np.ndarray, " parked"]
) -> Float32[np.ndarray, "rows dim"]:
    """Embed the texts of rows; those without one get the parked vector."""
    places = [place for place, row in enumerate(rows) if row.text is not None]
    texts = [row.text for row in rows if row.text is not None]
    if not texts:
        return np.tile(parked, (len(rows), 1))
    made = embedder.embed_passages(texts, None).vectors
    if len(places) == len(rows):
        return made
    vectors = np.tile(parked, (len(rows), 1))
    vectors[places] = made
    return vectors

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
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag._files import user_path
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.carrying import Carried, Carrying, vectors_of
from cde_rag.adoption.movable import PAGE, Movable, SourceChangedError, SourceHeldError, SourceRow, place_of
from cde_rag.adoption.move_journal import MoveJournal, MoveState, Step
from cde_rag.embedders.active import loaded
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, StoreError
from cde_rag.indexing.audit import Audit, Source, StoredVector, audit, unlike
from cde_rag.indexing.upsert import Progress

_PASSES: Final = 8  # over what the application writes meanwhile; what comes after waits for the next call
_MEAN_OF: Final = 64  # vectors whose mean direction rows without a text are turned away from
_SHOWN: Final = 20  # ids in a report
_LATER: Final = 1_024  # rows that were written since the switch whose vectors a repeated call compares
_THEIRS: Final = 0.5  # share of the old vectors that the old model makes, which may be mixed with others

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a copy.

    Attributes:
        rows: Rows of the source.
        embedded: Texts that were embedded by this call.
        truncated: Texts among these that are longer than the model reads; what is beyond its limit is not found.
        removed: Rows that were deleted from the copy, since the source does not have them any more.
        without_text: Ids of rows without a text, at most 20. They keep id and metadata, and come last in searches.
        without_text_count: Number of such rows.
        audit: Comparison of a sample of the new vectors, all of which were reproduced.
    """

    rows: int
    embedded: int
    truncated: int
    removed: int
    without_text: tuple[str, ...]
    without_text_count: int
    audit: Audit


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
    vector: str | None = None,
    seed: int = 0,
) -> Generator["Reembedding", None, None]:
    """Open the move of a store to another model, for the duration of a `with`; one that was begun goes on.

    Args:
        target: As in `source_of`, such as `chroma:folder#papers` or `pgvector:postgresql://me@localhost/app#papers`.
        journal: Folder of the move's state; by default next to the store, or for a server in the present folder.
        text: As in `source_of`.
        vector: As in `source_of`.
        seed: Random seed of samples.

    Raises:
        MissingExtraError: The client of that store is not installed.
        StoreError: There is no such store, it cannot be moved, or another process moves it.
    """
    with source_of(target, text=text, vector=vector, seed=seed) as source:
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
        context = self.journal.context(self.state)
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
        return self.source.line(embedder, self.journal.context_file(embedder.fingerprint))

    def copy(self, embedder: Embedder, *, on_progress: OnProgress | None = None) -> Copied:
        """Make the new vectors next to the old ones, until nothing is written meanwhile, and compare a sample.

        Args:
            embedder: Result of `embedder`.
            on_progress: Called after each page, and between its parts.

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
                f"{self.source.target}: expected old vectors in use, found step {state.step}. Nothing to copy. End the "
                "move by cde-rag release."
            )
        if state.step == "returned" and self.source.written_by_old_handles:
            self._compared(state, None, old=False, act="A copy")
        state = self._noted(replace(self._known(), step="copying"))
        embedded = truncated = removed = 0
        for number in range(_PASSES):
            version, copier = self.source.version(), _Pass(self, state, embedder, on_progress)
            copier.run()
            embedded, removed = embedded + copier.embedded, removed + copier.removed
            truncated += copier.truncated
            late = PAGE if number and self.source.written_by_old_handles else 0  # rows that `catch_up` brings
            if copier.changed > late:
                continue  # what was written during the pass
            try:
                state = self._noted(replace(state, notes=self.source.seal(state.notes, self.journal.parked())))
            except SourceChangedError as error:
                if error.notes is not None:
                    state = self._noted(replace(state, notes=dict(error.notes)))
                continue
            if self.source.version() == version:
                found = self._checked(state, embedder, late)
                lost = tuple(copier.without_text)
                return Copied(copier.rows, embedded, truncated, removed, lost, copier.without_text_count, found)
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
            StoreError: As in `copy`; the application writes all the time; or, of a repeated call, a program has written
                vectors of another model since.
        """
        state = self._begun(embedder)
        was_switched = state.step == "switched"
        for _ in range(_PASSES):
            if state.step == "switched":
                break
            if state.step != "switching":
                self.copy(embedder, on_progress=on_progress)
                state = self._noted(replace(self._known(), step="switching"))
            try:
                gap, switched = self.source.switch(state.notes), True
            except SourceHeldError:  # the next call copies again, since it may come days later
                self._noted(replace(state, step="copying"))
                raise
            except SourceChangedError:
                # an interrupted call may have switched, and the application saved more with the new model
                gap, switched = 0.0, self.source.is_switched(state.notes, embedder)
            step: Step = "switched" if switched else "copying"
            state = self._noted(replace(state, step=step, was_switched=switched, gap_s=gap))
        if state.step != "switched":
            raise StoreError(f"{self.source.target}: its application writes all the time. Run the command again.")
        carried = self.catch_up(embedder)
        if was_switched:
            self._check_later(state, embedder)
        return Switched(state.gap_s or 0.0, carried)

    def catch_up(self, embedder: Embedder) -> Carried:
        """Bring later writes to the old vectors, by programs that opened the store before the switch, to the new ones.

        Args:
            embedder: Result of `embedder`.

        Raises:
            StoreError: The vectors are not switched, or the application has put old ones back.
        """
        state = self._known(embedder)
        if state.step != "switched":
            raise StoreError(f"{self.source.target}: expected new vectors in use, found step {state.step}.")
        if not self.source.is_switched(state.notes, embedder):
            self._noted(replace(state, step="copying", was_switched=False, keeps_context=True))
            raise StoreError(
                f"{self.source.target}: expected the new vectors, found others: a program that had loaded the old ones "
                "has saved them since. Restart it with the new model, and run cde-rag reembed again."
            )
        if not self.source.written_by_old_handles:
            return Carried()
        return Carrying(self.source, self.journal, state, embedder, self.journal.parked(), old=True).run()

    def rollback(self, old: Embedder | None = None) -> Switched:
        """Put the old vectors back. The new ones stay, and `switch` returns to them.

        A repeated call brings what programs that opened the store before it have written to the new vectors.

        Args:
            old: Embedder of the old vectors, for texts that were written since the switch.

        Raises:
            StoreError: Nothing was switched; `old` did not make the old vectors; or rows were written since, and `old`
                is not given or the source cannot have them.
        """
        state, carried = self._known(), Carried()
        if state.step not in ("switching", "switched", "returning", "returned"):
            raise StoreError(f"{self.source.target}: expected a switch before a rollback, found step {state.step}.")
        if state.step == "switched" or self.source.written_by_old_handles:
            if old is not None and self.source.written_by_old_handles:
                found = audit(self.source.shadow(state.notes, old=True), old)
                if found.share < _THEIRS:
                    raise StoreError(f"{found.advice} Give --from with the model that made the old vectors.")
            carried = self._compared(state, old, old=False, act="A rollback")
        if state.step == "returned":
            return Switched(state.gap_s or 0.0, carried)
        self._noted(replace(state, step="returning"))
        try:
            gap = self.source.rollback(state.notes)
        except (SourceChangedError, SourceHeldError) as error:
            self._noted(replace(state, step="switched" if state.step == "returning" else state.step))
            raise StoreError(f"{error} If that does not help: cde-rag reembed continues the move.") from error
        self._noted(replace(state, step="returned", gap_s=gap, was_switched=False, keeps_context=False))
        return Switched(gap, carried)

    def release(self) -> None:
        """Delete the vectors that are not in use, and the journal: after a switch the old ones, else the new ones.

        Programs that opened the store before the switch hold the old vectors: restart them before. After a switch the
        file of the Context stays, since the application's line names it.

        Raises:
            StoreError: No move was begun; a switch or rollback was interrupted: repeat that first; or the vectors that
                would be deleted have rows that the others have not.
        """
        state = self._known()
        if state.step in ("switching", "returning"):
            call = "switch" if state.step == "switching" else "rollback"
            raise StoreError(f"{self.source.target}: a {call} was interrupted. Repeat it, then release.")
        if state.step in ("switched", "returned") and self.source.written_by_old_handles:
            self._compared(state, None, old=state.step == "switched", act="A release")
        self._noted(replace(state, step="releasing"))
        self.source.release(state.notes, switched=state.was_switched)
        self.journal.forget(state)

    def _known(self, embedder: Embedder | None = None) -> MoveState:
        """Return the state of a move of this store, and to this embedder."""
        state = self.state
        if state is None:
            raise StoreError(
                f"{self.source.target}: expected a move that was begun, found none at {self.journal.folder}."
            )
        if state.target != place_of(self.source):
            raise StoreError(
                f"{self.journal.folder}: expected a move of {self.source.target}, found one of {state.target}. "
                "Give another journal."
            )
        if embedder is not None and state.fingerprint != embedder.fingerprint:
            raise ContextMismatchError(expected=state.fingerprint, found=embedder.fingerprint)
        return state

    def _noted(self, state: MoveState) -> MoveState:
        self.journal.write(state)
        return state

    def _begun(self, embedder: Embedder) -> MoveState:
        if self.state is not None:
            return self._known(embedder)
        self.source.check(embedder)
        away = _away(self.source, embedder)
        notes = self.source.begin(self.journal.folder, embedder)
        name = embedder.context.identity.name
        state = MoveState(place_of(self.source), name, embedder.fingerprint, notes=notes)
        self.journal.begin(state, embedder.context, away)
        return state

    def _checked(self, state: MoveState, embedder: Embedder, late: int) -> Audit:
        """Compare a sample of the copy, and its number of rows, of which so many may have come since."""
        shadow = self.source.shadow(state.notes, old=False)
        stored, expected = shadow.count(), self.source.count()
        found = audit(shadow, embedder)
        if abs(stored - expected) > late or found.others:
            raise StoreError(
                f"{self.source.target}: expected {expected} vectors of {state.model} in the copy, found {stored}. "
                f"{found.advice} Run the command again; if that does not help, release the move and begin anew."
            )
        return found

    def _check_later(self, state: MoveState, embedder: Embedder) -> None:
        """Refuse rows with vectors of another model, which programs that were not restarted have written since."""
        later: dict[str, str] = {}
        for page in self.source.rows(state.notes, old=False):
            known = self.journal.digests([row.id for row in page])
            new = (row for row in page if row.text is not None and known.get(row.id) != row.digest)
            later.update(islice(((row.id, row.text or "") for row in new), _LATER - len(later)))
        others: list[str] = []
        for page in self.source.passages() if later else ():
            if found := [StoredVector(one.id, later[one.id], vector) for one, vector in page if one.id in later]:
                others += unlike(found, embedder)
        if others:
            shown = ", ".join(f"{id_!r:.80}" for id_ in others[:3])
            raise StoreError(
                f"{self.source.target}: expected vectors of {state.model}, found others in {len(others)} of "
                f"{len(later)} rows that were written since, such as {shown}. A program that has the old model wrote "
                "them, and they are not found. Restart it with the new line; then cde-rag release and cde-rag reembed "
                "make all vectors again."
            )

    def _compared(self, state: MoveState, embedder: Embedder | None, *, old: bool, act: str) -> Carried:
        """Bring writes to one side to the other, or refuse an act that would lose them."""
        remedy = "Run cde-rag reembed again, which brings them" if old else "Give cde-rag rollback --from OLD-MODEL"
        if not self.source.written_by_old_handles:
            remedy = "Move back by cde-rag release, then reembed --model OLD-MODEL, which has them, too"
        lost = f"{act} would lose them. {remedy}."
        parked = self.journal.parked()
        if embedder is not None and self.source.written_by_old_handles:  # rows go to the old vectors
            parked = _away(self.source.shadow(state.notes, old=True), embedder)
        return Carrying(self.source, self.journal, state, embedder, parked, old=old, lost=lost).run()


def _away(source: Source, embedder: Embedder) -> Float32[np.ndarray, " dim"]:
    """Return the vector of rows without a text: opposite to the mean of a sample of those with one."""
    sample = source.sample(_MEAN_OF)
    if not sample:
        raise CorpusError(f"{source.target}: expected texts, found none. There is nothing to embed.")
    made = embedder.embed_passages([each.text for each in sample], None).vectors.mean(axis=0, dtype=np.float64)
    return (-made / (np.linalg.norm(made) or 1.0)).astype(np.float32)


class _Pass:
    """One pass over the source's rows, which brings the new vectors up to date.

    Attributes:
        rows: Rows that were seen.
        embedded: Texts that were embedded.
        truncated: Texts among these that are longer than the model reads.
        removed: Rows that were deleted from the copy.
        without_text: Ids of the first rows without a text.
        without_text_count: Number of rows without a text.
        changed: Rows that were written or removed.
    """

    def __init__(self, move: Reembedding, state: MoveState, embedder: Embedder, report: OnProgress | None) -> None:
        self._source, self._journal = move.source, move.journal
        self._state, self._embedder, self._report = state, embedder, report
        self._parked, self._started, self._total = move.journal.parked(), time.monotonic(), 0
        self.rows = self.embedded = self.truncated = self.removed = self.without_text_count = 0
        self.without_text: list[str] = []
        self.changed = 0

    def run(self) -> None:
        """Compare all rows with their noted digests, and write those that are new or were changed."""
        number, notes, self._total = self._journal.new_pass(), self._state.notes, self._source.count()
        for page in self._source.rows(notes, old=True):
            once = list({row.id: row for row in page}.values())
            digests = {row.id: row.digest for row in once}
            known = self._journal.digests(digests)
            lacking = {row.id for row in self._source.lacking(notes, once, old=False)}
            stale = [row for row in once if known.get(row.id) != digests[row.id] or row.id in lacking]
            if stale:
                self.changed += len(stale)
                self._journal.note({row.id: "" for row in stale}, number)
                self._source.put(notes, stale, self._vectors(stale), old=False)
            self._journal.note(digests, number)
            self._count(once)
            self._tell(self.rows)
        for ids in self._journal.unseen(number, PAGE):
            self._source.remove(notes, ids, old=False)
            self._journal.drop(ids)
            self.removed, self.changed = self.removed + len(ids), self.changed + len(ids)

    def _vectors(self, rows: Sequence[SourceRow]) -> Float32[np.ndarray, "rows dim"]:
        """Embed the texts of rows, with a report between parts: a page may take a slow model minutes."""
        found: list[Float32[np.ndarray, "part dim"]] = []
        for start in range(0, len(rows), PAGE):
            if start:
                self._tell(self.rows + start)
            part = rows[start : start + PAGE]
            made = vectors_of(part, self._embedder, self._parked)
            self.embedded += sum(row.text is not None for row in part)
            self.truncated += int(made.truncated.sum())
            found.append(made.vectors)
        return np.concatenate(found)

    def _tell(self, done: int) -> None:
        if self._report is not None:
            self._report(Progress(done=done, total=self._total, elapsed_s=time.monotonic() - self._started))

    def _count(self, rows: Sequence[SourceRow]) -> None:
        self.rows += len(rows)
        lost = [row.id for row in rows if row.text is None]
        self.without_text_count += len(lost)
        self.without_text += lost[: _SHOWN - len(self.without_text)]

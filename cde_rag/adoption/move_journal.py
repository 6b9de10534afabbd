"""Journal of a move to another model: one folder, from which the move goes on after any kill.

move.json              target, step, model and notes of the source; replaced durably before and after each step
*.context.safetensors  Context of the new vectors, which the application loads: it stays when the move has ended
parked.npy             vector of rows without a text
rows.sqlite            id and digest of each row that was copied
lock                   held by the run in progress
"""

import io
import json
import shutil
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._files import fsync_folder, read_file, write_durably
from cde_rag.context.context import Context
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.files import check_path, locked

Step: TypeAlias = Literal["copying", "switching", "switched", "returning", "returned", "releasing"]
FORMAT: Final = 1
JOURNALS: Final = ".cde-move"  # end of the name of the folder with the journals of moves, next to a store
_STEPS: Final = ("copying", "switching", "switched", "returning", "returned", "releasing")
_STATE, _CONTEXT, _PARKED, _ROWS, _LOCK = "move.json", ".context.safetensors", "parked.npy", "rows.sqlite", "lock"
_TABLE: Final = "CREATE TABLE IF NOT EXISTS rows (id BLOB PRIMARY KEY, digest TEXT NOT NULL, pass INT NOT NULL)"


@dataclass(frozen=True, slots=True)
class MoveState:
    """State of a move.

    Attributes:
        target: Path of the store's default journal, or the target of a server.
        model: Name of the new model.
        fingerprint: Fingerprint of the new vectors' space.
        step: Last step that was begun.
        notes: Notes of the source; see `Movable`.
        was_switched: True if the vectors were switched before `releasing` began.
        gap_s: Seconds without vectors in the last switch or rollback; None before.
        keeps_context: True if the application may name the Context, though it has put others in the vectors' place.
    """

    target: str
    model: str
    fingerprint: str
    step: Step = "copying"
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    was_switched: bool = False
    gap_s: float | None = None
    keeps_context: bool = False


def moved_context(source: object) -> Context | None:
    """Return the Context that a move has kept next to a store whose vectors it made; None without such a move.

    Args:
        source: Store of another application, whose `home` is the folder of its moves.

    Raises:
        ContextFormatError: The Context is damaged.
        StoreFormatError: The state of the move is.
    """
    home: Path | None = getattr(source, "home", None)
    if home is None or not home.is_dir():
        return None
    journal = MoveJournal(home)
    state = journal.state()
    if state is not None:
        return journal.context(state) if state.step == "switched" else None
    kept = sorted(home.glob(f"*{_CONTEXT}"), key=lambda path: path.stat().st_mtime_ns)  # of a released move
    return Context.load(kept[-1]) if kept else None


class MoveJournal:
    """Folder of a move.

    Args:
        folder: Made with the first write.
    """

    def __init__(self, folder: Path) -> None:
        check_path(folder)
        self.folder = folder.absolute()  # the application's line names a file in it

    def context_file(self, fingerprint: str) -> Path:
        """Return the file of a Context; each has its own, since the application reads the last one until a switch."""
        return self.folder / f"{fingerprint[:16]}{_CONTEXT}"

    def state(self) -> MoveState | None:
        """Return the state; None before a move has begun.

        Raises:
            StoreFormatError: The file is damaged, or of a newer version.
        """
        path = self.folder / _STATE
        if not path.exists():
            return None
        try:
            written: dict[str, Any] = json.loads(read_file(path))
            found = written.pop("format"), written["step"] in _STEPS
            if found == (FORMAT, True):
                return MoveState(**written)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreFormatError(
                f"{path}: expected the state of a move, found another file ({error!s:.80})."
            ) from error
        raise StoreFormatError(f"{path}: expected format {FORMAT}, found another. Continue with a newer cde-rag.")

    def begin(self, state: MoveState, context: Context, parked: Float32[np.ndarray, " dim"]) -> None:
        """Write the first state; Context and parked vector are there before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        context.save(self.context_file(state.fingerprint))
        data = io.BytesIO()
        np.save(data, parked, allow_pickle=False)
        write_durably(self.folder / _PARKED, data.getvalue())
        self.write(state)

    def write(self, state: MoveState) -> None:
        """Write the state, durably."""
        write_durably(self.folder / _STATE, json.dumps({"format": FORMAT, **asdict(state)}, indent=2).encode())

    def context(self, state: MoveState) -> Context:
        """Return the Context of the new vectors.

        Raises:
            ContextFormatError: It is damaged.
        """
        return Context.load(self.context_file(state.fingerprint))

    def parked(self) -> Float32[np.ndarray, " dim"]:
        """Return the vector of rows without a text."""
        return np.load(self.folder / _PARKED, allow_pickle=False).astype(np.float32)

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """Hold the move for this process.

        Raises:
            StoreError: Another process holds it; or the folder has other files, which `forget` would delete.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_own()
        is_held = False  # a run that is refused must leave the lock's file to the one that holds it
        try:
            with locked(
                self.folder / _LOCK, f"{self.folder}: another run moves these vectors. Wait until it has ended"
            ):
                is_held = True
                yield
        finally:
            if is_held:
                self._leave()

    def forget(self, state: MoveState) -> None:
        """Delete the journal, its state last; without one there is no move. Contexts that are in use stay."""
        is_used = state.was_switched or state.keeps_context
        unused = None if is_used else self.context_file(state.fingerprint)
        for path in self.folder.iterdir():
            if path.name not in (_STATE, _LOCK) and (path == unused or not path.name.endswith(_CONTEXT)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        fsync_folder(self.folder)
        (self.folder / _STATE).unlink(missing_ok=True)
        fsync_folder(self.folder)

    def new_pass(self) -> int:
        """Return the number of a new pass over the source's rows."""
        with self._opened() as rows:
            return 1 + int(rows.execute("SELECT coalesce(max(pass), 0) FROM rows").fetchone()[0])

    def digests(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the digests of rows that are noted; an empty one is of a row whose copy may be incomplete."""
        with self._opened() as rows:
            query = "SELECT digest FROM rows WHERE id = ?"
            return {id_: found for id_ in ids for (found,) in rows.execute(query, (_bytes(id_),))}

    def note(self, digests: Mapping[str, str], number: int) -> None:
        """Note rows with their digests as seen in a pass."""
        with self._opened() as rows:
            rows.executemany(
                "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, "
                "pass = excluded.pass",
                [(_bytes(id_), digest, number) for id_, digest in digests.items()],
            )

    def unseen(self, number: int, size: int) -> Iterator[list[str]]:
        """Yield the ids that were not seen in a pass, at most `size` at once; the caller may forget them."""
        last = b""
        while True:
            with self._opened() as rows:
                query = "SELECT id FROM rows WHERE pass < ? AND id > ? ORDER BY id LIMIT ?"
                found = [bytes(row[0]) for row in rows.execute(query, (number, last, size))]
            if not found:
                return
            yield [_text(id_) for id_ in found]
            last = found[-1]

    def drop(self, ids: Iterable[str]) -> None:
        """Forget rows."""
        with self._opened() as rows:
            rows.executemany("DELETE FROM rows WHERE id = ?", [(_bytes(id_),) for id_ in ids])

    def _check_own(self) -> None:
        if (self.folder / _STATE).exists():
            return
        own = (_LOCK, _PARKED, _ROWS)  # of a first run that was killed before its state
        for path in self.folder.iterdir():
            is_temporary = path.name.startswith(".") and path.suffix == ".tmp"
            if path.name.removesuffix("-journal") not in own and not path.name.endswith(_CONTEXT) and not is_temporary:
                raise StoreError(
                    f"{self.folder}: expected a folder for the journal alone, which the move deletes when it ends, "
                    f"found {path.name!r:.80} in it. Name a new folder."
                )

    def _leave(self) -> None:
        """Delete the folder, and the one of all journals of a store, where no move was begun or it has ended."""
        left = {path.name for path in self.folder.iterdir() if not path.name.endswith(_CONTEXT)}
        if left <= {_LOCK}:
            with suppress(OSError):  # a Context stays, or another run has just come
                (self.folder / _LOCK).unlink(missing_ok=True)
                self.folder.rmdir()
                if self.folder.parent.name.endswith(JOURNALS):
                    self.folder.parent.rmdir()

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection, None, None]:
        path = self.folder / _ROWS
        try:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(_TABLE)
                with connection:
                    yield connection
        except sqlite3.OperationalError as error:
            raise StoreError(f"{path}: not writable ({error}). Make room, and run the same command again.") from error
        except sqlite3.DatabaseError as error:
            raise StoreFormatError(
                f"{path}: damaged ({error}). Delete the file; the rows are compared again."
            ) from error


def _bytes(id_: str) -> bytes:
    """Return an id as it is kept; those of applications may have NULs and lone surrogates."""
    return id_.encode("utf-8", "surrogatepass")


def _text(id_: bytes) -> str:
    return id_.decode("utf-8", "surrogatepass")

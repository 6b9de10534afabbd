"""Watch of folders by the command index: their changes are brought into the collection until Ctrl-C."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from cde_rag._files import user_path
from cde_rag.cli.collections import has_words
from cde_rag.cli.index_report import (
    ChangedFiles,
    are_most,
    documents_of,
    print_batch,
    print_noted,
    print_skipped,
)
from cde_rag.cli.output import printable, progress_lines, shown_place, updating
from cde_rag.errors import CDEError, CorpusError, StoreError, counted, require
from cde_rag.indexing.replacement import gone_passages, missing_documents
from cde_rag.readers.passages import is_hidden
from cde_rag.stores.store import Store

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.indexing.upsert import Progress
    from cde_rag.readers import RecordReader

QUIET_MS: Final = 200  # without a change, until those before it are read
LONGEST_MS: Final = 1_600  # from the first change to the reading of those until then
TICK_MS: Final = 400  # between looks at folders and at what is to be tried again
PAUSES_S: Final = (1.0, 60.0)  # the first and the longest, before what failed is tried again
_MOST_ASKED: Final = 64  # paths that are looked up one by one; of more, all documents of the folders are looked at


class FolderWatch:
    """Watch of folders, which begins with this object, so that no later change is missed.

    Files are read again when nothing has changed for `QUIET_MS`. Between two batches the store is released.

    Args:
        reader: Reader of folders alone.
        path: Folder or address of the collection.
        yes: Also delete more than half of the passages at a time.
        shown: As of `progress_bar`; lines in place of bars.
        as_json: Print a line of JSON for each batch.

    Raises:
        CDEError: The system cannot watch the folders.
        MissingExtraError: watchfiles is not installed.
    """

    def __init__(self, reader: "RecordReader", path: str, *, yes: bool, shown: bool | None, as_json: bool) -> None:
        self._module: Any = require("watchfiles", "watch")
        self._reader = reader
        self._path = path
        self._own = None if "://" in path else user_path(path).resolve()
        self._yes = yes
        self._shown = shown
        self._as_json = as_json
        self._folders = {folder.resolve(): 0 for folder in reader.folders}  # with the inodes that are watched
        self._due = set[Path]()  # paths that changed
        self._unfilled = False  # passages wait for vectors that could not be made
        self._pause_s, self._not_before, self._said = PAUSES_S[0], 0.0, ""
        self._events = self._begun()

    def follow(self, collection: "Collection", counts: dict[str, int]) -> None:
        """Delete the passages of files that are gone, print the first line, and follow the folders until Ctrl-C.

        Args:
            collection: Has the documents of the reader.
            counts: Changes of the run before.

        Raises:
            CDEError: A folder is gone, or the collection.
        """
        reader = self._reader
        try:
            gone = dict[str, str]()
            if missing_documents(collection.store, reader):
                gone = gone_passages(collection.store, reader, self._folders)
            removed, kept = self._deleted(collection, gone)
            batch = ChangedFiles(removed=removed, kept=kept, empty=reader.empty_files, faults=reader.reports)
            deleted = counts["deleted"] + (len(gone) if removed else 0)
            self._print(batch, collection, {**counts, "deleted": deleted})
            reader.reading = reader.decided  # all batches alike, without another look at all files
            reader.skip_bad = True  # one bad record keeps no other file from being read
            collection.close()
            typer.echo(printable(f"Watching {', '.join(map(str, self._folders))}. Ctrl-C ends it."), err=True)
            while True:
                self._wait()
                if (self._due or self._unfilled) and time.monotonic() >= self._not_before:
                    self._try(collection)
        except KeyboardInterrupt:
            self._say_end(collection)
        finally:
            self._events.close()

    def _begun(self) -> Generator[set[tuple[int, str]], None, None]:
        """Begin to watch; the events from now on."""
        self._folders = {folder: folder.stat().st_ino for folder in self._folders}
        events = self._module.watch(
            *self._folders,
            watch_filter=self._is_meant,
            debounce=LONGEST_MS,
            step=QUIET_MS,
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        try:
            self._due.update(Path(path) for _, path in next(events))  # a generator begins with its first call
        except (OSError, RuntimeError) as error:
            raise CDEError(
                f"The folders cannot be watched: {error}. Linux has a limit, fs.inotify.max_user_watches; with "
                "WATCHFILES_FORCE_POLLING=1 in the environment the files are looked at one by one."
            ) from error
        return events

    def _is_meant(self, change: int, name: str) -> bool:
        """Return True for a file that the reader may read, a folder that is new, and a path that is gone."""
        path = Path(name)
        if self._own is not None and path.is_relative_to(self._own):
            return False
        if not any(path.is_relative_to(each) and not is_hidden(path.relative_to(each)) for each in self._folders):
            return False
        if path.is_dir():
            return change == self._module.Change.added
        return not path.is_file() or self._reader.may_read(path)

    def _wait(self) -> None:
        """Wait for changes, or for a tick."""
        if changes := next(self._events):
            self._due.update(Path(path) for _, path in changes)
            self._not_before, self._pause_s = 0.0, PAUSES_S[0]
        for folder, inode in self._folders.items():
            try:
                found = folder.stat().st_ino
            except OSError as error:
                again = "Its passages stay. Run the same command again when it is back."
                raise CDEError(f"{folder}: expected a folder, found: {error.strerror}. {again}") from error
            if found != inode:  # another folder of its name, of which no event tells
                self._events.close()
                self._events = self._begun()
                self._due.add(folder)
                return

    def _try(self, collection: "Collection") -> None:
        """Bring the changes into the collection; a failure is said once, and all is tried again later."""
        try:
            with closing(collection):
                self._bring(frozenset(self._due), collection) if self._due else self._fill(collection)
        except CDEError as error:
            if _is_gone(collection.store):
                raise
            if isinstance(error, CorpusError) and not self._due:  # texts that the model refuses; all else is done
                self._unfilled = False
                self._say(str(error))
                return
            self._not_before = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSES_S[1])
            self._say(f"{error} It is tried again.")
        else:
            self._said = ""

    def _bring(self, due: frozenset[Path], collection: "Collection") -> None:
        """Write, delete, and make vectors; print the line of the batch once words find it."""
        reader, store = self._reader, collection.store
        reader.only = due
        self._unfilled = has_words(store)
        report = collection.add_records(
            reader, embed="later" if self._unfilled else "first", on_progress=self._lines("index")
        )
        print_skipped(reader)
        print_noted(reader)
        gone = [path for path in due if not path.is_file()]
        found = gone_passages(store, reader, gone if len(gone) <= _MOST_ASKED else self._folders)
        removed, kept = self._deleted(collection, found)
        self._due -= due
        counts = {**asdict(report), "skipped": reader.skipped}
        counts["deleted"] += len(found) if removed else 0
        batch = ChangedFiles(
            read=list(reader.documents), removed=removed, kept=kept, empty=reader.empty_files, faults=reader.reports
        )
        try:
            if self._unfilled:
                counts["truncated"] = self._fill(collection)
        finally:
            if any(counts.values()) or any(asdict(batch).values()):
                self._print(batch, collection, counts)

    def _fill(self, collection: "Collection") -> int:
        """Make the vectors that passages wait for; return the number of truncated texts."""
        truncated = collection.embed_pending(on_progress=self._lines("embed")).truncated
        self._unfilled = False
        return truncated

    def _lines(self, label: str) -> "Callable[[Progress], None] | None":
        """Return the progress of a run, which prints a line every ten seconds."""
        return None if self._shown is False else updating(progress_lines(label, "passages"))

    def _deleted(self, collection: "Collection", gone: dict[str, str]) -> tuple[list[str], list[str]]:
        """Delete passages whose files are gone; return the documents that are deleted, and those that stay.

        They stay if they are more than half of all: a folder that is not mounted, or another branch, is no removal.
        """
        documents = list(dict.fromkeys(gone.values()))
        if not gone:
            return [], []
        if not self._yes and are_most(gone, collection):
            count = counted(collection.count(), "passage")
            found = f"Files are gone that have {len(gone):,} of {count}, and the passages stay"
            remedy = "If that is right, run the same command with --yes"
            typer.echo(printable(f"{found}: {documents_of(gone)}. {remedy}."), err=True)
            return [], documents
        collection.delete(list(gone))
        return documents, []

    def _print(self, batch: ChangedFiles, collection: "Collection", counts: dict[str, int]) -> None:
        counts = {**counts, "pending": collection.pending}
        print_batch(batch, self._path, collection.count(), counts, as_json=self._as_json)

    def _say(self, message: str) -> None:
        """Print a message, unless it is that of the try before."""
        if message != self._said:
            typer.echo(printable(f"{shown_place(self._path)}: {message}"), err=True)
        self._said = message

    def _say_end(self, collection: "Collection") -> None:
        left = f"{len(self._due):,} changes are not read" if self._due else ""
        with suppress(StoreError):  # another process holds it
            if pending := collection.pending:
                left = f"{pending:,} of {counted(collection.count(), 'passage')} wait for their vectors"
        again = f"; {left}, until the same command runs again" if left else ""
        typer.echo(f"Stopped watching. {shown_place(self._path)} is searchable{again}.", err=True)


def _is_gone(store: Store) -> bool:
    """Return True if there is surely no collection any more."""
    try:
        return not store.exists()
    except StoreError:
        return False

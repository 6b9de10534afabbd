"""Messages and results of the command index."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import typer

from cde_rag.cli.output import print_json, print_json_line, printable, shown_place
from cde_rag.errors import counted, how_to_install

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.readers import RecordReader

_TABLES = 3  # files of records that a note names
_noted: ContextVar[set[str] | None] = ContextVar("_noted", default=None)  # notes that were printed; None for no record


@dataclass(frozen=True, kw_only=True)
class ChangedFiles:
    """Changed files of folders, and the documents that were read and removed for them.

    Attributes:
        read: Documents that were read.
        removed: Documents whose passages were deleted, since their files are gone.
        kept: Documents whose files are gone, too, and whose passages stay.
        empty: Files without a text, whose passages stay.
        faults: Reasons of files and records that cannot be used, whose passages stay.
    """

    read: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    empty: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])


@contextmanager
def notes_once() -> Generator[None, None, None]:
    """Print each note on files only once in this context, in which several indexes are made of the same files.

    Nor are the places of these indexes printed, which the user has not named.
    """
    token = _noted.set(set())
    try:
        yield
    finally:
        _noted.reset(token)


def _note(text: str) -> None:
    """Print a note on files."""
    noted = _noted.get()
    if noted is None or text not in noted:
        typer.echo(text, err=True)
    if noted is not None:
        noted.add(text)


def shown_index(path: str) -> str:
    """Return the place of an index in words; "The index" for one of those of `notes_once`."""
    return shown_place(path) if _noted.get() is None else "The index"


def print_state(text: str) -> None:
    """Print the state of a collection, but not of those of `notes_once`."""
    if _noted.get() is None:
        typer.echo(text, err=True)


def print_left_out(reader: "RecordReader") -> None:
    """Print the records that could not be used, and the files of the folders that were not read or guessed."""
    print_skipped(reader)
    _print_unread(reader)


def print_skipped(reader: "RecordReader") -> None:
    """Print the records that could not be used."""
    if reader.skipped:
        lines = [f"Skipped {reader.bad_in_words()}:", *(f"  {line}" for line in reader.reports)]
        if any("not UTF-8" in line for line in reader.reports):
            lines.append("To read texts in another encoding, add --encoding NAME.")
        _note("\n".join(map(printable, lines)))


def searchable(documents: int, pending: int, *, stopped: bool) -> str:
    """Return the rankings that a collection can answer by while passages wait for their vectors."""
    made = f"{documents - pending:,} of them" if documents > pending else "none"
    waiting = "" if stopped else f"; vectors of {pending:,} are being made"
    return f"searchable: {counted(documents, 'passage')} by words, {made} by vectors{waiting}"


def print_result(path: str, documents: int, counts: dict[str, int], *, as_json: bool) -> None:
    """Print the changes of a run."""
    if as_json:
        print_json({"documents": documents, **counts})
    else:
        typer.echo(_result(path, documents, counts))


def print_batch(batch: ChangedFiles, path: str, documents: int, counts: dict[str, int], *, as_json: bool) -> None:
    """Print the changes of a batch, on one line."""
    if as_json:
        print_json_line({"documents": documents, **counts, **asdict(batch)})
        return
    done = {"read": batch.read, "removed": batch.removed, "no text in": batch.empty}
    files = "".join(f"; {verb} {_named(names)}" for verb, names in done.items() if names)
    typer.echo(printable(f"{_result(path, documents, counts)}{files}"))


def _result(path: str, documents: int, counts: dict[str, int]) -> str:
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
    return f"{shown_place(path)}: {counted(documents, 'passage')} ({found})"


def _print_unread(reader: "RecordReader") -> None:
    """Print how many files of the folders are not read, by suffix, the kept fields, guessed encodings, empty files."""
    from cde_rag.readers.documents import DOCUMENTS
    from cde_rag.readers.passages import as_text_options, beir_remedy

    unread, lacking = reader.unread()
    if unread:
        kinds = ", ".join(f"{suffix} {count}" for suffix, count in unread.most_common(8))
        remedy = f" {how_to_install('documents')} to read documents." if DOCUMENTS & unread.keys() else ""
        if lacking:
            field = f"without a field {reader.fields.text!r}"
            some = "; ".join(f"{path} has {', '.join(found)}" for path, found in [*lacking.items()][:_TABLES])
            remedy += f" Files of rows {field} are left out ({some}); --fields text=FIELD names theirs."
            remedy += " Rows of an earlier run stay."
        if options := as_text_options(unread):
            remedy += f" To read them, add {options}."
        remedy += "".join(map(beir_remedy, reader.folders))
        _note(printable(f"Files not read: {kinds}.{remedy}"))
    kept = reader.kept_fields
    if kept is not None and kept.described in reader.read_by and not reader.fields.settings():
        _note(printable(f"Fields of this collection: {kept.described}."))
    print_noted(reader)


def print_noted(reader: "RecordReader") -> None:
    """Print guessed encodings, and empty files."""
    from cde_rag.readers.decoding import GUESS

    if guessed := list(dict.fromkeys(reader.guessed)):
        found = f"Not UTF-8, and read as {GUESS} by a guess: {_named(guessed)}."
        _note(printable(f"{found} If that is wrong, name the encoding: --encoding NAME."))
    if reader.empty_files:
        stored = "Passages of an earlier run stay; --sync deletes them."
        _note(printable(f"Files without text: {_named(reader.empty_files)}. {stored}"))


def are_most(passages: dict[str, str], collection: "Collection") -> bool:
    """Return True for more than half of a collection's passages."""
    return 2 * len(passages) > collection.count()


def warn_of_language(opened: "Collection", reader: "RecordReader", total: int) -> None:
    """Warn once of texts in other languages than a bundled model reads, with their number."""
    from cde_rag.models.files.model_files import reads_english_only

    name = opened.embedder.context.identity.name
    if reader.foreign and reads_english_only(name):
        some = f"{reader.foreign:,} of {counted(total, 'text')} {'does' if reader.foreign == 1 else 'do'}"
        found = f"{some} not look like English, the language that {name} reads"
        remedy = "Search --by bm25 finds them; for vectors take a multilingual model: --model cde-multilingual"
        _note(f"Warning: {found}. {remedy}.")


def print_plan(path: str, counts: dict[str, int], *, as_json: bool) -> None:
    """Print the changes that a run would make."""
    if as_json:
        print_json({"dry_run": True, **counts})
        return
    planned = {
        name: count for name, count in counts.items() if count and name not in ("documents", "unchanged", "skipped")
    }
    found = ", ".join(f"{count:,} {name}" for name, count in planned.items())
    would = f"A run would write: {found}." if found else "There is nothing to do."
    typer.echo(f"{shown_place(path)}: {counted(counts['documents'], 'passage')}. Nothing was written. {would}")


def print_missing(documents: list[str]) -> None:
    """Print documents that are no longer in the sources."""
    if documents:
        count = "1 document is" if len(documents) == 1 else f"{len(documents):,} documents are"
        found = f"{count} no longer in the sources, and the passages stay: {_named(documents)}. --sync deletes them."
        typer.echo(printable(found), err=True)


def print_stale(rows: dict[str, int]) -> None:
    """Print the numbers of rows that files of records no longer have."""
    if total := sum(rows.values()):
        count = "1 row is" if total == 1 else f"{total:,} rows are"
        named = _named([f"{name} ({number:,})" for name, number in rows.items()])
        remedy = "Rows are replaced by id alone. --sync deletes what is in none of the sources; name all of them"
        typer.echo(printable(f"{count} no longer in the file, and stored: {named}. {remedy}."), err=True)


def documents_of(passages: dict[str, str]) -> str:
    """Return the first names of the documents of passages, given by the passages' ids."""
    return _named(list(dict.fromkeys(passages.values())))


def _named(names: list[str]) -> str:
    """Return the first three names, and the number of the others."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"

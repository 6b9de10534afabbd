"""Uploads: a file that a client sends, and a file of the server that is read again, as passages of a collection."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from cde_rag.collection.collection import Collection
from cde_rag.errors import CorpusError, how_to_install
from cde_rag.field_names import key_of
from cde_rag.indexing.replacement import DocumentRecords
from cde_rag.indexing.upsert import AddReport, Progress
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, Fields, RecordReader, documents
from cde_rag.readers.parquet_check import check_parquet
from cde_rag.readers.passages import UPLOADED_KEY, UPLOADS, document_of, formats_in_words
from cde_rag.readers.reader import DELIMITERS, JSONL, OTHER_FORMATS, PARQUET, SPLIT
from cde_rag.readers.row_origin import public_origin
from cde_rag.records import Record
from cde_rag.server.error_responses import RequestError
from cde_rag.server.jobs import FailedRunError

TABLES: Final = JSONL | DELIMITERS.keys() | {PARQUET}  # files of a record per line or row
SPREADSHEETS: Final = frozenset({".xlsx", ".xlsm", ".xls", ".ods"})
MAX_NAME_BYTES: Final = 200  # file systems take 255
ROLES: Final = ("id", "text", "title")  # of a table's columns
LONGEST_EXAMPLE: Final = 200  # characters of a value that a client is shown
_EMPTY: Final = "the file holds no text"


def accepted_suffixes() -> list[str]:
    """Return the suffixes of files that can be sent, in order; those of documents need the extra `documents`."""
    return sorted((SPLIT if documents.readable() else SPLIT - documents.DOCUMENTS) | TABLES)


def check_upload(filename: str) -> None:
    """Refuse a name that is no file's, or of another format.

    Raises:
        RequestError: 400.
    """
    if filename != Path(filename).name or "\\" in filename or not filename.isprintable():
        message = f"Expected the name of a file without folders, found {filename!r}. Send the name alone."
        raise RequestError(400, message, param="filename", code="invalid_value")
    suffix = Path(filename).suffix.lower()
    if suffix in documents.DOCUMENTS and not documents.readable():
        message = f"{filename}: this server does not read {suffix} files. {how_to_install('documents')}."
        raise RequestError(400, message, param="filename", code="invalid_value")
    if suffix in SPREADSHEETS:
        message = (
            f"{filename} is a spreadsheet, which is not read. Save the sheet as CSV UTF-8 there, and send that file."
        )
        raise RequestError(400, message, param="filename", code="invalid_value")
    if filename.startswith(".") or suffix not in accepted_suffixes():
        message = (
            f"{filename} is of a format that is not read. Send a file of {formats_in_words(*OTHER_FORMATS)}; "
            "GET /v1/collections/NAME/overview lists their suffixes."
        )
        raise RequestError(400, message, param="filename", code="invalid_value")
    if (size := len(filename.encode())) > MAX_NAME_BYTES:
        message = (
            f"filename: expected at most {MAX_NAME_BYTES} bytes of UTF-8, found {size}. Give the file a shorter name."
        )
        raise RequestError(400, message, param="filename", code="invalid_value")


def named_columns(filename: str, fields: Sequence[str]) -> Fields:
    """Return the columns of a table that have a role.

    Args:
        filename: Name that `check_upload` passed.
        fields: A role and a column each, such as "text=body", as of `cde-rag index --fields`.

    Raises:
        RequestError: 400: an unknown role, one that comes twice, two of one column, or a file that is no table.
    """
    found = dict[str, str]()
    for each in fields:
        role, _, column = each.partition("=")
        if role not in ROLES or not column or role in found or column in found.values():
            message = (
                f"fields: expected id=COLUMN, text=COLUMN and title=COLUMN, or some of them, each once and of another "
                f"column, found {each!r:.80}."
            )
            raise RequestError(400, message, param="fields", code="invalid_value")
        found[role] = column
    if found and Path(filename).suffix.lower() not in TABLES:
        message = f"fields: expected a table, found {filename}, which has no columns. Leave fields out."
        raise RequestError(400, message, param="fields", code="invalid_value")
    return Fields(**found)


def uploaded(
    collection: Collection,
    filename: str,
    content: bytes,
    on_progress: Callable[[Progress], None],
    fields: Fields | None = None,
) -> dict[str, Any]:
    """Add the passages of a file, in place of those of the document with its name; or the rows of a table.

    A file that was indexed from a folder or a path has that name, too, and is replaced if it is the only document of
    the name. If there are several, the upload is a document of its own.

    Args:
        collection: Collection that gets them; the file is the passages' parent.
        filename: Name that `check_upload` passed.
        content: The file.
        on_progress: Called after each chunk is written.
        fields: Columns of a table; the parent is the collection's.

    Returns:
        The counts of `AddReport`, the `source` of the document, `doubles`, the other documents of its name, and
        `guessed`, with the file's name if it is not UTF-8 and was read as windows-1252; of a table also `skipped`, the
        number of rows that are left out, with their `reasons`.

    Raises:
        CorpusError: The file holds no text, cannot be read, or takes too much.
        FailedRunError: A table has no column of texts; the result has its `columns`, each with `name` and `example`.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve() / UPLOADS
        place.mkdir()
        file = place / filename
        file.write_bytes(content)
        if file.suffix.lower() == PARQUET:
            check_parquet(file)
        reader = RecordReader(file, fields=fields, skip_bad=True, guess_encoding=True)
        reader.roots = frozenset({place})
        collection.prepare_reader(reader)
        if not reader.splits:
            return _with_rows(collection, reader, file, on_progress)
        passages = list(reader)
    stored = _documents(collection, filename)
    own = {PARENT_KEY: f"{UPLOADS}/{filename}"}
    target = next(iter(stored.values())) if len(stored) == 1 else own
    source = target[PARENT_KEY]
    _check_read(reader, filename, passages)
    records = _dated(collection, [_placed(record, target, collection.parent_key) for record in passages])
    report = collection.add_records(DocumentRecords(records, {source: len(records)}), on_progress=on_progress)
    return _result(report, reader, filename, source=source, doubles=sorted(stored.keys() - {source}))


def reindexed(collection: Collection, path: Path, on_progress: Callable[[Progress], None]) -> dict[str, Any]:
    """Read a file of this machine again, in place of its stored passages.

    Returns:
        As of `uploaded`.

    Raises:
        CorpusError: The file holds no text, or cannot be read; its passages stay as they are.
    """
    reader = RecordReader(path, skip_bad=True, guess_encoding=True)
    report = collection.add_records(reader, on_progress=on_progress)
    _check_read(reader, path.name, [*reader.documents])
    return _result(report, reader, path.name, source=next(iter(reader.documents)))


def _with_rows(
    collection: Collection, reader: RecordReader, path: Path, on_progress: Callable[[Progress], None]
) -> dict[str, Any]:
    reader.fields = replace(reader.fields, parent=collection.parent_key)
    try:
        report = collection.add_records(map(_without_folder, reader), on_progress=on_progress)
    except CorpusError as error:  # it names the file by a path that the client does not know
        raise CorpusError(str(error).replace(str(path), path.name)) from error
    collection.keep_fields(reader)
    reasons = [reason.replace(str(path), path.name) for reason in reader.reports]
    if not report.added + report.replaced + report.updated + report.unchanged:
        columns = reader.first_columns(path)
        if columns and reader.fields.text not in columns:
            raise FailedRunError(
                f"{path.name}: expected texts in a column {reader.fields.text!r}, found the columns "
                f"{', '.join(map(repr, columns))}. Name the one that holds the texts (fields=text=COLUMN).",
                {"columns": [{"name": name, "example": _example(value)} for name, value in columns.items()]},
            )
        raise CorpusError(f"{path.name} has no row that can be added: {'; '.join(reasons) or 'it is empty'}.")
    return {
        **_result(report, reader, path.name, source=path.name),
        "skipped": reader.skipped,
        "reasons": reasons,
    }


def _result(
    report: AddReport, reader: RecordReader, filename: str, *, source: str, doubles: Sequence[str] = ()
) -> dict[str, Any]:
    guessed = [filename] if reader.guessed else []
    return {**asdict(report), "source": source, "doubles": list(doubles), "guessed": guessed}


def _example(value: object) -> str:
    return str(value)[:LONGEST_EXAMPLE] if isinstance(value, str | int | float) else ""


def _without_folder(record: Record) -> Record:
    """Return a row without the folder that an upload was read from, which is gone afterwards."""
    return replace(record, metadata=public_origin(record.metadata))


def _check_read(reader: RecordReader, filename: str, found: Sequence[object]) -> None:
    """Refuse a file that gave no passages, with the reason and the name that the client knows."""
    reason = reader.reports[0].rpartition(f"{filename}: ")[2] if reader.reports else _EMPTY
    if reason == _EMPTY and not found:
        raise CorpusError(f"{filename} holds no text, so its passages stay as they are. Delete them, or send the text.")
    if reader.reports:
        raise CorpusError(f"{filename}: {reason}. Mend the file, and send it again.")


def _dated(collection: Collection, records: Sequence[Record]) -> list[Record]:
    """Return passages with the present time; those that are stored with the same text keep theirs."""
    stored = {record.id: record for record in collection.get([record.id for record in records])}
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found: list[Record] = []
    for record in records:
        before = stored.get(record.id)
        date = before.metadata.get(UPLOADED_KEY) if before is not None and before.text == record.text else now
        found.append(replace(record, metadata={**record.metadata, UPLOADED_KEY: date}) if date is not None else record)
    return found


def _documents(collection: Collection, filename: str) -> dict[str, dict[str, str]]:
    """Return the metadata that name each stored document of a name, by `source`."""
    where = {"or": [{PARENT_KEY: filename}, {PARENT_KEY: {"contains": f"/{filename}"}}]}
    found: dict[str, dict[str, str]] = {}
    for record in collection.scroll(where):
        source = document_of(record)
        if source is not None and source.rpartition("/")[2] == filename:
            found[source] = {key: record.metadata[key] for key in (PARENT_KEY, FOLDER_KEY) if key in record.metadata}
    return found


def _placed(record: Record, target: Mapping[str, str], parent_key: str | None) -> Record:
    """Return a passage as one of the document that metadata name."""
    source, number = target[PARENT_KEY], record.id.rpartition("#")[2]
    metadata = {key: value for key, value in record.metadata.items() if key != FOLDER_KEY} | dict(target)
    if parent_key is not None:
        metadata[key_of(parent_key)] = source
    return replace(record, id=f"{source}#{number}", metadata=metadata)

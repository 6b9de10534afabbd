"""Uploads: a text or Markdown file that a client sends, split into passages and added to a collection."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from cde_rag.collection.collection import Collection
from cde_rag.errors import CorpusError
from cde_rag.field_names import key_of
from cde_rag.indexing.replacement import DocumentRecords
from cde_rag.indexing.upsert import Progress
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, RecordReader
from cde_rag.readers.passages import document_of
from cde_rag.records import Record
from cde_rag.server.error_responses import RequestError

SUFFIXES: Final = (".md", ".markdown", ".txt", ".text", ".rst")
MAX_NAME_BYTES: Final = 200  # file systems take 255
PLACE: Final = "uploads"  # the folder that passages name in front of their file


def check_upload(filename: str) -> None:
    """Refuse a name that is no file's, or of another format.

    Raises:
        RequestError: 400.
    """
    plain = filename == Path(filename).name and "\\" not in filename and filename.isprintable()
    if not plain or filename.startswith(".") or Path(filename).suffix.lower() not in SUFFIXES:
        message = f"filename: expected a name without folders that ends in {', '.join(SUFFIXES)}, found {filename!r}."
        raise RequestError(400, message, param="filename", code="invalid_value")
    if (size := len(filename.encode())) > MAX_NAME_BYTES:
        message = (
            f"filename: expected at most {MAX_NAME_BYTES} bytes of UTF-8, found {size}. Give the file a shorter name."
        )
        raise RequestError(400, message, param="filename", code="invalid_value")


def uploaded(
    collection: Collection, filename: str, content: bytes, on_progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """Add the passages of a file, in place of those of the document with its name.

    A file that was indexed from a folder or a path has that name, too, and is replaced if it is the only document of
    the name. If there are several, the upload is a document of its own.

    Args:
        collection: Collection that gets them; the file is the passages' parent.
        filename: Name that `check_upload` passed.
        content: The file, UTF-8.
        on_progress: Called after each chunk is written.

    Returns:
        The counts of `AddReport`, the `source` of the document, and `doubles`, the other documents of its name.

    Raises:
        CorpusError: The file holds no text, or is not UTF-8.
    """
    stored = _documents(collection, filename)
    own = {PARENT_KEY: f"{PLACE}/{filename}"}
    target = next(iter(stored.values())) if len(stored) == 1 else own
    source = target[PARENT_KEY]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / PLACE
        place.mkdir()
        (place / filename).write_bytes(content)
        reader = RecordReader(place, skip_bad=True)
        collection.prepare_reader(reader)
        records = [_placed(record, target, collection.parent_key) for record in reader]
    if reader.reports:
        reason = reader.reports[0].rpartition(f"{PLACE}/{filename}: ")[2]
        raise CorpusError(f"{filename}: {reason}. Save it as text in UTF-8, and send it again.")
    if not records:
        raise CorpusError(f"{filename} holds no text, so its passages stay as they are. Delete them, or send the text.")
    documents = DocumentRecords(records, {source: len(records)})
    report = collection.add_records(documents, on_progress=on_progress)
    return {**asdict(report), "source": source, "doubles": sorted(stored.keys() - {source})}


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

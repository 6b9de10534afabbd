"""Uploads: a text or Markdown file that a client sends, split into passages and added to a collection."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from cde_rag.collection.collection import Collection
from cde_rag.errors import CorpusError
from cde_rag.indexing.upsert import Progress
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, RecordReader
from cde_rag.server.error_responses import RequestError
from cde_rag.stores.base import Record
from cde_rag.stores.field_names import key_of

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
    """Add the passages of a file, and delete those of the same file that it no longer has.

    Args:
        collection: Collection that gets them; the file is the passages' parent.
        filename: Name that `check_upload` passed.
        content: The file, UTF-8.
        on_progress: Called after each chunk is written.

    Raises:
        CorpusError: The file holds no text, or is not UTF-8.
    """
    source, parent_key = f"{PLACE}/{filename}", collection.parent_key
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / PLACE
        place.mkdir()
        (place / filename).write_bytes(content)
        reader = RecordReader(place, skip_bad=True)
        records = [_placed(record, source, parent_key) for record in reader]
    if reader.reports:
        reason = reader.reports[0].rpartition(f"{PLACE}/{filename}: ")[2]
        raise CorpusError(f"{filename}: {reason}. Save it as text in UTF-8, and send it again.")
    if not records:
        raise CorpusError(f"{filename} holds no text, so its passages stay as they are. Delete them, or send the text.")
    before = {record.id for record in collection.scroll({PARENT_KEY: source})}
    report = collection.add_records(records, on_progress=on_progress)
    gone = before - {record.id for record in records}
    if gone:
        collection.delete(sorted(gone))
    return {**asdict(report), "deleted": len(gone), "source": source}


def _placed(record: Record, source: str, parent_key: str | None) -> Record:
    metadata = {key: value for key, value in record.metadata.items() if key != FOLDER_KEY}
    metadata[PARENT_KEY] = source
    if parent_key is not None:
        metadata[key_of(parent_key)] = source
    return replace(record, metadata=metadata)

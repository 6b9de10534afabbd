"""Any mix of input files as one stream of records that can be read again."""

import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from io import BufferedIOBase
from itertools import chain
from pathlib import Path

from cde_rag.errors import CorpusError
from cde_rag.reading import tables
from cde_rag.reading.passages import MARKDOWN, PARENT_KEY, TEXT, passages, text_files
from cde_rag.reading.records import BadRecord, Fields
from cde_rag.stores.base import Record

JSONL = frozenset({".jsonl", ".ndjson", ".json"})
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = ".parquet"
STDIN = Path("-")
REPORTS = 20  # bad records that are remembered in words; all are counted


class RecordReader:
    """The records of files and folders, read as a stream each time it is iterated.

    Args:
        sources: Each is a file of records (`.jsonl`, `.csv`, `.tsv`, these with `.gz`, or `.parquet`), a text or
            Markdown file, a folder of text and Markdown files, or `"-"` for JSONL on standard input.
        fields: Which field of a record is what; see `Fields` for the default.
        skip_bad: Pass over records that cannot be used, and count them, instead of raising at the first.
        max_characters: Longest passage of a text file.

    Attributes:
        parent_key: The metadata key that names the parent of a passage, where any source is split into passages.
        skipped: How many bad records the latest iteration passed over.
        reports: The first 20 of them, in words.

    Raises:
        CorpusError: A source that does not exist, is of no known format or shares its name; while iterating, a file
            that cannot be read on, or a record that cannot be used, with its file, line and reason.

    Example:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "birds.jsonl"
        >>> _ = path.write_text(json.dumps({"id": 7, "text": "Swifts sleep on the wing.", "year": 2016}))
        >>> list(RecordReader(path))
        [Record(id='7', text='Swifts sleep on the wing.', title='', metadata={'year': 2016})]
    """

    def __init__(
        self, *sources: str | Path, fields: Fields | None = None, skip_bad: bool = False, max_characters: int = 1000
    ) -> None:
        self.fields = fields or Fields()
        self.skip_bad = skip_bad
        self.max_characters = max_characters
        self.skipped = 0
        self.reports: list[str] = []
        self._sources = [_checked(source) for source in sources]
        split = [path.resolve().name for path in self._sources if path.is_dir() or _format(path) in MARKDOWN | TEXT]
        if len(set(split)) < len(split):
            raise CorpusError(
                f"Two sources have one name, which their passages would share: {split}. Rename one of them."
            )
        self.parent_key = PARENT_KEY if split else None

    def __iter__(self) -> Iterator[Record]:
        self.skipped, self.reports = 0, []
        for record in chain.from_iterable(map(self._read, self._sources)):
            if isinstance(record, Record):
                yield record
                continue
            if not self.skip_bad:
                raise CorpusError(f"{record}. Mend it, or skip bad records (skip_bad=True, --skip-bad).")
            self.skipped += 1
            if len(self.reports) < REPORTS:
                self.reports.append(str(record))

    def _read(self, path: Path) -> Iterator[Record | BadRecord]:
        if path.is_dir():
            root = path.resolve().name
            for file in text_files(path):
                source = f"{root}/{file.relative_to(path).as_posix()}"
                yield from passages(file, source, max_characters=self.max_characters)
        elif _format(path) in MARKDOWN | TEXT:
            yield from passages(path, path.name, max_characters=self.max_characters)
        elif _format(path) == PARQUET:
            yield from tables.records(tables.parquet_rows(path), self.fields)
        elif path == STDIN:
            self._stdin.seek(0)
            yield from tables.records(tables.jsonl_rows(self._stdin, "standard input"), self.fields)
        else:
            with tables.opened(path) as file:
                delimiter = DELIMITERS.get(_format(path))
                rows = tables.csv_rows(file, str(path), delimiter) if delimiter else tables.jsonl_rows(file, str(path))
                yield from tables.records(rows, self.fields)

    @cached_property
    def _stdin(self) -> BufferedIOBase:
        """Standard input, kept in a temporary file that has no name and vanishes with this object."""
        spool = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, spool.close)
        shutil.copyfileobj(sys.stdin.buffer, spool)
        return spool


def _format(path: Path) -> str:
    """The suffix that tells the format: of JSONL and CSV the one in front of `.gz`."""
    outer, inner = path.suffix.lower(), path.with_suffix("").suffix.lower()
    return inner if outer == ".gz" and (inner in JSONL or inner in DELIMITERS) else outer


def _checked(source: str | Path) -> Path:
    path = Path(source)
    if path == STDIN or path.is_dir():
        return path
    if not path.exists():
        raise CorpusError(f"{path} does not exist. Name a file or a folder of texts, or '-' for standard input.")
    known = [*sorted(JSONL), *DELIMITERS, PARQUET, *sorted(MARKDOWN | TEXT)]
    if _format(path) not in known:
        raise CorpusError(
            f"{path} is of an unknown format. Expected a folder or a file that ends in {', '.join(known)}."
        )
    return path

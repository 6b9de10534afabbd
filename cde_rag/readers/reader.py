"""Any mix of input files as one stream of records that can be read again.

Long because one class reads all kinds of sources and keeps the notes of each iteration.
"""

import re
import shutil
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from io import BufferedIOBase
from itertools import chain, groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast

from cde_rag._files import given_path, written
from cde_rag._validation import check_list, check_positive
from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import CorpusError, UnreadFilesWarning, counted, warn_user
from cde_rag.field_names import names_of
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.model import Model
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.readers import tables
from cde_rag.readers.columns import NO_FIELD, EmptyFileError, Fields, Found, UnusableError
from cde_rag.readers.decoding import GUESS, Fallback
from cde_rag.readers.documents import DOCUMENTS
from cde_rag.readers.languages import is_english
from cde_rag.readers.pages import CODE, MARKDOWN, PAGES, TEXT
from cde_rag.readers.passages import (
    FOLDER_KEY,
    PARENT_KEY,
    FolderFiles,
    KeptPassages,
    PassageRules,
    beir_remedy,
    document_of,
    file_passages,
    folder_files,
    folder_passages,
    formats_in_words,
    is_mostly_code,
    kind_of,
    named_file,
    source_of,
)
from cde_rag.readers.reading_rules import NEWEST, OLD, ReadingRules
from cde_rag.readers.row_origin import PLACE_BITS, TABLE_KEY, RowPlace, TableFile, with_origin
from cde_rag.records import Record

SPLIT = MARKDOWN | TEXT | PAGES | CODE | DOCUMENTS
MODEL: Final = "cde-mini"  # whose tokens are counted where no collection names another
JSONL = frozenset({".jsonl", ".ndjson", ".json"})
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = ".parquet"
TABLES: Final = JSONL - {".json"} | DELIMITERS.keys() | {PARQUET}  # files of rows that are read in folders
OTHER_FORMATS: Final = ("source code", "JSON", "JSONL", "CSV", "TSV", "Parquet")  # formats of files that are named
STDIN = Path("-")
REPORTS = 20  # reasons of bad records that are remembered in words; all records are counted
_PLACE = re.compile(r", (?:line|row|character) \d+$")  # in a file
_TEXT_BITS: Final = 64
_MASK: Final = (1 << _TEXT_BITS) - 1


class UnreadFiles(NamedTuple):
    """Files in folders that are not read.

    Attributes:
        kinds: Number of the files by suffix.
        tables: Files of records that lack the field of texts, each with the fields that it has.
    """

    kinds: Counter[str]
    tables: dict[Path, list[str]]


class RecordReader:
    """Iterable of the records in files and folders, streamed anew at each iteration.

    An iteration keeps about a hundred bytes per record in memory, to detect repeated ids, and up to 32 MB of passages
    of files, so that the next one does not split them again. Rows of files have their origin in the metadata, `table`:
    file and row; see `row_origin`. `Collection.add_records(reader)` replaces the passages of the reader's text
    documents; of other iterables of its records it upserts each alone.

    Args:
        sources: Each is a file of records (`.jsonl`, `.csv`, `.tsv`, these with `.gz`, `.parquet`, or `.json` with an
            object a line or an array of objects), a text, Markdown, notebook or source file, with the extra `documents`
            a PDF, HTML, Word or PowerPoint file, a folder of these, or `"-"` for JSONL on standard input. Of the files
            of records in a folder those are read that have the field of texts; `.json` files are named one by one.
        fields: Mapping of fields; see `Fields` for the default. If sources are split into passages and no parent is
            named, the parent is `source`. A collection keeps the fields that are given here.
        skip_bad: True: skip and count unusable records instead of raising. "in folders": only files in folders, and
            rows of these, that cannot be used; an id that comes twice is an error.
        max_characters: Longest passage of a text file in characters, read by the rules of 0.2:
            `ReadingRules(characters=max_characters, rules=1)`. None: as `reading` says.
        max_line_bytes: Longest line of JSONL or CSV; a longer one is a bad record. Also the longest array of JSON.
        as_text: Suffixes of further files that are read as plain text, such as ".xml"; "." for files without one.
        reading: Rules by which files become passages. None: those of the collection that the records are added to, or
            of new ones. A collection keeps the rules that are given here.
        guess_encoding: True: read texts and rows that are not UTF-8 as windows-1252 if they look like it; `guessed`
            names them. The rules' `encoding` goes first.

    Attributes:
        reading: As given; may be set.
        fields: As given; may be set, such as to the parent of the collection that the records go to.
        kept_fields: Fields that the collection keeps; None if it keeps none. If `fields` are the default ones, a file
            of records that has these is read by them. May be set.
        read_by: The fields that are not the default ones by which the latest iteration found records in files, each as
            `Fields.described`.
        only: Absolute paths of the files, and of folders with the files, that iterations read of the folders among the
            sources; None, which is the default, for all. May be set.
        documents: Number of passages of each document that the latest iteration read, by `source`; each is known before
            the document's first passage comes.
        files: The files among the sources that are split into passages.
        row_files: The files of records among the sources.
        folders: The folders among the sources.
        roots: Absolute paths of the folders that name the files in them: `folders`, and those of the collection that
            the records were added to last.
        splits: True if there are text files among the sources, which are split into passages.
        empty_files: Files without a text that the latest iteration passed over.
        guessed: Files of the latest iteration that were read in a guessed encoding.
        foreign: Number of records of the latest iteration that are surely not in English.
        skipped: Number of bad records and files that the latest iteration skipped.
        bad_files: Absolute paths of the bad files among them that are split into passages.
        good_tables: Files of records that the latest iteration read without a bad record.
        keys: The metadata fields that occurred: their keys, for fields of inner objects joined by dots.

    Raises:
        CorpusError: A source that does not exist or is of no known format, or two folders of one name; while iterating,
            a file that cannot be read on, or a record that cannot be used or has the id of another text, with its
            file, line and reason.
        TypeError: A limit that is no whole number.
        ValueError: A limit below 1, or both `max_characters` and `reading`.

    Examples:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "birds.jsonl"
        >>> _ = path.write_text(json.dumps({"id": 7, "text": "Swifts sleep on the wing.", "year": 2016}))
        >>> for record in RecordReader(path):
        ...     print(record.id, record.text, record.metadata["year"])
        7 Swifts sleep on the wing. 2016
    """

    def __init__(
        self,
        *sources: str | Path,
        fields: Fields | None = None,
        skip_bad: bool | Literal["in folders"] = False,
        max_characters: int | None = None,
        max_line_bytes: int = tables.MAX_LINE_BYTES,
        as_text: Sequence[str] = (),
        reading: ReadingRules | None = None,
        guess_encoding: bool = False,
    ) -> None:
        self._as_text = _suffixes(as_text)
        self._guesses = guess_encoding
        self.guessed: list[str] = []
        self.skip_bad = skip_bad
        self.max_line_bytes = min(check_positive(max_line_bytes, "max_line_bytes"), sys.maxsize - 1)
        if max_characters is not None:
            if reading is not None:
                raise ValueError("Give max_characters or reading, which has characters, too.")
            reading = replace(OLD, characters=check_positive(max_characters, "max_characters"))
        self.reading = reading
        self._stored: ReadingRules = NEWEST
        self._counter: tuple[Callable[[Sequence[str]], int], int | None] | None = None
        self._tokens_of: ModelIdentity | None = None
        self._kept = KeptPassages()
        self.foreign = self.skipped = 0
        self.bad_files: list[Path] = []
        self._read_ids = dict[int, int]()  # by the hash of an id, that of its title and text, and its first place
        self._files: list[TableFile] = []  # of records, that the iteration read so far
        self._table: TableFile | None = None  # the present one, if rows are to have origins
        self.good_tables: list[TableFile] = []
        self._numbers: dict[tuple[Path, Fields, tuple[int, ...]], frozenset[str]] = {}  # columns of each CSV
        self._refused = False  # a fault of the latest iteration is no skipped one
        self.empty_files: list[str] = []
        self._faults: dict[tuple[str, str], tuple[str, int]] = {}  # by file and reason: the first place, and how many
        self.keys: set[str] = set()
        self.only: frozenset[Path] | None = None
        self._sources = [_checked(source, self._as_text) for source in sources]
        self.documents: dict[str, int] = {}
        self.folders = [path for path in self._sources if path.is_dir()]
        self.files = [path for path in self._sources if path not in self.folders and self._is_split(path)]
        self.row_files = [path for path in self._sources if path not in (*self.folders, *self.files, STDIN)]
        self.roots = frozenset(path.resolve() for path in self.folders)
        names = [path.resolve().name for path in self.folders]
        if len(set(names)) < len(names):
            raise CorpusError(
                f"Two folders have one name, which their passages would share: {names}. Rename one of them."
            )
        self.splits = bool(self.folders or self.files)
        self.kept_fields: Fields | None = None
        self.read_by = set[str]()
        self.fields = fields or Fields()
        if self.splits and self.fields.parent is None:
            self.fields = replace(self.fields, parent=PARENT_KEY)

    def __iter__(self) -> Iterator[Record]:
        self.empty_files, self.foreign, self.skipped, self._faults, self.keys = [], 0, 0, {}, set()
        self.guessed, self.bad_files, self._refused, self.read_by = [], [], False, set[str]()
        self.documents.clear()
        self.good_tables, self._read_ids, self._files = [], dict[int, int](), []
        stopped = False
        for where, found in self._found():
            reason, passed = found, self._is_skipped(where)
            if self._is_passed_over(where, found):
                self.empty_files.append(where)
                continue
            if isinstance(found, Record):
                if (record := self._first(where, found)) is not None:
                    if stopped:
                        continue
                    self.keys.update(names_of(found.metadata))
                    self.foreign += not is_english(found.text)
                    yield record
                    continue
                reason = UnusableError(f"the id {found.id!r:.80} came before, with another title or text")
                passed = self.skip_bad is True
            self.skipped += 1
            self._refused |= not passed
            self._report(where, str(reason))
            stopped |= not passed and not self._is_file_of_folder(where)  # the rest is read to name all
        if self._refused:
            others = self.skipped - sum(count for _, count in self._faults.values())
            found = f"{'; '.join(self.reports)}{f'; and {others} more' if others else ''}"
            misnamed = not self._read_ids and all(reason.startswith(NO_FIELD) for _, reason in self._faults)
            self.skipped, self._faults = 0, {}
            raise CorpusError(f"{found}." if misnamed else f"{found}. Mend the bad records, or skip them (--skip-bad).")

    def _first(self, where: str, found: Record) -> Record | None:
        """Return a record with the origin of the first one of its id; None if that has another title or text.

        Equal rows are one record, whose origin would otherwise be another one after each of them.
        """
        text = hash((found.title, found.text)) & _MASK
        file = self._table if isinstance(where, RowPlace) else None
        place = 0 if file is None else (len(self._files) << PLACE_BITS) | cast(RowPlace, where).packed
        first = self._read_ids.setdefault(hash(found.id), (place << _TEXT_BITS) | text)
        if first & _MASK != text:
            return None
        number, packed = divmod(first >> _TEXT_BITS, 1 << PLACE_BITS)
        return found if file is None or not number else with_origin(found, self._files[number - 1], packed)

    def has_read(self, identifier: str) -> bool:
        """Return True if the latest iteration had a record of an id."""
        return hash(identifier) in self._read_ids

    def _found(self) -> Iterator[Found]:
        """Yield records and faults of the sources; an unreadable source ends them, if a bad record is to be named."""
        try:
            yield from chain.from_iterable(map(self._read, self._sources))
        except CorpusError:
            if not self._refused:
                raise

    @property
    def reports(self) -> list[str]:
        """Messages of the bad records, one for each file and reason; at most 20."""
        return [
            f"{where}: {reason}{f' (and {count - 1:,} more)' if count > 1 else ''}"
            for (_, reason), (where, count) in self._faults.items()
        ]

    @property
    def bad_rows(self) -> int:
        """Number of bad records that the latest iteration skipped, but for files that are split into passages."""
        return self.skipped - len(self.bad_files)

    def bad_in_words(self) -> str:
        """Return the numbers of bad files and records that the latest iteration skipped, such as "1 bad file"."""
        counts = {"bad file": len(self.bad_files), "bad record": self.bad_rows}
        return " and ".join(f"{count:,} {name}{'s' * (count > 1)}" for name, count in counts.items() if count)

    def warn_of_unread(self) -> None:
        """Warn of files that the latest iteration left out or guessed.

        Warns:
            UnreadFilesWarning: Bad records or files were left out, also files of records without the field of texts, or
                files were read in a guessed encoding.
        """
        if lacking := self.unread().tables:
            path, found = next(iter(lacking.items()))
            files = f"{counted(len(lacking), 'file')} of rows without a field {self.fields.text!r}"
            warn_user(
                f"Left out {files}, such as {path} (found: {', '.join(map(repr, found))}). Name the one that holds "
                "texts: fields=Fields(text=…).",
                UnreadFilesWarning,
            )
        if self.skipped:
            listed = "".join(f"\n  {line}" for line in self.reports)
            warn_user(f"Left out {self.bad_in_words()}:{listed}", UnreadFilesWarning)
        if guessed := list(dict.fromkeys(self.guessed)):
            others = f" and {len(guessed) - 1:,} more" if len(guessed) > 1 else ""
            warn_user(
                f"Not UTF-8, and read as {GUESS} by a guess: {guessed[0]}{others}. If that is wrong, convert them to "
                'UTF-8, or name the encoding: RecordReader(…, reading=ReadingRules(encoding="NAME")).',
                UnreadFilesWarning,
            )

    def _report(self, where: str, reason: str) -> None:
        fault = _PLACE.sub("", where), reason
        first, count = self._faults.get(fault, (where, 0))
        if count or len(self._faults) < REPORTS:
            self._faults[fault] = first, count + 1

    def _is_passed_over(self, where: str, found: Record | UnusableError) -> bool:
        """Return True for a file of a folder that has no text."""
        return isinstance(found, EmptyFileError) and self._is_file_of_folder(where)

    def _is_skipped(self, where: str) -> bool:
        """Return True if a fault at this place is counted and stops nothing."""
        return self.skip_bad is True or (bool(self.skip_bad) and self._is_file_of_folder(where))

    def unread(self) -> UnreadFiles:
        """Return the files in the folders that are not read; each once, also in a folder inside another."""
        reading = self.rules().reading if self.folders else NEWEST
        inside = {folder: folder_files(folder, self._as_text, reading) for folder in self.folders}
        place = partial(_place, {})
        read, lacking = set(map(place, self._sources)), dict[Path, list[str]]()
        for folder, files in inside.items():
            read.update(map(place, files.readable))
            for path, fields, names in () if beir_remedy(folder) else self._tables_of(files):
                if fields.text in names:
                    read.add(place(path))
                elif names:
                    lacking[path] = names
        unread = {place(path): kind for files in inside.values() for path, kind in files.unread.items()}
        kinds = Counter(kind for path, kind in unread.items() if path not in read)
        return UnreadFiles(kinds, dict(sorted(lacking.items())))

    @property
    def read_tables(self) -> list[TableFile]:
        """Files of records that the latest iteration read."""
        return self._files

    def first_columns(self, path: Path) -> dict[str, object]:
        """Return the columns of a file of records among the sources, each with its first value.

        Args:
            path: One of `row_files`.
        """
        return tables.first_columns(self._rows(path, self.fields))

    def may_read(self, path: Path) -> bool:
        """Return True for a name of a file that some folder's reading takes: a text, a document or a file of rows."""
        return self._is_split(path) or _format(path) in TABLES

    def count_with(
        self,
        count_tokens: Callable[[Sequence[str]], int],
        window: int | None,
        *,
        identity: ModelIdentity | None = None,
    ) -> None:
        """Count the tokens of a model from now on.

        Args:
            count_tokens: Counts the tokens of all texts as the model reads them, as of an Embedder.
            window: Tokens that it reads of a text; None or 0 if it has no limit.
            identity: Identity of the model: files that were split by its tokens before, and did not change, are not
                split again.
        """
        self._counter = count_tokens, window
        if identity is None or identity != self._tokens_of:
            self._tokens_of, self._kept = identity, KeptPassages()

    def count_tokens_of(self, model: Model) -> None:
        """Count the tokens of a model, which cuts longer texts, from now on."""
        limit = model.identity.max_length
        self.count_with(partial(model.count_tokens, windows=False), limit, identity=model.identity)

    def read_as(self, stored: ReadingRules) -> ReadingRules:
        """Take the rules of a collection, unless others were given; return those that are followed."""
        self._stored = stored
        return self.decided

    @property
    def decided(self) -> ReadingRules:
        """The rules that are followed; if they are silent on source code, the folders decide."""
        reading = self.reading or self._stored
        if reading.code is None and self.folders:
            return replace(reading, code=is_mostly_code(self.folders, self._as_text))
        return reading

    def rules(self) -> PassageRules:
        """Return the rules that are followed, with the tokens of a model: by default those of cde-mini."""
        reading = self.decided
        if reading.tokens is not None and self._counter is None:
            self.count_with(_tokens_of_mini, _mini()[1])
        splitter = None if self._counter is None else reading.splitter(*self._counter)
        fallback = self._fallback()
        return PassageRules(
            reading=reading, splitter=splitter, as_text=self._as_text, fallback=fallback, kept=self._kept
        )

    def _fallback(self) -> Fallback:
        return Fallback((self.reading or self._stored).encoding, self.guessed if self._guesses else None)

    def _is_split(self, path: Path) -> bool:
        return path != STDIN and kind_of(path, self._as_text) is not None

    def _is_file_of_folder(self, where: str) -> bool:
        """Return True for a bad file of a folder, after which the others are tried, so that all are named at once."""
        return any(Path(where).is_relative_to(folder) for folder in self.folders)

    def _read(self, path: Path) -> Iterator[Found]:
        if path.is_dir():
            rules = self.rules()
            found = self._tables(path, folder_files(path, self._as_text, rules.reading, self.only))
            yield from self._counted(folder_passages(path, rules, self.roots, needed=not found, only=self.only))
            for table in found:
                yield from self._rows_of_folder(table, path)
        elif self._is_split(path):
            yield from self._counted(file_passages(path, self.rules(), self.roots))
        elif path == STDIN:
            self._table = None
            yield from self._rows_by_fields(path)
        else:
            yield from self._of_table(path, named_file(path, self.roots))

    def _of_table(self, path: Path, metadata: Mapping[str, str]) -> Iterator[Found]:
        """Yield the records of a file of records.

        Args:
            path: The file.
            metadata: As of `source_of`.
        """
        self._table = file = TableFile(metadata[PARENT_KEY], metadata.get(FOLDER_KEY))
        if not file.is_named_by_utf8 or (self.fields.parent or "").split(".")[0] == TABLE_KEY:
            self._table = None
        else:
            self._files.append(file)
        good = True
        for where, found in self._rows_by_fields(path):
            good &= isinstance(found, Record)
            yield where, found
        if good and self._table is not None:
            self.good_tables.append(file)

    def _rows_by_fields(self, path: Path) -> Iterator[Found]:
        """Yield the records of a file of records, and note the fields by which one was found."""
        fields, _ = self._fields_of(path)
        for where, found in tables.records(self._rows(path, fields), fields):
            if isinstance(found, Record):
                self.read_by.add(fields.described)
            yield where, found

    def _fields_of(self, path: Path) -> tuple[Fields, list[str]]:
        """Return the fields by which a file of records is read, and the names of its first row's; none if unknown."""
        if self.kept_fields is None or self.fields.settings():
            return self.fields, []
        kept = replace(self.kept_fields, parent=self.fields.parent)
        names = tables.first_fields(self._rows(path, kept))
        return (kept, names) if kept.are_in(names) else (self.fields, [])

    def _rows(self, path: Path, fields: Fields) -> tables.Rows:
        """Yield the rows of a file of records."""
        fallback, longest = self._fallback(), self.max_line_bytes
        if _format(path) == PARQUET:
            yield from tables.parquet_rows(path, fields)
        elif path == STDIN:
            self._stdin.seek(0)
            yield from tables.jsonl_rows(self._stdin, "standard input", longest, fallback)
        else:
            with tables.opened(path) as file:
                if delimiter := DELIMITERS.get(_format(path)):
                    read = partial(tables.csv_rows, file, str(path), delimiter, fields, longest, fallback=fallback)
                    known = path, fields, written(path)
                    if known not in self._numbers:
                        self._numbers[known] = tables.number_columns(read(), fields)
                        file.seek(0)
                    yield from read(numbers=self._numbers[known])
                else:
                    yield from tables.jsonl_rows(file, str(path), longest, fallback)

    def _tables(self, folder: Path, files: FolderFiles) -> list[Path]:
        """Return the files of records with texts in a folder, in order; none of a retrieval set, which has queries."""
        if beir_remedy(folder):
            return []
        return sorted(path for path, fields, names in self._tables_of(files) if fields.text in names)

    def _tables_of(self, files: FolderFiles) -> Iterator[tuple[Path, Fields, list[str]]]:
        """Yield the files of records in a folder, each with the fields that it is read by, and its first row's."""
        for path in files.unread:
            if _format(path) in TABLES and path.is_file():
                fields, names = self._fields_of(path)
                yield path, fields, names or tables.first_fields(self._rows(path, fields))

    def _rows_of_folder(self, path: Path, folder: Path) -> Iterator[Found]:
        """Yield the records of a file of records in a folder, or the reason why it cannot be read on."""
        if not path.resolve().is_relative_to(folder.resolve()):
            found = f"expected a file of the folder, found a link to {path.resolve()}, outside it"
            yield str(path), UnusableError(f"{found}; copy the file, or name it")
            return
        whole = folder.resolve()
        try:
            yield from self._of_table(path, source_of(whole / path.relative_to(folder), (*self.roots, whole)))
        except CorpusError as error:
            yield str(path), UnusableError(str(error).removeprefix(f"{path}: ").removesuffix("."))

    def _counted(self, found: Iterator[Found]) -> Iterator[Found]:
        """Yield records and faults; a document's passages are counted before the first one, and bad files are noted."""
        for document, group in groupby(found, key=lambda each: _document(each[1])):
            passages = list(group)
            if document is not None:
                self.documents[document] = len(passages)
            else:
                bad = (Path(where) for where, fault in passages if not self._is_passed_over(where, fault))
                self.bad_files += [path.parent.resolve() / path.name for path in bad if path.is_file()]
            yield from passages

    @cached_property
    def _stdin(self) -> BufferedIOBase:
        """Standard input, kept in a temporary file that has no name and vanishes with this object."""
        spool = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, spool.close)
        shutil.copyfileobj(sys.stdin.buffer, spool)
        return spool


@lru_cache(1)
def _mini() -> tuple[TextTokenizer, int]:
    """Return the tokenizer of cde-mini and its window, without its network."""
    files = ModelSource.find(ModelName.parse(MODEL)).files
    return files.tokenizer, files.config.max_length


def _tokens_of_mini(texts: Sequence[str]) -> int:
    """Count tokens as an embedder of cde-mini does."""
    tokenizer, window = _mini()
    return sum(len(row.ids) for row in tokenizer(texts, window))


def _place(known: dict[Path, Path], path: Path) -> Path:
    """Return the absolute path of a file, or of a link itself; `known` keeps those of folders."""
    folder = known.get(path.parent) or known.setdefault(path.parent, path.parent.resolve())
    return folder / path.name


def _document(found: Record | UnusableError) -> str | None:
    return document_of(found) if isinstance(found, Record) else None


def _format(path: Path) -> str:
    """Return the suffix of the format: of JSONL and CSV the one in front of `.gz`."""
    outer, inner = path.suffix.lower(), path.with_suffix("").suffix.lower()
    return inner if outer == ".gz" and (inner in JSONL or inner in DELIMITERS) else outer


def _suffixes(names: Sequence[str]) -> frozenset[str]:
    """Return suffixes in lower case."""
    check_list(names, call="RecordReader", what="as_text")
    for name in names:
        if not re.fullmatch(r"\.[^./\s]*", name):
            raise CorpusError(
                f"as_text: expected suffixes such as '.py', found {name!r:.80}. Write the dot, and no star."
            )
    return frozenset("" if name == "." else name.lower() for name in names)


def _checked(source: str | Path, as_text: frozenset[str]) -> Path:
    path = given_path(source, "A source", CorpusError)
    if "\0" in str(path):
        raise CorpusError(f"{str(path)!r}: expected the path of a file or folder, found a NUL character in it.")
    try:
        there = path == STDIN or path.exists()
    except OSError as error:
        raise CorpusError(f"{str(path)!r:.300}: not readable: {error.strerror}.") from error
    if path == STDIN or path.is_dir():
        return path
    if not there:
        raise CorpusError(f"{path} does not exist. Name a file or a folder of texts, or '-' for standard input.")
    if _format(path) not in SPLIT | JSONL | {*DELIMITERS, PARQUET} and path.suffix.lower() not in as_text:
        remedy = f" If it is text, add: --as-text {path.suffix or '.'}"
        raise CorpusError(
            f"{path} is of an unknown format. Expected a folder, or a file of {formats_in_words(*OTHER_FORMATS)}; "
            f"cde-rag index --help describes them.{remedy}"
        )
    return path

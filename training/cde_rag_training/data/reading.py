"""Pairs from files and data sets: JSONL, CSV, TSV, Parquet, and Hugging Face `datasets`, streams included."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from cde_rag._files import user_path
from cde_rag._validation import utf8
from cde_rag.errors import CorpusError
from cde_rag.readers.columns import Fields, UnusableError, kind
from cde_rag.readers.reader import DELIMITERS, JSONL, PARQUET, REPORTS
from cde_rag.readers.tables import csv_rows, jsonl_rows, opened, parquet_rows
from cde_rag_training.data.hub_sets import HUB, HubSet
from cde_rag_training.data.pairs import Pair

Rows = Iterable[Mapping[str, Any]]
Where = tuple[str, Callable[[], Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Mapping of columns to fields. A named column must exist; others are ignored.

    Attributes:
        query: A string that is not blank.
        document: Likewise.
        source: A string or whole number. None: the column `source` where there is one, else the reader's source.
        domain: Likewise. None: the column `domain` where there is one, else the source.
        parent: Likewise; may be missing or empty in a row. None: the column `parent` or `title` where there is one.
        query_prefix: A string, maybe empty, or missing in a row. None: the column `query_prefix` where there is one.
        document_prefix: Likewise.
        grade: A number in 0 … 1, or missing in a row. None: the column `grade` where there is one.
        hard_negatives: Each holds a string or a list of strings, and may be missing in a row. A cell of a CSV file that
            begins with `["` is a JSON list. Empty: the column `hard_negatives` where there is one.
    """

    query: str = "query"
    document: str = "document"
    source: str | None = None
    domain: str | None = None
    parent: str | None = None
    hard_negatives: tuple[str, ...] = ()
    query_prefix: str | None = None
    document_prefix: str | None = None
    grade: str | None = None


class PairReader:
    """Iterable of the pairs in files and data sets, streamed anew at each iteration.

    Args:
        sources: Each is a file (`.jsonl`, `.csv`, `.tsv`, these with `.gz`, or `.parquet`); a data set of the hub
            (`hub:OWNER/NAME#CONFIG/SPLIT`); or anything that gives mappings when iterated, such as one split of a
            `datasets.Dataset` or `datasets.IterableDataset`.
        columns: Mapping of columns to fields.
        source: Name of the source for rows without one; by default the name of the file or data set.
        skip_bad: Skip and count unusable rows instead of raising at the first.
        rows: Number of rows to read of each source, from the first on; None for all.
        stream: True to stream data sets of the hub instead of downloading them first.

    Attributes:
        skipped: Number of bad rows that the latest iteration skipped.
        reports: Messages of the first 20 of them.

    Raises:
        CorpusError: A file that does not exist or is of no known format; while iterating, a file that cannot be read on
            or has no pairs, or a row that cannot be used, with its file and line (or row).

    Examples:
        >>> [pair] = PairReader([{"query": "how long do swifts fly", "document": "Ten months."}], source="birds")
        >>> pair.document, pair.source, pair.domain
        ('Ten months.', 'birds', 'birds')
    """

    def __init__(
        self,
        *sources: str | Path | Rows,
        columns: Columns | None = None,
        source: str | None = None,
        skip_bad: bool = False,
        rows: int | None = None,
        stream: bool = False,
    ) -> None:
        self.skip_bad = skip_bad
        self.skipped = 0
        self.reports: list[str] = []
        self._columns = columns or Columns()
        self._source, self._count = source, rows
        self._sources = [_opened(one, stream=stream) for one in sources]

    def __iter__(self) -> Iterator[Pair]:
        self.skipped, self.reports = 0, []
        for number, source in enumerate(self._sources, start=1):
            name = self._source or _label_of(source, number)
            what = source if isinstance(source, Path) else name
            named = self._columns
            optional = (named.parent, *named.hard_negatives, named.query_prefix, named.document_prefix, named.grade)
            unseen = {one for one in optional if one is not None}
            found = False
            for where, parse in islice(_rows(source, name, self._columns), self._count):
                try:
                    row = parse()
                    unseen -= row.keys()
                    pair = _pair(row, self._columns, name)
                except UnusableError as reason:
                    self._refuse(where, reason)
                    continue
                found = True
                yield pair
            if not found:
                raise CorpusError(f"{what}: expected pairs, found none. Leave it out, or mend it.")
            if unseen:
                raise CorpusError(f"{what}: expected the columns {sorted(unseen)} as named, found them in no row.")

    def _refuse(self, where: str, reason: UnusableError) -> None:
        if not self.skip_bad:
            raise CorpusError(f"{where}: {reason}. Mend it, or pass over bad rows (skip_bad).") from reason
        self.skipped += 1
        if len(self.reports) < REPORTS:
            self.reports.append(f"{where}: {reason}")


def read_sources(
    folder: Path, sources: Iterable[str], *, without_domains: Collection[str] = ()
) -> dict[str, list[Pair]]:
    """Read `folder/<source>/pairs.jsonl.gz` for each source, leaving the named domains out."""
    return {
        source: [
            pair
            for pair in PairReader(folder / source / "pairs.jsonl.gz", source=source)
            if pair.domain not in without_domains
        ]
        for source in sources
    }


def _inner(path: Path) -> str:
    """Return the suffix of the format: the one in front of `.gz`, if any."""
    outer = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if outer == ".gz" else outer


def _name(path: Path) -> str:
    return path.name[: -len(path.suffix)].removesuffix(_inner(path)) if path.suffix.lower() == ".gz" else path.stem


def _label_of(source: Path | Rows, number: int) -> str:
    if isinstance(source, HubSet):
        return source.label
    return _name(source) if isinstance(source, Path) else f"data set {number}"


def _opened(source: str | Path | Rows, *, stream: bool) -> Path | Rows:
    if isinstance(source, str) and source.startswith(HUB):
        return HubSet.parse(source, stream=stream)
    return _checked(user_path(source)) if isinstance(source, (str, Path)) else source


def _checked(path: Path) -> Path:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise CorpusError(f"{path}: expected a file of pairs, found {found}. Name the files themselves.")
    known = [*sorted(JSONL), *DELIMITERS, PARQUET]
    if _inner(path) not in known or path.name.lower().endswith(f"{PARQUET}.gz"):
        raise CorpusError(f"{path}: expected a file that ends in {', '.join(known)}, found another format. Convert it.")
    return path


def _rows(source: Path | Rows, name: str, columns: Columns) -> Iterator[Where]:
    if not isinstance(source, Path):
        for number, row in enumerate(source, start=1):
            yield f"{name}, row {number}", partial(_mapping, row)
    elif _inner(source) == PARQUET:
        yield from parquet_rows(source, Fields())
    else:
        with opened(source) as file:
            delimiter = DELIMITERS.get(_inner(source))
            if delimiter is None:
                yield from jsonl_rows(file, str(source))
            else:
                for where, parse in csv_rows(file, str(source), delimiter, Fields()):
                    yield where, partial(_with_lists, parse, columns.hard_negatives or ("hard_negatives",))


def _mapping(row: object) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise UnusableError(f"expected a mapping, found {kind(row)}; of several splits give one, such as data['train']")
    return cast("Mapping[str, Any]", row)


def _with_lists(parse: Callable[[], Mapping[str, Any]], names: Collection[str]) -> Mapping[str, Any]:
    """Parse a CSV row; cells of these columns that hold a JSON list become lists."""
    return {name: _listed(cell, name) if name in names else cell for name, cell in parse().items()}


def _listed(cell: str, name: str) -> object:
    if not cell.startswith('["'):
        return cell
    try:
        return json.loads(cell)
    except ValueError as error:
        raise UnusableError(f"expected a JSON list in {name!r}, which begins with '[\"', found {error}") from error


def _pair(row: Mapping[str, Any], columns: Columns, source: str) -> Pair:
    for name in (columns.source, columns.domain):
        if name is not None:
            _value(row, name)
    source = _label(row, columns.source, "source") or source
    return Pair(
        query=_text(_value(row, columns.query), columns.query),
        document=_text(_value(row, columns.document), columns.document),
        source=source,
        domain=_label(row, columns.domain, "domain") or source,
        parent=_label(row, columns.parent, "parent", "title"),
        hard_negatives=tuple(
            text for name in columns.hard_negatives or ("hard_negatives",) for text in _texts(row.get(name), name)
        ),
        query_prefix=_prefix(row, columns.query_prefix, "query_prefix"),
        document_prefix=_prefix(row, columns.document_prefix, "document_prefix"),
        grade=_grade(row, columns.grade or "grade"),
    )


def _grade(row: Mapping[str, Any], name: str) -> float:
    """Return how relevant the document is; 1 if the row does not contain it."""
    value = row.get(name)
    if value is None or value == "":
        return 1.0
    try:
        grade = float("nan") if isinstance(value, bool) else float(value)  # CSV has strings
    except (TypeError, ValueError):
        grade = float("nan")
    if not 0 <= grade <= 1:
        raise UnusableError(f"expected a number in 0 … 1 in {name!r}, found {value!r:.80}")
    return grade


def _prefix(row: Mapping[str, Any], named: str | None, usual: str) -> str | None:
    """Return a task prefix as it stands, with its space at the end; None if the row has none."""
    value = row.get(named or usual)
    if value is None or isinstance(value, str):
        return value
    raise UnusableError(f"expected a string in {named or usual!r}, found {kind(value)}")


def _value(row: Mapping[str, Any], name: str) -> object:
    if name not in row:
        found = ", ".join(repr(other) for other in row) or "none"
        raise UnusableError(f"no value in {name!r} (found: {found}); name each column's role with Columns or --columns")
    return row[name]


def _text(value: object, name: str) -> str:
    """Check a text and strip its white space."""
    if not isinstance(value, str):
        raise UnusableError(f"expected a string in {name!r}, found {kind(value)}")
    if not value.strip():
        raise UnusableError(f"the text in {name!r} is blank")
    try:
        utf8(value, where=f"the text in {name!r}")
    except CorpusError as error:
        raise UnusableError(str(error).removesuffix(".")) from error
    return value.strip()


def _texts(value: object, name: str) -> list[str]:
    """Return the strings of a list, or a single string as a list; an empty list for None."""
    if value is None:
        return []
    return [_text(one, name) for one in (cast("list[object]", value) if isinstance(value, list) else [value])]


def _label(row: Mapping[str, Any], named: str | None, *usual: str) -> str:
    """Return a label from the named column, else from the first usual one; empty if the row has none."""
    name = named or next((one for one in usual if one in row), "")
    value = row.get(name)
    if value is None or value == "":
        return ""
    return str(value) if type(value) is int else _text(value, name)

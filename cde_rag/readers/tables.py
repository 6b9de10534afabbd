"""Files of one record a line or row: JSONL, also as a JSON array, CSV and Parquet.

Each format yields `(where, parse)` for every row; `parse()` gives the row's fields or raises `UnusableError`, and
`where` is a `RowPlace`, unless the row is bad or the table has a column of the key of origins, which is the user's. A
file that cannot be read on, such as a truncated one, or is of another form than its name says, raises `CorpusError`
whether or not bad records are skipped.
"""

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, cast
from uuid import UUID

from cde_rag._validation import RepeatedKeyError, unique_keys
from cde_rag.errors import CDEError, CorpusError, require
from cde_rag.readers.columns import Fields, Found, UnusableError, id_field, kind, to_record
from cde_rag.readers.decoding import SAVE, STRICT, Fallback
from cde_rag.readers.row_origin import RowPlace, has_own
from cde_rag.records import Record

MAX_LINE_BYTES = 64 * 2**20  # of a line of JSONL or CSV, by default
PARQUET_ROWS = 1024  # rows held in memory at a time
_MARKS: Final = ",;\t|"  # that may separate the cells of CSV
_LOOKED_AT: Final = 64  # rows that show whether a file holds texts
# Numbers in the one way that they are written, of at most fifteen digits, which a float holds exactly.
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,14}|(?:0|[1-9]\d{0,8})\.(\d{1,6}))", re.ASCII)

_SPACE: Final = re.compile(r"[ \t\r\n]*")  # of JSON
_SCANNER: Final = json.JSONDecoder(parse_int=str, parse_float=str)  # finds where values end

Rows: TypeAlias = Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]


def records(rows: Rows, fields: Fields) -> Iterator[Found]:
    """Yield the record of each row, or the reason why it has none."""
    for where, parse in rows:
        yield where, _record(parse, fields)


def opened(path: Path) -> BufferedIOBase:
    """Open a file for reading bytes, decompressed if its name ends in `.gz`.

    Raises:
        CorpusError: It cannot be opened.
    """
    try:
        return gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:
        raise CorpusError(f"{path}: not readable: {error.strerror}.") from error


def first_fields(rows: Rows) -> list[str]:
    """Return the fields of the first row of a file that can be read; none of a file that is none of rows."""
    try:
        for _, parse in islice(rows, _LOOKED_AT):
            with suppress(UnusableError):
                return list(parse())
    except CDEError:  # no file of rows, or a package is missing that reads it
        return []
    return []


def first_columns(rows: Rows) -> dict[str, object]:
    """Return the columns of a file of records that its first rows have, each with its first value; none of other files.

    An empty cell of CSV is no value, so one row alone does not have them all.
    """
    found = dict[str, object]()
    with suppress(CDEError):  # no file of rows, or a package is missing that reads it
        for _, parse in islice(rows, _LOOKED_AT):
            with suppress(UnusableError):
                for name, value in parse().items():
                    if found.get(name) in (None, ""):
                        found[name] = value
    return found


def jsonl_rows(
    file: BufferedIOBase, name: str, max_line_bytes: int = MAX_LINE_BYTES, fallback: Fallback = STRICT
) -> Rows:
    """Yield one JSON object per line, or the objects of one array, in UTF-8; empty lines are skipped.

    Args:
        file: Open for reading.
        name: Name of the file, for messages.
        max_line_bytes: Longest line; a longer one is a bad row, and is not read into memory beyond that. Also the
            longest array, which is read into memory.
        fallback: Encoding of a file that is not UTF-8.

    Raises:
        CorpusError: The first object is over several lines, or an array is longer or no JSON.
    """
    begun, lines = False, _lines(file, name, max_line_bytes, fallback)
    for number, line in lines:
        where, text = f"{name}, line {number}", line.strip()
        if not begun and text.startswith(b"["):
            yield from _array_rows(chain([line], (rest for _, rest in lines)), name, number, max_line_bytes)
        elif len(line) > max_line_bytes:
            yield where, partial(_refuse_line, max_line_bytes)
        elif text:
            if not begun and text == b"{":
                raise CorpusError(
                    f"{where}: expected one JSON object a line, or an array of objects, found an object over several "
                    "lines. If it is one row, write [ in front of it and ] after it; several can be converted with: "
                    "jq -c ."
                )
            yield RowPlace.at(where, number, number), partial(_parse_json, line.rstrip(b"\r\n"))
        begun |= bool(text)


def _array_rows(lines: Iterable[bytes], name: str, first: int, most: int) -> Rows:
    """Yield the objects of a JSON array of at most `most` bytes, which begins in line `first` of a file."""
    data = bytearray()
    for line in lines:
        data += line
        if len(data) > most:
            found = f"expected a JSON array of at most {most} bytes, which is read into memory, found more"
            raise CorpusError(f"{name}: {found}. Write one object a line, as JSONL, or allow more (--max-line-bytes).")
    try:
        text = data.decode("utf-8")
        del data  # which may be long
        for number, element in enumerate(_elements(text), 1):
            parse = partial(_parse_object, element, "objects in the array")
            yield RowPlace.at(f"{name}, row {number}", number), parse
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name}: not UTF-8; {SAVE}.") from error
    except json.JSONDecodeError as error:
        where = f"{name}, line {first + error.lineno - 1}"
        raise CorpusError(f"{where}: not JSON: {error.msg} (character {error.colno}). Mend the array.") from error
    except RecursionError as error:
        raise CorpusError(f"{name}: not JSON that can be read: {error}.") from error


def _elements(text: str) -> Iterator[str]:
    """Yield the JSON of each element of an array."""
    place = _after_space(text, text.index("[") + 1)
    has_more = not text.startswith("]", place)
    while has_more:
        _, end = _SCANNER.raw_decode(text, place)
        yield text[place:end]
        place = _after_space(text, end)
        if has_more := text.startswith(",", place):
            place = _after_space(text, place + 1)
    if not text.startswith("]", place):
        raise json.JSONDecodeError("expected a comma or the end of the array", text, place)
    if (end := _after_space(text, place + 1)) < len(text):
        raise json.JSONDecodeError("expected nothing after the array", text, end)


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def csv_rows(
    file: BufferedIOBase,
    name: str,
    delimiter: str,
    fields: Fields,
    max_line_bytes: int = MAX_LINE_BYTES,
    *,
    numbers: Container[str] = frozenset(),
    fallback: Fallback = STRICT,
) -> Rows:
    """Yield rows under one header line, in UTF-8. Cells are strings; an empty cell, but for id or text, is no field.

    Args:
        file: Open for reading.
        name: Name of the file, for messages.
        delimiter: Separator of cells; another of comma, semicolon, tab and bar if the header has the field of texts
            with that one, or has several columns with that one alone.
        fields: Columns of the records.
        max_line_bytes: Longest line.
        numbers: Columns whose cells become numbers, as of `number_columns`.
        fallback: Encoding of a file that is not UTF-8.

    Yields:
        Each row. A bad row of several lines is yielded for each line, since a quote that is not closed takes the rows
        of these lines with it.

    Raises:
        CorpusError: A line is longer, so that rows cannot be separated; or the header is invalid.
    """

    def text() -> Iterator[str]:
        for number, line in _lines(file, name, max_line_bytes, fallback):
            if len(line) > max_line_bytes:
                raise CorpusError(f"{name}, line {number}: {_too_long(max_line_bytes)}.")
            yield line.decode("utf-8", "surrogateescape")  # so that one bad row does not end the file

    lines = text()
    first_lines = list(islice(lines, 1))
    delimiter = _delimiter("".join(first_lines), delimiter, fields)
    reader = csv.reader(chain(first_lines, lines), delimiter=delimiter, strict=True)
    header = _header(reader, name)
    kept, placed = frozenset((id_field(header, fields), fields.text)), not has_own(header)
    cells: list[str] | None = header
    row = 1  # the header is a spreadsheet's first row, and an empty line is one, too
    while cells is not None:
        first, row = reader.line_num + 1, row + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:  # the reader goes on with the next line
            last = reader.line_num
            lost = f"; is a quote that opens in line {first} or below not closed?" if last > first else ""
            for line in range(first, last + 1):
                yield f"{name}, line {line}", partial(_refuse_row, f"{error} in line {last}{lost}")
        else:
            if cells:
                last = first if len(cells) == len(header) else reader.line_num
                for line in range(first, last + 1):
                    where = f"{name}, line {line}"
                    parse = partial(_parse_cells, header, cells, kept, numbers)
                    yield RowPlace.at(where, row, line) if placed else where, parse


def number_columns(rows: Rows, fields: Fields) -> frozenset[str]:
    """Return the metadata columns of a CSV file that hold nothing but numbers, from its rows as strings.

    Each number has to be written in the one way that its column writes it, so that nothing is lost: "007" is none, and
    "1.10" is none next to "1.9", but prices such as "3.50" and "4.00" are.
    """
    forms: dict[str, set[tuple[int, bool] | None]] = {}
    for _, parse in rows:
        with suppress(UnusableError):
            row = parse()
            if fields.text not in row:  # no record can be made of this file
                break
            for name, cell in row.items():
                of_column = forms.setdefault(name, set())
                if None not in of_column:
                    of_column.add(_form(cell))
    texts = {fields.text, fields.title, fields.parent, fields.id or "id", "_id"}
    return frozenset(name for name, found in forms.items() if name not in texts and _are_numbers(found))


def _form(cell: str) -> tuple[int, bool] | None:
    """Return the decimals of a number, and True if the last one is 0; None for other strings."""
    found = _NUMBER.fullmatch(cell)
    return None if found is None or cell == "-0" else (len(found[1] or ""), cell.endswith("0") and bool(found[1]))


def _are_numbers(forms: Set[tuple[int, bool] | None]) -> bool:
    decimals = {form[0] for form in forms if form is not None}
    padded = any(form is not None and form[1] for form in forms)
    return None not in forms and (not padded or len(decimals) == 1)


def _delimiter(line: str, given: str, fields: Fields) -> str:
    """Return the separator of the cells of CSV, by its first line."""
    marks = [given, *(mark for mark in _MARKS if mark != given)]
    found: dict[str, list[str]] = {mark: [] for mark in marks}
    for mark in marks:
        with suppress(csv.Error):  # which the reader of the file reports
            found[mark] = next(csv.reader([line], delimiter=mark), list[str]())
    with_text = next((mark for mark in marks if fields.text in found[mark]), None)
    if with_text is not None or len(found[given]) > 1:
        return with_text or given
    return max(marks, key=lambda mark: len(found[mark]))


def _header(reader: Any, name: str) -> list[str]:
    """Read the names of the columns."""
    try:
        header = next(reader, list[str]())
    except csv.Error as error:
        raise CorpusError(f"{name}, line {reader.line_num}: expected a header of CSV, found: {error}.") from error
    if not _is_utf8(header):
        raise CorpusError(f"{name}, line 1: not UTF-8; {SAVE}.")
    check_columns(header, name)
    return header


def parquet_rows(path: Path, fields: Fields) -> Rows:
    """Yield rows of a Parquet file.

    A null is a missing field, but for an id or text. Dates and times become ISO strings, decimals numbers.
    """
    parquet = require("pyarrow.parquet", "files")
    try:
        with parquet.ParquetFile(path) as file:
            names: list[str] = file.schema_arrow.names
            check_columns(names, str(path))
            yield from arrow_rows(file.iter_batches(batch_size=PARQUET_ROWS), str(path), fields)
    except CorpusError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise CorpusError(f"{path}: not a readable Parquet file: {error}") from error


def arrow_rows(batches: Iterable[Any], name: str, fields: Fields) -> Rows:
    """Yield rows of Arrow record batches with equal columns; values as in `parquet_rows`.

    Args:
        batches: `pyarrow.RecordBatch`, one after another.
        name: Name of the table in error messages.
        fields: Columns of the records.
    """
    number = 0
    for batch in batches:
        names: list[str] = batch.schema.names
        placed = not has_own(names)
        columns = [
            _values(column, f"{name}: the column {each!r}") for each, column in zip(names, batch.columns, strict=True)
        ]
        for row in zip(*columns, strict=True):
            number += 1
            where = f"{name}, row {number}"
            parse = partial(_parse_values, dict(zip(names, row, strict=True)), fields)
            yield RowPlace.at(where, number) if placed else where, parse


def python_rows(rows: Iterable[Mapping[str, Any]], name: str, fields: Fields) -> Rows:
    """Yield rows of mappings with Python values, which are converted as in `parquet_rows`."""
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", partial(_parse_values, row, fields)


def _record(parse: Callable[[], Mapping[str, Any]], fields: Fields) -> Record | UnusableError:
    try:
        return to_record(parse(), fields)
    except UnusableError as reason:
        return reason


def check_columns(names: list[str], file: str) -> None:
    """Refuse repeated column names: CorpusError."""
    if len(set(names)) < len(names):
        raise CorpusError(f"{file}: two columns have the same name: {', '.join(names)}. Rename one of them.")


def _values(column: Any, what: str) -> list[object]:
    """Convert one column chunk of a Parquet file to Python values."""
    if "binary" in str(column.type).partition("<")[0]:
        raise CorpusError(f"{what} holds bytes ({column.type}). Leave it out of the file, or write it as strings.")
    if str(column.type).startswith("extension<pandas."):  # of a period that would be a bare number
        raise CorpusError(f"{what} holds {column.type}. Write it as strings.")
    try:
        return _microseconds(column).to_pylist()
    except (ValueError, OverflowError) as error:  # nanoseconds, or years that Python's own dates do not reach
        raise CorpusError(f"{what} holds {column.type}: {error}") from error


def _microseconds(column: Any) -> Any:
    """Convert nanosecond times to Python's microseconds, so that the result does not depend on pandas."""
    pyarrow: Any = require("pyarrow", "files")
    of = column.type
    if getattr(of, "unit", None) != "ns":
        return column
    if pyarrow.types.is_timestamp(of):
        return column.cast(pyarrow.timestamp("us", tz=of.tz))
    return column.cast(pyarrow.duration("us") if pyarrow.types.is_duration(of) else pyarrow.time64("us"))


def _lines(file: BufferedIOBase, name: str, longest: int, fallback: Fallback) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number; a line of more than `longest` bytes is truncated one byte beyond."""
    number = 0
    try:
        file = fallback.rows(file, name)
        while line := file.readline(longest + 1):
            number += 1
            rest = line
            while len(rest) > longest and not rest.endswith(b"\n"):
                rest = file.readline(longest + 1)
            yield number, line
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise CorpusError(f"{name}: not readable after line {number}: {error}") from error


def _parse_json(line: bytes) -> Mapping[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableError(f"not UTF-8: byte {line[error.start]:#04x} at byte {error.start} of the line") from error
    return _parse_object(text, "one JSON object a line")


def _parse_object(text: str, expected: str) -> Mapping[str, Any]:
    try:
        values: object = json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=_no_constant, parse_float=_finite
        )
    except UnusableError:
        raise
    except RepeatedKeyError as error:
        raise UnusableError(str(error)) from error
    except json.JSONDecodeError as error:
        raise UnusableError(f"not JSON: {error.msg} (character {error.pos} of the line)") from error
    except (ValueError, RecursionError) as error:  # thousands of digits or levels
        raise UnusableError(f"not JSON that can be read: {error}") from error
    if not isinstance(values, dict):
        raise UnusableError(f"expected {expected}, found {kind(values)}")
    if "\\ud" in text.lower():  # only an escape can smuggle a surrogate into valid UTF-8
        _check_unicode(json.dumps(values, ensure_ascii=False))
    return cast(dict[str, Any], values)


def _no_constant(name: str) -> NoReturn:
    raise UnusableError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise UnusableError(f"{digits} is beyond the range of a number")
    return value


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableError(f"not valid Unicode: a lone surrogate {text[error.start]!r}") from error


def _too_long(longest: int) -> str:
    return f"expected at most {longest} bytes in a line, found more; cut the text, or allow more (--max-line-bytes)"


def _refuse_line(longest: int) -> NoReturn:
    raise UnusableError(_too_long(longest))


def _refuse_row(error: str) -> NoReturn:
    raise UnusableError(f"not CSV: {error}")


def _parse_cells(
    header: list[str], cells: list[str], kept: Container[str | None], numbers: Container[str]
) -> Mapping[str, Any]:
    if len(cells) != len(header):
        raise UnusableError(f"expected {len(header)} cells as in the header, found {len(cells)}")
    if not _is_utf8(cells):
        raise UnusableError(f"not UTF-8; {SAVE}")
    found: dict[str, Any] = {name: cell for name, cell in zip(header, cells, strict=True) if cell or name in kept}
    return {name: _as_number(cell) if name in numbers else cell for name, cell in found.items()}


def _as_number(cell: str) -> int | float | str:
    """Return the number of a cell; the cell itself if the file has changed since its columns were looked at."""
    return cell if _form(cell) is None else float(cell) if "." in cell else int(cell)


def _is_utf8(cells: list[str]) -> bool:
    """Return False for cells that were decoded with the escapes of other bytes."""
    try:
        "".join(cells).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parse_values(row: Mapping[str, Any], fields: Fields) -> Mapping[str, Any]:
    kept = (id_field(row, fields), fields.text)
    return {name: _plain(value, name) for name, value in row.items() if value is not None or name in kept}


def _plain(value: object, column: str) -> object:
    """Convert a Parquet value to JSON."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        seconds = f"{abs(value) / timedelta(seconds=1):.6f}".rstrip("0").rstrip(".")
        return f"{'-' if value < timedelta() else ''}PT{seconds}S"
    if isinstance(value, Decimal):
        return _number(value, column)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(part, column) for key, part in cast(dict[object, object], value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, column) for part in cast(list[object], value)]
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    found = str(value) if isinstance(value, float) else kind(value)
    raise UnusableError(f"expected values that JSON can hold in {column!r}, found {found}")


def _number(value: Decimal, column: str) -> int | float:
    """Return a decimal as the number of JSON that is the same."""
    if value.as_tuple().exponent == 0:
        return int(value)
    number = float(value)
    if not math.isfinite(number) or Decimal(repr(number)) != value:
        raise UnusableError(f"{column!r} holds {value}, which no number of JSON holds exactly; write it as a string")
    return number

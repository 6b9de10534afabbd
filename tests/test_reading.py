"""Input files to records: one result whatever the format; for what is no record a sentence with file, line, reason."""

import csv
import gzip
import io
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.errors import CorpusError, MissingExtraError
from cde_rag.readers import Fields, ReadingRules, RecordReader, tables
from cde_rag.readers import reader as reader_module
from cde_rag.readers.headings import Headings
from cde_rag.records import Record, default_id


@pytest.fixture(scope="module", autouse=True)
def without_origins() -> Iterator[None]:
    """Rows without their files and places, which `test_row_origins` has, so that metadata are the fields alone."""
    with mock.patch.object(reader_module, "with_origin", lambda record, *_: record):
        yield


GOOD = b'{"id": "a", "text": "First."}'


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_one_line_becomes_one_record(tmp_path: Path) -> None:
    line = '{"id": 7, "title": "Swifts", "text": "They fly.", "year": 2016, "tags": ["bird"], "source": null}'
    assert list(RecordReader(written(tmp_path, "a.jsonl", line.encode()))) == [
        Record("7", "They fly.", "Swifts", {"year": 2016, "tags": ["bird"], "source": None})
    ]


not_in_csv = "\0" if sys.version_info < (3, 11) else ""  # the csv module of Python 3.10 knows no NUL
letters = st.characters(exclude_categories=["Cs"], exclude_characters=not_in_csv)
texts = st.text(letters, min_size=1, max_size=30).filter(str.strip)


colours = texts.filter(lambda text: tables._form(text) is None)  # numbers in CSV have no marks


@given(rows=st.lists(st.tuples(texts, texts, colours), max_size=8))
def test_every_format_gives_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    folder, names = tmp_path_factory.mktemp("formats"), ["text", "title", "colour"]
    objects = [{"id": f"r{number}", **dict(zip(names, row, strict=True))} for number, row in enumerate(rows)]
    lines = "".join(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for number, row in enumerate(objects)).encode()
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, ["id", *names])
    writer.writeheader()
    writer.writerows(objects)
    written(folder, "a.jsonl", lines)
    written(folder, "a.jsonl.gz", gzip.compress(lines))
    written(folder, "a.csv", b"\xef\xbb\xbf" + table.getvalue().encode())  # as spreadsheets write it
    columns = {name: [row[name] for row in objects] for name in ["id", *names]}
    pq.write_table(pa.table(columns), folder / "a.parquet")

    expected = [Record(row["id"], row["text"], row["title"], {"colour": row["colour"]}) for row in objects]
    for name in ("a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"):
        assert list(RecordReader(folder / name)) == expected, name


def test_fields_can_have_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", b"key\tbody\theading\tid\nk1\tSome words.\tH\t9\n")
    reader = RecordReader(path, fields=Fields(id="key", text="body", title="heading"))
    assert list(reader) == [Record("k1", "Some words.", "H", {"id": 9})]


def test_beir_ids_are_known_and_missing_ids_follow_from_text_and_parent(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.jsonl", b'{"_id": "4983", "text": "x"}\n{"text": "x", "year": 1}\n{"text": "x", "year": 2}\n'
    )
    assert [record.id for record in RecordReader(path)] == ["4983", *(default_id(Record("", "x"), None),) * 2]
    _, second, third = RecordReader(path, fields=Fields(parent="year"))
    assert second.id == default_id(second, "year") != third.id


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "a", "text": "cut off', "not JSON: Unterminated string starting at (character 20 of the line)"),
        (b'{"id": "a", "text": "\xff"}', "not UTF-8: byte 0xff at byte 21"),
        (b'["a"]', "expected one JSON object a line, found a list"),
        (b"null", "expected one JSON object a line, found null"),
        (b'{"id": "a"}', "no field 'text' (found: 'id')"),
        (b'{"id": "a", "text": null}', "expected a string in 'text', found null"),
        (b'{"id": "a", "text": ["x"]}', "expected a string in 'text', found a list"),
        (b'{"id": "a", "text": " \\n\\u00a0"}', "the text in 'text' is blank"),
        (b'{"id": "a", "text": "x \\ud83d"}', "not valid Unicode: a lone surrogate '\\ud83d'"),
        (b'{"id": "a", "text": "x", "m": {"\\uDFFF": 1}}', "not valid Unicode: a lone surrogate '\\udfff'"),
        (b'{"id": "a", "id": "b", "text": "x"}', "the key 'id' stands twice"),
        (b'{"id": "a", "text": "x", "m": {"k": 1, "k": 2}}', "the key 'k' stands twice"),
        (b'{"id": "a", "text": "x", "title": 3}', "expected a string in 'title', found a number"),
        (b'{"id": 1.5, "text": "x"}', "expected a string or a whole number in 'id', found a number"),
        (b'{"id": true, "text": "x"}', "expected a string or a whole number in 'id', found a boolean"),
        (b'{"id": null, "text": "x"}', "expected a string or a whole number in 'id', found null"),
        (b'{"id": " ", "text": "x"}', "the id in 'id' is blank"),
        (b'{"id": "a", "text": "x", "m": NaN}', "NaN is not JSON"),
        (b'{"id": "a", "text": "x", "m": 1e999}', "1e999 is beyond the range of a number"),
        (b"[" * 100_000, "not JSON that can be read"),
    ],
)
def test_a_bad_line_stops_with_file_line_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = written(tmp_path, "a.jsonl", GOOD + b"\n\n" + line + b"\n")
    records = iter(RecordReader(path))
    assert next(records).id == "a"
    with pytest.raises(CorpusError) as error:
        next(records)
    assert str(error.value).startswith(f"{path}, line 3: {reason}")
    assert "--skip-bad" in str(error.value)


def test_a_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'{"id": "a", "text": "\\ud83d\\ude00"}')
    assert [record.text for record in RecordReader(path)] == ["😀"]


BAD_FOR_A_COLLECTION = [
    (b'{"id": "b", "text": "x", "book": 1.5}', "its 'book' has to be a string or a whole number of 64 bits, found 1.5"),
    (b'{"id": "b", "text": "x", "book": 1' + b"0" * 400 + b"}", "its 'book' has to be a string or a whole number"),
    (
        b'{"id": "b", "text": "x", "m": ' + b"[" * 500 + b"]" * 500 + b"}",
        "its metadata has to be a JSON object: more than 100",
    ),
    (b'{"id": "a", "text": "Another."}', "the id 'a' came before, with another title or text"),
    (b'{"id": "a", "text": "First.", "title": "T"}', "the id 'a' came before, with another title or text"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_FOR_A_COLLECTION)
def test_what_no_collection_takes_is_bad_in_its_line(tmp_path: Path, line: bytes, reason: str) -> None:
    path = written(tmp_path, "a.jsonl", GOOD + b"\n" + line + b'\n{"id": "c", "text": "Last.", "book": 7}\n')
    with pytest.raises(CorpusError) as error:
        list(RecordReader(path, fields=Fields(parent="book")))
    assert str(error.value).startswith(f"{path}, line 2: {reason}")
    reader = RecordReader(path, fields=Fields(parent="book"), skip_bad=True)
    assert [record.id for record in reader] == ["a", "c"]
    assert [report.startswith(f"{path}, line 2: {reason}") for report in reader.reports] == [True]


def test_a_record_may_come_again_with_other_metadata(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", GOOD + b'\n{"id": "a", "text": "First.", "n": 1}')
    assert [record.metadata for record in RecordReader(path, path)] == [{}, {"n": 1}] * 2


def test_the_keys_that_records_have_are_known(tmp_path: Path) -> None:
    reader = RecordReader(
        written(tmp_path, "a.jsonl", GOOD + b'\n{"text": "x", "book": null}\n{"n": 1}'), skip_bad=True
    )
    list(reader)
    assert reader.keys == {"book"}


def test_all_bad_lines_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    last = b'{"id": "c", "text": "Last."}'
    path = written(tmp_path, "a.jsonl", GOOD + b"\noops\n" + last + b'\n{"id": "d"}\n')
    records = iter(RecordReader(path))
    assert next(records).id == "a"
    with pytest.raises(CorpusError) as error:
        next(records)  # none after the first bad line
    assert str(error.value).startswith(f"{path}, line 2: not JSON")
    assert f"; {path}, line 4: no field 'text'" in str(error.value)


def test_skipped_lines_are_counted_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", GOOD + b"\n" + b"oops\n" * 30 + GOOD)
    reader = RecordReader(path, skip_bad=True)
    for _ in range(2):  # counts begin anew in each iteration
        assert len(list(reader)) == 2
        assert reader.skipped == 30
        assert reader.reports == [f"{path}, line 2: not JSON: Expecting value (character 0 of the line) (and 29 more)"]


def test_the_messages_of_many_reasons_are_few(tmp_path: Path) -> None:
    lines = b"\n".join(b" " * number + b"oops" for number in range(30))
    reader = RecordReader(written(tmp_path, "a.jsonl", GOOD + b"\n" + lines), skip_bad=True)
    assert len(list(reader)) == 1
    assert (reader.skipped, len(reader.reports)) == (30, 20)


@pytest.mark.parametrize("name", ["faq.csv", "faq.jsonl", "faq.parquet"])
def test_a_missing_column_is_one_message(tmp_path: Path, name: str) -> None:
    rows = [{"question": f"q{number}", "answer": "a"} for number in range(300)]
    if name == "faq.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        lines = [",".join(row.values()) if name == "faq.csv" else json.dumps(row) for row in rows]
        written(tmp_path, name, "\n".join(["question,answer"] * (name == "faq.csv") + lines).encode())
    with pytest.raises(CorpusError) as error:
        list(RecordReader(tmp_path / name))
    assert str(error.value).count("no field 'text' (found: 'question', 'answer')") == 1
    assert str(error.value).endswith(" (and 299 more).")  # to skip the bad ones would skip all


@pytest.mark.parametrize(
    ("row", "where"),
    [
        (b"b,x", "line 4: expected 3 cells as in the header, found 2"),
        (b"b,x,y,z", "line 4: expected 3 cells as in the header, found 4"),
        (b"b,\xff,y", "line 4: not UTF-8"),
        (b"b,,y", "line 4: the text in 'text' is blank"),
        (b"b,  ,y", "line 4: the text in 'text' is blank"),
        (b'b,"x"y,z', "line 4: not CSV: ',' expected after '\"' in line 4"),
        (b'b,"open\nc,d,e', "line 4: not CSV: unexpected end of data in line 5; is a quote that opens in line 4"),
        (b'b,"two\nlines",y,z', "line 4: expected 3 cells as in the header, found 4 (and 1 more)"),
    ],
)
def test_a_bad_csv_row_names_its_first_line(tmp_path: Path, row: bytes, where: str) -> None:
    path = written(tmp_path, "a.csv", b'id,text,colour\na,"two\nlines",\n' + row)
    records = iter(RecordReader(path))
    assert next(records) == Record("a", "two\nlines")
    with pytest.raises(CorpusError) as error:
        next(records)
    assert str(error.value).startswith(f"{path}, {where}")


def test_a_bad_quote_spoils_its_row_alone(tmp_path: Path) -> None:
    reader = RecordReader(written(tmp_path, "a.csv", b'id,text\na,One.\nb,"x"y\nc,Three.\n'), skip_bad=True)
    assert [record.id for record in reader] == ["a", "c"]
    assert reader.skipped == 1


@pytest.mark.parametrize("end", ["", 'z,"closed"\nlast,row\n'])
def test_the_rows_that_an_open_quote_takes_are_counted(tmp_path: Path, end: str) -> None:
    rows = "".join(f"{number},row\n" for number in range(400))
    reader = RecordReader(written(tmp_path, "a.csv", f'id,text\na,One.\nb,"open\n{rows}{end}'.encode()), skip_bad=True)
    assert [record.id for record in reader] == ["a", *["last"] * bool(end)]
    assert reader.skipped == 401 + bool(end)
    assert len(reader.reports) == 1
    assert reader.reports[0].endswith(
        f"is a quote that opens in line 3 or below not closed? (and {400 + bool(end)} more)"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(letters),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(letters), inner, max_size=3),
    max_leaves=5,
)


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["title", "tags", "]"]), json_values, max_size=3), max_size=4),
    indent=st.sampled_from([None, 0, 2]),
    begin=st.sampled_from(["", "\n", " \r\n\t"]),
)
def test_an_array_of_objects_is_read_as_the_same_objects_a_line(
    rows: list[dict[str, object]], indent: int | None, begin: str
) -> None:
    named = [{"id": str(number), "text": "A river.", **row} for number, row in enumerate(rows)]
    array = begin + json.dumps(named, indent=indent, ensure_ascii=indent is None) + "\n"
    lines = "".join(f"{json.dumps(row)}\n" for row in named)
    found = [list(tables.jsonl_rows(io.BytesIO(text.encode()), "a.json")) for text in (array, lines)]
    assert [parse() for _, parse in found[0]] == [parse() for _, parse in found[1]]
    assert [where for where, _ in found[0]] == [f"a.json, row {number + 1}" for number in range(len(rows))]


def test_a_bad_object_of_an_array_is_skipped_alone(tmp_path: Path) -> None:
    rows = '[{"id": "a", "text": "x"}, {"id": "b", "text": NaN}, 7, {"id": "c", "id": "d"}, {"id": "e", "text": "y"}]'
    reader = RecordReader(written(tmp_path, "a.json", rows.encode("utf-16")), skip_bad=True)
    assert [record.id for record in reader] == ["a", "e"]
    assert [report.partition("a.json, ")[2].partition(":")[0] for report in reader.reports] == [
        "row 2",
        "row 3",
        "row 4",
    ]
    assert "expected objects in the array, found a number" in reader.reports[1]


def test_an_array_has_at_most_as_many_bytes_as_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", b'[\n{"id": "a", "text": "x"},\n{"id": "b", "text": "y"}\n]\n')
    assert len(list(RecordReader(path, max_line_bytes=path.stat().st_size))) == 2
    with pytest.raises(CorpusError, match=r"expected a JSON array of at most 54 bytes, .*Write one object a line"):
        list(RecordReader(path, max_line_bytes=path.stat().st_size - 1))


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("a.json", b'{\n"id": "a", "text": "x"\n}', r"line 1: .*found an object over several lines.*write \[ in"),
        ("a.json", b'\n [\n{"id": "a", "text": "x"},\n]', "line 4: not JSON: Expecting value .character 1"),
        ("a.json", b'[{"id": "a", "text": "x"}', "line 1: not JSON: expected a comma or the end of the array"),
        ("a.json", b'[{"id": "a", "text": "x"}]\n{}', "line 2: not JSON: expected nothing after the array"),
        ("a.csv", b'id,"text\na,x\n', "line 2: expected a header of CSV, found: unexpected end of data"),
        ("a.csv", "größe,text\na,x\n".encode("latin-1"), "line 1: not UTF-8; save it as UTF-8"),
    ],
)
def test_a_file_of_another_form_is_told_from_bad_records(
    tmp_path: Path, name: str, data: bytes, found: str, skip_bad: bool
) -> None:
    with pytest.raises(CorpusError, match=f"{name}, {found}"):
        list(RecordReader(written(tmp_path, name, data), skip_bad=skip_bad))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id;text;price\na;x, y;3,5\n"),
        ("a.csv", "id;text;price, net\na;x, y;3,5\n"),
        ("a.csv", "id\ttext\tprice\na\tx, y\t3,5\n"),
        ("a.csv", "id|text|price\na|x, y|3,5\n"),
        ("a.tsv", 'id,text,price\na,"x, y","3,5"\n'),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_header_shows_what_separates_the_columns(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    (record,) = RecordReader(written(tmp_path, name, text.encode(encoding)))
    assert (record.id, record.text, list(record.metadata.values())) == ("a", "x, y", ["3,5"])


def test_a_column_of_one_text_with_other_marks_stays_one_column(tmp_path: Path) -> None:
    assert [record.text for record in RecordReader(written(tmp_path, "a.csv", b"text\na;b\tc|d\n"))] == ["a;b\tc|d"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["2019", "-5", "0"], [2019, -5, 0]),
        (["3.5", "4", "10.25"], [3.5, 4, 10.25]),
        (["3.50", "4.00"], [3.5, 4.0]),  # prices
        (["1.9", "1.10"], None),  # versions
        (["01234", "99999"], None),  # codes
        (["5", "n/a"], None),
        (["1e3", "1e4"], None),
        (["-0", "1"], None),
        (["123456789012345678", "1"], None),  # a number of JSON may lose digits
        (["٣", "1"], None),
        (["True", "False"], None),
    ],
)
def test_a_column_of_numbers_becomes_numbers_if_nothing_is_lost(
    tmp_path: Path, cells: list[str], expected: list[object] | None
) -> None:
    rows = "".join(f"{number},t{number},{cell},{number}\n" for number, cell in enumerate(cells))
    path = written(tmp_path, "a.csv", f"id,text,n,title\n{rows}x,y,,z\n".encode())
    *records, last = RecordReader(path, fields=Fields())
    found = [record.metadata["n"] for record in records]
    assert found == (expected or cells)
    assert [type(each) for each in found] == [type(each) for each in expected or cells]
    assert last.metadata == {}  # an empty cell is no field
    assert [record.id for record in records] == [str(number) for number in range(len(cells))]
    assert [record.title for record in records] == [str(number) for number in range(len(cells))]
    assert {
        type(record.metadata["n"]) for record in RecordReader(path, fields=Fields(parent="n")) if record.metadata
    } == {str}


@given(st.lists(st.integers(-(10**14), 10**14) | st.floats(-1e6, 1e6, width=32).map(lambda x: round(x, 4)), min_size=1))
def test_numbers_that_are_written_and_read_are_the_same(numbers: list[float]) -> None:
    rows = [("", lambda each=each: {"text": "t", "n": str(each)}) for each in numbers]
    if "n" in tables.number_columns(iter(rows), Fields()):
        assert [tables._as_number(str(each)) for each in numbers] == numbers
    else:
        assert any("e" in str(each) or str(each).endswith(".0") or str(each) == "-0.0" for each in numbers)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"id,text,text\na,b,c\n")
    with pytest.raises(CorpusError, match="two columns have the same name"):
        list(RecordReader(path))


@pytest.mark.parametrize("name", ["id", "_id", "key"])
@pytest.mark.parametrize("kind", [pa.string(), pa.int64()], ids=str)
def test_a_null_among_the_ids_of_a_parquet_file_is_refused_with_its_row(
    tmp_path: Path, name: str, kind: pa.DataType
) -> None:
    ids = pa.array([1, 2, None, 4], pa.int64()).cast(kind)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: ids, "text": ["a", "b", "c", "d"]}), path)
    fields = Fields(id="key") if name == "key" else Fields()
    with pytest.raises(CorpusError, match=rf"a\.parquet, row 3: expected .* in '{name}', found null; give each record"):
        list(RecordReader(path, fields=fields))
    reader = RecordReader(path, fields=fields, skip_bad=True)
    assert [record.id for record in reader] == ["1", "2", "4"]
    assert reader.skipped == 1


def test_an_empty_cell_among_the_ids_of_a_csv_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"id,text\n1,a\n,b\n")
    with pytest.raises(CorpusError, match=r"a\.csv, line 3: the id in 'id' is blank; give each record"):
        list(RecordReader(path))


def test_nulls_in_an_id_column_that_holds_no_ids_are_missing_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"key": ["k1", "k2"], "id": [None, "x"], "text": ["a", "b"]}), path)
    found = list(RecordReader(path, fields=Fields(id="key")))
    assert [(record.id, record.metadata) for record in found] == [("k1", {}), ("k2", {"id": "x"})]


def test_parquet_values_become_json(tmp_path: Path) -> None:
    columns = {
        "id": [1, 2],
        "text": ["x", "y"],
        "day": [date(2024, 2, 29), None],
        "at": [datetime(2024, 2, 29, 12, 30, tzinfo=timezone.utc), None],
        "noon": [time(12, 30), None],
        "lasts": [timedelta(hours=1, microseconds=500_000), None],
        "before": [timedelta(seconds=-90), None],
        "parts": [{"tags": ["a"]}, None],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second = RecordReader(tmp_path / "a.parquet")
    assert first.metadata == {
        "day": "2024-02-29",
        "at": "2024-02-29T12:30:00+00:00",
        "noon": "12:30:00",
        "lasts": "PT3600.5S",
        "before": "-PT90S",
        "parts": {"tags": ["a"]},
    }
    assert second == Record("2", "y")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([b"\x00"], "expected values that JSON can hold in 'm', found a bytes"),
        (float("nan"), "expected values that JSON can hold in 'm', found nan"),
        (Decimal("0.12345678901234567890"), "'m' holds 0.12345678901234567890, which no number of JSON holds exactly"),
    ],
)
def test_parquet_values_beyond_json_are_refused(tmp_path: Path, value: object, found: str) -> None:
    pq.write_table(pa.table({"text": ["x"], "m": [value]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=f"row 1: {found}"):
        list(RecordReader(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pa.array([Decimal("1.10"), Decimal("2.00")]), [1.1, 2.0]),
        (pa.array([Decimal(9007199254740993), Decimal(-1)]), [9007199254740993, -1]),
        (pa.array([[Decimal("0.5")], []]), [[0.5], []]),
    ],
)
def test_decimals_are_numbers(tmp_path: Path, values: pa.Array, found: list[object]) -> None:
    pq.write_table(pa.table({"text": ["x", "y"], "m": values}), tmp_path / "a.parquet")
    assert json.dumps([record.metadata["m"] for record in RecordReader(tmp_path / "a.parquet")]) == json.dumps(found)


def test_whole_floats_are_whole_numbers_as_ids_and_parents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1.0, 2.0], "text": ["x", "y"], "book": [7.0, None]}), tmp_path / "a.parquet")
    lines = b'{"id": 1.0, "text": "x", "book": 7.0}\n{"id": 2.0, "text": "y"}'
    for path in (tmp_path / "a.parquet", written(tmp_path, "a.jsonl", lines)):
        found = list(RecordReader(path, fields=Fields(parent="book")))
        assert found == [Record("1", "x", "", {"book": 7}), Record("2", "y")]
        assert isinstance(found[0].metadata["book"], int)
    with pytest.raises(CorpusError, match="expected a string or a whole number in 'id', found a number"):
        list(RecordReader(written(tmp_path, "b.jsonl", b'{"id": 9007199254740993.0, "text": "x"}')))


def test_a_null_text_is_told_from_a_missing_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["1", "2"], "text": ["x", None]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="row 2: expected a string in 'text', found null"):
        list(RecordReader(tmp_path / "a.parquet"))


MARKED = ["utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.md", "a.txt"])
def test_a_byte_order_mark_names_the_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    text = "Größe\u2028und 🎉"
    bodies = {"a.csv": f'id,text\r\n1,"{text}"\r\n', "a.tsv": f"id\ttext\n1\t{text}\n", "a.txt": text, "a.md": text}
    data = bodies.get(name, json.dumps({"id": "1", "text": text}, ensure_ascii=False)).encode(encoding)
    (record,) = RecordReader(written(tmp_path, name, gzip.compress(data) if name.endswith(".gz") else data))
    assert record.text == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["They sleep on the wing.", "Стрижи спят в полёте."])
def test_an_encoding_without_its_mark_is_refused(tmp_path: Path, text: str, encoding: str) -> None:
    path = written(tmp_path, "a.md", text.encode(encoding))
    with pytest.raises(CorpusError, match=r"a\.md: (not UTF-8|more than 10% control characters).*save it as UTF-8"):
        list(RecordReader(path))


def test_a_wide_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    data = "\n".join('{"id": "1", "text": "x"}' for _ in range(9)).encode("utf-16")[:-1]
    with pytest.raises(CorpusError, match=r"a\.jsonl: not readable after line 8: .utf-16"):
        list(RecordReader(written(tmp_path, "a.jsonl", data), skip_bad=True))


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pa.array([b"x"]), "the column 'm' holds bytes"),
        (pa.array([1], pa.timestamp("ns")), r"the column 'm' holds timestamp\[ns\]: .* lose data"),
    ],
)
def test_a_parquet_column_beyond_json_is_named(tmp_path: Path, values: pa.Array, found: str, skip_bad: bool) -> None:
    pq.write_table(pa.table({"text": ["x"], "m": values}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=found):
        list(RecordReader(tmp_path / "a.parquet", skip_bad=skip_bad))


def test_standard_input_is_read_once_and_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(GOOD + b"\n"))
    monkeypatch.setattr(sys, "stdin", pipe)
    reader = RecordReader("-")
    assert list(reader) == list(reader) == [Record("a", "First.")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"oops")))
    with pytest.raises(CorpusError, match="standard input, line 1: not JSON"):
        list(RecordReader("-"))


prose = st.lists(
    st.sampled_from(["# Größe 🎉", "Swifts sleep\r\non the wing.", "```\n# no heading\n```", "- é\n- ü", "x" * 70])
)


@given(blocks=prose.filter(bool), suffix=st.sampled_from([".md", ".txt"]), limit=st.integers(20, 200))
def test_passages_lie_where_their_offset_says(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[str], suffix: str, limit: int
) -> None:
    text = "\n\n".join(blocks)
    path = written(tmp_path_factory.mktemp("texts"), f"guide{suffix}", text.encode())
    records = list(RecordReader(path, max_characters=limit))
    end = 0
    for number, record in enumerate(records):
        offset = record.metadata["offset"]
        assert record.id == f"{path}#{number}"
        found = {key: value for key, value in record.metadata.items() if key not in ("line", "last_line")}
        assert {**found, "section": ""} == {"source": str(path), "offset": offset, "section": ""}
        assert len(record.text) <= limit
        assert text[offset : offset + len(record.text)] == record.text
        assert not text[end:offset].strip()  # nothing between two passages is lost
        end = offset + len(record.text)
    assert not text[end:].strip()


def words(characters: int) -> str:
    return ("word " * characters)[: characters - 1] + "s"


sections = st.lists(
    st.one_of(
        st.sampled_from(
            ["# Swifts", "## Sleep\n\n### On the wing", "Größe\n=====", "<!-- a comment -->", "```", "- é\n- ü"]
        ),
        st.integers(30, 130).map(lambda size: f"## {words(size // 3)}\n\n{words(size)}"),
        st.integers(30, 130).map(words),
    ),
    min_size=1,
    max_size=8,
)


@given(blocks=sections, limit=st.integers(60, 130))
def test_headings_stand_with_text_and_passages_are_no_longer_than_asked(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[str], limit: int
) -> None:
    text = "\n\n".join([*blocks, "The end."])
    path = written(tmp_path_factory.mktemp("texts"), "guide.md", text.encode())
    records = list(RecordReader(path, max_characters=limit))
    assert max(len(record.text) for record in records) <= limit
    assert "".join("".join(record.text.split()) for record in records) == "".join(text.split())
    for record in records[:-1]:
        lines = [line for line in record.text.splitlines() if line.strip()]
        heads = [line for line in lines if line.startswith("#")]
        assert heads != lines or len(record.text) > limit // 3  # much of what a passage holds


@pytest.mark.parametrize(
    "head", ["# Swifts\n\n## Sleep", "Swifts\n======", "Swifts\r\n---", "<!-- of birds -->", "```python"]
)
def test_what_says_nothing_is_kept_with_the_text_that_follows(tmp_path: Path, head: str) -> None:
    path = written(tmp_path, "guide.md", f"{head}\n\n{words(585)}\n\nThe end.".encode())
    first, *others = [record.text for record in RecordReader(path, max_characters=600)]
    assert first.startswith(head)
    assert "word word" in first
    assert others[-1].endswith("The end.")


def test_a_block_of_code_is_text_and_a_heading_of_more_than_half_a_passage_stays_alone(tmp_path: Path) -> None:
    block = written(tmp_path, "block.md", f"```\n# all of it\n```\n\n{words(590)}".encode())
    assert next(iter(RecordReader(block, max_characters=600))).text == "```\n# all of it\n```"
    long = f"# {words(400)}"
    path = written(tmp_path, "long.md", f"{long}\n\n{words(500)}".encode())
    assert [record.text for record in RecordReader(path, max_characters=600)] == [long, words(500)]


def test_a_heading_is_kept_with_the_beginning_of_a_section_that_is_cut(tmp_path: Path) -> None:
    sentences = " ".join(f"Sentence {number} of the section." for number in range(10))
    path = written(tmp_path, "guide.md", f"# Swifts\n\n## Sleep\n\n{sentences}\n\n## Food\n".encode())
    texts = [record.text for record in RecordReader(path, max_characters=200)]
    assert texts[0].startswith("# Swifts\n\n## Sleep\n\nSentence 0 of")
    assert "".join(texts).count("Sentence") == 10


OUTLINE = """---
layout: no heading
---

# The *swift* of `Europe` <a name="swift"></a>

Of birds.

## Sleep

### On the wing

They sleep in flight.

> # quoted

```
# code
```

Food
----

Insects carried up by the wind.

A paragraph of
two lines
---

##

Nothing above.
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_passage_tells_its_section(tmp_path: Path, line_end: str) -> None:
    text = OUTLINE.replace("\n", line_end)
    records = list(RecordReader(written(tmp_path, "swifts.markdown", text.encode()), max_characters=50))
    assert {record.title for record in records} == {"The swift of Europe"}
    sections = {line: record.metadata.get("section") for record in records for line in record.text.splitlines()}
    assert sections["Of birds."] is None
    assert sections["They sleep in flight."] == sections["# code"] == "Sleep > On the wing"
    assert sections["Insects carried up by the wind."] == sections["Nothing above."] == "Food"
    found = [(heading.level, heading.text, text[heading.start :][:4]) for heading in Headings(text).all]
    assert found == [
        (1, "The swift of Europe", "# Th"), (2, "Sleep", "## S"), (3, "On the wing", "### "), (2, "Food", "Food")
    ]  # fmt: skip


def test_text_and_a_file_without_headings_have_no_section(tmp_path: Path) -> None:
    for name in ("plain.txt", "plain.md"):
        record = next(iter(RecordReader(written(tmp_path, name, b"Swifts\n\nThey fly."))))
        assert (record.title, "section" in record.metadata) == ("plain", False)


def test_only_the_first_heading_is_the_title(tmp_path: Path) -> None:
    path = written(tmp_path, "twins.md", b"## One\n\nText of one.\n\n# Two\n\nText of two.\n\n## One\n\nMore of one.")
    found = [(record.title, record.metadata.get("section")) for record in RecordReader(path, max_characters=22)]
    assert found == [("One", None), ("One", "Two"), ("One", "Two > One")]


@pytest.mark.parametrize(
    ("markdown", "texts"),
    [
        ("---\n\n# A rule above\n\n---\n\n## B", ["A rule above", "B"]),
        ("---\n---\n# Empty front matter", ["Empty front matter"]),
        ("\n---\na: b\n...\n# Dots\n\n---\n\nc: d\n\n---\n", ["Dots"]),
        ("# [link][1] ![image](x) &amp; <b>bold</b>\n\n[1]: y", ["link image & bold"]),
        (f"# {'a' * 300}", ["a" * 199 + "…"]),
        ("- # in a list\n\n<!--\n# in a comment\n-->", []),
    ],
)
def test_what_a_heading_is(markdown: str, texts: list[str]) -> None:
    assert [heading.text for heading in Headings(markdown).all] == texts


HEADINGS = ("# A", "## B", "### C", "D\n=", "E\n---")
WORDS = ("text", "- # list", "```\n# x\n```")
NEITHER = ("<!-- note -->", "---", '<a id="b"></a>', "##", "[a]: b")


@given(
    blocks=st.lists(st.sampled_from([*HEADINGS, *WORDS, *NEITHER]), min_size=1),
    front=st.sampled_from(["", "---\ntitle: x\n---\n\n"]),
)
def test_the_section_is_the_headings_above_the_first_words(blocks: list[str], front: str) -> None:
    text = front
    path: dict[int, str] = {}
    expected: dict[int, list[str]] = {}
    waiting: list[int] = [0, len(front)]  # places whose words have not come
    for block in blocks:
        if block in HEADINGS:
            level = {"D": 1, "E": 2}.get(block[0], block.count("#"))
            path = {above: name for above, name in path.items() if above < level} | {level: block.strip("# =-\n")}
        waiting.append(len(text))
        if block in WORDS:
            waiting.append(len(text) + len(block) - 1)
            expected |= {place: list(path.values()) for place in waiting}
            waiting = []
        text += f"{block}\n\n"
    expected |= {place: list(path.values()) for place in waiting}
    found = Headings(text)
    assert {place: [heading.text for heading in found.above(place)] for place in expected} == expected


def test_a_folder_is_read_in_order_of_paths(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    written(docs, "b.txt", b"Plain.")
    written(docs, "a/z.md", b"\xef\xbb\xbf# Of swifts #\n\nThey fly.")
    written(docs, "a/y.MARKDOWN", b"```\n# code\n```")
    written(docs, "a/picture.png", b"\x89PNG")
    written(docs, ".git/readme.md", b"hidden")
    reader = RecordReader(docs)
    assert [(record.id, record.title) for record in reader] == [
        ("docs/a/y.MARKDOWN#0", "y"),
        ("docs/a/z.md#0", "Of swifts"),
        ("docs/b.txt#0", "b"),
    ]
    assert {record.metadata["folder"] for record in reader} == {str(docs)}
    assert reader.fields.parent == "source"


def test_ids_do_not_depend_on_how_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "docs/a.md", b"A.")
    monkeypatch.chdir(tmp_path / "docs")
    assert list(RecordReader(".")) == list(RecordReader(tmp_path / "docs"))


def test_files_of_one_name_have_ids_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("x", "y"):
        written(tmp_path, f"{folder}/readme.md", b"Read me.")
    ids = [record.id for record in RecordReader(tmp_path / "x/readme.md", tmp_path / "y/readme.md")]
    monkeypatch.chdir(tmp_path / "x")
    assert [record.id for record in RecordReader("readme.md", "../y/readme.md")] == ids
    assert len(set(ids)) == 2


def test_several_sources_follow_each_other(tmp_path: Path) -> None:
    records = written(tmp_path, "a.jsonl", GOOD)
    text = written(tmp_path, "b.txt", b"Second.")
    assert [record.text for record in RecordReader(records, text)] == ["First.", "Second."]
    assert RecordReader(records).fields.parent is None
    assert RecordReader(records, text).fields.parent == "source"


def test_a_bad_text_file_is_named(tmp_path: Path) -> None:
    written(tmp_path, "docs/a.md", b"\xe9")
    good = written(tmp_path, "docs/b.md", b"Good.")
    with pytest.raises(CorpusError, match=r"a.md: .*not UTF-8: byte 0xe9"):
        list(RecordReader(tmp_path / "docs"))
    reader = RecordReader(tmp_path / "docs", skip_bad=True)
    assert [record.text for record in reader] == [good.read_text()]
    assert reader.skipped == 1


def test_a_bad_file_in_a_folder_is_skipped_if_that_is_wanted_and_one_that_is_named_is_not(tmp_path: Path) -> None:
    bad = written(tmp_path, "elsewhere/a.md", b"\xe9")
    written(tmp_path, "docs/a.md", b"\xe9")
    written(tmp_path, "docs/b.md", b"Good.")
    written(tmp_path, "docs/rows.jsonl", b'{"id": "r", "text": "A row."}\n{"id": "s"}\n')
    lines = "".join(json.dumps({"text": random.Random(n).randbytes(500).hex()}) + "\n" for n in range(600))
    written(tmp_path, "docs/cut.jsonl.gz", gzip.compress(lines.encode(), mtime=0)[:-9])
    reader = RecordReader(tmp_path / "docs", skip_bad="in folders")
    assert {record.text for record in reader if len(record.text) < 99} == {"Good.", "A row."}
    assert reader.skipped == 3
    assert [report.removeprefix(f"{tmp_path}/docs/").partition(":")[0] for report in reader.reports] == [
        "a.md",
        "cut.jsonl.gz",
        "rows.jsonl, line 2",
    ]
    with pytest.raises(CorpusError, match=r"a\.md: not UTF-8"):
        list(RecordReader(tmp_path / "docs", bad, skip_bad="in folders"))
    written(tmp_path, "docs/more.jsonl", b'{"id": "r", "text": "Another row."}\n')
    with pytest.raises(CorpusError, match="the id 'r' came before, with another title or text"):
        list(RecordReader(tmp_path / "docs", skip_bad="in folders"))


def test_files_of_records_in_a_folder_are_read_if_they_have_texts(tmp_path: Path) -> None:
    written(tmp_path, "docs/a.md", b"A page.")
    written(tmp_path, "docs/inner/rows.csv", b"id;text;year\n1;One.;2019\n")
    written(tmp_path, "docs/figures.csv", b"year,value\n2019,3\n")
    written(tmp_path, "docs/rows.ndjson", b'{"id": "n", "text": "A line."}\n')
    written(tmp_path, "docs/package.json", b'{"id": "j", "text": "Settings."}\n')
    pq.write_table(pa.table({"id": ["p"], "text": ["Of Parquet."]}), tmp_path / "docs/rows.parquet")
    reader = RecordReader(tmp_path / "docs")
    assert [(record.id, record.text) for record in reader] == [
        ("docs/a.md#0", "A page."),
        ("1", "One."),
        ("n", "A line."),
        ("p", "Of Parquet."),
    ]
    assert next(record for record in reader if record.id == "1").metadata == {"year": 2019}
    assert reader.unread().kinds == {".csv": 1, ".json": 1}
    assert len(list(RecordReader(tmp_path / "docs", fields=Fields(text="value")))) == 2


def test_a_folder_of_records_alone_is_read(tmp_path: Path) -> None:
    written(tmp_path, "rows/a.jsonl", GOOD)
    assert [record.id for record in RecordReader(tmp_path / "rows")] == ["a"]
    written(tmp_path, "figures/a.csv", b"year,value\n2019,3\n")
    with pytest.raises(CorpusError, match="holds no text"):
        list(RecordReader(tmp_path / "figures"))


def test_a_table_outside_the_folder_is_no_file_of_it(tmp_path: Path) -> None:
    secret = written(tmp_path, "secret.jsonl", GOOD)
    written(tmp_path, "docs/a.md", b"A page.")
    (tmp_path / "docs/link.jsonl").symlink_to(secret)
    with pytest.raises(CorpusError, match=r"link\.jsonl: expected a file of the folder, found a link to"):
        list(RecordReader(tmp_path / "docs"))


LATIN = "Über größere Vögel und über schöne.\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", LATIN),
        ("a.md", f"# Vögel\n\n{LATIN}"),
        ("a.csv", f"id,text\n1,{LATIN}"),
        ("a.jsonl", json.dumps({"text": LATIN}, ensure_ascii=False) + "\n"),
        ("a.csv", "id,text\n" + "".join(f"{n},plain ASCII\n" for n in range(6000)) + f"x,{LATIN}"),  # in a later block
    ],
)
def test_another_encoding_is_named_or_guessed_and_said(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, f"docs/{name}", text.encode("cp1252"))
    with pytest.raises(CorpusError, match="not UTF-8"):
        list(RecordReader(path))
    for reader in (
        RecordReader(path, guess_encoding=True),
        RecordReader(path, reading=ReadingRules(tokens=160, encoding="latin-1")),
        RecordReader(path, reading=ReadingRules(tokens=160, encoding="cp1252"), guess_encoding=True),
    ):
        assert LATIN.strip() in [*reader][-1].text
        assert set(reader.guessed) <= {str(path)}
        assert bool(reader.guessed) == (reader.reading is None)


@pytest.mark.parametrize(
    "data",
    ["Привет, мир, как твои дела сегодня".encode("cp1251"), b"\x81\x8d" * 20, "Größe\n".encode("utf-16-le")],
)
def test_what_does_not_look_western_is_not_guessed(tmp_path: Path, data: bytes) -> None:
    reader = RecordReader(written(tmp_path, "a.txt", data), guess_encoding=True)
    with pytest.raises(CorpusError, match=r"not UTF-8|control characters"):
        list(reader)
    assert reader.guessed == []


def test_a_named_encoding_is_that_of_files_that_are_not_utf8_alone(tmp_path: Path) -> None:
    texts = {"a.txt": LATIN.encode(), "b.txt": LATIN.encode("utf-16"), "c.txt": LATIN.encode("utf-16-le")}
    for name, data in texts.items():
        written(tmp_path, f"docs/{name}", data)
    rules = ReadingRules(tokens=160, encoding="utf-16-le")
    assert [record.text for record in RecordReader(tmp_path / "docs", reading=rules)] == [LATIN.strip()] * 3
    for name in ("klingon", "hex"):
        with pytest.raises(ValueError, match=f"found '{name}'"):
            ReadingRules(tokens=160, encoding=name)


def test_files_without_a_suffix_are_read_as_text_if_that_is_said(tmp_path: Path) -> None:
    readme = written(tmp_path, "docs/README", b"Read me.")
    written(tmp_path, "docs/a.md", b"A page.")
    reader = RecordReader(tmp_path / "docs")
    assert ([record.text for record in reader], reader.unread().kinds) == (["A page."], {"no suffix": 1})
    assert len(list(RecordReader(tmp_path / "docs", as_text=["."]))) == 2
    with pytest.raises(CorpusError, match=r"add: --as-text \."):
        RecordReader(readme)
    assert [record.text for record in RecordReader(readme, as_text=["."])] == ["Read me."]


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_an_empty_file_named_by_itself_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorpusError, match="holds no text"):
        list(RecordReader(written(tmp_path, "a.md", data)))


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "docs/good.md", b"Good.")
    written(tmp_path, "docs/secret.md", b"Closed.")
    written(tmp_path, "docs/closed/a.md", b"Closed.")
    written(tmp_path, "docs/.closed/a.md", b"Hidden.")
    scandir, read_bytes = os.scandir, Path.read_bytes

    def closed_folder(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    def closed_file(path: Path) -> bytes:
        if path.name == "secret.md":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(os, "scandir", closed_folder)  # to root, no permission is denied
    monkeypatch.setattr(Path, "read_bytes", closed_file)
    with pytest.raises(CorpusError, match=f"{tmp_path / 'docs/closed'}: not readable: Permission denied"):
        list(RecordReader(tmp_path / "docs"))
    reader = RecordReader(tmp_path / "docs", skip_bad=True)
    assert [record.text for record in reader] == ["Good."]
    assert [report.removeprefix(str(tmp_path / "docs")) for report in reader.reports] == [
        "/closed: not readable: Permission denied",
        "/secret.md: not readable: Permission denied",
    ]


def test_a_name_that_is_not_utf8_is_a_bad_file(tmp_path: Path) -> None:
    written(tmp_path, "docs/good.md", b"Good.")
    try:
        written(tmp_path, os.fsdecode(b"docs/caf\xe9.md"), b"Coffee.")
    except OSError:
        pytest.skip("this file system knows no such names")
    with pytest.raises(CorpusError, match="its path is not UTF-8; rename it"):
        list(RecordReader(tmp_path / "docs"))
    reader = RecordReader(tmp_path / "docs", skip_bad=True)
    assert [record.text for record in reader] == ["Good."]
    assert reader.skipped == 1


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("cut.jsonl.gz", gzip.compress(GOOD * 9, mtime=0)[:-9], "not readable after line"),
        ("no.jsonl.gz", GOOD, "not readable after line 0"),
        ("cut.parquet", b"PAR1 and nothing", "not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_on_always_stops(
    tmp_path: Path, name: str, data: bytes, reason: str, skip_bad: bool
) -> None:
    with pytest.raises(CorpusError, match=f"{name}: {reason}"):
        list(RecordReader(written(tmp_path, name, data), skip_bad=skip_bad))


def test_sources_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        RecordReader(tmp_path / "missing.jsonl")
    with pytest.raises(
        CorpusError, match=r"unknown format.*Markdown, text, .*CSV, TSV or Parquet; cde-rag index --help"
    ) as error:
        RecordReader(written(tmp_path, "a.xls", b""))
    assert len(str(error.value).removeprefix(str(tmp_path))) < 260  # no list of all suffixes
    with pytest.raises(CorpusError, match="Two folders have one name"):
        RecordReader(written(tmp_path, "x/docs/a.md", b"A.").parent, written(tmp_path, "y/docs/a.md", b"B.").parent)
    with pytest.raises(CorpusError, match=r"holds no text: expected files of Markdown, text, .* or notebooks, in it"):
        list(RecordReader(written(tmp_path, "z/a.png", b"").parent))


@pytest.mark.parametrize(("library", "characters"), [("semantic_text_splitter", 600), ("markdown_it", None)])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, characters: int | None
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cde-rag\[files\]'"):
        list(RecordReader(written(tmp_path, "a.md", b"A."), max_characters=characters))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, skip_bad: bool) -> None:
    """Whoever may put a link into a folder would have any file of the reader's indexed, and found."""
    (tmp_path / "secret.md").write_text("The key is 1234.")
    (tmp_path / "docs/inside").mkdir(parents=True)
    (tmp_path / "docs/page.md").write_text("A page.")
    (tmp_path / "docs/same.md").symlink_to("page.md")
    (tmp_path / "docs/inside/out.md").symlink_to(tmp_path / "secret.md")
    reader = RecordReader(tmp_path / "docs", skip_bad=skip_bad)
    if not skip_bad:
        with pytest.raises(
            CorpusError, match=r"inside/out\.md: expected a file of the folder, found a link to .*secret"
        ):
            list(reader)
        return
    assert [record.text for record in reader] == ["A page.", "A page."]
    assert reader.skipped == 1
    (tmp_path / "way").symlink_to(tmp_path / "docs")  # the folder itself may be named by a link
    assert len(list(RecordReader(tmp_path / "way", skip_bad=True))) == 2


PLACES = (
    "page.md",
    "inside/page.md",
    "inside/deep/a.md",
    "inside/rows.csv",
    "inside/picture.png",
    ".hidden/a.md",
    "way",
)


@given(
    names=st.sets(st.sampled_from((*PLACES, ".", "inside", "inside/deep", "way/page.md", "gone.md", "inside/~$a.md")))
)
def test_only_what_is_named_of_a_folder_is_read(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    """Read so, a part of a folder gives the records that the folder gives, whichever files and folders are named."""
    folder = tmp_path_factory.mktemp("parts") / "docs"
    for name in PLACES[:-1]:
        written(folder, name, f"text\nThe file {name}.\n".encode())
    (folder / "way").symlink_to("inside")  # is not followed
    reader = RecordReader(folder)
    everything = list(reader)
    assert [record.id for record in everything][:3] == [
        "docs/inside/deep/a.md#0",
        "docs/inside/page.md#0",
        "docs/page.md#0",
    ]
    assert len(everything) == 4
    reader.only = frozenset(folder.resolve() / name for name in names)
    inside = {f"docs/{name}" for name in names}

    def is_named(record: Record) -> bool:
        source = Path(record.metadata.get("source", "docs/inside/rows.csv"))
        return "docs/." in inside or any(each.as_posix() in inside for each in (source, *source.parents))

    assert list(reader) == list(filter(is_named, everything))
    reader.only = None
    assert list(reader) == everything


class Counting(io.BytesIO):
    """A file that notes how much was asked of it at once."""

    def readline(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert 0 < size <= 101
        return super().readline(size)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_line_that_is_too_long_is_bad_and_not_held(tmp_path: Path, skip_bad: bool) -> None:
    path = tmp_path / "birds.jsonl"
    lines = [json.dumps({"id": str(number), "text": "x" * length}) for number, length in enumerate((10, 100_000, 20))]
    path.write_text("\n".join(lines))
    reader = RecordReader(path, skip_bad=skip_bad, max_line_bytes=100)
    reason = r"line 2: expected at most 100 bytes in a line, found more; .*--max-line-bytes"
    if skip_bad:
        assert [record.id for record in reader] == ["0", "2"]
        assert re.search(reason, reader.reports[0])
    else:
        with pytest.raises(CorpusError, match=reason):
            list(reader)
    rows = list(tables.jsonl_rows(Counting(path.read_bytes()), "birds", 100))
    assert [where for where, _ in rows] == ["birds, line 1", "birds, line 2", "birds, line 3"]


def test_a_csv_line_that_is_too_long_stops(tmp_path: Path) -> None:
    """Where its quotes end is not known, so that no row after it is."""
    path = tmp_path / "birds.csv"
    path.write_text("id,text\n1,short\n2," + "x" * 200 + "\n")
    with pytest.raises(CorpusError, match=r"line 3: expected at most 100 bytes"):
        list(RecordReader(path, skip_bad=True, max_line_bytes=100))


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(CorpusError, match="found a NUL character"):
        RecordReader("birds\0.jsonl")


def test_source_code_is_read_as_text_where_its_suffix_is_named(tmp_path: Path) -> None:
    code = written(tmp_path, "src/app.py", b'"""Doc."""\n\n\ndef create_path(name):\n    return name\n')
    written(tmp_path, "src/readme.md", b"# About\n\nA program.")
    written(tmp_path, "src/page.html", b"<p>Kept as it is.</p>")
    assert RecordReader(code.parent).unread().kinds[".py"] == 1
    reader = RecordReader(code.parent, as_text=[".PY", ".html"])
    assert reader.unread().kinds == {}
    found = {record.metadata["source"]: record for record in reader}
    assert set(found) == {"src/app.py", "src/readme.md", "src/page.html"}
    assert found["src/app.py"].text == code.read_text().strip()
    assert found["src/page.html"].text == "<p>Kept as it is.</p>"
    (alone,) = RecordReader(code, as_text=[".py"])
    assert (alone.title, alone.text) == ("app.py", found["src/app.py"].text)
    assert [record.text for record in RecordReader(code)] == [alone.text]
    with pytest.raises(CorpusError, match=r"If it is text, add: --as-text \.xml"):
        RecordReader(written(tmp_path, "src/app.xml", b"<a/>"))


@pytest.mark.parametrize("wrong", ["py", "*.py", "..", ".tar.gz", ""])
def test_suffixes_have_a_dot_in_front(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(CorpusError, match=r"expected suffixes such as '\.py', found"):
        RecordReader(tmp_path, as_text=[wrong])
    with pytest.raises(TypeError, match="as_text"):
        RecordReader(tmp_path, as_text=".py")


@pytest.mark.parametrize("limit", ["max_characters", "max_line_bytes"])
def test_limits_are_whole_numbers_of_any_size(limit: str, tmp_path: Path):
    """A line of at most -1 bytes would be no line at all: a file without records."""
    paths = [written(tmp_path, "a.jsonl", b'{"text": "a fish"}\n'), written(tmp_path, "b.md", b"# A\n\nfish")]
    for wrong, error in ((0, ValueError), (-1, ValueError), ("600", TypeError), (6.5, TypeError)):
        with pytest.raises(error, match=limit):
            RecordReader(*paths, **{limit: wrong})  # type: ignore[arg-type]
    assert len(list(RecordReader(*paths, **{limit: 10**30}))) == 2  # type: ignore[arg-type]

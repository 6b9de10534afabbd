"""Rows say which file they were read from and where they stand in it, and are embedded no more often for that."""

import csv
import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_replacement import contents, created, write
from test_writing import Embedder
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, ContextualEmbedder
from cde_rag.indexing import replacement
from cde_rag.indexing.replacement import missing_tables, stale_rows
from cde_rag.indexing.upsert import AddReport
from cde_rag.readers import Fields, ReadingRules, RecordReader
from cde_rag.readers import reader as reader_module
from cde_rag.readers.row_origin import public_origin, row_of
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings(
    "ignore::cde_rag.errors.TruncationWarning", "ignore::cde_rag.errors.SmallContextWarning"
)
cells = st.text(st.sampled_from('ab,"\n'), min_size=1, max_size=8).filter(str.strip)


@pytest.fixture
def embedder() -> Embedder:
    made = ContextualEmbedder.from_corpus(WORDS, model=tiny_cde_model(), context_size=8)
    found = Embedder(made.model, made.context)
    found.embedded = []
    return found


def origins(*sources: Path, fields: Fields | None = None) -> dict[str, Any]:
    return {record.text: record.metadata.get("table") for record in RecordReader(*sources, fields=fields)}


@given(rows=st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=8, unique_by=lambda row: row[0]))
def test_a_row_of_csv_is_that_of_a_spreadsheet_and_its_line_that_of_an_editor(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, bool]]
) -> None:
    """Cells of several lines and empty lines count as they look: the file itself, read by `csv` and by lines, says."""
    path, made = tmp_path_factory.mktemp("rows") / "a.csv", io.StringIO(newline="")
    writer = csv.writer(made)
    writer.writerow(["n", "text"])
    for number, (text, blank) in enumerate(rows):
        made.write("\r\n" * blank)
        writer.writerow([f"n{number}", text])
    path.write_text(made.getvalue(), newline="")
    table, lines = list(csv.reader(io.StringIO(made.getvalue(), newline=""))), made.getvalue().split("\n")
    found = origins(path)
    assert found.keys() == {text for text, _ in rows}
    for number, (text, _) in enumerate(rows):
        origin = found[text]
        assert origin["file"] == str(path)
        assert table[origin["row"] - 1] == [f"n{number}", text]
        assert lines[origin.get("line", origin["row"]) - 1].startswith(f"n{number},")
        assert origin.get("line") != origin["row"]


def test_rows_of_each_format_in_a_folder_and_alone(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/a.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}\n')
    (folder / "b.tsv").write_text("text\tyear\nthree\t7\n")
    pq.write_table(pa.table({"text": ["four", "five"]}), folder / "c.parquet")
    place = {"folder": str(folder)}
    assert origins(folder) == {
        "three": {"file": "docs/b.tsv", **place, "row": 2},
        "four": {"file": "docs/c.parquet", **place, "row": 1},
        "five": {"file": "docs/c.parquet", **place, "row": 2},
        "one": {"file": "docs/inner/a.jsonl", **place, "row": 1},
        "two": {"file": "docs/inner/a.jsonl", **place, "row": 3},
    }
    assert origins(folder / "b.tsv") == {"three": {"file": str(folder / "b.tsv"), "row": 2}}


def test_a_column_of_the_same_name_stays_as_it_is(tmp_path: Path) -> None:
    """Also where it is empty; its values and ours are never mixed under one key."""
    path, lines = tmp_path / "a.csv", tmp_path / "a.jsonl"
    path.write_text("text,table,row,source\none,oak,3,x\ntwo,,4,y\n")
    assert [record.metadata for record in RecordReader(path)] == [
        {"table": "oak", "row": 3, "source": "x"}, {"row": 4, "source": "y"}
    ]  # fmt: skip
    pq.write_table(pa.table({"text": ["one", "two"], "table": ["oak", None]}), tmp_path / "a.parquet")
    assert origins(tmp_path / "a.parquet") == {"one": "oak", "two": None}
    lines.write_text('{"text": "one", "table": null}\n{"text": "two", "row": 9, "source": "z"}\n')
    one, two = RecordReader(lines)
    assert one.metadata == {"table": None}
    assert two.metadata == {"row": 9, "source": "z", "table": {"file": str(lines), "row": 2}}
    assert origins(lines, fields=Fields(parent="table"))["two"] is None


def test_columns_with_the_names_of_origins_in_filters_stay_as_they_are(tmp_path: Path, embedder: Embedder) -> None:
    """Else filters would read the one or the other, and files that are gone would not be named."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "a.csv").write_text("text,table.file,table.row\none,oak,3\n")
    (folder / "a.jsonl").write_text('{"text": "two", "table.file": "oak"}\n')
    pq.write_table(pa.table({"text": ["three"], "table.file": ["oak"]}), folder / "a.parquet")
    assert all("table" not in record.metadata for record in RecordReader(folder))
    (gone := folder / "gone.csv").write_text("text\nfour\n")
    with Collection.create(FaissStore(tmp_path / "c"), embedder) as collection:
        collection.add_records(RecordReader(folder))
        gone.unlink()
        collection.add_records(reader := RecordReader(folder))
        assert missing_tables(collection.store, reader) == ["tables/gone.csv"]


def test_a_field_of_the_same_name_is_no_origin_without_a_number() -> None:
    own = {"table": {"file": "x", "row": True, "folder": "mine"}}
    assert (row_of(own), public_origin(own)) == (None, own)


def test_equal_rows_are_one_record_of_the_first(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.csv").write_text("text\nriver\nbank\nriver\n")
    (folder / "b.csv").write_text("text\nfish\nbank\n")
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        assert papers.add_records(RecordReader(folder)).added == 3
        assert papers.add_records(RecordReader(folder)) == AddReport(unchanged=5)
        found = {record.text: record.metadata["table"] for record in papers.scroll()}
        assert {text: (each["file"], each["row"]) for text, each in found.items()} == {
            "river": ("docs/a.csv", 2), "bank": ("docs/a.csv", 3), "fish": ("docs/b.csv", 2)
        }  # fmt: skip


@pytest.mark.parametrize("parent_key", ["source", None])
def test_a_collection_of_rows_without_origins_embeds_nothing_again(
    tmp_path: Path,
    embedder: Embedder,
    parent_key: str | None,
) -> None:
    """The ids, digests and vectors of an earlier release stay, with a text file in the same folder."""
    folder = tmp_path / "docs"
    write(folder / "page.md", 4)
    (folder / "rows.csv").write_text("text,year\nriver,1\nbank,2\n")
    (folder / "more.csv").write_text("text,source\nfish,docs/page.md\n")
    with created(FaissStore(tmp_path / "p"), embedder, parent_key) as papers:
        fields = Fields(parent=parent_key)
        with mock.patch.object(reader_module, "with_origin", lambda record, *_: record):
            papers.add_records(RecordReader(folder, max_characters=60, fields=fields))
        before, vectors = contents(papers)
        embedder.embedded.clear()
        report = papers.add_records(RecordReader(folder, max_characters=60, fields=fields))
        assert (report.updated, report.unchanged, report.replaced, report.added) == (3, 4, 0, 0)
        assert embedder.embedded == []
        after, same = contents(papers)
        assert {id_: row.digest for id_, row in before.items()} == {id_: row.digest for id_, row in after.items()}
        assert (vectors == same).all()
        assert papers.add_records(RecordReader(folder, max_characters=60, fields=fields)) == AddReport(unchanged=7)


def test_stale_rows_are_counted_by_their_file(tmp_path: Path, embedder: Embedder) -> None:
    """Those of other files, of other runs, and of files with bad rows are not counted."""
    folder, other = tmp_path / "docs", tmp_path / "other.jsonl"
    folder.mkdir()
    (folder / "a.csv").write_text("text\nriver\nbank\nfish\n")
    (folder / "b.csv").write_text("text\nsand\nsnow\n")
    other.write_text('{"text": "hill"}\n{"text": "wood"}\n')
    with created(FaissStore(tmp_path / "p"), embedder) as papers:

        def stale(*sources: Path, skip_bad: bool = False) -> dict[str, int]:
            reader = RecordReader(*sources, skip_bad=skip_bad)
            papers.add_records(reader)
            return stale_rows(papers.store, reader)

        assert stale(folder) == stale(other) == stale(folder, other) == {}
        (folder / "a.csv").write_text("text\nriver\nthe bank\n")
        assert stale(folder) == {"docs/a.csv": 2}
        assert stale(folder / "a.csv") == {"docs/a.csv": 2}  # by the name that the folder gives it
        other.write_text('{"text": "wood"}\n')
        assert stale(other) == {str(other): 1}
        other.write_text('{"text": "wood"}\n{"text": " "}\n')
        assert stale(other, skip_bad=True) == {}
        assert papers.count() == 8


def test_readers_without_fields_read_by_those_that_the_collection_keeps(tmp_path: Path, embedder: Embedder) -> None:
    """Files of each format that have them; one that lacks them is read by the default ones."""
    rows = [{"key": "t1", "body": "a boat", "text": "b"}, {"key": "t2", "body": "a bank", "text": "c"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"key": f"u{n}", "body": WORDS[n]}) + "\n" for n in range(3)))
    (tmp_path / "c.csv").write_text("id,text\np1,a river\n")
    with created(tmp_path / "all", embedder) as collection:
        collection.add_records(RecordReader(tmp_path / "a.parquet", fields=Fields(id="key", text="body")))
        assert collection.inspect().fields == {"id": "key", "text": "body"}
        assert collection.add_records(RecordReader(tmp_path / "a.parquet")).unchanged == 2
        reader = RecordReader(tmp_path / "b.jsonl", tmp_path / "c.csv")
        assert collection.add_records(reader).added == 4
        assert {record.id for record in collection.scroll()} == {"t1", "t2", "u0", "u1", "u2", "p1"}
        assert RecordReader(tmp_path / "a.parquet").kept_fields is None
        assert [record.text for record in RecordReader(tmp_path / "a.parquet")] == ["b", "c"]


def test_fields_and_rules_that_another_process_kept_are_followed(tmp_path: Path, embedder: Embedder) -> None:
    """A server had the collection open before."""
    (tmp_path / "a.csv").write_text("key,body\nt1,a boat\n")
    write(tmp_path / "docs" / "page.md", 9)
    with created(tmp_path / "all", embedder) as collection, Collection(FaissStore(tmp_path / "all"), embedder) as other:
        assert other.count() == 0
        collection.add_records(RecordReader(tmp_path / "a.csv", fields=Fields(id="key", text="body")))
        rules = ReadingRules(characters=40)
        collection.add_records(RecordReader(tmp_path / "docs", reading=rules))
        assert other.add_records(RecordReader(tmp_path / "a.csv", tmp_path / "docs")).unchanged == collection.count()
        reader = RecordReader(tmp_path / "docs")
        assert other.prepare_reader(reader) == collection.inspect().reading == reader.decided


def test_a_table_that_left_its_folder_is_named(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more than are looked at one by one."""
    folder = tmp_path / "docs"
    write(folder / "page.md", 2)
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(f"text\nriver {name}\n")
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        reader = RecordReader(folder)
        papers.add_records(reader)
        assert missing_tables(papers.store, reader) == []
        for name in ("a.csv", "b.csv"):
            (folder / name).unlink()
            papers.add_records(reader)
        for most in (1_000, 1, 0):
            monkeypatch.setattr(replacement, "_MOST_TABLES", most)
            assert missing_tables(papers.store, reader) == ["docs/a.csv", "docs/b.csv"]


def test_standard_input_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text\nriver\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps({"text": "bank"}).encode())))
    assert origins(path, Path("-")) == {"river": {"file": str(path), "row": 2}, "bank": None}

"""The same pairs whatever file they lie in; what is wrong with a row is said with its file and line."""

import csv
import gzip
import json
import re

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_rag import CDEError
from cde_rag_training.data.hub_sets import HubSet
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.reading import Columns, PairReader, read_sources

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
rows = st.fixed_dictionaries(
    {
        "query": text.map(str.strip),
        "document": text.map(str.strip),
        "source": st.sampled_from(["docs", "faq"]),
        "domain": st.sampled_from(["a", "b"]),
        "parent": st.sampled_from(["", "Page: one", "two"]),
        "hard_negatives": st.lists(text.map(str.strip), max_size=2),
    }
)
ROWS = [
    {"query": " how long? ", "document": "Ten months.", "domain": "swifts", "title": "Flight", "hard_negatives": None},
    {"query": "where?", "document": "Africa.", "domain": "swifts", "title": None, "hard_negatives": ["Asia.", "Mars."]},
]
PAIRS = [
    Pair("how long?", "Ten months.", "birds", "swifts", "Flight"),
    Pair("where?", "Africa.", "birds", "swifts", "", ("Asia.", "Mars.")),
]


def write(path, rows):
    """Write rows in the format of the name."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        columns = {name: [row.get(name) for row in rows] for name in names}
        pyarrow.parquet.write_table(pa.table(columns), path)
        return path
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.name:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, names, delimiter="\t" if ".tsv" in path.name else ",")
            writer.writeheader()
            for row in rows:
                listed = {name: json.dumps(value) for name, value in row.items() if isinstance(value, list) and value}
                writer.writerow({name: value for name, value in row.items() if value != []} | listed)
    return path


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "p.csv", "p.tsv.gz", "p.parquet"])
@settings(max_examples=40)
@given(st.lists(rows, min_size=1, max_size=4))
def test_every_format_gives_the_same_pairs(tmp_path_factory, name, wanted):
    path = write(tmp_path_factory.mktemp("pairs") / name, wanted)
    pairs = [Pair(**{**row, "hard_negatives": tuple(row["hard_negatives"])}) for row in wanted]
    assert list(PairReader(path)) == pairs


@pytest.mark.parametrize("stream", [False, True])
def test_data_sets_and_their_streams(stream):
    data = datasets.Dataset.from_list(ROWS)
    reader = PairReader(data.to_iterable_dataset() if stream else data, source="birds")
    assert list(reader) == list(reader) == PAIRS
    with pytest.raises(CDEError, match=r"row 1: expected a mapping, found a string; of several splits give one"):
        list(PairReader(iter(datasets.DatasetDict(train=data))))


@pytest.mark.parametrize("stream", [False, True])
def test_a_data_set_by_name(tmp_path, monkeypatch, stream):
    """`datasets` reads a folder as it reads the hub; nothing is asked of a network."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "birds").mkdir()
    write(tmp_path / "birds" / "train.jsonl", ROWS)
    write(tmp_path / "birds" / "test.jsonl", ROWS[::-1])
    reader = PairReader(f"hub:{tmp_path / 'birds'}", stream=stream)
    assert list(reader) == list(reader) == PAIRS
    assert list(PairReader(f"hub:{tmp_path / 'birds'}#/test", stream=stream)) == PAIRS[::-1]
    assert list(PairReader(f"hub:{tmp_path / 'birds'}", stream=stream, rows=1)) == PAIRS[:1]
    with pytest.raises(CDEError, match=r"birds: expected the split 'dev' of a data set, found: .*dev"):
        list(PairReader(f"hub:{tmp_path / 'birds'}#/dev", stream=stream))
    with pytest.raises(CDEError, match=r"none: expected the split 'train' of a data set"):
        list(PairReader(f"hub:{tmp_path / 'none'}", stream=stream))


def test_names_of_data_sets():
    assert HubSet.parse("hub:a/b@v1") == HubSet("a/b", revision="v1")
    assert HubSet.parse("hub:a/b#pairs", stream=True) == HubSet("a/b", config="pairs", stream=True)
    assert HubSet.parse("hub:a/b#pairs/dev[:10%]").split == "dev[:10%]"
    for wrong in ("hub:", "hub:#pairs", "hub:a/b@"):
        with pytest.raises(CDEError, match="Expected a data set as hub:OWNER/NAME"):
            HubSet.parse(wrong)


@pytest.mark.parametrize(("grade", "found"), [(0.25, 0.25), (1, 1.0), ("0.5", 0.5), (None, 1.0), ("", 1.0)])
def test_grades(grade, found):
    assert next(iter(PairReader([{**ROWS[0], "grade": grade}], source="birds"))).grade == found


@pytest.mark.parametrize("grade", [True, "much", -0.1, 1.5, float("nan"), [1]])
def test_what_is_no_grade(grade):
    with pytest.raises(CDEError, match=r"row 1: expected a number in 0 … 1 in 'grade'"):
        list(PairReader([{**ROWS[0], "grade": grade}], source="birds"))


def test_columns_have_other_names(tmp_path):
    rows = [{"q": "a", "pos": "b", "set": 3, "neg1": "c", "neg2": ["d", "e"]}, {"q": "f", "pos": "g", "set": 4}]
    columns = Columns(query="q", document="pos", source="set", hard_negatives=("neg1", "neg2"))
    wanted = [Pair("a", "b", "3", "3", "", ("c", "d", "e")), Pair("f", "g", "4", "4")]
    assert list(PairReader(write(tmp_path / "a.jsonl", rows), columns=columns)) == wanted


def test_a_cell_of_csv_is_a_list_or_a_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('query,document,hard_negatives\n"[""q""]",d,"[""x"", ""y""]"\nq,d,[1] not a list\n')
    first, second = PairReader(path)
    assert (first.query, first.hard_negatives, second.hard_negatives) == ('["q"]', ("x", "y"), ("[1] not a list",))


def test_names_of_sources(tmp_path):
    for name in ("birds.jsonl", "birds.jsonl.gz", "birds.parquet"):
        assert list(PairReader(write(tmp_path / name, ROWS))) == PAIRS
    (tmp_path / "birds").mkdir()
    write(tmp_path / "birds/pairs.jsonl.gz", ROWS)
    assert read_sources(tmp_path, ["birds"]) == {"birds": PAIRS}
    assert read_sources(tmp_path, ["birds"], without_domains=["swifts"]) == {"birds": []}


GOOD = '{"query": "a", "document": "b"}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"query": "a"}', "no value in 'document' (found: 'query'); name each column's role with Columns"),
        ('{"query": " ", "document": "b"}', "the text in 'query' is blank"),
        ('{"query": "a", "document": ""}', "the text in 'document' is blank"),
        ('{"query": "a", "document": 3}', "expected a string in 'document', found a number"),
        ('{"query": "a", "document": "b", "domain": ["c"]}', "expected a string in 'domain', found a list"),
        ('{"query": "a", "document": "b", "title": true}', "expected a string in 'title', found a boolean"),
        ('{"query": "a", "document": "b", "hard_negatives": [""]}', "the text in 'hard_negatives' is blank"),
        ('{"query": "a", "document": "b", "hard_negatives": {"c": 1}}', "expected a string in 'hard_negatives'"),
        ('{"query": "\\ud800", "document": "b"}', "lone surrogate"),
        ('{"query": "a", "document"', "not JSON"),
        ('["a", "b"]', "expected one JSON object a line, found a list"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    path = tmp_path / "p.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}")
    with pytest.raises(CDEError, match=rf"p.jsonl, line 3: .*{re.escape(reason)}.* Mend it"):
        list(PairReader(path))
    reader = PairReader(path, skip_bad=True)
    assert len(list(reader)) == 2
    assert reader.skipped == 1
    assert reason in reader.reports[0]


def test_a_lone_surrogate_in_a_data_set_is_named():
    with pytest.raises(CDEError, match=r"birds, row 2: .*lone surrogate"):
        list(PairReader([ROWS[0], {**ROWS[0], "document": "\ud800"}], source="birds"))


def test_a_row_of_parquet_is_named(tmp_path):
    path = write(tmp_path / "p.parquet", [ROWS[0], {**ROWS[0], "query": None}])
    with pytest.raises(CDEError, match=r"p.parquet, row 2: no value in 'query'"):
        list(PairReader(path))


def test_files_that_are_none(tmp_path):
    for name, reason in (("p.txt", "another format"), ("p.parquet.gz", "another format"), ("none.jsonl", "nothing")):
        path = tmp_path / name
        if name != "none.jsonl":
            path.write_text("x")
        with pytest.raises(CDEError, match=rf"{name}: expected a file.*found {reason}"):
            PairReader(path)
    with pytest.raises(CDEError, match="found a folder"):
        PairReader(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(CDEError, match=r"empty.jsonl: expected pairs, found none"):
        list(PairReader(empty))


def test_a_file_cut_short_is_no_shorter_file(tmp_path):
    path = write(tmp_path / "p.jsonl.gz", ROWS * 200)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CDEError, match=r"p.jsonl.gz: not readable after line \d+"):
        list(PairReader(path, skip_bad=True))


def test_a_named_column_has_to_be_somewhere(tmp_path):
    path = write(tmp_path / "p.jsonl", ROWS)
    for columns in (Columns(parent="page"), Columns(hard_negatives=("negative",))):
        with pytest.raises(CDEError, match=r"expected the columns \['\w+'\] as named, found them in no row"):
            list(PairReader(path, columns=columns))
    with pytest.raises(CDEError, match=r"line 1: no value in 'subject'"):
        list(PairReader(path, columns=Columns(domain="subject")))

"""Tables: what goes out comes in again, whatever its types; what cannot be told in JSON is refused with its row."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import WORDS

from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CorpusError
from cde_rag.models import CDEModel
from cde_rag.readers import Fields, RecordReader
from cde_rag.records import Hit, Record
from cde_rag.stores.faiss import FaissStore
from cde_rag.transfer import dataframes as tables
from cde_rag.transfer.dataframes import embed, records, rows, to_dataset, to_frame

TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 7)) for i in range(40)]

metadata = st.fixed_dictionaries(
    {},
    optional={
        "year": st.integers(-(2**63), 2**63 - 1),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "open": st.booleans(),
        "tags": st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1, max_size=3),
    },
)
some_records = st.lists(
    st.builds(Record, st.uuids().map(str), st.sampled_from(TEXTS), st.sampled_from(["", "A title"]), metadata),
    max_size=8,
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def embedder(tiny_model: CDEModel) -> ContextualEmbedder:
    return ContextualEmbedder(tiny_model, Context.null(tiny_model))


@settings(max_examples=40)
@given(some_records)
def test_there_and_back(given: list[Record]) -> None:
    assert list(records(to_frame(given))) == given
    assert list(records(to_dataset(given))) == given
    if given:  # datasets cannot stream nothing
        assert list(records(to_dataset(given).to_iterable_dataset())) == given


def test_types_of_pandas() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "text": ["a river", "a bank"],
            "when": pd.to_datetime(["2020-01-01 12:00", None]),
            "zone": pd.to_datetime(["2020-01-01", "2021-01-01"]).tz_localize("UTC"),
            "took": pd.to_timedelta([90, None], unit="s"),
            "score": [0.5, np.nan],
            "count": pd.array([3, None], dtype="Int64"),
            "kind": pd.Categorical(["x", None]),
            "single": np.array([1, 2], dtype=np.float32),
            "list": [np.array([1, 2]), None],
            "any": [np.int64(4), pd.NA],
        }
    )
    full, sparse = records(frame)
    assert (full.id, full.text, sparse.id) == ("1", "a river", "2")
    assert full.metadata == {
        "when": "2020-01-01T12:00:00",
        "zone": "2020-01-01T00:00:00+00:00",
        "took": "PT90S",
        "score": 0.5,
        "count": 3,
        "kind": "x",
        "single": 1.0,
        "list": [1, 2],
        "any": 4,
    }
    assert sparse.metadata == {"zone": "2021-01-01T00:00:00+00:00", "single": 2.0}
    assert all(type(value) in (str, int, float, list) for value in full.metadata.values())


def test_types_of_datasets() -> None:
    values = {"day": date(2020, 1, 2), "when": datetime(2020, 1, 2, 3), "took": timedelta(minutes=1), "in": {"a": [1]}}  # noqa: DTZ001
    table = datasets.Dataset.from_list([{"text": "a river", **values}, {"text": "a bank"}])
    full, sparse = records(table.with_format("numpy"))
    assert full.metadata == {"day": "2020-01-02", "when": "2020-01-02T03:00:00", "took": "PT60S", "in": {"a": [1]}}
    assert sparse.metadata.keys() <= {"in"}
    assert len(full.id) == 32  # made of the text


def test_other_columns() -> None:
    frame = pd.DataFrame({"doc": ["x"], "body": ["a river"], "name": ["Delta"], "id": ["metadata"]}, index=[7])
    (record,) = records(frame, fields=Fields(id="doc", text="body", title="name"))
    assert record == Record("x", "a river", "Delta", {"id": "metadata"})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, np.inf], r"DataFrame, row 2: .*'x', found inf"),
        ([1, "a"], "expected values of one type"),
        (pd.to_datetime(["2020-01-01 00:00:00.000000001", None]), "lose data"),
        ([b"1", b"2"], "the column 'x' holds bytes"),
        ([object(), None], "expected values of one type"),
        ([2**70, None], "expected values of one type"),
        (pd.period_range("2020-01", periods=2, freq="M"), r"'x' holds .*period.*as strings"),
        (np.array(["99999-01-01", "2020-01-01"], dtype="datetime64[s]"), "'x' holds timestamp"),
    ],
)
def test_values_that_json_cannot_hold(column: list[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(records(pd.DataFrame({"text": TEXTS[:2], "x": column})))


def test_tables_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 2)
    frame = pd.DataFrame({"text": ["a", "b", "c", "d", " "]})
    with pytest.raises(CorpusError, match="DataFrame, row 5: the text in 'text' is blank"):
        list(records(frame))
    with pytest.raises(CorpusError, match="Dataset, row 5"):
        list(records(datasets.Dataset.from_pandas(frame)))
    with pytest.raises(CorpusError, match=r"no field 'body' \(found: 'text'\)"):
        list(records(frame, fields=Fields(text="body")))
    with pytest.raises(CorpusError, match="columns with names"):
        list(records(frame.rename(columns={"text": 1})))
    with pytest.raises(CorpusError, match="two columns"):
        list(records(pd.concat([frame, frame], axis=1)))
    for other in (["a"], datasets.DatasetDict(train=datasets.Dataset.from_pandas(frame)), frame["text"]):
        with pytest.raises(TypeError, match="choose one"):
            list(records(other))


def test_a_stream_is_read_as_it_is_needed() -> None:
    read: list[int] = []

    def stream() -> Iterator[dict[str, str]]:
        for number in range(100):
            read.append(number)
            yield {"text": f"a river {number}"}

    found = records(datasets.IterableDataset.from_generator(stream))
    assert next(found).text == "a river 0"
    assert len(read) < 10


def test_fields_that_cannot_go_out() -> None:
    with pytest.raises(CorpusError, match="'1' has title"):
        list(rows([Record("1", "a", metadata={"title": "x"})]))
    assert next(rows([Record("1", "a", metadata={"score": 1})]))["score"] == 1
    with pytest.raises(CorpusError, match="'1' has score"):
        to_frame([Hit("1", 0.5, "", "a", {"score": 1})])
    with pytest.raises(CorpusError, match="one type"):
        to_dataset([Record("1", "a", metadata={"x": 1}), Record("2", "a", metadata={"x": "a"})])


def test_from_a_table_to_a_collection_to_hits_to_parquet(embedder: ContextualEmbedder, tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": TEXTS, "year": range(2000, 2040)})
    papers = Collection.create(FaissStore(tmp_path / "papers"), embedder)
    assert papers.add_records(records(frame)).added == 40
    hits = to_frame(papers.search("a river", 5, where={"year": {"gte": 2020}}))
    assert list(hits.columns) == ["id", "score", "title", "text", "year"]
    assert (hits["year"] >= 2020).all()
    assert hits["score"].is_monotonic_decreasing
    to_frame(papers.scroll()).to_parquet(tmp_path / "papers.parquet")
    read = list(RecordReader(tmp_path / "papers.parquet"))
    assert [each.metadata["table"]["row"] for each in read] == list(range(1, 41))
    assert [(each.id, each.text, each.metadata["year"]) for each in read] == [
        (each.id, each.text, each.metadata["year"]) for each in papers.scroll()
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_embeddings_as_a_column(embedder: ContextualEmbedder, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 7)
    table = datasets.Dataset.from_dict({"title": ["", "Delta"] * 20, "text": TEXTS, "n": range(40)})
    made = embed(table.to_iterable_dataset() if streamed else table, embedder)
    titled = [f"Delta {text}" if place % 2 else text for place, text in enumerate(TEXTS)]
    found = np.array([row["embedding"] for row in made], dtype=np.float32)
    np.testing.assert_allclose(found, embedder.embed_documents(titled), atol=1e-5)
    assert made.features["embedding"].feature.dtype == "float32"
    assert made.features["embedding"].length == 16
    assert [row["n"] for row in made] == list(range(40))


def test_embeddings_that_cannot_be_made(embedder: ContextualEmbedder) -> None:
    table = datasets.Dataset.from_dict({"text": [*TEXTS, " "]})
    with pytest.raises(CorpusError, match="Text 40 is empty"):
        embed(table, embedder)
    with pytest.raises(CorpusError, match="Expected a column 'body'"):
        embed(table, embedder, fields=Fields(text="body"))
    with pytest.raises(CorpusError, match="none named 'text'"):
        embed(table, embedder, column="text")
    for row, message in (({"body": "a"}, "Expected a column 'text'"), ({"text": "a", "embedding": 1}, "none named")):
        stream = datasets.IterableDataset.from_generator(lambda rows: iter(rows), gen_kwargs={"rows": [row]})
        with pytest.raises(CorpusError, match=message):  # it does not know its columns before
            list(embed(stream, embedder))
    with pytest.raises(TypeError, match="found DataFrame"):
        embed(table.to_pandas(), embedder)


def test_embeddings_of_nothing(embedder: ContextualEmbedder) -> None:
    made = embed(datasets.Dataset.from_dict({"text": [], "n": []}), embedder)
    assert made.column_names == ["text", "n", "embedding"]
    assert made.features["embedding"].length == 16

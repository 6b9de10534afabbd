"""Sets of ConTEB, read by the code that reads the hub's, from folders in the same layout."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cde_rag.errors import CorpusError
from cde_rag.evaluation import evaluate, read_conteb
from cde_rag.evaluation.conteb import is_conteb

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("datasets")

CHUNKS = [
    {"chunk_id": "2_1", "chunk": "It was founded in 1905.", "og_chunk": "Bern was founded in 1905."},
    {"chunk_id": "2_10", "chunk": "Its river floods.", "og_chunk": "x"},
    {"chunk_id": "2_0", "chunk": "Bern is a town on a river.", "og_chunk": "x"},
    {"chunk_id": "a_b_0", "chunk": "Oslo is a port.", "og_chunk": "x"},
    {"chunk_id": "a_b_1", "chunk": "  ", "og_chunk": "x"},
]
ASKED = [
    {"query": "when was Bern founded", "chunk_id": "2_1", "answer": "1905"},
    {"query": "which river", "chunk_id": "2_10", "answer": "x"},
    {"query": "what is a port", "chunk_id": "a_b_0", "answer": "x"},
]
CARD = """---
configs:
- config_name: documents
  data_files:
  - split: {documents}
    path: documents/*.parquet
- config_name: queries
  data_files:
  - split: {queries}
    path: queries/*.parquet
---
# A set
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True, raising=False)


def write(folder: Path, documents: Sequence[Any], queries: Sequence[Any], *, split: str = "train") -> Path:
    """A folder as the hub gives it: a card that names the configurations, and Parquet files."""
    for part, rows in (("documents", documents), ("queries", queries)):
        (folder / part).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(list(rows))
        parquet.write_table(table, folder / part / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(CARD.format(documents=split, queries=split))
    return folder


def test_chunks_have_their_document_and_stand_in_order(tmp_path: Path) -> None:
    data = read_conteb(write(tmp_path / "towns", CHUNKS, ASKED))
    assert data.corpus.name == "towns"
    assert data.corpus.ids == ("2_0", "2_1", "2_10", "a_b_0")  # by number, and not by letters; without the blank one
    assert data.corpus.parents == ("2", "2", "2", "a_b")
    assert data.corpus.texts[1] == "It was founded in 1905."
    assert data.queries == tuple(one["query"] for one in ASKED)
    assert data.judgments == ({"2_1": 1}, {"2_10": 1}, {"a_b_0": 1})
    assert not set(data.query_ids) & set(data.corpus.ids)


def test_a_query_may_have_several_chunks(tmp_path: Path) -> None:
    asked = [{"query": "towns", "chunk_ids": ["2_0", "a_b_0"]}]
    assert read_conteb(write(tmp_path / "many", CHUNKS, asked)).judgments == ({"2_0": 1, "a_b_0": 1},)
    asked = [{"query": "towns", "chunk_id": ["2_0", "2_1"]}]
    assert read_conteb(write(tmp_path / "listed", CHUNKS, asked)).judgments == ({"2_0": 1, "2_1": 1},)


def test_it_is_evaluated_with_its_siblings(tmp_path: Path) -> None:
    folder = write(tmp_path / "towns", CHUNKS, ASKED, split="test")
    (found,) = evaluate([folder], systems=("own", "parents", "bm25")).sets
    assert set(found.scores) == {"own", "parents", "bm25"}
    assert found.documents == 4
    with pytest.raises(CorpusError, match="its chunks already"):
        evaluate([folder], max_characters=100)


def test_names_and_folders_are_told_apart(tmp_path: Path) -> None:
    assert is_conteb("conteb/covid-qa")
    assert is_conteb(Path("conteb/covid-qa"))
    assert not is_conteb("scifact/")
    assert not is_conteb("conteb/")
    assert is_conteb(write(tmp_path / "towns", CHUNKS, ASKED))
    beir = tmp_path / "beir"
    beir.mkdir()
    (beir / "corpus.jsonl").write_text(json.dumps({"_id": "1", "text": "a"}))
    assert not is_conteb(beir)


@pytest.mark.parametrize(
    ("documents", "queries", "message"),
    [
        ([{"chunk_id": "7", "chunk": "a"}], ASKED[:1], "expected queries that name chunks"),
        ([{"chunk_id": "7", "chunk": "a"}], [{"query": "q", "chunk_id": "7"}], "such as 'document_3', found '7'"),
        ([*CHUNKS, CHUNKS[0]], ASKED, "found '2_1' again in row 5"),
        ([{"chunk_id": "2_0", "text": "a"}], ASKED, "expected strings in 'chunk_id' and 'chunk'"),
        ([{"chunk_id": "2_0", "chunk": " "}], ASKED, "expected chunks in 'chunk', found none"),
        (CHUNKS, [{"query": " ", "chunk_id": "2_0"}], "expected a query's text in 'query'"),
        (CHUNKS, [{"query": "q", "answer": "x"}], "expected ids of chunks in 'chunk_id' or 'chunk_ids'"),
        (CHUNKS, [{"query": "q", "chunk_id": "9_9"}], "expected queries that name chunks"),
    ],
)
def test_bad_sets_are_refused(tmp_path: Path, documents: list[Any], queries: list[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read_conteb(write(tmp_path / "bad", documents, queries))


def test_a_missing_split_or_dataset_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "two", CHUNKS, ASKED, split="first")
    parquet.write_table(pyarrow.Table.from_pylist(CHUNKS), folder / "documents" / "second-0.parquet")
    card = CARD.replace("path: documents/*", "path: documents/first*\n  - split: second\n    path: documents/second*")
    (folder / "README.md").write_text(card.format(documents="first", queries="first"))
    with pytest.raises(CorpusError, match=r"expected the split 'test' of documents, found first, second"):
        read_conteb(folder)
    assert read_conteb(folder, split="second").queries
    (tmp_path / "no" / "documents").mkdir(parents=True)
    (tmp_path / "no" / "queries").mkdir()
    with pytest.raises(CorpusError, match="expected a dataset of ConTEB"):
        read_conteb(tmp_path / "no")


def test_a_name_is_that_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[str, str]] = []

    def splits(source: str, part: str) -> list[str]:
        asked.append((source, part))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "get_dataset_split_names", splits)
    with pytest.raises(CorpusError, match=r"illuin-conteb/covid-qa: .* found: no network\. Without a network"):
        read_conteb("conteb/covid-qa")
    assert asked == [("illuin-conteb/covid-qa", "documents")]

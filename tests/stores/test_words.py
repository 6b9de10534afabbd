"""Words and stems alike everywhere; stores made without words, and words that are damaged."""

import re
import sqlite3
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import qdrant_edge
from hypothesis import example, given
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models
from text_contract import SPACE, assert_found, made, row, vectors
from word_scores import Scores, faiss_scores, point_scores

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.faiss import words as word_index
from cde_rag.stores.qdrant import QdrantStore, generations
from cde_rag.stores.qdrant.manifest import load
from cde_rag.stores.qdrant_base.manifest import PointsManifest
from cde_rag.stores.qdrant_base.words import WORDS, weights
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.qdrant_edge import shard_generations as edge_generations
from cde_rag.stores.store import Store
from cde_rag.stores.text_analysis import IDENTIFIERS, LONGEST, NEWEST, WORD, stems, visible

ROWS = [row("a", "banks of a river"), row("b", "?"), row("c", "money", "Bank", year=1), row("d", "the river")]


def test_words_are_stemmed_by_porters_algorithm() -> None:
    words = {"relational": "relat", "caresses": "caress", "hopping": "hop", "sky": "sky", "generalizations": "gener"}
    assert [*map(stems, words)] == [[stem] for stem in words.values()]


@pytest.mark.parametrize("word", ["us", "js", "über", "relational_db", "2024s", "élites"])
def test_words_that_have_no_porter_stem_stay(word: str) -> None:
    assert stems(word) == [word]


def ignorable() -> list[str]:
    """Characters that the installed Unicode data calls formats, and the others that are not shown by default."""
    formats = [one for one in map(chr, range(0x110000)) if unicodedata.category(one) == "Cf"]
    shown = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    return ["\u034f", "\u3164", "\ufe0f", "\U000e0100", *(one for one in formats if not re.match(f"[{shown}]", one))]


@pytest.mark.parametrize("one", ignorable(), ids=lambda one: f"{ord(one):x}")
def test_no_character_that_is_not_shown_cuts_a_word(one: str) -> None:
    assert NEWEST.terms(f"soft{one}ware create{one}_path") == NEWEST.terms("software create_path")
    assert WORD.findall(f"soft{one}ware x") == [f"soft{one}ware", "x"]


@pytest.mark.parametrize("script", ["ภาษา", "ភាសា", "မြန်မာ", "日本", "ニホン"])
def test_a_zero_width_space_separates_words_where_no_other_space_does(script: str) -> None:
    assert visible(f"{script}\u200b{script}") == f"{script} {script}"
    assert visible(f"{script}\u2060{script}") == script * 2


@given(st.text(st.characters(exclude_categories=["Cf", "Mn", "Lo", "Cn"])))
def test_other_texts_have_the_terms_that_they_had(text: str) -> None:
    assert NEWEST.terms(text) == IDENTIFIERS.terms(text)


@given(st.text())
@example("soft\u00adware")
@example("İstanbul ẞ ŉ ﬃ \u1e9e ǅ")
@example("हिन्दी שָׁלוֹם ครับ \u0301\u0302 x\u0301\u0345y")
def test_words_have_nothing_that_a_store_reads_otherwise(text: str) -> None:
    words = NEWEST.terms(text)
    plain = stems(visible(text))
    assert plain == words[: len(plain)]
    assert stems(text.upper()) == stems(text) or not text.isascii()
    for word in words:
        assert re.fullmatch(r"\w", word[0])
        assert re.fullmatch(r"\w+", "".join(one for one in word if unicodedata.category(one)[0] != "M"))
        assert word == word.casefold()
        assert 0 < len(word) <= LONGEST
    weighed = weights(Record("a", text), NEWEST)
    assert (weighed is None) == (words == [])
    if weighed is not None:
        assert weighed.indices == sorted(set(weighed.indices))
        assert all(0 < value < 2.2 for value in weighed.values)


@pytest.mark.parametrize(
    ("name", "parts"),
    {
        "create_path": ["creat", "path"],
        "createPath2": ["creat", "path", "2"],
        "HTTPServerError": ["http", "server", "error"],
        "3M_2022_10K": ["3", "m", "2022", "10", "k"],
        "__init__": [],
        "_path": [],
        "Straße_und_Weg": [],
        "is_a_the": [],
    }.items(),
)
def test_identifiers_have_their_parts_as_terms(name: str, parts: list[str]) -> None:
    assert NEWEST.terms(f"x {name} y") == [*stems(f"x {name} y"), *parts]


@pytest.mark.parametrize("blob", ["a" * 2_000_000, "aB" * 1_000_000, "9_" * 1_000_000, "é" * 2_000_000])
def test_a_long_text_without_blanks_takes_linear_time(blob: str) -> None:
    started = time.process_time()
    assert len(NEWEST.terms(blob)) <= 1 + LONGEST
    assert time.process_time() - started < 10  # square time is hours


def test_marks_belong_to_their_letters() -> None:
    assert stems("हिन्दी भाषा, שָׁלוֹם ครับ x\u0301y \u0301") == ["हिन्दी", "भाषा", "שָׁלוֹם", "ครับ", "x\u0301y"]


def test_stop_words_are_left_out_before_they_are_stemmed() -> None:
    assert stems("This is its best. Thing, NOT things; O'Neill's") == [
        "it",
        "best",
        "thing",
        "thing",
        "o",
        "neill",
        "s",
    ]


# Stores that were made without


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where waiting for a disk takes no time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def without_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FaissStore:
    """As the version before made one, and as a SQLite without FTS5 still does."""
    with monkeypatch.context() as patched:
        patched.setattr("cde_rag.stores.faiss.database.has_fts5", lambda _: False)
        store = FaissStore(folder)
        made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    return store


def assert_gets_words(store: Store, scores: Scores) -> None:
    with pytest.raises(StoreError, match="index_texts"):
        store.search_text(["river"], 3)
    assert len(store.search(vectors(1), 4, fingerprint=SPACE)[0]) == 4
    assert store.verify() == []
    store.index_texts()
    rows = [*ROWS, row("e", "river bank")]
    store.add(rows[4:], vectors(1), fingerprint=SPACE)
    assert_found(store, rows, "banks at the river", 5, scores)
    assert_found(store, rows, "bank", 5, scores, {"year": 1})
    assert store.verify() == []


def test_a_faiss_store_without_words_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = without_words(tmp_path / "papers", monkeypatch)
    with sqlite3.connect(tmp_path / "papers" / "collection.sqlite") as connection:
        assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'words'").fetchone() is None
    connection.close()
    other = FaissStore(tmp_path / "papers")
    assert other.count() == 4
    assert_gets_words(store, faiss_scores)
    assert_found(other, [*ROWS, row("e", "river bank")], "river", 5, faiss_scores)


def test_without_fts5_words_are_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = without_words(tmp_path / "papers", monkeypatch)
    monkeypatch.setattr(word_index, "has_fts5", lambda _: False)
    with pytest.raises(StoreError, match="SQLite with FTS5"):
        store.index_texts()
    assert store.count() == 4
    assert store.verify() == []


def test_a_qdrant_store_without_words_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    client = QdrantClient(":memory:")
    client.create_collection("papers", {"theirs": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    store = QdrantStore(client, "papers")
    with monkeypatch.context() as patched:
        patched.setattr(generations, "PointsManifest", lambda *args, words, **more: PointsManifest(*args, **more))
        made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    assert not load(client, "papers").words
    assert_gets_words(QdrantStore(client, "papers"), point_scores)
    assert load(client, "papers").words
    client.upsert("papers", [models.PointStruct(id=1, vector={"theirs": [1, 0]}, payload={"text": "river"})])
    assert_found(store, [*ROWS, row("e", "river bank")], "river", 5, point_scores)


@pytest.mark.parametrize("quantization", [None, "prefix-2"])
def test_an_edge_store_without_words_gets_them(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    folder = scratch / "papers.qdrant"
    store = QdrantEdgeStore(folder, quantization=quantization)
    with monkeypatch.context() as patched:
        patched.setattr(edge_generations, "PointsManifest", lambda *args, words, **more: PointsManifest(*args, **more))
        config = qdrant_edge.EdgeConfig
        patched.setattr(qdrant_edge, "EdgeConfig", lambda sparse_vectors=None, **more: config(**more))
        made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["shard-1"]
    assert_gets_words(store, point_scores)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["shard-1-words"]
    store.close()
    again = QdrantEdgeStore(folder)
    assert_found(again, [*ROWS, row("e", "river bank")], "river", 5, point_scores)
    number = again.create_generation(fingerprint="b2" * 32, context=b"other")
    again.add_to_generation(number, again.lacking(number), list("12345"), vectors(5))
    again.activate(number)
    again.drop(1)
    assert_found(again, [*ROWS, row("e", "river bank")], "river", 5, point_scores)
    assert again.verify() == []
    again.close()


# Damage


@pytest.fixture
def faiss(tmp_path: Path) -> Iterator[FaissStore]:
    store = FaissStore(tmp_path / "papers")
    made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    yield store
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO words (rowid, stems) VALUES (1, 'extra')",
        "INSERT INTO words (words, rowid, stems) VALUES ('delete', 1, 'bank river')",
        "UPDATE words_docsize SET sz = x'07' WHERE id = 1",
        "UPDATE words_data SET block = x'0309' WHERE id = 1",
        "DELETE FROM words_docsize WHERE id = 3",
    ],
)
def test_verify_finds_words_that_are_not_those_of_the_records(faiss: FaissStore, change: str) -> None:
    with sqlite3.connect(faiss.folder / "collection.sqlite") as connection:
        connection.execute(change)
    connection.close()
    (damage,) = faiss.verify()
    assert "index_texts" in damage.found
    faiss.index_texts()
    assert faiss.verify() == []
    assert_found(faiss, ROWS, "river bank", 5, faiss_scores)


def test_every_flipped_byte_of_words_is_found_by_verify_or_changes_nothing(faiss: FaissStore) -> None:
    path = faiss.folder / "collection.sqlite"
    faiss.compact()
    before = faiss.search_text(["river bank", "money"], 5)
    with sqlite3.connect(path) as connection:
        blocks = connection.execute("SELECT id, block FROM words_data").fetchall()
    connection.close()
    for id_, block in blocks:
        for place in range(len(block)):
            flipped = block[:place] + bytes([block[place] ^ 0x10]) + block[place + 1 :]
            _set_block(path, id_, flipped)
            try:
                found = faiss.search_text(["river bank", "money"], 5)
            except StoreFormatError:
                found = None
            assert found == before or faiss.verify() != []
            _set_block(path, id_, block)
    assert faiss.verify() == []


def _set_block(path: Path, id_: int, block: bytes) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE words_data SET block = ? WHERE id = ?", (block, id_))
    connection.close()


def test_verify_finds_changed_words_of_points(tmp_path: Path) -> None:
    client = QdrantClient(":memory:")
    store = QdrantStore(client, "papers")
    made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    points, _ = client.scroll("papers", with_vectors=True)
    found = next(point for point in points if (point.payload or {})["cde_id"] == "a")
    words = found.vector[WORDS]
    words.values[0] += 0.5
    client.update_vectors("papers", [models.PointVectors(id=found.id, vector={WORDS: words})])
    (damage,) = store.verify()
    assert "'a'" in damage.where
    store.index_texts()
    assert store.verify() == []
    client.delete_vectors("papers", [WORDS], [found.id])
    assert len(store.verify()) == 1


def test_a_replaced_record_of_no_words_leaves_none() -> None:
    store = QdrantStore(QdrantClient(":memory:"), "papers")
    made(lambda: store)
    store.add(ROWS, vectors(4), fingerprint=SPACE)
    store.add([Row(Record("a", "???"), "digest")], vectors(1), fingerprint=SPACE)
    assert store.verify() == []


def test_compact_removes_traces_of_deleted_words(faiss: FaissStore) -> None:
    def blocks() -> bytes:
        with sqlite3.connect(faiss.folder / "collection.sqlite") as connection:
            found = connection.execute("SELECT block FROM words_data").fetchall()
        connection.close()
        return b"".join(block for (block,) in found)

    faiss.add([row("secret", "zyzzyva")], vectors(1), fingerprint=SPACE)
    faiss.delete(["secret"])
    assert b"zyzzyva" in blocks()
    faiss.compact()
    assert b"zyzzyva" not in blocks()
    assert_found(faiss, ROWS, "river bank", 5, faiss_scores)

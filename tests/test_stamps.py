"""A stamp says in any database by which model its vectors were made, and other programs can read and check it."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_audit import COUNT, MODEL, OURS, TEXTS, THEIRS, Fill, chroma, lancedb, qdrant

from cde_rag import Context, ContextualEmbedder, FunctionEmbedder
from cde_rag.adoption.audit_sources import source_of
from cde_rag.errors import StoreError
from cde_rag.indexing import stamp_reader
from cde_rag.indexing.audit import audit, stamp_source
from cde_rag.indexing.stamp_reader import KEY, MOST_BYTES, SAME, StampError, canonical, digest_of, likeness, parse
from cde_rag.indexing.stamping import CANARIES, compared, stamp_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),  # of a model that reads letters
]

TEXT = stamp_of(OURS)
READER = Path(stamp_reader.__file__)


def vectors_of(embedder: ContextualEmbedder) -> list[list[float]]:
    """Vectors that another program makes of a stamp: each text in its role."""
    kinds: dict[str, Callable[[list[str]], np.ndarray]] = {
        "document": embedder.embed_documents,
        "query": embedder.embed_queries,
    }
    return [kinds[canary.role]([canary.text])[0].tolist() for canary in parse(TEXT).canaries]


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    """A stamp with other content, and the digest of that."""
    content = json.loads(TEXT)
    change(content)
    return canonical({**content, "digest": digest_of(content)}).decode()


def wide(dim: int, *, query: str = "query: ") -> ContextualEmbedder:
    """A plain model of many numbers."""

    def embed(texts: list[str]) -> np.ndarray:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=dim) for seed in seeds]).astype(np.float32)

    return FunctionEmbedder(embed, name="wide@7", prefixes={"query": query, "document": "passage: "})


def test_a_stamp_names_what_made_the_vectors():
    stamp, identity = parse(TEXT), OURS.context.identity
    assert (stamp.model["name"], stamp.model["dim"]) == ("tiny", 16)
    assert stamp.model["weights_sha256"] == identity.weights_sha256
    assert (stamp.model["pooling"], stamp.model["normalisation"]) == (identity.pooling, identity.normalisation)
    assert stamp.context == {"fingerprint": OURS.fingerprint, "kind": "corpus", "documents": 16}
    assert {canary.role for canary in stamp.canaries} == {"document", "query"}
    assert "'tiny'" in stamp.line
    assert "corpus of 16 documents" in stamp.line
    assert "\n" not in stamp.line


def test_its_text_is_canonical_and_its_digest_can_be_computed_by_anyone():
    content = json.loads(TEXT)
    rest = {key: value for key, value in content.items() if key != "digest"}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(plain.encode()).hexdigest() == content["digest"]
    assert json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False) == TEXT
    assert parse(json.dumps(content, indent=2)) == parse(TEXT)  # a database may write JSON otherwise
    assert stamp_of(OURS) == TEXT


def test_the_model_that_made_them_is_known_from_others():
    null = ContextualEmbedder(MODEL, Context.null(MODEL))
    stamp = parse(TEXT)
    assert likeness(stamp, vectors_of(OURS)) >= SAME
    assert likeness(stamp, np.array(vectors_of(OURS), np.float16).tolist()) >= SAME
    assert likeness(stamp, (7 * np.array(vectors_of(OURS))).tolist()) >= SAME  # of any length
    assert likeness(stamp, vectors_of(THEIRS)) < SAME  # the same model in another context
    assert likeness(stamp, vectors_of(null)) < SAME
    mixed = [*vectors_of(OURS)[:2], vectors_of(THEIRS)[2]]
    assert likeness(stamp, mixed) < SAME  # one is enough


def test_likeness_is_the_least_cosine_of_the_kept_numbers():
    stamp, vectors = parse(TEXT), np.random.default_rng(0).normal(size=(3, 16))
    kept = np.array([canary.numbers for canary in stamp.canaries])
    expected = (kept * vectors).sum(1) / np.linalg.norm(vectors, axis=1)
    assert likeness(stamp, vectors.tolist()) == pytest.approx(expected.min())


@pytest.mark.parametrize(("dim", "kept"), [(255, 255), (256, 256), (257, 129), (384, 192), (1024, 256), (4096, 256)])
def test_a_stamp_is_small_for_any_length_of_vectors(dim: int, kept: int):
    embedder = wide(dim)
    text = stamp_of(embedder)
    assert len(text.encode()) < 4096
    stamp = parse(text)
    assert {len(canary.numbers) for canary in stamp.canaries} == {kept}
    vectors = [
        (embedder.embed_documents if role == "document" else embedder.embed_queries)([words])[0]
        for role, words in CANARIES
    ]
    step = -(-dim // 256)
    thinned = vectors[1][::step] / np.linalg.norm(vectors[1][::step])
    np.testing.assert_allclose(stamp.canaries[1].numbers, thinned, atol=2e-4)
    assert likeness(stamp, [vector.tolist() for vector in vectors]) >= SAME
    assert (stamp.model["revision"], stamp.context["kind"]) == ("7", "none")
    assert "query 'query: '" in stamp.line


def test_a_forgotten_prefix_of_queries_is_seen():
    assert compared(stamp_of(wide(64)), wide(64)).agrees
    check = compared(stamp_of(wide(64)), wide(64, query=""))
    assert not check.agrees
    assert "does not make" in check.finding


def no_canaries(content: dict[str, Any]) -> None:
    content["canaries"] = []


def another_length(content: dict[str, Any]) -> None:
    content["canaries"][1]["vector"] = base64.b64encode(bytes(30)).decode()


def zeros(content: dict[str, Any]) -> None:
    content["canaries"][1]["vector"] = base64.b64encode(bytes(32)).decode()


def not_finite(content: dict[str, Any]) -> None:
    content["canaries"][0]["vector"] = base64.b64encode(b"\x00\x7c" * 16).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(lambda content: content.update({KEY: 2})), "newer 2"),
        (changed(lambda content: content.update({KEY: True})), "format 1, found the True"),
        (TEXT.replace('"tiny"', '"tony"'), "another digest"),
        (TEXT[:-1], "as JSON"),
        ("", "as JSON"),
        ("[]", "as JSON"),
        ("{}", "as JSON"),
        ("a note of the application", "as JSON"),
        ("[" * 9000, "as JSON"),
        (TEXT.replace("{", '{"model":1,', 1), "as JSON"),  # a key twice
        (changed(lambda content: content["model"].update(dim=16.5)), "as JSON"),
        (changed(lambda content: content["model"].update(dim=-16)), r"model\.dim as int"),
        (changed(lambda content: content["model"].update(dim=0)), "found none"),
        (changed(lambda content: content["model"].update(dim=10**12)), "found none"),
        (changed(lambda content: content["model"].update(name=None)), r"model\.name as str, found None"),
        (changed(lambda content: content["prefixes"].pop("query")), "as JSON"),
        (changed(lambda content: content["canaries"][0].update(role="passage")), "text and role"),
        (changed(lambda content: content["canaries"][0].update(vector="?")), "as JSON"),
        (changed(no_canaries), "found none"),
        (changed(another_length), "16 numbers, found one of 15"),
        (changed(zeros), "direction"),
        (changed(not_finite), "direction"),
        (TEXT + " " * MOST_BYTES, f"at most {MOST_BYTES}"),
    ],
)
def test_a_bad_stamp_is_a_clear_error(text: str, message: str):
    with pytest.raises(StampError, match=message):
        parse(text)
    check = compared(text, OURS)
    assert not check.agrees
    assert check.fingerprint is None
    assert "cannot be read" in check.finding


@pytest.mark.parametrize("text", [None, b"{}", 7])
def test_anything_but_a_text_is_refused(text: Any, unchecked: None):
    with pytest.raises(StampError, match="no text"):
        parse(text)


@given(place=st.integers(0, len(TEXT) - 1), letter=st.characters())
def test_any_changed_letter_is_seen(place: int, letter: str):
    """But for white space and escapes between which JSON makes no difference."""
    text = TEXT[:place] + letter + TEXT[place + 1 :]
    try:
        found = parse(text)
    except StampError:
        return
    assert found == parse(TEXT)


@given(text=st.text())
def test_any_text_is_read_or_refused(text: str):
    with pytest.raises(StampError):
        parse(text)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0] * 16] * 2, "Expected 3 vectors of length 16, as the stamp has them, found 2 of length 16"),
        ([[1.0] * 8] * 3, "found 3 of length 8"),
        ([], "found 0 of length 0"),
        ([[0.0] * 16] * 3, "direction"),
        ([[float("nan")] * 16] * 3, "direction"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(vectors: list[list[float]], message: str):
    with pytest.raises(StampError, match=message):
        likeness(parse(TEXT), vectors)


def test_newer_fields_are_no_error():
    assert parse(changed(lambda content: content.update(written="2027"))) == parse(TEXT)


def test_the_reader_is_one_file_of_the_standard_library(tmp_path: Path):
    assert len(READER.read_text(encoding="utf-8").splitlines()) <= 150
    shutil.copy(READER, tmp_path / "reader.py")
    (tmp_path / "stamp.json").write_text(TEXT, encoding="utf-8")
    code = "import reader; print(reader.parse(open('stamp.json', encoding='utf-8').read()).line)"
    made = subprocess.run(  # isolated: without site-packages
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, '.'); {code}"],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert made.stdout.strip() == parse(TEXT).line


@pytest.fixture
def pgvector(postgres: str) -> Iterator[Fill]:
    import psycopg

    def fill(_: Path, vectors: np.ndarray) -> str:
        with psycopg.connect(postgres) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute('CREATE SCHEMA IF NOT EXISTS "an app"')
            connection.execute(
                f'CREATE TABLE "an app"."papers" (id int, content text, embedding vector({vectors.shape[1]}))'.encode()
            )
            with connection.cursor() as cursor:
                rows = [(n, TEXTS[n], str(vectors[n].tolist())) for n in range(COUNT)]
                cursor.executemany('INSERT INTO "an app".papers VALUES (%s, %s, %s)', rows)
        return f"pgvector:{postgres}#an app.papers"

    yield fill
    with psycopg.connect(postgres) as connection:
        connection.execute('DROP SCHEMA IF EXISTS "an app" CASCADE')


@pytest.fixture(params=["qdrant", "chroma", "lancedb", "pgvector"])
def fill(request: pytest.FixtureRequest) -> Fill:
    if request.param == "lancedb":
        pytest.importorskip("lancedb")
    kinds: dict[str, Fill] = {"qdrant": qdrant, "chroma": chroma, "lancedb": lancedb}
    return kinds.get(request.param) or request.getfixturevalue(request.param)


def test_each_database_keeps_a_stamp(fill: Fill, tmp_path: Path):
    target = fill(tmp_path, OURS.embed_documents(TEXTS))
    with source_of(target) as source:
        assert source.stamp() is None
        assert audit(source, OURS).stamp_check is None
        found = stamp_source(source, OURS)
        assert found.stamp_check is not None
        assert found.stamp_check.agrees
    with source_of(target) as source:
        assert source.stamp_text() == TEXT  # type: ignore[attr-defined]
        assert source.stamp() == OURS.fingerprint
        again = audit(source, OURS)
        assert (again.share, again.disputes) == (1.0, False)
        assert "The stamp names 'tiny'" in again.advice
        assert "Nothing to do" in again.advice
        other = audit(source, THEIRS)
        assert other.disputes
        assert "This embedder does not make the vectors of its canaries" in other.advice
        assert audit(source, wide(8)).stamp_check.cosine is None  # type: ignore[union-attr]
        assert stamp_source(source, OURS).stamp == OURS.fingerprint  # in place of the first one
        assert source.count() == COUNT


def test_vectors_that_the_model_did_not_make_get_no_stamp(fill: Fill, tmp_path: Path):
    with source_of(fill(tmp_path, THEIRS.embed_documents(TEXTS))) as source:
        with pytest.raises(StoreError, match="No stamp is written"):
            stamp_source(source, OURS)
        assert source.stamp() is None


def test_vectors_that_disagree_with_their_stamp_are_told(fill: Fill, tmp_path: Path):
    with source_of(fill(tmp_path, THEIRS.embed_documents(TEXTS))) as source:
        source.put_stamp(TEXT)  # type: ignore[attr-defined]
        found = audit(source, OURS)
    assert found.reproduced == 0
    assert "The stored vectors disagree with the stamp" in found.advice


@pytest.mark.parametrize(
    "text", ["{}", TEXT.replace("tiny", "tony"), changed(lambda content: content.update({KEY: 9}))]
)
def test_a_bad_stamp_in_a_database_is_told_and_the_vectors_are_compared(fill: Fill, tmp_path: Path, text: str):
    text = f'{{"{KEY}":0}}' if text == "{}" else text
    with source_of(fill(tmp_path, OURS.embed_documents(TEXTS))) as source:
        source.put_stamp(text)  # type: ignore[attr-defined]
        assert source.stamp() is None
        found = audit(source, OURS)
    assert (found.share, found.disputes) == (1.0, True)
    assert "The stamp cannot be read" in found.advice
    assert "Nothing to do" not in found.advice


def test_chromas_own_metadata_stay(tmp_path: Path):
    import chromadb

    target = chroma(tmp_path, OURS.embed_documents(TEXTS))
    client = chromadb.PersistentClient(path=str(tmp_path))
    client.get_collection("papers").modify(metadata={"topic": "boats"})
    with source_of(target) as source:
        stamp_source(source, OURS)
    assert client.get_collection("papers").metadata == {"topic": "boats", KEY: TEXT}


def test_chroma_metadata_that_would_be_lost_are_left_alone(tmp_path: Path):
    """LangChain reads the distance of its relevance scores from there."""
    import chromadb

    made = chromadb.PersistentClient(path=str(tmp_path)).create_collection(
        "papers", metadata={"hnsw:space": "cosine"}, embedding_function=None
    )
    made.add(ids=TEXTS, documents=TEXTS, embeddings=OURS.embed_documents(TEXTS))  # type: ignore[arg-type]
    with source_of(f"chroma:{tmp_path}#papers") as source, pytest.raises(StoreError, match="hnsw:space"):
        stamp_source(source, OURS)
    client = chromadb.PersistentClient(path=str(tmp_path))
    assert client.get_collection("papers").metadata == {"hnsw:space": "cosine"}


def test_qdrants_own_metadata_stay_and_several_vectors_get_no_stamp(tmp_path: Path):
    from qdrant_client import QdrantClient, models

    target = qdrant(tmp_path, OURS.embed_documents(TEXTS))
    client = QdrantClient(path=str(tmp_path))
    client.update_collection("papers", metadata={"topic": "boats"})
    size = models.VectorParams(size=16, distance=models.Distance.COSINE)
    client.create_collection("two", {"a": size, "b": size})
    client.upsert("two", [models.PointStruct(id=1, vector={"a": [1.0] * 16, "b": [1.0] * 16}, payload={"text": "x"})])
    client.close()
    with source_of(target) as source:
        stamp_source(source, OURS)
    with source_of(f"qdrant:{tmp_path}#two", vector="a") as source, pytest.raises(StoreError, match="one kind"):
        source.put_stamp(TEXT)  # type: ignore[attr-defined]
    client = QdrantClient(path=str(tmp_path))
    assert client.get_collection("papers").config.metadata == {"topic": "boats", KEY: TEXT}
    client.close()


def test_an_overwritten_table_of_lancedb_has_no_stamp_any_more(tmp_path: Path):
    engine = pytest.importorskip("lancedb")
    target = lancedb(tmp_path, OURS.embed_documents(TEXTS))
    with source_of(target) as source:
        stamp_source(source, OURS)
    table = engine.connect(str(tmp_path)).open_table("papers")
    row = {"id": "new", "text": "x", "vector": [1.0] * 16}
    table.add([row])
    with source_of(target) as source:
        assert source.stamp() == OURS.fingerprint
    table.add([row], mode="overwrite")
    with source_of(target) as source:
        assert source.stamp() is None


def test_a_table_with_a_comment_or_migrations_that_compare_them_gets_no_stamp(
    pgvector: Fill, postgres: str, tmp_path: Path
):
    import psycopg

    target = pgvector(tmp_path, OURS.embed_documents(TEXTS))
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("""COMMENT ON TABLE "an app".papers IS '@omit'""")
        with source_of(target) as source:
            assert source.stamp() is None
            with pytest.raises(StoreError, match="found '@omit'"):
                stamp_source(source, OURS)
        connection.execute('COMMENT ON TABLE "an app".papers IS NULL')
        connection.execute('CREATE TABLE "an app".alembic_version (version_num text)')
        with source_of(target) as source, pytest.raises(StoreError, match="Alembic"):
            stamp_source(source, OURS)
        connection.execute('DROP TABLE "an app".alembic_version')
        connection.execute('ALTER TABLE "an app".papers ADD another vector(2)')
        with source_of(target, vector="embedding") as source, pytest.raises(StoreError, match="one kind"):
            stamp_source(source, OURS)


def test_who_may_only_read_a_table_is_told(pgvector: Fill, postgres: str, tmp_path: Path):
    import psycopg

    target = pgvector(tmp_path, OURS.embed_documents(TEXTS))
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE ROLE stamp_reader LOGIN")
        connection.execute('GRANT USAGE ON SCHEMA "an app" TO stamp_reader')
        connection.execute('GRANT SELECT ON "an app".papers TO stamp_reader')
        try:
            other = target.replace("postgres:", "stamp_reader:", 1).replace("//postgres@", "//stamp_reader@", 1)
            assert other != target
            with pytest.raises(StoreError, match="InsufficientPrivilege"), source_of(other) as source:
                stamp_source(source, OURS)
        finally:
            connection.execute('DROP SCHEMA "an app" CASCADE')
            connection.execute("DROP ROLE stamp_reader")


def test_files_have_no_place_for_a_stamp():
    class Files:
        target = "files"

        def count(self) -> int:
            return 0

        def stamp(self) -> None:
            return None

        def sample(self, count: int) -> list[Any]:
            return []

    with pytest.raises(StoreError, match="expected a database"):
        stamp_source(Files(), OURS)

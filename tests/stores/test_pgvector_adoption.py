"""A table of LangChain or LlamaIndex in PostgreSQL becomes a Collection, while its application goes on."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from intact import damages
from tiny import WORDS, tiny_cde_model

from cde_rag.adoption import PostgresTable, adopt, catch_up, release
from cde_rag.adoption.pgvector_table import LANGCHAIN, LANGCHAIN_V2, LLAMA_INDEX, TableColumns
from cde_rag.collection.collection import Collection
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.postgres import PgVectorStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
SIZE, NAMES, MODEL = 4, itertools.count(), tiny_cde_model()

# The tables that PGVector and PGVectorStore of langchain-postgres 0.0.19, and PGVectorStore of
# llama-index-vector-stores-postgres 0.9.0 made here, as `\d` shows them. Neither can be installed beside what we need:
# the first wants pgvector below 0.4, the second SQLAlchemy below 2.1.
LAYOUTS = {
    "langchain": (
        LANGCHAIN,
        (
            "CREATE TABLE IF NOT EXISTS langchain_pg_collection (uuid uuid PRIMARY KEY, name varchar NOT NULL UNIQUE, "
            "cmetadata json); CREATE TABLE {name} (id varchar PRIMARY KEY, collection_id uuid REFERENCES "
            "langchain_pg_collection (uuid) ON DELETE CASCADE, embedding vector, document varchar, cmetadata jsonb); "
            "CREATE INDEX ON {name} USING gin (cmetadata jsonb_path_ops)"
        ),
    ),
    "langchain v2": (
        LANGCHAIN_V2,
        (
            "CREATE TABLE {name} (langchain_id uuid PRIMARY KEY, content text NOT NULL, embedding vector(3) NOT NULL, "
            "langchain_metadata json)"
        ),
    ),
    "llama-index": (
        LLAMA_INDEX,
        (
            "CREATE TABLE {name} (id bigserial PRIMARY KEY, text varchar NOT NULL, metadata_ json, node_id varchar, "
            "embedding vector(3)); CREATE INDEX ON {name} ((metadata_ ->> 'ref_doc_id'))"
        ),
    ),
}
NODE = {"_node_content": '{"id_": "n1", "relationships": {}}', "_node_type": "TextNode", "ref_doc_id": "None"}


def sentence(number: int) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, 6)) + f" {number}"


def id_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class TheirTable:
    """An application that writes and reads its table in its own way."""

    def __init__(self, postgres: str, layout: str) -> None:
        self.columns, made = LAYOUTS[layout]
        self._more = NODE if layout == "llama-index" else {}
        self.name = f"theirs_{next(NAMES)}"
        self._connection = psycopg.connect(postgres, autocommit=True)
        self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        self._connection.execute(made.format(name=self.name).encode())
        for number in range(30):
            self.write(number)

    def write(self, number: int, text: str | None = None, **more: Any) -> None:
        self.delete(number)
        id_, content, metadata = self.columns
        sql = f"INSERT INTO {self.name} ({id_}, {content}, {metadata}, embedding) VALUES (%s, %s, %s, '[1, 2, 3]')"
        row = id_of(number), sentence(number) if text is None else text, json.dumps({"n": number, **self._more, **more})
        self._connection.execute(sql.encode(), row)

    def delete(self, number: int) -> None:
        self._connection.execute(
            f"DELETE FROM {self.name} WHERE {self.columns.id}::text = %s".encode(), [id_of(number)]
        )

    def rows(self) -> list[Any]:
        return self._connection.execute(f"SELECT t::text FROM {self.name} t ORDER BY 1".encode()).fetchall()

    def texts(self) -> dict[str, tuple[str, Any]]:
        """Usable texts and metadata by id."""
        id_, text, metadata = self.columns
        found = self._connection.execute(f"SELECT {id_}::text, {text}, {metadata} FROM {self.name}".encode())
        return {id_: (text, metadata) for id_, text, metadata in found if text and text.strip()}

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(params=LAYOUTS)
def theirs(postgres: str, request: pytest.FixtureRequest) -> Iterator[TheirTable]:
    made = TheirTable(postgres, request.param)
    yield made
    made.close()


@pytest.fixture
def store(postgres: str) -> Iterator[PgVectorStore]:
    made = PgVectorStore(postgres, f"adopted_{next(NAMES)}")
    yield made
    made.close()


def adopted(store: PgVectorStore, theirs: TheirTable, **options: Any) -> Collection:
    return adopt(PostgresTable(store, theirs.name, theirs.columns), model=MODEL, context_size=SIZE, **options)


def assert_mirrors(papers: Collection, theirs: TheirTable) -> None:
    """Every text of the table, with the vector that our embedder gives it."""
    expected = theirs.texts()
    assert {one.id: (one.text, one.metadata) for one in papers.scroll()} == expected
    fresh = papers.embedder.embed_documents([text for text, _ in expected.values()])
    held = papers.store.vectors(list(expected), fingerprint=papers.embedder.fingerprint)
    np.testing.assert_allclose(held, fresh, atol=1e-5)
    assert damages(papers) == []


@pytest.mark.parametrize("theirs", ["langchain v2"], indirect=True)
def test_a_refused_call_leaves_nothing_that_refuses_the_right_one(store: PgVectorStore, theirs: TheirTable):
    """An embedder is given, so that no text is read for a sample."""
    embedder = ContextualEmbedder.from_corpus([*"ab"], model=MODEL)
    with pytest.raises(StoreError, match="nowhere"):
        adopt(PostgresTable(store, "nowhere", theirs.columns), embedder=embedder)
    for number in range(30):
        theirs.write(number, tags=["a", "b"])
    with pytest.raises(CorpusError, match="none of 30 rows can be a record: its 'tags' has to be a string"):
        adopt(PostgresTable(store, theirs.name, theirs.columns), embedder=embedder, parent_key="tags")
    assert not store.exists()
    assert adopt(PostgresTable(store, theirs.name, theirs.columns), embedder=embedder).count() == 30


def test_a_table_in_use_is_adopted_moved_and_released(store: PgVectorStore, theirs: TheirTable):
    steps = itertools.count()

    def meanwhile(_: object) -> None:
        """The application writes while its table is adopted."""
        if next(steps) == 0:
            theirs.write(3, "money and interest")
            theirs.write(40, "a boat")
            theirs.delete(4)

    papers = adopted(store, theirs, on_progress=meanwhile)
    assert next(steps) > 0
    assert papers.count() == 30
    changes = catch_up(papers)
    assert (changes.added, changes.replaced, changes.deleted, changes.documents) == (1, 1, 1, 30)
    assert_mirrors(papers, theirs)
    assert papers.search("a boat", 1)[0].id == id_of(40)
    theirs.write(5, page=2)
    theirs.write(6, " ")
    changes = catch_up(Collection.open(store, model=MODEL))
    assert (changes.updated, changes.replaced, changes.deleted, changes.skipped) == (1, 0, 1, 1)
    papers.recontextualize(seed=5, context_size=SIZE)
    theirs.write(7, "a flood")
    assert catch_up(papers).replaced == 1
    assert_mirrors(papers, theirs)
    papers.rollback()
    assert_mirrors(papers, theirs)
    before = theirs.rows()
    release(papers)
    assert not store.exists()
    assert theirs.rows() == before


def test_an_interrupted_adoption_resumes(store: PgVectorStore, postgres: str):
    theirs = TheirTable(postgres, "llama-index")
    for number in range(30, 90):
        theirs.write(number)

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adopted(store, theirs, on_progress=killed)
    fingerprint = store.manifest().fingerprint
    theirs.write(1000, "a river of the bank")  # a sample drawn anew could be another
    papers = adopted(store, theirs, seed=7)
    assert papers.embedder.fingerprint == fingerprint
    assert_mirrors(papers, theirs)
    assert catch_up(papers).added == 0
    theirs.close()


def test_rows_that_are_no_records_are_passed_over(store: PgVectorStore, postgres: str):
    theirs = TheirTable(postgres, "llama-index")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {theirs.name} (node_id, text, metadata_) VALUES ('{id_of(1)}', 'once more', '{{}}'),"
            " ('', 'no id', '{}'), ('listed', 'a river', '[1, 2]'), ('none', 'a bank', NULL)".encode()
        )
    papers = adopted(store, theirs)
    assert catch_up(papers).skipped == 2
    assert {row.record.id: row.record.metadata for row in papers.store.get(["listed", "none"])} == {
        "listed": {},
        "none": {},
    }
    assert papers.store.get([id_of(1)])[0].record.text == sentence(1)
    theirs.close()


def test_a_role_that_may_only_read_the_table_adopts_it(store: PgVectorStore, postgres: str):
    theirs, role = TheirTable(postgres, "langchain"), f"adopter_{next(NAMES)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE postgres TO {role};"
            f"GRANT SELECT ON {theirs.name} TO {role}".encode()
        )
    ours = PgVectorStore(postgres.replace("postgres:@", f"{role}@"), store.name)
    papers = adopted(ours, theirs)
    assert_mirrors(papers, theirs)
    release(papers)
    theirs.close()


Call = Callable[[PgVectorStore, TheirTable], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda store, theirs: adopt(PostgresTable(store, "nothing", LANGCHAIN), model=MODEL),
            StoreError,
            "nothing.*not exist",
        ),
        (
            lambda store, theirs: adopt(PostgresTable(store, theirs.name, LLAMA_INDEX), model=MODEL),
            StoreError,
            "TableColumns",
        ),
        (
            lambda store, theirs: (
                adopt(PostgresTable(store, theirs.name, TableColumns("id", "embedding")), model=MODEL)
                and adopted(store, theirs)
            ),
            StoreError,
            "expected a collection of .*, found one of",
        ),
        (
            lambda store, theirs: [
                adopted(store, theirs),
                adopt(
                    PostgresTable(store, theirs.name, LANGCHAIN),
                    embedder=ContextualEmbedder.from_corpus(["a bank"], model=MODEL),
                ),
            ],
            ContextMismatchError,
            "These vectors were made in",
        ),
        (
            lambda store, theirs: [
                Collection.create(store, ContextualEmbedder.from_corpus(["a bank"], model=MODEL)),
                adopted(store, theirs),
            ],
            StoreError,
            "found one of none",
        ),
        (
            lambda store, theirs: catch_up(
                Collection.create(store, ContextualEmbedder.from_corpus(["a bank"], model=MODEL))
            ),
            StoreError,
            "holds its own records",
        ),
    ],
)
def test_what_cannot_be_adopted(postgres: str, store: PgVectorStore, call: Call, error: type[Exception], message: str):
    theirs = TheirTable(postgres, "langchain")
    with pytest.raises(error, match=message):
        call(store, theirs)
    theirs.close()


def test_an_empty_table_and_another_store(postgres: str, store: PgVectorStore, tmp_path: Any):
    theirs = TheirTable(postgres, "langchain v2")
    for number in range(30):
        theirs.delete(number)
    with pytest.raises(CorpusError, match=theirs.name):
        adopted(store, theirs)
    assert not store.exists()
    folder = FaissStore(tmp_path / "papers.faiss")
    papers = Collection.create(folder, ContextualEmbedder.from_corpus(["a bank"], model=MODEL))
    with pytest.raises(StoreError, match="was not adopted"):
        release(papers)
    papers.close()
    theirs.close()


def test_the_adopted_table_is_named_with_its_schema(postgres: str, store: PgVectorStore):
    """Another table of its name that comes first on a later search path is not read in its place."""
    number = next(NAMES)
    role, schemas = f"adopting_{number}", [f"theirs_{number}_{one}" for one in "ab"]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
        for schema in schemas:
            connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.chunks (id text, body text)".encode())
            for one in range(9):
                connection.execute(
                    f"INSERT INTO {schema}.chunks VALUES (%s, %s)".encode(), [f"{schema} {one}", sentence(one)]
                )
        connection.execute(f"ALTER ROLE {role} SET search_path = {schemas[0]}".encode())
        mine, columns = (
            PgVectorStore(postgres.replace("postgres:@", f"{role}@"), store.name),
            TableColumns("id", "body"),
        )
        papers = adopt(PostgresTable(mine, "chunks", columns), model=MODEL, context_size=SIZE)
        assert mine.manifest().settings["table"]["name"] == f"{schemas[0]}.chunks"
        connection.execute(f"ALTER ROLE {role} SET search_path = {schemas[1]}".encode())
        connection.execute(f"DELETE FROM {schemas[0]}.chunks WHERE id = '{schemas[0]} 8'".encode())
        assert catch_up(papers).deleted == 1
        assert {record.id for record in papers.scroll()} == {f"{schemas[0]} {one}" for one in range(8)}
        with pytest.raises(StoreError, match=f"found one of .*{schemas[0]}.chunks"):
            adopt(PostgresTable(mine, "chunks", columns), model=MODEL, context_size=SIZE)
        settings = {**mine.manifest().settings["table"], "name": "chunks"}  # as version 0.2 stored it
        mine.update_settings({"table": settings})
        connection.execute(f"ALTER ROLE {role} SET search_path = {schemas[0]}".encode())
        for given in ("chunks", f"{schemas[0]}.chunks"):
            assert adopt(PostgresTable(mine, given, columns), model=MODEL, context_size=SIZE).count() == 8
        with pytest.raises(StoreError, match="this table does not exist"):
            adopt(
                PostgresTable(PgVectorStore(postgres, "adopted_none"), "no_such", columns),
                model=MODEL,
                context_size=SIZE,
            )
    papers.close()
    mine.close()

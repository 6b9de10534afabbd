"""PostgreSQL tables that somebody changed by hand, and databases in other encodings: all errors are ours."""

import itertools
import random
from collections.abc import Callable, Iterator

import psycopg
import pytest
from lives import nothing, opened, record, stub
from sound import check_sound

from cde_rag.collection.collection import Collection
from cde_rag.errors import CDEError, StoreError, StoreFormatError
from cde_rag.records import Row
from cde_rag.stores.postgres import PgVectorStore

COLUMNS = {
    "manifest": "format dim active last settings index quantization places texts words run batches dead store lease",
    "generations": "number fingerprint context checksum",
    "records": "place id title text metadata length checksum batch",
    "fields": "place path kind number value instant",
    "words": "term batch places times",
    "vectors_1": "place digest vector checksum",
}
TYPE = "ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT, ALTER COLUMN {column} TYPE"
CHANGES = (
    "ALTER TABLE {table} DROP COLUMN {column} CASCADE",
    "ALTER TABLE {table} RENAME COLUMN {column} TO renamed",
    f"{TYPE} text USING {{column}}::text",
    f"{TYPE} bytea USING convert_to({{column}}::text, 'UTF8')",
    "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL; UPDATE {table} SET {column} = NULL",
)
KEYS = {("generations", "number"), ("records", "place"), ("vectors_1", "place")}  # which cannot be null
KEYS |= {("records", "id")}  # whose null is the absence of that record
NUMBERS = itertools.count()


def changes() -> Iterator[str]:
    """Each change of each column, and each table dropped."""
    for table, columns in COLUMNS.items():
        yield f"DROP TABLE {{schema}}.{table}"
        for column, change in itertools.product(columns.split(), CHANGES):
            if not ("NULL" in change and (table, column) in KEYS):
                yield change.format(table=f"{{schema}}.{table}", column=column)


def filled(postgres: str) -> PgVectorStore:
    store = PgVectorStore(postgres, f"changed_{next(NUMBERS)}")
    Collection.create(store, stub(0)).add_records(record(number) for number in range(6))
    store.create_generation(fingerprint=stub(1).fingerprint, context=stub(1).context.to_bytes())
    return store


def calls(store: PgVectorStore) -> Iterator[Callable[[], object]]:
    queries, fingerprint = stub(0).embed_queries(["first text of 1"]), stub(0).fingerprint
    row = Row(record(1), "digest")
    yield store.manifest
    yield store.context
    yield store.generations
    yield store.count
    yield lambda: store.count({"n": {"gte": 1}})
    yield lambda: store.get(["d1", "d2"])
    yield lambda: list(store.scroll(where={"odd": True}))
    yield lambda: store.sample(1, seed=0)
    for where in (None, {"odd": True}):
        yield lambda where=where: store.search(queries, 2, fingerprint=fingerprint, where=where)
    yield lambda: store.search_text(["text"], 2)
    yield lambda: store.vectors(["d1"], fingerprint=fingerprint)
    yield lambda: store.lacking(2)
    yield store.verify
    yield lambda: store.update_metadata({"d1": {"n": 2}})
    yield lambda: store.update_settings({"parent_key": "other"})
    yield lambda: store.add([row, Row(record(9), "digest")], queries.repeat(2, 0), fingerprint=fingerprint)
    yield lambda: store.add_to_generation(2, [row], ["digest"], queries)
    yield lambda: store.delete(["d2"])
    yield store.restrict_rows
    yield lambda: store.reindex(index="hnsw")
    yield lambda: opened(store).recontextualize(embedder=stub(1))
    yield store.index_texts


def outcome(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # of any kind
        return error
    return None


@pytest.mark.usefixtures("unchecked")
def test_changed_tables_give_our_errors(
    postgres: str, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Under an open store, and before one is opened: no call ends with an error of Python's or psycopg's."""
    every = list(changes())
    drawn = random.Random(seed).sample(every, times(8, len(every)))
    errors = 0
    for change in drawn:
        store = filled(postgres)
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(change.format(schema=store.name).encode())
        for number, call in enumerate(calls(store)):
            found = outcome(call)
            assert found is None or isinstance(found, CDEError), (change, number, found)
            errors += found is not None
        store.close()
    assert errors > len(drawn)
    tell(f"{len(drawn)} changes of tables and columns; {errors} calls ended with an error, each with one of ours")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DROP TABLE {schema}.fields", r"not as cde-rag made them: .*fields. does not exist. Undo the change, or"),
        ("ALTER TABLE {schema}.records DROP COLUMN title", r"not as cde-rag made them: .*title does not exist"),
        ("ALTER TABLE {schema}.fields ALTER number TYPE text", r"not as cde-rag made them: .*operator does not exist"),
        ("ALTER TABLE {schema}.manifest DROP COLUMN dim", r"manifest\.dim: expected the column as cde-rag made it"),
    ],
)
def test_the_error_names_what_was_changed(postgres: str, change: str, message: str) -> None:
    store = filled(postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(change.format(schema=store.name).encode())
    with pytest.raises(StoreFormatError, match=message):
        list(store.scroll(where={"n": {"gte": 1}}))


# Encodings


@pytest.fixture
def encoded(postgres: str) -> Callable[[str], str]:
    """Makes a database in an encoding."""
    if "/postgres?" not in postgres:
        pytest.skip("the server is one on which databases can be made")

    def made(encoding: str) -> str:
        database = f"in_{encoding.lower()}_{next(NUMBERS)}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
            )
        return postgres.replace("/postgres?", f"/{database}?")

    return made


def test_a_database_without_an_encoding_holds_any_text(encoded: Callable[[str], str]) -> None:
    store = PgVectorStore(encoded("SQL_ASCII"), "papers")
    texts = ["Zürich 北京 🙂", "an ä", "null \0 and \ue000"]
    made = Collection.create(store, stub(0))
    made.add(texts, ids=["ä", "b", "c"], metadata=[{"名": "京"}, {}, {}])
    assert [found.record.text for found in store.scroll()] == texts
    assert [hit.id for hit in store.search_text(["zürich 北京"], 2)[0]] == ["ä"]
    assert store.count({"名": {"contains": "京"}}) == 1
    made.recontextualize(embedder=stub(1))
    check_sound(store)
    with psycopg.connect(store.dsn, autocommit=True, client_encoding="SQL_ASCII") as connection:
        connection.execute("UPDATE papers.records SET text = E'\\xe4' WHERE id = 'b'")
    with pytest.raises(StoreFormatError, match="invalid byte sequence"):
        list(store.scroll())


def test_a_database_that_lacks_characters_is_refused(encoded: Callable[[str], str]) -> None:
    with pytest.raises(StoreError, match=r"in the encoding UTF8, found one in LATIN1.*ENCODING 'UTF8' TEMPLATE"):
        Collection.create(PgVectorStore(encoded("LATIN1"), "papers"), stub(0))


def test_a_collection_that_is_in_such_a_database_is_used_on(
    encoded: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.2 made such databases; a text that it lacks a character for is not added, and nothing is lost."""
    store = PgVectorStore(encoded("LATIN1"), "papers")
    with monkeypatch.context() as patched:
        patched.setattr("cde_rag.stores.postgres.pg_database._ENCODINGS", ("LATIN1",))
        made = Collection.create(store, stub(0))
    made.add(["Zürich", "an ä"], ids=["ä", "b"])
    assert [found.record.text for found in store.scroll()] == ["Zürich", "an ä"]
    for call in (
        lambda: made.add(["北京"]),
        lambda: made.add(["null \0"]),
        lambda: store.search_text(["北京"], 1),
        lambda: store.get(["北京"]),
    ):
        with pytest.raises(StoreError, match="encoding of this database lacks a character"):
            call()
    made.recontextualize(embedder=stub(1), on_progress=nothing)
    assert len(check_sound(store)[0]) == 2

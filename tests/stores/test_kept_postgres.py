"""Collections in PostgreSQL that version 0.2 made, whose manifest has no tokens: read, searched and written on."""

import itertools
import threading

import psycopg
import pytest
from contract import EXACT, OTHER, SPACE, created, row

from cde_rag.errors import StoreError
from cde_rag.stores.postgres import PgTenants, PgVectorStore

NAMES = itertools.count()
TOKENS = "SELECT FROM information_schema.columns WHERE table_schema = %s AND column_name IN ('store', 'lease')"


@pytest.fixture
def kept(postgres: str) -> PgVectorStore:
    """The tables as they were before there were tokens."""
    store = PgTenants(postgres, f"kept_{next(NAMES)}").of("1" * 32)
    created(lambda: store)
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    without_tokens(store)
    store.close()
    return store


def without_tokens(store: PgVectorStore) -> None:
    with psycopg.connect(store.dsn, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {store.name}.manifest DROP COLUMN store, DROP COLUMN lease".encode())


def tokens(store: PgVectorStore) -> int:
    with psycopg.connect(store.dsn, autocommit=True) as connection:
        return connection.execute(TOKENS, [store.name]).rowcount


def best(store: PgVectorStore) -> list[str]:
    return [hit.id for hit in store.search(EXACT[:1], 3, fingerprint=SPACE)[0]]


def test_it_is_read_without_tokens_which_the_first_write_adds(kept: PgVectorStore, postgres: str):
    role = f"reader_{kept.name}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    reader = PgVectorStore(postgres.replace("postgres:@", f"{role}@"), kept.name)
    kept.grant_read(role)
    without_tokens(kept)
    kept.close()
    other = PgVectorStore(postgres, kept.name)
    for store in (kept, other):
        for _ in range(7):
            assert best(store) == ["a", "b"]
        assert store.verify() == []
    assert reader.manifest().fingerprint == SPACE
    assert tokens(kept) == 0
    scan = other.scroll(page=1)
    next(scan)
    kept.add([row("c")], EXACT[2:3], fingerprint=SPACE)
    assert tokens(kept) == 2
    assert len(list(scan)) == 1  # the scan goes on: it is the same collection
    assert reader.manifest().fingerprint == SPACE
    for store in (kept, other):
        assert best(store) == ["a", "b", "c"]
    with other.lease():
        other.drop(other.create_generation(fingerprint=OTHER, context=b"other"))
    other.add([row("d")], EXACT[3:4], fingerprint=SPACE)
    without_tokens(kept)  # the database went back to the day before, under open stores with plans
    assert best(kept) == best(other) == ["a", "b", "c"]
    for id_ in "ef":
        kept.add([row(id_)], EXACT[3:4], fingerprint=SPACE)
    assert tokens(kept) == 2


def test_a_long_read_keeps_no_writer_waiting(kept: PgVectorStore, monkeypatch: pytest.MonkeyPatch):
    """To add the tokens it would have to wait for the reader, and further readers for it; a later write adds them."""
    monkeypatch.setattr("cde_rag.stores.postgres.database._LOCK_WAIT_MS", 100)
    with psycopg.connect(kept.dsn) as connection:
        connection.execute(f"SELECT FROM {kept.name}.manifest".encode())
        kept.add([row("c")], EXACT[2:3], fingerprint=SPACE)
        with kept.lease():
            kept.drop(kept.create_generation(fingerprint=OTHER, context=b"other"))
        assert tokens(kept) == 0
    assert kept.delete(["c"]) == 1
    assert tokens(kept) == 2


def test_many_first_writers_at_once(kept: PgVectorStore):
    errors = list[str]()

    def write(number: int) -> None:
        store = PgVectorStore(kept.dsn, kept.name)
        try:
            store.add([row(f"new {number}")], EXACT[:1], fingerprint=SPACE)
        except StoreError as error:
            errors.append(str(error))
        store.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert kept.count() == 8
    assert (tokens(kept), kept.verify()) == (2, [])

"""PostgreSQL that goes back to an earlier state: a restored snapshot, or a failover to a replica that lags.

Every number in it comes again: generations, runs, places, batches, and the identities of tables.
"""

import itertools
import random
from collections.abc import Callable

import psycopg
import pytest
from lives import LIFE, SPACES, nothing, opened, record, space_after, stub
from own_postgres import OwnPostgres
from sound import answers, check_sound
from suspended import Suspended, suspended

from cde_rag.collection.collection import Collection
from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.stores.postgres import PgVectorStore

QUERY = "another text of 5"
NAMES = itertools.count()


class Database:
    """A database that goes back to its snapshot.

    Attributes:
        address: For a store.
    """

    def __init__(self, postgres: str) -> None:
        self._server, self._name = postgres, f"back_{next(NAMES)}"
        self.address = postgres.replace("/postgres?", f"/{self._name}?")
        self._run(f"CREATE DATABASE {self._name}")

    def snapshot(self) -> None:
        self._run(f"DROP DATABASE IF EXISTS {self._name}_kept WITH (FORCE)")
        self._copy(f"{self._name}_kept", self._name)

    def go_back(self) -> None:
        self._run(f"DROP DATABASE {self._name} WITH (FORCE)")
        self._copy(self._name, f"{self._name}_kept")

    def _copy(self, new: str, old: str) -> None:
        self._run(f"ALTER DATABASE {old} ALLOW_CONNECTIONS false")
        ended = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{old}'"
        self._run(ended)
        self._run(f"CREATE DATABASE {new} TEMPLATE {old}")
        self._run(f"ALTER DATABASE {old} ALLOW_CONNECTIONS true")

    def _run(self, sql: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.fixture
def database(postgres: str) -> Database:
    if "/postgres?" not in postgres:
        pytest.skip("the server is one on which databases can be made")
    return Database(postgres)


def test_an_open_collection_follows(
    database: Database, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """It went on from the snapshot, which then comes back; another run moves it elsewhere by the same numbers."""
    pairs = list(itertools.combinations(range(1, len(LIFE) + 1), 2))
    drawn = [(3, 4), *random.Random(seed).sample(pairs, times(2, len(pairs)))]
    for number, (kept, done) in enumerate(drawn):
        name = f"life_{number}"
        first = PgVectorStore(database.address, name)
        for operation in LIFE[:kept]:
            operation.do(first, nothing)
        first.close()
        database.snapshot()
        store = PgVectorStore(database.address, name)
        for operation in LIFE[kept:done]:
            operation.do(store, nothing)
        collection = opened(store)  # knows the embedder and the plan of its generation
        collection.search(QUERY)
        database.go_back()
        other = PgVectorStore(database.address, name)
        elsewhere = next(space for space in range(SPACES) if space not in (space_after(LIFE[:done]), _space(other)))
        opened(other).recontextualize(embedder=stub(elsewhere))
        with pytest.raises(ContextMismatchError):
            store.search(stub(space_after(LIFE[:done])).embed_queries([QUERY]), 5, fingerprint=_fingerprint(done))
        assert collection.search(QUERY) == opened(other).search(QUERY), (kept, done)
        assert answers(store) == answers(other), (kept, done)
        assert check_sound(store)[1] == elsewhere
        collection.add_records([record(99)])
        assert check_sound(other)[1] == elsewhere
        store.close()
        other.close()
    tell(f"{len(drawn)} databases went back under an open collection; each search was of the space that is there")


def _space(store: PgVectorStore) -> int:
    return check_sound(store)[1]


def _fingerprint(done: int) -> str:
    return stub(space_after(LIFE[:done])).fingerprint


@pytest.mark.parametrize("tokens", [True, False])
def test_a_run_whose_lease_went_back_changes_nothing_more(
    database: Database, times: Callable[[int, int], int], tell: Callable[[str], None], tokens: bool
) -> None:
    """Suspended at each of its transactions in turn; another run has the same number, and one of version 0.2 no token.

    The other run gets a generation of the same number, too.
    """
    store = PgVectorStore(database.address, "lost")
    kept = [record(number) for number in range(44)]
    Collection.create(store, stub(0)).add_records(kept)
    if not tokens:
        with psycopg.connect(database.address, autocommit=True) as connection:
            connection.execute("ALTER TABLE lost.manifest DROP COLUMN store, DROP COLUMN lease")
    store.close()
    database.snapshot()
    until, some = 0, times(3, 1000)
    for until in itertools.islice(itertools.count(2), some):  # the first transaction takes the lease

        def meanwhile() -> None:
            database.go_back()
            opened(store).recontextualize(embedder=stub(2))

        run = Suspended(database.address, "lost", until)
        error = suspended(run, lambda one: one.recontextualize(embedder=stub(1)), meanwhile)
        if not run.suspended:
            break
        expected = "went back to an earlier state" if tokens else "replaced by a restored database"
        assert expected in error, (until, error)
        rows, space = check_sound(store)
        assert (space, [row.record for row in rows]) == (2, kept)
        store.close()
        database.go_back()
    assert until > 3
    tell(f"{until - 1} runs suspended while the database went back and another run took the lease by the same number")


def test_one_collection_in_place_of_another_is_noticed(database: Database) -> None:
    """Its name and all its numbers are the same: readers follow, writers and a scan that began do not."""
    database.snapshot()
    store = PgVectorStore(database.address, "papers")
    Collection.create(store, stub(0)).add_records(record(number) for number in range(20))
    collection, scan = opened(store), store.scroll(page=5)
    assert next(scan).record.id == "d0"
    database.go_back()
    other = PgVectorStore(database.address, "papers")
    Collection.create(other, stub(0)).add_records(record(number) for number in range(100, 120))
    assert collection.search("first text of 105", 1)[0].id == "d105"
    with pytest.raises(StoreError, match="took the place of this one during the scan"):
        list(scan)
    for write in (
        lambda: collection.add_records([record(1)]),
        lambda: collection.delete(["d100"]),
        lambda: collection.recontextualize(embedder=stub(1)),
    ):
        with pytest.raises(StoreError, match=r"another collection than the one that was opened.*Open it again"):
            write()
    assert len(check_sound(other)[0]) == 20
    store.close()  # opened again
    assert opened(store).add_records([record(1)]).added == 1
    check_sound(other)


@pytest.mark.long
def test_a_restored_folder_of_the_server(own_postgres: OwnPostgres) -> None:
    store = PgVectorStore(own_postgres.address, "papers")
    Collection.create(store, stub(0)).add_records(record(number) for number in range(20))
    store.close()
    own_postgres.snapshot()
    collection = opened(store)
    collection.recontextualize(embedder=stub(1))
    collection.search(QUERY)
    with store.lease():
        number = store.create_generation(fingerprint=stub(3).fingerprint, context=b"context")
        own_postgres.go_back()
        other = PgVectorStore(own_postgres.address, "papers")
        opened(other).recontextualize(embedder=stub(2))
        with pytest.raises(StoreError, match="went back to an earlier state"):
            store.add_to_generation(number, [], [], stub(3).embed_queries([]))
    assert collection.search(QUERY) == opened(other).search(QUERY)
    assert check_sound(store)[1] == 2
    store.close()
    other.close()

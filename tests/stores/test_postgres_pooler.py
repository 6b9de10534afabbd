"""PgVectorStore behind PgBouncer, which gives each transaction another session, or each client one; and look-alikes."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psycopg
import pytest
from contract import EXACT, OTHER, SPACE, Opener, StoreContract, created, row, units
from pooler import pooler
from word_scores import table_scores

from cde_rag.adoption.pgvector_table import TableColumns, table_records
from cde_rag.errors import StoreError
from cde_rag.stores.postgres import PgTenants, PgVectorStore
from cde_rag.stores.postgres.database import PgDatabase
from cde_rag.stores.store_calls import StoreState

NAMES = itertools.count()


def name() -> str:
    return f"pooled_{next(NAMES)}"


@pytest.fixture(scope="module")
def pooled(postgres: str) -> Iterator[str]:
    """Address behind a transaction pooler."""
    with pooler(postgres, "transaction", sessions=10) as address:
        yield address


@pytest.mark.long  # the contract of test_postgres.py once more; what a pooler changes follows below
class TestPgVectorBehindATransactionPooler(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture
    def new_place(self, pooled: str) -> Callable[[], Opener]:
        return lambda: functools.partial(PgVectorStore, pooled, name())


@pytest.mark.long
class TestPgVectorBehindASessionPooler(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture(scope="class")
    def session_pooled(self, postgres: str) -> Iterator[str]:
        with pooler(postgres, "session", sessions=60) as address:  # each object of a test keeps some
            yield address

    @pytest.fixture
    def new_place(self, session_pooled: str) -> Callable[[], Opener]:
        return lambda: functools.partial(PgVectorStore, session_pooled, name())


def test_a_session_pooler_serves_all_calls(postgres: str):
    with pooler(postgres, "session", sessions=10) as address:
        store = created(functools.partial(PgVectorStore, address, name()))
        store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
        with store.lease():
            number = store.create_generation(fingerprint=OTHER, context=b"other")
            store.add_to_generation(number, store.lacking(number), ["1", "2"], EXACT[1::-1])
            store.activate(number)
        assert [hit.id for hit in store.search(EXACT[:1], 1, fingerprint=OTHER)[0]] == ["b"]
        assert store.verify() == []
        store.close()


# Tenants


def test_tenants_read_and_write_their_own_tables(postgres: str, pooled: str):
    """Two services, each of one tenant, that share the pooler's sessions; every call is made by threads at once."""
    prefix, keys = name(), ("1" * 32, "2" * 32)
    stores = [PgTenants(pooled, prefix).of(key) for key in keys]
    for number, store in enumerate(stores):
        created(lambda store=store: store)
        store.add([row(f"{number} first", "secret", of=number)], EXACT[:1], fingerprint=SPACE)
    seen, errors = [set[str](), set[str]()], list[BaseException]()

    def work(number: int, thread: int) -> None:
        store = stores[number]
        try:
            for at in range(10):
                store.add([row(f"{number} {thread} {at}", "secret", of=number)], EXACT[:1], fingerprint=SPACE)
                seen[number].update(found.record.id for found in store.scroll())
                seen[number].update(hit.id for hit in store.search(EXACT[:1], 99, fingerprint=SPACE)[0])
                seen[number].update(hit.id for hit in store.search_text(["secret"], 99)[0])
                assert store.count({"of": 1 - number}) == 0
        except Exception as error:  # noqa: BLE001  # of any kind, in a thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number, thread)) for number in (0, 1) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for number, key in enumerate(keys):
        direct = PgTenants(postgres, prefix).of(key)
        ids = {found.record.id for found in direct.scroll()}
        assert ids == {f"{number} first", *(f"{number} {thread} {at}" for thread in range(3) for at in range(10))}
        assert seen[number] == ids
        assert direct.verify() == []
        stores[number].close()


def test_no_statement_depends_on_its_session(postgres: str, pooled: str, monkeypatch: pytest.MonkeyPatch):
    """None is prepared, and none leaves anything behind, in any call of a store."""
    sent = list[str]()
    execute = psycopg.Connection.execute

    def noting(self: Any, query: Any, *given: Any, **named: Any) -> Any:
        sent.append(str(query))
        return execute(self, query, *given, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", noting)
    store = PgVectorStore(pooled, name(), index="hnsw")
    created(lambda: store)
    for number in range(7):  # psycopg prepares what is executed for the sixth time
        store.add([row(str(number), year=number)], EXACT[number : number + 1], fingerprint=SPACE)
        store.search(EXACT[:1], 3, fingerprint=SPACE, where={"year": 1})
        store.search_text(["text"], 3)
        store.get(["1"])
        assert len(list(store.scroll())) == number + 1
    with store.lease():
        store.drop(store.create_generation(fingerprint=OTHER, context=b"other"))
    store.grant_read("postgres")
    store.index_texts()
    assert store.verify() == []
    lasting = ("SET ", "RESET", "LISTEN", "PREPARE", "CREATE TEMP", "WITH HOLD", "PG_ADVISORY_LOCK", "DISCARD")
    found = [sql for sql in sent if any(word in sql.upper().replace("SET LOCAL", "") for word in lasting)]
    assert [sql for sql in found if not sql.lstrip().startswith(("UPDATE", "CREATE", "ALTER"))] == []
    store.close()
    with psycopg.connect(postgres) as connection:
        assert store.names(store.name) == [store.name]
        sessions = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND pid != pg_backend_pid()"
        ).fetchone()
    assert sessions == (0,)
    store.close()


def test_a_table_of_another_application_is_found_by_the_roles_own_path(postgres: str, pooled: str):
    """And not by the one that another client left in the session."""
    table = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id text, body text)".encode())
        connection.execute(f"INSERT INTO {table} VALUES ('a', 'a river')".encode())
    for _ in range(12):  # each in another session
        assert [record.text for record in table_records(pooled, table, TableColumns("id", "body"))] == ["a river"]


def test_parameters_of_an_index_are_those_of_the_statement(pooled: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever another client set in the session, whose one candidate would not be enough; and for no later one."""
    monkeypatch.setattr("cde_rag.stores.postgres.index.LEAST_ROWS", 500)
    store, matrix, queries = PgVectorStore(pooled, name(), index="hnsw"), units(1000, 64), units(20, 64, seed=1)
    created(lambda: store, dim=64)
    store.add([row(str(number), even=number % 2 == 0) for number in range(1000)], matrix, fingerprint=SPACE)
    recall = 0
    for where, allowed in ((None, np.arange(1000)), ({"even": True}, np.arange(0, 1000, 2))):
        for query in queries:
            (hits,) = store.search(query[None], 10, fingerprint=SPACE, where=where)
            best = allowed[np.argsort(-matrix[allowed] @ query)[:10]]
            recall += len({int(hit.id) for hit in hits} & set(best.tolist()))
    assert recall > 360  # of 400
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        assert {other.execute("SHOW hnsw.ef_search").fetchone() for _ in range(12)} == {("1",)}
    store.close()


def test_a_lease_is_held_and_fences_behind_the_pooler(postgres: str, pooled: str):
    place = functools.partial(PgVectorStore, pooled, name())
    store, other = created(place), place()
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    with store.lease():
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        store.add_to_generation(number, store.lacking(number), ["digest"], EXACT[1:2])
        for direct in (other, PgVectorStore(postgres, other.name)):
            with pytest.raises(StoreError, match="another run holds the lease"), direct.lease():
                pass
        with psycopg.connect(postgres, autocommit=True) as connection:
            held = "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
            snapshots = connection.execute(f"SELECT backend_xmin, backend_xid {held}".encode()).fetchall()
            assert snapshots == [(None, None)]  # nothing is kept from being vacuumed
            connection.execute(f"SELECT pg_terminate_backend(pid, 10000) {held}".encode())
        with other.lease(), pytest.raises(StoreError, match="another run took it"):
            store.activate(number)
    with other.lease():
        pass
    for one in (store, other):
        one.close()


def test_a_lease_leaves_a_session_of_the_pooler(postgres: str, monkeypatch: pytest.MonkeyPatch):
    """Else nothing could be written while it is held, by the run that holds it neither."""
    with pooler(postgres, "transaction", sessions=2) as address:
        first, second = (created(functools.partial(PgVectorStore, address, name())) for _ in range(2))
        monkeypatch.setattr("cde_rag.stores.postgres.database._WAIT_S", 0.5)
        with first.lease():
            with pytest.raises(StoreError, match=r"none was free for 0\.5 s.*default_pool_size"), second.lease():
                pass
            first.drop(first.create_generation(fingerprint=OTHER, context=b"other"))
            second.add([row("a")], EXACT[:1], fingerprint=SPACE)
        with second.lease():
            second.drop(second.create_generation(fingerprint=OTHER, context=b"other"))
        first.close()
        second.close()


def test_a_lease_that_is_lost_before_it_is_noted_takes_nothing(postgres: str, monkeypatch: pytest.MonkeyPatch):
    """Its session has the lock no more when the token is written, and another run may have it."""
    place = functools.partial(PgVectorStore, postgres, name())
    created(place)
    store, other = place(), place()
    lock = PgDatabase.lock
    with other.lease():

        def lost(database: PgDatabase, _: Any) -> Any:
            return lock(database, [1, "not that of leases"])

        with monkeypatch.context() as patched:
            patched.setattr(PgDatabase, "lock", lost)
            with pytest.raises(StoreError, match="the connection that held the lease was lost"), store.lease():
                pass
        other.drop(other.create_generation(fingerprint=OTHER, context=b"other"))  # it still has the lease
    store.close()
    other.close()


@pytest.fixture
def statements(postgres: str) -> Callable[[Callable[[], object]], list[str]]:
    """Calls a function twice; returns the statements of the second time, as the server's log has them."""
    log = Path(parse_qs(urlsplit(postgres).query)["host"][0], "log")

    def told(call: Callable[[], object]) -> list[str]:
        call()
        before = log.stat().st_size
        call()
        lines = log.read_bytes()[before:].decode().splitlines()
        return [line for line in lines if "LOG:  statement: " in line or "LOG:  execute " in line]

    return told


def test_a_call_takes_few_statements(postgres: str, statements: Callable[[Callable[[], object]], list[str]]):
    """With BEGIN and COMMIT; of a store that was used before."""
    store = PgVectorStore(f"{postgres}&options=-clog_statement%3Dall", name())
    created(lambda: store)
    calls = {
        "add": lambda: store.add([row("a")], EXACT[:1], fingerprint=SPACE),
        "search": lambda: store.search(EXACT[:1], 3, fingerprint=SPACE),
        "search of two queries": lambda: store.search(EXACT[:2], 3, fingerprint=SPACE),
        "words": lambda: store.search_text(["text"], 3),
        "get": lambda: store.get(["a"]),
        "metadata": lambda: store.update_metadata({"a": {"year": 1}, "b": {}}),
        "vectors": lambda: store.vectors(["a"], fingerprint=SPACE),
        "scan": lambda: list(store.scroll()),
        "count": store.count,
        "delete": lambda: store.delete(["c"]),
    }
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    found = {what: len(statements(call)) for what, call in calls.items()}
    most = {"add": 13, "search": 1, "search of two queries": 5, "words": 1, "get": 4, "metadata": 8, "vectors": 4}
    most |= {"scan": 4, "count": 4, "delete": 5}
    assert {what: many for what, many in found.items() if many > most[what]} == {}
    store.close()


def test_a_session_asks_for_the_manifest_once(postgres: str, statements: Callable[[Callable[[], object]], list[str]]):
    """One record with a parent, of three that have it, is looked up, and written with another text, in few statements.

    The bounds are those of `add` of one record in a collection: 8 if it is unchanged, else 22, beside transactions.
    """
    store = PgVectorStore(f"{postgres}&options=-clog_statement%3Dall", name())
    created(lambda: store)
    store.add([row(id_, source="book") for id_ in "abc"], EXACT[:3], fingerprint=SPACE)
    store.add([row(id_, "word " * 20) for id_ in "defg"], EXACT[3:7], fingerprint=SPACE)  # dead words stay fewer
    texts = itertools.count()

    def look_up(state: StoreState) -> None:
        assert state.manifest().fingerprint == SPACE
        assert [found.record.id for found in state.get(["a"])] == ["a"]
        assert len(list(state.scroll(where={"source": "book"}))) == 3

    def write(state: StoreState) -> None:
        look_up(state)
        state.add([row("a", f"text {next(texts)}", source="book")], EXACT[:1], fingerprint=SPACE)

    def added() -> None:
        store.read(look_up)
        store.write(write)

    def check(call: Callable[[], object], most: int) -> None:
        around = ("BEGIN", "COMMIT", "COPY")
        asked = [line for line in statements(call) if not any(f": {word}" in line for word in around)]
        assert len(asked) <= most, "\n".join(asked)

    check(lambda: store.read(look_up), 3)
    check(added, 12)
    store.create_generation(fingerprint=OTHER, context=b"other")
    check(added, 13)
    store.close()


# Look-alikes


def test_a_role_without_rights_reads_no_tables_of_the_same_names(postgres: str):
    """PostgreSQL passes over a schema of the search_path that a role may not use."""
    store, role, schema = PgVectorStore(postgres, name()), name(), name()
    created(lambda: store)
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema}".encode())
        connection.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}".encode())
        connection.execute(f"ALTER ROLE {role} SET search_path = {store.name}, {schema}, public".encode())
        for table in ("manifest", "generations", "records", "fields", "words", "vectors_1"):
            connection.execute(f"CREATE TABLE {schema}.{table} AS TABLE {store.name}.{table}".encode())
            connection.execute(f"GRANT ALL ON {schema}.{table} TO {role}".encode())
    reader = PgVectorStore(postgres.replace("postgres:@", f"{role}@"), store.name)
    for call in (
        reader.count,
        reader.verify,
        reader.manifest,
        lambda: list(reader.scroll()),
        lambda: reader.get(["a"]),
        lambda: reader.search(EXACT[:1], 1, fingerprint=SPACE),
        lambda: reader.search_text(["text"], 1),
        lambda: reader.add([row("b")], EXACT[:1], fingerprint=SPACE),
        lambda: reader.delete(["a"]),
    ):
        with pytest.raises(StoreError, match="role"):
            call()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {role}".encode())  # an empty one that the role may not use
    mine = PgVectorStore(reader.dsn, role)
    with pytest.raises(StoreError, match="permission denied for schema"):
        created(lambda: mine)
    for one in (store, reader, mine):
        one.close()


def test_pgvector_in_a_schema_of_its_own_is_found_there(postgres: str):
    """Even where no search_path names it, and after it was moved under an open store."""
    database = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    dsn = postgres.replace("/postgres?", f"/{database}?")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b'CREATE SCHEMA "of vectors"; CREATE EXTENSION vector SCHEMA "of vectors"')
    for index, quantization in (("hnsw", None), ("ivfflat", "half"), ("hnsw", "binary")):
        store = PgVectorStore(dsn, name(), index=index, quantization=quantization)
        created(lambda store=store: store)
        store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
        store.reindex(index=index, quantization=quantization)
        assert [hit.id for hit in store.search(EXACT[:1], 1, fingerprint=SPACE)[0]] == ["a"]
        assert store.verify() == []
        store.close()
    store = PgVectorStore(dsn, store.name)
    assert store.vectors(["a"], fingerprint=SPACE).tolist() == EXACT[:1].tolist()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER EXTENSION vector SET SCHEMA public")
    for _ in range(2):
        assert store.vectors(["a"], fingerprint=SPACE).tolist() == EXACT[:1].tolist()
        assert [hit.id for hit in store.search(EXACT[:1], 1, fingerprint=SPACE)[0]] == ["a"]
    store.close()

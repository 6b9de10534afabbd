"""Tables of PostgreSQL: everything that a table has stays, writers are not lost, and the switch is one transaction."""

import json
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from applications import COUNT, PostgresApplication, nodes, stub, switched

from cde_rag import ContextualEmbedder
from cde_rag.adoption import pgvector_source
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.pgvector_source import PgvectorSource
from cde_rag.adoption.reembedding import reembedding
from cde_rag.adoption.table_twins import TableTwins
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit
from cde_rag.indexing.upsert import Progress


def run(application: PostgresApplication, statement: str, *values: Any) -> Any:
    with application.opened() as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else None


def vector(text: str, model: ContextualEmbedder) -> list[float]:
    return model.embed_passages([text], None).vectors[0].tolist()


DESCRIBED = """
    SELECT attname, atttypid::regtype, attnotnull, attidentity, attgenerated, pg_get_expr(adbin, adrelid)
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid = 'papers'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
    SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'papers'::regclass ORDER BY 1;
    SELECT conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint
    WHERE conrelid = 'papers'::regclass ORDER BY 1;
    SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'papers'::regclass AND NOT tgisinternal;
    SELECT relowner, relacl, reloptions, obj_description(oid) FROM pg_class WHERE oid = 'papers'::regclass;
    SELECT policyname, permissive, roles, cmd, qual, with_check, relrowsecurity, relforcerowsecurity
    FROM pg_class LEFT JOIN pg_policies ON tablename = relname WHERE oid = 'papers'::regclass ORDER BY 1;
    SELECT pg_get_serial_sequence('papers', 'place'), pg_get_serial_sequence('papers', 'number');
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'c' ORDER BY 1
"""


def described(application: PostgresApplication) -> list[Any]:
    """Everything that PostgreSQL knows of the table, but the length of its vectors."""
    return [run(application, query) for query in DESCRIBED.split(";")]


def test_everything_that_a_table_has_stays(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    run(
        postgres_app,
        "DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN NULL; END $$; "
        "GRANT SELECT, UPDATE ON papers TO reader; GRANT INSERT ON papers TO PUBLIC; "
        "ALTER TABLE papers ENABLE ROW LEVEL SECURITY; "
        "CREATE POLICY own ON papers TO reader USING (cmetadata @> '{\"n\": 7}') WITH CHECK (id <> 'x'); "
        "CREATE POLICY more ON papers AS RESTRICTIVE FOR SELECT USING (changed < 9)",
    )
    before, rows = described(postgres_app), postgres_app.rows()
    with reembedding(postgres_app.target) as move:
        assert move.source.found()[:2] == (16, "cosine")
        assert "embedding has 24 numbers" in move.line(new)
        move.copy(new)
        assert described(postgres_app) == before
        move.switch(new)
    assert described(postgres_app) == before
    with postgres_app.opened() as connection:
        connection.execute("SET ROLE reader")
        assert connection.execute("SELECT id FROM papers").fetchall() == [("d7",)]
    postgres_app.write([("since", "a bank", {"n": 1}, vector("a bank", new))])  # with the next numbers, and the trigger
    found = {row.id: row for row in postgres_app.rows()}["since"].metadata
    assert (found["place"], found["number"], found["words"]) == (COUNT + 1, COUNT + 1, "'bank':2")
    run(postgres_app, "DELETE FROM papers WHERE id = 'since'")
    assert run(postgres_app, "SELECT count(*) FROM pg_index WHERE indrelid = 'papers'::regclass AND indisvalid") == [
        (3,)
    ]
    with reembedding(postgres_app.target) as move:
        move.rollback()
    assert described(postgres_app) == before
    assert postgres_app.rows() == rows
    postgres_app.write([("since", "a bank", {"n": 1}, vector("a bank", old))])
    found = {row.id: row for row in postgres_app.rows()}["since"].metadata
    assert (found["place"], found["number"]) == (COUNT + 2, COUNT + 2)
    run(postgres_app, "DELETE FROM papers WHERE id = 'since'")
    switched(postgres_app.target, new)
    with reembedding(postgres_app.target) as move:
        move.release()
    assert described(postgres_app) == before
    assert run(postgres_app, "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%cde%'") == []
    assert run(postgres_app, "DELETE FROM collections WHERE uuid = 1") is None
    assert postgres_app.rows() == []  # by the foreign key


def test_the_applications_deletes_go_on_during_a_move(postgres_app: PostgresApplication, new: ContextualEmbedder):
    """The other table has no foreign keys, which would forbid them, and loses these rows with the next pass."""
    run(postgres_app, "ALTER TABLE papers DROP CONSTRAINT papers_collection_id_fkey")
    run(postgres_app, "ALTER TABLE papers ADD CONSTRAINT own FOREIGN KEY (collection_id) REFERENCES collections (uuid)")
    run(postgres_app, "UPDATE papers SET collection_id = 2 WHERE id = 'd7'")
    with reembedding(postgres_app.target) as move:
        move.copy(new)
        run(postgres_app, "DELETE FROM papers WHERE id = 'd7'; DELETE FROM collections WHERE uuid = 2")
        move.switch(new)
        assert len(postgres_app.rows()) == COUNT - 1
        run(postgres_app, "INSERT INTO collections VALUES (3, 'three')")
        run(postgres_app, "DELETE FROM collections WHERE uuid = 3")
        move.rollback()
    assert len(postgres_app.rows()) == COUNT - 1
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        run(postgres_app, "UPDATE papers SET collection_id = 2")


def test_what_is_written_meanwhile_is_in_both_tables(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    exchanged, writes = PgvectorSource._exchanged, 0

    def write(_: Progress) -> None:
        nonlocal writes
        writes += 1
        if writes == 1:
            postgres_app.write([("during", "a bank", {}, vector("a bank", old))])
            run(postgres_app, "DELETE FROM papers WHERE id = 'd3'")

    def late(self: PgvectorSource, *arguments: Any, **named: Any) -> Any:
        if not any(row.id == "late" for row in postgres_app.rows()):  # in the instant before the lock
            postgres_app.write([("late", "a boat", {}, vector("a boat", old))])
            postgres_app.write([("d5", "changed", {"n": 5}, vector("changed", old))])
            run(postgres_app, "DELETE FROM papers WHERE id = 'd4'")
        return exchanged(self, *arguments, **named)

    monkeypatch.setattr(PgvectorSource, "_exchanged", late)
    with reembedding(postgres_app.target) as move:
        done = move.switch(new, on_progress=write)
        assert done.gap_s == 0
        rows = {row.id: row for row in postgres_app.rows()}
        assert "d4" not in rows  # at once
        carried = move.catch_up(new)
        rows = {row.id: row for row in postgres_app.rows()}
        assert carried.kept == 0
        assert rows.keys() == {f"d{n}" for n in range(COUNT) if n not in (3, 4)} | {"during", "late"}
        assert rows["d5"].text == "changed"
        assert audit(move.source, new).share == 1.0
        postgres_app.write([("since", "a newer boat", {"n": 9}, vector("a newer boat", new))])
        run(postgres_app, "DELETE FROM papers WHERE id = 'd1'")
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        back = move.rollback(old).carried
        assert (back.written, back.removed) == (1, 1)
        rows = {row.id: row for row in postgres_app.rows()}
        assert rows["since"].vector == pytest.approx(vector("a newer boat", old), abs=1e-6)
        assert "d1" not in rows
        assert audit(move.source, old).share == 1.0


def test_a_reader_and_a_writer_in_a_loop(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    """Every query is answered, from one table or the other; no row is lost that was written to either."""
    ended, errors, seen, written = Event(), list[Exception](), set[int](), list[str]()

    def read() -> None:
        query = b"SELECT vector_dims(embedding), count(*) FROM papers GROUP BY 1"
        try:
            with postgres_app.opened() as connection:
                while not ended.is_set():
                    ((dim, count),) = connection.execute(query).fetchall()
                    seen.add(dim)
                    assert count >= COUNT
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    def write() -> None:
        while not ended.is_set():
            number = len(written)
            try:
                postgres_app.write([(f"w{number}", f"a boat {number}", {}, vector(f"a boat {number}", old))])
                written.append(f"w{number}")
            except psycopg.errors.DataException:
                return  # it has the old model, and the new vectors are longer
            time.sleep(0.02)

    threads = [Thread(target=read), Thread(target=write)]
    for thread in threads:
        thread.start()
    with reembedding(postgres_app.target) as move:
        move.switch(new)
        ended.wait(0.2)
        ended.set()
        for thread in threads:
            thread.join()
        move.catch_up(new)
        assert errors == []
        assert seen == {16, 24}
        assert {row.id for row in postgres_app.rows()} >= set(written)
        assert audit(move.source, new).share == 1.0


def killed_after(name: str) -> Callable[..., None]:
    done = getattr(TableTwins, name)

    def killed(*arguments: Any) -> None:
        done(*arguments)
        raise KeyboardInterrupt

    return killed


@pytest.mark.parametrize("cut", ["create", "index", "exchange", "check_rows"])
def test_a_move_that_is_cut_goes_on(
    postgres_app: PostgresApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch, cut: str
):
    before, rows = described(postgres_app), postgres_app.rows()
    with monkeypatch.context() as patch, reembedding(postgres_app.target) as move:
        patch.setattr(TableTwins, cut, killed_after(cut))
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    switched(postgres_app.target, new)
    assert {len(row.vector) for row in postgres_app.rows()} == {new.dim}
    with reembedding(postgres_app.target) as move:
        with monkeypatch.context() as patch:
            patch.setattr(TableTwins, "exchange", killed_after("exchange"))
            with pytest.raises(KeyboardInterrupt):
                move.rollback()
        move.rollback()
        move.release()
    assert postgres_app.rows() == rows
    assert described(postgres_app) == before


def test_a_transaction_that_holds_the_table_is_waited_for(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pgvector_source, "_TRIES", 2)
    with reembedding(postgres_app.target) as move:
        move.copy(new)
        with psycopg.connect(postgres_app.address) as holding:
            holding.execute("SELECT count(*) FROM papers")
            with pytest.raises(StoreError, match="pg_stat_activity"):
                move.switch(new)
            assert len(postgres_app.rows()[0].vector) == 16
        postgres_app.write([("later", "a heron", {}, vector("a heron", old))])  # days later
        steps: list[set[str]] = []
        catch_up = move.catch_up
        monkeypatch.setattr(move, "catch_up", lambda model: steps.append(ids(postgres_app)) or catch_up(model))
        move.switch(new)
        assert steps == [{f"d{n}" for n in range(COUNT)} | {"later"}]  # from the first instant
        with psycopg.connect(postgres_app.address) as holding:
            holding.execute("SELECT count(*) FROM papers")
            with pytest.raises(StoreError, match="pg_stat_activity"):
                move.rollback()
        assert move.state is not None
        assert move.state.step == "switched"
    assert len(postgres_app.rows()[0].vector) == new.dim


def ids(application: PostgresApplication) -> set[str]:
    return {row.id for row in application.rows()}


def test_rows_without_a_text_or_a_vector_stay(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    odd: list[Any] = [
        ("none", None, {}, vector("x", old)),
        ("blank", " ", {}, vector("y", old)),
        ("wait", "z", {}, None),
    ]
    postgres_app.write(odd)
    before = postgres_app.rows()
    with reembedding(postgres_app.target) as move:
        assert move.copy(new).without_text == ("blank", "none")
        move.switch(new)
    assert [row[:3] for row in postgres_app.rows()] == [row[:3] for row in before]
    found = {row.id: row.vector for row in postgres_app.rows()}
    assert found["wait"] is None
    assert found["none"] == found["blank"]
    assert sum(a * b for a, b in zip(found["none"], found["d1"], strict=True)) < 0.5
    with reembedding(postgres_app.target) as move:
        move.rollback()
    assert postgres_app.rows() == before


def test_llamaindex_texts_have_their_metadata_and_keys_may_have_two_columns(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    from llama_index.core.schema import MetadataMode
    from llama_index.core.vector_stores.utils import node_to_metadata_dict

    run(
        postgres_app,
        'DROP SCHEMA IF EXISTS "an app" CASCADE; CREATE SCHEMA "an app"; CREATE TABLE "an app"."data x"'
        "(tenant int, node_id uuid, text varchar NOT NULL, metadata_ json, embedding halfvec(16), "
        "PRIMARY KEY (tenant, node_id)); "
        'CREATE INDEX ON "an app"."data x" USING hnsw (embedding halfvec_l2_ops)',
    )
    made = nodes()
    with postgres_app.opened() as connection:
        for number, node in enumerate(made):
            numbers = str(old.embed_passages([node.get_content(MetadataMode.EMBED)], None).vectors[0].tolist())
            metadata = json.dumps(node_to_metadata_dict(node, remove_text=True, flat_metadata=False))
            row = (number % 2, f"00000000-0000-4000-8000-{number:012d}", node.get_content(), metadata, numbers)
            connection.execute('INSERT INTO "an app"."data x" VALUES (%s, %s, %s, %s, %s)', row)
    target = f"pgvector:{postgres_app.address}#an app.data x"
    with source_of(target) as source:
        assert audit(source, old).share > 0.9  # of half floats
    switched(target, new)
    with source_of(target) as source:
        assert source.found()[:2] == (24, "l2")
        assert audit(source, new).share > 0.9
    with reembedding(target) as move:
        move.rollback()
        move.release()
    assert run(postgres_app, 'SELECT count(*) FROM "an app"."data x"') == [(COUNT,)]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("CREATE VIEW seen AS SELECT id FROM papers", "rule _RETURN on view seen"),
        ("CREATE TABLE pieces (of varchar REFERENCES papers)", "foreign key pieces_of_fkey of pieces"),
        ("ALTER TABLE papers DISABLE TRIGGER worded", "trigger worded"),
        ("CREATE INDEX bits ON papers ((binary_quantize(embedding)::bit(16)))", "index bits"),
        ("CREATE FUNCTION last() RETURNS SETOF papers LANGUAGE sql AS 'SELECT * FROM papers'", "function last"),
        ("GRANT SELECT (id) ON papers TO PUBLIC", "rights on the column id"),
        ("ALTER TABLE papers SET UNLOGGED", "unlogged"),
        ("CREATE STATISTICS more ON id, document FROM papers", "statistics more"),
        ("ALTER TABLE papers DROP CONSTRAINT papers_pkey", "expected a primary key"),
    ],
)
def test_what_a_twin_would_not_have_is_refused(
    postgres_app: PostgresApplication, new: ContextualEmbedder, statement: str, found: str
):
    run(postgres_app, "DROP TABLE IF EXISTS pieces")
    run(postgres_app, statement)
    try:
        with source_of(postgres_app.target) as source, pytest.raises(StoreError, match=found):
            source.check(new)
    finally:
        run(postgres_app, "DROP TABLE papers CASCADE")


def test_long_vectors_have_no_index(postgres_app: PostgresApplication):
    with source_of(postgres_app.target) as source, pytest.raises(StoreError, match="at most 2000 numbers"):
        source.check(stub("long-1", 2001))


def alter(application: PostgresApplication) -> None:
    run(application, "ALTER TABLE papers ADD COLUMN more int")


def index(application: PostgresApplication) -> None:
    run(application, "CREATE INDEX more ON papers (changed)")


@pytest.mark.parametrize("change", [alter, index])
def test_a_table_that_is_altered_meanwhile_is_told(
    postgres_app: PostgresApplication, new: ContextualEmbedder, change: Callable[[PostgresApplication], None]
):
    with reembedding(postgres_app.target) as move:
        move.copy(new)
    change(postgres_app)
    with reembedding(postgres_app.target) as move:
        if change is index:
            move.switch(new)  # it is made in the new table, too
            assert any("more" in name for (name,) in described(postgres_app)[1])
            return
        with pytest.raises(StoreError, match="altered meanwhile"):
            move.switch(new)
        move.release()
    switched(postgres_app.target, new)


def test_rows_that_are_brought_are_updated_and_set_off_no_trigger_of_deletions(
    postgres_app: PostgresApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """Such as one that deletes the files of rows that are gone."""
    run(
        postgres_app,
        "DROP TABLE IF EXISTS gone; CREATE TABLE gone (id varchar); "
        "CREATE OR REPLACE FUNCTION note_gone() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO gone VALUES (OLD.id); RETURN OLD; END $$; "
        "CREATE TRIGGER noted AFTER DELETE ON papers FOR EACH ROW EXECUTE FUNCTION note_gone()",
    )
    exchanged = PgvectorSource._exchanged

    def late(self: PgvectorSource, *arguments: Any, **named: Any) -> Any:
        if not any(row.id == "late" for row in postgres_app.rows()):
            postgres_app.write([("late", "a boat", {}, vector("a boat", old))])
            postgres_app.write([("d5", "changed", {"n": 5}, vector("changed", old))])
        return exchanged(self, *arguments, **named)

    monkeypatch.setattr(PgvectorSource, "_exchanged", late)
    with reembedding(postgres_app.target) as move:
        carried = move.switch(new).carried
        assert (carried.written, carried.kept) == (2, 0)
        assert audit(move.source, new).share == 1.0
    assert run(postgres_app, "SELECT id FROM gone") == []
    rows = {row.id: row for row in postgres_app.rows()}
    assert (rows["d5"].text, rows["late"].text) == ("changed", "a boat")
    assert rows["d5"].metadata["number"] == 6  # which PostgreSQL gave it first
    run(postgres_app, "DROP TABLE gone CASCADE")

"""A third party's store of 120 lines passes the contract of all stores; commands, backups and tenants work with it."""

import functools
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from contract import EXACT, OTHER, SPACE, Opener, StoreContract, created, row
from sqlite_store import SqliteEngine, SqliteSession, SqliteStore
from typer.testing import CliRunner
from word_scores import table_scores

from cde_rag.cli import app
from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores import kinds
from cde_rag.stores.checks import checksum_of
from cde_rag.stores.store import Store

MEMORY = Path("/dev/shm")  # where there is one: waiting for a disk thousands of times tests nothing


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class TestSqlite(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture
    def new_place(self, scratch: Path) -> Callable[[], Opener]:
        numbers = itertools.count()
        return lambda: functools.partial(SqliteStore, scratch / f"{next(numbers)}.sqlite")


def test_it_is_short():
    assert len(Path(__file__).with_name("sqlite_store.py").read_text().splitlines()) <= 120


def test_it_is_a_store(tmp_path: Path):
    assert isinstance(SqliteStore(tmp_path), Store)


def test_bytes_that_changed_are_found(tmp_path: Path):
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    for table, id_ in (("records", "a"), ("vectors", "b")):
        with SqliteEngine(tmp_path / "papers").session("write") as session:
            session.connection.execute(f"UPDATE {table} SET data = CAST(data || x'00' AS BLOB) WHERE id = ?", [id_])
    assert [damage.where for damage in store.verify()] == ["a", "b, generation 1"]


def changed(tmp_path: Path, sql: str) -> None:
    with SqliteEngine(tmp_path / "papers").session("write") as session:
        session.connection.execute(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE blobs SET data = CAST('other' AS BLOB) WHERE name = 'context-2'",
        "DELETE FROM blobs WHERE name = 'context-2'",
        "UPDATE blobs SET data = CAST('other' AS BLOB) WHERE name = 'checksum-2'",
    ],
)
def test_a_context_that_changed_is_found(tmp_path: Path, sql: str):
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    store.create_generation(fingerprint=OTHER, context=b"two")
    assert store.verify() == []
    changed(tmp_path, sql)
    with pytest.raises(StoreFormatError, match="the context of generation 2 as it was written"):
        store.context(2)
    assert [damage.where for damage in store.verify()] == ["context of generation 2"]
    assert store.context() == store.context(1)
    store.drop(2)
    assert store.verify() == []


def test_a_context_of_a_version_without_checksums_is_read(tmp_path: Path):
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    before = store.context()
    changed(tmp_path, "DELETE FROM blobs WHERE name = 'checksum-1'")
    assert store.context() == before
    assert store.verify() == []


def test_a_vector_of_nobody_hides_none_that_is_missing(tmp_path: Path):
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    store.add([row("a"), row("b"), row("c")], EXACT[:3], fingerprint=SPACE)
    number = store.create_generation(fingerprint=OTHER, context=b"two")
    store.add_to_generation(number, store.get(["a", "b"]), ["", ""], EXACT[:2])
    changed(tmp_path, "DELETE FROM records WHERE id = 'b'")
    with pytest.raises(StoreError, match=r"2 records, found 2\. Record 'c' lacks one"):
        store.activate(number)
    store.add_to_generation(number, store.lacking(number), ["digest"], EXACT[2:3])
    store.activate(number)
    assert [hit.id for hit in store.search(EXACT[2:3], 2, fingerprint=OTHER)[0]] == ["c", "a"]


def test_a_manifest_that_changed_or_is_newer_is_refused(tmp_path: Path):
    created(lambda: SqliteStore(tmp_path / "papers"))
    engine = SqliteEngine(tmp_path / "papers")
    with engine.session("read") as session:
        written = session.manifest.to_bytes()
    newer = written[32:].replace(b'"format": 1', b'"format": 2')
    changed = written.replace(b'"active": 1', b'"active": 2')
    assert len({newer, changed, written, written[32:]}) == 4
    for data, found in ((changed, "other bytes"), (None, "other bytes"), (checksum_of(newer) + newer, "newer one")):
        with engine.session("write") as session:
            session.put_blob("manifest", data)
        with pytest.raises(StoreFormatError, match=found), engine.session("read") as session:
            _ = session.manifest


def test_vectors_that_are_gone_are_found(tmp_path: Path):
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
    with SqliteEngine(tmp_path / "papers").session("write") as session:
        session.delete_vector_rows(1, ["b"])
    assert [(damage.where, damage.found) for damage in store.verify()] == [("b", "expected a vector, found none.")]


def test_of_two_that_create_a_store_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second had seen no store before the first made it."""
    store = created(lambda: SqliteStore(tmp_path / "papers"))
    store.add([row("a")], EXACT[:1], fingerprint=SPACE)
    monkeypatch.setattr(SqliteEngine, "exists", lambda _: False)
    with pytest.raises(StoreError, match="expected no store, found one"):
        created(lambda: SqliteStore(tmp_path / "papers"))
    monkeypatch.undo()
    assert store.count() == 1


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points of installed packages; a test may add to them."""
    found = [EntryPoint("sqlite", "sqlite_store:SqliteStore", kinds.GROUP)]
    monkeypatch.setattr(kinds, "entry_points", lambda group: [each for each in found if each.group == group])
    return found


@pytest.mark.usefixtures("entry_points")
def test_commands_backups_and_tenants_work_with_it(tmp_path: Path):
    def run(*arguments: object) -> dict:
        ran = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    source, papers = tmp_path / "papers.jsonl", tmp_path / "papers.sqlite"
    source.write_text('{"id": "a", "text": "a river bank"}\n{"id": "b", "text": "a bank of money"}\n')
    assert run("index", source, papers)["added"] == 2
    assert (papers / "store.db").is_file()
    assert run("search", papers, "money", "-k", 1)["hits"][0]["id"] == "b"
    assert run("search", papers, "money", "--by", "words")["hits"][0]["id"] == "b"
    assert run("recontextualize", papers, "--seed", 1)["documents"] == 2
    run("backup", papers, tmp_path / "copy")
    run("restore", tmp_path / "copy", tmp_path / "restored.sqlite")
    assert run("inspect", tmp_path / "restored.sqlite")["documents"] == 2
    run("export", papers, tmp_path / "papers.parquet")
    run("import", tmp_path / "papers.parquet", tmp_path / "other.faiss")
    assert run("inspect", tmp_path / "other.faiss")["documents"] == 2
    assert run("index", source, tmp_path / "all.sqlite", "--tenant", "acme")["added"] == 2
    assert run("search", tmp_path / "all.sqlite", "river", "-k", 1, "--tenant", "acme")["hits"][0]["id"] == "a"


def test_two_packages_of_one_suffix_are_refused(entry_points: list[EntryPoint], tmp_path: Path):
    entry_points.append(EntryPoint("sqlite", "elsewhere:Store", kinds.GROUP))
    with pytest.raises(StoreError, match=r"one package that registers 'sqlite', found 2"):
        kinds.kind_at(tmp_path / "papers.sqlite")


def test_a_package_that_cannot_be_imported_is_named(entry_points: list[EntryPoint], tmp_path: Path):
    entry_points[:] = [EntryPoint("sqlite", "elsewhere:Store", kinds.GROUP)]
    with pytest.raises(StoreError, match="elsewhere:Store"):
        kinds.kind_at(tmp_path / "papers.sqlite")


def test_a_package_registers_a_scheme_of_addresses(entry_points: list[EntryPoint], tmp_path: Path):
    entry_points[:] = [EntryPoint("mydb", "test_sqlite_store:at_address", kinds.GROUP)]
    store = kinds.store_at(f"mydb:/{tmp_path}/papers")
    assert repr(store) == repr(SqliteStore(tmp_path / "papers"))
    with pytest.raises(StoreError, match="found mydb://, which has none"):
        kinds.tenants_at(f"mydb:/{tmp_path}/papers")
    with pytest.raises(StoreError, match="begins with postgresql://, postgres://, found other://"):
        kinds.store_at("other://papers")


def at_address(address: str) -> SqliteStore:
    return SqliteStore(address.partition(":/")[2])


def test_a_generation_is_filled_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rows that are read to find those without a vector: each once, whatever the size of a page."""
    store = created(functools.partial(SqliteStore, tmp_path / "papers"))
    number, read = 90, list[int]()
    store.add(
        [row(str(each)) for each in range(number)],
        EXACT[[each % len(EXACT) for each in range(number)]],
        fingerprint=SPACE,
    )
    new, scan = store.create_generation(fingerprint=OTHER, context=b""), SqliteSession.records_after
    monkeypatch.setattr(
        SqliteSession, "records_after", lambda *given: (found := scan(*given), read.append(len(found)))[0]
    )
    after = None
    while lacking := store.lacking(new, limit=7, after=after):
        store.add_to_generation(new, lacking, ["digest"] * len(lacking), EXACT[[0] * len(lacking)])
        after = lacking[-1]
    assert sum(read) == number


def test_what_only_looks_like_a_store_is_told_how_to_be_one():
    """In a process without the check of types in tests."""
    script = "from cde_rag import Collection; Collection.open(type('Half', (), {'manifest': None, 'add': None})())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "is a cde_rag.stores.store.Store over an engine" in done.stderr

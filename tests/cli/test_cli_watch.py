"""index --watch: a folder that changes, a process that follows it, and what the collection holds after each change."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_cli_process import COMMAND
from tiny import WORDS
from typer.testing import CliRunner, Result

from cde_rag.cli import app
from cde_rag.errors import StoreError
from cde_rag.readers import RecordReader
from cde_rag.search.searcher import bm25_searcher
from cde_rag.stores.kinds import store_at
from cde_rag.stores.store_calls import StoreCalls

pytest.importorskip("watchfiles")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is a signal here")

WAIT_S = 120  # for a line that comes in a second; the machine may be busy


class Watcher:
    """A process that watches a folder, and the lines that it has printed."""

    def __init__(self, folder: Path, collection: Path, model: Path, *options: str) -> None:
        self._out, self._err = folder.parent / "out", folder.parent / "err"
        command = [*COMMAND, "index", str(folder), str(collection), "--watch", "--model", str(model), *options]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder.parent)
        self._read = 0

    def line(self) -> str:
        """Return the next line of standard output."""
        self.wait_for(lambda: self._out.read_text().count("\n") > self._read)
        self._read += 1
        return self._out.read_text().splitlines()[self._read - 1]

    def batch(self) -> dict[str, Any]:
        """Return the next line of JSON, without what is zero or empty."""
        return {name: value for name, value in json.loads(self.line()).items() if value}

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < end, (self._out.read_text(), self.errors)
            assert self.process.poll() is None, self.errors
            time.sleep(0.02)

    def wait_for_error(self, text: str) -> None:
        self.wait_for(lambda: text in self.errors)

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def stop(self) -> int:
        """Send Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)


@contextmanager
def watching(folder: Path, collection: Path, model: Path, *options: str) -> Generator[Watcher, None, None]:
    watcher = Watcher(folder, collection, model, *options)
    try:
        yield watcher
    finally:
        watcher.process.kill()
        watcher.process.wait()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Four files of a passage each, about the first four words."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.md").write_text(f"# {WORDS[number]}\n\nAbout {WORDS[number]}.\n")
    return folder


def save(path: Path, content: str | bytes) -> None:
    """Write a file at once, so that no batch comes between its bytes."""
    other = path.parents[1] / f"{path.name}.new"
    other.write_bytes(content if isinstance(content, bytes) else content.encode())
    other.replace(path)


def stored(collection: Path) -> dict[str, str]:
    """Return the texts of passages that have their vectors, by id."""
    store = store_at(str(collection))
    try:
        assert store.count_pending() == 0
        return {row.record.id: row.record.text for row in store.scroll()}
    finally:
        store.close()


def read(folder: Path) -> dict[str, str]:
    """Return the texts of the passages of a folder as it is now, by id; what cannot be read is left out."""
    return {record.id: record.text for record in RecordReader(folder, skip_bad=True)}


def test_the_collection_follows_each_change_of_the_folder(docs: Path, tmp_path: Path, model_folder: Path):
    place = docs / "store.faiss"  # inside the folder: what is written there is no change of it
    with watching(docs, place, model_folder, "--json") as watcher:
        assert watcher.batch() == {"documents": 4, "added": 4}
        watcher.wait_for_error("Ctrl-C ends it.")

        save(docs / "0.md", f"# {WORDS[0]}\n\nNow about {WORDS[9]}.\n")
        assert watcher.batch() == {"documents": 4, "replaced": 1, "read": ["docs/0.md"]}
        save(docs / "4.md", "# New\n\nA new file.\n")
        assert watcher.batch() == {"documents": 5, "added": 1, "read": ["docs/4.md"]}
        (docs / "1.md").unlink()
        assert watcher.batch() == {"documents": 4, "deleted": 1, "removed": ["docs/1.md"]}
        assert stored(place) == read(docs)

        (docs / "2.md.tmp").write_text("# Saved\n\nAs editors save.\n")  # then the name of the old file is taken
        (docs / "2.md.tmp").replace(docs / "2.md")
        assert watcher.batch() == {"documents": 4, "replaced": 1, "read": ["docs/2.md"]}
        (docs / "3.md").rename(docs / "renamed.md")
        renamed = {"read": ["docs/renamed.md"], "removed": ["docs/3.md"]}
        assert watcher.batch() == {"documents": 4, "added": 1, "deleted": 1, **renamed}
        (tmp_path / "outside").mkdir()
        for name in ("a.md", "b.md", ".hidden.md", "picture.png"):
            (tmp_path / "outside" / name).write_text(f"About {name}.")
        (tmp_path / "outside").rename(docs / "inside")  # of its files no event comes
        found = watcher.batch()
        assert found == {"documents": 6, "added": 2, "read": ["docs/inside/a.md", "docs/inside/b.md"]}
        (docs / "inside").rename(tmp_path / "outside")
        removed = {"removed": ["docs/inside/a.md", "docs/inside/b.md"]}
        assert watcher.batch() == {"documents": 4, "deleted": 2, **removed}
        assert stored(place) == read(docs)

        save(docs / "0.md", "Größe, half written".encode("utf-16")[:7])
        found = watcher.batch()
        assert (found["documents"], found["skipped"], len(found["faults"])) == (4, 1, 1)
        assert f"{docs / '0.md'}: not UTF-16" in found["faults"][0]
        save(docs / "2.md", "")
        assert watcher.batch() == {"documents": 4, "empty": [str(docs / "2.md")]}
        assert stored(place).keys() == read(docs).keys() | {"docs/0.md#0", "docs/2.md#0"}
        save(docs / "0.md", "Größe, written".encode("utf-16"))
        assert watcher.batch() == {"documents": 4, "replaced": 1, "read": ["docs/0.md"]}

        assert watcher.stop() == 0
        assert watcher.errors.endswith(f"Stopped watching. {place} is searchable.\n")
    hits = bm25_searcher(store_at(str(place))).search("written", 3)
    assert [hit.text for hit in hits] == ["Größe, written"]


def test_a_store_that_another_process_holds_is_written_when_it_is_free(docs: Path, tmp_path: Path, model_folder: Path):
    pytest.importorskip("qdrant_edge")
    place = tmp_path / "store.qdrant"  # which one process opens at a time
    with watching(docs, place, model_folder) as watcher:
        assert watcher.line() == f"{place}: 4 passages (4 added)"
        watcher.wait_for_error("Ctrl-C ends it.")
        held = store_at(str(place))  # released between two batches
        assert held.count() == 4
        save(docs / "0.md", f"# {WORDS[0]}\n\nNow about {WORDS[9]}.\n")
        watcher.wait_for_error("It is tried again.")
        (docs / "1.md").unlink()
        assert held.count() == 4
        held.close()
        assert watcher.line() == f"{place}: 3 passages (1 replaced, 1 deleted); read docs/0.md; removed docs/1.md"
        assert watcher.stop() == 0
        assert watcher.errors.count("It is tried again.") == 1
    assert stored(place) == read(docs)


Step = Callable[[], Iterable[Path]]


@pytest.fixture
def watch(run: Any, docs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Watch the folder in this process through some steps, each of which returns the paths that it changed."""

    def watched(*steps: Step, options: Sequence[str] = (), code: int = 0) -> Result:
        left = iter(steps)

        def events(*_: object, **__: object) -> Generator[set[tuple[int, str]], None, None]:
            yield set()
            for step in left:
                yield {(1, str(path)) for path in step()}
            raise KeyboardInterrupt

        monkeypatch.setattr("watchfiles.watch", events)
        monkeypatch.setattr("cde_rag.cli.index_watch.PAUSES_S", (0.0, 0.0))
        return run("index", docs, docs.parent / "store.faiss", "--watch", "--no-progress", *options, code=code)

    return watched


def nothing() -> list[Path]:
    return []


def test_it_begins_with_what_was_removed_before(docs: Path, watch: Callable[..., Result]):
    place = docs.parent / "store.faiss"
    watch()
    for number in (0, 1, 2):
        (docs / f"{number}.md").unlink()
    kept = watch()
    assert kept.stdout == f"{place}: 4 passages (1 unchanged)\n"
    named = "the passages stay: docs/0.md, docs/1.md, docs/2.md. If that is right, run the same command with --yes."
    assert f"Files are gone that have 3 of 4 passages, and {named}" in kept.stderr
    deleted = watch(options=["--yes"])
    files = "docs/0.md, docs/1.md, docs/2.md"
    assert deleted.stdout == f"{place}: 1 passage (1 unchanged, 3 deleted); removed {files}\n"
    assert stored(place) == read(docs)


def test_it_ends_where_the_folder_is_gone(docs: Path, watch: Callable[..., Result]):
    ended = watch(lambda: [docs.rename(docs.parent / "elsewhere")], code=1)
    assert f"Error: {docs}: expected a folder, found: No such file or directory. Its passages stay." in ended.stderr
    assert len(stored(docs.parent / "store.faiss")) == 4


def test_another_folder_in_its_place_is_read(docs: Path, watch: Callable[..., Result]):
    other = docs.parent / "other"
    shutil.copytree(docs, other)
    (other / "0.md").unlink()
    (other / "1.md").write_text("# Built\n\nBuilt anew.\n")

    def exchange() -> list[Path]:
        docs.rename(docs.parent / "before")
        other.rename(docs)
        return []

    last = watch(exchange, nothing).stdout.splitlines()[-1]
    assert "3 passages (1 replaced, 2 unchanged, 1 deleted)" in last
    assert last.endswith("; removed docs/0.md")
    assert stored(docs.parent / "store.faiss") == read(docs)


def test_a_change_that_cannot_be_written_is_tried_again(
    docs: Path, watch: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
):
    tries, fill = list[None](), StoreCalls.add_pending

    def failing(*arguments: Any, **options: Any) -> int:
        tries.append(None)
        if len(tries) in (2, 3):  # of the first run, of the change, and of its second try
            raise StoreError("The disk is full.")
        return fill(*arguments, **options)

    def change() -> list[Path]:
        (docs / "0.md").write_text("# Changed\n\nChanged now.\n")
        return [docs / "0.md"]

    monkeypatch.setattr(StoreCalls, "add_pending", failing)
    done = watch(change, nothing, nothing, nothing)
    assert "4 passages (1 replaced, 1 pending); read docs/0.md\n" in done.stdout
    assert done.stderr.count("The disk is full. It is tried again.") == 1
    assert len(tries) == 4
    assert stored(docs.parent / "store.faiss") == read(docs)


def test_ctrl_c_while_vectors_are_made_leaves_a_searchable_collection(
    docs: Path, run: Any, watch: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    def change() -> list[Path]:
        (docs / "0.md").write_text("# Changed\n\nChanged now.\n")
        monkeypatch.setattr(StoreCalls, "add_pending", interrupted)
        return [docs / "0.md"]

    done, place = watch(change), docs.parent / "store.faiss"
    monkeypatch.undo()
    waits = "1 of 4 passages wait for their vectors, until the same command runs again."
    assert done.stderr.endswith(f"Stopped watching. {place} is searchable; {waits}\n")
    assert [hit.text for hit in bm25_searcher(store_at(str(place))).search("changed", 3)] == [read(docs)["docs/0.md#0"]]
    run("index", docs, place)
    assert stored(place) == read(docs)


def test_one_bad_file_keeps_no_other_from_being_read(docs: Path, watch: Callable[..., Result]):
    def change() -> list[Path]:
        rows = [{"id": "a", "text": "One."}, {"id": "a", "text": "Another."}]
        (docs / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (docs / "z.md").write_text("After it.")
        return [docs / "rows.jsonl", docs / "z.md"]

    done = watch(change)
    assert "6 passages (2 added, 1 skipped); read docs/z.md\n" in done.stdout
    assert f"{docs / 'rows.jsonl'}, line 2: the id 'a' came before" in done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--dry-run"], "--dry-run does not go with it"),
        (["--strict"], "--strict does not go with it"),
        (["--ray", "local"], "--ray does not go with it"),
    ],
)
def test_options_that_do_not_go_with_it_are_named(docs: Path, options: list[str], expected: str):
    found = CliRunner().invoke(app, ["index", str(docs), str(docs.parent / "s"), "--watch", *options])
    assert (found.exit_code, expected in " ".join(found.stderr.split())) == (2, True)


def test_a_file_is_not_watched_alone(docs: Path):
    found = CliRunner().invoke(app, ["index", str(docs / "0.md"), str(docs.parent / "s"), "--watch"])
    assert found.exit_code == 2
    assert "expected folders, found" in " ".join(found.stderr.split())


def test_without_the_extra_the_line_that_installs_it_is_printed(docs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    found = CliRunner().invoke(app, ["index", str(docs), str(docs.parent / "s"), "--watch"])
    assert (found.exit_code, (docs.parent / "s").exists()) == (1, False)
    assert "pip install 'cde-rag[watch]'" in found.stderr

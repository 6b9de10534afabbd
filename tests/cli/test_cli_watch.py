"""index --watch: a folder that changes, a process that follows it, and what the collection holds after each change."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_cli_process import COMMAND
from tiny import WORDS
from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.readers import RecordReader
from cde_rag.search.searcher import bm25_searcher
from cde_rag.stores.kinds import store_at

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


def test_it_ends_where_the_folder_is_gone_and_begins_with_what_changed_meanwhile(
    docs: Path, tmp_path: Path, model_folder: Path
):
    place = tmp_path / "store.faiss"
    with watching(docs, place, model_folder) as watcher:
        watcher.line()
        watcher.wait_for_error("Ctrl-C ends it.")
        docs.rename(tmp_path / "elsewhere")
        assert watcher.process.wait(WAIT_S) == 1
        assert (
            f"Error: {docs}: expected a folder, found: No such file or directory. Its passages stay." in watcher.errors
        )
    assert len(stored(place)) == 4
    (tmp_path / "elsewhere").rename(docs)
    for number in (0, 1, 2):
        (docs / f"{number}.md").unlink()
    with watching(docs, place, model_folder) as watcher:
        assert watcher.line() == f"{place}: 4 passages (1 unchanged)"
        assert "Files are gone that have 3 of 4 passages, and the passages stay: docs/0.md, docs/1.md" in watcher.errors
        assert watcher.stop() == 0
    with watching(docs, place, model_folder, "--yes") as watcher:
        assert watcher.line().startswith(f"{place}: 1 passage (1 unchanged, 3 deleted); removed docs/0.md, docs/1.md")
        assert watcher.stop() == 0
    assert stored(place) == read(docs)


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

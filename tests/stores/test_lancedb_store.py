"""A third party's store over LanceDB passes the contract of all stores."""

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract import Opener, StoreContract
from word_scores import table_scores

pytest.importorskip("lancedb")
from lancedb_store import LanceEngine

from cde_rag.stores.store import Store

MEMORY = Path("/dev/shm")


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def opened(folder: Path) -> Store:
    return Store(LanceEngine(folder))


@pytest.mark.long
class TestLanceDB(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture
    def new_place(self, scratch: Path) -> Callable[[], Opener]:
        numbers = itertools.count()
        return lambda: functools.partial(opened, scratch / f"{next(numbers)}.lancedb")

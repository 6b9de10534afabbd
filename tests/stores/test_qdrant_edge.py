import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract import Opener, StoreContract

from cde_rag.stores.qdrant_edge import QdrantEdgeStore

MEMORY = Path("/dev/shm")


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class TestQdrantEdge(StoreContract):
    @pytest.fixture
    def new_place(self, scratch: Path) -> Callable[[], Opener]:
        numbers = itertools.count()

        def place() -> Opener:
            folder = scratch / f"{next(numbers)}.qdrant"
            return lambda: QdrantEdgeStore(folder)

        return place

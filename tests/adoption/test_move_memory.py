"""Moves hold a few pages of rows: four times as many rows need as much memory of Python as before.

FAISS, LanceDB and SQLite allocate without Python's allocator; `lab/benchmarks/moves.py` measures them, too.
"""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import faiss
import pytest
from applications import ForLangChain, switched
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS

from cde_rag import ContextualEmbedder
from cde_rag.adoption.movable import PAGE


def texts(rows: int) -> list[str]:
    return [f"{number} is a number, and this is a text of it. " * 8 for number in range(rows)]


def langchain(folder: Path, old: ContextualEmbedder, rows: int) -> str:
    written = texts(rows)
    store = FAISS(ForLangChain(old), faiss.IndexFlatL2(old.dim), InMemoryDocstore(), {})
    pairs = zip(written, old.embed_passages(written, None).vectors.tolist(), strict=True)
    store.add_embeddings(pairs, [{"n": n} for n in range(rows)], [f"row-{n:030}" for n in range(rows)])
    store.save_local(str(folder))
    return f"langchain-faiss:{folder}"


def lancedb(folder: Path, old: ContextualEmbedder, rows: int) -> str:
    client, arrow = pytest.importorskip("lancedb"), pytest.importorskip("pyarrow")
    written = texts(rows)
    listed = arrow.FixedSizeListArray.from_arrays(
        arrow.array(old.embed_passages(written, None).vectors.ravel()), old.dim
    )
    names = [f"row-{n:0300}" for n in range(rows)]
    client.connect(str(folder)).create_table("papers", arrow.table({"id": names, "text": written, "vector": listed}))
    return f"lancedb:{folder}#papers"


@pytest.mark.parametrize("build", [langchain, lancedb])
def test_more_rows_need_no_more_memory(
    build: Callable[[Path, ContextualEmbedder, int], str],
    tmp_path: Path,
    old: ContextualEmbedder,
    new: ContextualEmbedder,
):
    """Pickles have batches of 1000 documents. Moves that held all rows needed 2.1 and 2.9 times the memory."""
    peaks: list[int] = []
    for rows in (PAGE, 4 * PAGE, 16 * PAGE):  # the first one imports
        target = build(tmp_path / str(rows), old, rows)
        tracemalloc.start()
        try:
            switched(target, new)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 1.6 * peaks[1], peaks

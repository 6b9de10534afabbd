"""How far anonymous memory grows while a collection takes in many short records, whose vectors are made beforehand.

Run with: python benchmarks/memory.py [--records 100000] [--json]
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, Record
from cde_rag.embedding import Embedded
from cde_rag.stores.faiss import FaissStore
from cde_rag.writing import Progress

MADE = 4096  # different vectors


def anonymous_mb() -> float:
    """Private memory of this process that no file backs, in megabytes (Linux)."""
    match = re.search(r"^Anonymous:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), flags=re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1e3


class MadeVectors:
    """An embedder whose vectors were there before."""

    def __init__(self, embedder: ContextualEmbedder) -> None:
        self.context, self.fingerprint, self.dim = embedder.context, embedder.fingerprint, embedder.dim
        self.max_siblings = embedder.max_siblings
        vectors = np.random.default_rng(0).normal(size=(MADE, self.dim)).astype(np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_passages(self, texts: list[str], siblings: Any) -> Embedded:
        """As many of them as there are texts."""
        return Embedded(self._vectors[np.arange(len(texts)) % MADE], np.zeros(len(texts), dtype=np.bool_))


def records(count: int) -> Iterator[Record]:
    """Short records, one after another."""
    for number in range(count):
        text = f"Record {number} is about subject {number % 977} and little else."
        yield Record(id=str(number), text=text, metadata={"year": 1900 + number % 120})


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = CDEModel.from_pretrained("cde-mini")
    embedder = cast(ContextualEmbedder, MadeVectors(ContextualEmbedder(model, Context.null(model))))
    before, peak = anonymous_mb(), 0.0

    def on_progress(_: Progress) -> None:
        nonlocal peak
        peak = max(peak, anonymous_mb())

    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.create(FaissStore(Path(folder, "records.faiss"), index="flat"), embedder)
        started = time.perf_counter()
        collection.add_records(records(options.records), on_progress=on_progress)
        elapsed = time.perf_counter() - started
        collection.close()
    result = {
        "records": options.records,
        "before_mb": before,
        "growth_mb": peak - before,
        "records_per_s": options.records / elapsed,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.records:,} records in {elapsed:.0f} s; anonymous memory {before:.0f} MB with the model loaded,")
    print(f"at most {result['growth_mb']:.0f} MB more while indexing (flat index, vectors on disk)")


if __name__ == "__main__":
    main()

"""Seconds that a new sibling and a new Context take where the model is not called.

A function that draws vectors stands for the model, and counts its calls. Run with: python
lab/benchmarks/without_model.py [--passages N] [--dim N].
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cde_rag import Collection, FunctionEmbedder
from cde_rag.embedders.arithmetic import ArithmeticEmbedder
from cde_rag.embedders.plain_vectors import FILE
from cde_rag.stores.faiss import FaissStore

PARENT = 20  # passages


def main() -> None:
    """Fill a collection, add a sibling, and recontextualize."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    options = parser.parse_args()
    embedded = 0

    def draw(texts: list[str]) -> np.ndarray:
        nonlocal embedded
        embedded += len(texts)
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=options.dim) for seed in seeds])

    def timed(name: str, work: Callable[[], object]) -> None:
        before, started = embedded, time.perf_counter()
        work()
        print(f"{name}: {time.perf_counter() - started:.1f} s, {embedded - before} texts embedded")

    plain = FunctionEmbedder(draw, name="drawn", mini_batch_size=512)
    texts = [f"passage {number} of page {number // PARENT}" for number in range(options.passages)]
    pages = [{"page": str(number // PARENT)} for number in range(options.passages)]
    with tempfile.TemporaryDirectory() as folder:
        embedder = ArithmeticEmbedder.from_corpus(texts[:1000], model=plain, weight=0.3)
        papers = Collection.create(FaissStore(Path(folder) / "papers"), embedder, parent_key="page")
        timed(f"add {options.passages} passages", lambda: papers.add(texts, metadata=pages))
        timed("add a sibling", lambda: papers.add(["one more"], metadata=[{"page": "0"}]))
        timed("recontextualize", papers.recontextualize)
        print(f"{FILE}: {(Path(folder) / 'papers' / FILE).stat().st_size >> 20} MB")
        papers.close()


if __name__ == "__main__":
    main()

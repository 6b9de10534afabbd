"""Hours, memory and disk for a corpus of any size, from what this machine measures in a minute.

Some thousand passages are indexed as `Collection.add` does, timed, and their folder is measured; everything else is
arithmetic, printed with the table. Give your own figures where you have them, such as a GPU's throughput.

Run with: python -m lab.benchmarks.sizing [--documents N N …] [--words N] [--per-second X] [--core-hour PRICE] [--json]
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from cde_rag import Collection, ContextualEmbedder

GENERATIONS, FLOAT, LINKS = 2, 4, 32  # until the one before is dropped; bytes; neighbours of a node of HNSW


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=float, nargs="+", default=[1e6, 1e8, 1e9], help="corpora to size")
    parser.add_argument("--words", type=int, default=60, help="words of a passage")
    parser.add_argument("--sample", type=int, default=2000, help="passages that are indexed to measure")
    parser.add_argument("--per-second", type=float, help="passages/s of one worker; by default measured")
    parser.add_argument("--workers", type=int, default=100, help="workers of the cluster")
    parser.add_argument("--core-hour", type=float, default=0.05, help="price of a worker's hour")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    dim, speed, size = measured(options.sample, options.words)
    speed = options.per_second or speed
    found = [sized(int(documents), dim, speed, size, options) for documents in options.documents]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{speed:.0f} passages/s of {options.words} words and one worker, {size:.0f} bytes/passage besides vectors\n")
    print(f"| {' | '.join(found[0])} |\n|{' --- |' * len(found[0])}")
    for row in found:
        print(f"| {' | '.join(f'{value:,.0f}' if value >= 10 else f'{value:.2g}' for value in row.values())} |")


def measured(count: int, words: int) -> tuple[int, float, float]:
    """Return vectors' length, passages/s of one worker, and bytes of a passage besides its vector."""
    dice = random.Random(0)
    known = [f"{first}{second}" for first in "basket river stone lamp".split() for second in range(2500)]
    texts = [" ".join(dice.choices(known, k=words)) for _ in range(count)]
    embedder = ContextualEmbedder.from_corpus(texts)
    with tempfile.TemporaryDirectory() as folder:
        with Collection.create(Path(folder) / "sized.faiss", embedder) as made:
            made.add(texts[: count // 10])
            started = time.monotonic()
            made.add(texts[count // 10 :])
            elapsed = time.monotonic() - started
        used = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    speed = (count - count // 10) / elapsed
    return embedder.dim, speed, used / count - embedder.dim * FLOAT


def sized(documents: int, dim: int, speed: float, size: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return one row of the table."""
    hours = documents / speed / 3600
    vectors = documents * dim * FLOAT
    return {
        "passages": documents,
        "worker hours": hours,
        f"hours on {options.workers} workers": hours / options.workers,
        "price": hours * options.core_hour,
        "vectors, GB": vectors / 1e9,
        "disk with two generations, GB": (vectors * GENERATIONS + documents * size) / 1e9,
        "memory of HNSW over float32, GB": documents * (dim * FLOAT + 2 * LINKS * FLOAT) / 1e9,
        "memory of HNSW over one bit, GB": documents * (dim / 8 + 2 * LINKS * FLOAT) / 1e9,
        "hours to commit 5 000 rows/s": documents / 5000 / 3600,
    }


if __name__ == "__main__":
    main()

"""How far anonymous memory grows while a collection takes in many short records, whose vectors are made beforehand.

Run with: python lab/benchmarks/memory.py [--records 100000] [--churn 0] [--plot FILE] [--json]

Then what adding one record more writes, and, with --churn, memory and files while so many are added and deleted again.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, Record
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import require
from cde_rag.indexing.upsert import Progress
from cde_rag.stores.faiss import FaissStore

MADE = 4096  # different vectors
DIM = 384  # of the bundled model
SINGLE = 50  # records that are added one by one, to see what that writes
SEEN = 100  # times that churn is looked at


def anonymous_mb() -> float:
    """Private memory of this process that no file backs, in megabytes (Linux)."""
    match = re.search(r"^Anonymous:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), flags=re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1e3


class MadeVectors(ContextualEmbedder):
    """An embedder of a Context whose vectors were there before: the model is not called.

    Args:
        embedder: Its model and Context.
    """

    def __init__(self, embedder: ContextualEmbedder) -> None:
        super().__init__(embedder.model, embedder.context)
        vectors = np.random.default_rng(0).normal(size=(MADE, self.dim)).astype(np.float32)
        self._made = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """As many of them as there are texts."""
        return Embedded(self._made[np.arange(len(texts)) % MADE], np.zeros(len(texts), dtype=np.bool_))


def records(count: int, sentences: int = 1) -> Iterator[Record]:
    """Short records, one after another, of sentences of nine words."""
    for number in range(count):
        text = " ".join(
            f"Record {number} is about subject {number * 7 % 977 + n} and little else." for n in range(sentences)
        )
        yield Record(id=str(number), text=text, metadata={"year": 1900 + number % 120})


def written_bytes() -> int:
    """What this process has given the system to write (Linux)."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def filled(collection: Collection, count: int) -> tuple[list[tuple[int, float]], float]:
    """Anonymous memory beside the number of records as they come in, and how long they took."""
    seen: list[tuple[int, float]] = []

    def on_progress(progress: Progress) -> None:
        seen.append((progress.done, anonymous_mb()))

    started = time.perf_counter()
    collection.add_records(records(count), on_progress=on_progress)
    return seen, time.perf_counter() - started


def single(collection: Collection) -> list[int]:
    """What each of some records writes that comes alone."""
    sizes = []
    for number in range(SINGLE):
        before = written_bytes()
        collection.add([f"Record that comes alone, number {number}"], ids=[f"single {number}"])
        sizes.append(written_bytes() - before)
    collection.delete([f"single {number}" for number in range(SINGLE)])
    return sizes


def churned(collection: Collection, folder: Path, times: int) -> list[tuple[int, float, float]]:
    """Anonymous memory and the folder's size, in megabytes, beside how many records were added and deleted again."""
    seen = []
    for number in range(1, times + 1):
        collection.add([f"Record that comes and goes, number {number}"], ids=["passing"])
        collection.delete(["passing"])
        if number % max(1, times // SEEN) == 0:
            size = sum(path.stat().st_size for path in folder.iterdir())
            seen.append((number, anonymous_mb(), size / 1e6))
    return seen


def plot(seen: list[tuple[int, float]], before: float, path: Path) -> None:
    """What was added to memory beside records, on the scale of one that would keep a tenth of their vectors."""
    figure: Any = require("matplotlib.figure", "train").Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([count / 1e3 for count, _ in seen], [megabytes - before for _, megabytes in seen])
    most = max(count for count, _ in seen) * DIM * 4 / 1e6 / 10
    axes.set(xlabel="records, thousands", ylabel="memory added, MB", xlim=(0, None), ylim=(0, most))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print what was found, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--churn", type=int, default=0, help="records that are added and deleted again, one by one")
    parser.add_argument("--plot", type=Path, help="where to draw memory beside records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = CDEModel.from_pretrained("cde-mini")
    embedder = MadeVectors(ContextualEmbedder(model, Context.null(model)))
    before = anonymous_mb()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "records.faiss")
        collection = Collection.create(FaissStore(folder, index="flat"), embedder)
        seen, elapsed = filled(collection, options.records)
        sizes = single(collection)
        churn = churned(collection, folder, options.churn)
        collection.close()
    half = [megabytes for count, megabytes in seen if 2 * count >= options.records]
    result = {
        "records": options.records,
        "before_mb": before,
        "growth_mb": max(megabytes for _, megabytes in seen) - before,
        "second_half_mb": max(half) - half[0],
        "records_per_s": options.records / elapsed,
        "single_median_bytes": median(sizes),
        "single_most_bytes": max(sizes),
        "seen": seen,
        "churn": churn,
    }
    if options.plot is not None:
        plot(seen, before, options.plot)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.records:,} records in {elapsed:.0f} s; anonymous memory {before:.0f} MB with the model loaded,")
    print(f"at most {result['growth_mb']:.0f} MB more while indexing (flat index, vectors on disk),", end=" ")
    print(f"{result['second_half_mb']:.0f} MB of it in the second half")
    print(f"one record more writes {median(sizes) / 1e3:.0f} KB, at most {max(sizes) / 1e3:.0f} KB of {SINGLE}")
    for number, memory, size in churn[:: max(1, len(churn) // 5)]:
        print(f"{number:,} added and deleted: {memory:.0f} MB of memory, {size:.0f} MB of files")


if __name__ == "__main__":
    main()

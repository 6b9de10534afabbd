"""What words cost a FaissStore: CPU and bytes of adding with and without them, and milliseconds of a search by words.

Both stores take the same batches in turn; vectors are random, texts come again in shuffled pieces. Run
with: python lab/benchmarks/words.py FOLDER… [--records 20000], folders being in the layout of BEIR.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np

from cde_rag.evaluation.beir import read_corpus
from cde_rag.records import Record, Row
from cde_rag.stores.faiss import FaissStore

SPACE = "a" * 64
DIM = 384
BATCH = 512
ONES = 100  # records added one by one
DICE = random.Random(0)
NOISE = np.random.default_rng(0)


def units(rows: int) -> np.ndarray:
    """Random unit vectors."""
    vectors = NOISE.standard_normal((rows, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def made(folder: Path) -> FaissStore:
    """An empty store."""
    store = FaissStore(folder)
    store.create(dim=DIM, fingerprint=SPACE, context=b"", settings={})
    return store


def row(number: int, texts: Sequence[str]) -> Row:
    """A record; the first have the texts, others up to 80 of the words of one."""
    text = texts[number % len(texts)]
    if number >= len(texts):
        words = text.split()
        text = " ".join(DICE.sample(words, min(80, len(words))))
    return Row(Record(str(number), text), "digest")


def written() -> int:
    """Bytes that this process has had written so far."""
    told = Path("/proc/self/io").read_text()
    return int(next(line for line in told.splitlines() if line.startswith("write_bytes")).split()[1])


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--records", type=int, default=20_000)
    options = parser.parse_args()
    texts = [text for folder in options.folders for text in read_corpus(folder).texts]
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        stores = {"with": made(Path(scratch, "with"))}
        with mock.patch("cde_rag.stores.faiss.database.has_fts5", return_value=False):
            stores["without"] = made(Path(scratch, "without"))
        spent = dict.fromkeys(stores, 0.0)
        for start in range(0, options.records, BATCH):
            rows = [row(number, texts) for number in range(start, min(start + BATCH, options.records))]
            vectors = units(len(rows))
            for name, store in stores.items():
                began = time.process_time()
                store.add(rows, vectors, fingerprint=SPACE)
                spent[name] += time.process_time() - began
        for name, store in stores.items():
            size = (store.folder / "collection.sqlite").stat().st_size / options.records
            ones: list[int] = []
            for number in range(options.records, options.records + ONES):
                before = written()
                store.add([row(number, texts)], units(1), fingerprint=SPACE)
                ones.append(written() - before)
            cpu = 1000 * spent[name] / options.records
            print(
                f"{name:8} words: {cpu:.3f} ms of CPU and {size:,.0f} bytes of SQLite a record; one add writes ", end=""
            )
            print(f"{median(ones):,.0f} bytes ({max(ones):,} at most)")
        questions = [" ".join(DICE.sample(DICE.choice(texts).split()[:40], 6)) for _ in range(30)]
        began = time.process_time()
        for question in questions:
            stores["with"].search_text([question], 10)
        print(f"a search by six words: {1000 * (time.process_time() - began) / len(questions):.1f} ms of CPU")
        for store in stores.values():
            store.close()


if __name__ == "__main__":
    main()

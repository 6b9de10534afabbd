"""Share of the store in indexing and in a move to a new context: digests, records, words, log and vectors.

Vectors are replayed, so that what is timed is everything but the model; the model's own time is that of embedding some
of the same records. A sentence has nine words.
Adding and moving both end with a calibration of hybrid scores, which has a column of its own; all records share most
words, so that its queries are as slow as can be.

Run with: python lab/benchmarks/store_share.py [--records 10000 100000] [--sentences 1 10] [--output FILE.csv]
"""

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from memory import MadeVectors, records

from cde_rag import Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore

SAMPLE = 1024  # records that are embedded


def main() -> None:
    """Print a line for each number of records, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 10], help="length of a record")
    parser.add_argument("--model", default="cde-mini-1")
    parser.add_argument("--output", type=Path, help="CSV with a row for each number of records")
    options = parser.parse_args()
    rows = [row for length in options.sentences for row in measured(options.model, options.records, length)]
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def measured(model: str, counts: list[int], length: int) -> Iterator[dict[str, float]]:
    """Yield a row for each number of records of that many sentences."""
    texts = [record.text for record in records(SAMPLE, length)]
    old, new = (ContextualEmbedder.from_corpus(texts, model=model, context_size=256, seed=seed) for seed in (0, 1))
    old.embed_documents(texts[:64])
    embedding = timed(lambda: old.embed_documents(texts)) / SAMPLE
    for count in counts:
        with tempfile.TemporaryDirectory() as scratch:
            store = FaissStore(Path(scratch, "records.faiss"), index="flat")
            collection = Collection.create(store, MadeVectors(old))
            add = timed(partial(collection.add_records, records(count, length))) / count
            move = timed(partial(collection.recontextualize, embedder=MadeVectors(new))) / count
            calibration = timed(collection.calibrate) / count
            collection.close()
        row = {
            "records": count,
            "sentences": length,
            "embedding, µs": embedding * 1e6,
            "add, µs": add * 1e6,
            "recontextualize, µs": move * 1e6,
            "calibration in each, µs": calibration * 1e6,
            "add, share of embedding": add / embedding,
            "recontextualize, share of embedding": move / embedding,
        }
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
        yield row


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

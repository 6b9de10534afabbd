"""Runtimes of a bundled model beside sentence-transformers in torch fp32: one row for each, with the CPU's flags.

All embed the same blocks of texts in turn, so that a machine that slows down slows all; ratios are medians over blocks.
Run with: python benchmarks/runtimes.py FOLDER [--limit 192] [--output docs/runtimes.csv], where FOLDER is in the layout
of BEIR. Rows of other CPUs stay in the output.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from documents import minilm

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.errors import MissingExtraError
from cde_rag.evaluation.beir import read_corpus
from cde_rag.model.runtimes.runtime_choice import candidates, cpu_flags, cpu_name
from cde_rag.model.threads import batch_threads, limited_threads

FIELDS = ("cpu", "flags", "threads", "runtime", "dtype", "documents", "query", "cosine")
QUERIES = 16  # of each block: beginnings of its texts


def seconds(work: Callable[[list[str]], object], *calls: list[str]) -> float:
    """Seconds of one call after another."""
    start = time.perf_counter()
    for texts in calls:
        work(texts)
    return time.perf_counter() - start


def main() -> None:
    """Print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=192, help="texts")
    parser.add_argument("--block", type=int, default=32, help="texts that each embeds in turn")
    parser.add_argument("--model", default="cde-mini")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent.parent / "docs/runtimes.csv")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    peer: Any = minilm()
    reference = CDEModel.from_pretrained(options.model, device="cpu", dtype="float32", runtime="torch")
    context = ContextualEmbedder.from_corpus(texts, model=reference).context
    embedders: dict[tuple[str, str], ContextualEmbedder] = {}
    for runtime, dtype in candidates():
        try:
            model = CDEModel.from_pretrained(options.model, device="cpu", dtype=dtype, runtime=runtime)
        except MissingExtraError:
            continue
        embedders[runtime, dtype] = ContextualEmbedder(model, context)
        embedders[runtime, dtype].embed_passages(texts[:32], None)
    peer.encode(texts[:32])
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in embedders}
    vectors: dict[tuple[str, str], list[np.ndarray]] = {key: [] for key in embedders}
    for start in range(0, len(texts), options.block):
        block = texts[start : start + options.block]
        queries = [[" ".join(text.split()[:12])] for text in block[:QUERIES]]
        document = seconds(peer.encode, block)
        with limited_threads(1):
            query = seconds(peer.encode, *queries)
        for key, embedder in embedders.items():
            own = seconds(embedder.embed_documents, block)
            ratios[key].append((document / own, query / seconds(embedder.embed_queries, *queries)))
            vectors[key].append(embedder.embed_documents(block))
    exact = np.concatenate(vectors["torch", "float32"])
    rows = [
        dict(
            zip(
                FIELDS,
                (
                    cpu_name(),
                    " ".join(cpu_flags()),
                    str(batch_threads()),
                    *key,
                    f"{median(one for one, _ in ratios[key]):.2f} ×",
                    f"{median(one for _, one in ratios[key]):.2f} ×",
                    f"{(np.concatenate(vectors[key]) * exact).sum(axis=1).min():.6f}",
                ),
                strict=True,
            )
        )
        for key in embedders
    ]
    for row in rows:
        print(
            f"{row['runtime']:9} {row['dtype']:9} documents {row['documents']}  query {row['query']}  {row['cosine']}"
        )
    kept: list[dict[str, str]] = []
    if options.output.exists():
        with options.output.open(encoding="utf-8", newline="") as lines:
            kept = [row for row in csv.DictReader(lines) if row["flags"] != rows[0]["flags"]]
    with options.output.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


if __name__ == "__main__":
    main()

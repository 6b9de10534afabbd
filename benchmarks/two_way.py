"""What a published model's cheaper readings cost and lose: seconds a text, and cosine to the exact vectors.

All readings embed the same texts of a corpus, each given its own context of the same corpus and seed. Run with:
python benchmarks/two_way.py MODEL FOLDER [--limit 200] [--context-size 64] [--json], where MODEL is a hub id or
folder of a two-way model, and FOLDER is in the layout of BEIR. With random weights only the seconds mean something.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.evaluation.beir import read_corpus

QUERIES = 20  # embedded one by one


def measured(model: CDEModel, texts: list[str], queries: list[str]) -> tuple[dict[str, Any], np.ndarray]:
    """Seconds of one reading, and the vectors of its documents."""
    started = time.perf_counter()
    embedder = ContextualEmbedder.from_corpus(texts, model=model)
    context_s = time.perf_counter() - started
    started = time.perf_counter()
    vectors = embedder.embed_documents(texts)
    documents_s = time.perf_counter() - started
    started = time.perf_counter()
    for query in queries:
        embedder.embed_queries([query])
    query_s = (time.perf_counter() - started) / len(queries)
    seconds = {"context_s": context_s, "document_s": documents_s / len(texts), "query_s": query_s}
    return {"fingerprint": embedder.fingerprint[:16], **seconds}, vectors


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=200, help="documents")
    parser.add_argument("--context-size", type=int, default=64, help="of the reading with fewer context documents")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    queries = [" ".join(text.split()[:12]) for text in texts[:QUERIES]]
    readings: dict[str, dict[str, Any]] = {
        "exact": {},
        "cached": {"attention": "two_way_cached"},
        f"{options.context_size} context documents": {"context_size": options.context_size},
    }
    report: dict[str, dict[str, Any]] = {}
    exact = np.empty((0, 0), dtype=np.float32)
    for name, reading in readings.items():
        model = CDEModel.from_pretrained(options.model, dtype=options.dtype, **reading)
        report[name], vectors = measured(model, texts, queries)
        exact = vectors if name == "exact" else exact
        cosines = (exact * vectors).sum(axis=1)
        report[name] |= {
            "cosine_mean": float(cosines.mean()),
            "cosine_1st_percentile": float(np.percentile(cosines, 1)),
        }
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for name, row in report.items():
        print(f"{name:<24}", *(f"{key} {value:.4f}" for key, value in row.items() if key != "fingerprint"))


if __name__ == "__main__":
    main()

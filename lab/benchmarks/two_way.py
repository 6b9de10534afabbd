"""What a published model's cheaper readings cost and lose: seconds a text, and cosine to the exact vectors.

All readings embed the same texts of a corpus, each given its own context of the same corpus and seed. Run with: python
lab/benchmarks/two_way.py MODEL FOLDER [--limit 200] [--context-size 64 128 256] [--json], where MODEL is a hub id or
folder of a two-way model, or random:v1 or random:v2 for random weights of the published sizes, and FOLDER is in the
layout of BEIR. With random weights only the seconds mean something.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.evaluation.beir import read_corpus
from cde_rag.models.files.names import ModelName
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.two_way import checkpoint
from cde_rag.models.two_way import files as published
from cde_rag.models.two_way.network import TwoWay

QUERIES = 20  # embedded one by one
RANDOM = {"random:v1": "nomic-ai/nomic-bert-2048", "random:v2": "answerdotai/ModernBERT-base"}


def write_random(name: str, folder: Path) -> Path:
    """A model of random weights in the sizes and layout of a published one."""
    value = {"embedder": RANDOM[name], "transductive_corpus_size": 512, "max_seq_length": 512}
    config = published.read_config(value, ModelName(base=name))
    torch.manual_seed(0)
    tokenizer = (checkpoints.find("cde-mini") / "tokenizer.json").read_text()  # cde-mini-0's, too
    checkpoint.write(folder, TwoWay(config, prefix_end=0), tokenizer)
    return folder


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


def compared(model: str | Path, texts: list[str], sizes: list[int], dtype: str | None) -> dict[str, dict[str, Any]]:
    """Each reading's seconds, and the cosine of its vectors to the exact ones."""
    queries = [" ".join(text.split()[:12]) for text in texts[:QUERIES]]
    readings: dict[str, dict[str, Any]] = {"exact": {}, "cached": {"attention": "two_way_cached"}}
    readings |= {f"{size} context documents": {"context_size": size} for size in sizes}
    report: dict[str, dict[str, Any]] = {}
    exact = np.empty((0, 0), dtype=np.float32)
    for name, reading in readings.items():
        loaded = CDEModel.from_pretrained(model, dtype=dtype, runtime="torch", **reading)
        report[name], vectors = measured(loaded, texts, queries)
        exact = vectors if name == "exact" else exact
        cosines = (exact * vectors).sum(axis=1)
        report[name] |= {
            "cosine_mean": float(cosines.mean()),
            "cosine_1st_percentile": float(np.percentile(cosines, 1)),
        }
    return report


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=200, help="documents")
    parser.add_argument("--context-size", type=int, nargs="+", default=[64, 128, 256], help="of cheaper readings")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    with tempfile.TemporaryDirectory() as place:
        model = write_random(options.model, Path(place) / "model") if options.model in RANDOM else options.model
        report = compared(model, texts, options.context_size, options.dtype)
    if options.json:
        print(json.dumps({"model": options.model, "documents": len(texts), "readings": report}, indent=2))
        return
    print(f"{options.model}, {len(texts)} documents" + (": cosines mean nothing" if options.model in RANDOM else ""))
    for name, row in report.items():
        print(f"{name:<24}", *(f"{key} {value:.4f}" for key, value in row.items() if key != "fingerprint"))


if __name__ == "__main__":
    main()

"""Runtimes of the second stage of two-way models: random weights of the published sizes, 512 context vectors.

All runtimes embed the same query of 24 tokens (one thread) and the same four documents of 200 tokens (two threads) in
turn; milliseconds of the fastest of five rounds, and the smallest cosine to torch in float32. Five models are in memory
at once, some 8 GB. Graphs are kept in a folder that is removed.

Run with: python lab/benchmarks/two_way_runtimes.py [--model v1 v2] [--attention two_way two_way_cached] [--json]
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from two_way import write_random

from cde_rag import CDEModel
from cde_rag.models.runtimes.runtime_choice import candidates, cpu_flags, cpu_name
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY

ROUNDS = 5
QUERY_TOKENS, DOCUMENT_TOKENS, DOCUMENTS = 24, 200, 4
THREADS = 2  # of documents


def table(folder: Path, attention: str, random: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row for each runtime and dtype."""
    vectors = random.standard_normal((512, 768)).astype(np.float32)
    query, *documents = (token_ids(random, length) for length in (QUERY_TOKENS, *[DOCUMENT_TOKENS] * DOCUMENTS))
    models = [
        CDEModel.from_pretrained(folder, device="cpu", runtime=runtime, dtype=dtype, attention=attention)
        for runtime, dtype in candidates()
    ]
    prepared = [model.stages.prepare(vectors, np.ones(512, dtype=np.int64)) for model in models]
    times = np.full((len(models), ROUNDS + 1, 2), np.inf)
    found = [np.empty((0, 768), dtype=np.float32)] * len(models)
    for number in range(ROUNDS + 1):
        for place, (model, given) in enumerate(zip(models, prepared, strict=True)):
            model.stages.threads = THREADS
            started = time.perf_counter()
            one = model.stages.embed([query.tolist()], QUERY, given, None, None)
            between = time.perf_counter()
            many = model.stages.embed([ids.tolist() for ids in documents], DOCUMENT, given, None, None)
            times[place, number] = between - started, (time.perf_counter() - between) / DOCUMENTS
            found[place] = np.concatenate([one, many])
    fastest = 1e3 * times[:, 1:].min(axis=1)
    return [
        {
            "attention": attention,
            "runtime": model.runtime,
            "dtype": model.dtype,
            "query_ms": float(query_ms),
            "document_ms": float(document_ms),
            "cosine": float((vectors * found[0]).sum(axis=1).min()),
        }
        for model, (query_ms, document_ms), vectors in zip(models, fastest, found, strict=True)
    ]


def token_ids(random: np.random.Generator, length: int) -> Int[np.ndarray, " tokens"]:
    """Return random token ids."""
    return random.integers(1000, 30_000, length)


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["v1", "v2"], choices=["v1", "v2"])
    parser.add_argument("--attention", nargs="+", default=["two_way", "two_way_cached"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    random, rows = np.random.default_rng(0), list[dict[str, Any]]()
    if not options.json:
        print(f"{cpu_name()}, {' '.join(cpu_flags())}")
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = place
        for name in options.model:
            folder = write_random(f"random:{name}", Path(place) / name)
            for attention in options.attention:
                found = [{"model": name, **row} for row in table(folder, attention, random)]
                rows += found
                for row in [] if options.json else found:
                    print(
                        f"{name} {attention:15} {row['runtime']:9} {row['dtype']:9} query {row['query_ms']:7.1f} "
                        f"document {row['document_ms']:7.1f} cosine {row['cosine']:.6f}",
                        flush=True,
                    )
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

"""Latency of a query with one thread and with PyTorch's default, on a quiet machine and beside busy processes.

Both are alternated in one process; "busy" runs one process per core that multiplies matrices on one thread.

Run with: python lab/benchmarks/threads.py [--json]
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Final

import numpy as np
import torch

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.model.second_stage import QUERY as QUERY_ROLE
from cde_rag.model.threads import available_cores

QUERY: Final = "how do I rotate the logs of a service that writes them all day?"
BUSY: Final = "import torch; torch.set_num_threads(1); a = torch.ones(512, 512)\nwhile True: a @ a"


def latencies(threads: int, repeats: int, embedder: ContextualEmbedder) -> list[float]:
    """Milliseconds of each of some searches' query embeddings with this many threads."""
    model, found = embedder.model, list[float]()
    tokens = [token.ids for token in model.tokenize([QUERY], role=QUERY_ROLE)]
    prepared = model.prepare(embedder.context)
    torch.set_num_threads(threads)
    for _ in range(repeats):
        started = time.perf_counter()
        with torch.inference_mode():
            ids = torch.tensor(tokens)
            model.network(ids, torch.ones_like(ids, dtype=torch.bool), QUERY_ROLE, prepared, None, None)
        found.append(1000 * (time.perf_counter() - started))
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = CDEModel.from_pretrained("cde-mini", device="cpu", runtime="torch")
    embedder, default = ContextualEmbedder(model, Context.generic(model)), torch.get_num_threads()
    rows = []
    for busy in (0, available_cores()):
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            time.sleep(5 if busy else 0)  # until they have imported torch
            times: dict[int, list[float]] = {1: [], default: []}
            for _ in range(options.rounds):
                for threads, found in times.items():
                    found += latencies(threads, options.repeats, embedder)
        finally:
            for other in others:
                other.kill()
        for threads, found in times.items():
            median, p95 = (float(value) for value in np.percentile(found, [50, 95]))
            rows.append({"busy_processes": busy, "threads": threads, "median_ms": median, "p95_ms": p95})
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("{busy_processes} busy, {threads} threads: median {median_ms:.1f} ms, p95 {p95_ms:.1f} ms".format(**row))


if __name__ == "__main__":
    main()

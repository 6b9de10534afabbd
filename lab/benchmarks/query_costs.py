"""Costs of one query in each runtime that is installed: tokenizer, engine, and Python around them, in milliseconds.

The engine's part is the call of the compiled graph, or of the network of torch, with arrays that are ready. Medians of
interleaved rounds, one thread.

Run with: python lab/benchmarks/query_costs.py [--json]
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.stage_runner import QUERY

TEXT = "how do I read a large file line by line without keeping all of it in memory when it is compressed"
ROUNDS = 100


def main() -> None:
    """Print a line for each runtime and dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [costs(runtime, dtype) for runtime, dtype in runtime_choice.candidates()]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{runtime_choice.cpu_name()}, {' '.join(runtime_choice.cpu_flags())}; {found[0]['tokens']} tokens")
    for row in found:
        print(
            f"{row['runtime']:9} {row['dtype']:9} query {row['query']:6.2f}  tokenizer {row['tokenizer']:5.2f}  "
            f"engine {row['engine']:6.2f}  query / engine {row['query to engine']:.2f}"
        )


def costs(runtime: str, dtype: str) -> dict[str, float | str]:
    """Return the medians of one runtime."""
    model = CDEModel.from_pretrained(runtime=runtime, dtype=dtype, device="cpu")
    embedder = ContextualEmbedder(model, Context.null(model))
    rows = [tokens.ids for tokens in model.tokenize([TEXT], role=QUERY)]
    prepared = model.prepare(embedder.context)
    calls: dict[str, Callable[[], object]] = {
        "query": lambda: embedder.embed_queries([TEXT]),
        "tokenizer": lambda: model.tokenize([TEXT], role=QUERY),
        "engine": lambda: model.stages.embed(rows, QUERY, prepared, None, None),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 10):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if number >= 10:
                times[name].append(1e3 * (time.perf_counter() - started))
    ratios = [query / engine for query, engine in zip(times["query"], times["engine"], strict=True)]
    middle = {name: median(each) for name, each in times.items()}
    return {"runtime": runtime, "dtype": dtype, "tokens": len(rows[0]), **middle, "query to engine": median(ratios)}


if __name__ == "__main__":
    main()

"""Searches side by side: one after the other, from threads, and from coroutines through `AsyncCollection`.

Each round measures the three in turn on the same queries, with as many threads; medians of the rounds' searches a
second and their ratios are printed. Times are of this machine alone: compare ratios.

Run with: python lab/benchmarks/async_searches.py [--rounds N] [--queries N] [--threads N] [--by vectors] [--json]
"""

import argparse
import asyncio
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from cde_rag import AsyncCollection, Collection, ContextualEmbedder, Hit
from cde_rag.evaluation.demo_corpus import MODULES, documentation
from cde_rag.models.runtimes.threads import available_cores
from cde_rag.search.fusion import Ranking


def main() -> None:
    """Print searches a second and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=available_cores() + 4)
    parser.add_argument("--by", choices=("hybrid", "vectors", "bm25"), default="hybrid")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = [record.text for record in documentation(MODULES)][:2000]
    queries = [" ".join(text.split()[3:12]) or text[:80] for text in texts[:: max(1, len(texts) // options.queries)]]
    with tempfile.TemporaryDirectory() as folder:
        embedder = ContextualEmbedder.from_corpus(texts)
        with Collection.create(Path(folder, "documentation.faiss"), embedder) as collection:
            collection.add(texts)
            papers = AsyncCollection(collection, threads=options.threads)
            rounds = [measured(papers, queries, options.threads, options.by) for _ in range(options.rounds)]
    rates = {name: len(queries) / median(each[name] for each in rounds) for name in rounds[0]}
    ratios = {
        f"{name} to {other}": median(each[other] / each[name] for each in rounds)
        for name, other in (("threads", "one"), ("coroutines", "one"), ("coroutines", "threads"))
    }
    if options.json:
        print(json.dumps({"searches_per_s": rates, "ratios": ratios, "threads": options.threads}, indent=2))
        return
    for name, rate in rates.items():
        print(f"{name:<12} {rate:8.1f} searches a second")
    for name, ratio in ratios.items():
        print(f"{name:<24} {ratio:.2f}")


def measured(papers: AsyncCollection, queries: list[str], threads: int, by: Ranking) -> dict[str, float]:
    """Return the seconds of all queries: one after the other, from threads and from coroutines."""
    collection = papers.collection
    begin = time.perf_counter()
    one = [collection.search(query, by=by) for query in queries]
    after_one = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        from_threads = list(pool.map(lambda query: collection.search(query, by=by), queries))
    after_threads = time.perf_counter()
    from_coroutines = asyncio.run(_searched(papers, queries, by))
    after_coroutines = time.perf_counter()
    assert one == from_threads == from_coroutines
    return {
        "one": after_one - begin,
        "threads": after_threads - after_one,
        "coroutines": after_coroutines - after_threads,
    }


async def _searched(papers: AsyncCollection, queries: list[str], by: Ranking) -> list[list[Hit]]:
    return list(await asyncio.gather(*(papers.search(query, by=by) for query in queries)))


if __name__ == "__main__":
    main()

"""Funnel search next to a search by one prefix: recall at equal time, on many vectors of an embedding model.

A funnel scores all vectors by a short prefix, the best of them by a longer one, and so on to the complete vectors, with
lists that shrink. A search by one prefix is a funnel of two steps. Both keep, of prefixes of d dimensions,
`share` · k · (dim / d)² candidates, as `prefix-<dims>` of a FaissStore does with a share of 9.

Vectors are those of `lab/benchmarks/vector_stores.py`: documents of BEIR folders, and others made of them.

Run with: python -m lab.benchmarks.funnel FOLDER… --cache FOLDER [--records 1000000] [--queries 100] [--output FILE.csv]

It prints recall@10 and milliseconds of each, the median over single queries, and for each funnel the best search by one
prefix that takes no longer.
"""

import argparse
import csv
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import faiss
import numpy as np
from jaxtyping import Float32, Int64

from lab.benchmarks.vector_stores import K, Texts

PREFIXES = (32, 48, 64, 96, 128, 192)  # dimensions, of one prefix
FUNNELS = (
    (16, 64),
    (16, 32, 64, 128),
    (32, 64),
    (32, 128),
    (32, 64, 128),
    (48, 96, 192),
    (64, 128),
    (64, 192),
    (96, 192),
)
SHARES = (1.0, 2.25, 4.5, 9.0)


class Result(NamedTuple):
    """One search.

    Attributes:
        dims: Prefixes, from short to long, without the complete vectors.
        share: Factor of the candidates.
        recall: Share of the ten best that are found.
        ms: Of a query, the median.
    """

    dims: tuple[int, ...]
    share: float
    recall: float
    ms: float


class Levels:
    """Vectors, and the norms of their prefixes, which a search divides scores by.

    Args:
        vectors: Unit norm.
    """

    def __init__(self, vectors: Float32[np.ndarray, "rows dim"]) -> None:
        self.vectors = vectors
        self.norms: dict[int, Float32[np.ndarray, " rows"]] = {vectors.shape[1]: np.ones(len(vectors), np.float32)}

    def index(self, dims: int) -> faiss.IndexFlatIP:
        """Return an index over normalised prefixes."""
        index = faiss.IndexFlatIP(dims)
        for start in range(0, len(self.vectors), 2**16):
            some = slice(start, start + 2**16)
            index.add(np.ascontiguousarray(self.vectors[some, :dims] / self._norms(dims)[some, None]))
        return index

    def _norms(self, dims: int) -> Float32[np.ndarray, " rows"]:
        if dims not in self.norms:
            self.norms[dims] = np.sqrt(np.einsum("rd,rd->r", self.vectors[:, :dims], self.vectors[:, :dims]))
        return self.norms[dims]

    def best(
        self, query: Float32[np.ndarray, " dim"], rows: Int64[np.ndarray, " rows"], dims: int, count: int
    ) -> Int64[np.ndarray, " count"]:
        """Return the best of some rows by prefixes of `dims` dimensions."""
        scores = (self.vectors[rows, :dims] @ query[:dims]) / self._norms(dims)[rows]
        return rows if count >= len(rows) else rows[np.argpartition(-scores, count)[:count]]


def search(
    levels: Levels, index: faiss.IndexFlatIP, query: Float32[np.ndarray, " dim"], dims: Sequence[int], share: float
) -> Int64[np.ndarray, " k"]:
    """Return the k best rows by a funnel over prefixes of `dims`, whose first one the index has."""
    whole = levels.vectors.shape[1]
    counts = [min(int(share * K * (whole / each) ** 2), len(levels.vectors)) for each in dims]
    _, (rows,) = index.search(query[None, : dims[0]], counts[0])  # the norm of a query changes no order
    rows = np.sort(rows)  # rows that lie together are read together
    for each, count in zip(dims[1:], counts[1:], strict=True):
        rows = np.sort(levels.best(query, rows, each, count))
    return levels.best(query, rows, whole, K)


def measured(levels: Levels, queries: Float32[np.ndarray, "queries dim"]) -> list[Result]:
    """Measure all searches; those that begin with the same prefix take turns, in random order."""
    truth = list[set[int]]()
    for start in range(0, len(queries), 16):
        scores = queries[start : start + 16] @ levels.vectors.T
        truth += [set(np.argpartition(-line, K)[:K].tolist()) for line in scores]
    found: list[Result] = []
    ways = [(each,) for each in PREFIXES] + list(FUNNELS)
    random = np.random.default_rng(0)  # of a fixed order each search would come after the same other one
    for first in sorted({way[0] for way in ways}):
        index = levels.index(first)
        some = [(way, share) for way in ways if way[0] == first for share in SHARES]
        times: dict[tuple[tuple[int, ...], float], list[float]] = {each: [] for each in some}
        hits = dict.fromkeys(some, 0)
        for number, query in enumerate(queries):
            for each in (some[place] for place in random.permutation(len(some))):
                started = time.perf_counter()
                rows = search(levels, index, query, *each)
                times[each].append(time.perf_counter() - started)
                hits[each] += len(truth[number] & set(rows.tolist()))
        for way, share in some:
            recall = hits[way, share] / (K * len(queries))
            found.append(Result(way, share, recall, 1000 * median(times[way, share][2:])))
            print(f"{name_of(way):>16} × {share:<4g} recall {recall:.3f} {found[-1].ms:8.1f} ms", flush=True)
    return found


def name_of(dims: Sequence[int]) -> str:
    """Return the name of a search in tables."""
    return f"prefix-{dims[0]}" if len(dims) == 1 else "funnel-" + "-".join(map(str, dims))


def compared(found: Sequence[Result]) -> list[tuple[Result, Result | None]]:
    """Return each funnel that no other one beats, with the best search by one prefix that takes no longer."""
    funnels = [each for each in found if len(each.dims) > 1]
    front = [each for each in funnels if not any(one.recall > each.recall and one.ms <= each.ms for one in funnels)]
    pairs: list[tuple[Result, Result | None]] = []
    for each in sorted(front, key=lambda one: one.ms):
        rivals = [one for one in found if len(one.dims) == 1 and one.ms <= each.ms]
        pairs.append((each, max(rivals, key=lambda one: one.recall, default=None)))
    return pairs


def main() -> None:
    """Print all figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors")
    parser.add_argument("--model", default="cde-mini-1")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--output", type=Path, help="CSV with a row for each search")
    options = parser.parse_args()
    os.nice(19)
    given = Texts(options.folders, options.cache, options.model)
    drawn = np.random.default_rng(0).permutation(len(given.queries))[: options.queries]
    found = measured(Levels(given.more(options.records)), given.queries[drawn])
    for funnel, one in compared(found):
        rival = "none" if one is None else f"{name_of(one.dims)} × {one.share:g}: {one.recall:.3f} in {one.ms:.1f} ms"
        print(f"{name_of(funnel.dims)} × {funnel.share:g}: {funnel.recall:.3f} in {funnel.ms:.1f} ms; {rival}")
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("records", "search", "share", "recall", "ms"))
            writer.writerows(
                (options.records, name_of(each.dims), each.share, f"{each.recall:.4f}", f"{each.ms:.2f}")
                for each in found
            )


if __name__ == "__main__":
    main()

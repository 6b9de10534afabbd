"""Clusters of about 512 of 100 000 pairs of one source: the preset for laptops, and k-means of others on rows [d; q].

The vectors are a prepared folder's, pairs drawn again and again, each time with a little noise. How good clusters are
is seen in batches of 512: the mean score of a query with the other documents. Each is in a process of its own.
Run with: python lab/benchmarks/clustering.py FOLDER [--pairs 100000] [--systems laptop faiss sklearn] [--json]
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import require
from cde_rag_training.clustering.clusters import ALL_POINTS, LAPTOP, PAPER, clusters_of_source, reduced, unit
from cde_rag_training.clustering.packing import Packing, PackingConfig, difficulty
from cde_rag_training.data.prepared import Prepared

Vectors = Float32[np.ndarray, "pairs dim"]
NOISE = 0.2  # length of what is added to a vector of norm 1


def drawn(folder: Path, count: int) -> tuple[Vectors, Vectors]:
    """Query and document vectors of so many pairs."""
    prepared, random = Prepared.load(folder), np.random.default_rng(0)
    pairs = random.integers(len(prepared), size=count)
    noise = [NOISE * unit(random.normal(size=(count, prepared.query_vectors.shape[1])).astype("f4")) for _ in range(2)]
    return unit(prepared.query_vectors_of(pairs) + noise[0]), unit(prepared.document_vectors_of(pairs) + noise[1])


def rows(queries: Vectors, documents: Vectors) -> Vectors:
    """What the others cluster: one row [d; q] of a pair, in as few dimensions as the preset for laptops."""
    assert LAPTOP.dims is not None
    return unit(np.concatenate(reduced(queries, documents, LAPTOP.dims), axis=1))


def faiss(queries: Vectors, documents: Vectors) -> Int64[np.ndarray, " pairs"]:
    """Spherical k-means as long as the preset's, without the rows [q; d]."""
    vectors, count = rows(queries, documents), -(-len(queries) // LAPTOP.size)
    library: Any = require("faiss", "faiss")
    kmeans = library.Kmeans(
        vectors.shape[1], count, niter=LAPTOP.steps, spherical=True, max_points_per_centroid=ALL_POINTS
    )
    kmeans.train(vectors)
    return kmeans.index.search(vectors, 1)[1][:, 0]


def sklearn(queries: Vectors, documents: Vectors) -> Int64[np.ndarray, " pairs"]:
    """MiniBatchKMeans with its defaults."""
    library: Any = require("sklearn.cluster", "train")
    kmeans = library.MiniBatchKMeans(-(-len(queries) // LAPTOP.size), random_state=0)
    return kmeans.fit_predict(rows(queries, documents)).astype(np.int64)


SYSTEMS: dict[str, Callable[[Vectors, Vectors], Int64[np.ndarray, " pairs"]]] = {
    "laptop": lambda queries, documents: clusters_of_source(queries, documents, LAPTOP),
    "paper": lambda queries, documents: clusters_of_source(queries, documents, PAPER),
    "faiss": faiss,
    "sklearn": sklearn,
    "random": lambda queries, _: np.random.default_rng(0).integers(-(-len(queries) // LAPTOP.size), size=len(queries)),
}


def measure(system: str, folder: Path, count: int) -> dict[str, str | float | int]:
    """Cluster once in this process."""
    queries, documents = drawn(folder, count)
    started, busy = time.perf_counter(), time.process_time()
    clusters = SYSTEMS[system](queries, documents)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    packing = Packing(clusters, ["one"] * count, documents, PackingConfig(order="random"))
    return {
        "system": system,
        "seconds": seconds,
        "cpu_seconds": busy,
        "clusters": len(np.unique(clusters)),
        "largest": int(np.bincount(clusters).max()),
        "difficulty": float(difficulty(packing.epoch(0), queries, documents).mean()),
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="prepared pairs")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["laptop", "faiss", "sklearn", "random"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    for system in options.systems:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(measure, (system, options.folder, options.pairs)))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{options.pairs} pairs, clusters of about {LAPTOP.size}")
    for one in results:
        ratio = one["cpu_seconds"] / results[0]["cpu_seconds"]
        print(
            f"  {one['system']:8} {one['seconds']:6.1f} s, {one['cpu_seconds']:6.1f} of all cores ({ratio:.2f} × "
            f"{results[0]['system']}); {one['clusters']} clusters, the largest of {one['largest']}; "
            f"difficulty {one['difficulty']:.3f}"
        )


if __name__ == "__main__":
    main()

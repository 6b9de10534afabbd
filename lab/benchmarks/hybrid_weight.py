"""The weight of hybrid search that judged queries choose, and what it gains on others, by the number of queries.

Run with: python -m lab.benchmarks.hybrid_weight SETS.toml --data FOLDER --vectors FOLDER [--output FILE.csv]. The
folder of vectors is that of lab.benchmarks.fusion.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.hybrid_weight import GRID, choose_weight, one_standard_error
from cde_rag.evaluation.metrics import ndcg
from cde_rag.search.fusion import CANDIDATES, WEIGHTS, Scored, fuse
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe
from lab.benchmarks.fusion import vectors

SIZES = (20, 50, 100)  # judged queries
DRAWS = 200
DEFAULT = GRID.index(WEIGHTS["convex"])


def sides(data: RetrievalSet, folder: Path | None) -> tuple[list[Scored], list[Scored]]:
    """Return the best hits of each query by vectors and by words; a document that is the query is left out."""
    queries, documents = vectors(data, folder)
    ids = data.corpus.ids
    found: list[Scored] = []
    for query, name in zip(queries, data.query_ids, strict=True):
        scores = documents @ query
        best = np.argsort(-scores, kind="stable")[: CANDIDATES + 1]
        found.append([(ids[place], float(scores[place])) for place in best if ids[place] != name][:CANDIDATES])
    words = word_hits(data.corpus.texts, data.queries)
    named = [
        [(ids[int(place)], score) for place, score in hits if ids[int(place)] != name]
        for hits, name in zip(words, data.query_ids, strict=True)
    ]
    return found, named


def by_size(scores: Float64[np.ndarray, "weights queries"], size: int) -> float | None:
    """Return the mean gain over the default where so many queries choose and the others are scored."""
    count = scores.shape[1]
    if count < 2 * size:
        return None
    rng, gains = np.random.default_rng(size), list[float]()
    for _ in range(DRAWS):
        order = rng.permutation(count)
        others = scores[:, order[size:]]
        gains.append(float((others[one_standard_error(scores[:, order[:size]])] - others[DEFAULT]).mean()))
    return float(np.mean(gains))


def main() -> None:
    """Print and write one row for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[list[object]] = []
    for data in read_sets(read_recipe(options.sets, SetsConfig), options.data):
        by_vectors, by_words = sides(data, options.vectors)
        choice = choose_weight(by_vectors, by_words, data.judgments)
        triples = list(zip(by_vectors, by_words, data.judgments, strict=True))
        scores = np.array(
            [[ndcg([id_ for id_, _ in fuse(v, w, weight=weight)[:10]], judged, 10) for v, w, judged in triples]
             for weight in GRID]
        )  # fmt: skip
        gains = [by_size(scores, size) for size in SIZES]
        low, high = choice.gain.queries
        rows.append(
            [
                data.corpus.name,
                choice.queries,
                *(f"{100 * choice.figures[weight]:.1f}" for weight in (1.0, 0.0)),
                f"{100 * choice.default:.1f}",
                choice.weight,
                f"{100 * choice.held_out:.1f}",
                f"{100 * choice.gain.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})",
                *("" if gain is None else f"{100 * gain:+.1f}" for gain in gains),
            ]
        )
        print(*rows[-1], sep="  ", flush=True)
    if options.output is not None:
        heads = ["set", "queries", "vectors", "words", "hybrid", "weight", "hybrid with it, held out", "gain"]
        with options.output.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([[*heads, *(f"of {size}" for size in SIZES)], *rows])


if __name__ == "__main__":
    main()

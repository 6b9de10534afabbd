"""NDCG@10 of a hybrid search, by several fusions and weights, beside vectors and words alone.

Vectors are cde-mini-1's under each set's own context, with siblings where documents have parents; words are those of a
collection. Run with: python -m lab.benchmarks.fusion SETS.toml --data FOLDER [--vectors FOLDER] [--output FILE.csv]. A
folder of vectors keeps them from run to run.
"""

import argparse
import csv
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag import ContextualEmbedder
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import Ranking, rank_hybrid
from cde_rag.search.fusion import WEIGHTS
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe

MODEL = "cde-mini-1"
K = 10
GRID = (0.4, 0.5, 0.6, WEIGHTS["convex"], 0.7, 0.8)
RANKS, CONVEX = "reciprocal ranks", f"convex {WEIGHTS['convex']:g}"
HEAD = (
    "set", "documents", "queries", "vectors", "words", RANKS, *(f"convex {weight:g}" for weight in GRID),
    f"less {RANKS}", "95 %", "less the better side", "its 95 %",
)  # fmt: skip
Scores = Float64[np.ndarray, " queries"]


@dataclass(frozen=True, eq=False)
class FusionScores:
    """NDCG@10 of each query of a set, by each way to rank."""

    data: RetrievalSet
    scores: dict[str, Scores]

    @property
    def better(self) -> Scores:
        """Return the figures of the side alone with the higher mean."""
        return max(self.scores["vectors"], self.scores["words"], key=np.mean)


def vectors(
    data: RetrievalSet, folder: Path | None
) -> tuple[Float32[np.ndarray, "queries dim"], Float32[np.ndarray, "documents dim"]]:
    """Return the vectors of queries and documents, read from the folder if they are there."""
    kept = folder and folder / f"{data.corpus.name}.npz"
    if kept and kept.exists():
        with np.load(kept) as arrays:
            return arrays["qs"], arrays["docs"]
    embedder = ContextualEmbedder.from_corpus(data.corpus.texts, model=MODEL, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        documents = embedder.embed_documents(data.corpus.texts, parents=data.corpus.parents)
    queries = embedder.embed_queries(data.queries)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, qs=queries, docs=documents)
    return queries, documents


def measure(data: RetrievalSet, folder: Path | None) -> FusionScores:
    """One set, by all ways."""
    queries, documents = vectors(data, folder)
    words = word_hits(data.corpus.texts, data.queries)

    def ranked(weight: float | None, fusion: str = "convex") -> Scores:
        ids = data.corpus.ids, data.query_ids
        rankings: list[Ranking] = rank_hybrid(queries, documents, words, *ids, fusion=fusion, weight=weight)
        return np.array([ndcg(one, judged, K) for one, judged in zip(rankings, data.judgments, strict=True)])

    sides = {"vectors": ranked(1.0), "words": ranked(0.0), RANKS: ranked(None, "reciprocal_ranks")}
    return FusionScores(data, sides | {f"convex {weight:g}": ranked(weight) for weight in GRID})


def table(found: Sequence[FusionScores]) -> Iterator[list[str]]:
    """A row for each set, and one for their mean."""
    named = [("mean", list(found)), *((one.data.corpus.name, [one]) for one in found)]
    for name, some in named:
        counts = [sum(len(one.data.corpus.ids) for one in some), sum(len(one.data.queries) for one in some)]
        means = [np.mean([one.scores[way].mean() for one in some]) for way in found[0].scores]
        row = [name, *map(str, counts), *(f"{100 * mean:.1f}" for mean in means)]
        yield row + less(some, lambda one: one.scores[RANKS]) + less(some, lambda one: one.better)


def less(found: Sequence[FusionScores], other: Callable[[FusionScores], Scores]) -> list[str]:
    """Return the gain of the default and its interval over queries drawn again."""
    difference = compare([PairedQueries(one.scores[CONVEX] - other(one), one.data.blocks) for one in found])
    low, high = difference.queries
    return [f"{100 * difference.mean:+.1f}", f"{100 * low:+.1f} … {100 * high:+.1f}"]


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table as CSV, and print its rows."""
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(head)
        for row in rows:
            writer.writerow(row)
            print(*row, sep="  ")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--output", type=Path, default=Path("lab/tables/fusion.csv"))
    options = parser.parse_args()
    found = [measure(data, options.vectors) for data in read_sets(read_recipe(options.sets, SetsConfig), options.data)]
    write_table(options.output, HEAD, table(found))


if __name__ == "__main__":
    main()

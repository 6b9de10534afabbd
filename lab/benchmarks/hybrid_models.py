"""NDCG@10 of vectors and of hybrid search with several models, each less a plain embedder fused alike.

Fusion and weight are those of `by="hybrid"`; words are a collection's. A contextual model reads each set in its own
context and in the null context. Vectors are kept in a folder from run to run. Run with: python -m
lab.benchmarks.hybrid_models SETS.toml --data FOLDER --vectors FOLDER --plain NAME=FOLDER … --contextual NAME …
[--output FILE.csv]
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cde_rag import CDEModel, Context, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_hybrid
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe
from lab.benchmarks.any_embedder import TOKENS, Scores, Vectors, embedded, kept
from lab.benchmarks.fusion import write_table

K = 10
WORDS, VECTORS, HYBRID = "words", "vectors", "hybrid"
HEAD = ("set", "system", VECTORS, HYBRID, "hybrid less its better side", "hybrid less that of the first model", "sets")


@dataclass(frozen=True, eq=False)
class Measured:
    """NDCG@10 of each query of a set, by words alone and, for each system, by vectors and by both."""

    data: RetrievalSet
    words: Scores
    systems: Mapping[str, Mapping[str, Scores]]


def system_vectors(
    plain: Sequence[str], contextual: Sequence[str], data: RetrievalSet, folder: Path, dtype: str | None
) -> Iterator[tuple[str, Vectors]]:
    """Yield each system with its vectors; those in the folder are read."""

    def of(name: str, embedder: Callable[[], ContextualEmbedder]) -> tuple[str, Vectors]:
        return name, kept(folder / name / f"{data.corpus.name}.npz", lambda: embedded(embedder(), data))

    for name, place in (named.split("=", 1) for named in plain):
        yield of(
            name, lambda place=place: PlainEmbedder(place, max_length=TOKENS, options=EmbedderOptions(dtype=dtype))
        )
    for name in contextual:
        model = CDEModel.from_pretrained(name)
        yield of(name, lambda model=model: ContextualEmbedder.from_corpus(data.corpus.texts, model=model, seed=0))
        yield of(f"{name}, null context", lambda model=model: ContextualEmbedder(model, Context.null(model)))


def measure(data: RetrievalSet, systems: Iterator[tuple[str, Vectors]]) -> Measured:
    """Score a set by each system."""
    words = word_hits(data.corpus.texts, data.queries)

    def scored(vectors: Vectors, weight: float | None) -> Scores:
        rankings = rank_hybrid(*vectors, words, data.corpus.ids, data.query_ids, weight=weight)
        return np.array([ndcg(one, judged, K) for one, judged in zip(rankings, data.judgments, strict=True)])

    vectors = dict(systems)
    return Measured(
        data,
        scored(next(iter(vectors.values())), 0.0),
        {name: {VECTORS: scored(each, 1.0), HYBRID: scored(each, None)} for name, each in vectors.items()},
    )


def table(measured: Sequence[Measured]) -> Iterator[list[str]]:
    """Yield a row for each system of each set, and of the sets' mean."""
    systems = list(measured[0].systems)
    for name, some in [("mean", list(measured)), *((one.data.corpus.name, [one]) for one in measured)]:
        yield [name, WORDS, "", mean([one.words for one in some]), "", "", ""]
        for system in systems:
            found = [one.systems[system] for one in some]
            better = [max(each[VECTORS], one.words, key=np.mean) for one, each in zip(some, found, strict=True)]
            yield [
                name,
                system,
                mean([each[VECTORS] for each in found]),
                mean([each[HYBRID] for each in found]),
                less(some, system, better)[0],
                *(
                    less(some, system, [one.systems[systems[0]][HYBRID] for one in some])
                    if system != systems[0]
                    else ("", "")
                ),
            ]


def mean(scores: Sequence[Scores]) -> str:
    """Return the mean over sets of each set's mean, times 100."""
    return f"{100 * np.mean([each.mean() for each in scores]):.1f}"


def less(measured: Sequence[Measured], system: str, others: Sequence[Scores]) -> tuple[str, str]:
    """Return the gain of a system's hybrid search with its interval over queries, and the one over sets, too."""
    gain = compare(
        [
            PairedQueries(one.systems[system][HYBRID] - other, one.data.blocks)
            for one, other in zip(measured, others, strict=True)
        ]
    )
    low, high = gain.queries
    sets = f"{100 * gain.sets[0]:+.1f} … {100 * gain.sets[1]:+.1f}" if len(measured) > 1 and gain.sets else ""
    return f"{100 * gain.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})", sets


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--plain", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--contextual", action="append", default=[], metavar="NAME")
    parser.add_argument("--dtype", help="of plain embedders, such as bfloat16; by default float32")
    parser.add_argument("--output", type=Path, default=Path("lab/tables/hybrid-models.csv"))
    options = parser.parse_args()
    measured = [
        measure(data, system_vectors(options.plain, options.contextual, data, options.vectors, options.dtype))
        for data in read_sets(read_recipe(options.sets, SetsConfig), options.data)
    ]
    write_table(options.output, HEAD, table(measured))


if __name__ == "__main__":
    main()

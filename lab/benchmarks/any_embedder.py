"""NDCG@10 of embedders without context, with siblings, with context of the corpus, and with both.

A plain embedder gets them by arithmetic. A contextual model reads them: without context it is in the null context.
Vectors are kept in a folder from run to run. Run with: python -m lab.benchmarks.any_embedder SETS.toml --data FOLDER
--vectors FOLDER [--model NAME=FOLDER …] [--contextual NAME …] [--code PAIRS.jsonl.gz] [--output FILE.csv]
"""

import argparse
import gzip
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag import CDEModel, Context, ContextualEmbedder, PlainEmbedder
from cde_rag.context.sampling import sample_random
from cde_rag.context.siblings import sibling_positions
from cde_rag.embedders.mixing import CorpusMap, mixed, unit
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_vectors
from cde_rag_training.data.cuts import part
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe
from lab.benchmarks.fusion import write_table

SYSTEMS = ("none", "siblings", "corpus", "both", "centred", "siblings 0.15", "siblings 0.6")
K, TOKENS, SAMPLE = 10, 256, 512
Vectors = tuple[Float32[np.ndarray, "queries dim"], Float32[np.ndarray, "documents dim"]]
Scores = Float64[np.ndarray, " queries"]


@dataclass(frozen=True, eq=False)
class ModelScores:
    """NDCG@10 of each query of a set, by each system of one model."""

    model: str
    data: RetrievalSet
    scores: Mapping[str, Scores]


def code(pairs: Path, *, documents: int, queries: int) -> RetrievalSet:
    """Read functions that their docstrings ask for, each with the class or module that it is in as its parent."""
    with gzip.open(pairs, "rt", encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    relevant: dict[str, dict[str, int]] = {}
    for number, pair in enumerate(read):
        relevant.setdefault(pair["query"], {})[f"d{number}"] = 1
    corpus = Corpus(
        name=pairs.parent.name,
        ids=tuple(f"d{number}" for number in range(len(read))),
        texts=tuple(pair["document"] for pair in read),
        parents=tuple(pair["title"].rpartition(".")[0] or None for pair in read),
    )
    names = tuple(f"q{number}" for number in range(len(relevant)))
    return part(
        RetrievalSet(corpus, names, tuple(relevant), tuple(relevant.values())), documents=documents, queries=queries
    )


def kept(place: Path, make: Callable[[], Vectors]) -> Vectors:
    """Return the vectors in a file, made first if they are not there."""
    if not place.exists():
        queries, documents = make()
        place.parent.mkdir(parents=True, exist_ok=True)
        np.savez(place, queries=queries, documents=documents)
    with np.load(place) as arrays:
        return arrays["queries"], arrays["documents"]


def plain_systems(data: RetrievalSet, queries: np.ndarray, documents: np.ndarray) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of each system, made of the plain ones."""
    texts, parents = data.corpus.texts, data.corpus.parents
    places = {text: place for place, text in enumerate(texts)}
    sample = documents[[places[text] for text in sample_random(texts, SAMPLE, seed=0).documents]]
    corpus = CorpusMap.fit(sample)
    mapped = corpus.apply(queries), corpus.apply(documents)
    mean = sample.mean(axis=0)
    yield "none", (queries, documents)
    yield "corpus", mapped
    yield "centred", (unit(queries - mean), unit(documents - mean))
    if parents is not None:
        siblings = sibling_positions(parents, texts)
        yield "siblings", (queries, mixed(documents, siblings, documents, 0.3))
        yield "both", (mapped[0], mixed(mapped[1], siblings, mapped[1], 0.3))
        for weight in (0.15, 0.6):
            yield f"siblings {weight:g}", (queries, mixed(documents, siblings, documents, weight))


def contextual_systems(model: CDEModel, data: RetrievalSet, folder: Path) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of each system, by the model's own ways to read context."""
    texts, parents = data.corpus.texts, data.corpus.parents
    null = ContextualEmbedder(model, Context.null(model))
    own = ContextualEmbedder.from_corpus(texts, model=model, context_size=SAMPLE, seed=0)
    for name, embedder, given in (
        ("none", null, None),
        ("siblings", null, parents),
        ("corpus", own, None),
        ("both", own, parents),
    ):
        if given is not None or name in ("none", "corpus"):
            place = folder / f"{data.corpus.name}-{name}.npz"
            yield name, kept(place, lambda e=embedder, p=given: embedded(e, data, parents=p))


def embedded(
    embedder: PlainEmbedder | ContextualEmbedder, data: RetrievalSet, *, parents: Sequence[str | None] | None = None
) -> Vectors:
    """Embed queries and documents of a set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        return embedder.embed_queries(data.queries), embedder.embed_documents(data.corpus.texts, parents=parents)


def measure(model: str, data: RetrievalSet, systems: Iterator[tuple[str, Vectors]]) -> ModelScores:
    """Score the systems of one model on one set."""

    def scored(vectors: Vectors) -> Scores:
        rankings = rank_vectors(*vectors, data.corpus.ids, data.query_ids)
        return np.array([ndcg(one, judged, K) for one, judged in zip(rankings, data.judgments, strict=True)])

    return ModelScores(model, data, {name: scored(vectors) for name, vectors in systems})


def table(found: Sequence[ModelScores]) -> Iterator[list[str]]:
    """Yield a row for each model and set, for each model's means, and for all models together."""
    models = list(dict.fromkeys(one.model for one in found))
    sets = {one.data.corpus.name: "siblings" in one.scores for one in found}
    for one in found:
        yield row(one.model, one.data.corpus.name, [[one]])
    kinds = {"with parents": (True,), "lone texts": (False,), "all": (True, False)}
    parts = {kind: [name for name, parents in sets.items() if parents in those] for kind, those in kinds.items()}
    for name, some in [(model, [model]) for model in models] + [("all models", models)]:
        by_set = {of: [one for one in found if one.data.corpus.name == of and one.model in some] for of in sets}
        for kind, those in parts.items():
            if those:
                yield row(name, kind, [by_set[of] for of in those])
    for of in sets:
        yield row("all models", of, [[one for one in found if one.data.corpus.name == of]])


def row(model: str, name: str, sets: Sequence[Sequence[ModelScores]]) -> list[str]:
    """Return the means of some sets, each averaged over models first, and the differences to "none"."""
    cells = [model, name]
    shown = [system for system in SYSTEMS if all(system in one.scores for some in sets for one in some)]
    for system in SYSTEMS:
        means = [np.mean([one.scores[system].mean() for one in some]) for some in sets] if system in shown else []
        cells.append(f"{100 * np.mean(means):.1f}" if means else "")
    for system in SYSTEMS[1:]:
        if system in shown:
            pairs = [
                PairedQueries(
                    np.mean([one.scores[system] - one.scores["none"] for one in some], axis=0), some[0].data.blocks
                )
                for some in sets
            ]
            gain = compare(pairs)
            cells.append(f"{100 * gain.mean:+.1f} ({100 * gain.queries[0]:+.1f} … {100 * gain.queries[1]:+.1f})")
        else:
            cells.append("")
    return cells


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--contextual", action="append", default=[], metavar="NAME")
    parser.add_argument("--code", type=Path, action="append", default=[], metavar="PAIRS.jsonl.gz")
    parser.add_argument("--output", type=Path, default=Path("lab/tables/any-embedder.csv"))
    options = parser.parse_args()
    config = read_recipe(options.sets, SetsConfig)
    sets = read_sets(config, options.data)
    sets += [code(pairs, documents=config.documents, queries=config.queries) for pairs in options.code]
    found: list[ModelScores] = []
    for name, folder in (named.split("=", 1) for named in options.model):
        embedder = PlainEmbedder(folder)
        if embedder.identity.max_length > TOKENS:
            embedder = PlainEmbedder(folder, max_length=TOKENS)
        for data in sets:
            vectors = kept(
                options.vectors / name / f"{data.corpus.name}.npz", lambda e=embedder, d=data: embedded(e, d)
            )
            found.append(measure(name, data, plain_systems(data, *vectors)))
    for name in options.contextual:
        model = CDEModel.from_pretrained(name)
        found += [measure(name, data, contextual_systems(model, data, options.vectors / name)) for data in sets]
    head = ["model", "sets", *SYSTEMS, *(f"{system} less none" for system in SYSTEMS[1:])]
    write_table(options.output, head, table(found))


if __name__ == "__main__":
    main()

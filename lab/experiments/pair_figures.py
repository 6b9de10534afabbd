"""Figures of cde-base-1 next to its halves, MiniLM and projections of it to 384 dimensions, on retrieval sets.

    python -m lab.experiments.pair_figures lab/plans/pair-test.toml --data ../shared/data --output cde-pair.csv

The second half, which reads no context, embeds a text once. "context" is a context of up to 512 documents of the set,
"null" the null context; siblings are not used. Intervals are those of `lab.experiments.models`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.model import CDEModel
from cde_rag.model.pair.pair_network import PairNetwork
from cde_rag_training.clustering.surrogate import cached, minilm
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe
from lab.distil.teacher_shards import TeacherShards
from lab.experiments.laboratory import CONTEXT_SIZE, compared, score
from lab.experiments.projection_agreement import projections
from lab.experiments.result_tables import write_table

E5, MINILM = "multilingual-e5-small", "minilm"

Vectors = Float32[np.ndarray, "texts dim"]
Figures = list[Float64[np.ndarray, " queries"]]  # set by set


class PairRow(NamedTuple):
    """Result of one system on one set, or on the mean of all sets, against a reference.

    Attributes:
        corpus: The set, or "mean".
        documents: Number of documents; None of the mean.
        queries: Number of queries; None of the mean.
        model: Name of the system.
        given: "context", "null", or "" of a system that reads none.
        ndcg: NDCG@10, mean over queries; of all sets their mean.
        against: Reference: "minilm", or the first half under its context.
        gain: NDCG@10 minus that of the reference.
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
        sets_low: Lower end where sets are drawn again too; of the mean only.
        sets_high: Upper end.
    """

    corpus: str
    documents: int | None
    queries: int | None
    model: str
    given: str
    ndcg: float
    against: str
    gain: float
    low: float
    high: float
    sets_low: float | None
    sets_high: float | None


def pair_rows(
    sets: Sequence[RetrievalSet], model: CDEModel, cache: Path, *, axes: dict[str, Float32[np.ndarray, "dim few"]]
) -> list[PairRow]:
    """Evaluate a pair, its halves, MiniLM and projections of the pair under the null context.

    Args:
        sets: Retrieval sets.
        model: A pair.
        cache: Folder for MiniLM's vectors.
        axes: Projections by name.
    """
    network = model.network
    assert isinstance(network, PairNetwork)
    first_dim, share = network.first.config.dim, network.config.second_share
    name_of_first = network.config.first
    first = CDEModel.from_pretrained(network.config.first, device="cpu", runtime="torch")
    back = network.rotation.cpu().numpy().T
    plain = cached(minilm(max_length=256), "minilm-256", cache)
    found: dict[tuple[str, str], Figures] = {}
    for data in tqdm(sets, unit="set"):
        texts = data.corpus.texts
        found.setdefault((MINILM, ""), []).append(score(data, plain(data.queries), plain(texts)))
        null = ContextualEmbedder(model, Context.null(model))
        pooled = [
            embed(each) @ back for embed, each in ((null.embed_queries, data.queries), (null.embed_documents, texts))
        ]
        second = [_unit(each[:, first_dim:]) for each in pooled]
        own = ContextualEmbedder.from_corpus(texts, model=first, context_size=CONTEXT_SIZE, seed=0)
        firsts = {
            "context": [own.embed_queries(data.queries), own.embed_documents(texts)],
            "null": [_unit(each[:, :first_dim]) for each in pooled],
        }
        found.setdefault((E5, ""), []).append(score(data, *second))
        for given, each in firsts.items():
            both = [
                np.concatenate([(1 - share) ** 0.5 * one, share**0.5 * other], axis=1) @ back.T
                for one, other in zip(each, second, strict=True)
            ]
            found.setdefault((name_of_first, given), []).append(score(data, *each))
            found.setdefault((model.config.name, given), []).append(score(data, *both))
            if given == "null":
                for name, directions in axes.items():
                    few = [_unit(one @ directions) for one in both]
                    found.setdefault((f"{model.config.name}, {name}", given), []).append(score(data, *few))
    references = {MINILM: found[MINILM, ""], name_of_first: found[name_of_first, "context"]}
    return [
        row
        for against, reference in references.items()
        for (name, given), figures in found.items()
        for row in _rows(sets, name, given, figures, against, reference)
    ]


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def _rows(
    sets: Sequence[RetrievalSet], name: str, given: str, figures: Figures, against: str, reference: Figures
) -> Iterator[PairRow]:
    sizes = {data.corpus.name: (len(data.corpus.ids), len(data.queries)) for data in sets}
    for corpus, ndcg, gain in compared(sets, figures, reference):
        sets_low, sets_high = gain.sets if gain.sets and corpus not in sizes else (None, None)
        documents, queries = sizes.get(corpus, (None, None))
        low, high = gain.queries
        yield PairRow(
            corpus, documents, queries, name, given, ndcg, against, gain.mean, low, high, sets_low, sets_high
        )  # fmt: skip


def main() -> None:
    """Read the command line, write the table and print the means."""
    parser = argparse.ArgumentParser(description="Figures of cde-base-1 beside its halves and MiniLM.")
    parser.add_argument("sets", type=Path, help="TOML with [[sets]]")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the sets")
    parser.add_argument("--model", default="cde-base-1", help="a pair")
    parser.add_argument("--texts", type=Path, help="texts of a distillation: adds projections to 384 dimensions")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder for MiniLM's vectors")
    parser.add_argument("--output", type=Path, required=True, help="a CSV file")
    asked = parser.parse_args()
    sets = read_sets(read_recipe(asked.sets, SetsConfig), asked.data)
    axes = {} if asked.texts is None else projections(TeacherShards(asked.texts), 384)
    rows = pair_rows(sets, CDEModel.from_pretrained(asked.model, device="cpu", runtime="torch"), asked.cache, axes=axes)
    write_table(asked.output, rows)
    for row in rows:
        if row.against == MINILM:
            sys.stdout.write(f"{row.corpus:<24} {row.model:<24} {row.given:<8} {100 * row.ndcg:5.1f}\n")


if __name__ == "__main__":
    main()

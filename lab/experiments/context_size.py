"""Effect and cost of the context's number of documents and of their length (paper figure 16, and ours)."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag.context.sampling import sample_random
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.torch_runner import pad
from lab.experiments.laboratory import CONTEXT_SIZE, Laboratory, Space
from lab.experiments.result_tables import new_figure, write_table

SIZES = (0, 8, 32, 128, 512, 2048)  # documents
TOKENS = (8, 16, 32, 64, 128)  # of a document
TIMED, REPEATS = 20, 5  # queries that are timed, and how often


class SizeRow(NamedTuple):
    """One set and size.

    Attributes:
        corpus: The set.
        documents: Documents of the context; fewer where the corpus has fewer.
        tokens: That are read of each, at most.
        ndcg: NDCG@10, mean over queries.
        fit_ms: Milliseconds to read and prepare the context, once.
        query_ms: Milliseconds to embed a query by itself, the median.
    """

    corpus: str
    documents: int
    tokens: int
    ndcg: float
    fit_ms: float
    query_ms: float


def context_size(lab: Laboratory) -> list[SizeRow]:
    """Evaluate contexts of 0 (none) to 2 048 documents on every set."""
    full = lab.model.config.first_stage_max_length
    return [
        _row(data, full, partial(lab.space, data.corpus.texts, size=size) if size else lab.null)
        for data in tqdm(lab.sets, desc="context-size", unit="set")
        for size in SIZES
    ]


def context_tokens(lab: Laboratory) -> list[SizeRow]:
    """Evaluate contexts of 512 documents, truncated to 8 … 128 tokens, on every set."""
    return [
        _row(data, tokens, partial(_space_of_tokens, lab, data, tokens))
        for data in tqdm(lab.sets, desc="context-tokens", unit="set")
        for tokens in TOKENS
    ]


def _row(data: RetrievalSet, tokens: int, fit: Callable[[], Space]) -> SizeRow:
    start = time.perf_counter()
    space = fit()
    milliseconds = 1000 * (time.perf_counter() - start)
    found, documents = float(space.score(data).mean()), int(space.context.counts.sum())
    return SizeRow(data.corpus.name, documents, tokens, found, milliseconds, _query_ms(space, data.queries))


def _space_of_tokens(lab: Laboratory, data: RetrievalSet, tokens: int) -> Space:
    documents = sample_random(data.corpus.texts, CONTEXT_SIZE, seed=lab.seed).documents
    return lab.space_of(_read(lab, documents, tokens), name=f"{tokens}-tokens")


def run_size(lab: Laboratory, output: Path) -> list[Path]:
    """Write context-size.csv and context-size.svg."""
    rows = context_size(lab)
    means = [_mean([row.ndcg for row in rows[place :: len(SIZES)]]) for place in range(len(SIZES))]
    cost = [_mean([row.query_ms for row in rows[place :: len(SIZES)]]) for place in range(len(SIZES))]
    places = [max(size, 1) for size in SIZES]
    figure, axes = new_figure()
    axes.plot(places, [100 * mean for mean in means], marker="o")
    axes.set(xscale="log", xlabel="documents of the context", ylabel="NDCG@10 × 100")
    axes.set_xticks(places, [str(size or "none") for size in SIZES])
    axes.minorticks_off()
    other = axes.twinx()
    other.plot(places, cost, color="grey", linestyle=":")
    other.set(ylim=(0, 1.5 * max(cost)), ylabel="milliseconds of a query (dotted)")
    figure.savefig(output / "context-size.svg")
    return [write_table(output / "context-size.csv", rows), output / "context-size.svg"]


def run_tokens(lab: Laboratory, output: Path) -> list[Path]:
    """Write context-tokens.csv and context-tokens.svg."""
    rows = context_tokens(lab)
    means = [_mean([row.ndcg for row in rows[place :: len(TOKENS)]]) for place in range(len(TOKENS))]
    figure, axes = new_figure()
    axes.plot(TOKENS, [100 * mean for mean in means], marker="o")
    axes.set(xscale="log", xlabel="tokens of a context document that are read", ylabel="NDCG@10 × 100")
    figure.savefig(output / "context-tokens.svg")
    return [write_table(output / "context-tokens.csv", rows), output / "context-tokens.svg"]


def _read(lab: Laboratory, documents: Sequence[str], tokens: int) -> Float32[np.ndarray, "documents dim"]:
    network = lab.model.network
    if not isinstance(network, TwoStage):
        raise TypeError("Expected a one-way model: only its first stage reads documents of any length.")
    rows = [each.ids for each in lab.model.tokenizer(documents, tokens)]
    blocks: list[np.ndarray] = []
    for start in range(0, len(rows), CONTEXT_SIZE):
        ids, mask = pad(rows[start : start + CONTEXT_SIZE])
        with torch.inference_mode():
            blocks.append(network.read(ids.to(lab.model.device), mask.to(lab.model.device)).cpu().numpy())
    return np.concatenate(blocks)


def _query_ms(space: Space, queries: Sequence[str]) -> float:
    times: list[float] = []
    for query in list(queries[:TIMED]) * REPEATS:
        start = time.perf_counter()
        space.embedder.embed_queries([query])
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))

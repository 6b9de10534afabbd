"""Corpus statistics for a plain embedder without training: centring, whitening, tokens weighted by rarity."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64
from tqdm import tqdm

from cde_rag.embedders.mixing import unit, whitening
from cde_rag.errors import CorpusError, require
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag_training.clustering.surrogate import minilm_folder
from lab.experiments.laboratory import CONTEXT_SIZE, Laboratory, difference, score
from lab.experiments.result_tables import new_figure, write_table

LENGTH, AT_ONCE = 256, 32  # tokens of a text; texts
RARITY = 0.5  # exponent of a word piece's inverse document frequency


class TrainingFreeRow(NamedTuple):
    """Result of one method on one set.

    Attributes:
        corpus: The set.
        way: "plain", "centred", "whitened", "rarity here" or "rarity elsewhere" (in the other sets).
        ndcg: NDCG@10, mean over queries.
        gain: Less "plain".
        low: Lower end of the gain's 95 % interval (queries drawn again).
        high: Upper end.
    """

    corpus: str
    way: str
    ndcg: float
    gain: float
    low: float
    high: float


class PooledMiniLM:
    """all-MiniLM-L6-v2, whose hidden states are pooled with weights.

    Raises:
        MissingExtraError: sentence-transformers, or the package with the weights, is not installed.
    """

    def __init__(self) -> None:
        transformers: Any = require("sentence_transformers", "train")
        self._model: Any = transformers.SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts into word-piece ids, special tokens included."""
        return self._model.tokenizer(list(texts), truncation=True, max_length=LENGTH)["input_ids"]

    def __call__(
        self, rows: Sequence[Sequence[int]], weigh: Sequence[Callable[[Sequence[int]], Float64[np.ndarray, " tokens"]]]
    ) -> list[Float32[np.ndarray, "texts dim"]]:
        """Embed tokenized texts into unit vectors, once per token weighting."""
        found = [np.zeros((len(rows), self._model.get_embedding_dimension()), np.float32) for _ in weigh]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start in range(0, len(rows), AT_ONCE):
            some = order[start : start + AT_ONCE]
            padded = self._model.tokenizer.pad({"input_ids": [rows[row] for row in some]}, return_tensors="pt")
            with torch.inference_mode():
                states = self._model[0](dict(padded))["token_embeddings"].float().numpy()
            for place, row in enumerate(some):
                for vectors, one in zip(found, weigh, strict=True):
                    vectors[row] = one(rows[row]) @ states[place, : len(rows[row])]
        return [unit(vectors) for vectors in found]


def rarity(documents: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Float64[np.ndarray, " tokens"]]:
    """Return a function that weighs tokens by their rarity in a corpus: the square root of ln((N + 1) / (n + ½)).

    Source: Arora, Liang & Ma 2017 weigh words alike (SIF), by their frequency in general text.
    """
    frequency = Counter(token for row in documents for token in set(row))
    return lambda row: np.array([_weight(frequency, token, len(documents)) for token in row])


def _weight(frequency: Mapping[int, int], token: int, documents: int) -> float:
    return max(math.log((documents + 1) / (frequency.get(token, 0) + 0.5)), 0.05) ** RARITY


def training_free(lab: Laboratory) -> list[TrainingFreeRow]:
    """Evaluate all methods on all sets.

    Rarity is counted over as many documents as a context has.
    """
    if len(lab.sets) < 2:
        raise CorpusError("Expected two sets or more, since rarity is counted over the others, found one. Add a set.")
    model = PooledMiniLM()
    tokens = [model.tokens(data.corpus.texts) for data in lab.sets]
    random = np.random.default_rng(lab.seed)
    samples = [
        [rows[row] for row in random.permutation(len(rows))[:CONTEXT_SIZE]] for rows in tokens
    ]  # as many as a context has
    found: list[TrainingFreeRow] = []
    for place, data in enumerate(tqdm(lab.sets, desc="training-free", unit="set")):
        others = [row for other, sample in enumerate(samples) if other != place for row in sample]
        ways = (lambda row: np.ones(len(row)), rarity(samples[place]), rarity(others))
        documents = model(tokens[place], ways)
        queries = model(model.tokens(data.queries), ways)
        mean, matrix = documents[0].mean(axis=0), whitening(documents[0])
        scores = {
            "plain": score(data, queries[0], documents[0]),
            "centred": score(data, unit(queries[0] - mean), unit(documents[0] - mean)),
            "whitened": score(data, unit(queries[0] @ matrix), unit(documents[0] @ matrix)),
            "rarity here": score(data, queries[1], documents[1]),
            "rarity elsewhere": score(data, queries[2], documents[2]),
        }
        found += [_row(data, way, each, scores["plain"]) for way, each in scores.items()]
    return found


def _row(
    data: RetrievalSet, way: str, scores: Float64[np.ndarray, " queries"], plain: Float64[np.ndarray, " queries"]
) -> TrainingFreeRow:
    gain = difference([data], [scores], [plain])
    return TrainingFreeRow(data.corpus.name, way, float(scores.mean()), gain.mean, *gain.queries)


def run(lab: Laboratory, output: Path) -> list[Path]:
    """Write training-free.csv and training-free.svg."""
    rows = training_free(lab)
    return [write_table(output / "training-free.csv", rows), _plot(rows, output / "training-free.svg")]


def _plot(rows: Sequence[TrainingFreeRow], path: Path) -> Path:
    names = list(dict.fromkeys(row.corpus for row in rows))
    figure, axes = new_figure(height=1.2 + 0.36 * len(names))
    for shift, way in enumerate(way for way in dict.fromkeys(row.way for row in rows) if way != "plain"):
        chosen = [row for row in rows if row.way == way]
        heights = [names.index(row.corpus) + 0.16 * (shift - 1.5) for row in chosen]
        axes.errorbar(
            [100 * row.gain for row in chosen],
            heights,
            xerr=[[100 * (row.gain - row.low) for row in chosen], [100 * (row.high - row.gain) for row in chosen]],
            fmt="o",
            markersize=3,
            linewidth=0.8,
            label=way,
        )
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("NDCG@10 × 100 less that of plain MiniLM (95 %)")
    figure.legend(loc="outside upper center", ncols=2, fontsize=7)
    figure.savefig(path)
    return path

"""Cross-encoders run as an ONNX graph by OpenVINO or ONNX Runtime, without torch."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.models.batching import TOKENS_AT_ONCE, tight_buckets
from cde_rag.models.cross_encoder.config import Classifier, PairEncoder, PairTokens
from cde_rag.models.one_way.graph import TEXT, Graph, State
from cde_rag.models.plain.graph_runner import embedded_tokens
from cde_rag.models.runtimes.engines import CompiledGraph, CompiledGraphs
from cde_rag.models.runtimes.graph_cache import kept_graph
from cde_rag.models.runtimes.threads import batch_threads

BATCH: Final = 32  # pairs per forward pass
STAGE: Final = "pairs"  # the graph's name in the cache
TYPES: Final = "embeddings.token_type_embeddings.weight"


class GraphCrossEncoder:
    """A cross-encoder as a compiled graph, on the CPU; a function from pairs to scores. Thread-safe.

    The graph is built on first use, and kept in the user's cache folder.

    Args:
        model: Config, tokenizer and files of the model.
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16".

    Attributes:
        name: Exact name of the model.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, or the weights were written meanwhile.
    """

    def __init__(self, model: PairEncoder, runtime: str, dtype: str) -> None:
        self._model, self._compiled = model, CompiledGraphs(runtime, dtype)
        self.name, self.runtime, self.device, self.dtype = model.files.name, runtime, "cpu", dtype
        self._threads = batch_threads()
        self._words = model.table(model.encoder.words)
        self._types: Float32[np.ndarray, " dim"] | None = None
        if model.has_types:
            first, second = model.table(TYPES)(np.array([[0, 1]]))[0]
            self._types = second - first  # the first is in the graph
        self._graph()

    def __repr__(self) -> str:
        return f"GraphCrossEncoder({self.name})"

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float32[np.ndarray, " pairs"]:
        """Score pairs of a query and a text; higher is better."""
        rows = self._model.pairs(pairs)
        scores = np.empty(len(rows), dtype=np.float32)
        for bucket in tight_buckets([len(row.ids) for row in rows], BATCH, TOKENS_AT_ONCE):
            scores[bucket] = self._logits([rows[place] for place in bucket])
        if self._model.activation == "sigmoid":
            return 1 / (1 + np.exp(-scores.clip(-80)))  # the exponential of more than 88 is infinite
        return scores

    def _logits(self, rows: Sequence[PairTokens]) -> Float32[np.ndarray, " batch"]:
        _, mask, words = embedded_tokens(self._model, self._words, [row.ids for row in rows])
        if self._types is not None:
            for row, (_, types) in enumerate(rows):
                words[row, : len(types)] += np.array(types, dtype=np.float32)[:, None] * self._types
        given: dict[str, np.ndarray] = dict(zip(TEXT, (words, mask.astype(np.float32)), strict=True))
        return self._graph().run(given)[:, 0]

    def _graph(self) -> CompiledGraph:
        build, digest = partial(pair_graph, self._model), self._model.files.weights_sha256
        return self._compiled.get(STAGE, self._threads, lambda: kept_graph(digest, STAGE, build))


def pair_graph(model: PairEncoder) -> bytes:
    """Build the graph of a cross-encoder: word embeddings and mask of pairs in, scores (batch, 1) out.

    Raises:
        MissingExtraError: `onnx` is not installed.
        ModelError: The weights were written meanwhile, or hold NaN or infinity.
    """
    graph, classifier, dim = Graph(), model.classifier, model.encoder.sizes.dim
    words, mask = graph.text(TEXT, dim)
    states = model.encoder.add(graph, model.state(), words, mask)
    weights = model.stored(classifier.shapes(dim))
    scores = _classified(graph, classifier, weights, states, mask, model.encoder.sizes.norm_eps)
    return graph.finish(scores, "batch", 1)


def _classified(graph: Graph, classifier: Classifier, weights: State, states: str, mask: str, eps: float) -> str:
    """Add the classifier to states of tokens; returns the scores."""
    pooled = graph.mean(states, mask) if classifier.pooling == "mean" else graph.first(states)
    x = graph.op(classifier.activation, graph.linear(pooled, weights, f"{classifier.dense}."))
    if classifier.norm is not None:
        name = f"{classifier.norm}."
        both = {f"{name}bias": np.zeros(len(weights[f"{name}weight"]), dtype=np.float32), **weights}
        x = graph.layer_norm(x, both, name, eps)
    return graph.linear(x, weights, f"{classifier.output}.")

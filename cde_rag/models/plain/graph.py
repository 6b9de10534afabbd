"""ONNX graphs of sentence-transformers models, built from their weights without torch."""

from typing import Final

import numpy as np

from cde_rag.models.one_way.graph import TEXT, Graph
from cde_rag.models.plain.config import TextEncoder
from cde_rag.models.plain.modules import Dense, Head, Normalize, Pooling, WordWeights

WEIGHTS: Final = "weights"  # input of models with word weights: that of each token, 0 for padding
_SMALLEST: Final = np.float32(1e-9)  # that token states are divided by


def text_graph(model: TextEncoder) -> bytes:
    """Build the graph of an encoder and its head: word embeddings and mask of texts in, vectors of unit norm out.

    Args:
        model: The model.

    Returns:
        A serialised ONNX model with the inputs `TEXT` and, of a model with word weights, `WEIGHTS`.

    Raises:
        MissingExtraError: `onnx` is not installed.
        ModelError: The weights were written meanwhile, or hold NaN or infinity.
    """
    graph = Graph()
    words, mask = graph.text(TEXT, model.encoder.sizes.dim)
    x = model.encoder.add(graph, model.state(), words, mask)
    return graph.finish(graph.unit(_add_head(graph, model.head, x, mask)), "batch", model.head.dim)


def _add_head(graph: Graph, head: Head, x: str, mask: str) -> str:
    """Add the modules after the encoder to states of tokens; returns the vectors of texts."""
    weights = None
    for step in head.steps:
        match step:
            case WordWeights():
                weights = graph.input(WEIGHTS, ("batch", "tokens"))
                x = graph.op("Mul", x, graph.op("Unsqueeze", weights, graph.integers(2)))
            case Pooling():
                vectors = [_pooled(graph, mode, x, mask, weights) for mode in step.modes]
                x = graph.op("Concat", *vectors, attributes={"axis": 1}) if len(vectors) > 1 else vectors[0]
            case Dense():
                x = graph.op(step.activation, graph.affine(x, *head.linear(step)))
            case Normalize():
                x = graph.unit(x)
    return x


def _pooled(graph: Graph, mode: str, x: str, mask: str, weights: str | None) -> str:
    """Add the pooling of (batch, tokens, dim) in a mode, as sentence-transformers names it.

    Args:
        graph: The graph.
        mode: The mode.
        x: States of tokens, multiplied by their weights if there are any.
        mask: 1.0 where there is a token.
        weights: Weight of each token; None if all count the same.
    """
    if mode == "cls":
        return graph.first(x)
    if mode == "max":
        biased = graph.op("Add", x, graph.op("Unsqueeze", graph.masked(mask), graph.integers(2)))
        return graph.op("ReduceMax", biased, graph.integers(1), attributes={"keepdims": 0})
    if mode == "mean" and weights is None:
        return graph.mean(x, mask)
    number = graph.op("Mul", graph.op("CumSum", mask, graph.constant(np.int64(1))), mask)  # 1, 2, …; 0 for padding
    if mode == "lasttoken":
        last = graph.op("Equal", number, _total(graph, mask))
        return _sum(graph, x, graph.op("Mul", graph.op("Cast", last, attributes={"to": 1}), mask))
    counted = number if mode == "weightedmean" else mask
    divisor = graph.op("Max", _total(graph, counted if weights is None else weights), graph.constant(_SMALLEST))
    divisor = graph.op("Sqrt", divisor) if mode == "mean_sqrt_len_tokens" else divisor
    return graph.op("Div", _sum(graph, x, counted), divisor)


def _total(graph: Graph, x: str) -> str:
    """Add the sum over the tokens, (batch, 1)."""
    return graph.op("ReduceSum", x, graph.integers(1), attributes={"keepdims": 1})


def _sum(graph: Graph, x: str, counted: str) -> str:
    """Add the sum of states, each as often as is counted, (batch, dim)."""
    total = graph.op("MatMul", graph.op("Unsqueeze", counted, graph.integers(1)), x)
    return graph.op("Squeeze", total, graph.integers(1))

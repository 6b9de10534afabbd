"""ONNX graphs of a model's two stages, built from their weights without torch.

The graphs compute in float32, from the embeddings of a text's tokens (`cde_rag.models.files.word_embeddings`). Batch,
tokens and siblings are dynamic. A text without siblings has one that is masked, which changes no vector: its keys get
no attention, and its part of the output is 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Shaped

from cde_rag.errors import require
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.runtimes.graph_cache import EXTRA

OPSET: Final = 20  # the first with Gelu
IR_VERSION: Final = 10
NEVER: Final = -1e9  # added to the score of what is masked; its exponential is 0
Array: TypeAlias = Shaped[np.ndarray, "..."]
State: TypeAlias = Mapping[str, Array]
Shape: TypeAlias = Sequence[str | int]

TEXT: Final = ("words", "mask")  # inputs of the first stage
WORDS: Final = "embeddings.word.weight"  # the weight that is in no graph
GIVEN: Final = ("role", "keys", "values", "output_map", "sibling_weight", "siblings", "sibling_mask")
OUTPUT: Final = "vectors"


def first_stage_graph(config: ModelConfig, state: State) -> bytes:
    """Build the graph of the first stage: word embeddings and mask of texts in, their vectors out.

    Args:
        config: Sizes of the model.
        state: Weights by the names of `TwoStage`, float32.

    Returns:
        A serialised ONNX model.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph = Graph()
    words, mask = graph.text(TEXT, config.dim)
    encoder = _Encoder(graph, config, state)
    x = encoder.embed(words)
    for layer in range(config.first_stage_layers):
        x = encoder.layer(f"first_stage.layers.{layer}.", x, graph.text_bias(mask))
    pooled = graph.mean(x, mask)
    fed = graph.linear(graph.op("Gelu", graph.linear(pooled, state, "first_stage.up.")), state, "first_stage.down.")
    return graph.finish(graph.unit(graph.op("Add", pooled, fed)), "batch", config.dim)


def second_stage_graph(config: ModelConfig, state: State) -> bytes:
    """Build the graph of the second stage: texts, a prepared context and siblings in, embeddings out.

    Args:
        config: Sizes of the model.
        state: Weights by the names of `TwoStage`, float32.

    Returns:
        A serialised ONNX model with the inputs `TEXT` and `GIVEN`.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph = Graph()
    words, mask = graph.text(TEXT, config.dim)
    return graph.finish(second_stage(graph, config, state, words, mask), "batch", config.dim)


def part(state: State, prefix: str) -> dict[str, Array]:
    """Return the weights whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def encoded(graph: "Graph", config: ModelConfig, state: State, words: str, mask: str) -> str:
    """Add the layers of an encoder without context; return the states of its tokens."""
    encoder = _Encoder(graph, config, state)
    x = encoder.embed(words)
    for layer in range(config.layers):
        x = encoder.layer(f"layers.{layer}.", x, graph.text_bias(mask))
    return x


def second_stage(graph: "Graph", config: ModelConfig, state: State, words: str, mask: str) -> str:
    """Add the second stage of a one-way model; return its vectors."""
    given = _StageInputs(graph, config, state)
    encoder = _Encoder(graph, config, state)
    x = encoder.embed(words, given.role)
    bias = graph.text_bias(mask)
    plain = config.layers - config.context_layers
    for layer in range(config.layers):
        pair = None if layer < plain else given.keys_and_values(layer - plain)
        x = encoder.layer(f"second_stage.layers.{layer}.", x, bias, pair, given.bias)
    pooled = graph.unit(graph.mean(x, mask))
    mapped = graph.op("MatMul", graph.op("Add", pooled, given.output()), given.output_map)
    return graph.unit(mapped)


class Graph:
    """Nodes, weights and inputs of an ONNX graph that is being built."""

    def __init__(self) -> None:
        self._onnx: Any = require("onnx", EXTRA)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def input(self, name: str, shape: Shape, dtype: type[np.generic] = np.float32) -> str:
        """Add an input; dimensions that are strings are dynamic."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def text(self, names: tuple[str, str], dim: int, prefix: str = "") -> tuple[str, str]:
        """Add the inputs of a text: embeddings of its tokens and mask, 1.0 where there is a token."""
        shape = ("batch", f"{prefix}tokens")
        return self.input(names[0], (*shape, dim)), self.input(names[1], shape)

    def constant(self, value: Array | np.generic) -> str:
        """Add a weight or another constant; small ones that are equal are added once."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 8 else (id(value), len(self._weights))
        if key not in self._known:
            self._known[key] = f"constant_{len(self._weights)}"
            self._weights.append(self._onnx.numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def integers(self, *values: int) -> str:
        """Add a constant list of integers, such as axes."""
        return self.constant(np.array(values, dtype=np.int64))

    def length(self, x: str, axis: int) -> str:
        """Add the length of an axis, as a list of one integer."""
        return self.op("Shape", x, attributes={"start": axis, "end": axis + 1})

    def op(self, kind: str, *inputs: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Add an operation with one output; returns its name."""
        return self.ops(kind, inputs, 1, attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], outputs: int, attributes: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add an operation with several outputs; returns their names."""
        names = [f"{kind.lower()}_{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, **(attributes or {})))
        return names

    def linear(self, x: str, state: State, name: str) -> str:
        """Add a linear layer; its weight is stored transposed."""
        return self.affine(x, state[name + "weight"], state.get(name + "bias"))

    def affine(self, x: str, weight: Array, bias: Array | None) -> str:
        """Add `x @ weight.T + bias`."""
        product = self.op("MatMul", x, self.constant(weight.T))
        return product if bias is None else self.op("Add", product, self.constant(bias))

    def layer_norm(self, x: str, state: State, name: str, eps: float) -> str:
        """Add a layer normalisation over the last axis."""
        weights = (self.constant(state[f"{name}{each}"]) for each in ("weight", "bias"))
        return self.op("LayerNormalization", x, *weights, attributes={"axis": -1, "epsilon": eps})

    def shaped(self, x: str, *shape: int) -> str:
        """Add a reshape; 0 keeps a dimension, -1 takes the rest."""
        return self.op("Reshape", x, self.integers(*shape))

    def turned(self, x: str, *axes: int) -> str:
        """Add a transposition."""
        return self.op("Transpose", x, attributes={"perm": axes})

    def unit(self, x: str) -> str:
        """Add a division by the norm of each row."""
        norm = self.op("ReduceL2", x, self.integers(-1), attributes={"keepdims": 1})
        return self.op("Div", x, self.op("Max", norm, self.constant(np.float32(1e-12))))

    def first(self, x: str) -> str:
        """Add the first token of (batch, tokens, dim)."""
        return self.op("Gather", x, self.constant(np.int64(0)), attributes={"axis": 1})

    def mean(self, x: str, mask: str) -> str:
        """Add the mean of (batch, tokens, dim) over the tokens of the mask; 0 where there is none."""
        total = self.op("MatMul", self.op("Unsqueeze", mask, self.integers(1)), x)
        count = self.op("ReduceSum", mask, self.integers(1), attributes={"keepdims": 1})
        at_least_one = self.op("Max", count, self.constant(np.float32(1)))
        return self.op("Div", self.op("Squeeze", total, self.integers(1)), at_least_one)

    def masked(self, mask: str) -> str:
        """Add an attention bias: 0 for tokens that are there, `NEVER` for padding."""
        absent = self.op("Sub", self.constant(np.float32(1)), mask)
        return self.op("Mul", absent, self.constant(np.float32(NEVER)))

    def text_bias(self, mask: str) -> str:
        """Add the bias of attention scores to a text, (batch, 1, 1, tokens)."""
        key = ("bias", mask)
        if key not in self._known:
            axes = self.integers(1, 2)
            self._known[key] = self.op("Unsqueeze", self.masked(mask), axes)
        return self._known[key]

    def finish(self, output: str, *shape: str | int) -> bytes:
        """Return the serialised model with one output of a shape; dimensions that are strings are dynamic."""
        helper: Any = self._onnx.helper
        self._nodes.append(helper.make_node("Identity", [output], [OUTPUT]))
        found = helper.make_tensor_value_info(OUTPUT, self._onnx.TensorProto.FLOAT, list(shape))
        graph = helper.make_graph(self._nodes, "stage", self._inputs, [found], self._weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="cde-rag")
        self._onnx.checker.check_model(model)
        return cast(bytes, model.SerializeToString(deterministic=True))


class _Encoder:
    """Embeddings and layers of an encoder, whose text may attend to given keys and values."""

    def __init__(self, graph: Graph, config: ModelConfig, state: State) -> None:
        self._graph, self._config, self._state = graph, config, state

    def embed(self, words: str, role: str | None = None) -> str:
        """Add the embeddings of positions and role to those of word pieces."""
        graph, state = self._graph, self._state
        tokens = graph.length(words, 1)
        first = graph.integers(0)
        positions = graph.op("Slice", graph.constant(state["embeddings.position.weight"]), first, tokens, first)
        x = graph.op("Add", words, positions)
        x = x if role is None else graph.op("Add", x, role)
        return graph.layer_norm(x, state, "embeddings.norm.", self._config.norm_eps)

    def layer(self, name: str, x: str, bias: str, given: tuple[str, str] | None = None, given_bias: str = "") -> str:
        """Add a layer; `given` are keys, transposed, and values that the text attends to as well."""
        graph, state, config = self._graph, self._state, self._config
        weight, offset = (np.array(state[f"{name}query_key_value.{each}"]) for each in ("weight", "bias"))
        scale = np.float32(config.head_dim**-0.5)
        weight[: config.dim] *= scale
        offset[: config.dim] *= scale
        parts = graph.ops("Split", [graph.affine(x, weight, offset)], 3, {"axis": -1, "num_outputs": 3})
        query, key, value = (graph.shaped(each, 0, 0, config.heads, config.head_dim) for each in parts)
        query, key, value = (
            graph.turned(each, *axes)
            for each, axes in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
        )
        answer = self._attend(query, key, value, bias)
        if given is not None:
            answer = graph.op("Add", answer, self._attend(query, *given, given_bias))
        merged = graph.shaped(graph.turned(answer, 0, 2, 1, 3), 0, 0, config.dim)
        x = graph.op("Add", x, graph.linear(merged, state, f"{name}output."))
        x = graph.layer_norm(x, state, f"{name}attention_norm.", config.norm_eps)
        fed = graph.linear(graph.op("Gelu", graph.linear(x, state, f"{name}up.")), state, f"{name}down.")
        return graph.layer_norm(graph.op("Add", x, fed), state, f"{name}output_norm.", config.norm_eps)

    def _attend(self, query: str, key: str, value: str, bias: str) -> str:
        scores = self._graph.op("Add", self._graph.op("MatMul", query, key), bias)
        return self._graph.op("MatMul", self._graph.op("Softmax", scores, attributes={"axis": -1}), value)


class _StageInputs:
    """Inputs of the second stage besides the text: role, prepared context and siblings."""

    def __init__(self, graph: Graph, config: ModelConfig, state: State) -> None:
        self._graph, self._config, self._state = graph, config, state
        latents = ("context_layers", config.heads, "latents", config.head_dim)
        role = graph.input("role", (), np.int64)
        self.role = graph.op("Gather", graph.constant(state["second_stage.roles"]), role)
        self._keys, self._values = graph.input("keys", latents), graph.input("values", latents)
        self.output_map = graph.input("output_map", (config.dim, config.dim))
        self._weight = graph.input("sibling_weight", ())
        self._siblings = graph.input("siblings", ("batch", "siblings", config.dim))
        self._mask = graph.input("sibling_mask", ("batch", "siblings"))
        normed = graph.layer_norm(self._siblings, state, "second_stage.sibling_norm.", 1e-5)
        self._input = graph.op("Add", normed, graph.constant(state["second_stage.sibling_level"]))
        count = graph.length(self._keys, 2)
        zeros = [graph.integers(number) for number in (0, 0, 0)]
        pads = graph.op("Concat", zeros[0], count, *zeros[1:], attributes={"axis": 0})  # latents, which are all there
        padded = graph.op("Pad", graph.masked(self._mask), pads)
        self.bias = graph.op("Unsqueeze", padded, graph.integers(1, 2))

    def keys_and_values(self, layer: int) -> tuple[str, str]:
        """Add keys, transposed, and gated values of latents and siblings for a context layer."""
        graph, config, state = self._graph, self._config, self._state
        name = f"second_stage.given.{layer}."
        parts = graph.ops("Split", [graph.linear(self._input, state, name)], 2, {"axis": -1, "num_outputs": 2})
        key, value = (graph.turned(graph.shaped(each, 0, 0, config.heads, -1), 0, 2, 1, 3) for each in parts)
        gate = np.tanh(state["second_stage.gates"][layer]).astype(np.float32)[:, None, None]
        value = graph.op("Mul", value, graph.constant(gate))
        key, value = (
            graph.op("Concat", self._of_all(of_context, layer), own, attributes={"axis": 2})
            for of_context, own in ((self._keys, key), (self._values, value))
        )
        return graph.turned(key, 0, 1, 3, 2), value

    def output(self) -> str:
        """Add the siblings' part of the pooled text: the first one's share and the others' mean, mapped."""
        graph, config = self._graph, self._config
        one = graph.integers(1)
        zero = graph.integers(0)
        lead = graph.op("Squeeze", graph.op("Slice", self._siblings, zero, one, one), one)
        lead = graph.op("Mul", lead, graph.op("Slice", self._mask, zero, one, one))
        mean = graph.mean(self._siblings, self._mask)
        share = graph.constant(np.float32(config.lead_share))
        parent = graph.op("Add", mean, graph.op("Mul", graph.op("Sub", lead, mean), share))
        mapped = graph.affine(parent, self._state["second_stage.sibling_output.weight"], None)
        return graph.op("Mul", mapped, self._weight)

    def _of_all(self, given: str, layer: int) -> str:
        """Add the keys or values of a layer's latents, repeated for each text of the batch."""
        graph = self._graph
        place = graph.integers(layer)
        own = graph.op("Gather", given, place, attributes={"axis": 0})
        batch = graph.length(self._siblings, 0)
        ones = graph.integers(1, 1, 1)
        return graph.op("Expand", own, graph.op("Concat", batch, ones, attributes={"axis": 0}))

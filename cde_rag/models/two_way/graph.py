"""ONNX graphs of a two-way model, built from its published weights without torch or transformers.

Graphs compute in float32; batch and tokens of texts are dynamic. Before the first layer a word piece is normalised
whatever stands around it, so tables of embeddings are normalised when a graph is built. Of the last layer only the
tokens that are averaged are computed.
"""

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int, Shaped

from cde_rag.models.one_way.graph import NEVER, Graph, part
from cde_rag.models.two_way.config import BERT, CACHED, MODERN_BERT, NOMIC_BERT, TwoWayConfig
from cde_rag.models.two_way.files import FIRST, SECOND

Array: TypeAlias = Shaped[np.ndarray, "..."]
State: TypeAlias = Mapping[str, Array]
_LAYERS: Final = {  # beginning of the names of a layer's weights
    NOMIC_BERT: "encoder.layers.{}.",
    MODERN_BERT: "layers.{}.",
    BERT: "encoder.layer.{}.",
}
_NORMS: Final = {NOMIC_BERT: "emb_ln.", MODERN_BERT: "embeddings.norm.", BERT: "embeddings.LayerNorm."}  # likewise
TEXT: Final = ("ids", "mask")  # inputs: token ids of a text, and 1.0 where there is a token
FIRST_BACKBONE: Final = f"{FIRST}embedder."
SECOND_BACKBONE: Final = f"{SECOND}backbone."
COUNTED: Final = "counted"  # input: 1.0 for the tokens of a text that are averaged
GIVEN: Final = "given"  # input: embedded tokens before a text
KEPT: Final = "kept"  # input of cached models instead: keys and values of these tokens, in every layer


def first_stage_graph(config: TwoWayConfig, state: State) -> bytes:
    """Build the graph of the first stage: ids and mask of texts in, their vectors out, of any norm.

    Args:
        config: Sizes of the model.
        state: Weights of the first stage by their published names, float32.

    Returns:
        A serialised ONNX model with the inputs `TEXT`.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph, config = Graph(), config.of_first_stage
    ids, mask = _text(graph)
    unrotated = config.by_head or config.family == BERT  # equal angles cancel
    positions = np.zeros(config.max_length, np.int64) if unrotated else np.arange(config.max_length)
    encoder = RotaryEncoder(graph, config, part(state, FIRST_BACKBONE), positions)
    x = encoder.run(encoder.words(ids, by_themselves=True), graph.text_bias(mask))
    segments = config.tokens_per_document
    pooled = graph.mean(x, mask) if segments == 1 else _segment_means(graph, x, mask, segments)
    fed = graph.op("Gelu", graph.linear(pooled, state, f"{FIRST}mlp.0."))
    vectors = graph.linear(fed, state, f"{FIRST}mlp.2.")
    if segments > 1:
        vectors = graph.shaped(vectors, 0, segments * config.dim)
    return graph.finish(vectors, "batch", segments * config.dim)


def _segment_means(graph: Graph, x: str, mask: str, segments: int) -> str:
    """Add the means of equal segments of each text, (batch, segments, dim); see `network.segment_means`."""
    one = graph.constant(np.float32(1))
    count = graph.op("ReduceSum", mask, graph.integers(1), attributes={"keepdims": 1})
    size = graph.op("Max", graph.op("Ceil", graph.op("Div", count, graph.constant(np.float32(segments)))), one)
    places = graph.op("Sub", graph.op("CumSum", mask, graph.constant(np.int64(1))), one)
    number = graph.op("Unsqueeze", graph.op("Floor", graph.op("Div", places, size)), graph.integers(1))
    all_of_them = graph.constant(np.arange(segments, dtype=np.float32)[None, :, None])
    inside = graph.op("Cast", graph.op("Equal", number, all_of_them), attributes={"to": 1})  # float32
    inside = graph.op("Mul", inside, graph.op("Unsqueeze", mask, graph.integers(1)))
    counts = graph.op("ReduceSum", inside, graph.integers(2), attributes={"keepdims": 1})
    means = graph.op("Div", graph.op("MatMul", inside, x), graph.op("Max", counts, one))
    whole = graph.op("Unsqueeze", graph.mean(x, mask), graph.integers(1))
    return graph.op("Where", graph.op("Greater", counts, graph.constant(np.float32(0))), means, whole)


def second_stage_graph(config: TwoWayConfig, state: State) -> bytes:
    """Build the graph of the second stage: texts and a prepared context in, embeddings out, unit norm.

    Args:
        config: Sizes of the model.
        state: Weights of the second stage by their published names, float32.

    Returns:
        A serialised ONNX model with the inputs `TEXT`, `COUNTED`, and `GIVEN` or, of a cached model, `KEPT`.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph = Graph()
    ids, mask = _text(graph)
    counted = graph.input(COUNTED, ("batch", "tokens"))
    bias = graph.op("Unsqueeze", _after(graph, config.given, graph.masked(mask), 0.0), graph.integers(1, 2))
    before, positions = config.given if config.attention == CACHED else 0, _positions(config)
    weights = part(state, SECOND_BACKBONE)
    encoder = RotaryEncoder(graph, config, weights, positions[..., before:], before=positions[..., :before])
    x = encoder.words(ids)
    if config.attention == CACHED:
        x = encoder.run(x, bias, kept=graph.input(KEPT, _kept_shape(config)))
    else:
        batch = graph.op("Concat", graph.length(ids, 0), graph.integers(1, 1), attributes={"axis": 0})
        given = graph.op("Expand", graph.input(GIVEN, (config.given, config.dim)), batch)
        whole = config.pooling == "sequence"
        x = graph.op("Concat", given, x, attributes={"axis": 1})
        x = encoder.run(x, bias, first_wanted=0 if whole else config.given)
        counted = _after(graph, config.given, counted, 1.0) if whole else counted
    pooled = graph.mean(x, counted)
    fed = graph.op("Relu", graph.linear(pooled, state, f"{SECOND}output_projection.0."))
    output = graph.linear(fed, state, f"{SECOND}output_projection.2.")
    output = graph.op("Add", output, pooled) if config.adds_pooled else output
    return graph.finish(graph.unit(output), "batch", config.dim)


def kept_graph(config: TwoWayConfig, state: State) -> bytes:
    """Build the graph that reads the context of a cached model: `GIVEN` in, `KEPT` out.

    Args:
        config: Sizes of the model.
        state: Weights of the second stage by their published names, float32.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph = Graph()
    encoder = RotaryEncoder(graph, config, part(state, SECOND_BACKBONE), _positions(config)[..., : config.given])
    x = graph.op("Unsqueeze", graph.input(GIVEN, (config.given, config.dim)), graph.integers(0))
    encoder.run(x, graph.constant(np.zeros((1, 1, 1, 1), np.float32)))
    own = (graph.op("Concat", *each, attributes={"axis": 0}) for each in zip(*encoder.own, strict=True))
    both = (graph.op("Unsqueeze", each, graph.integers(0)) for each in own)
    return graph.finish(graph.op("Concat", *both, attributes={"axis": 0}), *_kept_shape(config))


def embedded(config: TwoWayConfig, state: State, tokens: Float32[np.ndarray, "given dim"]) -> Array:
    """Embed context and soft tokens for the first layer of the second stage.

    Args:
        config: Sizes of the model.
        state: Weights of the second stage by their published names.
        tokens: The tokens.
    """
    backbone = part(state, SECOND_BACKBONE)
    if config.by_head:
        tokens = tokens + backbone["embeddings.token_type_embeddings.weight"][0]
    return _normed(config, backbone, tokens)


@runtime_checkable
class RotarySizes(Protocol):
    """Sizes of an encoder with rotary positions, of a two-way model or a plain one.

    Attributes:
        family: Architecture, as in `config`.
        is_modern: True for ModernBERT.
        by_head: True if tokens are rotated by the number of the head.
        dim: Length of a state.
        layers: Number of layers.
        heads: Number of attention heads.
        head_dim: Length of a head's keys and values.
        window: Tokens that a local layer sees, both sides together; 0 if all layers are global.
        norm_eps: Number that is added to the variance in the layer norms.
    """

    @property
    def family(self) -> str: ...  # noqa: D102 (an attribute)
    @property
    def is_modern(self) -> bool: ...  # noqa: D102
    @property
    def by_head(self) -> bool: ...  # noqa: D102
    @property
    def dim(self) -> int: ...  # noqa: D102
    @property
    def layers(self) -> int: ...  # noqa: D102
    @property
    def heads(self) -> int: ...  # noqa: D102
    @property
    def head_dim(self) -> int: ...  # noqa: D102
    @property
    def window(self) -> int: ...  # noqa: D102
    @property
    def norm_eps(self) -> float: ...  # noqa: D102

    def is_local(self, layer: int) -> bool:
        """Return True if a layer lets a token attend to its neighbours alone, half a window on each side."""
        ...

    def theta_of(self, layer: int) -> float:
        """Return the base of a layer's rotary angles."""
        ...


class RotaryEncoder:
    """A backbone: its word pieces and layers.

    Args:
        graph: Graph that they are added to.
        config: Its sizes.
        state: Weights of the backbone by their published names.
        positions: Positions by which the tokens are rotated, at most; where they differ by head, one row for each.
        before: Positions of the tokens before them, whose keys and values are given.

    Attributes:
        own: Keys and values of the tokens in every layer that was added.
    """

    def __init__(
        self,
        graph: Graph,
        config: RotarySizes,
        state: State,
        positions: Int[np.ndarray, "*heads tokens"],
        *,
        before: Int[np.ndarray, "*heads before"] | None = None,
    ) -> None:
        self._graph, self._config, self._state = graph, config, state
        self._positions = positions
        self._before = positions[..., :0] if before is None else before
        self._angles: dict[float, list[str]] = {}
        self.own: list[tuple[str, str]] = []

    def words(self, ids: str, *, by_themselves: bool = False) -> str:
        """Add the embeddings of word pieces for the first layer, of a text by itself or after given tokens."""
        graph, config, state = self._graph, self._config, self._state
        if config.family == BERT:
            table = state["embeddings.word_embeddings.weight"] + state["embeddings.token_type_embeddings.weight"][0]
            places = self._first_rows(state["embeddings.position_embeddings.weight"], graph.length(ids, 1), 0)
            return self._norm(
                graph.op("Add", graph.op("Gather", graph.constant(table), ids), places), _NORMS[config.family]
            )
        if config.is_modern:
            table = _normed(config, state, state["embeddings.tok_embeddings.weight"])
            table = table if by_themselves else _normed(config, state, table)
        else:
            kind = state["embeddings.token_type_embeddings.weight"][0]
            kind = 2 * kind if config.by_head and not by_themselves else kind
            table = _normed(config, state, state["embeddings.word_embeddings.weight"] + kind)
        return graph.op("Gather", graph.constant(table), ids)

    def normed(self, words: str) -> str:
        """Add the norm of ModernBERT's word embeddings, which are given, for the first layer of a text by itself."""
        return self._norm(words, "embeddings.norm.")

    def run(self, x: str, bias: str, *, kept: str | None = None, first_wanted: int = 0) -> str:
        """Add all layers.

        Args:
            x: Embedded tokens, (batch, tokens, dim).
            bias: Bias of the attention to every token of the sequence, (batch, 1, 1, sequence).
            kept: Keys and values of the tokens before `x`, in every layer.
            first_wanted: Number of the first token whose state is returned.
        """
        graph, config = self._graph, self._config
        tokens = graph.length(x, 1)
        local = graph.op("Add", bias, self._window(tokens)) if config.window else bias
        for layer in range(config.layers):
            query, key, value = self._project(layer, x, tokens)
            near = local if config.is_local(layer) else bias
            if first_wanted and layer == config.layers - 1:
                x, query = self._from(x, first_wanted, 1), self._from(query, first_wanted, 2)
                near = self._from(near, first_wanted, 2) if config.is_local(layer) else near
            if kept is not None:
                key, value = (self._joined(kept, which, layer, own) for which, own in enumerate((key, value)))
            scores = graph.op("Add", graph.op("MatMul", query, graph.turned(key, 0, 1, 3, 2)), near)
            answer = graph.op("MatMul", graph.op("Softmax", scores, attributes={"axis": -1}), value)
            x = self._finish(layer, x, graph.shaped(graph.turned(answer, 0, 2, 1, 3), 0, 0, config.dim))
        return self._norm(x, "final_norm.") if config.is_modern else x

    def _project(self, layer: int, x: str, tokens: str) -> tuple[str, str, str]:
        """Add queries and keys, rotated, and values, (batch, heads, tokens, head_dim)."""
        graph, config, name = self._graph, self._config, self._name(layer)
        if config.is_modern and layer > 0:
            x = self._norm(x, f"{name}attn_norm.")
        weight, bias = self._joint_projection(name)
        parts = graph.ops("Split", [graph.affine(x, weight, bias)], 3, {"axis": -1, "num_outputs": 3})
        query, key, value = (
            graph.turned(graph.shaped(each, 0, 0, config.heads, config.head_dim), 0, 2, 1, 3) for each in parts
        )
        if self._positions.any():
            query, key = (self._rotated(each, layer, tokens) for each in (query, key))
        self.own.append((key, value))
        return query, key, value

    def _joint_projection(self, name: str) -> tuple[Array, Array | None]:
        """Return the weight and bias of a layer's queries, keys and values, the scale of the scores included."""
        config, state, bias = self._config, self._state, None
        scale = np.float32(config.head_dim**-0.5)
        if config.family == BERT:
            names = [f"{name}attention.self.{each}." for each in ("query", "key", "value")]
            weight, bias = (np.concatenate([state[each + part] for each in names]) for part in ("weight", "bias"))
            bias[: config.dim] *= scale
        else:
            weight = np.array(state[f"{name}attn.Wqkv.weight"])
        weight[: config.dim] *= scale
        return weight, bias

    def _rotated(self, x: str, layer: int, tokens: str) -> str:
        """Add the rotation of each pair of entries of the two halves by its angle."""
        graph, config = self._graph, self._config
        theta = config.theta_of(layer)
        if theta not in self._angles:
            tables = _cosines_and_sines(self._positions, config.head_dim, theta)
            self._angles[theta] = [self._first_rows(each, tokens, each.ndim - 2) for each in tables]
        cosines, sines = self._angles[theta]
        halves = graph.ops("Split", [x], 2, {"axis": -1, "num_outputs": 2})
        swapped = graph.op("Concat", *reversed(halves), attributes={"axis": -1})
        return graph.op("Add", graph.op("Mul", x, cosines), graph.op("Mul", swapped, sines))

    def _finish(self, layer: int, x: str, answer: str) -> str:
        """Add the rest of a layer, after its attention."""
        graph, state, name = self._graph, self._state, self._name(layer)
        if self._config.is_modern:
            x = graph.op("Add", x, graph.linear(answer, state, f"{name}attn.Wo."))
            up = graph.linear(self._norm(x, f"{name}mlp_norm."), state, f"{name}mlp.Wi.")
            fed, gate = graph.ops("Split", [up], 2, {"axis": -1, "num_outputs": 2})
            product = graph.op("Mul", graph.op("Gelu", fed), gate)
            return graph.op("Add", x, graph.linear(product, state, f"{name}mlp.Wo."))
        if self._config.family == BERT:
            attended = graph.op("Add", x, graph.linear(answer, state, f"{name}attention.output.dense."))
            x = self._norm(attended, f"{name}attention.output.LayerNorm.")
            fed = graph.op("Gelu", graph.linear(x, state, f"{name}intermediate.dense."))
            fed = graph.op("Add", x, graph.linear(fed, state, f"{name}output.dense."))
            return self._norm(fed, f"{name}output.LayerNorm.")
        x = self._norm(graph.op("Add", x, graph.linear(answer, state, f"{name}attn.out_proj.")), f"{name}norm1.")
        up, gate = (graph.linear(x, state, f"{name}mlp.fc1{number}.") for number in (1, 2))
        product = graph.op("Mul", up, graph.op("Mul", gate, graph.op("Sigmoid", gate)))
        return self._norm(graph.op("Add", x, graph.linear(product, state, f"{name}mlp.fc2.")), f"{name}norm2.")

    def _joined(self, kept: str, which: int, layer: int, own: str) -> str:
        """Add the keys (0) or values (1) of a layer, of the tokens before a text and of the text, for each text."""
        graph = self._graph
        of_layer = kept
        for number in (which, layer):
            of_layer = graph.op("Gather", of_layer, graph.constant(np.int64(number)), attributes={"axis": 0})
        batch = graph.op("Concat", graph.length(own, 0), graph.integers(1, 1, 1), attributes={"axis": 0})
        return graph.op("Concat", graph.op("Expand", of_layer, batch), own, attributes={"axis": 2})

    def _window(self, tokens: str) -> str:
        """Add the bias of local layers, (tokens, sequence)."""
        graph = self._graph
        others = np.concatenate([self._before, self._positions])
        far = np.abs(self._positions[:, None] - others) > self._config.window // 2
        rows = self._first_rows(np.where(far, np.float32(NEVER), np.float32(0)), tokens, 0)
        sequence = graph.op("Add", tokens, graph.integers(int(self._before.shape[-1])))
        return graph.op("Slice", rows, graph.integers(0), sequence, graph.integers(1))

    def _first_rows(self, table: Array, tokens: str, axis: int) -> str:
        """Add the part of a table that belongs to the tokens."""
        integers = self._graph.integers
        return self._graph.op("Slice", self._graph.constant(table), integers(0), tokens, integers(axis))

    def _from(self, x: str, first: int, axis: int) -> str:
        """Add the part of a tensor that begins at a token."""
        integers = self._graph.integers
        return self._graph.op("Slice", x, integers(first), integers(np.iinfo(np.int64).max), integers(axis))

    def _norm(self, x: str, name: str) -> str:
        """Add a layer normalisation; ModernBERT's has no bias."""
        parts = ("weight",) if self._config.is_modern else ("weight", "bias")
        weights = (self._graph.constant(self._state[f"{name}{each}"]) for each in parts)
        return self._graph.op(
            "LayerNormalization", x, *weights, attributes={"axis": -1, "epsilon": self._config.norm_eps}
        )

    def _name(self, layer: int) -> str:
        return _LAYERS[self._config.family].format(layer)


def _text(graph: Graph) -> tuple[str, str]:
    """Add the inputs of a text."""
    ids, mask = TEXT
    shape = ("batch", "tokens")
    return graph.input(ids, shape, np.int64), graph.input(mask, shape)


def _kept_shape(config: TwoWayConfig) -> tuple[int, ...]:
    return 2, config.layers, config.heads, config.given, config.head_dim


def _positions(config: TwoWayConfig) -> Int[np.ndarray, "*heads sequence"]:
    """Return the position by which each token of a longest sequence is rotated; of by-head models for each head."""
    places = np.arange(config.given + config.max_length)
    if config.family == BERT:
        return np.zeros_like(places)
    turned = np.arange(config.heads)[:, None] if config.by_head else places
    return np.where(places < config.unplaced, 0, turned)


def _cosines_and_sines(positions: Int[np.ndarray, "*heads tokens"], head_dim: int, theta: float) -> tuple[Array, Array]:
    """Return the tables of a rotation for both halves of a head's entries; the first half's sines are negative."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    angles = positions[..., None].astype(np.float32) * (1 / np.float32(theta) ** exponents)
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([cosines, cosines], axis=-1), np.concatenate([-sines, sines], axis=-1)


def _normed(config: RotarySizes, backbone: State, x: Float32[np.ndarray, "tokens dim"]) -> Array:
    """Apply the backbone's norm of embeddings."""
    name = _NORMS[config.family]
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = (
        centred
        / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(config.norm_eps))
        * backbone[f"{name}weight"]
    )
    return scaled if config.is_modern else scaled + backbone[f"{name}bias"]


def _after(graph: Graph, given: int, x: str, value: float) -> str:
    """Add a value for each of the tokens before a text to (batch, tokens)."""
    return graph.op("Pad", x, graph.integers(0, given, 0, 0), graph.constant(np.float32(value)))

"""Stages of a two-way model run as ONNX graphs, without torch or transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float32, Int

from cde_rag.models.batching import TOKENS_AT_ONCE, padded
from cde_rag.models.runtimes.engines import CompiledGraph, CompiledGraphs, Inputs
from cde_rag.models.runtimes.graph_cache import kept_graph
from cde_rag.models.runtimes.stage_runner import QUERY, not_prepared
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.two_way import graph as two_way_graphs
from cde_rag.models.two_way.config import CACHED, TwoWayConfig, reads_no_siblings, round_robin
from cde_rag.models.two_way.files import FIRST, PREFIX_END, SECOND, PublishedFiles
from cde_rag.models.two_way.graph import COUNTED, GIVEN, KEPT, Array, State

_NULL: Final = f"{SECOND}sequence_dropout_null_embedding"
_SOFT: Final = f"{SECOND}prompt_projection."
_OF_CONTEXT: Final = (  # names of the weights that embed the tokens before a text begin so
    _NULL,
    _SOFT,
    f"{SECOND}backbone.emb_ln.",
    f"{SECOND}backbone.embeddings.norm.",
    f"{SECOND}backbone.embeddings.LayerNorm.",
    f"{SECOND}backbone.embeddings.token_type_embeddings.",
)


@dataclass(frozen=True)
class GivenTokens:
    """Second-stage input of a two-way model from a Context.

    Attributes:
        inputs: Inputs of the graph by their names: the embedded tokens before a text or, of a cached model, their keys
            and values.
    """

    inputs: Inputs


class TwoWayGraphRunner:
    """Both stages of a two-way model as compiled graphs, on the CPU. Thread-safe.

    Graphs are built on first use, and kept in the user's cache folder. A query has a compiled graph of one thread; the
    one of batches, and that of the first stage, are compiled when they are first used.

    Args:
        files: Config and files of the model.
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16", for the second stage.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, or the weights are not those of the config.
    """

    def __init__(self, files: PublishedFiles, runtime: str, dtype: str) -> None:
        self._compiled = CompiledGraphs(runtime, dtype)
        self.runtime, self.device, self.dtype = runtime, "cpu", dtype
        self.threads = batch_threads()
        self.tokens_at_once: int | None = TOKENS_AT_ONCE
        self.config = files.config
        self._files = files
        self._prefix_end = files.tokenizer.first_id(PREFIX_END)
        state = files.arrays(lambda name: name.startswith(_OF_CONTEXT))
        self._soft, self._null = _soft_tokens(self.config, state), state.get(_NULL)
        self._of_embeddings = {name: value for name, value in state.items() if not name.startswith(_SOFT)}
        self._second_stage(1)

    def read(self, rows: Sequence[Sequence[int]]) -> Float32[np.ndarray, "batch dim"]:
        """Embed token ids with the first stage."""
        ids, mask = padded(rows, room=self.config.max_length)
        graph = self._graph(self._compiled, "first", FIRST, two_way_graphs.first_stage_graph, self.threads, "float32")
        return graph.run({"ids": ids, "mask": mask.astype(np.float32)})

    def prepare(
        self, context: Float32[np.ndarray, "context context_dim"], counts: Int[np.ndarray, " context"]
    ) -> GivenTokens:
        """Compute the input of the second stage from context embeddings, once per Context.

        Raises:
            ContextError: Another number of documents, or the null context of a model that never learned one.
        """
        config = self.config
        config.check_context(int(counts.sum()))
        if len(context) == 0 and self._null is not None:
            context, counts = np.tile(self._null, config.tokens_per_document)[None], np.array([config.context_size])
        rows: Float32[np.ndarray, "context dim"] = context[round_robin(counts)].reshape(-1, config.dim)
        given = two_way_graphs.embedded(config, self._of_embeddings, np.concatenate([rows, self._soft]))
        if config.attention != CACHED:
            return GivenTokens({GIVEN: given})
        once = CompiledGraphs(self.runtime, "float32")  # its memory is needed for this context alone
        graph = self._graph(once, "kept", SECOND, two_way_graphs.kept_graph, self.threads)
        return GivenTokens({KEPT: graph.run({GIVEN: given})})

    def embed(
        self,
        rows: Sequence[Sequence[int]],
        role: int,
        prepared: Any,
        siblings: Float32[np.ndarray, "batch siblings dim"] | None,
        sibling_mask: Bool[np.ndarray, "batch siblings"] | None,
    ) -> Float32[np.ndarray, "batch dim"]:
        """Embed one batch of token ids with the second stage; a text's role is in the prefix that they begin with."""
        del sibling_mask
        if not isinstance(prepared, GivenTokens):
            raise not_prepared(prepared)
        if siblings is not None:
            raise reads_no_siblings(self.config.name)
        ids, mask = padded(rows, room=self.config.max_length)
        counted = mask & self._after_prefix(ids, mask) if self.config.pooling == "text_after_prefix" else mask
        inputs = {"ids": ids, "mask": mask.astype(np.float32), COUNTED: counted.astype(np.float32)}
        threads = 1 if role == QUERY and len(rows) == 1 else self.threads
        return self._second_stage(threads).run(inputs | dict(prepared.inputs))

    def _after_prefix(
        self, ids: Int[np.ndarray, "batch tokens"], mask: Bool[np.ndarray, "batch tokens"]
    ) -> Bool[np.ndarray, "batch tokens"]:
        """Return True after the first token, [CLS] apart, that ends a prefix; True everywhere in a row without one."""
        ends = (ids == self._prefix_end) & mask
        ends[:, 0] = False
        before = ends.cumsum(axis=1) - ends  # ends before a token
        return (before > 0) | ~ends.any(axis=1, keepdims=True)

    def _second_stage(self, threads: int) -> CompiledGraph:
        return self._graph(self._compiled, "second", SECOND, two_way_graphs.second_stage_graph, threads)

    def _graph(
        self,
        compiled: CompiledGraphs,
        stage: str,
        weights: str,
        build: Callable[[TwoWayConfig, State], bytes],
        threads: int,
        dtype: str | None = None,
    ) -> CompiledGraph:
        """Return a compiled graph, built from the weights whose names begin with `weights`."""
        files = self._files

        def graph() -> bytes:
            return build(files.config, files.arrays(lambda name: name.startswith(weights)))

        return compiled.get(stage, threads, lambda: kept_graph(files.digest, stage, graph), dtype)


def _soft_tokens(config: TwoWayConfig, state: State) -> Array:
    """Return the learned tokens between context and text, which depend on neither."""
    hidden = np.maximum(state[f"{_SOFT}0.weight"].sum(axis=1) + state[f"{_SOFT}0.bias"], 0)
    return (state[f"{_SOFT}2.weight"] @ hidden + state[f"{_SOFT}2.bias"]).reshape(config.soft_tokens, config.dim)

"""Stages of a one-way model run as ONNX graphs, without torch."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped

from cde_rag.errors import ModelError
from cde_rag.models.batching import TOKENS_AT_ONCE
from cde_rag.models.files.mapped_tensors import MappedTensors
from cde_rag.models.files.model_files import (
    TOKENIZER,
    check,
    checked,
    digest,
    read_header,
)
from cde_rag.models.files.stored_tensors import float_state
from cde_rag.models.files.word_embeddings import Text, WordEmbeddings, embedded
from cde_rag.models.one_way import array_context
from cde_rag.models.one_way import graph as stage_graphs
from cde_rag.models.one_way.array_context import ArrayContext, State
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.runtimes.engines import CompiledGraph, CompiledGraphs
from cde_rag.models.runtimes.graph_cache import kept_graph
from cde_rag.models.runtimes.stage_runner import QUERY, not_prepared
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.tokenizer import TextTokenizer


@dataclass(frozen=True)
class StoredModel:
    """Config, tokenizer and files of a one-way model; weights are read from the files whenever they are needed.

    Attributes:
        config: Config of the model.
        first: Sizes of the one-way model; of a pair's first half.
        tokenizer: Tokenizer of both stages.
        digest: Digest of config and weights.
        first_digest: Likewise, of the first half.
        files: Files of weights with their sha256, by the prefix of their names.
        of_first: Prefix of the names of the one-way model's weights.
    """

    of_first: ClassVar[str] = ""

    config: Any
    first: ModelConfig
    tokenizer: TextTokenizer
    digest: str
    first_digest: str
    files: Mapping[str, Sequence[tuple[Path, str]]]

    @classmethod
    def read(cls, folder: Path) -> "StoredModel":
        """Read a model folder, but for its weights.

        Raises:
            ModelError: A file is missing, damaged or of a newer format.
        """
        header = read_header(folder)
        serialised = checked(folder / TOKENIZER, header.tokenizer_sha256).decode()
        sizes = ModelConfig.from_json(header.config)
        found = digest(sizes, header.all_weights_sha256)
        return cls(sizes, sizes, TextTokenizer(serialised), found, found, {"": header.weights(folder)})

    def state(self, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Float32[np.ndarray, "..."]]:
        """Read weights.

        Args:
            wanted: Chooses weights by their names.

        Raises:
            ModelError: A file is damaged.
        """
        state: dict[str, Float32[np.ndarray, ...]] = {}
        for prefix, path, sha256 in ((prefix, *file) for prefix, files in self.files.items() for file in files):
            found = float_state(checked(path, sha256), lambda name, prefix=prefix: wanted(prefix + name))
            state |= {prefix + name: value for name, value in found.items()}
        return state

    def context_path(self) -> MappedTensors:
        """Check the files, and map the weights of the path of the context into memory.

        Raises:
            ModelError: A file is damaged.
        """
        for path, sha256 in itertools.chain.from_iterable(self.files.values()):
            check(path, sha256)
        paths = [path for path, _ in self.files[self.of_first]]
        return MappedTensors(paths, array_context.is_of_context_path)

    def word_embeddings(self) -> list[WordEmbeddings]:
        """Map the word embeddings into memory: a table for each text that the graph reads."""
        return [WordEmbeddings([path for path, _ in self.files[self.of_first]], stage_graphs.WORDS)]

    def second_stage(self) -> bytes:
        """Build the graph of the second stage."""
        return stage_graphs.second_stage_graph(self.config, self.complete())

    def first_stage(self) -> bytes:
        """Build the graph of the first stage."""
        return stage_graphs.first_stage_graph(self.first, stage_graphs.part(self.complete(), self.of_first))

    def complete(self) -> State:
        """Read all weights; a missing one raises ModelError where it is used."""
        return _Weights(self.state())


class _Weights(dict[str, Float32[np.ndarray, "..."]]):
    """Weights by name; a missing one is an error of the model's files."""

    def __missing__(self, name: str) -> Float32[np.ndarray, "..."]:
        raise ModelError(f"Expected the weight {name}, which the model's config describes, found none. Make it again.")


class GraphRunner:
    """Both stages of a one-way model as compiled graphs, on the CPU. Thread-safe.

    Graphs are built on first use, and kept in the user's cache folder. A query has a compiled graph of one thread; the
    one of batches, and that of the first stage, are compiled when they are first used.

    Args:
        stored: Config and files of the model.
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16", for layers of the second stage.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, or the weights are damaged.
    """

    names: Sequence[str] = stage_graphs.TEXT  # of the second stage's inputs, two for each text

    def __init__(self, stored: StoredModel, runtime: str, dtype: str) -> None:
        self._compiled = CompiledGraphs(runtime, dtype)
        self.runtime, self.device, self.dtype = runtime, "cpu", dtype
        self.threads = batch_threads()
        self.tokens_at_once: int | None = TOKENS_AT_ONCE
        self.config = stored.config
        self.stored = stored
        self._context_path = stored.context_path()
        self.words = stored.word_embeddings()
        self._second_stage(1)

    def read(self, rows: Sequence[Sequence[int]]) -> Float32[np.ndarray, "batch dim"]:
        """Embed token ids with the first stage; dimensions of a pair's second half are zero."""
        own, *_ = self.texts(rows)
        found = self._first_stage().run(dict(zip(stage_graphs.TEXT, own, strict=True)))
        return np.pad(found, ((0, 0), (0, self.config.dim - self.stored.first.dim)))

    def prepare(self, context: Float32[np.ndarray, "context dim"], counts: Int[np.ndarray, " context"]) -> ArrayContext:
        """Compute the input of the second stage from context embeddings, once per Context."""
        first = self.stored.first
        return array_context.prepare(first, self._context_path, context[:, : first.dim], counts)

    def embed(
        self,
        rows: Sequence[Sequence[int]],
        role: int,
        prepared: Any,
        siblings: Float32[np.ndarray, "batch siblings dim"] | None,
        sibling_mask: Bool[np.ndarray, "batch siblings"] | None,
    ) -> Float32[np.ndarray, "batch dim"]:
        """Embed one batch of token ids with the second stage."""
        if not isinstance(prepared, ArrayContext):
            raise not_prepared(prepared)
        texts = itertools.chain.from_iterable(self.texts(rows))
        dim = self.stored.first.dim
        if siblings is None or sibling_mask is None:
            siblings, sibling_mask = np.zeros((len(rows), 1, dim), np.float32), np.zeros((len(rows), 1), np.bool_)
        inputs: dict[str, Shaped[np.ndarray, ...]] = {
            **dict(zip(self.names, texts, strict=True)),
            "role": np.array(role, dtype=np.int64),
            "keys": prepared.keys,
            "values": prepared.values,
            "output_map": prepared.output_map,
            "sibling_weight": prepared.sibling_weight,
            "siblings": np.ascontiguousarray(siblings[..., :dim]),
            "sibling_mask": sibling_mask.astype(np.float32),
        }
        threads = 1 if role == QUERY and len(rows) == 1 else self.threads
        return self._second_stage(threads).run(inputs)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[Text]:
        """Return the graphs' inputs of texts; of a pair for each half."""
        (words,) = self.words
        return [embedded(words, rows, self.stored.first.max_positions)]

    def _first_stage(self) -> CompiledGraph:
        stored = self.stored
        return self._compiled.get(
            "first", self.threads, lambda: kept_graph(stored.first_digest, "first", stored.first_stage), "float32"
        )

    def _second_stage(self, threads: int) -> CompiledGraph:
        stored = self.stored
        return self._compiled.get("second", threads, lambda: kept_graph(stored.digest, "second", stored.second_stage))

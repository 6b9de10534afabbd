"""Stages of a one-way model or a pair run as ONNX graphs, without torch."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped

from cde_rag.errors import ModelError
from cde_rag.model.config import ModelConfig
from cde_rag.model.mapped_tensors import MappedTensors
from cde_rag.model.model_files import (
    TOKENIZER,
    check,
    check_first_half,
    checked,
    digest,
    first_half,
    read_header,
)
from cde_rag.model.pair.pair_config import PairConfig, is_pair
from cde_rag.model.pair.pair_tokenizer import PairTokenizer
from cde_rag.model.roles import QUERY
from cde_rag.model.runtimes import array_context, stage_graphs
from cde_rag.model.runtimes.array_context import ArrayContext
from cde_rag.model.runtimes.engines import CompiledGraph, CompiledGraphs
from cde_rag.model.runtimes.graph_cache import kept_graph
from cde_rag.model.stage_runner import not_prepared
from cde_rag.model.stored_tensors import float_state
from cde_rag.model.threads import batch_threads
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.word_embeddings import Text, WordEmbeddings, embedded

FIRST: Final = "first."  # names of the weights of a pair's first half begin so
SECOND: Final = "second."


@dataclass(frozen=True)
class StoredModel:
    """Config, tokenizer and files of a model; weights are read from the files whenever they are needed.

    Attributes:
        config: Sizes of the model.
        first: Sizes of its first half, of a pair; of the model itself otherwise.
        tokenizer: Tokenizer of both stages.
        digest: Digest of config and weights.
        first_digest: Likewise, of the first half.
        files: Files of weights with their sha256, by the prefix of their names.
    """

    config: ModelConfig | PairConfig
    first: ModelConfig
    tokenizer: TextTokenizer
    digest: str
    first_digest: str
    files: Mapping[str, Sequence[tuple[Path, str]]]

    @classmethod
    def read(cls, folder: Path) -> "StoredModel":
        """Read a model folder, but for its weights.

        Raises:
            ModelError: A file is missing, damaged or of a newer format, or a pair's first half is another one.
        """
        header = read_header(folder)
        serialised = checked(folder / TOKENIZER, header.tokenizer_sha256).decode()
        own = header.weights(folder)
        if not is_pair(header.config):
            sizes = ModelConfig.from_json(header.config)
            found = digest(sizes, header.all_weights_sha256)
            return cls(sizes, sizes, TextTokenizer(serialised), found, found, {"": own})
        config = PairConfig.from_json(header.config)
        first = cls.read(first_half(config.name, config.first))
        check_first_half(config.name, config.first, expected=config.first_sha256, found=first.digest)
        if config.dim != first.first.dim + config.second_dim:
            raise ModelError(
                f"The config's dim has to be {first.first.dim} + {config.second_dim}, its halves'; found {config.dim}."
            )
        tokenizer = PairTokenizer(first.tokenizer, first.first.vocab_size, serialised)
        files = {"": own, FIRST: first.files[""]}
        return cls(config, first.first, tokenizer, digest(config, header.all_weights_sha256), first.digest, files)

    @property
    def of_first(self) -> str:
        """Prefix of the names of the one-way model's weights."""
        return FIRST if isinstance(self.config, PairConfig) else ""

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
        """Map the word embeddings into memory: one table, or one for each half of a pair."""
        paths = {prefix: [path for path, _ in files] for prefix, files in self.files.items()}
        own = [WordEmbeddings(paths[self.of_first], stage_graphs.WORDS)]
        return [*own, WordEmbeddings(paths[""], SECOND + stage_graphs.WORDS)] if self.of_first else own

    def second_stage(self) -> bytes:
        """Build the graph of the second stage."""
        if isinstance(self.config, PairConfig):
            return stage_graphs.pair_graph(self.config, self.first, self._complete())
        return stage_graphs.second_stage_graph(self.config, self._complete())

    def first_stage(self) -> bytes:
        """Build the graph of the first stage."""
        return stage_graphs.first_stage_graph(self.first, stage_graphs.part(self._complete(), self.of_first))

    def _complete(self) -> "_Weights":
        return _Weights(self.state())


class _Weights(dict[str, Float32[np.ndarray, "..."]]):
    """Weights by name; a missing one is an error of the model's files."""

    def __missing__(self, name: str) -> Float32[np.ndarray, "..."]:
        raise ModelError(f"Expected the weight {name}, which the model's config describes, found none. Make it again.")


class GraphRunner:
    """Both stages of a one-way model or a pair as compiled graphs, on the CPU. Thread-safe.

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

    def __init__(self, stored: StoredModel, runtime: str, dtype: str) -> None:
        self._compiled = CompiledGraphs(runtime, dtype)
        self.runtime, self.device, self.dtype = runtime, "cpu", dtype
        self.threads = batch_threads()
        self.config = stored.config
        self.stored = stored
        self._context_path = stored.context_path()
        self._words = stored.word_embeddings()
        self._second_stage(1)

    def read(self, rows: Sequence[Sequence[int]]) -> Float32[np.ndarray, "batch dim"]:
        """Embed token ids with the first stage; a pair's second half has zeros."""
        own, *_ = self._texts(rows)
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
        names = (*stage_graphs.TEXT, *stage_graphs.SECOND_TEXT)
        texts = itertools.chain.from_iterable(self._texts(rows))
        dim = self.stored.first.dim
        if siblings is None or sibling_mask is None:
            siblings, sibling_mask = np.zeros((len(rows), 1, dim), np.float32), np.zeros((len(rows), 1), np.bool_)
        inputs: dict[str, Shaped[np.ndarray, ...]] = {
            **dict(zip(names, texts, strict=False)),  # the second text is a pair's
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

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[Text]:
        """Return the graphs' inputs of texts; for a pair those of each half."""
        halves, sizes = [rows], [self.stored.first]
        if isinstance(self.config, PairConfig):
            sizes.append(self.config.second)
            start = self.stored.first.vocab_size
            first = [[each for each in row if each < start] for row in rows]
            halves = [first, [[each - start for each in row if each >= start] for row in rows]]
        return [
            embedded(words, each, config.max_positions)
            for words, each, config in zip(self._words, halves, sizes, strict=True)
        ]

    def _first_stage(self) -> CompiledGraph:
        stored = self.stored
        return self._compiled.get(
            "first", self.threads, lambda: kept_graph(stored.first_digest, "first", stored.first_stage), "float32"
        )

    def _second_stage(self, threads: int) -> CompiledGraph:
        stored = self.stored
        return self._compiled.get("second", threads, lambda: kept_graph(stored.digest, "second", stored.second_stage))

"""Sentence-transformers models with a BERT encoder, run as an ONNX graph by OpenVINO or ONNX Runtime, without torch."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag.models.batching import tight_buckets
from cde_rag.models.files.word_embeddings import embedded
from cde_rag.models.one_way.graph import TEXT
from cde_rag.models.plain.checkpoint import check_shortened
from cde_rag.models.plain.config import BertEncoder
from cde_rag.models.plain.text_model import ReadText
from cde_rag.models.runtimes.engines import CompiledGraph, CompiledGraphs
from cde_rag.models.runtimes.graph_cache import kept_graph
from cde_rag.models.runtimes.threads import batch_threads

WHOLE = 2**20  # tokens of a text that is not cut


class GraphTextModel:
    """A BERT encoder with its pooling as a compiled graph, on the CPU; see `TextModel`.

    The graph is built on first use, and kept in the user's cache folder. A single query has a compiled graph of one
    thread.

    Args:
        encoder: Config, tokenizer and files of the model.
        digest: Digest of its weights, the graph's name in the cache.
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16".
        max_length: Maximum tokens of a text; by default the model's own.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, the weights were written meanwhile, or it reads fewer tokens.
    """

    def __init__(self, encoder: BertEncoder, digest: str, runtime: str, dtype: str, *, max_length: int | None) -> None:
        if max_length is not None:
            check_shortened(max_length, encoder.config.max_length)
        self._encoder, self._digest = encoder, digest
        self._compiled = CompiledGraphs(runtime, dtype)
        self.runtime, self.device, self.dtype = runtime, "cpu", dtype
        self.max_length = encoder.config.max_length if max_length is None else max_length
        self.has_offsets, self.special_tokens = True, encoder.tokenizer.special_tokens
        self._threads = batch_threads()
        self._words = encoder.word_embeddings()
        self._graph(1)

    def lengths(self, texts: Sequence[str], prefix: str) -> list[int]:
        """Count the tokens of each text without truncation, prefix and special tokens included."""
        return [len(tokens.ids) for tokens in self._encoder.tokenizer(texts, WHOLE, prefix=prefix)]

    def read(self, texts: Sequence[str], prefix: str) -> list[ReadText]:
        """Tokenize texts, up to the model's limit."""
        tokenized = self._encoder.tokenizer(texts, self.max_length, prefix=prefix)
        return [ReadText(tokens.ids, len(tokens.ids) + tokens.truncated) for tokens in tokenized]

    def reach(self, text: str, tokens: int) -> int:
        """Return the number of characters of a text that its first tokens take, special tokens apart."""
        return self._encoder.tokenizer.reach([text], tokens + self.special_tokens)[0]

    def embed(
        self,
        texts: Sequence[ReadText],
        *,
        role: str,
        prefix: str,  # noqa: ARG002 (it is among the tokens that were read)
        batch_size: int,
        progress: bool,
    ) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts; the vectors have unit norm."""
        graph = self._graph(1 if role == "query" and len(texts) == 1 else self._threads)
        rows = [cast("list[int]", text.content) for text in texts]
        vectors = np.empty((len(rows), self._encoder.config.dim), dtype=np.float32)
        with tqdm(total=len(rows), unit="text", disable=not progress) as bar:
            for bucket in tight_buckets([len(row) for row in rows], batch_size):
                text = embedded(self._words, [rows[place] for place in bucket], self._encoder.config.max_positions)
                vectors[bucket] = graph.run(dict(zip(TEXT, text, strict=True)))
                bar.update(len(bucket))
        return vectors

    def _graph(self, threads: int) -> CompiledGraph:
        return self._compiled.get("plain", threads, lambda: kept_graph(self._digest, "plain", self._encoder.graph))

"""Sentence-transformers models run as an ONNX graph by OpenVINO or ONNX Runtime, without torch."""

from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import numpy as np
from jaxtyping import Bool, Float32, Int64, Shaped
from tqdm import tqdm

from cde_rag.models.batching import TOKENS_AT_ONCE, padded, tight_buckets
from cde_rag.models.files.word_embeddings import WordEmbeddings
from cde_rag.models.one_way.graph import TEXT
from cde_rag.models.plain.bert import POSITIONS, BertEncoder
from cde_rag.models.plain.checkpoint import check_shortened
from cde_rag.models.plain.config import StoredEncoder, TextEncoder, read_prompts
from cde_rag.models.plain.graph import WEIGHTS, text_graph
from cde_rag.models.plain.text_model import ReadText
from cde_rag.models.runtimes.engines import CompiledGraph, CompiledGraphs
from cde_rag.models.runtimes.graph_cache import kept_graph
from cde_rag.models.runtimes.threads import batch_threads

WHOLE: Final = 2**20  # tokens of a text that is not cut


class GraphTextModel:
    """An encoder with its head as a compiled graph, on the CPU; see `TextModel`.

    The graph is built on first use, and kept in the user's cache folder. A single query has a compiled graph of one
    thread.

    Args:
        model: Config, tokenizer and files of the model.
        digest: Digest of its weights, the graph's name in the cache.
        stage: Name of the graph among those of the model.
        runtime: "openvino" or "onnx".
        dtype: "float32"; with OpenVINO also "bfloat16".
        max_length: Maximum tokens of a text; by default the model's own.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, the weights were written meanwhile, or it reads fewer tokens.
    """

    def __init__(
        self, model: TextEncoder, digest: str, stage: str, runtime: str, dtype: str, *, max_length: int | None
    ) -> None:
        if max_length is not None:
            check_shortened(max_length, model.max_length)
        self._model, self._digest, self._stage = model, digest, stage
        self._compiled = CompiledGraphs(runtime, dtype)
        self.runtime, self.device, self.dtype = runtime, "cpu", dtype
        self.max_length = model.max_length if max_length is None else max_length
        self.has_offsets, self.special_tokens = True, model.tokenizer.special_tokens
        self.dim, self.prompts = model.head.dim, read_prompts(model.files)
        self._threads = batch_threads()
        self._words = model.table(model.encoder.words)
        self._graph(1)

    def lengths(self, texts: Sequence[str], prefix: str) -> list[int]:
        """Count the tokens of each text without truncation, prefix and special tokens included."""
        return [len(tokens.ids) for tokens in self._model.tokenizer(texts, WHOLE, prefix=prefix)]

    def read(self, texts: Sequence[str], prefix: str) -> list[ReadText]:
        """Tokenize texts, up to the model's limit."""
        tokenized = self._model.tokenizer(texts, self.max_length, prefix=prefix)
        return [ReadText(tokens.ids, len(tokens.ids) + tokens.truncated) for tokens in tokenized]

    def reach(self, text: str, tokens: int) -> int:
        """Return the number of characters of a text that its first tokens take, special tokens apart."""
        return self._model.tokenizer.reach([text], tokens + self.special_tokens)[0]

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
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        with tqdm(total=len(rows), unit="text", disable=not progress) as bar:
            for bucket in tight_buckets([len(row) for row in rows], batch_size, TOKENS_AT_ONCE):
                vectors[bucket] = graph.run(self._inputs([rows[place] for place in bucket]))
                bar.update(len(bucket))
        return vectors

    def _inputs(self, rows: Sequence[Sequence[int]]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """Return the graph's inputs of texts, padded."""
        ids, mask, words = embedded_tokens(self._model, self._words, rows)
        weights = self._model.head.word_weights
        given: dict[str, Shaped[np.ndarray, ...]] = dict(zip(TEXT, (words, mask.astype(np.float32)), strict=True))
        return given if weights is None else {**given, WEIGHTS: np.where(mask, weights.of(ids), np.float32(0))}

    def _graph(self, threads: int) -> CompiledGraph:
        build = partial(text_graph, self._model)
        return self._compiled.get(self._stage, threads, lambda: kept_graph(self._digest, self._stage, build))


def embedded_tokens(
    model: StoredEncoder, table: WordEmbeddings, rows: Sequence[Sequence[int]]
) -> tuple[
    Int64[np.ndarray, "batch tokens"], Bool[np.ndarray, "batch tokens"], Float32[np.ndarray, "batch tokens dim"]
]:
    """Pad token ids, and return them with their mask and the word embeddings that the encoder's graph is given.

    Args:
        model: The encoder.
        table: Its word embeddings.
        rows: Token ids of each text.
    """
    encoder = model.encoder
    ids, mask = padded(rows, room=encoder.sizes.max_positions)
    words = table(ids)
    if isinstance(encoder, BertEncoder) and encoder.first:
        usual = encoder.usual_places(ids.shape[1])
        places = np.where(mask, encoder.places(ids), usual)
        if (places != usual).any():  # a text has the token of padding in it
            positions = model.table(POSITIONS)
            words += positions(places) - positions(usual)
    return ids, mask, words

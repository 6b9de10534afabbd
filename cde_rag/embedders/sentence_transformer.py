"""Embedder without context from a sentence-transformers model, as a start for a collection or a way back.

Each text is embedded by itself, as by `encode_query` or `encode_document`; with `windows`, so is each window of a
longer text. BERT encoders run in the fastest runtime of the machine, others in torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cde_rag._validation import check_positive
from cde_rag.context.context import Context
from cde_rag.embedders.context_free import ContextFreeEmbedder
from cde_rag.embedders.protocol import Embedded, EmbedderOptions
from cde_rag.embedders.sentence_transformer_runtimes import load
from cde_rag.embedders.text_model import ReadText
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError
from cde_rag.model.windows import cut_into_windows, pool_windows


class PlainEmbedder(ContextFreeEmbedder):
    """A sentence-transformers model as a collection's embedder, without context. Thread-safe.

    Its Context is the null context, its fingerprint that of its files. `embed_documents`, as a function of texts, is
    also a surrogate for training.

    Args:
        model: A folder of a SentenceTransformer, or a hub id such as "sentence-transformers/all-MiniLM-L6-v2", with
            `@revision` if need be; the name in its identity finds the very same model again.
        max_length: Maximum tokens of a text; by default the model's own.
        prefixes: Prefixes of a "query" and a "document"; by default the model's own prompts.
        windows: Read texts longer than `max_length` in windows, and average their vectors, weighted by tokens; by
            default they are cut. Part of the fingerprint. Not measured with plain models: split long texts if you can.
        device: Such as "cpu" or "cuda"; by default CUDA if available.
        dtype: "float32", "bfloat16" or "float16"; by default the fastest in the same vector space, or in torch as
            sentence-transformers loads it.
        runtime: "torch", "openvino" or "onnx"; by default the environment's CDE_RAG_RUNTIME, or the fastest that is
            installed: the first use of a model on a machine measures for some seconds. BERT encoders with mean or CLS
            pooling (MiniLM, e5, bge) run in all three, GPUs and other models need torch.
        mini_batch_size: Texts per forward pass; lower it when memory runs out.

    Raises:
        MissingExtraError: The runtime is not installed; torch needs the extra `interop`.
        ModelError: There is no such model; it is no SentenceTransformer, lacks safetensors, brings its own code, needs
            files of another folder (such as an adapter's base), or reads fewer tokens; or prefixes for other roles; or
            windows of a model that cuts no text, or whose tokenizer has no positions; or the runtime does not run it.
        ValueError: `mini_batch_size` is below 1.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_length: int | None = None,
        prefixes: Mapping[str, str] | None = None,
        windows: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        runtime: str | None = None,
        mini_batch_size: int = 32,
    ) -> None:
        check_positive(mini_batch_size, "mini_batch_size")
        self._model, identity = load(
            str(model), max_length=max_length, prefixes=prefixes, device=device, dtype=dtype, runtime=runtime
        )
        if windows and not (identity.max_length and self._model.has_offsets):
            raise ModelError(
                f"windows=True needs a model that cuts texts, with a fast tokenizer; found {identity.name}, "
                f"{'whose tokenizer is slow' if identity.max_length else 'which reads texts of any length'}. Leave "
                "windows out."
            )
        self.identity = identity.reading(windows=windows)
        self.mini_batch_size = mini_batch_size
        self._dtype, self._runtime = dtype, runtime
        self.context = Context.null(self)

    def __repr__(self) -> str:
        return f"PlainEmbedder({self.identity.name})"

    @property
    def device(self) -> str:
        """Device of the model, such as "cpu"."""
        return self._model.device

    @property
    def runtime(self) -> str:
        """Runtime of the model: "torch", "openvino" or "onnx"."""
        return self._model.runtime

    @property
    def dtype(self) -> str:
        """Dtype of the model's layers."""
        return self._model.dtype

    @property
    def options(self) -> EmbedderOptions:
        """Device, dtype, runtime and batch size, for the embedder that follows this one."""
        return EmbedderOptions(
            device=self.device, dtype=self._dtype, runtime=self._runtime, mini_batch_size=self.mini_batch_size
        )

    def rebound(self, context: Context) -> "PlainEmbedder":
        """Return this embedder if the context is its own.

        Raises:
            ContextMismatchError: The context is another model's.
        """
        made = replace(context.identity, name="")
        if made != replace(self.identity, name=""):
            if made == replace(self.identity.reading(windows=not self.identity.windows), name=""):
                raise ContextMismatchError(
                    expected=context.fingerprint,
                    found=self.fingerprint,
                    remedy=f"They were made by the same model with windows={context.identity.windows}: give it so.",
                )
            raise ContextMismatchError(
                expected=context.identity.weights_sha256,
                found=self.identity.weights_sha256,
                remedy=f"They were made with {context.identity.name!r}: Collection.open(store) brings it back.",
            )
        return self

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts after truncation, prefixes and special tokens included."""
        limit, prefix = self.identity.max_length, self.identity.prefixes["document"]
        if not limit:
            return sum(self._model.lengths(texts, prefix))
        read = self._model.read(texts, prefix)
        if self.identity.windows:
            read, _ = self._in_windows(texts, read, prefix)
        return sum(min(each.tokens, limit) for each in read)

    def _embed(self, texts: Sequence[str], role: str, *, progress: bool = False) -> Embedded:
        if not texts:
            return Embedded(np.empty((0, self.dim), dtype=np.float32), np.empty(0, dtype=np.bool_))
        limit, prefix = self.identity.max_length, self.identity.prefixes[role]
        read = self._model.read(texts, prefix)
        truncated = np.array([each.tokens > limit for each in read])
        starts = list(range(len(texts)))
        if self.identity.windows:
            read, starts = self._in_windows(texts, read, prefix)
            truncated[:] = False
        vectors = self._model.embed(read, role=role, prefix=prefix, batch_size=self.mini_batch_size, progress=progress)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if len(blank := np.searchsorted(starts, np.flatnonzero(norms < 1e-9), side="right") - 1):
            raise CorpusError(
                f"Text {blank[0]} has no word that {self.identity.name} knows; leave it out or give it content."
            )
        pooled = pool_windows(vectors / norms, [min(each.tokens, limit) or 1 for each in read], starts)
        return Embedded(pooled, truncated)

    def _in_windows(
        self, texts: Sequence[str], read: Sequence[ReadText], prefix: str
    ) -> tuple[list[ReadText], list[int]]:
        """Cut texts that exceed the token limit into windows; return all as they are read, and their first rows."""
        limit, model = self.identity.max_length, self._model
        before = model.lengths(["a"], prefix)[0] - model.lengths(["a"], "")[0]
        room = max(limit - model.special_tokens - before, 1)
        found: list[ReadText] = []
        starts: list[int] = []
        for text, whole in zip(texts, read, strict=True):
            starts.append(len(found))
            if whole.tokens <= limit:
                found.append(whole)
            else:
                found += model.read(cut_into_windows(text, lambda part: model.reach(part, room), room), prefix)
        return found, starts

    def _no_siblings(self) -> ModelError:
        return ModelError(f"{self.identity.name} reads no siblings: it is a plain model. Leave parents out.")

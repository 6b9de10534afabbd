"""Model of sentence-transformers: each text by itself, as by `encode_query` or `encode_document`.

With windows, each window of a longer text is embedded so. BERT encoders run in the fastest runtime of the machine,
others in torch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError
from cde_rag.models.model import QUERY, Embedded
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.config import BertEncoder
from cde_rag.models.plain.corpus_map import unit
from cde_rag.models.plain.graph import GraphTextModel
from cde_rag.models.plain.network import TorchTextModel
from cde_rag.models.plain.plain_model import PlainModel
from cde_rag.models.plain.text_model import OtherArchitectureError, ReadText, TextModel
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.stage_runner import DTYPES
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.shared import Shared
from cde_rag.models.windows import cut_into_windows, pool_windows


def _loaded(
    name: str,
    max_length: int | None,
    prefixes: Mapping[str, str] | None,
    device: str | None,
    dtype: str | None,
    runtime: str | None,
) -> tuple[TextModel, ModelIdentity]:
    """Load a SentenceTransformer and compute its identity; its files are hashed before they are read.

    Within a process the embedders of a model share it. A named runtime has float32 by default, since bfloat16 shares
    the vector space of some models only.
    """
    if prefixes is not None and set(prefixes) != {"query", "document"}:
        raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"Expected dtype {', '.join(DTYPES)}, found {dtype!r}.")
    asked, files = runtime_choice.asked(runtime), ModelFiles.find(name)
    source = (files.name, tuple(files.digests.items()), tuple(files.written), max_length, batch_threads())
    encoder = None if asked == "torch" else _encoder(files, runtime)
    if encoder is not None:
        identity = files.identity(
            prompts=encoder.prompts,
            prefixes=prefixes,
            max_length=encoder.config.max_length if max_length is None else max_length,
            dim=encoder.config.dim,
        )
        given = dtype if asked is None else dtype or "float32"
        asked, dtype = runtime_choice.choose(asked, lambda: timings(encoder, identity), device=device, dtype=given)
        if asked != "torch":
            chosen, digest = (asked, dtype or "float32"), identity.weights_sha256
            graph = _GRAPHS.get(
                (source, chosen), lambda: GraphTextModel(encoder, digest, *chosen, max_length=max_length)
            )
            return graph, identity
    model = _NETWORKS.get(
        (source, device, dtype), lambda: TorchTextModel(files, max_length=max_length, device=device, dtype=dtype)
    )
    return model, files.identity(
        prompts=model.model.prompts,
        prefixes=prefixes,
        max_length=model.max_length,
        dim=model.model.get_embedding_dimension(),
    )


def timings(encoder: BertEncoder, identity: ModelIdentity) -> Sequence[runtime_choice.Timing]:
    """Return the times of a model's runtimes on this machine, measured once and kept in the user's cache.

    Args:
        encoder: The model.
        identity: Its identity.
    """
    digest = hashlib.sha256((identity.weights_sha256 + identity.tokenizer_sha256).encode()).hexdigest()

    def trial(runtime: str, dtype: str) -> runtime_choice.Trial:
        model = (
            TorchTextModel(encoder.files, max_length=None, device="cpu", dtype=dtype)
            if runtime == "torch"
            else GraphTextModel(encoder, identity.weights_sha256, runtime, dtype, max_length=None)
        )
        texts, question = runtime_choice.sample()
        documents, query = model.read(texts, ""), model.read([question], "")

        def embed(read: Sequence[ReadText], role: str) -> Float32[np.ndarray, "texts dim"]:
            return unit(model.embed(read, role=role, prefix="", batch_size=len(texts), progress=False))

        return runtime_choice.Trial(runtime, dtype, lambda: embed(documents, "document"), lambda: embed(query, "query"))

    return runtime_choice.timings(digest, identity.name, trial)


def _encoder(files: ModelFiles, runtime: str | None) -> BertEncoder | None:
    """Return a model that graphs can express; None for one that torch runs."""
    try:
        return BertEncoder.read(files)
    except OtherArchitectureError as found:
        if runtime is None:
            return None
        raise ModelError(
            f"{files.name}: the runtime {runtime!r} runs BERT encoders with mean or CLS pooling, found {found}. Leave "
            "runtime out."
        ) from found


_GRAPHS: Final = Shared[GraphTextModel]()
_NETWORKS: Final = Shared[TorchTextModel]()


class SentenceTransformerModel(PlainModel):
    """A sentence-transformers model; see `PlainEmbedder`, which documents arguments and errors."""

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
        self._model, identity = _loaded(str(model), max_length, prefixes, device, dtype, runtime)
        if windows and not (identity.max_length and self._model.has_offsets):
            raise ModelError(
                f"windows=True needs a model that cuts texts, with a fast tokenizer; found {identity.name}, "
                f"{'whose tokenizer is slow' if identity.max_length else 'which reads texts of any length'}. Leave "
                "windows out."
            )
        self.identity = identity.with_windows(windows=windows)
        self.mini_batch_size = mini_batch_size
        self.device, self.runtime, self.dtype = self._model.device, self._model.runtime, self._model.dtype
        self.given_dtype, self.given_runtime = dtype, runtime

    def __repr__(self) -> str:
        return f"SentenceTransformerModel({self.identity.name})"

    def known(self, context: Context) -> "SentenceTransformerModel":
        """Return the model if a Context is its own; raises ContextMismatchError otherwise."""
        made, own = replace(context.identity.plain, name=""), replace(self.identity, name="")
        if made == own:
            return self
        if made == own.with_windows(windows=not own.windows):
            raise ContextMismatchError(
                expected=context.fingerprint,
                found=own.weights_sha256,
                remedy=f"They were made by the same model with windows={made.windows}: give it so.",
            )
        raise ContextMismatchError(
            expected=made.weights_sha256,
            found=own.weights_sha256,
            remedy=f"They were made with {context.identity.name!r}: Collection.open(store) brings it back.",
        )

    def count_tokens(self, texts: Sequence[str], *, windows: bool) -> int:
        """Count the tokens of all texts as they are read, prefixes and special tokens included."""
        limit, prefix = self.identity.max_length, self.identity.prefixes["document"]
        if not limit:
            return sum(self._model.lengths(texts, prefix))
        read = self._model.read(texts, prefix)
        if windows:
            read, _ = self._in_windows(texts, read, prefix)
        return sum(min(each.tokens, limit) for each in read)

    def plain(self, texts: Sequence[str], role: int, mini_batch_size: int, *, progress: bool = False) -> Embedded:
        """Embed each text by itself.

        Raises:
            CorpusError: A text has no word that the model knows.
        """
        if not texts:
            return Embedded(np.empty((0, self.dim), dtype=np.float32), np.empty(0, dtype=np.bool_))
        task = "query" if role == QUERY else "document"
        limit, prefix = self.identity.max_length, self.identity.prefixes[task]
        read = self._model.read(texts, prefix)
        truncated = np.array([each.tokens > limit for each in read])
        starts = list(range(len(texts)))
        if self.identity.windows:
            read, starts = self._in_windows(texts, read, prefix)
            truncated[:] = False
        vectors = self._model.embed(read, role=task, prefix=prefix, batch_size=mini_batch_size, progress=progress)
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

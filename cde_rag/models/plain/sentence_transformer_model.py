"""Model of sentence-transformers: each text by itself, as by `encode_query` or `encode_document`.

With windows, each window of a longer text is embedded so. BERT encoders run in the fastest runtime of the machine,
others in torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cde_rag.context.context import Context
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError
from cde_rag.models.model import QUERY, Embedded
from cde_rag.models.plain.load import load
from cde_rag.models.plain.plain_model import PlainModel
from cde_rag.models.plain.text_model import ReadText
from cde_rag.models.windows import cut_into_windows, pool_windows


class SentenceTransformerModel(PlainModel):
    """A sentence-transformers model; see `PlainEmbedder`, which documents arguments and errors.

    Its `folder` is None: workers of a pool load contextual models only.
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
        self.device, self.runtime, self.dtype = self._model.device, self._model.runtime, self._model.dtype
        self.given_dtype, self.given_runtime = dtype, runtime

    def __repr__(self) -> str:
        return f"SentenceTransformerModel({self.identity.name})"

    def known(self, context: Context) -> "SentenceTransformerModel":
        """Return the model if a Context is its own; raises ContextMismatchError otherwise."""
        made, own = replace(context.identity.plain, name=""), replace(self.identity, name="")
        if made == own:
            return self
        if made == own.reading(windows=not own.windows):
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

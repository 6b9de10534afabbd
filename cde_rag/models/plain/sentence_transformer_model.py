"""Model of sentence-transformers: each text by itself, as by `encode_query` or `encode_document`.

With windows, each window of a longer text is embedded so. Queries may take another way than documents, or be another
model's; then both ways make one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from cde_rag.context.context import Context
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError
from cde_rag.models.files.weights import MODULES
from cde_rag.models.model import Embedded
from cde_rag.models.plain.checkpoint import ModelFiles, digest_of
from cde_rag.models.plain.plain_model import PlainModel
from cde_rag.models.plain.prompts import prefixes_of
from cde_rag.models.plain.text_model import ReadText, TextModel
from cde_rag.models.plain.tower import Tower, load_towers
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.attention import AUTO, Attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import DTYPES, QUERY, Dtype
from cde_rag.models.windows import cut_into_windows, pool_windows

QUERY_MODEL: Final = "?query_model="  # in the name of a model whose queries another one reads


class SentenceTransformerModel(PlainModel):
    """A sentence-transformers model; see `PlainEmbedder`, which documents arguments and errors."""

    def __init__(
        self,
        model: str | Path,
        *,
        query_model: str | Path | None = None,
        max_length: int | None = None,
        prefixes: Mapping[str, str] | None = None,
        windows: bool = False,
        device: str | None = None,
        dtype: Dtype | None = None,
        runtime: Runtime | None = None,
        attn_implementation: Attention = AUTO,
        mini_batch_size: int = 32,
    ) -> None:
        if prefixes is not None and set(prefixes) != {"query", "document"}:
            raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
        if dtype is not None and dtype not in DTYPES:
            raise ModelError(f"Expected dtype {', '.join(DTYPES)}, found {dtype!r}.")
        runtime_choice.asked(runtime)
        files = _files(str(model), None if query_model is None else str(query_model))
        towers = {role: Tower.read(each, role) for role, each in files.items()}
        self._models = load_towers(
            towers,
            max_length=max_length,
            device=device,
            dtype=dtype,
            runtime=runtime,
            attention=attn_implementation,
        )
        identity = _identity(files, self._models, prefixes)
        self._model = self._models["document"]
        if windows and not (identity.max_length and self._model.has_offsets):
            raise ModelError(
                f"windows=True needs a model that cuts texts, with a fast tokenizer; found {identity.name}, "
                f"{'whose tokenizer is slow' if identity.max_length else 'which reads texts of any length'}. Leave "
                "windows out."
            )
        self.identity, self.folder = identity.with_windows(windows=windows), files["document"].folder
        self.mini_batch_size = mini_batch_size
        self.device, self.runtime, self.dtype = self._model.device, self._model.runtime, self._model.dtype
        self.given_dtype, self.given_runtime, self.given_attention = dtype, runtime, attn_implementation

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
        if not limit or (windows and not self._model.has_offsets):  # a slow tokenizer finds no ends of windows
            return sum(self._model.lengths(texts, prefix))
        read = self._model.read(texts, prefix)
        if windows:
            read, _ = _in_windows(self._model, texts, read, prefix)
        return sum(min(each.tokens, limit) for each in read)

    def plain(self, texts: Sequence[str], role: int, mini_batch_size: int, *, progress: bool = False) -> Embedded:
        """Embed each text by itself.

        Raises:
            CorpusError: A text has no word that the model knows.
            ModelError: A vector holds NaN or infinity, by damaged weights or a dtype without its range.
        """
        if not texts:
            return Embedded(np.empty((0, self.dim), dtype=np.float32), np.empty(0, dtype=np.bool_))
        task = "query" if role == QUERY else "document"
        model, prefix = self._models[task], self.identity.prefixes[task]
        read, limit = model.read(texts, prefix), model.max_length
        truncated = np.array([each.is_cut or each.tokens > limit for each in read])
        starts = list(range(len(texts)))
        if self.identity.windows and limit and model.has_offsets:
            read, starts = _in_windows(model, texts, read, prefix)
            truncated[:] = False
        vectors = model.embed(read, role=task, prefix=prefix, batch_size=mini_batch_size, progress=progress)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(norms).all():
            raise ModelError(
                f"{self.identity.name} makes vectors that are no numbers, in {model.dtype}. Download it again, or give "
                "dtype='float32'."
            )
        if len(blank := np.searchsorted(starts, np.flatnonzero(norms < 1e-9), side="right") - 1):
            raise CorpusError(
                f"Text {blank[0]} has no word that {self.identity.name} knows; leave it out or give it content."
            )
        pooled = pool_windows(vectors / norms, [min(each.tokens, limit) or 1 for each in read], starts)
        return Embedded(pooled, truncated)


def _files(model: str, query_model: str | None) -> dict[str, ModelFiles]:
    """Find the files of a model for each role."""
    documents, _, queries = model.partition(QUERY_MODEL)
    if queries and query_model is not None:
        raise ModelError(f"Expected one query_model, found {queries!r} in the name and {query_model!r}. Leave one out.")
    found = ModelFiles.find(documents)
    other = queries or query_model
    return {"document": found, "query": ModelFiles.find(other) if other else found}


def _identity(
    files: Mapping[str, ModelFiles], models: Mapping[str, TextModel], prefixes: Mapping[str, str] | None
) -> ModelIdentity:
    """Return the properties that determine the vectors: all files of the model, its prefixes and its length.

    Raises:
        ModelError: Documents and queries have vectors of different lengths.
    """
    documents, queries = files["document"], files["query"]
    dims = {role: model.dim for role, model in models.items()}
    if len(set(dims.values())) > 1:
        raise ModelError(
            f"Expected vectors of one length for documents and queries, found {dims['document']} by {documents.name} "
            f"and {dims['query']} by {queries.name}. Give two models that were made for each other."
        )
    one = documents is queries
    return ModelIdentity(
        name=documents.name if one else f"{documents.name}{QUERY_MODEL}{queries.name}",
        weights_sha256=documents.weights_sha256
        if one
        else digest_of(documents.weights_sha256 + queries.weights_sha256),
        tokenizer_sha256=documents.tokenizer_sha256
        if one
        else digest_of(documents.tokenizer_sha256 + queries.tokenizer_sha256),
        attention=PLAIN,
        semantics="sentence-transformers",
        roles="prefix",
        prefixes=dict(prefixes)
        if prefixes is not None
        else {role: prefixes_of(files[role].name, models[role].prompts)[role] for role in ("query", "document")},
        max_length=models["document"].max_length,
        pooling=MODULES,
        normalisation="unit",
        dim=dims["document"],
    )


def _in_windows(
    model: TextModel, texts: Sequence[str], read: Sequence[ReadText], prefix: str
) -> tuple[list[ReadText], list[int]]:
    """Cut texts that exceed the token limit into windows; return all as they are read, and their first rows."""
    limit = model.max_length
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

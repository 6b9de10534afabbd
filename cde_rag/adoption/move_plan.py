"""Plan of a move to another model, before anything is written: rows, cost, and the quality before and after."""

import math
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag._validation import check_positive
from cde_rag.adoption.movable import Movable
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, StoreError
from cde_rag.indexing.audit import Audit, StoredVector, audit
from cde_rag.indexing.drift import own_ndcg, rare_words, run_of_words

SAMPLE: Final = 256  # texts that are embedded by the new model, and searched by two queries each
_REACH: Final = 1.645  # standard errors of an interval of 90 %
_SHOWN: Final = 20  # ids in a plan


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Plan of a move.

    Attributes:
        target: The source.
        rows: Number of its rows.
        without_text: Ids of rows without a text, at most 20.
        without_text_count: Number of such rows.
        dim: Length of the old vectors, and of the new ones.
        distance: Distance of the store's searches.
        configured: Model that the store's configuration names; None if it names none.
        audit: Comparison of the old vectors with the old model; None if that was not named.
        model: Name of the new model.
        tokens: Tokens of all texts, estimated from the sample.
        seconds: Seconds that embedding takes on this machine, estimated from the sample.
        disk_bytes: Bytes of the new vectors, with what a store keeps of each twice.
        sample: Number of texts in the comparison.
        before: NDCG@10 of generated queries in the sample with the old vectors; None without the old model.
        after: The same with the new ones.
        interval: 90 % interval of the difference; None without the old model.
    """

    target: str
    rows: int
    without_text: tuple[str, ...]
    without_text_count: int
    dim: tuple[int, int]
    distance: str
    configured: str | None
    audit: Audit | None
    model: str
    tokens: int
    seconds: float
    disk_bytes: int
    sample: int
    before: float | None
    after: float
    interval: tuple[float, float] | None

    @property
    def loses(self) -> bool:
        """True if the new model finds less: the interval of the difference is below 0."""
        return self.interval is not None and self.interval[1] < 0

    @property
    def advice(self) -> str:
        """Advice in sentences."""
        if self.before is None or self.interval is None:
            return "Name the old model (--from), to check that it made the vectors, and to compare both."
        low, high = self.interval
        found = (
            f"Queries made of {self.sample} texts find {self.before:.3f} before and {self.after:.3f} after (NDCG@10 in "
            f"the sample; difference {low:+.3f} to {high:+.3f} at 90 %)."
        )
        if self.loses:
            return f"{found} The new model loses: do not move, unless judged queries of yours say otherwise."
        return f"{found} These queries repeat words of the texts; judged queries of yours say more (cde-rag evaluate)."


def plan_move(source: Movable, embedder: Embedder, old: Embedder | None = None, *, sample: int = SAMPLE) -> MovePlan:
    """Look at a store, embed a sample with the new model, and compare; nothing is written.

    Args:
        source: The store.
        embedder: Embedder of the new model.
        old: Embedder of the old one.
        sample: Texts at most.

    Raises:
        CorpusError: The store has no text.
        StoreError: The old model did not make its vectors, or the store cannot have the new ones.
        ValueError: `sample` is below 1.
    """
    sample = check_positive(sample, "sample")
    source.check(embedder)
    audited = None if old is None else audit(source, old)
    if audited is not None and audited.others:
        raise StoreError(f"{audited.advice} Name the model that made them, or leave --from out.")
    rows, lost, count = 0, list[str](), 0
    for page in source.rows({}, old=True):
        without = [row.id for row in page if row.text is None]
        rows, count, lost = rows + len(page), count + len(without), lost + without[: _SHOWN - len(lost)]
    found = source.sample(sample)
    if not found:
        raise CorpusError(f"{source.target}: expected texts, found none. There is nothing to embed.")
    texts, facts = [each.text for each in found], source.found()
    embedder.embed_passages(texts[:1], None)  # a first call prepares the runtime
    started = time.perf_counter()
    made = embedder.embed_passages(texts, None).vectors
    seconds = (time.perf_counter() - started) * (rows - count) / len(texts)
    after = _ndcg(embedder, texts, made)
    before = None if old is None else _ndcg(old, texts, _unit(found))
    return MovePlan(
        target=source.target,
        rows=rows,
        without_text=tuple(lost),
        without_text_count=count,
        dim=(facts.dim, embedder.dim),
        distance=facts.distance,
        configured=facts.model,
        audit=audited,
        model=embedder.context.identity.name,
        tokens=embedder.count_tokens(texts) * (rows - count) // len(texts),
        seconds=seconds,
        disk_bytes=2 * 4 * embedder.dim * rows,
        sample=len(texts),
        before=None if before is None else float(before.mean()),
        after=float(after.mean()),
        interval=None if before is None else _interval(after - before),
    )


def _ndcg(
    embedder: Embedder, texts: list[str], vectors: Float32[np.ndarray, "texts dim"]
) -> Float64[np.ndarray, " texts"]:
    """Return the mean NDCG@10 of two queries made of each text."""
    kinds = (rare_words(texts), [run_of_words(text) for text in texts])
    return np.mean([own_ndcg(embedder.embed_queries(queries), vectors) for queries in kinds], axis=0)


def _unit(found: list[StoredVector]) -> Float32[np.ndarray, "texts dim"]:
    vectors = np.stack([each.vector for each in found]).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _interval(differences: Float64[np.ndarray, " texts"]) -> tuple[float, float]:
    mean, reach = float(differences.mean()), _REACH * float(differences.std()) / math.sqrt(len(differences))
    return mean - reach, mean + reach

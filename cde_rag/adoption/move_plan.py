"""Plan of a move to another model, before anything is written: rows, cost, and the quality before and after."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import numpy as np
from jaxtyping import Float32, Float64

from cde_rag._validation import check_positive
from cde_rag.adoption.application_lines import common_name
from cde_rag.adoption.movable import Movable
from cde_rag.embedders.contextual import contextual
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import CorpusError, StoreError
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.own_questions import OwnCorpus, find_answers
from cde_rag.indexing.audit import Audit, StoredVector, audit
from cde_rag.indexing.drift import own_ndcg, rare_words, run_of_words
from cde_rag.models.model import MOST_UNREAD, Unread, unread_of
from cde_rag.readers import PARENT_KEY
from cde_rag.records import Record

SAMPLE: Final = 256  # texts that are embedded by the new model, and searched by two queries each
_REACH: Final = 1.645  # standard errors of an interval of 90 %
_SHOWN: Final = 20  # ids in a plan
_DEPTH: Final = 10  # hits that count

_Scoring: TypeAlias = Callable[[Embedder, Float32[np.ndarray, "texts dim"]], Float64[np.ndarray, " queries"]]


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
        unread: Part of the sample that is longer than the new model reads, and would not be found.
        unread_before: The same of the old model; None without it.
        seconds: Seconds that embedding takes on this machine, estimated from the sample.
        disk_bytes: Bytes of the new vectors, with what a store keeps of each twice.
        sample: Number of texts in the comparison.
        judged: Number of judged queries; 0 for generated ones.
        before: NDCG@10 of these queries in the sample with the old vectors; None without the old model.
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
    unread: Unread
    unread_before: Unread | None
    seconds: float
    disk_bytes: int
    sample: int
    judged: int
    before: float | None
    after: float
    interval: tuple[float, float] | None

    @property
    def loses(self) -> bool:
        """True if the new model finds less: the interval of the difference is below 0."""
        return self.interval is not None and self.interval[1] < 0

    @property
    def advises_against(self) -> bool:
        """True if the new model finds less, or leaves more than 5 % of the tokens unread that the old one reads."""
        return self.loses or _is_loss(self.unread, self.unread_before)

    @property
    def advice(self) -> str:
        """Advice in sentences."""
        return " ".join(filter(None, (unread_advice(self.unread, self.model, self.unread_before), self._comparison)))

    @property
    def _comparison(self) -> str:
        if self.before is None or self.interval is None:
            return "Name the old model (--from), to check that it made the vectors, and to compare both."
        low, high = self.interval
        queries = f"{self.judged} judged queries" if self.judged else f"Queries made of {self.sample} texts"
        found = (
            f"{queries} find {self.before:.3f} before and {self.after:.3f} after (NDCG@10 among {self.sample} texts; "
            f"difference {low:+.3f} to {high:+.3f} at 90 %)."
        )
        if self.loses:
            but = "" if self.judged else ", unless judged queries of yours say otherwise (--judged FILE)"
            return f"{found} The new model loses: do not move{but}."
        if self.judged:
            return f"{found} {'The new model finds more.' if low > 0 else 'No difference is sure.'}"
        return f"{found} These queries repeat words of the texts; judged queries of yours say more (--judged FILE)."


def unread_in(source: Movable, embedder: Embedder, *, sample: int = SAMPLE) -> Unread:
    """Return the part of a sample of a store's texts that an embedder's model does not read; nothing is embedded.

    Args:
        source: The store.
        embedder: Embedder of the new model.
        sample: Texts at most.
    """
    return _unread(embedder, [each.text for each in source.sample(check_positive(sample, "sample"))])


def unread_advice(unread: Unread, model: str, before: Unread | None = None) -> str:
    """Return the finding about texts that a model cuts, and advice; an empty text if it cuts none.

    Args:
        unread: Result of `unread_in`, or of a plan.
        model: Name of the model.
        before: The same of the old model; None if that is not known.
    """
    if not unread.texts:
        return ""
    found = (
        f"{unread.texts} of {unread.of} sampled texts are longer than the {unread.limit} tokens that "
        f"{common_name(model)} reads: {unread.share:.1%} of the sample's tokens would not be read, and so not be found."
    )
    if not unread.is_much:
        return found
    if before is not None and not _is_loss(unread, before):
        return f"{found} The old model leaves {before.share:.1%} unread, so nothing is lost by the move."
    compared = "" if before is not None else " If the old model reads no more, name it (--from)."
    return (
        f"{found} Do not move to it: name a model that reads more (cde-rag models lists tokens), or split the texts "
        f"into shorter ones and index them anew.{compared}"
    )


def _is_loss(unread: Unread, before: Unread | None) -> bool:
    """Return True if a model leaves much unread, and more than the old one does by 5 % of the tokens."""
    return unread.is_much and (before is None or unread.share - before.share > MOST_UNREAD)


def _unread(embedder: Embedder, texts: Sequence[str]) -> Unread:
    own = contextual(unwrapped(embedder))
    if own is None or own.windows or not texts:
        return Unread(0, 0, len(texts), 0.0)
    return unread_of(own.model, texts)


def plan_move(
    source: Movable,
    embedder: Embedder,
    old: Embedder | None = None,
    *,
    sample: int = SAMPLE,
    judged: Sequence[JudgedQuestion] = (),
) -> MovePlan:
    """Look at a store, embed a sample with the new model, and compare; nothing is written.

    Args:
        source: The store.
        embedder: Embedder of the new model.
        old: Embedder of the old one.
        sample: Texts at most; those that answer judged queries come in addition.
        judged: Queries with answers in the store; by default two are made of each text.

    Raises:
        CorpusError: The store has no text, or no answer to any of `judged`.
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
    found, scores = _judged(source, judged, sample) if judged else _generated(source, sample)
    if not found:
        raise CorpusError(f"{source.target}: expected texts, found none. There is nothing to embed.")
    texts, facts = [each.text for each in found], source.found()
    embedder.embed_passages(texts[:1], None)  # a first call prepares the runtime
    started = time.perf_counter()
    made = embedder.embed_passages(texts, None).vectors
    seconds = (time.perf_counter() - started) * (rows - count) / len(texts)
    after = scores(embedder, made)
    before = None if old is None else scores(old, _unit(found))
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
        unread=_unread(embedder, texts),
        unread_before=None if old is None else _unread(old, texts),
        seconds=seconds,
        disk_bytes=2 * 4 * embedder.dim * rows,
        sample=len(texts),
        judged=len(after) if judged else 0,
        before=None if before is None else float(before.mean()),
        after=float(after.mean()),
        interval=None if before is None else _interval(after - before),
    )


def _generated(source: Movable, sample: int) -> tuple[list[StoredVector], _Scoring]:
    """Return random texts with their vectors, and the score of two queries made of each."""
    found = source.sample(sample)
    texts = [each.text for each in found]
    return found, lambda embedder, vectors: _ndcg(embedder, texts, vectors)


def _judged(source: Movable, questions: Sequence[JudgedQuestion], sample: int) -> tuple[list[StoredVector], _Scoring]:
    """Return the texts that answer questions, with random others, and their vectors; and the score of the questions."""
    ids = {id_ for question in questions for id_ in question.grades}
    by_id, known = all(question.by_id for question in questions), list[Record]()
    for page in source.passages():
        known += [record for record, _ in page if not by_id or record.id in ids]
    if not known:
        raise CorpusError(f"{source.target}: expected judgments of ids that it has, found none of them there.")
    kept = find_answers(questions, OwnCorpus.of(known, parent_key=PARENT_KEY), name=source.target).queries
    wanted, random, seen = {id_ for grades in kept.judgments for id_ in grades}, Random(0), 0
    answers, others = list[StoredVector](), list[StoredVector]()
    for page in source.passages():
        for record, vector in page:
            each = StoredVector(record.id, record.text, vector)
            if record.id in wanted:
                answers.append(each)
                continue
            seen += 1  # a reservoir, since the rows may be many
            if len(others) < sample:
                others.append(each)
            elif (place := random.randrange(seen)) < sample:
                others[place] = each
    found = [*others, *answers]  # so that equal scores do not count
    names = [each.id for each in found]
    return found, lambda embedder, vectors: _judged_ndcg(embedder, kept.queries, kept.judgments, names, vectors)


def _judged_ndcg(
    embedder: Embedder,
    queries: Sequence[str],
    judgments: Sequence[Mapping[str, int]],
    names: Sequence[str],
    vectors: Float32[np.ndarray, "texts dim"],
) -> Float64[np.ndarray, " queries"]:
    """Return the NDCG@10 of judged queries among texts with these ids."""
    scores = embedder.embed_queries(list(queries)) @ vectors.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_DEPTH]
    rankings = [[names[int(place)] for place in places] for places in best]
    return np.array([ndcg(one, right, _DEPTH) for one, right in zip(rankings, judgments, strict=True)])


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

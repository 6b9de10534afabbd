"""Estimated benefit of a new context, measured on a collection's own texts: no judgments, no change.

A sample of the documents, the probes, is embedded in the present context, in the one that `recontextualize` would make,
and in none. The share of nearest neighbours that change between the first two measures the effect of a new context.
The value of context in this corpus is measured by queries made of the probes' own words, with context and without.
`docs/drift.md` compares both together with judged queries.
"""

import hashlib
import heapq
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cde_rag._validation import check_positive
from cde_rag.context.context import Context
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import ModelError, StoreError
from cde_rag.indexing.sibling_passages import with_siblings
from cde_rag.records import Row, embedded_text
from cde_rag.stores.store import Store

PROBES = 512  # documents that are looked at, by default                                    docs/drift.md
TEXTS = 7  # embedded for each probe: a document in three spaces, and two queries in two of them
WORTH = 0.01  # NDCG@10 that embedding everything anew has to win, by default               ours
REACH = 1.645  # standard errors of an interval of 90 %: by chance, 5 % are above nothing
DEPTH = 10  # ranks that count
RARE_WORDS = 3  # of a document that make a query                                           docs/drift.md
RUN = 10  # words in a row that make a query, at most a third of the text                   docs/drift.md
_WORD = re.compile(r"\w{3,}")


class Calibration(NamedTuple):
    """Regression of judged gains on the gains of probes: fitted for a model by `lab/benchmarks/drift.py`.

    Attributes:
        slope: Judged gain per gain of the probes.
        offset: Judged loss per changed neighbour if the probes show no gain.
        residual: Standard deviation of judged gains per changed neighbour.
    """

    slope: float
    offset: float
    residual: float


CALIBRATIONS = {  # by the model's name                                               lab/pages/drift.md
    "cde-mini-0": Calibration(0.77, 0.062, 0.065),
    "cde-mini-1": Calibration(0.80, -0.015, 0.035),
    "cde-mini-2": Calibration(0.82, -0.018, 0.066),
}
SUBSTITUTE = "cde-mini-2"  # for models without one of their own


@dataclass(frozen=True, slots=True)
class Drift:
    """Estimated benefit of a new context.

    Attributes:
        gain: Estimated gain in NDCG@10 of the collection's queries, a fraction; negative for a loss.
        interval: 90 % interval, the error of the method included.
        neighbours_kept: Share of a document's ten nearest among the probes that would stay, 0 … 1.
        calibrated_on: The model whose judged queries the estimate was fitted to; if it is not the collection's, the
            estimate is less certain than the interval.
        documents: Number of documents in the collection.
        probes: Number of sampled documents.
        embedded: Number of texts embedded, those of the new context included.
        elapsed_s: Seconds.
        present: The Context of the collection.
        candidate: The Context that `recontextualize` with the same arguments would make now.
    """

    gain: float
    interval: tuple[float, float]
    neighbours_kept: float
    calibrated_on: str
    documents: int
    probes: int
    embedded: int
    elapsed_s: float
    present: Context
    candidate: Context

    def pays(self, worth: float = WORTH) -> bool:
        """Return True if the interval of the gain is above 0, and the estimate is at least `worth`, in NDCG@10."""
        return self.interval[0] > 0 and self.gain >= worth

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON object, contexts by their fingerprints."""
        return {
            "gain": self.gain,
            "interval": list(self.interval),
            "neighbours_kept": self.neighbours_kept,
            "calibrated_on": self.calibrated_on,
            "documents": self.documents,
            "probes": self.probes,
            "embedded": self.embedded,
            "elapsed_s": self.elapsed_s,
            "present": self.present.fingerprint,
            "candidate": self.candidate.fingerprint,
        }


def measure_drift(
    store: Store,
    embedder: Embedder,
    parent_key: str | None,
    *,
    seed: int,
    context_size: int | None,
    strategy: Strategy,
    probes: int,
) -> Drift:
    """Estimate the benefit of a new context; implements `Collection.drift`.

    Args:
        store: Holds a collection.
        embedder: Embedder of its active space.
        parent_key: The metadata key that names a record's parent; None if parents are not used.
        seed: As for `recontextualize`, like `context_size` and `strategy`; draws the probes, too.
        context_size: Number of documents in the new context.
        strategy: Sampling strategy of the new context.
        probes: Maximum number of sampled documents.

    Raises:
        ContextError: The model expects another number of context documents, or has no null context.
        ModelError: The model is plain.
        StoreError: The collection is empty.
        ValueError: `probes` is below 1.
    """
    from cde_rag.embedders.contextual import contextual
    from cde_rag.embedders.corpus_contexts import contextual_identity, sampled

    started = time.monotonic()
    probes = check_positive(probes, "probes")
    identity, own = embedder.context.identity, contextual(unwrapped(embedder))
    if own is None or identity.is_plain:
        raise ModelError(f"{identity.name} is a plain model: drift is estimated for models that read a context.")
    embedder = own
    if not (documents := store.count()):
        raise StoreError("Expected documents, found an empty collection: there is nothing to compare contexts on.")
    candidate = embedder.with_context(
        sampled(
            embedder.model,
            contextual_identity(embedder.model, windows=embedder.windows or None),
            (embedded_text(row.record) for row in store.scroll()),
            context_size,
            seed=seed,
            strategy=strategy,
            unit="passage",
        )
    )
    name = embedder.context.identity.name
    fitted = name if name in CALIBRATIONS else SUBSTITUTE
    gain, interval, kept, asked, embedded = 0.0, (0.0, 0.0), 1.0, 0, candidate.context.size
    if candidate.fingerprint != embedder.fingerprint:
        sample = _sample(store, probes, seed)
        passages = with_siblings(store, sample, parent_key, embedder)
        texts, siblings = [embedded_text(row.record) for row in sample], [passage.siblings for passage in passages]
        null = embedder.with_context(Context.null(embedder.context))
        found = compare(embedder, candidate, null, texts, siblings)
        gain, interval = estimate_gain(found, CALIBRATIONS[fitted])
        kept, asked, embedded = found.kept, len(texts), embedded + TEXTS * len(texts)
    return Drift(
        gain=gain,
        interval=interval,
        neighbours_kept=kept,
        calibrated_on=fitted,
        documents=documents,
        probes=asked,
        embedded=embedded,
        elapsed_s=time.monotonic() - started,
        present=embedder.context,
        candidate=candidate.context,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Effect of two contexts on the probes, relative to no context.

    Attributes:
        value: Value of context per probe: the NDCG@10 of its queries under the candidate minus that under none.
        value_kept: The share of neighbours that stay from none to the candidate.
        kept: The share of neighbours that stay from the present context to the candidate.
    """

    value: Float64[np.ndarray, " probes"]
    value_kept: float
    kept: float


def compare(
    present: Embedder,
    candidate: Embedder,
    null: Embedder,
    texts: Sequence[str],
    siblings: Sequence[Sequence[str]] | None,
) -> Comparison:
    """Look at documents in three spaces of one model.

    Args:
        present: Embedder in the collection's context.
        candidate: Embedder in a new context.
        null: Embedder in the null context.
        texts: The probes.
        siblings: For each its siblings' texts; None where there are none.
    """
    with_context, candidates = ask(candidate, texts, siblings)
    without, alone = ask(null, texts, siblings)
    vectors = alone if present.context.is_null else present.embed_passages(texts, siblings).vectors
    return Comparison(with_context - without, neighbours_kept(alone, candidates), neighbours_kept(vectors, candidates))


def estimate_gain(found: Comparison, calibration: Calibration) -> tuple[float, tuple[float, float]]:
    """Estimate the gain in NDCG@10, with a 90 % interval.

    The gain is the share of neighbours that a new context changes, times the value of such a change in this corpus: its
    value on the way from no context to the candidate, corrected by the calibration on judged queries. The interval
    includes the error of the sample and the residual of the calibration.

    Source: ours.
    """
    changed, value_changed = 1 - found.kept, 1 - found.value_kept
    if not changed or not value_changed:
        return 0.0, (0.0, 0.0)
    slope = calibration.slope / value_changed
    gain = changed * (slope * float(found.value.mean()) - calibration.offset)
    error = slope * float(found.value.std()) / math.sqrt(len(found.value))
    reach = REACH * changed * math.hypot(error, calibration.residual)
    return gain, (gain - reach, gain + reach)


def ask(
    embedder: Embedder, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None
) -> tuple[Float64[np.ndarray, " probes"], Float32[np.ndarray, "probes dim"]]:
    """Return the mean NDCG@10 of the two queries made from each document, and the documents' vectors."""
    vectors = embedder.embed_passages(texts, siblings).vectors
    kinds = (rare_words(texts), [run_of_words(text) for text in texts])
    return np.mean([own_ndcg(embedder.embed_queries(queries), vectors) for queries in kinds], axis=0), vectors


def own_ndcg(
    queries: Float32[np.ndarray, "probes dim"], documents: Float32[np.ndarray, "probes dim"]
) -> Float64[np.ndarray, " probes"]:
    """Compute NDCG@10 of queries whose single relevant document is in the same row; equal scores do not count.

    Examples:
        >>> own_ndcg(np.eye(2, dtype="f4"), np.eye(2, dtype="f4")[::-1]).round(2).tolist()
        [0.63, 0.63]
    """
    scores = queries @ documents.T  # (probes, probes)
    before = (scores > np.diagonal(scores)[:, None]).sum(axis=1)  # documents in front of a query's own
    return np.where(before < DEPTH, 1 / np.log2(before + 2.0), 0.0)


def neighbours_kept(present: Float32[np.ndarray, "probes dim"], candidate: Float32[np.ndarray, "probes dim"]) -> float:
    """Return the share of a document's ten nearest that are the same in both spaces; 1 for a single document."""
    depth = min(DEPTH, len(present) - 1)
    if depth < 1:
        return 1.0
    nearest: list[Int64[np.ndarray, "probes depth"]] = []
    for vectors in (present, candidate):
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :depth])
    same = [len(np.intersect1d(one, other)) for one, other in zip(*nearest, strict=True)]
    return float(np.mean(same)) / depth


def _sample(store: Store, size: int, seed: int) -> list[Row]:
    """Return the rows with the lowest hashes of their texts, independent of their order in the store."""
    return heapq.nsmallest(size, store.scroll(), key=lambda row: rank(embedded_text(row.record), seed))


def rare_words(texts: Sequence[str]) -> list[str]:
    """Make a query of each text's words with the highest TF-IDF, in the text's order.

    Source: Robertson & Spärck Jones 1976 (inverse document frequency), with (1 + log tf) and three letters a word.

    Examples:
        >>> rare_words(["the cat sat upon the mat", "the dog sat upon the log"])
        ['cat sat mat', 'dog sat log']
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    found_in = Counter(word for words in counts for word in words)  # documents
    queries: list[str] = []
    for text, words in zip(texts, counts, strict=True):
        weights = {word: (1 + math.log(n)) * math.log(len(texts) / found_in[word]) for word, n in words.items()}
        best = set(heapq.nsmallest(RARE_WORDS, weights, key=lambda word: (-weights[word], word)))
        queries.append(" ".join(word for word in words if word in best) or text)
    return queries


def run_of_words(text: str) -> str:
    """Make a query of consecutive words of a text, at a position that depends on the text alone."""
    words = text.split()
    length = max(1, min(RUN, len(words) // 3))
    start = rank(text, 0) % (len(words) - length + 1)
    return " ".join(words[start : start + length])


def rank(text: str, seed: int) -> int:
    """Return 64 bits of a hash, with a salt unlike that of the samples of contexts."""
    data = f"probe {seed}\0{text}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")

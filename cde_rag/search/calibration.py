"""Calibration of hybrid scores: the scale on which the hits of different queries compare, and its floor.

Fused scores say how a hit compares with others of its query (`cde_rag.search.fusion`). A calibration says how the best
of a query compare with what random letters find in the collection, and with what its own passages do.

Source: ours; chosen and measured in lab/pages/score-floor.md.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev
from string import ascii_lowercase
from typing import Any, Final

from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CDEWarning, CorpusError, TextIndexError, TruncationWarning, adapter_warns, warn_user
from cde_rag.records import embedded_text
from cde_rag.search.fusion import Key
from cde_rag.stores.store import Store

CALIBRATION: Final = "calibration"  # key of the settings: a collection that has it is calibrated as it grows
LEAST: Final = 64  # records
GROWTH: Final = 4  # times as many records as at the last calibration make a new one due
_RANDOM: Final = 32  # queries of random letters, and as many of few letters
_OWN: Final = 48  # queries that are passages of the collection's records
_DEVIATIONS: Final = 3
_WORDS: Final = 12  # of such a passage
_CHARACTERS: Final = 60  # of such a passage in a language without spaces


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """Scores that queries reach in a collection.

    Attributes:
        records: Number of records when it was made.
        random_mean: Mean cosine of the nearest record to queries of random letters.
        random_limit: Highest cosine of these queries and of words of two or three letters, at most three standard
            deviations above the mean of all: one may be near by chance, and what is no nearer is not found. At most
            `own`: the collection's own text is found.
        own: Median cosine of the nearest record to passages of the collection.
        own_words: Median of their best BM25 scores; 0 without a text index.
    """

    records: int
    random_mean: float
    random_limit: float
    own: float
    own_words: float

    def strength(self, nearest: float | None, words: float | None, weight: float) -> float | None:
        """Return how well a query's best hits fit it, from 0 (as random letters) to 1 (as the collection's own text).

        Args:
            nearest: Cosine of the nearest record; None if there is none.
            words: Best BM25 score; None if no record shares a term with the query.
            weight: Weight of the vectors, from 0 to 1.

        Returns:
            None if nothing is found: no term, and nothing nearer than the limit of random letters.
        """
        by_words = words if weight < 1 else None
        by_vectors = nearest if weight > 0 and nearest is not None and nearest > self.random_limit else None
        if by_words is None and by_vectors is None:
            return None
        near = 0.0 if nearest is None else _between(nearest, self.random_mean, self.own)
        return weight * near + (1 - weight) * _between(by_words or 0.0, 0.0, self.own_words)

    def scaled(
        self,
        fused: Sequence[tuple[Key, float]],
        vectors: Sequence[tuple[Key, float]],
        words: Sequence[tuple[Key, float]],
        weight: float,
    ) -> list[tuple[Key, float]]:
        """Bring fused scores to the calibrated scale; the order stays, and there may be nothing left.

        The best hit has the query's strength, and others down to half of it.

        Args:
            fused: Result of `fuse`.
            vectors: Hits by cosine that were fused, best first.
            words: Hits by BM25 that were fused, best first.
            weight: Weight of the vectors, from 0 to 1.
        """
        nearest, best = (hits[0][1] if hits else None for hits in (vectors, words))
        strength = self.strength(nearest, best, weight)
        if strength is None or not fused:
            return []
        most = fused[0][1] or 1.0
        return [(key, strength * (1 + score / most) / 2) for key, score in fused]


def calibration_of(settings: Mapping[str, Any], fingerprint: str) -> ScoreCalibration | None:
    """Return a collection's calibration in a vector space; None if there is none.

    Args:
        settings: Settings of the collection.
        fingerprint: Fingerprint of the vector space.
    """
    calibrations: Mapping[str, Any] = settings.get(CALIBRATION) or {}
    written: Mapping[str, Any] | None = calibrations.get(fingerprint)
    return None if written is None else ScoreCalibration(**written)


def calibrated_at(settings: Mapping[str, Any], fingerprint: str) -> float:
    """Return the number of records at which a collection is calibrated: four times that of its calibration.

    Infinite for collections of earlier versions, and where the model has no vector of random letters.
    """
    written: Mapping[str, Any] | None = settings.get(CALIBRATION)
    if written is None or (fingerprint in written and written[fingerprint] is None):
        return math.inf
    known = calibration_of(settings, fingerprint)
    return float(LEAST if known is None else GROWTH * known.records)


def calibrate(store: Store, embedder: Embedder) -> ScoreCalibration | None:
    """Measure the scores that queries reach in a collection, and write them to the settings.

    Those of its other generations are kept, for a rollback.

    Args:
        store: Store of the collection, not empty; all records have vectors.
        embedder: Embedder of its active generation.

    Returns:
        None if the model has no vector of random letters, as one with a vocabulary of its own; that is written then.

    Raises:
        ContextMismatchError: Another generation was activated meanwhile.
    """
    made = _measured(store, embedder)
    known: Mapping[str, Any] = store.manifest().settings.get(CALIBRATION) or {}
    spaces = {generation.fingerprint for generation in store.generations()}
    kept = {space: written for space, written in known.items() if space in spaces}
    store.update_settings({CALIBRATION: {**kept, embedder.fingerprint: None if made is None else asdict(made)}})
    return made


def calibrate_or_warn(calibration: Callable[[], object]) -> bool:
    """Calibrate after a write, which stays also if this fails; return True if it succeeded.

    Args:
        calibration: Calibrates, such as `Collection.calibrate`.

    Warns:
        CDEWarning: It failed. The collection is searched as before.
    """
    try:
        calibration()
    except Exception as error:  # noqa: BLE001 (also of a user's function, or of an API)
        warn_user(
            f"The records are written, but the scores of hybrid searches have no new scale, since measuring it failed: "
            f"{type(error).__name__}: {error!s:.300} Later adds try it again, and so does collection.calibrate().",
            CDEWarning,
        )
        return False
    return True


def random_queries(seed: int = 0) -> list[str]:
    """Return queries of random letters, one to four words each; the same in each call."""
    letters = random.Random(seed)
    return [
        " ".join("".join(letters.choices(ascii_lowercase, k=letters.randint(4, 10))) for _ in range(1 + number % 4))
        for number in range(_RANDOM)
    ]


def few_letter_queries(seed: int = 0) -> list[str]:
    """Return words of two or three letters, as of a key that is held down; every second one has them in order."""
    chosen = random.Random(seed)
    words = [
        chosen.choices(chosen.sample(ascii_lowercase, 2 + number // 2 % 2), k=chosen.randint(4, 10))
        for number in range(_RANDOM)
    ]
    return ["".join(sorted(word) if number % 2 else word) for number, word in enumerate(words)]


def _measured(store: Store, embedder: Embedder) -> ScoreCalibration | None:
    records, own = store.count(), [_passage(embedded_text(row.record)) for row in store.sample(_OWN, seed=0)]
    try:
        by_random, by_few, by_own = (
            _nearest(store, embedder, queries) for queries in (random_queries(), few_letter_queries(), own)
        )
    except CorpusError:
        return None
    try:
        words = [hits[0].score if hits else 0.0 for hits in store.search_text(own, 1)]
    except TextIndexError:
        words = [0.0]
    typical = median(by_own)
    letters = [*by_random, *by_few]
    limit = min(typical, max(letters), fmean(letters) + _DEVIATIONS * pstdev(letters))
    return ScoreCalibration(records, fmean(by_random), limit, typical, median(words))


def _nearest(store: Store, embedder: Embedder, queries: Sequence[str]) -> list[float]:
    with adapter_warns(TruncationWarning):  # of texts that nobody gave
        vectors = embedder.embed_queries(queries)
    return [hits[0].score for hits in store.search(vectors, 1, fingerprint=embedder.fingerprint)]


def _passage(text: str) -> str:
    """Return consecutive words from the middle of a text."""
    words = text.split()
    start = max(0, (len(words) - _WORDS) // 2)
    found = " ".join(words[start : start + _WORDS])
    return found if len(words) > _WORDS // 2 else found[:_CHARACTERS]


def _between(score: float, least: float, most: float) -> float:
    return min(1.0, max(0.0, (score - least) / (most - least))) if most > least else float(score > least)

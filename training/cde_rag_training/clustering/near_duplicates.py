"""Near-duplicates among lists of texts: by their words or by their surrogate embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cde_rag.errors import require
from cde_rag_training.clustering.clusters import unit
from cde_rag_training.clustering.shingles import Shingled, alike, shingled
from cde_rag_training.clustering.surrogate import Surrogate

BLOCK = 4096  # texts that are compared with all others at a time


@dataclass(frozen=True, kw_only=True)
class DuplicateConfig:
    """Thresholds of near-duplicates."""

    words: int = 5  # of an n-gram                                        Lee et al. 2022
    jaccard: float = 0.5  # of the sets of n-grams, from 0.5 to 1         ours; Lee et al. 2022 have 0.8
    cosine: float = 0.95  # of the surrogate embeddings                   ours, as in `filtering`
    shared_words: float = 0.3  # TF-IDF cosine below which an evaluation text is not compared; 0: all are   ours
    queries_per_document: int = 8  # of one and the same document that stay   ours


class Matches(NamedTuple):
    """Near-duplicates among two lists of texts, by row of the first, then by score, highest first.

    Attributes:
        one: Rows of the first list, ascending.
        other: Rows of the second.
        scores: Jaccard index or cosine.
        cosine: 1 where the cosine says so, 0 where the words do; a match that both find stands twice.
    """

    one: Int64[np.ndarray, " found"]
    other: Int64[np.ndarray, " found"]
    scores: Float64[np.ndarray, " found"]
    cosine: Int64[np.ndarray, " found"]


class UniqueTexts:
    """Distinct texts, ignoring case and white space, in the order of their first appearance.

    Args:
        texts: All texts, repeats included.
        surrogate: Embeds the texts when `vectors` is first used.
        config: Sets the number of words of an n-gram.

    Attributes:
        texts: Each text once, as first written.
        row_of: Row of each given text in `texts`.
    """

    def __init__(self, texts: Sequence[str], surrogate: Surrogate, config: DuplicateConfig) -> None:
        rows: dict[str, int] = {}
        self.row_of = [rows.setdefault(" ".join(text.lower().split()), len(rows)) for text in texts]
        firsts: list[int] = np.unique(self.row_of, return_index=True)[1].tolist()
        self.texts = [texts[first] for first in firsts]
        self._surrogate, self._words = surrogate, config.words

    @cached_property
    def shingled(self) -> Shingled:
        """Their n-grams."""
        return shingled(self.texts, words=self._words)

    @cached_property
    def vectors(self) -> Float32[np.ndarray, "texts dim"]:
        """Their surrogate embeddings, unit norm."""
        return unit(self._surrogate(self.texts))


def matches(one: UniqueTexts, other: UniqueTexts, config: DuplicateConfig) -> Matches:
    """Find near-duplicates of one's texts in the other.

    If both are the same object, a text does not match itself.

    Raises:
        MissingExtraError: faiss or datasketch is not installed.
    """
    rows, scores = alike(one.shingled, other.shingled, jaccard=config.jaccard)
    near, cosines = _near(one.vectors, other.vectors, config.cosine)
    if one is other:
        rows, scores = np.concatenate([rows, rows[:, ::-1]]), np.concatenate([scores, scores])
        apart = near[:, 0] != near[:, 1]
        near, cosines = near[apart], cosines[apart]
    cosine = np.repeat([0, 1], [len(rows), len(near)])
    rows, scores = np.concatenate([rows, near]), np.concatenate([scores, cosines])
    order = np.lexsort((cosine, rows[:, 1], -scores, rows[:, 0]))
    return Matches(rows[order, 0], rows[order, 1], scores[order], cosine[order])


def sharing_words(texts: Sequence[str], others: Sequence[str], *, least: float) -> list[str]:
    """Keep the texts that share words with one of the others, so that the rest need no surrogate embeddings.

    Words of more than a twentieth of all texts do not count.

    Args:
        texts: Texts to choose from.
        others: What they are compared with.
        least: Cosine of TF-IDF, above 0 and at most 1.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source: ours. All 14 pairs among 30 000 texts for training with a cosine of all-MiniLM-L6-v2 of 0.93 or more have a
    cosine of TF-IDF of 0.69 or more.
    """
    features: Any = require("sklearn.feature_extraction.text", "train")
    most = max(100, (len(texts) + len(others)) // 20)
    vectorizer = features.TfidfVectorizer(
        sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b", max_df=most
    )
    vectorizer.fit([*texts, *others])
    given = vectorizer.transform(others).T.tocsr()
    kept: list[str] = []
    for start in range(0, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        best = (vectorizer.transform(block) @ given).max(axis=1).toarray().ravel()
        kept += [text for text, cosine in zip(block, best, strict=True) if cosine >= least]
    return kept


def _near(
    one: Float32[np.ndarray, "texts dim"], other: Float32[np.ndarray, "others dim"], cosine: float
) -> tuple[Int64[np.ndarray, "found 2"], Float64[np.ndarray, " found"]]:
    """Return pairs of rows of unit vectors with at least this cosine, and their cosines."""
    faiss: Any = require("faiss", "train")
    index = faiss.IndexFlatIP(other.shape[1])
    index.add(other)
    rows, scores = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
    for start in range(0, len(one), BLOCK):
        limits, found, others = index.range_search(one[start : start + BLOCK], float(np.nextafter(cosine, 0)))
        first = start + np.repeat(np.arange(len(limits) - 1), np.diff(limits.astype(np.int64)))
        rows.append(np.stack([first, others], axis=1))
        scores.append(found.astype(np.float64))
    return np.concatenate(rows), np.concatenate(scores)

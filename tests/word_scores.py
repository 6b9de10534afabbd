"""BM25 as the stores document it, the slow, obvious way."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from cde_rag.records import Record
from cde_rag.stores.text_analysis import TextAnalyzer

K1, B = 1.2, 0.75
USUAL_LENGTH = 100  # words of a record, for stores of points

Scores = Callable[[Sequence[Record], str, TextAnalyzer], list[float]]


def faiss_scores(records: Sequence[Record], query: str, analyzer: TextAnalyzer) -> list[float]:
    """SQLite FTS5's: the mean length is that of the records there are; a word that most have counts next to nothing."""
    lengths = [length for record in records if (length := len(analyzer.record_terms(record)))]
    mean = sum(lengths) / max(1, len(lengths))
    return _scores(
        records, query, analyzer, mean, lambda n, df: max(math.log((n - df + 0.5) / (df + 0.5)), 0.0) or 1e-6
    )


def point_scores(records: Sequence[Record], query: str, analyzer: TextAnalyzer) -> list[float]:
    """Qdrant's, with weights for a usual length."""
    return _scores(records, query, analyzer, USUAL_LENGTH, lambda n, df: math.log(1 + (n - df + 0.5) / (df + 0.5)))


def table_scores(records: Sequence[Record], query: str, analyzer: TextAnalyzer) -> list[float]:
    """Lucene's: the idf of stores of points with the mean length of the records there are."""
    lengths = [length for record in records if (length := len(analyzer.record_terms(record)))]
    mean = sum(lengths) / max(1, len(lengths))
    return _scores(records, query, analyzer, mean, lambda n, df: math.log(1 + (n - df + 0.5) / (df + 0.5)))


def _scores(
    records: Sequence[Record], query: str, analyzer: TextAnalyzer, mean: float, idf: Callable[[int, int], float]
) -> list[float]:
    counts = [Counter(analyzer.record_terms(record)) for record in records]
    there = sum(bool(count) for count in counts)
    scores = [0.0] * len(records)
    for word in analyzer.terms(query):
        weight = idf(there, sum(word in count for count in counts))
        for position, count in enumerate(counts):
            times = count[word]
            norm = K1 * (1 - B + B * count.total() / mean) if times else 1
            scores[position] += weight * times * (K1 + 1) / (times + norm)
    return scores


def best(scores: Sequence[float], k: int) -> list[int]:
    """Positions of the k highest scores above 0; equal ones in order."""
    found = sorted((position for position, score in enumerate(scores) if score > 0), key=lambda one: -scores[one])
    return found[:k]

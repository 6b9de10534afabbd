"""BM25: the baseline (bm25s with English stemming and stop words), and the BM25 ranking of a collection."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_list
from cde_rag.errors import CorpusError, require
from cde_rag.records import Record, Row
from cde_rag.search.fusion import CANDIDATES, Scored
from cde_rag.stores.text_analysis import ANALYZER, NEWEST, visible

_ROWS_AT_ONCE: Final = 1024


class BM25:
    """In-memory BM25 index.

    Lucene's variant with k1 = 1.2 and b = 0.75, Snowball's English stemmer and bm25s's English stop words. Characters
    that are not shown, such as soft hyphens, are removed as in collections.

    Args:
        texts: Texts to search; a result has a text's position here.

    Raises:
        CorpusError: There are no texts.
        MissingExtraError: bm25s is not installed.
        TypeError: One `str` instead of texts.

    Source: Robertson & Zaragoza (2009); Lù (2024), BM25S.

    Examples:
        >>> BM25(["A cat sat.", "Dogs run.", "Two running dogs."]).search("Which dogs are running?", k=1)[0][0]
        1
    """

    def __init__(self, texts: Sequence[str]) -> None:
        check_list(texts, call="BM25")
        if not texts:
            raise CorpusError("BM25 needs at least one text, found none.")
        self._bm25s: Any = require("bm25s", "evaluation")
        self._stemmer: Any = require("Stemmer", "evaluation").Stemmer("english")
        self._size = len(texts)
        words = self._words(texts)
        self._index: Any = None  # stays None for texts of stop words alone, which bm25s refuses
        if any(words):
            self._index = self._bm25s.BM25(k1=1.2, b=0.75)
            self._index.index(words, show_progress=False)

    def scores(self, query: str) -> Float32[np.ndarray, " texts"]:
        """Return one score per text; zero if it shares no term with the query."""
        words = self._words([query])[0]
        if self._index is None or not words:
            return np.zeros(self._size, dtype=np.float32)
        return self._index.get_scores(words)

    def search(self, query: str, k: int = 10) -> list[tuple[int, float]]:
        """Return positions and scores of the best texts that share a term with the query: at most k, best first.

        Equal scores are in order of position.

        Raises:
            ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"Expected k of at least 1, found {k}.")
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:k]
        return [(int(position), float(scores[position])) for position in best if scores[position] > 0]

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        """Tokenize texts into stems without stop words."""
        shown = [visible(text) for text in texts]
        return self._bm25s.tokenize(shown, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False)


def word_hits(texts: Sequence[str], queries: Sequence[str], *, k: int = CANDIDATES) -> list[Scored]:
    """The k best texts for each query by the BM25 of `FaissStore`: positions, as strings, and scores.

    This is what a hybrid search has, and not quite the baseline, whose stems and stop words are others.

    Raises:
        StoreError: This SQLite has no FTS5.
    """
    from cde_rag.stores.faiss import FaissStore  # loads faiss, which training does without

    with tempfile.TemporaryDirectory() as folder:
        store = FaissStore(Path(folder, "words"))
        store.create(dim=1, fingerprint="words", context=b"", settings={ANALYZER: NEWEST.name})
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            some = texts[start : start + _ROWS_AT_ONCE]
            rows = [Row(Record(str(start + place), text), digest="") for place, text in enumerate(some)]
            store.add(rows, np.ones((len(rows), 1), dtype=np.float32), fingerprint="words")
        found = store.search_text(queries, k)
        store.close()
    return [[(hit.id, hit.score) for hit in hits] for hits in found]

"""BM25 scores inside a batch from prepared arrays: the second, unlike surrogate. Training needs no bm25s for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import CorpusError, require


@dataclass(frozen=True)
class LexicalPairs:
    """BM25 term weights of queries and documents in CSR form; five plain arrays that can be saved.

    Attributes:
        query_starts: Offset of each query's terms, and the end of the last.
        query_words: Term numbers of each query, repeated as often as they occur.
        document_starts: Offset of each document's terms, and the end of the last.
        document_words: Term numbers of each document, each once.
        document_weights: BM25 weight of that term in that document.
    """

    query_starts: Int64[np.ndarray, " pairs_and_end"]
    query_words: Int64[np.ndarray, " query_words"]
    document_starts: Int64[np.ndarray, " pairs_and_end"]
    document_words: Int64[np.ndarray, " document_words"]
    document_weights: Float32[np.ndarray, " document_words"]

    def scores(self, batch: Int64[np.ndarray, " batch"]) -> Float32[np.ndarray, "batch batch"]:
        """Compute BM25 of every query with every document of a batch; zero if no term is shared.

        Args:
            batch: Positions of pairs.
        """
        queries, asked = _rows(self.query_starts, batch)
        documents, held = _rows(self.document_starts, batch)
        words, asked_words = np.unique(self.query_words[asked], return_inverse=True)
        counts = np.zeros((len(batch), len(words)), dtype=np.float32)
        np.add.at(counts, (queries, asked_words), 1)
        weights = np.zeros((len(batch), len(words)), dtype=np.float32)
        known = np.isin(self.document_words[held], words)
        places = np.searchsorted(words, self.document_words[held][known])
        weights[documents[known], places] = self.document_weights[held][known]
        return counts @ weights.T


def _rows(
    starts: Int64[np.ndarray, " rows_and_end"], batch: Int64[np.ndarray, " batch"]
) -> tuple[Int64[np.ndarray, " items"], Int64[np.ndarray, " items"]]:
    """Return, for all items of a batch's rows, the row's position in the batch and the item's position."""
    lengths = starts[batch + 1] - starts[batch]
    places = np.repeat(np.arange(len(batch)), lengths)
    within = np.arange(len(places)) - np.repeat(lengths.cumsum() - lengths, lengths)
    return places, starts[batch][places] + within


def lexical_pairs(queries: Sequence[str], documents: Sequence[str]) -> LexicalPairs:
    """Count words: Lucene's BM25 with k1 = 1.2 and b = 0.75, English stems without stop words.

    Args:
        queries: Queries of the pairs.
        documents: Documents of the pairs; word rarity is counted over them.

    Raises:
        CorpusError: No document has a word.
        MissingExtraError: bm25s is not installed.

    Source: Robertson & Zaragoza 2009, through bm25s; the same as `cde_rag.evaluation.bm25`.
    """
    bm25s: Any = require("bm25s", "evaluation")
    stemmer: Any = require("Stemmer", "evaluation").Stemmer("english")

    def words(texts: Sequence[str]) -> list[list[str]]:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)

    held = words(documents)
    if not any(held):
        raise CorpusError("Expected documents with words, found none. Leave empty documents out.")
    index = bm25s.BM25(k1=1.2, b=0.75)
    index.index(held, show_progress=False)
    columns = index.scores  # one column for each word
    document = columns["indices"].astype(np.int64)
    order = np.argsort(document, kind="stable")
    word = np.repeat(np.arange(len(columns["indptr"]) - 1), np.diff(columns["indptr"]))
    numbers: dict[str, int] = index.vocab_dict
    asked = [[numbers[one] for one in query if one in numbers] for query in words(queries)]
    return LexicalPairs(
        query_starts=_starts(np.array([len(query) for query in asked], dtype=np.int64)),
        query_words=np.array([one for query in asked for one in query], dtype=np.int64),
        document_starts=_starts(np.bincount(document, minlength=len(held))),
        document_words=word[order].astype(np.int64),
        document_weights=columns["data"][order].astype(np.float32),
    )


def _starts(lengths: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows_and_end"]:
    return np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])

"""BM25 scores inside a batch from prepared arrays: the second, unlike surrogate. Training needs no bm25s for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag.errors import CorpusError, require

K1, B = 1.2, 0.75  # parameters of BM25


@dataclass(frozen=True)
class LexicalPairs:
    """BM25 term weights of queries and documents in CSR form; five plain arrays that can be saved.

    Attributes:
        query_starts: Offset of each query's terms, and the end of the last.
        query_words: Term numbers of each query, repeated as often as they occur.
        document_starts: Offset of each document's terms, and the end of the last.
        document_words: Term numbers of each document, each once.
        document_weights: BM25 weight of that term in that document.
        negative_starts: Likewise of hard negatives, each text once; None where there are none.
        negative_words: Term numbers of each of them.
        negative_weights: Weights, by the rarity that terms have in the documents.
    """

    query_starts: Int64[np.ndarray, " pairs_and_end"]
    query_words: Int64[np.ndarray, " query_words"]
    document_starts: Int64[np.ndarray, " pairs_and_end"]
    document_words: Int64[np.ndarray, " document_words"]
    document_weights: Float32[np.ndarray, " document_words"]
    negative_starts: Int64[np.ndarray, " negatives_and_end"] | None = None
    negative_words: Int64[np.ndarray, " negative_words"] | None = None
    negative_weights: Float32[np.ndarray, " negative_words"] | None = None

    def scores(self, batch: Int64[np.ndarray, " batch"]) -> Float32[np.ndarray, "batch batch"]:
        """Compute BM25 of every query with every document of a batch; zero if no term is shared.

        Args:
            batch: Positions of pairs.
        """
        return self._scores(batch, batch, (self.document_starts, self.document_words, self.document_weights))

    def scores_of_documents(
        self, batch: Int64[np.ndarray, " batch"], pairs: Int64[np.ndarray, " others"]
    ) -> Float32[np.ndarray, "batch others"]:
        """Compute BM25 of every query of a batch with the documents of other pairs.

        Args:
            batch: Positions of the queries' pairs.
            pairs: Positions of the documents' pairs.
        """
        return self._scores(batch, pairs, (self.document_starts, self.document_words, self.document_weights))

    def scores_of_negatives(
        self, batch: Int64[np.ndarray, " batch"], places: Int64[np.ndarray, " negatives"]
    ) -> Float32[np.ndarray, "batch negatives"]:
        """Compute BM25 of every query of a batch with hard negatives.

        Args:
            batch: Positions of the queries' pairs.
            places: Positions in `Prepared.negative_rows`.

        Raises:
            ValueError: The data was prepared without weights of hard negatives.
        """
        starts, words, weights = self.negative_starts, self.negative_words, self.negative_weights
        if starts is None or words is None or weights is None:
            raise ValueError("Expected BM25 weights of hard negatives, found none. Prepare the data again.")
        return self._scores(batch, places, (starts, words, weights))

    def _scores(
        self,
        batch: Int64[np.ndarray, " batch"],
        texts: Int64[np.ndarray, " texts"],
        held_by: tuple[Int64[np.ndarray, " _"], Int64[np.ndarray, " _"], Float32[np.ndarray, " _"]],
    ) -> Float32[np.ndarray, "batch texts"]:
        starts, terms, term_weights = held_by
        queries, asked = _rows(self.query_starts, batch)
        documents, held = _rows(starts, texts)
        words, asked_words = np.unique(self.query_words[asked], return_inverse=True)
        counts = np.zeros((len(batch), len(words)), dtype=np.float32)
        np.add.at(counts, (queries, asked_words), 1)
        weights = np.zeros((len(texts), len(words)), dtype=np.float32)
        known = np.isin(terms[held], words)
        places = np.searchsorted(words, terms[held][known])
        weights[documents[known], places] = term_weights[held][known]
        return counts @ weights.T


def _rows(
    starts: Int64[np.ndarray, " rows_and_end"], batch: Int64[np.ndarray, " batch"]
) -> tuple[Int64[np.ndarray, " items"], Int64[np.ndarray, " items"]]:
    """Return, for all items of a batch's rows, the row's position in the batch and the item's position."""
    lengths = starts[batch + 1] - starts[batch]
    places = np.repeat(np.arange(len(batch)), lengths)
    within = np.arange(len(places)) - np.repeat(lengths.cumsum() - lengths, lengths)
    return places, starts[batch][places] + within


def lexical_pairs(
    queries: Sequence[str], documents: Sequence[str], negatives: Sequence[str] | None = None
) -> LexicalPairs:
    """Count words: Lucene's BM25 with k1 = 1.2 and b = 0.75, English stems without stop words.

    Args:
        queries: Queries of the pairs.
        documents: Documents of the pairs; word rarity and mean length are counted over them.
        negatives: Hard negatives, if any.

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
    index = bm25s.BM25(k1=K1, b=B)
    index.index(held, show_progress=False)
    columns = index.scores  # one column for each word
    document = columns["indices"].astype(np.int64)
    order = np.argsort(document, kind="stable")
    word = np.repeat(np.arange(len(columns["indptr"]) - 1), np.diff(columns["indptr"]))
    numbers: dict[str, int] = index.vocab_dict
    lexical = _of_negatives(words(negatives), numbers, columns, held) if negatives is not None else {}
    asked = [[numbers[one] for one in query if one in numbers] for query in words(queries)]
    return LexicalPairs(
        query_starts=_starts(np.array([len(query) for query in asked], dtype=np.int64)),
        query_words=np.array([one for query in asked for one in query], dtype=np.int64),
        document_starts=_starts(np.bincount(document, minlength=len(held))),
        document_words=word[order].astype(np.int64),
        document_weights=columns["data"][order].astype(np.float32),
        **lexical,
    )


def _of_negatives(
    texts: Sequence[Sequence[str]], numbers: dict[str, int], columns: Any, documents: Sequence[Sequence[str]]
) -> dict[str, np.ndarray]:
    """Weigh the terms of texts that are none of the documents: Lucene's idf · tf / (tf + k1 (1 − b + b · length))."""
    rarity = np.diff(columns["indptr"]).astype(np.float64)  # documents of each term
    idf = np.log(1 + (len(documents) - rarity + 0.5) / (rarity + 0.5))
    mean = float(np.mean([len(document) for document in documents]))
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for text in texts:
        terms, counts = np.unique([numbers[one] for one in text if one in numbers], return_counts=True)
        terms = terms.astype(np.int64)
        rows.append((terms, idf[terms] * counts / (counts + K1 * (1 - B + B * len(text) / mean))))
    return {
        "negative_starts": _starts(np.array([len(terms) for terms, _ in rows], dtype=np.int64)),
        "negative_words": np.concatenate([terms for terms, _ in rows] or [np.zeros(0, dtype=np.int64)]),
        "negative_weights": np.concatenate([weights for _, weights in rows] or [np.zeros(0)]).astype(np.float32),
    }


def _starts(lengths: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows_and_end"]:
    return np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])

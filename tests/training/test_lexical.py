"""BM25 inside a batch equals BM25 over the whole corpus, read at the batch's documents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_rag import CDEError
from cde_rag.evaluation.bm25 import BM25
from cde_rag_training.data.lexical import lexical_pairs

WORDS = "river flood bank loan money water delta interest rate fish boat the of and".split()
TEXT = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@settings(max_examples=30)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=8), st.integers(0, 9))
def test_equals_bm25(pairs, seed):
    queries, documents = [query for query, _ in pairs], [f"{document} boat" for _, document in pairs]
    batch = np.random.default_rng(seed).permutation(len(pairs))[: max(2, len(pairs) - 2)]
    bm25 = BM25(documents)
    expected = np.array([bm25.scores(queries[row])[batch] for row in batch])
    found = lexical_pairs(queries, documents).scores(batch)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@settings(max_examples=30)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=8), st.integers(0, 9))
def test_hard_negatives_weigh_as_documents_do(pairs, seed):
    """The formula for other texts gives bm25s's weights where these are the documents themselves."""
    queries, documents = [query for query, _ in pairs], [f"{document} boat" for _, document in pairs]
    places = np.random.default_rng(seed).permutation(len(pairs))[: max(1, len(pairs) - 2)]
    lexical = lexical_pairs(queries, documents, documents)
    batch = np.arange(len(pairs))
    expected = lexical.scores_of_documents(batch, places)
    np.testing.assert_allclose(lexical.scores_of_negatives(batch, places), expected, atol=1e-5)
    np.testing.assert_allclose(expected, lexical.scores(batch)[:, places], rtol=1e-5)  # sums of another order
    assert lexical_pairs(queries, documents, ["unheard"]).scores_of_negatives(batch, np.array([0])).max() == 0
    with pytest.raises(ValueError, match="Expected BM25 weights of hard negatives"):
        lexical_pairs(queries, documents).scores_of_negatives(batch, places)


def test_documents_without_words():
    pairs = lexical_pairs(["river", ""], ["river delta", "the"])
    scores = pairs.scores(np.array([1, 0]))
    assert scores[1, 1] > 0
    assert scores[:, 0].tolist() == [0, 0]
    with pytest.raises(CDEError, match="Expected documents with words, found none"):
        lexical_pairs(["river"], ["the"])

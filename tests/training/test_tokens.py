"""Token rows give back every text, whatever its length, in the smallest type that holds the vocabulary."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag_training.data.tokens import id_type, token_rows

texts = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=9), max_size=9)


@given(texts)
def test_texts_come_back(texts):
    rows = token_rows(texts, vocabulary=65_536)
    assert [rows[row] for row in range(len(rows))] == texts
    assert rows.lengths.tolist() == [len(text) for text in texts]
    assert rows.ids.dtype == np.uint16


def test_large_vocabularies():
    rows = token_rows([[65_536], [1, 2]], vocabulary=65_537)
    assert (rows[0], rows[np.int64(1)], rows.ids.dtype) == ([65_536], [1, 2], np.uint32)
    assert (id_type(30_522), id_type(50_368), id_type(250_002)) == (np.uint16, np.uint16, np.uint32)


@pytest.mark.parametrize("row", [-1, 2])
def test_none_is_no_row(row):
    with pytest.raises(IndexError, match=f"from 0 to 1, found {row}"):
        token_rows([[1], [2]], vocabulary=3)[row]

"""A context is some of the rings' documents apart from the batch, nearer rings first, or the batch's own documents."""

import numpy as np
import pytest
from made_pairs import made_pairs

from cde_rag_training.corpora.batch_contexts import ContextConfig, Contexts

PREPARED = made_pairs()
PAIRS = np.arange(10)


def drawn(rings, seed=0, **fields):
    contexts = Contexts(PREPARED, ContextConfig(null_share=0.0, **fields))
    return contexts.draw(PAIRS, PREPARED.documents[PAIRS], rings, np.random.default_rng(seed)).tolist()


def test_a_wider_ring_is_asked_where_the_nearer_has_too_few():
    near, wide = np.arange(10, 20), np.arange(220)
    context = drawn([near, wide], smallest=30, largest=30)
    assert len(context) == len(set(context)) == 30
    first = set(PREPARED.documents[near].tolist())
    held = [row in first for row in context]
    assert sum(held) >= 6  # but for what is near the batch
    assert held == sorted(held, reverse=True)
    assert set(drawn([near, wide], smallest=3, largest=3)) <= first


def test_only_what_is_apart_is_given_where_there_is_no_more():
    assert drawn([PAIRS], smallest=5, largest=5) == []
    assert len(drawn([np.arange(14)], smallest=9, largest=9)) <= 4


def test_the_batch_s_own_documents():
    whole = drawn([], documents="batch", smallest=99, largest=99)
    assert sorted(whole) == sorted(set(PREPARED.documents[PAIRS].tolist()))
    assert {tuple(drawn([], seed, documents="batch", smallest=2, largest=2)) for seed in range(30)} > {tuple(whole[:2])}


@pytest.mark.parametrize("sizes", [(0, 4), (5, 4)])
def test_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(ValueError, match="smallest ≤ largest"):
        ContextConfig(smallest=sizes[0], largest=sizes[1])

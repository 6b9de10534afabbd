"""The loss against the slow, obvious loop; the mask by cases that can be checked by eye."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cde_rag_training.loss import contrastive_loss, false_negatives


def unit(count, dim, seed):
    vectors = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim)).astype("f4"))
    return torch.nn.functional.normalize(vectors, dim=1)


@given(st.integers(2, 7), st.integers(0, 99), st.sampled_from([0.02, 0.1, 1.0]))
def test_equals_the_loop(count, seed, temperature):
    queries, documents = unit(count, 5, seed), unit(count, 5, seed + 1)
    mask = torch.from_numpy(np.random.default_rng(seed).random((count, count)) < 0.3) & ~torch.eye(
        count, dtype=torch.bool
    )
    expected = 0.0
    for i in range(count):
        scores = [float(queries[i] @ documents[j]) / temperature for j in range(count)]
        top = max(scores)
        total = sum(math.exp(scores[j] - top) for j in range(count) if not mask[i, j])
        expected += -(scores[i] - top - math.log(total)) / count
    assert float(contrastive_loss(queries, documents, mask, temperature)) == pytest.approx(expected, abs=1e-4)


def test_mask_by_eye():
    documents = torch.eye(4, 4)
    documents[3] = documents[2]  # a duplicate
    queries = torch.tensor([[0.6, 0.8, 0, 0], [0.7, 0.714, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]], dtype=torch.float32)
    same_query = torch.tensor([0, 1, 2, 3])
    mask = false_negatives(queries, documents, same_query)
    # Query 0 scores its own document 0.6 and document 1 0.8, more than the margin above; query 1 likes both alike.
    assert mask.tolist() == [
        [False, True, False, False],
        [False, False, False, False],
        [False, False, False, True],
        [False, False, True, False],
    ]
    mask = false_negatives(queries, documents, torch.tensor([0, 1, 0, 3]))
    assert mask[0, 2]
    assert mask[2, 0]
    assert not mask.diagonal().any()

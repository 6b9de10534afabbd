"""Every pair once an epoch, asked by its own query, with the batch's own documents as context; resumed anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_pairs import made_pairs

from cde_rag import CDEError
from cde_rag_training.clustering.packing import PackingConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.packed_batches import PackedBatches
from cde_rag_training.data.transformations import PLAIN

PREPARED = made_pairs()
CONTEXT = ContextConfig(documents="batch", smallest=8, largest=8, null_share=0.0)


def packed(batch_size=10, exponent=1.0, context=CONTEXT, **fields):
    config = PackingConfig(batch_size=batch_size, source_exponent=exponent, **fields)
    return PackedBatches(PREPARED, config, context)


@settings(max_examples=20)
@given(st.integers(1, 60), st.sampled_from(["tour", "random"]), st.integers(0, 9))
def test_an_epoch_has_every_pair_once_and_the_next_is_another(batch_size, order, seed):
    batches = packed(batch_size, order=order, seed=seed)
    count = sum(size // batch_size for size in (90, 60, 70))
    assert batches.per_epoch == count
    epochs = [[batches.batch(epoch * count + place) for place in range(count)] for epoch in range(2)]
    for epoch in epochs:
        pairs = np.concatenate([batch.pairs for batch in epoch])
        assert len(set(pairs.tolist())) == len(pairs) == count * batch_size  # less than a batch of each source left out
        assert all(len(set(PREPARED.sources[batch.pairs])) == 1 for batch in epoch)
    if batch_size > 1:
        assert [batch.pairs.tolist() for batch in epochs[0]] != [batch.pairs.tolist() for batch in epochs[1]]


def test_pairs_are_shown_as_they_are_in_the_context_of_their_batch():
    batches = packed()
    for update in range(30):
        batch = batches.batch(update)
        assert np.array_equal(batch.queries, PREPARED.queries[batch.pairs])
        assert np.array_equal(batch.documents, PREPARED.documents[batch.pairs])
        assert set(batch.context.tolist()) <= set(batch.documents.tolist())
        assert len(set(batch.context.tolist())) == len(batch.context) == min(8, len(set(batch.documents.tolist())))
        assert not any(batch.siblings)
        assert batch.transformation == PLAIN
        assert batch.hard_negatives.shape == (10, (PREPARED.hard_negatives[batch.pairs, 0] >= 0).any())
        lacking = (PREPARED.hard_negatives[batch.pairs, 0] < 0).sum()
        assert batch.random_negatives == (lacking if batch.hard_negatives.size else 0)
    first = [int(packed(seed=seed).batch(0).context[0]) for seed in range(9)]
    places = [packed(seed=seed).batch(0).documents.tolist().index(row) for seed, row in enumerate(first)]
    assert len(set(places)) > 2  # in random order


def test_null_contexts_have_their_share():
    batches = packed(context=ContextConfig(documents="batch", smallest=2, largest=10, null_share=0.3))
    assert np.mean([len(batches.batch(update).context) == 0 for update in range(200)]) == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_a_batch_is_a_function_of_its_number(exponent):
    in_order, at_random = packed(exponent=exponent), packed(exponent=exponent)
    whole = [in_order.batch(update) for update in range(50)]
    for update in np.random.default_rng(0).permutation(50)[:20].tolist():
        batch = at_random.batch(update)
        assert np.array_equal(batch.pairs, whole[update].pairs)
        assert np.array_equal(batch.context, whole[update].context)


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(CDEError, match="found 60 of 'mail'"):
        packed(61)
    with pytest.raises(ValueError, match='documents = "batch"'):
        packed(context=ContextConfig())

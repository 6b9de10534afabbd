"""Buckets of texts of similar length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.models.batching import tight_buckets

LENGTHS = st.lists(st.integers(1, 256), max_size=120)


@given(LENGTHS, st.integers(1, 40))
def test_each_text_is_in_one_bucket_longest_first(lengths: list[int], size: int) -> None:
    buckets = list(tight_buckets(lengths, size))
    assert sorted(place for bucket in buckets for place in bucket) == list(range(len(lengths)))
    assert all(1 <= len(bucket) <= size for bucket in buckets)
    order = [lengths[place] for bucket in buckets for place in bucket]
    assert order == sorted(lengths, reverse=True)


@given(LENGTHS)
def test_a_cut_saves_more_than_a_pass_costs(lengths: list[int]) -> None:
    buckets = list(tight_buckets(lengths, 32))
    computed = sum(len(bucket) * max(lengths[place] for place in bucket) for bucket in buckets)
    order = np.sort(lengths)[::-1]
    uncut = [order[start : start + 32] for start in range(0, len(order), 32)]
    assert computed + 64 * (len(buckets) - len(uncut)) <= sum(len(part) * int(part[0]) for part in uncut)


@given(LENGTHS, st.integers(1, 40), st.integers(1, 2_000))
def test_a_bucket_of_several_texts_has_at_most_so_many_tokens(lengths: list[int], size: int, tokens: int) -> None:
    buckets = list(tight_buckets(lengths, size, tokens))
    assert [place for bucket in buckets for place in bucket] == [
        place for bucket in tight_buckets(lengths, size) for place in bucket
    ]
    assert all(len(bucket) * lengths[bucket[0]] <= tokens for bucket in buckets if len(bucket) > 1)


def test_short_texts_are_not_padded_to_a_long_one() -> None:
    assert list(tight_buckets([8] * 15 + [256] + [9] * 16, 32)) == [[15], [*range(16, 32), *range(15)]]


def test_texts_of_like_length_stay_together() -> None:
    assert [len(bucket) for bucket in tight_buckets(list(range(100, 132)), 32)] == [32]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_takes_no_text_is_refused(size: int) -> None:
    """Callers fill arrays that hold whatever was in memory before, by these buckets."""
    with pytest.raises(ValueError, match=f"mini_batch_size must be at least 1, not {size}"):
        next(tight_buckets([3, 4], size))

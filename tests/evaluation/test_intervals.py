"""The paired bootstrap: means over queries, then over sets; blocks are drawn as wholes; (a) queries, (b) sets too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cde_rag.evaluation.intervals import PairedQueries, compare


def paired(differences, blocks=None) -> PairedQueries:
    values = np.asarray(differences, dtype=np.float64)
    return PairedQueries(values, np.arange(len(values)) if blocks is None else np.asarray(blocks))


def slow(sets: list[PairedQueries], *, draw_sets: bool, draws: int) -> tuple[float, float]:
    """One draw at a time, in words: choose sets, in each choose blocks, average queries, average sets."""
    rng = np.random.default_rng(7)
    means = []
    for _ in range(draws):
        chosen = [sets[rng.integers(len(sets))] for _ in sets] if draw_sets else sets
        of_sets = []
        for one in chosen:
            blocks = [one.differences[one.blocks == block] for block in dict.fromkeys(one.blocks.tolist())]
            drawn = np.concatenate([blocks[rng.integers(len(blocks))] for _ in blocks])
            of_sets.append(drawn.mean())
        means.append(np.mean(of_sets))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def test_equals_the_slow_loop() -> None:
    rng = np.random.default_rng(0)
    sets = [
        paired(rng.normal(0.1, 1, 40), rng.integers(12, size=40)),  # blocks of unequal sizes
        paired(rng.normal(0.5, 2, 25)),
        paired(rng.normal(-0.2, 0.5, 60), np.arange(60) // 3),
    ]
    found = compare(sets)
    assert found.mean == pytest.approx(np.mean([one.differences.mean() for one in sets]))
    np.testing.assert_allclose(found.queries, slow(sets, draw_sets=False, draws=4000), atol=0.03)
    assert found.sets is not None
    np.testing.assert_allclose(found.sets, slow(sets, draw_sets=True, draws=4000), atol=0.04)


def test_two_blocks_by_hand() -> None:
    # the draws AA, AB, BA, BB have means 1, 1/4, 1/4, 0: a mean over queries, not over blocks
    found = compare([paired([1, 0, 0, 0], [5, 9, 9, 9])])
    assert found.mean == 0.25
    assert found.queries == (0, 1)
    assert found.sets is None


def test_a_single_block_tells_nothing() -> None:
    assert compare([paired([0.3, 0.5], [4, 4])]).queries == (-1, 1)
    two = compare([paired([0.3]), paired([0.5])])
    assert (two.queries, two.sets) == ((-1, 1), (0.3, 0.5))


def test_sets_count_equally_whatever_their_size() -> None:
    found = compare([paired(np.zeros(900)), paired(np.ones(3))], draws=2000)
    assert found.mean == 0.5
    assert found.queries == (0.5, 0.5)
    assert found.sets == (0, 1)


@given(arrays(np.float64, st.integers(2, 8), elements=st.floats(-1, 1)), st.floats(-1, 1))
@settings(max_examples=25)
def test_a_shift_moves_all_and_order_changes_nothing(differences: np.ndarray, shift: float) -> None:
    one = compare([paired(differences)], draws=200)
    moved = compare([paired(differences + shift)], draws=200)
    np.testing.assert_allclose(
        [moved.mean, *moved.queries], [one.mean + shift, *(end + shift for end in one.queries)], atol=1e-9
    )
    renamed = compare([paired(differences, np.arange(len(differences)) * 10 + 3)], draws=200)
    assert renamed == one


def test_the_same_seed_gives_the_same_intervals_and_another_others() -> None:
    sets = [paired(np.random.default_rng(i).normal(size=30)) for i in range(3)]
    assert compare(sets) == compare(sets)
    assert compare(sets).queries != compare(sets, seed=1).queries


def coverage(make, *, truth: float, which: str, trials: int = 400) -> float:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(trials):
        low, high = getattr(compare(make(rng), draws=300), which)
        inside += low <= truth <= high
    return inside / trials


def test_covers_independent_queries() -> None:
    def make(rng: np.random.Generator) -> list[PairedQueries]:
        return [paired(rng.normal(0.2, 1, 50)), paired(rng.normal(0.4, 2, 80))]

    assert 0.91 <= coverage(make, truth=0.3, which="queries") <= 0.985


def test_covers_dependent_queries_only_with_their_blocks() -> None:
    blocks = np.repeat(np.arange(40), 5)

    def with_blocks(rng: np.random.Generator) -> list[PairedQueries]:
        return [paired(np.repeat(rng.normal(0.2, 1, 40), 5) + rng.normal(0, 0.2, 200), blocks)]

    def without(rng: np.random.Generator) -> list[PairedQueries]:
        return [paired(one.differences) for one in with_blocks(rng)]

    assert coverage(with_blocks, truth=0.2, which="queries") >= 0.9
    assert coverage(without, truth=0.2, which="queries") <= 0.8


@pytest.mark.long  # thousands of drawings
def test_unseen_corpora_are_covered_by_drawing_sets_alone() -> None:
    def make(rng: np.random.Generator) -> list[PairedQueries]:
        return [paired(rng.normal(effect, 0.5, 20)) for effect in rng.normal(0.3, 0.5, 12)]

    assert coverage(make, truth=0.3, which="sets") >= 0.88
    assert coverage(make, truth=0.3, which="queries") <= 0.6

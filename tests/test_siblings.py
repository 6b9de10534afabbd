"""Siblings: never the passage itself, half of them nearest, the first one, the rest from all over the parent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.siblings import choose_siblings, sibling_positions


def test_small_parent_gives_all_others():
    assert choose_siblings(1, 4) == [0, 2, 3]
    assert choose_siblings(0, 1) == []


def test_large_parent_gives_its_first_passage_neighbours_and_a_spread():
    assert choose_siblings(50, 101, limit=8) == [0, 16, 48, 49, 51, 52, 53, 85]
    assert choose_siblings(0, 101, limit=8) == [1, 2, 3, 4, 17, 41, 65, 89]


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int]:
    count = draw(st.integers(1, 200))
    return draw(st.integers(0, count - 1)), count, draw(st.integers(0, 40))


@given(places())
def test_properties_of_a_choice(place: tuple[int, int, int]):
    position, count, limit = place
    chosen = choose_siblings(position, count, limit)
    assert chosen == sorted(set(chosen))
    assert position not in chosen
    assert len(chosen) == min(limit, count - 1)
    assert all(0 <= other < count for other in chosen)
    assert 0 in chosen or 0 in (position, limit)
    distances = sorted(abs(other - position) for other in chosen)
    nearest = sorted(abs(other - position) for other in range(count) if other != position)
    assert distances[: limit // 2] == nearest[: limit // 2]


@given(st.integers(40, 400), st.data())
def test_the_spread_reaches_both_ends(count: int, data: st.DataObject):
    chosen = choose_siblings(data.draw(st.integers(0, count - 1)), count)
    gaps = [after - before for before, after in zip([-1, *chosen], [*chosen, count], strict=True)]
    assert max(gaps) <= count / 7 + 11  # seven stretches of the parent, beside its first passage and a window of nine


def test_position_outside_the_parent():
    with pytest.raises(ValueError, match="no position 4"):
        choose_siblings(4, 4)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60), st.integers(0, 8))
def test_positions_of_a_call_are_those_of_each_parent(parents: list[str | None], limit: int):
    siblings = sibling_positions(parents, limit)
    for position, parent in enumerate(parents):
        members = [other for other, same in enumerate(parents) if same == parent]
        place = members.index(position)
        expected = [] if parent is None else [members[i] for i in choose_siblings(place, len(members), limit)]
        assert siblings[position] == expected

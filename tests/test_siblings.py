"""Siblings: never the passage itself, half of them nearest, the first one, the rest spread over the parent."""

import hashlib
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag._validation import digest
from cde_rag.context.siblings import SIBLINGS, choose_siblings, sibling_positions, siblings_by_position

RULES = pytest.mark.parametrize("rule", [1, 2])


def digests(count: int, seed: int = 0) -> list[bytes]:
    return [hashlib.sha256(b"%d %d" % (seed, place)).digest() for place in range(count)]


def given_to(keys: Sequence[bytes]) -> dict[bytes, tuple[list[bytes], frozenset[bytes]]]:
    """What each passage's vector depends on: its first sibling, and the set of all."""
    chosen = [[keys[other] for other in others] for others in choose_siblings(keys)]
    return {key: (others[:1], frozenset(others)) for key, others in zip(keys, chosen, strict=True)}


def changed(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """Embeddings that a change of a parent takes."""
    old, new = given_to(before), given_to(after)
    return sum(old.get(key) != found for key, found in new.items())


def test_rule_1_gives_the_first_passage_neighbours_and_an_even_spread():
    assert siblings_by_position(1, 4) == [0, 2, 3]
    assert siblings_by_position(0, 1) == []
    assert siblings_by_position(50, 101, limit=8) == [0, 16, 48, 49, 51, 52, 53, 85]
    assert siblings_by_position(0, 101, limit=8) == [1, 2, 3, 4, 17, 41, 65, 89]
    assert choose_siblings(digests(101), 8, rule=1)[50] == [0, 16, 48, 49, 51, 52, 53, 85]


def test_rule_2_is_what_collections_were_embedded_with():
    """Digests in stores say so: another choice would embed every long parent anew."""
    chosen = choose_siblings(digests(100), rule=2)
    assert chosen[50] == [0, 6, 34, 38, 44, 46, 47, 48, 49, 51, 52, 53, 54, 61, 68, 72]
    written = "\n".join(
        " ".join(map(str, row)) for count in (17, 18, 40, 333) for row in choose_siblings(digests(count))
    )
    assert hashlib.sha256(written.encode()).hexdigest()[:16] == "a82a25de53ca1e23"


@RULES
@given(count=st.integers(1, 200), limit=st.integers(0, 40), seed=st.integers(0, 9))
def test_properties_of_a_choice(rule: int, count: int, limit: int, seed: int):
    for position, chosen in enumerate(choose_siblings(digests(count, seed), limit, rule=rule)):
        assert chosen == sorted(set(chosen))
        assert position not in chosen
        assert len(chosen) == min(limit, count - 1)
        assert all(0 <= other < count for other in chosen)
        assert 0 in chosen or 0 in (position, limit)
        distances = sorted(abs(other - position) for other in chosen)
        nearest = sorted(abs(other - position) for other in range(count) if other != position)
        assert distances[: limit // 2] == nearest[: limit // 2]


@given(st.integers(40, 400), st.data())
def test_the_even_spread_reaches_both_ends(count: int, data: st.DataObject):
    chosen = siblings_by_position(data.draw(st.integers(0, count - 1)), count)
    gaps = [after - before for before, after in zip([-1, *chosen], [*chosen, count], strict=True)]
    assert max(gaps) <= count / 7 + 11  # seven stretches of the parent, beside its first passage and a window of nine


def test_the_spread_by_digest_draws_from_two_thirds_of_the_parent_or_more():
    drawn = [0] * 500
    for seed in range(40):
        for position, chosen in enumerate(choose_siblings(digests(500, seed))):
            for other in chosen:
                drawn[other] += abs(other - position) > 4 and other > 0
    per_passage = [drawn[place] / 40 for place in range(500)]
    assert sum(per_passage[10:330]) / 320 > 7  # of the seven that each has on average
    assert 0 < sum(per_passage[400:490]) / 90 < sum(per_passage[10:330]) / 320


@pytest.mark.parametrize("step", [1, 10])
@pytest.mark.parametrize("seed", range(2))
def test_appending_takes_ten_embeddings_for_each_passage_at_most(step: int, seed: int):
    keys, embedded = digests(200, seed), 0
    for count in range(step, 201, step):
        embedded += changed(keys[: count - step], keys[:count])
        assert embedded <= 10 * count


def test_deleting_changes_a_bounded_number_of_others():
    keys, order, embedded = digests(200), random.Random(0), 0
    deleted = keys.copy()
    while len(deleted) > 1:
        fewer = deleted.copy()
        del fewer[order.randrange(1, len(fewer))]
        embedded += changed(deleted, fewer)
        deleted = fewer
    assert embedded <= 25 * 200
    backwards = sum(changed(keys[:count], keys[: count - 1]) for count in range(1, 201))
    assert backwards <= 10 * 200


def test_appending_and_deleting_in_turns_never_embeds_a_parent_whole():
    """No count is one at which all spreads move."""
    keys = digests(400)
    assert max(changed(keys[:count], keys[: count + 1]) for count in range(100, 400, 3)) <= 40


def test_passages_of_one_text_are_still_different_passages():
    chosen = choose_siblings([bytes(32)] * 60)
    assert all(len(others) == SIBLINGS and place not in others for place, others in enumerate(chosen))


def test_position_outside_the_parent():
    with pytest.raises(ValueError, match="no position 4"):
        siblings_by_position(4, 4)


@RULES
@given(parents=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60), limit=st.integers(0, 8))
def test_positions_of_a_call_are_those_of_each_parent(rule: int, parents: list[str | None], limit: int):
    texts = [f"text {place}" for place in range(len(parents))]
    siblings = sibling_positions(parents, texts, limit, rule=rule)
    for position, parent in enumerate(parents):
        members = [other for other, same in enumerate(parents) if same == parent]
        keys = [digest(texts[other]) for other in members]
        chosen = choose_siblings(keys, limit, rule=rule)[members.index(position)]
        assert siblings[position] == ([] if parent is None else [members[other] for other in chosen])


def test_of_two_equally_near_the_earlier_one_is_a_sibling_where_half_of_the_limit_is_odd():
    """Models differ in their limit: with six, three are near, and the third one could be on either side."""
    assert [choose_siblings(digests(40), 6, rule=1)[place] for place in (3, 20)] == [
        [0, 1, 2, 4, 13, 31],
        [0, 9, 18, 19, 21, 31],
    ]
    assert [choose_siblings(digests(40), 6, rule=2)[place] for place in (3, 20)] == [
        [0, 1, 2, 4, 6, 14],
        [0, 6, 14, 18, 19, 21],
    ]

"""Siblings are other passages of the same parent, as `siblings_by_position` says, and never the text itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import made_pairs

from cde_rag.context.siblings import siblings_by_position
from cde_rag_training.corpora.groups import Groups
from cde_rag_training.corpora.parent_batches import ParentConfig, Parents

EXACT = ParentConfig(lone_share=0.0, wrong_share=0.0)


def passages_of(prepared):
    """The documents of each parent in the order given, each once: the slow, obvious way."""
    passages = {}
    for parent, document in zip(prepared.parents.tolist(), prepared.documents.tolist(), strict=True):
        if parent >= 0 and document not in passages.setdefault(parent, []):
            passages[parent].append(document)
    return passages


def sentence_views(prepared):
    return {pair: document for pair, kind, _, document in prepared.views.tolist() if kind == 3}


@given(st.integers(0, 50), st.integers(0, 8))
def test_siblings_are_chosen_among_the_parent_s_passages(seed, limit):
    prepared = made_pairs(seed)
    parents, passages = Parents(prepared, replace(EXACT, siblings=limit)), passages_of(prepared)
    pairs, parts = np.random.default_rng(seed).permutation(len(prepared)), sentence_views(prepared)
    cut = np.random.default_rng(seed).random(len(pairs)) < 0.3
    shown = np.where(cut, [parts.get(pair, prepared.documents[pair]) for pair in pairs], prepared.documents[pairs])
    in_part = set(prepared.documents[pairs[shown != prepared.documents[pairs]]].tolist())
    for pair, siblings in zip(pairs, parents.siblings(pairs, shown, np.random.default_rng(seed)), strict=True):
        family = passages.get(int(prepared.parents[pair]), [prepared.documents[pair]])
        place = family.index(prepared.documents[pair])
        near = [family[other] for other in siblings_by_position(place, len(family), limit)]
        assert siblings == [row for row in near if row not in in_part]
        assert prepared.documents[pair] not in siblings
        assert parents.families[pair] == (len(family) > 1)


def test_another_parent_s_siblings_are_not_the_text_itself():
    prepared = made_pairs()
    config = ParentConfig(lone_share=0.0, wrong_share=1.0, siblings=99)
    pairs = np.flatnonzero(prepared.sources == 0)
    for seed in range(20):
        found = Parents(prepared, config).siblings(pairs, prepared.documents[pairs], np.random.default_rng(seed))
        assert not any(row in siblings for row, siblings in zip(prepared.documents[pairs], found, strict=True))


def test_some_documents_are_lone_and_some_have_another_parent_s_siblings():
    prepared = made_pairs()
    passages = passages_of(prepared)
    pairs = np.flatnonzero(Parents(prepared, EXACT).families & (prepared.sources == 0))
    lone, wrong, count = 0, 0, 0
    for seed in range(20):
        config = ParentConfig(lone_share=0.3, wrong_share=0.2)
        found = Parents(prepared, config).siblings(pairs, prepared.documents[pairs], np.random.default_rng(seed))
        for pair, siblings in zip(pairs, found, strict=True):
            assert prepared.documents[pair] not in siblings
            count, lone = count + 1, lone + (not siblings)
            wrong += not set(siblings) <= set(passages[prepared.parents[pair]])
    assert lone / count == pytest.approx(0.3, abs=0.05)
    assert wrong / count == pytest.approx(0.7 * 0.2, abs=0.04)


@given(st.integers(0, 50), st.integers(1, 60))
def test_a_batch_holds_several_passages_of_each_parent(seed, size):
    prepared = made_pairs(seed)
    parents, passages = Parents(prepared, ParentConfig(passages=(3, 5))), passages_of(prepared)
    ring = np.flatnonzero(prepared.sources == 0)
    pairs = parents.draw([ring[:20], ring], size, np.random.default_rng(seed))
    assert len(pairs) == min(size, len(pairs)) == len(set(pairs.tolist()))
    held = [prepared.parents[pair] for pair in pairs]
    assert set(prepared.sources[pairs]) <= {0}
    for parent in held[: -(held.count(held[-1]))] if held else []:  # the last may have been cut by the size
        assert min(3, len(passages[parent])) <= held.count(parent) <= 5
        rows = [prepared.documents[pair] for pair in pairs if prepared.parents[pair] == parent]
        assert len(set(rows)) == len(rows)
    assert len(pairs) == size or set(held) == set(prepared.parents[ring[parents.families[ring]]])


def test_parents_of_the_nearer_ring_come_first():
    prepared = made_pairs()
    parents = Parents(prepared, EXACT)
    ring = np.flatnonzero(parents.families & (prepared.sources == 0))
    first = parents.draw([ring[:1], ring], 2, np.random.default_rng(0))
    assert set(prepared.parents[first]) == {prepared.parents[ring[0]]}


def test_one_passage_of_a_parent_is_refused():
    with pytest.raises(ValueError, match="which parent and forgets which passage"):
        ParentConfig(passages=(1, 4))


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_groups_are_what_a_scan_finds(codes):
    groups = Groups(np.array(codes, dtype=np.int64))
    assert [groups.of(code).tolist() for code in range(len(groups.sizes))] == [
        [place for place, held in enumerate(codes) if held == code] for code in range(max(codes, default=-1) + 1)
    ]

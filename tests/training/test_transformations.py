"""A transformed document is [CLS] header title text [SEP]; the same for all documents of a corpus, and in its place."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import CLS, MAX_LENGTH, SEP, made_pairs

from cde_rag_training.data.tokens import token_rows
from cde_rag_training.data.transformations import (
    PLAIN,
    DocumentTokens,
    Transformation,
    TransformationConfig,
    draw_transformation,
)

PREPARED = made_pairs()
ROWS = st.lists(st.integers(0, len(PREPARED.texts) - 1), max_size=5)


def small(titles, documents=(1, 2), views=()):
    """Two pairs; text 0 is a query, 1 and 2 are documents, 3 and 4 titles, 5 a header."""
    texts = [[CLS, 10, SEP], [CLS, 20, 21, 22, SEP], [CLS, 30, SEP], [CLS, 40, SEP], [CLS, 50, 51, SEP]]
    prepared = made_pairs()
    count, pair = len(documents), np.arange(len(documents))
    own = [(number, 0, 0, document) for number, document in enumerate(documents)]
    fields = {name: getattr(prepared, name)[:count] for name in ("sources", "domains", "parents", "clusters")}
    fields |= {name: getattr(prepared, name)[:count] for name in ("query_vectors", "document_vectors")}
    return replace(
        prepared,
        texts=token_rows([*texts, [CLS, 60, 61, 62, SEP]], vocabulary=99),
        queries=0 * pair,
        documents=np.array(documents),
        titles=np.array(titles),
        views=np.array(sorted([*own, *views])),
        hard_negatives=np.full((count, 1), -1),
        max_length=8,
        **fields,
    )


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (PLAIN, [[CLS, 20, 21, 22, SEP], [CLS, 30, SEP]]),
        (Transformation(titled=True), [[CLS, 50, 51, 20, 21, 22, SEP], [CLS, 30, SEP]]),
        (Transformation(cut=2), [[CLS, 20, 21, SEP], [CLS, 30, SEP]]),
        (Transformation(header=5, header_tokens=2), [[CLS, 60, 61, 20, 21, 22, SEP], [CLS, 60, 61, 30, SEP]]),
        (
            Transformation(titled=True, cut=2, header=5, header_tokens=9),
            [[CLS, 60, 61, 62, 50, 51, 20, SEP], [CLS, 60, 61, 62, 30, SEP]],
        ),
    ],
)
def test_what_stands_where(how, expected):
    assert DocumentTokens(small(titles=[4, -1]))([1, 2], how) == expected


def test_a_part_of_a_document_has_its_title_and_a_text_under_several_has_none():
    tokens = DocumentTokens(small(titles=[4, 4], views=[(0, 3, 0, 3)]))
    assert tokens([1, 2, 3], Transformation(titled=True)) == [
        [CLS, 50, 51, 20, 21, 22, SEP],
        [CLS, 50, 51, 30, SEP],
        [CLS, 50, 51, 40, SEP],
    ]
    for titles in ([3, 4], [4, 3], [3, -1], [-1, 3]):
        assert DocumentTokens(small(titles, documents=(2, 2)))([2], Transformation(titled=True)) == [[CLS, 30, SEP]]


transformations = st.builds(
    Transformation,
    titled=st.booleans(),
    cut=st.none() | st.integers(1, MAX_LENGTH),
    header=st.integers(-1, len(PREPARED.texts) - 1),
    header_tokens=st.integers(0, MAX_LENGTH),
)


@given(ROWS, ROWS, transformations)
def test_special_tokens_stay_in_place_and_texts_do_not_know_each_other(some, others, how):
    tokens = DocumentTokens(PREPARED)
    shown = tokens(some + others, how)
    assert shown == tokens(some, how) + tokens(np.array(others, dtype=np.int64), how)
    for row, ids in zip(some + others, shown, strict=True):
        assert ids[0] == CLS
        assert ids[-1] == SEP
        assert not {CLS, SEP} & set(ids[1:-1])
        assert len(ids) <= MAX_LENGTH
        assert how != PLAIN or ids == PREPARED.texts[row]


def test_each_change_has_its_share_and_its_sizes():
    config = TransformationConfig(
        titled_share=0.2, cut_share=0.5, shortest_cut=32, header_share=0.8, header_tokens=(3, 5)
    )
    drawn = [draw_transformation(config, 7, max_length=128, random=np.random.default_rng(seed)) for seed in range(400)]
    assert np.mean([one.titled for one in drawn]) == pytest.approx(0.2, abs=0.07)
    assert np.mean([one.cut is not None for one in drawn]) == pytest.approx(0.5, abs=0.07)
    assert np.mean([one.header == 7 for one in drawn]) == pytest.approx(0.8, abs=0.07)
    cuts = [one.cut for one in drawn if one.cut is not None]
    assert 32 <= min(cuts) < 36
    assert 115 < max(cuts) <= 128
    assert np.median(cuts) == pytest.approx(64, abs=8)  # log-uniform
    assert {(one.header, one.header_tokens) for one in drawn} == {(-1, 0), (7, 3), (7, 4), (7, 5)}
    assert draw_transformation(TransformationConfig(), 7, max_length=9, random=np.random.default_rng(0)) == PLAIN

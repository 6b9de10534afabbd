"""A pair is shown in a view that it has; kinds have their shares, and a query stays with its document."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pairs import made_pairs

from cde_rag_training.data.layout import VIEW_KINDS
from cde_rag_training.data.views import OWN, SameQueries, ViewConfig, Views

PREPARED = made_pairs()
KIND_OF = {(pair, query, document): VIEW_KINDS[kind] for pair, kind, query, document in PREPARED.views.tolist()}


def kinds(config, pairs, seed=0):
    queries, documents = Views(PREPARED, config).draw(pairs, np.random.default_rng(seed))
    return [KIND_OF[shown] for shown in zip(pairs.tolist(), queries.tolist(), documents.tolist(), strict=True)]


def having(kind):
    return np.array(sorted({pair for (pair, _, _), found in KIND_OF.items() if found == kind}))


@given(st.floats(0, 1), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 9))
def test_what_is_shown_is_a_view_of_the_pair(nameless, keywords, sentence, seed):
    config = ViewConfig(nameless_share=nameless, keywords_share=keywords, sentence_share=sentence)
    assert len(kinds(config, np.random.default_rng(seed).permutation(len(PREPARED))[:30], seed)) == 30


@pytest.mark.parametrize("kind", ["nameless", "keywords", "sentence"])
def test_a_kind_is_shown_wherever_there_is_one(kind):
    shares = {"nameless_share": 0.0, "keywords_share": 0.0, "sentence_share": 0.0, f"{kind}_share": 1.0}
    found = kinds(ViewConfig(**shares), np.arange(len(PREPARED)))
    assert [pair for pair, shown in enumerate(found) if shown == kind] == having(kind).tolist()
    assert set(found) == {kind, "own"}


def test_shares():
    all_of_them = set(having("nameless")) & set(having("keywords")) & set(having("sentence"))
    pairs = np.array(sorted(all_of_them) * 40)
    found = kinds(ViewConfig(nameless_share=0.5, keywords_share=0.1, sentence_share=0.3), pairs)
    for kind, share in (("own", 0.3), ("nameless", 0.3), ("keywords", 0.1), ("sentence", 0.3)):
        assert np.mean(np.array(found) == kind) == pytest.approx(share, abs=0.04)
    assert set(kinds(OWN, pairs)) == {"own"}


def test_of_several_views_of_a_kind_each_comes():
    pair = int(having("keywords")[0])
    rows = PREPARED.views[(PREPARED.views[:, 0] == pair) & (PREPARED.views[:, 1] == VIEW_KINDS.index("keywords")), 2]
    config = ViewConfig(keywords_share=1.0, sentence_share=0.0)
    queries, _ = Views(PREPARED, config).draw(np.full(60, pair), np.random.default_rng(0))
    assert set(queries.tolist()) == set(rows.tolist())


def test_shares_of_more_than_all_queries_are_refused():
    with pytest.raises(ValueError, match="1 together"):
        ViewConfig(keywords_share=0.6, sentence_share=0.5)


@given(st.integers(0, 9))
def test_a_query_asks_for_every_pair_that_has_it_with_its_parent_s_name_or_without(seed):
    rows = np.random.default_rng(seed).integers(0, 6, size=(3, 20))  # few texts, so that they stand in several pairs
    views = [(pair, kind, rows[kind, pair], PREPARED.documents[pair]) for pair in range(20) for kind in range(3)]
    prepared = replace(PREPARED, queries=np.r_[rows[0], PREPARED.queries[20:]], views=np.array(views))
    pairs = np.random.default_rng(seed).permutation(20)[:12]
    shown = np.array([rows[place % 3, pair] for place, pair in enumerate(pairs)])
    found = SameQueries(prepared)(pairs, shown)
    for i, query in enumerate(shown):
        for j, pair in enumerate(pairs):
            assert found[i, j] == (query in {shown[j], rows[0, pair], rows[1, pair]})

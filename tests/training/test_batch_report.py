"""What is told of a batch is what is in it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub, stub_pairs

from cde_rag_training.config import LossConfig
from cde_rag_training.corpora.batch import Batch
from cde_rag_training.corpora.batch_report import SAME_DOCUMENT, SAME_QUERY, masks, report_batch
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import PLAIN, Transformation
from cde_rag_training.losses.objective import Objective


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    pairs = stub_pairs()
    pairs[6] = Pair(pairs[0].query, pairs[6].document, "faq", "money")  # the first question, once more
    return prepared_stub(tmp_path / "prepared", pairs)


def batch_of(prepared: Prepared, pairs: list[int]) -> Batch:
    chosen = np.array(pairs)
    return Batch(
        pairs=chosen,
        queries=prepared.queries[chosen],
        documents=prepared.documents[chosen],
        hard_negatives=np.zeros((len(pairs), 0), dtype=np.int64),
        context=prepared.documents[np.array([9, 12])],
        siblings=[[int(prepared.documents[15])], *([] for _ in pairs[1:])],
        transformation=PLAIN,
        corpus="some",
    )


def test_figures_are_those_of_the_surrogate(prepared: Prepared):
    batch = batch_of(prepared, [0, 3, 6])
    cosines = prepared.query_vectors_of(batch.pairs) @ prepared.document_vectors_of(batch.pairs).T
    found = report_batch(prepared, batch, FilterConfig(margin=0.0), update=7, examples=2)
    others = cosines[~np.eye(3, dtype=bool)]
    assert (found.update, found.source, found.corpus, found.size, found.context) == (7, "faq", "some", 3, 2)
    assert found.difficulty == pytest.approx(others.mean(), abs=1e-3)
    assert found.own == pytest.approx(np.diagonal(cosines).mean(), abs=1e-3)
    assert found.hardest == pytest.approx((cosines - 9 * np.eye(3)).max(axis=1).mean(), abs=1e-3)
    assert found.filtered[SAME_QUERY] == pytest.approx(2 / 6)  # pairs 0 and 6 ask the same
    preferred = (cosines >= np.diagonal(cosines)[:, None]) & ~np.eye(3, dtype=bool)
    assert found.filtered["rule relative"] == pytest.approx(preferred.sum() / 6)
    assert found.with_siblings == 1
    assert len(found.pairs) == len(found.context_examples) == 2


def test_a_pair_says_why_its_nearest_other_document_is_no_negative(prepared: Prepared):
    found = report_batch(prepared, batch_of(prepared, [0, 6]), FilterConfig(rule="none"), update=0, examples=2)
    assert [pair.filtered for pair in found.pairs] == [SAME_QUERY] * 2
    assert found.loses_hardest == 1
    assert set(found.filtered) == {SAME_QUERY, SAME_DOCUMENT}
    first, second = sorted(found.pairs, key=lambda pair: pair.siblings, reverse=True)
    assert (first.query, first.hardest) == (second.query, second.document)


def test_documents_are_told_as_they_are_shown(prepared: Prepared):
    batch = batch_of(prepared, [1, 2])
    whole = report_batch(prepared, batch, FilterConfig(), update=0, examples=2)
    cut = replace(batch, transformation=Transformation(titled=True, cut=3))
    shown = report_batch(prepared, cut, FilterConfig(), update=0, examples=2)
    assert (whole.shown, shown.shown) == ("", "with titles, cut at 3 tokens")
    assert {pair.parent for pair in shown.pairs} == {"the the of the"}
    assert all(pair.document.startswith(pair.parent) for pair in shown.pairs)
    assert all(len(pair.document.split()) == 7 for pair in shown.pairs)


def test_agreement_needs_words(prepared: Prepared):
    with pytest.raises(ValueError, match="BM25"):
        masks(prepared, batch_of(prepared, [0, 3]), FilterConfig(rule="agreement"))


def test_the_mask_is_that_of_training(prepared: Prepared):
    batch, rule = batch_of(prepared, [0, 3, 6, 9, 12]), FilterConfig(margin=0.0)
    trained = Objective(LossConfig(), rule, prepared, device=torch.device("cpu")).mask(batch)
    found = torch.stack(list(masks(prepared, batch, rule).by_rule.values())).any(dim=0)
    assert found.sum() > 2
    torch.testing.assert_close(found, trained)

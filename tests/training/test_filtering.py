"""What must not be a negative: rules by cases to check by eye, golden masks, and what holds for all scores."""

import numpy as np
import pytest
import torch
from goldens import golden, golden_json
from hypothesis import given
from hypothesis import strategies as st

from cde_rag_training.corpora.filtering import (
    FilterConfig,
    FilteredBatch,
    FilterWarning,
    StartBatch,
    above,
    agreed,
    by_rule,
    duplicates,
    preferred,
    report,
    warn_of_start_model,
)


def some_scores(queries, documents, seed):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size=(queries, documents)).astype("f4"))


GOLDEN_RULES = {
    "plain": lambda scores: torch.zeros_like(scores).bool(),
    "relative_filter": preferred,
    "absolute_filter_0.5": lambda scores: above(scores, 0.5),
}


@pytest.mark.parametrize("name", GOLDEN_RULES)
def test_golden_masks(shared_data, name):
    tensors, case = golden(shared_data, "loss/cases"), golden_json(shared_data, "loss/cases")[name]
    mask = GOLDEN_RULES[name](tensors[f"{name}.surrogate_scores"])
    assert torch.equal(mask, tensors[f"{name}.mask"].bool())
    assert int(mask.sum()) == case["n_masked"]


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 99), st.floats(-1, 1))
def test_the_positive_is_never_masked(count, more, seed, threshold):
    scores = some_scores(count, count + more, seed)
    masks = [preferred(scores), above(scores, threshold), agreed(scores, scores.flip(0))]
    documents = torch.nn.functional.normalize(some_scores(count + more, 3, seed), dim=1)
    masks.append(duplicates(torch.zeros(count).long(), torch.zeros(count + more).long(), documents))
    for mask in masks:
        assert not mask.diagonal().any()


@given(st.integers(2, 6), st.integers(0, 3), st.integers(0, 99), st.floats(0, 1, width=32), st.floats(0, 0.5, width=32))
def test_the_mask_grows_with_the_scores_of_others(count, more, seed, rise, margin):
    scores = some_scores(count, count + more, seed)
    higher = scores + rise * ~torch.eye(count, count + more, dtype=torch.bool)
    for rule in (lambda x: preferred(x, margin=margin), lambda x: above(x, margin), lambda x: agreed(x, x)):
        assert not (rule(scores) & ~rule(higher)).any()
    assert not (preferred(scores, margin=margin) & ~preferred(scores)).any()  # a margin believes less


def test_agreement_wants_both_and_a_shared_word():
    dense = torch.tensor([[0.5, 0.6, 0.7], [0.0, 0.9, 0.1], [0.0, 0.0, 0.2]])
    lexical = torch.tensor([[3.0, 4.0, 2.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert agreed(dense, lexical).tolist() == [[False, True, False], [False] * 3, [False] * 3]
    config = FilterConfig(rule="agreement")
    assert torch.equal(by_rule(config, dense, lexical), agreed(dense, lexical))
    with pytest.raises(ValueError, match="Expected BM25 scores for the rule 'agreement', found none"):
        by_rule(config, dense)


def test_duplicates_by_eye():
    """Rows are queries, columns documents: three positives and one further document."""
    documents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.28, 0.96]])
    none = duplicates(torch.arange(3), torch.arange(4), documents, cosine=0.99)
    assert not none.any()
    near = duplicates(torch.arange(3), torch.arange(4), documents)
    assert near.nonzero().tolist() == [[1, 3]]
    same_query = duplicates(torch.tensor([0, 1, 0]), torch.arange(4), documents, cosine=0.99)
    assert same_query.nonzero().tolist() == [[0, 2], [2, 0]]
    same_document = duplicates(torch.arange(3), torch.tensor([0, 1, 2, 0]), documents, cosine=0.99)
    assert same_document.nonzero().tolist() == [[0, 3]]


def test_rules_by_name():
    scores = some_scores(5, 7, 0)
    assert torch.equal(by_rule(FilterConfig(margin=0.0), scores), preferred(scores))
    assert torch.equal(by_rule(FilterConfig(rule="absolute", threshold=0.3), scores), above(scores, 0.3))
    assert not by_rule(FilterConfig(rule="none"), scores).any()


def test_a_surrogate_that_is_the_start_model_warns():
    batches = [some_scores(20, 20, seed) for seed in range(3)]
    nothing = torch.zeros(20, 20, dtype=torch.bool)

    def check(rule, known=lambda scores: nothing):
        warn_of_start_model(StartBatch(scores, rule(scores), known(scores)) for scores in batches)

    with pytest.warns(FilterWarning, match="the surrogate is the start model"):
        check(preferred)
    check(lambda scores: preferred(scores, margin=0.3))  # no warning: a test would fail on one
    check(lambda scores: preferred(some_scores(20, 20, 7)))
    check(preferred, known=preferred)  # duplicates are not to be learned


def test_report_counts_by_source():
    scores = torch.tensor([[0.5, 0.6, 0.1], [0.1, 0.5, 0.2], [0.7, 0.8, 0.9]])
    easy = FilteredBatch("easy", scores, torch.zeros(3, 3, dtype=torch.bool))
    hard = FilteredBatch("hard", scores, preferred(scores))
    reports = report([hard, easy, hard])
    assert list(reports) == ["easy", "hard"]
    assert reports["easy"] == (3, 0.0, 0.0)
    assert reports["hard"].queries == 6
    assert reports["hard"].masked == pytest.approx(1 / 6)
    assert reports["hard"].loses_hardest == pytest.approx(1 / 3)

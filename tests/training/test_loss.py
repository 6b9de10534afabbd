"""Losses against the slow, obvious loops and the golden numbers, gradients included."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from goldens import golden, golden_json
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_rag_training.losses.loss import (
    contrastive_loss,
    distillation_loss,
    graded_loss,
    improved_contrastive_loss,
    matryoshka,
    mixture,
)

CASES = (
    "plain",
    "relative_filter",
    "absolute_filter_0.5",
    "temp20",
    "hn2_plain",
    "hn2_relative_filter",
    "hn2_only_own_negatives",
    "hn2_only_own_negatives_nofilter",
)


def unit(count, dim, seed):
    vectors = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim)).astype("f4"))
    return F.normalize(vectors, dim=1)


def some_mask(queries, documents, seed):
    mask = torch.from_numpy(np.random.default_rng(seed).random((queries, documents)) < 0.3)
    return mask & ~torch.eye(queries, documents, dtype=torch.bool)


def log_sum(scores):
    top = max(scores)
    return top + math.log(sum(math.exp(score - top) for score in scores))


@given(st.integers(2, 7), st.integers(0, 4), st.integers(0, 99), st.sampled_from([0.02, 0.1, 1.0]))
def test_equals_the_loop(count, more, seed, temperature):
    queries, documents, mask = (
        unit(count, 5, seed),
        unit(count + more, 5, seed + 1),
        some_mask(count, count + more, seed),
    )
    expected = 0.0
    for i in range(count):
        scores = [float(queries[i] @ document) / temperature for document in documents]
        kept = [score for j, score in enumerate(scores) if not mask[i, j]]
        expected += (log_sum(kept) - scores[i]) / count
    assert float(contrastive_loss(queries, documents, mask, temperature)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_golden_losses_and_gradients(shared_data, name):
    tensors, case = golden(shared_data, "loss/cases"), golden_json(shared_data, "loss/cases")[name]
    queries, documents = (tensors[f"{name}.{kind}"].requires_grad_() for kind in ("query", "document"))
    mask = tensors[f"{name}.mask"].bool()
    assert int(mask.sum()) == case["n_masked"]
    unit_queries, unit_documents = F.normalize(queries, dim=1), F.normalize(documents, dim=1)
    loss = contrastive_loss(unit_queries, unit_documents, mask, 1 / case["logit_scale"])
    loss.backward()
    torch.testing.assert_close(loss.detach(), tensors[f"{name}.loss"][0], atol=1e-5, rtol=1e-5)
    for kind, side in (("query", queries), ("document", documents)):
        expected = tensors[f"{name}.grad_{kind}"]
        assert expected.norm() > 1e-3
        torch.testing.assert_close(side.grad, expected, atol=1e-4, rtol=1e-4)


@given(st.integers(2, 6), st.integers(0, 2), st.integers(0, 99), st.sampled_from([0.01, 0.1, 1.0]))
def test_improved_loss_equals_the_four_sums(count, negatives, seed, temperature):
    """GTE's equation 6, sum by sum; what answers query i or shares an answer with it is left out of each."""
    total = count * (1 + negatives)
    q, d, mask = unit(count, 5, seed), unit(total, 5, seed + 1), some_mask(count, total, seed)
    expected = 0.0
    for i in range(count):
        alike = [bool(mask[i, j] or (j < count and mask[j, i])) for j in range(total)]
        terms = [q[i] @ d[j] for j in range(total) if not mask[i, j]]
        terms += [q[i] @ q[j] for j in range(count) if j != i and not alike[j]]
        terms += [q[j] @ d[i] for j in range(count) if not mask[j, i]]
        terms += [d[j] @ d[i] for j in range(total) if j != i and not alike[j]]
        expected += (log_sum([float(term) / temperature for term in terms]) - float(q[i] @ d[i]) / temperature) / count
    loss = improved_contrastive_loss(q, d, mask, temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert float(loss) > math.log(2) - 1e-3  # the positive stands in the partition function twice


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 99), st.sampled_from([-10.0, 0.0]))
def test_graded_loss_equals_the_cross_entropies(count, more, seed, bias):
    """Computed in NumPy, pair by pair: the own document at its grade, all others that are not masked at 0."""
    queries, documents = unit(count, 5, seed), unit(count + more, 5, seed + 1)
    mask, grades = some_mask(count, count + more, seed), np.random.default_rng(seed).random(count)
    q, d = (each.numpy().astype(np.float64) for each in (queries, documents))
    expected = 0.0
    for i in range(count):
        for j in range(count + more):
            probability = 1 / (1 + np.exp(-(q[i] @ d[j] / 0.1 + bias)))
            target = grades[i] if i == j else 0.0
            if not mask[i, j]:
                expected -= (target * np.log(probability) + (1 - target) * np.log1p(-probability)) / count
    loss = graded_loss(queries, documents, mask, torch.from_numpy(grades).float(), 0.1, bias)
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_graded_document_is_drawn_to_its_grade():
    """A pair alone: the gradient vanishes where the probability is the grade, and points there from both sides."""
    query, none = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1, dtype=torch.bool)
    slopes = []
    for cosine in (0.1, 0.25, 0.9):
        document = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]], requires_grad=True)
        grade = torch.sigmoid(torch.tensor([0.25 / 0.1 - 2.0]))
        graded_loss(query, document, none, grade, 0.1, -2.0).backward()
        slopes.append(float(document.grad[0, 0]))
    assert slopes[0] < -1e-2
    assert abs(slopes[1]) < 1e-5
    assert slopes[2] > 1e-2


def test_a_large_graded_batch_is_computed_in_parts():
    queries, documents = unit(600, 8, 0).requires_grad_(), unit(700, 8, 1)
    mask, grades = some_mask(600, 700, 2), torch.from_numpy(np.random.default_rng(3).random(600)).float()
    loss = graded_loss(queries, documents, mask, grades, 0.1, -3.0)
    loss.backward()
    found = queries.grad.clone()
    queries.grad = None
    scores = queries @ documents.T / 0.1 - 3
    targets = torch.zeros(600, 700)
    targets[:, :600] = torch.diag(grades)
    whole = (F.binary_cross_entropy_with_logits(scores, targets, reduction="none") * ~mask).sum() / 600
    whole.backward()
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(found, queries.grad)


def test_matryoshka_is_the_mean_over_cut_embeddings():
    queries, documents, mask = unit(5, 8, 0), unit(5, 8, 1), some_mask(5, 5, 2)

    def loss(q, d):
        return contrastive_loss(q, d, mask, 0.1)

    expected = [loss(F.normalize(queries[:, :dim], dim=1), F.normalize(documents[:, :dim], dim=1)) for dim in (8, 4, 2)]
    torch.testing.assert_close(matryoshka(loss, (8, 4, 2))(queries, documents), sum(expected) / 3)
    torch.testing.assert_close(matryoshka(loss, (8,))(queries, documents), loss(queries, documents))
    with pytest.raises(ValueError, match=r"at most 8, those of the embeddings, found \[16\]\. Leave"):
        matryoshka(loss, (16,))(queries, documents)
    with pytest.raises(ValueError, match="Expected one or more dims"):
        matryoshka(loss, ())


@given(st.integers(2, 6), st.integers(0, 99))
def test_distillation_equals_the_sum(count, seed):
    queries, documents = unit(count, 5, seed), unit(count + 2, 5, seed + 1)
    teacher = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, count + 2)).astype("f4"))
    p = torch.softmax(teacher.double() / 0.5, dim=1)
    q = torch.softmax((queries @ documents.T).double() / 0.1, dim=1)
    expected = float((p * (p / q).log()).sum() / count)
    loss = distillation_loss(queries, documents, teacher, 0.1, teacher_temperature=0.5)
    assert float(loss) == pytest.approx(expected, abs=1e-4)


def test_distillation_is_zero_at_the_teacher_and_leads_there():
    queries, documents = unit(6, 8, 0).requires_grad_(), unit(6, 8, 1)
    teacher = unit(6, 8, 2) @ documents.T
    at_teacher = distillation_loss(unit(6, 8, 2), documents, teacher, 0.1, teacher_temperature=0.1)
    assert float(at_teacher) == pytest.approx(0, abs=1e-6)
    loss = distillation_loss(queries, documents, teacher, 0.1, teacher_temperature=0.1)
    loss.backward()
    with torch.no_grad():
        nearer = distillation_loss(queries - 0.01 * queries.grad, documents, teacher, 0.1, teacher_temperature=0.1)
    assert 0 < float(nearer) < float(loss.detach())


def test_mixture_has_the_scale_of_the_first():
    first = torch.tensor([[0.2, 0.4, 0.6], [0.1, 0.1, 0.4]])
    second = torch.tensor([[30.0, 10.0, 20.0], [7.0, 7.0, 7.0]])
    torch.testing.assert_close(mixture(first, second, 0.0), first)
    torch.testing.assert_close(mixture(first, second, 1.0), torch.tensor([[0.6, 0.2, 0.4], [0.2, 0.2, 0.2]]))
    torch.testing.assert_close(mixture(first, second, 0.5)[0], torch.tensor([0.4, 0.3, 0.5]))


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(0, 99))
def test_what_is_masked_moves_nothing(count, seed):
    queries, documents, mask = unit(count, 5, seed), unit(count, 5, seed + 1), some_mask(count, count, seed)
    mask[:, -1] = True
    mask[-1, -1] = False
    kept = contrastive_loss(queries[:-1], documents, mask[:-1], 0.1)
    documents[-1] = -documents[-1]
    torch.testing.assert_close(contrastive_loss(queries[:-1], documents, mask[:-1], 0.1), kept)


@pytest.mark.parametrize("name", ["contrastive", "improved", "distillation"])
def test_a_large_batch_is_computed_in_parts(name, monkeypatch):
    """With the same loss and gradients."""
    losses = {
        "contrastive": lambda q, d: contrastive_loss(q, d, some_mask(7, 9, 2), 0.1),
        "improved": lambda q, d: improved_contrastive_loss(q, d, some_mask(7, 9, 2), 0.1),
        "distillation": lambda q, d: distillation_loss(q, d, unit(7, 9, 3), 0.1, teacher_temperature=0.2),
    }
    results = []
    for rows in (1024, 3):
        monkeypatch.setattr("cde_rag_training.losses.loss.ROWS", rows)
        queries, documents = unit(7, 5, 0).requires_grad_(), unit(9, 5, 1).requires_grad_()
        loss = losses[name](queries, documents)
        loss.backward()
        results.append((loss.detach(), queries.grad, documents.grad))
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole)

"""Which texts are negatives of which: by surrogate, by text, by pair; and the losses of what is left."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from prepared_stub import prepared_stub, stub_pairs

from cde_rag import CDEError
from cde_rag_training.config import LossConfig
from cde_rag_training.corpora.batch import Batch, hard_negatives_of
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.data.lexical import LexicalPairs, lexical_pairs
from cde_rag_training.data.transformations import PLAIN
from cde_rag_training.losses.loss import (
    contrastive_loss,
    distillation_loss,
    graded_loss,
    improved_contrastive_loss,
    mixture,
)
from cde_rag_training.losses.objective import Objective

CPU = torch.device("cpu")
NONE = FilterConfig(rule="none")


def test_grades_are_those_of_the_batch(prepared):
    grades = np.linspace(0, 1, len(prepared)).astype(np.float32)
    graded = replace(prepared, grades=grades)
    batch, config = batch_of(prepared, [4, 2, 0]), LossConfig(kind="graded", temperature=0.1, bias=-2.0)
    vectors = F.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    found = Objective(config, NONE, graded, device=CPU).of(batch, slice(0, 3))(vectors)
    mask = Objective(config, NONE, graded, device=CPU).mask(batch)
    wanted = torch.from_numpy(grades[[4, 2, 0]])
    torch.testing.assert_close(found, graded_loss(vectors[:3], vectors[3:], mask, wanted, 0.1, -2.0))
    without = Objective(config, NONE, prepared, device=CPU).of(batch, slice(0, 3))(vectors)
    torch.testing.assert_close(without, graded_loss(vectors[:3], vectors[3:], mask, torch.ones(3), 0.1, -2.0))


@pytest.fixture
def prepared(tmp_path):
    """Six pairs: 1 asks what 0 asks, 2 has the document of 3; hard negatives are documents of other pairs too."""
    pairs = stub_pairs(6)
    pairs[1] = replace(pairs[1], query=pairs[0].query)
    pairs[2] = replace(pairs[2], document=pairs[3].document)
    texts = [pair.document for pair in pairs]
    negatives = [
        (texts[1], "river"),
        ("bank", "loan"),
        ("rate", texts[3]),
        ("fish", "boat"),
        ("in", "and"),
        ("is", "to"),
    ]
    return prepared_stub(
        tmp_path, [replace(pair, hard_negatives=some) for pair, some in zip(pairs, negatives, strict=True)]
    )


def batch_of(prepared, pairs, *, negatives=0):
    pairs = np.array(pairs)
    return Batch(
        pairs=pairs,
        queries=prepared.queries[pairs],
        documents=prepared.documents[pairs],
        hard_negatives=prepared.hard_negatives[pairs][:, :negatives],
        context=np.zeros(0, dtype=np.int64),
        siblings=[[] for _ in pairs],
        transformation=PLAIN,
        corpus="made",
    )


def masked(objective, batch):
    return {(row, column) for row, column in objective.mask(batch).nonzero().tolist()}


def test_duplicates_are_never_negatives(prepared):
    objective = Objective(LossConfig(), NONE, prepared, device=CPU)
    batch = batch_of(prepared, range(6))
    assert masked(objective, batch) == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_hard_negatives_that_answer_the_query_are_none(prepared):
    """Columns 6 … 17, two of each pair: that of pair 0 answers its query as pair 1's does, that of 2 is its own."""
    objective = Objective(LossConfig(), NONE, prepared, device=CPU)
    found = masked(objective, batch_of(prepared, range(6), negatives=2))
    assert {(row, column) for row, column in found if column >= 6} == {(0, 6), (1, 6), (2, 11), (3, 11)}


def partition(prepared, batch, temperature, queries, documents, negatives, *, margin):
    """Equation 4 of the paper over documents and hard negatives, by arrays and loops; S(q, d) by the surrogate."""
    size, width = batch.hard_negatives.shape
    asked, told = (each.astype(np.float64) for each in prepared.filter_vectors_of(batch.pairs))
    others = prepared.negative_vectors_of(batch.hard_negatives.ravel()).astype(np.float64)
    losses = []
    for row in range(size):
        own = np.exp(queries[row] @ documents[row] / temperature)
        total = own
        for column in range(size):
            in_set = asked[row] @ told[column] >= asked[row] @ told[row] + margin
            if column != row and not in_set:
                total += np.exp(queries[row] @ documents[column] / temperature)
        for column in range(size * width):
            is_own = column // width == row and not batch.filled[row, column % width]
            in_set = asked[row] @ others[column] >= asked[row] @ told[row] + margin
            same = batch.hard_negatives[row if is_own else column // width, column % width] == batch.documents[row]
            if is_own or not (in_set or same):
                total += np.exp(queries[row] @ negatives[column] / temperature)
        losses.append(-np.log(own / total))
    return float(np.mean(losses))


@pytest.mark.parametrize("margin", [0.0, 0.2])
@pytest.mark.parametrize("own_filter", [False, True])
def test_hard_negatives_of_others_are_filtered_and_own_ones_stay(tmp_path, margin, own_filter):
    pairs = [replace(pair, hard_negatives=()) for pair in stub_pairs(6)]
    texts = ["river boat", "bank loan", "rate of money", "fish", "the interest"]
    for number, text in enumerate(texts):
        pairs[number] = replace(pairs[number], hard_negatives=(text, f"{text} in flood")[: 1 + number % 2])
    prepared = prepared_stub(tmp_path, pairs)
    if own_filter:
        sides = [embeddings(6, seed).numpy().astype(np.float16) for seed in (5, 6)]
        object.__setattr__(prepared, "filter_query_vectors", sides[0])
        object.__setattr__(prepared, "filter_document_vectors", sides[1])
    random = np.random.default_rng(0)
    hard, filled = hard_negatives_of(prepared, np.arange(6), np.arange(6), 2, random)
    batch = replace(batch_of(prepared, range(6)), hard_negatives=hard, filled=filled)
    assert filled.sum() == 2 + 2 + 1
    objective = Objective(LossConfig(temperature=0.3), FilterConfig(margin=margin), prepared, device=CPU)
    mask = objective.mask(batch)
    always = Objective(LossConfig(), NONE, prepared, device=CPU).mask(batch)
    assert not always[:, 6:][:, ~filled.ravel()].any()
    assert mask[:, 6:].any()
    vectors = embeddings(24, 3)
    arrays = [part.double().numpy() for part in vectors.split([6, 6, 12])]
    found = objective.of(batch, slice(0, 6))(vectors)
    expected = partition(prepared, batch, 0.3, *arrays, margin=margin)
    assert float(found) == pytest.approx(expected, abs=1e-5)
    own = [(row, 6 + 2 * row + slot) for row in range(6) for slot in range(2) if not filled[row, slot]]
    assert not any(mask[place] for place in own)


def test_what_lacks_vectors_of_hard_negatives_is_named(prepared):
    object.__setattr__(prepared, "negative_rows", None)
    with pytest.raises(CDEError, match=r"expected surrogate embeddings of hard negatives.*Prepare the data again"):
        Objective(LossConfig(), NONE, prepared, device=CPU).mask(batch_of(prepared, range(6), negatives=2))


def test_agreement_reads_hard_negatives_too(prepared):
    """BM25 of the query with a hard negative, or with a document in its place, as bm25s has it over the documents."""
    queries, documents = (
        [prepared.text(row) for row in rows.tolist()] for rows in (prepared.queries, prepared.documents)
    )
    negatives = [prepared.text(row) for row in prepared.negative_rows.tolist()]
    object.__setattr__(prepared, "lexical", lexical_pairs(queries, documents, negatives))
    objective = Objective(LossConfig(), FilterConfig(rule="agreement"), prepared, device=CPU)
    batch = batch_of(prepared, range(6), negatives=1)
    batch.hard_negatives[4] = batch.documents[1]
    batch = replace(batch, filled=np.arange(6)[:, None] == 4)
    rows = batch.hard_negatives.ravel()
    lexical = objective._lexical_of_negatives(batch.pairs, rows)
    torch.testing.assert_close(lexical[:, 4], torch.from_numpy(prepared.lexical.scores(batch.pairs))[:, 1])
    held, told = (torch.from_numpy(each) for each in prepared.filter_vectors_of(batch.pairs))
    own = torch.from_numpy(prepared.lexical.scores(batch.pairs)).diagonal()[:, None]
    cosines = held @ torch.from_numpy(prepared.negative_vectors_of(rows)).T
    expected = (cosines >= (held * told).sum(1, keepdim=True)) & (lexical >= own) & (lexical > 0)
    always = Objective(LossConfig(), NONE, prepared, device=CPU).mask(batch)
    expected &= ~torch.eye(6, dtype=torch.bool) | torch.from_numpy(batch.filled)
    assert torch.equal(objective.mask(batch)[:, 6:], always[:, 6:] | expected)


def test_what_is_shown_decides_which_queries_are_the_same(prepared):
    batch = batch_of(prepared, range(6))
    shown = batch.queries.copy()
    shown[1] = prepared.views[2, 2]  # a text that no other pair is asked for with; pair 0 asks what 1 asks otherwise
    shown[4] = batch.queries[5]
    objective = Objective(LossConfig(), NONE, prepared, device=CPU)
    assert masked(objective, replace(batch, queries=shown)) == {(0, 1), (2, 3), (3, 2), (4, 5), (5, 4)}


def test_the_rule_is_added(prepared):
    batch = batch_of(prepared, range(6))
    always = Objective(LossConfig(), NONE, prepared, device=CPU).mask(batch)
    objective = Objective(LossConfig(), FilterConfig(margin=0.0), prepared, device=CPU)
    queries, documents = objective.surrogate(batch)
    scores = queries @ documents.T
    expected = always | (scores >= scores.diagonal()[:, None]) & ~torch.eye(6, dtype=torch.bool)
    assert torch.equal(objective.mask(batch), expected)
    assert expected.sum() > always.sum()
    with pytest.raises(ValueError, match="Expected BM25 weights"):
        Objective(LossConfig(), FilterConfig(rule="agreement"), prepared, device=CPU).mask(batch)


def embeddings(count, seed):
    return F.normalize(torch.randn(count, 16, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize("kind", ["contrastive", "improved"])
@pytest.mark.parametrize("negatives", [0, 2])
def test_the_loss_is_the_configured_one(prepared, kind, negatives):
    batch = batch_of(prepared, range(6), negatives=negatives)
    objective = Objective(LossConfig(kind=kind, temperature=0.3), NONE, prepared, device=CPU)
    vectors = embeddings(12 + 6 * negatives, 0)
    loss = objective.of(batch, slice(0, 6))
    function = improved_contrastive_loss if kind == "improved" else contrastive_loss
    expected = function(vectors[:6], vectors[6:], objective.mask(batch), 0.3)
    torch.testing.assert_close(loss(vectors), expected)
    assert loss.contrastive == pytest.approx(float(expected))
    assert loss.masked == pytest.approx(float(objective.mask(batch).sum()) / (6 * (5 + 6 * negatives)))


@pytest.mark.parametrize("other", [[], [1, 4]])
def test_distillation_mixes_in_bm25(prepared, other):
    """With a teacher of half cosines, half BM25 scores on their scale; the latter not of queries shown otherwise."""
    random = np.random.default_rng(0)
    starts = np.arange(0, 13, 2)
    lexical = LexicalPairs(
        starts, random.integers(4, size=12), starts, np.tile([0, 2], 6), random.random(12).astype("f4")
    )
    object.__setattr__(prepared, "lexical", lexical)
    config = LossConfig(teacher="surrogate", teacher_weight=0.25, lexical_share=0.5, temperature=0.3)
    objective, batch = Objective(config, NONE, prepared, device=CPU), batch_of(prepared, range(6))
    batch.queries[other] = [prepared.views[prepared.views[:, 0] == pair][2, 2] for pair in other]  # keywords
    queries, documents = objective.surrogate(batch)
    scores = queries @ documents.T
    teacher = mixture(scores, torch.from_numpy(lexical.scores(batch.pairs)), 0.5)
    teacher[other] = scores[other]
    vectors = embeddings(12, 1)
    expected = 0.75 * contrastive_loss(vectors[:6], vectors[6:], objective.mask(batch), 0.3)
    expected += 0.25 * distillation_loss(vectors[:6], vectors[6:], teacher, 0.3, teacher_temperature=0.05)
    torch.testing.assert_close(objective.of(batch, slice(0, 6))(vectors), expected)


def test_shares_of_a_batch_are_the_whole(prepared, monkeypatch):
    """Each process's loss over all documents; their mean is the loss of the whole batch. The gathering is acted out."""
    from cde_rag_training.losses import objective as module

    batch = batch_of(prepared, range(6), negatives=2)
    objective = Objective(LossConfig(temperature=0.3), NONE, prepared, device=CPU)
    queries, documents, negatives = embeddings(24, 2).split([6, 6, 12])
    whole = objective.of(batch, slice(0, 6))(torch.cat([queries, documents, negatives]))
    parts = []
    for start in (0, 2, 4):
        own = slice(start, start + 2)

        def gathered(rows, start=start):
            every, size = (documents, 2) if len(rows) == 2 else (negatives, 4)
            first = start // 2 * size
            return torch.cat([every[first : first + size], every[:first], every[first + size :]])

        monkeypatch.setattr(module, "own_first", gathered)
        share = torch.cat([queries[own], documents[own], negatives[2 * start : 2 * start + 4]])
        parts.append(objective.of(batch, own)(share))
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_a_teacher_may_be_of_some_sources_only(prepared):
    batch, vectors = batch_of(prepared, range(6)), torch.eye(12, 16)
    name = prepared.source_names[prepared.sources[0]]
    losses = []
    for sources in ((), (name,), ("another",)):
        config = LossConfig(teacher="surrogate", teacher_sources=sources)
        loss = Objective(config, NONE, prepared, device=CPU).of(batch, slice(0, 6))
        losses.append((float(loss(vectors)), loss.distillation))
    assert losses[0] == losses[1]
    assert losses[2][0] != losses[0][0]
    assert math.isnan(losses[2][1])

"""One update's gradients are those of the plain computation, tensor by tensor, whatever is cached or frozen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from prepared_stub import prepared_stub, stub_pairs
from tiny import tiny_network, tiny_tokenizer
from tiny_run import CORPORA

from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.config import LossConfig
from cde_rag_training.corpora.corpus_batches import Corpora
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.corpora.parent_batches import ParentConfig
from cde_rag_training.data.transformations import PLAIN, TransformationConfig
from cde_rag_training.loop.first_vectors import FirstStageVectors
from cde_rag_training.loop.gradients import Gradients
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.loop.teacher import StartModel
from cde_rag_training.losses.objective import Objective
from cde_rag_training.networks.stages import stages_of

LOSS = LossConfig(temperature=0.1)
ALL = {"first_stage", "second_stage", "set_attention", "output_map", "embeddings"}


def tiny_stages():
    network = tiny_network().requires_grad_()
    return stages_of(network, TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pairs = [replace(pair, hard_negatives=(f"{pair.document} bank", f"{pair.query} loan")) for pair in stub_pairs(96)]
    return prepared_stub(tmp_path_factory.mktemp("prepared"), pairs)


def batch_of(prepared, *, siblings, context=True, hard_negatives=True):
    parents = ParentConfig(share=float(siblings), no_siblings_share=0.0, passages=(2, 2))
    shares = TransformationConfig(titled_share=0.0, cut_share=0.0)
    corpora = Corpora(prepared, replace(CORPORA, parents=parents, hard_negatives=2, transformations=shares), seed=0)
    for update in range(50):
        batch = corpora.batch(update)
        if (
            (len(batch.context) > 0) == context
            and any(batch.siblings) == siblings
            and (batch.hard_negatives.size > 0) == hard_negatives
        ):
            return batch
    raise AssertionError("no such batch")


def gradients_of(
    prepared,
    batch,
    *,
    loss=LOSS,
    caching=True,
    vectors=None,
    dropout=0.0,
    size=3,
    stages=None,
    averaged=None,
    scale=1.0,
):
    stages = stages or tiny_stages()
    objective = Objective(loss, FilterConfig(), prepared, device=torch.device("cpu"), start=None)
    if loss.teacher == "start":
        start = StartModel(
            stages_of(tiny_network(), TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32"),
            prepared,
            mini_batch_size=4,
        )
        objective = Objective(loss, FilterConfig(), prepared, device=torch.device("cpu"), start=start)
    gradients = Gradients(
        stages,
        Cutter(prepared, stages, mini_batch_size=size),
        objective,
        vectors=vectors,
        context_dropout=dropout,
        caching=caching,
        mini_batch_size=size,
        seed=[0],
        depths=loss.layers,
    )
    figures = gradients.add(batch, 7, scale=scale)
    if averaged is not None:
        averaged(stages.network.parameters())
    return figures, {name: value.grad for name, value in stages.network.named_parameters()}


def agree(found, expected, tolerance=2e-5, *, reached=ALL):
    touched = set()
    for name, gradient in expected.items():
        if gradient is None or not gradient.any():
            assert found[name] is None or not found[name].any(), name
        else:
            touched.add(name.split(".")[0])
            assert (found[name] - gradient).norm() <= tolerance * gradient.norm().clamp(min=1e-2), name
    assert touched == reached


def by_hand(prepared, batch, temperature=0.1):
    """The same, text by text, without mini-batches, caches and places."""
    network = tiny_network().requires_grad_()
    ids = prepared.texts

    def first(row):
        return network.read(*pad([ids[row]]))[0]

    context = torch.stack([first(row) for row in batch.context.tolist()]) if len(batch.context) else torch.zeros(0, 16)
    given = network.prepare(context, torch.ones(len(context), dtype=torch.long))

    def embed(row, role, siblings=()):
        vectors = torch.stack([first(each) for each in siblings])[None] if siblings else None
        there = torch.ones(1, len(siblings), dtype=torch.bool) if siblings else None
        rows, mask = pad([ids[row]])
        return network.second_stage(
            network.embeddings,
            rows,
            mask,
            role,
            given,
            vectors,
            there,
        )[0]

    queries = torch.stack([embed(row, QUERY) for row in batch.queries.tolist()])
    texts = [embed(row, DOCUMENT, group) for row, group in zip(batch.documents.tolist(), batch.siblings, strict=True)]
    texts += [embed(row, DOCUMENT) for row in batch.hard_negatives.ravel().tolist()]
    mask = Objective(LOSS, FilterConfig(), prepared, device=torch.device("cpu")).mask(batch)
    scores = (queries @ torch.stack(texts).T / temperature).masked_fill(mask, float("-inf"))
    value = F.cross_entropy(scores, torch.arange(len(queries)))
    value.backward()
    return value, {name: each.grad for name, each in network.named_parameters()}


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("siblings", "context"), [(True, True), (False, True), (True, False), (False, False)])
def test_gradients_are_those_computed_by_hand(prepared, siblings, context, caching):
    batch = batch_of(prepared, siblings=siblings, context=context, hard_negatives=not siblings)
    value, expected = by_hand(prepared, batch)
    figures, found = gradients_of(prepared, batch, caching=caching)
    assert figures.total == pytest.approx(float(value.detach()), rel=1e-5)
    assert figures.total == figures.contrastive
    assert np.isnan(figures.distillation)
    reached = ALL if context else ALL - {"output_map"} - (set() if siblings else {"first_stage"})
    agree(found, expected, reached=reached)


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize(
    "loss",
    [
        LOSS,
        replace(LOSS, kind="improved", dims=(16, 8)),
        replace(LOSS, teacher="start", teacher_weight=0.3),
        replace(LOSS, teacher="surrogate"),
    ],
    ids=["contrastive", "improved", "start", "surrogate"],
)
def test_caching_and_mini_batches_change_nothing(prepared, loss, size):
    batch = batch_of(prepared, siblings=False)
    plain, expected = gradients_of(prepared, batch, loss=loss, caching=False, dropout=0.4)
    figures, found = gradients_of(prepared, batch, loss=loss, size=size, dropout=0.4)
    assert figures.total == pytest.approx(plain.total, rel=1e-5)
    agree(found, expected)
    if loss.teacher != "none":
        weight = loss.teacher_weight
        mixed = (1 - weight) * figures.contrastive + weight * figures.distillation
        assert figures.total == pytest.approx(mixed, rel=1e-5)
        assert figures.distillation > 1e-3


@pytest.mark.parametrize("caching", [True, False])
def test_2d_matryoshka_is_the_mean_over_depths_and_dims(prepared, caching):
    """Losses in NumPy, of embeddings that the complete network and its shortened copy make of each text by itself."""
    batch, loss = batch_of(prepared, siblings=False), replace(LOSS, dims=(16, 8), layers=(1,))
    stages = tiny_stages()
    assert (stages.fewest_layers, stages.layers) == (1, 2)
    mask = Objective(loss, FilterConfig(), prepared, device=torch.device("cpu")).mask(batch).numpy()
    losses = []
    for network in (stages.network, stages.shortened(1)):
        vectors = vectors_of(network.eval(), prepared, batch)
        for dim in (16, 8):
            cut = vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)
            queries, documents = cut[: len(mask)], cut[len(mask) :]
            scores = np.where(mask, -np.inf, queries @ documents.T / loss.temperature)
            losses.append(np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diagonal(scores)))
    figures, found = gradients_of(prepared, batch, loss=loss, caching=caching, stages=stages)
    assert figures.total == pytest.approx(np.mean(losses), rel=1e-4)
    assert figures.contrastive == pytest.approx(np.mean(losses[:2]), rel=1e-4)  # of all layers
    _, whole = gradients_of(prepared, batch, loss=replace(loss, layers=()), caching=caching)
    upper = [name for name in whole if name.startswith("second_stage.layers.1.")]
    for name in upper:  # a layer that the shortened network lacks: half of the gradient is left
        torch.testing.assert_close(found[name], whole[name] / 2, rtol=1e-4, atol=1e-6)
    assert len(upper) > 5


def vectors_of(network, prepared, batch):
    """Queries, documents and hard negatives, one by one, in float64 afterwards."""
    with torch.no_grad():
        context = torch.cat([network.read(*pad([prepared.texts[row]])) for row in batch.context.tolist()])
        given = network.prepare(context, torch.ones(len(context), dtype=torch.long))
        texts = [(row, QUERY) for row in batch.queries.tolist()]
        texts += [(row, DOCUMENT) for row in [*batch.documents.tolist(), *batch.hard_negatives.ravel().tolist()]]
        stage = network.second_stage
        found = [stage(network.embeddings, *pad([prepared.texts[row]]), role, given) for row, role in texts]
    return torch.cat(found).double().numpy()


def test_the_start_is_its_own_teacher(prepared):
    """Nothing is left to distil where the model still is its teacher, at the same temperature."""
    batch = batch_of(prepared, siblings=False, context=False)
    loss = replace(LOSS, teacher="start", teacher_weight=1.0, teacher_temperature=0.1)
    figures, found = gradients_of(prepared, batch, loss=loss)
    assert figures.total == pytest.approx(0, abs=1e-5)
    assert max(float(value.norm()) for value in found.values() if value is not None) < 1e-3


def test_dropped_context_embeddings_are_left_out(prepared):
    batch = batch_of(prepared, siblings=False)
    whole, _ = gradients_of(prepared, batch)
    fewer, _ = gradients_of(prepared, batch, dropout=0.5)
    again, _ = gradients_of(prepared, batch, dropout=0.5)
    none, expected = gradients_of(prepared, replace(batch, context=batch.context[:0]))
    all_out, found = gradients_of(prepared, batch, dropout=1.0)
    assert fewer.total == again.total != whole.total
    assert all_out.total == pytest.approx(none.total, rel=1e-6)
    agree(found, expected, reached=ALL - {"output_map", "first_stage"})


@pytest.mark.parametrize("caching", [True, False])
def test_a_finished_first_stage_is_looked_up(prepared, tmp_path, caching):
    batch = batch_of(prepared, siblings=True, hard_negatives=False)
    _, expected = by_hand(prepared, batch)
    stages = tiny_stages()
    stages.network.embeddings.requires_grad_(False)
    stages.network.first_stage.requires_grad_(False)
    vectors = FirstStageVectors(stages, prepared, tmp_path, mini_batch_size=4)
    stages.network.read = None  # whoever asks it again fails
    _, found = gradients_of(prepared, batch, vectors=vectors, stages=stages, caching=caching)
    for name in expected:
        if name.startswith(("first_stage", "embeddings")):
            expected[name] = None
    agree(found, expected, reached=ALL - {"first_stage", "embeddings"})
    kept = FirstStageVectors(stages, prepared, tmp_path, mini_batch_size=4)
    assert len(list(tmp_path.iterdir())) == 1
    assert torch.equal(kept(prepared.documents[:5].tolist()), vectors(prepared.documents[:5].tolist()))
    with pytest.raises(KeyError, match="text rows of pairs' documents"):
        vectors([int(prepared.queries[0])])


def test_other_weights_or_texts_are_other_vectors(prepared, tmp_path):
    """What only the second stage reads with does not matter."""
    first, second = tiny_stages(), tiny_stages()
    second.network.first_stage.down.bias.data += 1
    first.network.set_attention.latents.data += 1
    FirstStageVectors(tiny_stages(), prepared, tmp_path, mini_batch_size=4)
    one, other = (FirstStageVectors(each, prepared, tmp_path, mini_batch_size=4) for each in (first, second))
    rows = prepared.documents[:3].tolist()
    assert len(list(tmp_path.iterdir())) == 2
    assert not torch.equal(one(rows), other(rows))
    FirstStageVectors(first, prepared_stub(tmp_path / "other", stub_pairs(90)), tmp_path, mini_batch_size=4)
    assert len(list(tmp_path.glob("*.npy"))) == 3


def test_transformed_documents_are_read_as_they_are_shown(prepared, tmp_path):
    """Under a transformation a finished first stage reads anew; what it reads are the transformed tokens."""
    parents = ParentConfig(share=1.0, no_siblings_share=0.0, passages=(2, 2))
    shares = TransformationConfig(cut_share=1.0, shortest_cut=4)
    corpora = Corpora(prepared, replace(CORPORA, parents=parents, transformations=shares), seed=0)
    batch = next(
        batch for batch in map(corpora.batch, range(20)) if len(batch.context) and (batch.transformation.cut or 99) < 12
    )
    trained, _ = gradients_of(prepared, batch)
    vectors = FirstStageVectors(tiny_stages(), prepared, tmp_path, mini_batch_size=4)
    frozen, _ = gradients_of(prepared, batch, vectors=vectors)
    plain, _ = gradients_of(prepared, replace(batch, transformation=PLAIN), vectors=vectors)
    assert frozen.total == pytest.approx(trained.total, rel=1e-5)
    assert abs(frozen.total - plain.total) > 1e-4


def test_bf16_is_for_products_only(prepared):
    """The weights and their gradients stay float32; the loss and its gradients are nearly the same."""
    batch = batch_of(prepared, siblings=False)
    exact, expected = gradients_of(prepared, batch)
    network = tiny_network().requires_grad_()
    stages = stages_of(network, TextTokenizer(tiny_tokenizer()), device="cpu", precision="bfloat16")
    figures, found = gradients_of(prepared, batch, stages=stages)
    assert figures.total != exact.total
    assert figures.total == pytest.approx(exact.total, rel=2e-2)
    for name, gradient in expected.items():
        if gradient is not None and gradient.norm() > 1e-2:
            assert found[name].dtype == torch.float32, name
            assert F.cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0) > 0.98, name


def test_fp16_scales_the_loss(prepared):
    """Weights and gradients stay float32; the gradients are as many times as large, the figures are not."""
    batch = batch_of(prepared, siblings=False)
    exact, expected = gradients_of(prepared, batch)
    network = tiny_network().requires_grad_()
    stages = stages_of(network, TextTokenizer(tiny_tokenizer()), device="cpu", precision="float16")
    assert stages.scaled
    figures, found = gradients_of(prepared, batch, stages=stages, scale=2.0**12)
    assert figures.total != exact.total
    assert figures.total == pytest.approx(exact.total, rel=1e-2)
    for name, gradient in expected.items():
        if gradient is not None and gradient.norm() > 1e-2:
            torch.testing.assert_close(found[name].norm() / 2**12, gradient.norm(), rtol=0.05, atol=0, msg=name)
            assert F.cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0) > 0.98, name


def test_losses_under_other_contexts(prepared):
    """Those of the same texts in a batch that has that context from the beginning."""
    batch = batch_of(prepared, siblings=False)
    other = batch_of(prepared, siblings=True, hard_negatives=False)
    stages = tiny_stages()
    gradients = Gradients(
        stages,
        Cutter(prepared, stages, mini_batch_size=3),
        Objective(LOSS, FilterConfig(), prepared, device=torch.device("cpu")),
        vectors=None,
        context_dropout=0.0,
        caching=True,
        mini_batch_size=3,
        seed=[0],
    )
    found = gradients.losses_under(batch, [None, other, batch])
    shown = [replace(batch, context=rows) for rows in (batch.context[:0], other.context, batch.context)]
    expected = [float(by_hand(prepared, each)[0].detach()) for each in shown]
    assert found == pytest.approx(expected, rel=1e-5)
    assert len({round(each, 4) for each in found}) == 3
    assert all(value.grad is None for value in stages.network.parameters())

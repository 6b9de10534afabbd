"""Cached gradients are the plain ones, tensor by tensor, for both stages and all that lies between."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from goldens import golden, golden_json
from tiny import tiny_network

from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag_training.loop.gradcache import CachedStage, second_stage_step, two_stage_step
from cde_rag_training.losses.loss import contrastive_loss

CONTEXT, PAIRS, DIM = 7, 5, 16
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # relative, in the gradient's norm


def rows(count, seed):
    random = np.random.default_rng(seed)
    return [random.integers(4, 60, size=random.integers(3, 12)).tolist() for _ in range(count)]


class OneWay:
    """The tiny one-way model as the three functions; the first stage reads context documents and siblings."""

    def __init__(self, dtype, dropout, *, null=False):
        self.network = tiny_network().to(dtype).requires_grad_().train()
        self.network.config = replace(self.network.config, full_likeness=0.0)  # what is left of a context may be unlike
        self.null, self.dropout = null, dropout
        for module in self.network.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.register_forward_hook(lambda *call: F.dropout(call[-1], dropout))

    def first(self, texts, given):
        return self.network.first_stage(self.network.embeddings, *pad(texts))

    def prepare(self, vectors):
        context = vectors[: 0 if self.null else CONTEXT]
        prepared = self.network.prepare(F.dropout(context, self.dropout), torch.ones(len(context), dtype=torch.long))
        return prepared.keys, prepared.values, prepared.output_map, prepared.sibling_weight, vectors

    def second(self, texts, given):
        role, numbers, texts = texts
        *prepared, vectors = given
        siblings = (
            vectors[torch.tensor([[number, CONTEXT + number % 3] for number in numbers])] if role == DOCUMENT else None
        )
        mask = None if siblings is None else torch.ones(len(texts), 2, dtype=torch.bool)
        prepared = PreparedContext(*prepared)
        return self.network.second_stage(
            self.network.embeddings, *pad(texts), role, prepared, siblings=siblings, sibling_mask=mask
        )

    def mini_batches(self, size):
        def cut(texts):
            return [texts[start : start + size] for start in range(0, len(texts), size)]

        context = cut(rows(CONTEXT + 3, 0))
        texts = []
        for role, seed in ((QUERY, 1), (DOCUMENT, 2)):
            numbered = cut(list(enumerate(rows(PAIRS, seed))))
            texts += [(role, [number for number, _ in part], [text for _, text in part]) for part in numbered]
        return context, texts

    def gradients(self):
        return {name: parameter.grad for name, parameter in self.network.named_parameters()}


def loss(embeddings):
    mask = torch.zeros(PAIRS, PAIRS, dtype=torch.bool)
    mask[0, 3] = True
    return contrastive_loss(embeddings[:PAIRS], embeddings[PAIRS:], mask, 0.05)


def plain(model, size):
    torch.manual_seed(3)
    context, texts = model.mini_batches(size)
    given = model.prepare(torch.cat([model.first(part, ()) for part in context]))
    value = loss(torch.cat([model.second(part, given) for part in texts]))
    value.backward()
    return value.detach(), model.gradients(), torch.get_rng_state()


def cached(model, size):
    torch.manual_seed(3)
    context, texts = model.mini_batches(size)
    value = two_stage_step(CachedStage(model.first), model.prepare, CachedStage(model.second), context, texts, loss)
    return value, model.gradients(), torch.get_rng_state()


def agree(found, expected, tolerance, *, unused=()):
    for name, gradient in expected.items():
        if name in unused:
            assert found[name] is None
            assert gradient is None
            continue
        assert gradient.norm() > 1e-4, name
        assert (found[name] - gradient).norm() <= tolerance * gradient.norm(), name


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request, monkeypatch):
    """In float64 the model's float32 parts compute in float64 too."""
    if request.param == torch.float64:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_cached_equals_plain(dtype, size, dropout):
    value, expected, state = plain(OneWay(dtype, dropout), size)
    found_value, found, found_state = cached(OneWay(dtype, dropout), size)
    torch.testing.assert_close(found_value, value)
    agree(found, expected, TOLERANCE[dtype], unused={"set_attention.null_latents"})
    assert torch.equal(found_state, state)  # what comes next draws the same numbers too


@pytest.mark.parametrize("size", [1, 3])
def test_mini_batches_change_nothing(size, monkeypatch):
    """Without dropout the whole batch at once has the same gradients; in float64, where rounding is out of sight."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    value, expected, _ = plain(OneWay(torch.float64, 0.0), 100)
    found_value, found, _ = cached(OneWay(torch.float64, 0.0), size)
    torch.testing.assert_close(found_value, value)
    agree(found, expected, 1e-12, unused={"set_attention.null_latents"})


def test_null_context_with_siblings(dtype):
    """The null latents learn; what only a context reaches does not. Siblings still reach the first stage."""
    _, expected, _ = plain(OneWay(dtype, 0.2, null=True), 2)
    _, found, _ = cached(OneWay(dtype, 0.2, null=True), 2)
    assert expected["set_attention.null_latents"] is not None
    assert expected["first_stage.up.weight"] is not None
    unused = {name for name, gradient in expected.items() if gradient is None}
    assert all(name.startswith(("set_attention", "output_map")) for name in unused)
    agree(found, expected, TOLERANCE[dtype], unused=unused)


def test_dropout_acts():
    assert plain(OneWay(torch.float32, 0.2), 3)[0] != plain(OneWay(torch.float32, 0.0), 3)[0]


def test_a_finished_first_stage_is_left_alone():
    """Its vectors are looked up; the path of the context still learns."""
    gradients = []
    for use_cache in (False, True):
        model = OneWay(torch.float32, 0.2)
        model.network.first_stage.requires_grad_(False)
        torch.manual_seed(5)
        context, texts = model.mini_batches(2)
        with torch.no_grad():
            vectors = torch.cat([model.first(part, ()) for part in context])
        given = model.prepare(vectors)
        if use_cache:
            second_stage_step(CachedStage(model.second), given, texts, loss)
        else:
            loss(torch.cat([model.second(part, given) for part in texts])).backward()
        gradients.append(model.gradients())
    expected, found = gradients
    unused = {name for name in expected if name.startswith("first_stage") or name == "set_attention.null_latents"}
    agree(found, expected, 1e-6, unused=unused)


@pytest.mark.parametrize(("size", "first_size"), [(2, 3), (5, 8), (1, 1)])
def test_golden_two_way(shared_data, size, first_size):
    """Loss, embeddings and gradients of the paper's code, through a stand-in for its model."""
    from two_way_stand_in import two_way

    case, facts = golden(shared_data, "gradcache_v2_tiny/case"), golden_json(shared_data, "gradcache_v2_tiny/case")
    inputs = golden(shared_data, "v2_tiny/inputs")
    model = two_way(shared_data.parent / "goldens", golden_json(shared_data, "v2_tiny/config"))

    def cut(prefix, tensors, size):
        columns = [tensors[f"{prefix}_{name}"].split(size) for name in ("input_ids", "attention_mask")]
        return list(zip(*columns, strict=True))

    context = cut("context", inputs, first_size)
    texts = cut("query", case, size) + cut("document", case, size)
    seen = []

    def golden_loss(embeddings):
        seen.append(embeddings)
        queries, documents = F.normalize(embeddings, dim=1).chunk(2)
        return contrastive_loss(queries, documents, case["false_negative_mask"].bool(), 1 / facts["logit_scale"])

    value = two_stage_step(
        CachedStage(lambda texts, given: model.first(*texts)),
        lambda vectors: [vectors],
        CachedStage(lambda texts, given: model.second(*texts, *given)),
        context,
        texts,
        golden_loss,
    )
    torch.testing.assert_close(value, case["loss"][0], atol=1e-4, rtol=1e-4)
    expected = torch.cat([case["embedding.query"], case["embedding.document"]])
    torch.testing.assert_close(seen[0].detach(), expected, atol=1e-4, rtol=1e-4)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert set(gradients) == set(facts["grad_norm_order"])
    norms = torch.stack([gradients[name].norm() for name in facts["grad_norm_order"]])
    assert norms.min() > 1e-4
    torch.testing.assert_close(norms, case["grad_l2_norms"], atol=1e-4, rtol=1e-3)
    compared = [key.removeprefix("grad.") for key in case if key.startswith("grad.")]
    assert len(compared) == 30
    for name in compared:
        torch.testing.assert_close(gradients[name], case[f"grad.{name}"], atol=1e-4, rtol=1e-3, msg=name)

"""Layers that are computed again for the backward pass: the same gradients, of fewer kept activations."""

from dataclasses import replace

import pytest
import torch
from prepared_stub import prepared_stub
from test_backbones import NATIVE, backbone, start_of
from tiny import tiny_network, tiny_tokenizer
from tiny_run import MACHINE, config, phase, rows, start_folder

from cde_rag.models.runtimes.stage_runner import DOCUMENT
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.loop.training import train
from cde_rag_training.networks.stages import TextBatch, stages_of
from cde_rag_training.networks.start import load_start

IDS = [[2, *range(5, 25), 3], [2, 9, 8, 7, 3]]


def stages_for(kind, folder):
    if kind == "one_way":
        network, tokenizer = tiny_network().requires_grad_(), TextTokenizer(tiny_tokenizer())
    else:
        family, _, positions = kind.partition(" ")
        options = {"context_positions": False} if positions else {}
        start = load_start(start_of(backbone(folder, family), **options), seed=0)
        network, tokenizer = start.network, start.tokenizer
    return stages_of(network.train(), tokenizer, device="cpu", precision="float32")


def gradients_and_bytes(stages):
    """Gradients of both stages, and the bytes that the forward passes keep."""
    kept: dict[int, int] = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    stages.network.zero_grad()
    parameters = {value.data_ptr() for value in stages.network.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        vectors = stages.first(IDS, ())
        given = stages.prepare(vectors, [0, 1], [False, False])
        found = stages.second(TextBatch(IDS, DOCUMENT, [[], []]), given)
    held = sum(size for place, size in kept.items() if place not in parameters)
    (found * torch.arange(found.shape[1])).sum().backward()
    named = {name: value.grad for name, value in stages.network.named_parameters() if value.grad is not None}
    return {name: value.clone() for name, value in named.items()}, held


@pytest.mark.parametrize("kind", ["one_way", *NATIVE, "modernbert unplaced"])
def test_the_same_gradients_of_fewer_activations(tmp_path, kind):
    stages = stages_for(kind, tmp_path)
    expected, before = gradients_and_bytes(stages)
    stages.checkpoint_layers()
    found, after = gradients_and_bytes(stages)
    assert after < 0.7 * before
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)


def test_a_run_with_checkpoints_is_the_run_without(tmp_path):
    prepared, start = prepared_stub(tmp_path / "prepared"), start_folder(tmp_path / "start")
    for caching in (True, False):
        for checkpoints in (True, False):
            machine = replace(MACHINE, layer_checkpoints=checkpoints, gradient_caching=caching)
            train(prepared, config(start, phase(3), machine=machine), tmp_path / f"{caching} {checkpoints}")
        for found, expected in zip(
            rows(tmp_path / f"{caching} True"), rows(tmp_path / f"{caching} False"), strict=True
        ):
            assert float(found["loss"] or 0) == pytest.approx(float(expected["loss"] or 0), rel=1e-5)
            assert float(found["norm"] or 0) == pytest.approx(float(expected["norm"] or 0), rel=1e-4)

"""The first stage learns its teacher's vectors, alone, and goes on where it was stopped."""

import numpy as np
import pytest
import torch
from tiny import tiny_network, tiny_tokenizer

from cde_rag.errors import ResumeError
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag_training.config import DistillationConfig
from cde_rag_training.loop.distillation import distil_first_stage
from cde_rag_training.networks.stages import stages_of

CONFIG = DistillationConfig(updates=60, batch_size=32, rate=1e-2, max_length=7)


def texts():
    """Token ids, and vectors that say which words there are."""
    random = np.random.default_rng(0)
    rows = [[2, *random.integers(4, 24, size=random.integers(3, 9)).tolist(), 3] for _ in range(200)]
    targets = np.stack([np.bincount(row, minlength=64)[4:20] for row in rows]).astype("f4") + 0.1
    return rows, targets / np.linalg.norm(targets, axis=1, keepdims=True)


def distilled(folder, *, config=CONFIG, stop=None, seed=0):
    """The network after distillation, stopped after so many updates where asked, and the cosines on the way."""
    folder.mkdir(exist_ok=True)
    network, cosines = tiny_network(), []

    def log(update, cosine):
        cosines.append(cosine)
        if update == stop:
            raise KeyboardInterrupt

    stages = stages_of(network, TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32")
    try:
        distil_first_stage(stages, *texts(), config, folder, seed=seed, save_every=10, log=log)
    except KeyboardInterrupt:
        assert stop is not None
    return network.state_dict(), cosines


def test_the_first_stage_learns_and_nothing_else_does(tmp_path):
    state, cosines = distilled(tmp_path)
    assert len(cosines) == CONFIG.updates
    assert np.mean(cosines[-10:]) > np.mean(cosines[:2]) + 0.3
    for name, value in tiny_network().state_dict().items():
        assert torch.equal(value, state[name]) != name.startswith("first_stage."), name


@pytest.mark.parametrize("stop", [10, 27, 59])
def test_interrupted_it_ends_the_same(tmp_path, stop):
    expected, cosines = distilled(tmp_path / "whole")
    distilled(tmp_path / "parts", stop=stop)
    found, rest = distilled(tmp_path / "parts")
    assert rest == cosines[stop // 10 * 10 - (10 if stop % 10 == 0 else 0) :]
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    again, none = distilled(tmp_path / "parts")
    assert none == []
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_another_config_is_not_mixed_in(tmp_path):
    distilled(tmp_path, stop=20)
    with pytest.raises(ResumeError, match="seed was 0, is 1"):
        distilled(tmp_path, seed=1)

"""Training in the small: it learns, leaves alone what it should, and goes on from where it was stopped."""

import csv

import numpy as np
import pytest
import torch
from test_batches import made
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import ResumeError
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag_training.batches import BatchConfig, Batches
from cde_rag_training.distillation import distil_first_stage
from cde_rag_training.pairs import Pair
from cde_rag_training.trainer import Surroundings, Trainer, TrainingConfig


def unit(count, dim, seed):
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype("f4")
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def parts():
    random = np.random.default_rng(0)
    pairs = []
    for number, pair in enumerate(made(240)):
        words = " ".join(random.choice(WORDS, size=6))
        pairs.append(Pair(words, f"{words} {'abcdefgh'[number % 8]}", pair.source, pair.domain, pair.parent))
    surroundings = Surroundings(unit(240, 16, 1), unit(240, 16, 2), unit(240, 16, 3))
    config = BatchConfig(batch_size=16, smallest_context=4, largest_context=16)
    batches = Batches(pairs, surroundings.documents, np.arange(240) // 30, config, seed=0)
    return TextTokenizer(tiny_tokenizer()), batches, surroundings


def loss_of(trainer, updates):
    trainer.network.eval()
    with torch.no_grad():
        return float(np.mean([float(trainer.loss(trainer.batches.draw(update))) for update in updates]))


def test_training_lowers_the_loss_and_keeps_what_is_frozen(tmp_path):
    network, before = tiny_network(), tiny_network().state_dict()
    config = TrainingConfig(seconds=6.0, encoder_rate=3e-3, context_rate=3e-3, temperature=0.1, save_every=10**9)
    trainer = Trainer(network, *parts(), config, tmp_path)
    first = loss_of(trainer, range(10_000, 10_010))
    trainer.run()
    assert loss_of(trainer, range(10_000, 10_010)) < 0.8 * first
    after = network.state_dict()
    for key, value in after.items():
        frozen = key.startswith(("embeddings.", "first_stage."))
        if frozen:
            assert torch.equal(value, before[key]), key
    moving = ("gates", "roles", "set_attention.latents", "set_attention.null_latents", "output_map.exponent", "given.1")
    for name in moving:
        assert any(not torch.equal(after[key], before[key]) for key in after if name in key), name


def test_a_second_trainer_goes_on_with_the_same_state(tmp_path):
    config = TrainingConfig(seconds=2.0, save_every=3)
    first = Trainer(tiny_network(), *parts(), config, tmp_path)
    first.run()
    second = Trainer(tiny_network(seed=9), *parts(), config, tmp_path)
    assert second.update == first.update > 3
    for key, value in second.network.state_dict().items():
        assert torch.equal(value, first.network.state_dict()[key]), key
    state, resumed = first.optimiser.state_dict()["state"], second.optimiser.state_dict()["state"]
    assert len(state) == len(resumed) > 30
    for number, values in state.items():
        for key, value in values.items():
            assert torch.equal(torch.as_tensor(resumed[number][key]), torch.as_tensor(value)), (number, key)
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["update"]) for row in rows] == list(range(1, first.update + 1))


def test_another_config_is_not_mixed_in(tmp_path):
    Trainer(tiny_network(), *parts(), TrainingConfig(seconds=0.5), tmp_path).run()
    with pytest.raises(ResumeError, match="holds a run with another config"):
        Trainer(tiny_network(), *parts(), TrainingConfig(seconds=0.5, temperature=0.5), tmp_path)


def test_distillation_teaches_the_first_stage_and_nothing_else():
    network, before = tiny_network(), tiny_network().state_dict()
    random = np.random.default_rng(0)
    rows = [[2, *random.integers(4, 24, size=6).tolist(), 3] for _ in range(200)]
    targets = np.stack([np.bincount(row, minlength=64)[4:20] for row in rows]).astype("f4") + 0.1
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    cosines = []
    distil_first_stage(
        network,
        rows,
        targets,
        seconds=4.0,
        batch_size=32,
        learning_rate=1e-2,
        log=lambda _, cosine: cosines.append(cosine),
    )
    assert np.mean(cosines[-10:]) > np.mean(cosines[:2]) + 0.3
    for key, value in network.state_dict().items():
        if not key.startswith("first_stage."):
            assert torch.equal(value, before[key]), key

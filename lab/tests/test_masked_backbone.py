"""The backbone of the paper's plan: it learns to name hidden words, resumes bit by bit, and starts a two-way model."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import WORDS, tiny_tokenizer

from cde_rag.errors import CorpusError, ResumeError
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.config import StartConfig
from cde_rag_training.networks.start import load_start
from lab.experiments.masked_backbone import BackboneConfig, BackboneTraining, masked

SIZES = {"layers": 6, "dim": 16, "heads": 2, "intermediate": 32, "max_positions": 64, "max_length": 16}
CONFIG = BackboneConfig(**SIZES, batch_size=8, mini_batch_size=3, updates=30, warmup=3, rate=3e-3, save_every=4)
TOKENIZER = TextTokenizer(tiny_tokenizer())


def documents(count: int = 120) -> list[str]:
    """Texts in which a word says the next one."""
    random = np.random.default_rng(0)
    return [" ".join(WORDS[(start + step) % 20] for step in range(10)) for start in random.integers(0, 20, size=count)]


def training(output: Path, config: BackboneConfig = CONFIG) -> BackboneTraining:
    return BackboneTraining(documents(), TOKENIZER, config, output, device="cpu")


def test_a_stopped_training_resumes_and_starts_a_two_way_model(tmp_path: Path):
    whole, parts = training(tmp_path / "whole"), 0
    before = whole.held_out_loss()
    assert whole.train()
    assert whole.held_out_loss() < 0.9 * before
    while not training(tmp_path / "parts").train(minutes=0.0):
        parts += 1
        assert not (tmp_path / "parts" / "config.json").exists()
    assert parts == CONFIG.updates - 1
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    logs = []
    for name in ("whole", "parts"):
        with (tmp_path / name / "run" / "log.csv").open() as file:
            logs.append([(row["update"], row["loss"], row["held_out"]) for row in csv.DictReader(file)])
    assert logs[0] == logs[1]
    assert [int(row[0]) for row in logs[0]] == list(range(1, CONFIG.updates + 1))
    start = StartConfig(model=str(tmp_path / "whole"), attention="two_way", context_size=4, max_length=16)
    network = load_start(start, seed=0).network
    assert isinstance(network, TwoWay)
    assert (network.config.family, network.config.layers) == ("nomic_bert", 6)
    words = whole.network.native.embeddings.word_embeddings.weight
    assert torch.equal(network.second_stage.backbone.native.embeddings.word_embeddings.weight, words)
    with pytest.raises(ResumeError, match="rate was"):
        training(tmp_path / "whole", BackboneConfig(**SIZES, batch_size=8, updates=30, warmup=3))


def test_hidden_tokens_are_a_share_and_their_names_are_the_texts():
    texts = [[2, *range(5, 5 + length), 3] for length in (1, 3, 30)] * 40
    found = masked(texts, 4, 64, 0.3, (0, 1))
    names = iter(found.names.tolist())
    shown = Counter()
    for row, text in enumerate(texts):
        places = torch.nonzero(found.chosen[row]).flatten().tolist()
        assert len(places) == max(1, round(0.3 * (len(text) - 2)))
        assert 0 < min(places) <= max(places) < len(text) - 1
        for place, token in enumerate(text):
            new = int(found.ids[row, place])
            if place in places:
                assert next(names) == token
                shown["mask" if new == 4 else "own" if new == token else "other"] += 1
            else:
                assert new == token
    assert next(names, None) is None
    assert 0.7 < shown["mask"] / shown.total() < 0.9
    assert shown["own"] > 0 < shown["other"]
    again = masked(texts, 4, 64, 0.3, (0, 1))
    assert torch.equal(again.ids, found.ids)


def test_the_loss_is_the_mean_over_hidden_tokens_whatever_the_mini_batches(tmp_path: Path):
    one = training(tmp_path / "one")
    texts = one._batch(0)
    parts = [masked(texts[start : start + 3], one._mask, TOKENIZER.size, 0.3, (0, 1, 0, start)) for start in (0, 3, 6)]
    with torch.no_grad():
        expected = sum(float(one.network(part)) for part in parts) / sum(len(part.names) for part in parts)
    assert one._loss(texts, (0, 1, 0), backward=False) == pytest.approx(expected, rel=1e-2)
    with pytest.raises(CorpusError, match="Expected 500 documents or more"):
        training(tmp_path / "two", BackboneConfig(**SIZES, batch_size=500))

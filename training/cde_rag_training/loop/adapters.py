"""Adapters of few parameters on the second stage's encoder, which become a part of its weights at the end."""

from typing import Any

import torch
from torch import nn

from cde_rag.errors import require
from cde_rag_training.config import AdaptersConfig
from cde_rag_training.loop.optimiser import place_of


class Adapters:
    """Low-rank adapters of every linear layer of the encoder, initialised to have no effect.

    Args:
        network: Network of either kind; changed in place.
        layers: Number of layers of its second stage.
        config: Their sizes.
        seed: Random seed of their first weights.

    Raises:
        MissingExtraError: peft is not installed.

    Source: Hu et al. 2021 (LoRA).
    """

    def __init__(self, network: nn.Module, layers: int, config: AdaptersConfig, *, seed: int) -> None:
        peft: Any = require("peft", "peft")
        linear = [
            name
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear) and place_of(f"{name}.", layers).part == "encoder"
        ]
        options = peft.LoraConfig(
            r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=linear
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._tuner = peft.LoraModel(network, options, "default")

    def merge(self) -> None:
        """Add the adapters to the encoder's weights, and remove them."""
        self._tuner.merge_and_unload()

"""Contrastive training of the second stage and of the path of the context, against a clock, resumable."""

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cde_rag.errors import ResumeError
from cde_rag.model.batching import length_buckets, pad
from cde_rag.model.context_path import PreparedContext
from cde_rag.model.second_stage import DOCUMENT, QUERY
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.batches import Batch, Batches
from cde_rag_training.filtering import false_negatives
from cde_rag_training.loss import contrastive_loss


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the second stage is trained. A field is ours where it names no source."""

    seconds: float = 3600.0  # of training, resumed parts included
    temperature: float = 0.03  # τ, divides scores; paper §5 has 0.02
    encoder_rate: float = 2e-5  # of the topmost layer, paper §5
    layer_decay: float = 0.9  # each lower layer learns by so much less
    context_rate: float = 3e-4  # of the path of context and siblings
    gate_rate: float = 1e-2  # of gates and output map
    warmup: float = 0.05  # share of the time
    weight_decay: float = 0.01
    max_length: int = 128  # tokens of a text in training
    forward_size: int = 32  # texts per forward pass, of like length
    save_every: int = 50  # updates


@dataclass(frozen=True)
class Surroundings:
    """What training looks up by a pair's position and never changes.

    Attributes:
        first_stage: First-stage vectors of the documents: contexts and siblings.
        queries: Surrogate embeddings of the queries.
        documents: Surrogate embeddings of the documents.
    """

    first_stage: Float32[np.ndarray, "pairs dim"]
    queries: Float32[np.ndarray, "pairs dim"]
    documents: Float32[np.ndarray, "pairs dim"]


class Trainer:
    """Trains a network whose first stage is finished.

    The learning rates rise over the warm-up and fall linearly to zero at the end. Every `save_every` updates
    the state is written to `output`; a new Trainer on the same folder goes on from there with the next batches.

    Args:
        network: Trained in place; word embeddings and first stage stay as they are.
        tokenizer: Of the network.
        batches: Draws what each update sees.
        surroundings: What batches refer to.
        config: How to train.
        output: Folder for state and log.

    Raises:
        ResumeError: The state in `output` belongs to another config.
    """

    def __init__(
        self,
        network: TwoStage,
        tokenizer: TextTokenizer,
        batches: Batches,
        surroundings: Surroundings,
        config: TrainingConfig,
        output: Path,
    ) -> None:
        self.network, self.tokenizer, self.batches, self.surroundings = network, tokenizer, batches, surroundings
        self.config, self.output = config, output
        self.update, self.elapsed = 0, 0.0
        network.requires_grad_(requires_grad=False)
        groups = _parameter_groups(network, config)
        for group in groups:
            for parameter in group["params"]:
                parameter.requires_grad_()
        self.optimiser = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
        self._rates = [group["lr"] for group in self.optimiser.param_groups]
        output.mkdir(parents=True, exist_ok=True)
        if (output / "state.json").exists():
            self._resume()

    def run(self) -> None:
        """Train until the time is used up."""
        self.network.train()
        while self.elapsed < self.config.seconds:
            started = time.monotonic()
            row = self._step(self.batches.draw(self.update))
            self.update += 1
            self.elapsed += time.monotonic() - started
            self._log({"update": self.update, "seconds": round(self.elapsed, 1), **row})
            if self.update % self.config.save_every == 0 or self.elapsed >= self.config.seconds:
                self._save()
        self.network.eval().requires_grad_(requires_grad=False)

    def _step(self, batch: Batch) -> dict[str, float | int]:
        share = self.elapsed / self.config.seconds
        factor = min(1.0, share / self.config.warmup if self.update else 0.01, (1 - share) / (1 - self.config.warmup))
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * max(factor, 0.0)
        loss = self.loss(batch)
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([p for group in self.optimiser.param_groups for p in group["params"]], 1.0)
        self.optimiser.step()
        return {
            "loss": round(float(loss.detach()), 4),
            "context": len(batch.context),
            "siblings": sum(map(len, batch.siblings)),
            "norm": round(float(norm), 3),
            "gate": round(float(self.network.second_stage.gates.detach().abs().mean()), 4),
            "exponent": round(float(self.network.output_map.exponent.detach()), 4),
        }

    def loss(self, batch: Batch) -> Float[Tensor, ""]:
        """The loss of one batch, differentiable."""
        context = torch.from_numpy(self.surroundings.first_stage[batch.context])
        prepared = self.network.prepare(context, torch.ones(len(context), dtype=torch.long))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            queries = self._embed(batch.queries, QUERY, prepared, [[] for _ in batch.queries])
            documents = self._embed(batch.documents, DOCUMENT, prepared, batch.siblings)
        mask = false_negatives(
            torch.from_numpy(self.surroundings.queries[batch.positions]),
            torch.from_numpy(self.surroundings.documents[batch.positions]),
            _numbered(batch.queries),
        )
        return contrastive_loss(queries, documents, mask, self.config.temperature)

    def _embed(
        self, texts: Sequence[str], role: int, prepared: PreparedContext, siblings: list[list[int]]
    ) -> Float[Tensor, "texts dim"]:
        rows = [tokens.ids for tokens in self.tokenizer(texts, self.config.max_length)]
        vectors: list[Tensor] = []
        order: list[int] = []
        for bucket in length_buckets([len(row) for row in rows], self.config.forward_size):
            ids, mask = pad([rows[position] for position in bucket])
            given, given_mask = self._siblings([siblings[position] for position in bucket])
            vectors.append(
                self.network.second_stage(self.network.embeddings, ids, mask, role, prepared, given, given_mask)
            )
            order += bucket
        return torch.cat(vectors)[torch.tensor(order).argsort()]

    def _siblings(self, groups: list[list[int]]) -> tuple[Tensor | None, Tensor | None]:
        width = max(map(len, groups))
        if width == 0:
            return None, None
        given = np.zeros((len(groups), width, self.surroundings.first_stage.shape[1]), dtype=np.float32)
        mask = np.zeros((len(groups), width), dtype=np.bool_)
        for number, group in enumerate(groups):
            given[number, : len(group)] = self.surroundings.first_stage[group]
            mask[number, : len(group)] = True
        return torch.from_numpy(given), torch.from_numpy(mask)

    def _log(self, row: dict[str, float | int]) -> None:
        path = self.output / "log.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)

    def _state(self) -> dict[str, Tensor]:
        tensors = {f"network.{key}": value for key, value in self.network.state_dict().items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{key}": value for key, value in state.items()}
        return {key: value.detach().contiguous().clone() for key, value in tensors.items()}

    def _save(self) -> None:
        progress = {"update": self.update, "elapsed": self.elapsed, "config": asdict(self.config)}
        save_file(self._state(), self.output / "state.tmp", metadata={"progress": json.dumps(progress)})
        (self.output / "state.tmp").replace(self.output / "state.safetensors")
        (self.output / "state.json").write_text(json.dumps(progress))

    def _resume(self) -> None:
        progress = json.loads((self.output / "state.json").read_text())
        if progress["config"] != asdict(self.config):
            raise ResumeError(
                f"{self.output} holds a run with another config: {progress['config']}. Choose another folder, or "
                "train with that config."
            )
        tensors = load_file(self.output / "state.safetensors")
        self.network.load_state_dict(
            {key.removeprefix("network."): value for key, value in tensors.items() if key.startswith("network.")}
        )
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimiser."):
                _, number, name = key.split(".")
                state.setdefault(int(number), {})[name] = value
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})
        self.update, self.elapsed = progress["update"], progress["elapsed"]


def _numbered(texts: Sequence[str]) -> Tensor:
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(text, len(numbers)) for text in texts])


def _parameter_groups(network: TwoStage, config: TrainingConfig) -> list[dict[str, Any]]:
    second = network.second_stage
    groups: list[dict[str, Any]] = [
        {
            "params": list(layer.parameters()),
            "lr": config.encoder_rate * config.layer_decay ** (len(second.layers) - 1 - number),
        }
        for number, layer in enumerate(second.layers)
    ]
    path = [*network.set_attention.parameters(), *second.given.parameters(), *second.sibling_norm.parameters()]
    path += [second.sibling_level, second.sibling_output.weight, second.roles]
    groups.append({"params": path, "lr": config.context_rate})
    groups.append({"params": [second.gates, *network.output_map.parameters()], "lr": config.gate_rate})
    return groups

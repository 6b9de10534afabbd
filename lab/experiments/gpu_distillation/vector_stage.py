"""Stage 1: training towards the teacher's embeddings and scores, under the null context."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT
from lab.experiments.gpu_distillation.stage_material import STARTED, StageMaterial, evaluate, log
from lab.experiments.gpu_distillation.token_rows import autocast, embed, first_vectors, null_context


@dataclass(frozen=True)
class Settings:
    """Settings of both stages."""

    random_texts: int = 512  # of a batch
    neighbourhoods: int = 4  # of a batch
    neighbours: int = 128  # texts of each
    score_weight: float = 20.0
    first_weight: float = 0.5  # of the first stage's loss
    rate: float = 6e-4  # of AdamW, stage 1
    later_rate: float = 2e-4  # stages 2 and 3
    weight_decay: float = 0.01
    warmup: float = 0.04  # share of the time
    corpora: int = 2  # of a batch of stages 2 and 3
    pairs: int = 192  # of each
    temperature: float = 0.02
    contrastive_weight: float = 0.02
    vector_weight: float = 1.0
    null_share: float = 0.2  # of corpora
    sibling_share: float = 0.5  # of corpora
    most_siblings: int = 16
    margin: float = 0.0  # a document is no negative if the teacher's score is above the positive's less this


class Neighbourhoods:
    """Draws texts that are near each other in the target space, many draws at a time.

    Args:
        material: The texts.
        count: Neighbourhoods of a draw.
        size: Texts of each.
        random: Of the draws.
    """

    def __init__(self, material: StageMaterial, count: int, size: int, random: np.random.Generator) -> None:
        self._material, self._count, self._size, self._random = material, count, size, random
        self._ready: list[np.ndarray] = []

    @torch.no_grad()
    def draw(self) -> Int64[np.ndarray, " texts"]:
        """Return the texts of `count` neighbourhoods, concatenated."""
        if not self._ready:
            trained, device = self._material.trained, self._material.teacher.device
            some = torch.from_numpy(self._random.choice(trained, min(trained, 2**18), replace=False)).to(device)
            seeds = some[: 32 * self._count]
            scores = self._material.teacher[seeds] @ self._material.teacher[some].T
            near = scores.topk(min(2 * self._size, len(some)), dim=1).indices
            near = near[:, torch.from_numpy(self._random.permutation(near.shape[1])[: self._size]).to(device)]
            drawn = some[near].cpu().numpy().reshape(-1, self._count * near.shape[1])
            self._ready = list(drawn)
        return self._ready.pop()


def score_error(
    ours: Float[Tensor, "sets texts dim"], theirs: Float[Tensor, "sets texts teacher"]
) -> Float[Tensor, ""]:
    """Mean squared difference of the scores of texts with each other, each text's mean difference apart."""
    difference = ours @ ours.transpose(1, 2) - theirs @ theirs.transpose(1, 2)
    return (difference - difference.mean(dim=2, keepdim=True)).square().mean()


def optimiser(network: TwoStage, trained: Sequence[str], rate: float, settings: Settings) -> torch.optim.AdamW:
    """Return AdamW over the parameters whose names begin with `trained`; embeddings and vectors do not decay."""
    decayed, kept = [], []
    for name, value in network.named_parameters():
        value.requires_grad_(name.startswith(tuple(trained)))
        if value.requires_grad:
            (decayed if value.ndim == 2 and not name.startswith("embeddings.") else kept).append(value)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8, fused=decayed[0].is_cuda)


def schedule(progress: float, settings: Settings, end: float) -> float:
    """Return the factor of the rate: a warm-up, then a cosine down to `end`."""
    if progress < settings.warmup:
        return max(1e-3, progress / settings.warmup)
    share = min(1.0, (progress - settings.warmup) / (1 - settings.warmup))
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * share))


class VectorLoss:
    """Loss of one batch of texts under the null context: distance to the targets, and error of scores.

    Args:
        material: What is trained on.
        settings: Sizes and weights.
        seed: Of the batches.
    """

    def __init__(self, material: StageMaterial, settings: Settings, seed: int) -> None:
        self._material, self._settings = material, settings
        self._random = np.random.default_rng(seed)
        self._near = Neighbourhoods(material, settings.neighbourhoods, settings.neighbours, self._random)
        self._order: Int64[np.ndarray, " texts"] = np.zeros(0, dtype=np.int64)

    def __call__(self, network: TwoStage, null: PreparedContext) -> tuple[Float[Tensor, ""], dict[str, Tensor], int]:
        """Return loss, its parts and the number of texts."""
        material, settings = self._material, self._settings
        if len(self._order) < settings.random_texts:
            self._order = self._random.permutation(material.trained)
        drawn, self._order = self._order[: settings.random_texts], self._order[settings.random_texts :]
        near = self._near.draw()
        chosen = np.concatenate([drawn, near])
        where = torch.from_numpy(chosen).to(material.teacher.device)
        vectors = embed(network, material.rows, chosen, material.roles, null)
        targets = material.targets(where)
        with torch.autocast(vectors.device.type, enabled=False):
            distance = (vectors - targets).square().sum(1).mean()
            teacher = material.teacher[where].float()
            parts = [each.split([len(drawn), len(near)]) for each in (vectors, teacher)]
            width = len(near) // settings.neighbourhoods
            shapes = ((1, len(drawn)), (settings.neighbourhoods, width))
            errors = [
                score_error(ours.reshape(*shape, -1), theirs.reshape(*shape, -1))
                for ours, theirs, shape in zip(*parts, shapes, strict=True)
            ]
            loss = distance + settings.score_weight * (errors[0] + errors[1])
        return loss, {"distance": distance, "random": errors[0], "near": errors[1]}, len(chosen)


def point(network: TwoStage, material: StageMaterial, texts: int, steps: int, sums: dict[str, Any]) -> dict[str, float]:
    """Return one point of the curve."""
    network.eval()
    figures = evaluate(network, material)
    network.train()
    count = max(1, sums.get("steps", 1))
    found = {"texts": float(texts), "steps": float(steps), "seconds": round(time.monotonic() - STARTED, 1)}
    found |= {name: float(value) / count for name, value in sums.items() if name != "steps"}
    found["mean"] = float(np.mean(figures)) if figures else 0.0
    found |= {one.name: figure for one, figure in zip(material.development, figures, strict=True)}
    log(" ".join(f"{name} {value:.5g}" for name, value in found.items()))
    return found


Step = Callable[[], tuple[Float[Tensor, ""], dict[str, Tensor], int]]  # → loss, its parts, texts


def train_by_clock(
    network: TwoStage,
    material: StageMaterial,
    adam: torch.optim.AdamW,
    step: Step,
    settings: Settings,
    *,
    rate: float,
    seconds: float,
) -> list[dict[str, float]]:
    """Train for some seconds; a point of the curve follows every tenth of them."""
    trained = [value for group in adam.param_groups for value in group["params"]]
    network.train()
    curve = [point(network, material, 0, 0, {})]
    began, texts, steps, sums, following = time.monotonic(), 0, 0, dict[str, Any](), 0.1
    while (progress := (time.monotonic() - began) / seconds) < 1:
        loss, parts, count = step()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in adam.param_groups:
            group["lr"] = rate * schedule(progress, settings, 0.02)
        adam.step()
        adam.zero_grad(set_to_none=True)
        texts, steps = texts + count, steps + 1
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + value.detach()
        sums["steps"] = sums.get("steps", 0) + 1
        if progress > following:
            curve.append(point(network, material, texts, steps, sums))
            sums, following = {}, following + 0.1
    return [*curve, point(network, material, texts, steps, sums)]


def train_vectors(
    network: TwoStage, material: StageMaterial, settings: Settings, seconds: float, device: str
) -> list[dict[str, float]]:
    """Train all weights: stage 1, towards the targets; the first stage towards the centred ones."""
    trained = ("second_stage.layers.", "second_stage.roles", "embeddings.", "first_stage.")
    adam = optimiser(network, trained, settings.rate, settings)
    vector_loss = VectorLoss(material, settings, seed=1)
    random = np.random.default_rng(2)
    documents = np.flatnonzero(material.roles[: material.trained] == DOCUMENT)
    turned = torch.eye(network.config.dim, device=device) if network.rotation is None else network.rotation.T
    with torch.no_grad():
        null = null_context(network)

    def step() -> tuple[Float[Tensor, ""], dict[str, Tensor], int]:
        with autocast(device, torch.bfloat16):
            loss, parts, count = vector_loss(network, null)
            some = random.choice(documents, min(512, len(documents)), replace=False)
            first = first_vectors(network, material.rows, some)
        centred = F.normalize(material.targets(torch.from_numpy(some).to(device)) - material.mean, dim=-1) @ turned
        parts["first"] = (first.float() - centred).square().sum(1).mean()
        return loss + settings.first_weight * parts["first"], parts, count

    return train_by_clock(network, material, adam, step, settings, rate=settings.rate, seconds=seconds)

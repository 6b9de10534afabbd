"""Distillation of a finished embedder's vectors into the small first stage; resumes when interrupted."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from cde_rag.models.batching import length_buckets
from cde_rag_training.config import DistillationConfig
from cde_rag_training.loop.optimiser import LossScale, Optimiser, ParameterGroup
from cde_rag_training.loop.state import RunProgress, State, StateFile
from cde_rag_training.networks.stages import Stages

POOL = 16  # batches' worth of texts that are sorted by length together
WARMUP = 20  # updates
WEIGHTS, OPTIMISER = "weights:", "optimiser:"


def distil_first_stage(
    stages: Stages,
    rows: Sequence[list[int]],
    targets: Float32[np.ndarray, "texts dim"],
    config: DistillationConfig,
    folder: Path,
    *,
    seed: int = 0,
    save_every: int = 200,
    log: Callable[[int, float], None] | None = None,
) -> None:
    """Train the first stage, in place, so that a text's vector is the teacher's; all else stays as it is.

    Minimises 1 - cos(first stage, teacher). The state is kept in `folder/distillation.safetensors`: a second call goes
    on from there, bit by bit as if there had been one, and does nothing where the first was finished.

    Args:
        stages: Their `network.first_stage` is trained.
        rows: Token ids of each text.
        targets: The teacher's vectors, unit norm; row i belongs to text i.
        config: How long, and how fast.
        folder: Folder of the state.
        seed: Random seed of the order of the texts.
        save_every: Updates between checkpoints.
        log: Called with the number of updates done and the mean cosine of the last one's texts.

    Raises:
        ResumeError: The state in `folder` is of another config, seed or data.
        TrainingError: The state cannot be written.
    """
    first = stages.network.first_stage.train()
    first.requires_grad_()
    named = dict(first.named_parameters())
    decaying = {name: parameter for name, parameter in named.items() if parameter.ndim > 1}
    others = {name: parameter for name, parameter in named.items() if parameter.ndim == 1}
    groups = [
        ParameterGroup("first_stage", config.rate, 0.01, decaying),
        ParameterGroup("first_stage", config.rate, 0.0, others),
    ]
    optimiser = Optimiser(groups, clip=1.0)
    texts = hashlib.sha256(np.ascontiguousarray(targets).tobytes())
    texts.update(repr(rows).encode())
    file = StateFile(
        folder / "distillation.safetensors", {**asdict(config), "seed": seed, "texts": texts.hexdigest()[:16]}
    )
    done, scale = 0, LossScale()
    if (state := file.read()) is not None:
        done, scale = state.progress.update, state.progress.loss_scale
        first.load_state_dict(_of(state, WEIGHTS))
        optimiser.restore(_of(state, OPTIMISER))
    lengths = [min(len(row), config.max_length) for row in rows]
    while done < config.updates:
        chosen = _chosen(lengths, config.batch_size, seed, done)
        vectors = stages.first([[*rows[text][: lengths[text] - 1], rows[text][-1]] for text in chosen], ())
        cosine = (vectors * torch.from_numpy(targets[chosen]).to(stages.device)).sum(dim=1).mean()
        optimiser.zero_grad()
        factor = scale.value if stages.scaled else 1.0
        (factor * (1 - cosine)).backward()
        norm, rate = optimiser.clip(factor), min(1.0, (done + 1) / WARMUP, 1 - done / config.updates)
        if stages.scaled:
            scale = optimiser.step_scaled(rate, norm, scale)
        else:
            optimiser.step(rate)
        done += 1
        if log is not None:
            log(done, float(cosine.detach()))
        if done % save_every == 0 or done == config.updates:
            tensors = {f"{WEIGHTS}{name}": value for name, value in first.state_dict().items()}
            tensors |= {f"{OPTIMISER}{name}": value for name, value in optimiser.state()}
            file.write(State(RunProgress(update=done, loss_scale=scale), tensors))
    first.eval().requires_grad_(requires_grad=False)


def _of(state: State, kind: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(kind): value for name, value in state.tensors.items() if name.startswith(kind)}


def _chosen(lengths: Sequence[int], batch_size: int, seed: int, update: int) -> list[int]:
    """Choose texts of similar length for one update: a bucket of a pool that several updates share."""
    random = np.random.default_rng([seed, update // POOL])
    pool = random.choice(len(lengths), size=min(len(lengths), POOL * batch_size), replace=False).tolist()
    buckets = list(length_buckets([lengths[text] for text in pool], batch_size))
    bucket = buckets[random.permutation(POOL)[update % POOL] % len(buckets)]
    return [pool[place] for place in bucket]

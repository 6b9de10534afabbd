"""Teaching the first stage the vectors of a finished embedder."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float32

from cde_rag.model.batching import length_buckets, pad
from cde_rag.model.two_stage import TwoStage


def distil_first_stage(
    network: TwoStage,
    rows: Sequence[Sequence[int]],
    targets: Float32[np.ndarray, "texts dim"],
    *,
    seconds: float,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    seed: int = 0,
    log: Callable[[int, float], None],
) -> None:
    """Train the first stage, in place, so that a text's vector is the teacher's; the embeddings stay as they are.

    Minimises 1 - cos(first stage, teacher). The learning rate falls linearly to zero over `seconds`.

    Args:
        network: Its `first_stage` is trained.
        rows: Token ids of each text.
        targets: The teacher's vectors, unit norm; row i belongs to text i.
        seconds: Time to train.
        batch_size: Texts per update, of like length.
        learning_rate: Of Adam at the start.
        seed: Of the order of the texts.
        log: Called with the update's number and the mean cosine of its batch.
    """
    stage = network.first_stage.train()
    parameters = [parameter.requires_grad_() for parameter in stage.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01)
    random = np.random.default_rng(seed)
    started, update = time.monotonic(), 0
    while (elapsed := time.monotonic() - started) < seconds:
        pool = random.choice(len(rows), size=min(len(rows), 16 * batch_size), replace=False).tolist()
        buckets = list(length_buckets([len(rows[position]) for position in pool], batch_size))
        for number in random.permutation(len(buckets)).tolist():
            chosen = [pool[place] for place in buckets[number]]
            ids, mask = pad([rows[position] for position in chosen])
            warm = min(1.0, (update + 1) / 20)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * warm * max(0.0, 1 - elapsed / seconds)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                vectors = stage(network.embeddings, ids, mask)
            cosine = (vectors.float() * torch.from_numpy(targets[chosen])).sum(dim=1).mean()
            optimiser.zero_grad()
            (1 - cosine).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            update += 1
            log(update, float(cosine.detach()))
            elapsed = time.monotonic() - started
            if elapsed >= seconds:
                break
    stage.eval().requires_grad_(requires_grad=False)

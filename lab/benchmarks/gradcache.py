"""How memory grows with the batch: gradient caching against the plain step, each size in a process of its own.

A random model of cde-mini's width, all of it trained, the first stage on the context documents too. Run with:
python lab/benchmarks/gradcache.py [--pairs 64 4096] [--plain 64 256] [--layers 2] [--tokens 16] [--context 64] [--json]
"""

import argparse
import json
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from cde_rag.model.config import ModelConfig
from cde_rag.model.context_path import PreparedContext
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.loop.gradcache import CachedStage, two_stage_step
from cde_rag_training.losses.loss import contrastive_loss

# glibc in the measured processes returns what is freed at once, so that resident memory is memory in use.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "1000000"}

Texts = tuple[int, Tensor]  # role and token ids


def resident_mb(line: str) -> float:
    """A line of /proc/self/status in megabytes (Linux): VmRSS is resident memory now, VmHWM its peak."""
    match = re.search(rf"^{line}:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1e3


class TrainingStep(Protocol):
    """One update's gradients."""

    def __call__(self, pairs: int, *, cached: bool) -> None:
        """Of so many pairs."""
        ...


def made_step(layers: int, tokens: int, context_size: int, mini_batch_size: int) -> TrainingStep:
    """The step of a random model."""
    network = TwoStage(ModelConfig(name="made", layers=layers, context_layers=layers)).train()

    def first(texts: Texts, _: object) -> Tensor:
        return network.first_stage(network.embeddings, texts[1], torch.ones_like(texts[1], dtype=torch.bool))

    def prepare(vectors: Tensor) -> tuple[Tensor, ...]:
        prepared = network.prepare(vectors, torch.ones(len(vectors), dtype=torch.long))
        return prepared.keys, prepared.values, prepared.output_map, prepared.sibling_weight

    def second(texts: Texts, given: tuple[Tensor, ...]) -> Tensor:
        return network.second_stage(network.embeddings, texts[1], None, texts[0], PreparedContext(*given))

    def loss(embeddings: Tensor) -> Tensor:
        queries, documents = embeddings.chunk(2)
        mask = torch.zeros(len(queries), len(documents), dtype=torch.bool)
        return contrastive_loss(queries, documents, mask, 0.03)

    def step(pairs: int, *, cached: bool) -> None:
        random = torch.Generator().manual_seed(pairs)
        ids = torch.randint(1000, 30000, (2 * pairs + context_size, tokens), generator=random)
        parts = [[(role, part) for part in ids[role * pairs :][:pairs].split(mini_batch_size)] for role in (0, 1)]
        context, texts = [(0, part) for part in ids[2 * pairs :].split(mini_batch_size)], [*parts[0], *parts[1]]
        if cached:
            two_stage_step(CachedStage(first), prepare, CachedStage(second), context, texts, loss)
            return
        given = prepare(torch.cat([first(part, ()) for part in context]))
        loss(torch.cat([second(part, given) for part in texts])).backward()

    return step


def measure(pairs: int, cached: bool, options: argparse.Namespace) -> dict[str, float | int | bool]:
    """One step in this process: by how much memory grows over the model with its gradients, and how long it takes."""
    torch.set_num_threads(options.threads)
    step = made_step(options.layers, options.tokens, options.context, options.mini_batch_size)
    step(8, cached=True)  # gradients and kernels are there from now on
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    started = time.perf_counter()
    step(pairs, cached=cached)
    seconds = time.perf_counter() - started
    return {"pairs": pairs, "cached": cached, "growth_mb": resident_mb("VmHWM") - before, "seconds": seconds}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[64, 256, 1024, 4096], help="batches with the cache")
    parser.add_argument("--plain", type=int, nargs="*", default=[64, 256, 1024], help="batches without")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16, help="of every text")
    parser.add_argument("--context", type=int, default=64, help="context documents")
    parser.add_argument("--mini-batch-size", type=int, default=64, help="texts per forward pass")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ |= GIVE_BACK
    results = []
    for pairs, cached in [(pairs, False) for pairs in options.plain] + [(pairs, True) for pairs in options.pairs]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(measure, (pairs, cached, options)))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{options.layers} layers, {options.tokens} tokens a text, {options.mini_batch_size} texts a forward pass")
    for result in results:
        kind = "cached" if result["cached"] else "plain"
        print(f"  {kind:6} {result['pairs']:5} pairs  {result['growth_mb']:8.0f} MB  {result['seconds']:6.1f} s")


if __name__ == "__main__":
    main()

"""How long a batch takes to draw, to be cut into mini-batches of token ids and to be masked, against an update with it.

The network is cde-mini, its first stage trained too. Run with: python lab/benchmarks/loader.py FOLDER [--batch-size
512] [--batches 40] [--updates 1] [--device cpu] [--json], where FOLDER holds prepared pairs, of sources larger than a
batch and its smallest context.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from cde_rag.model import checkpoints
from cde_rag_training.clustering.packing import PackingConfig
from cde_rag_training.config import LossConfig
from cde_rag_training.corpora.batch import Batch, Batches
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import Corpora, CorporaConfig
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.corpora.packed_batches import PackedBatches
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.gradients import Gradients
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.losses.objective import Objective
from cde_rag_training.networks.stages import stages_of


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Add to `seconds` how long something takes."""
    started = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - started)


def batches_of(prepared: Prepared, size: int) -> dict[str, Batches]:
    """Both kinds of batches."""
    packed = PackedBatches(prepared, PackingConfig(batch_size=size), ContextConfig(documents="batch"))
    return {"corpora": Corpora(prepared, CorporaConfig(batch_size=size), seed=0), "packed": packed}


class ParameterUpdate:
    """What is done with a batch.

    Args:
        prepared: The data.
        options: Device and mini-batch size.
    """

    def __init__(self, prepared: Prepared, options: argparse.Namespace) -> None:
        network, tokenizer, _ = checkpoints.read(checkpoints.find("cde-mini"))
        network.train().requires_grad_()
        stages = stages_of(network, tokenizer, device=options.device, precision="auto")
        self.cut = Cutter(prepared, stages, mini_batch_size=options.mini_batch_size)
        self.mask = Objective(LossConfig(), FilterConfig(), prepared, device=torch.device("cpu")).mask
        self._gradients = Gradients(
            stages,
            self.cut,
            Objective(LossConfig(), FilterConfig(), prepared, device=stages.device),
            vectors=None,
            context_dropout=0.0,
            caching=True,
            mini_batch_size=options.mini_batch_size,
            seed=[0],
        )

    def __call__(self, batch: Batch) -> float:
        """Gradients; the loss."""
        return self._gradients.add(batch, 0).total


def measure(batches: Batches, update: ParameterUpdate, options: argparse.Namespace) -> dict[str, float]:
    """Times of one kind of batches."""
    drawing, cutting, masking, updating = [list[float]() for _ in range(4)]
    tokens = 0
    for number in range(options.batches):
        with timed(drawing):
            batch = batches.batch(number)
        with timed(cutting):
            parts = update.cut(batch, slice(0, len(batch.pairs)))
        with timed(masking):
            update.mask(batch)
        tokens += parts.tokens + sum(len(ids) for texts in parts.first_ids for ids in texts)
    for number in range(options.updates + 1):
        batch = batches.batch(number)
        with timed(updating):
            update(batch)
    seconds = sum(drawing) + sum(cutting) + sum(masking)
    return {
        "draw_ms": 1e3 * median(drawing),
        "slowest_ms": 1e3 * max(drawing),
        "cut_ms": 1e3 * median(cutting),
        "mask_ms": 1e3 * median(masking),
        "batches_per_s": options.batches / seconds,
        "tokens_per_s": tokens / seconds,
        "update_ms": 1e3 * median(updating[1:]),
        "share_of_update": seconds / options.batches / median(updating[1:]),
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="prepared pairs")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=40, help="of each kind, drawn in order")
    parser.add_argument("--updates", type=int, default=1, help="of each kind, after one that does not count")
    parser.add_argument("--mini-batch-size", type=int, default=64, help="texts per forward pass")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prepared = Prepared.load(options.folder)
    update = ParameterUpdate(prepared, options)
    kinds = batches_of(prepared, options.batch_size)
    results = {name: measure(batches, update, options) for name, batches in kinds.items()}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(
        f"{len(prepared)} pairs, batches of {options.batch_size}, {torch.get_num_threads()} threads, {options.device}"
    )
    for name, one in results.items():
        print(
            f"  {name:8} drawn in {one['draw_ms']:.1f} ms (slowest {one['slowest_ms']:.1f}), "
            f"cut in {one['cut_ms']:.1f}, masked in {one['mask_ms']:.1f}\n"
            f"           {one['batches_per_s']:.1f} batches/s, {one['tokens_per_s'] / 1e6:.2f} million tokens/s, "
            f"{one['share_of_update']:.2%} of an update of {one['update_ms'] / 1e3:.2f} s"
        )


if __name__ == "__main__":
    main()

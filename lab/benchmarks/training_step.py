"""What one update costs: a one-way context, shared by all texts, against the two-way layout, in one run.

Random models of the same sizes, both stages trained, gradients cached, the same texts and context. The two-way second
stage reads context and text as one sequence, the one-way one looks at 64 latents that were made of the context once.
The median of some updates each. Run with:
python lab/benchmarks/training_step.py [--pairs 16] [--context 64] [--tokens 32] [--layers 3] [--updates 3] [--json]
"""

import argparse
import json
import statistics
import time

import torch
from torch import Tensor

from cde_rag import CDEModel
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.two_way.config import SOFT_TOKENS, TwoWayConfig
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.loop.gradcache import CachedStage, two_stage_step
from cde_rag_training.losses.loss import contrastive_loss
from cde_rag_training.networks.stages import OneWayStages, Stages, TextBatch, TwoWayStages

DIM, HEADS, INTERMEDIATE, VOCABULARY = 384, 12, 1536, 30522


def one_way(layers: int) -> Stages:
    """A random one-way model; gates are open, as in the middle of training."""
    network = TwoStage(ModelConfig(name="one_way", layers=layers, context_layers=layers)).train()
    torch.nn.init.normal_(network.second_stage.gates)
    return OneWayStages(network, device="cpu", precision="float32")


def two_way(layers: int, context: int, tokens: int) -> Stages:
    """A random two-way model of NomicBERT's kind, of the same sizes."""
    config = TwoWayConfig(
        name="two_way",
        family="nomic_bert",
        query_prefix="",
        document_prefix="",
        vocab_size=VOCABULARY,
        dim=DIM,
        layers=layers,
        heads=HEADS,
        intermediate=INTERMEDIATE,
        max_positions=context + SOFT_TOKENS + tokens,
        trained_context_size=context,
        context_size=context,
        max_length=tokens,
    )
    tokenizer = CDEModel.from_pretrained("cde-mini").tokenizer  # of prefixes, of which there are none
    return TwoWayStages(TwoWay(config, prefix_end=0).train(), tokenizer, device="cpu", precision="float32")


def seconds(stages: Stages, options: argparse.Namespace) -> list[float]:
    """Of each update, after one that warms up."""
    random = torch.Generator().manual_seed(0)
    shape = (2 * options.pairs + options.context, options.tokens)
    ids = torch.randint(1000, 30000, shape, generator=random)
    parts = ids.split([options.pairs, options.pairs, options.context])
    size, mask = options.mini_batch_size, torch.zeros(options.pairs, options.pairs, dtype=torch.bool)
    texts = [
        TextBatch(part.tolist(), role, [[] for _ in part])
        for role, side in ((QUERY, parts[0]), (DOCUMENT, parts[1]))
        for part in side.split(size)
    ]
    context = [part.tolist() for part in parts[2].split(size)]

    def loss(embeddings: Tensor) -> Tensor:
        return contrastive_loss(embeddings[: options.pairs], embeddings[options.pairs :], mask, 0.03)

    def prepare(vectors: Tensor) -> list[Tensor]:
        return stages.prepare(vectors, range(options.context), [False] * options.context)

    found = []
    for _ in range(options.updates + 1):
        stages.network.zero_grad()
        started = time.perf_counter()
        two_stage_step(CachedStage(stages.first), prepare, CachedStage(stages.second), context, texts, loss)
        found.append(time.perf_counter() - started)
    return found[1:]


def main() -> None:
    """Print both and their ratio, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--context", type=int, default=64, help="context documents")
    parser.add_argument("--tokens", type=int, default=32, help="of every text")
    parser.add_argument("--layers", type=int, default=3, help="of the second stage (and of the two-way first stage)")
    parser.add_argument("--mini-batch-size", type=int, default=32, help="texts per forward pass")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        "one_way_s": statistics.median(seconds(one_way(options.layers), options)),
        "two_way_s": statistics.median(seconds(two_way(options.layers, options.context, options.tokens), options)),
    }
    result["ratio"] = result["two_way_s"] / result["one_way_s"]
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{options.pairs} pairs, {options.context} context documents, {options.tokens} tokens, {options.layers} layers"
    )
    print("one way {one_way_s:.2f} s, two way {two_way_s:.2f} s an update: {ratio:.1f} ×".format(**result))


if __name__ == "__main__":
    main()

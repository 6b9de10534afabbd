"""The share of attention in a model's work: the most that flash attention, which makes nothing else faster, could save.

Operations of one text are counted (torch's FlopCounterMode) in networks of the published sizes without weights, so the
machine does not matter. Attention is the products of queries, keys and values, of all of a text, where
ModernBERT's local layers need a window of it. Padding, which flash attention skips too, is not in a single text.

Run with: python lab/benchmarks/attention_share.py
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

LENGTHS = (64, 256, 512, 2048)  # tokens


def bert(**sizes: Any) -> Any:
    config = BertConfig(max_position_embeddings=max(LENGTHS), attn_implementation="eager", **sizes)
    return BertModel(config, add_pooling_layer=False)


ENCODERS: dict[str, Callable[[], Any]] = {
    "BERT, 6 layers of 384 (all-MiniLM-L6-v2)": lambda: bert(
        hidden_size=384, num_hidden_layers=6, intermediate_size=1536
    ),
    "BERT, 12 layers of 768 (bge-base-en-v1.5)": bert,
    "ModernBERT, 22 layers of 768 (gte-modernbert-base; second stage of cde-small-v2)": lambda: ModernBertModel(
        ModernBertConfig(attn_implementation="eager")
    ),
}


def share(encoder: Any, tokens: int) -> float:
    """Return the share of attention, batched products in an encoder that computes it eagerly, in one text."""
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder(input_ids=ids)
    counts = counter.get_flop_counts()["Global"]
    return counts[torch.ops.aten.bmm] / sum(counts.values())


def main() -> None:
    """Print a table: encoders by lengths."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"| encoder | {' | '.join(f'{length} tokens' for length in LENGTHS)} |")
    print("| --- " * (len(LENGTHS) + 1) + "|")
    for name, build in ENCODERS.items():
        with torch.device("meta"):
            encoder = build().eval()
        print(f"| {name} | {' | '.join(f'{share(encoder, length):.0%}' for length in LENGTHS)} |")


if __name__ == "__main__":
    main()

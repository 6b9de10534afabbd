"""The bundled model's pairs with the defects of a manual review repaired (lab/pages/training-data.md).

Rust's RFCs have the title "Summary" where their own is missing: each such RFC becomes a parent of its own, separated at
the heading that starts an RFC, and only those of its queries stay whose heading no other RFC has. Pairs that answer
nothing are dropped: prefaces of a database and lists of links in place of an answer, docstrings of an argument, entries
that only point to another. Of several pairs with one query the first stays.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from cde_rag_training.data.pairs import Pair, per_source
from lab.experiments.bundled_pairs import FUNCTIONS, SOURCES, found_pairs, held_out_pairs, write_pairs

RFCS: Final = "doc_rust_rfcs"
NO_TITLE: Final = "Summary"
FIRST_HEADING: Final = "Motivation"  # of an RFC whose summary is not there
START: Final = 260  # characters of a document, in which a preface stands
PREFACE: Final = "Human Phenotype Ontology provides"
LINKS: Final = "These resources address"
ARGUMENT: Final = re.compile(r"[\w*]+ \(`")  # "hidden_states (`torch.FloatTensor`): …"
POINTER: Final = re.compile(r"This command (is an alias|has been)")


def repaired_pairs(data: Path, *, share: float = 1.0) -> list[Pair]:
    """Return the repaired pairs, near-duplicates included; deterministic.

    Args:
        data: Folder with `train/SOURCE/pairs.jsonl.gz`.
        share: Share of each source's number of pairs, in 0 … 1.
    """
    pairs = one_per_query(filter(answers, with_rfcs_apart(found_pairs(data))))
    return per_source(pairs, {source: round(share * count) for source, count in SOURCES.items()})


def answers(pair: Pair) -> bool:
    """Return True if no pattern of a bad answer matches.

    The patterns come from reading a hundred pairs of each source.
    """
    if pair.source == "medquad":
        return PREFACE not in pair.document[:START] and not pair.document.startswith(LINKS)
    if pair.source == FUNCTIONS:
        return not ARGUMENT.match(pair.query)
    return pair.source != "tldr" or not POINTER.match(pair.query)


def with_rfcs_apart(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the pairs in order; of RFCs without a title only those whose heading occurs in one RFC alone.

    Args:
        pairs: Those of an RFC in the order of its headings.
    """
    pairs = list(pairs)
    headings = Counter(_heading(pair) for pair in pairs if _untitled(pair))
    number = 0
    seen: set[str] = set()
    for pair in pairs:
        if not _untitled(pair):
            yield pair
            continue
        heading = _heading(pair)
        if not heading or (heading == FIRST_HEADING and heading in seen):
            number += 1
            seen.clear()
        seen.add(heading)
        if heading and headings[heading] == 1:
            yield replace(pair, query=heading, parent=f"RFC without a title, {number}")


def one_per_query(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the first pair of each query of a source."""
    seen = set[tuple[str, str]]()
    for pair in pairs:
        key = (pair.source, pair.query.casefold())
        if key not in seen:
            seen.add(key)
            yield pair


def _untitled(pair: Pair) -> bool:
    return pair.domain == RFCS and pair.parent == NO_TITLE


def _heading(pair: Pair) -> str:
    return pair.query.removeprefix(NO_TITLE).removeprefix(": ")


def main() -> None:
    """Write the pairs, and those that are held out, to files that `cde-rag-train prepare` reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="a JSONL file")
    parser.add_argument("held_out", type=Path, help="a JSONL file, for prepare --against")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with train/")
    parser.add_argument("--share", type=float, default=1.0, help="share of each source's pairs, for small experiments")
    arguments = parser.parse_args()
    write_pairs(repaired_pairs(arguments.data, share=arguments.share), arguments.output)
    write_pairs(held_out_pairs(arguments.data), arguments.held_out)


if __name__ == "__main__":
    main()

"""Training pairs of the bundled model: sources, number of pairs per source, exclusions and their reasons.

Excluded: ansible and git of `docs` are GPL, math_stacks is GFDL, subjqa is for research only and MiniLM finds the right
document of its cluster for 5 % of its queries; humaneval is an evaluation set. Held out as development sets: misc,
manpages, pystdlib, two domains of lfrqa, ten sections of debian, four sites of docs.
"""

import argparse
import ast
import importlib.metadata
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cde_rag_training.data.pairs import Pair, per_source
from cde_rag_training.data.reading import read_sources

FUNCTIONS: Final = "functions"
SOURCES: Final[Mapping[str, int]] = {  # approximate number of pairs per source; parents are not split
    "docs": 14_000,
    "medquad": 6_000,
    "factbook": 3_000,
    "lfrqa": 9_000,
    "debian": 6_000,
    "tldr": 2_500,
    "movies": 2_000,
    "dictionary": 1_500,
    "gsm8k": 1_000,
    FUNCTIONS: 5_000,
}
FILES: Final = tuple(source for source in SOURCES if source != FUNCTIONS)
HELD_OUT_SOURCES: Final = ("misc", "manpages", "pystdlib")
HELD_OUT_DOMAINS: Final = frozenset(
    "doc_redis doc_helm doc_govuk doc_prometheus lfrqa_recreation lfrqa_science debian_admin debian_editors "
    "debian_graphics debian_kde debian_mail debian_math debian_php debian_ruby debian_sound debian_web".split()
)
COPYLEFT_DOMAINS: Final = frozenset({"doc_ansible", "doc_git"})
SHARE_ALIKE: Final = frozenset({"dictionary", "movies", "doc_owasp", "doc_bips"})  # sources, domains; BIPs in part
OF_NIH_HEALTH: Final = frozenset({"med_NIDDK_QA", "med_SeniorHealth_QA", "med_NHLBI_QA_XML", "med_CDC_QA"})
PACKAGES: Final = ("numpy", "pandas", "scikit-learn", "scipy", "torch", "transformers")  # BSD and Apache-2.0
LEAST, MOST = 8, 400  # words of a function without its docstring
SUMMARY: Final = 4  # words of a docstring's first line, at least


def bundled_pairs(data: Path) -> list[Pair]:
    """Return all training pairs, near-duplicates included.

    Deterministic for fixed versions of `PACKAGES`.

    Args:
        data: Folder with `train/SOURCE/pairs.jsonl.gz`.
    """
    return per_source(found_pairs(data), SOURCES)


def found_pairs(data: Path) -> Iterator[Pair]:
    """Yield all pairs of the sources in file order, without held-out and copyleft domains."""
    left_out = HELD_OUT_DOMAINS | COPYLEFT_DOMAINS
    for pairs in read_sources(data / "train", FILES, without_domains=left_out).values():
        yield from pairs
    yield from function_pairs()


def pairs_beside_questions(data: Path) -> Iterator[Pair]:
    """Yield the pairs that may be trained on together with users' questions, in file order.

    All of `found_pairs`, but nothing under a share-alike licence, and none of MedQuAD's sources that the development
    corpus nih_health is made of.
    """
    left_out = SHARE_ALIKE | OF_NIH_HEALTH
    return (pair for pair in found_pairs(data) if not left_out & {pair.source, pair.domain})


def held_out_pairs(data: Path) -> Iterator[Pair]:
    """Yield the pairs of the held-out sources and domains, for `cde-rag-train prepare --against`."""
    for source, pairs in read_sources(data / "train", (*HELD_OUT_SOURCES, *FILES)).items():
        yield from (pair for pair in pairs if source in HELD_OUT_SOURCES or pair.domain in HELD_OUT_DOMAINS)


def function_pairs() -> Iterator[Pair]:
    """Yield pairs of a docstring's first line and its function without docstring, from installed Python packages.

    The package is the domain, the module the parent.
    """
    for package in PACKAGES:
        files = importlib.metadata.files(package) or []
        for file in sorted(files, key=str):
            if file.suffix == ".py" and "test" not in str(file):
                yield from _functions(package, ".".join(file.with_suffix("").parts), Path(str(file.locate())))


def _functions(package: str, module: str, path: Path) -> Iterator[Pair]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        summary = inspect.cleandoc(docstring).split("\n\n")[0].replace("\n", " ").strip() if docstring else ""
        if len(summary.split()) < SUMMARY or len(node.body) < 2:
            continue
        node.body = node.body[1:]
        text = ast.unparse(node)
        if LEAST <= len(text.split()) <= MOST and summary not in text:
            yield Pair(query=summary, document=text, source=FUNCTIONS, domain=package, parent=module)


def main() -> None:
    """Write the pairs to a file that `cde-rag-train prepare` reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="a JSONL file")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with train/")
    parser.add_argument("--unlimited", action="store_true", help="all pairs of each source, for a distillation")
    parser.add_argument("--beside-questions", action="store_true", help="all that may join users' questions")
    arguments = parser.parse_args()
    if arguments.beside_questions:
        pairs = pairs_beside_questions(arguments.data)
    else:
        pairs = found_pairs(arguments.data) if arguments.unlimited else bundled_pairs(arguments.data)
    write_pairs(pairs, arguments.output)


def write_pairs(pairs: Iterable[Pair], path: Path) -> None:
    """Write pairs as JSON Lines."""
    with path.open("w", encoding="utf-8") as file:
        for pair in pairs:
            row = {"query": pair.query, "document": pair.document, "source": pair.source, "domain": pair.domain}
            file.write(json.dumps(row | ({"parent": pair.parent} if pair.parent else {}), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

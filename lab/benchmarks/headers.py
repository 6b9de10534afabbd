"""What titles in front of passages find, with and without siblings; plan and results in lab/pages/headers.md.

Run with: python -m lab.benchmarks.headers --data FOLDER [--output FILE.csv]
"""

import argparse
import csv
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from cde_rag.errors import CDEWarning
from cde_rag.evaluation import evaluate
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.report import MAIN_METRIC, SetResult

SITES = ("parents_govuk", "parents_helm", "parents_prometheus", "parents_redis")
OTHERS = ("squadshifts_newwiki", "financebench_evidence")
SYSTEMS = ("own", "parents", "own_hybrid", "parents_hybrid", "bm25", "minilm")
DOCUMENTS, QUERIES = 600, 200


def main() -> None:
    """Print one line for each set and system, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CDEWarning)
    rows, pairs = list[tuple[object, ...]](), dict[tuple[str, str], list[PairedQueries]]()
    for kind, data in drawn(options.data):
        without, with_ = (results(one) for one in (data, headed(data)))
        for system in SYSTEMS:
            pair = PairedQueries(scores(with_, system) - scores(without, system), without.blocks)
            pairs.setdefault((kind, system), []).append(pair)
            row = kind, data.corpus.name, system, without.mean(system), with_.mean(system), compare([pair])
            print(line(*row), flush=True)
            rows.append((*row[:3], *(round(100 * value, 2) for value in row[3:5])))
    for kinds in (("heading alone", "other"), ("heading alone",), ("page and heading",), ("other",)):
        for system in SYSTEMS:
            every = [pair for kind in kinds for pair in pairs[kind, system]]
            found = [row for row in rows if row[0] in kinds and row[2] == system]
            without, with_ = (float(np.mean([float(str(row[place])) for row in found])) / 100 for place in (3, 4))
            print(line(" + ".join(kinds), "mean", system, without, with_, compare(every)))
    if options.output is not None:
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("queries", "set", "system", "without", "with"), *rows])


def line(kind: str, name: str, system: str, without: float, with_: float, gain: Difference) -> str:
    low, high = gain.queries
    figures = f"{100 * without:5.1f} {100 * with_:5.1f}  {100 * gain.mean:+5.1f} ({100 * low:+.1f} … {100 * high:+.1f})"
    return f"{kind:24} {name:22} {system:15} {figures}"


def drawn(folder: Path) -> list[tuple[str, RetrievalSet]]:
    """Return the sets, each with the kind of its queries."""
    found: list[tuple[str, RetrievalSet]] = []
    for name in SITES:
        site = cut(read_beir(folder / name, parent_key="parent"))
        found += [("page and heading", site), ("heading alone", alone(site))]
    found += [("other", cut(without_titles(read_beir(folder / name, parent_key="title")))) for name in OTHERS]
    return [(kind, data.sample_queries(QUERIES)) for kind, data in found]


def cut(data: RetrievalSet) -> RetrievalSet:
    """Return the set with the documents of some parents, whole, and the queries that these answer."""
    parents = list(dict.fromkeys(data.corpus.parents or ()))
    Random(0).shuffle(parents)
    size, kept = Counter(data.corpus.parents or ()), set[str | None]()
    for parent in parents:
        if sum(size[one] for one in kept) + size[parent] <= DOCUMENTS:
            kept.add(parent)
    places = [place for place, parent in enumerate(data.corpus.parents or ()) if parent in kept]
    corpus = chosen(data.corpus, places)
    asked = [place for place, right in enumerate(data.judgments) if right.keys() <= set(corpus.ids)]
    return replace(data, corpus=corpus).select(asked)


def chosen(corpus: Corpus, places: list[int]) -> Corpus:
    parents = corpus.parents or ()
    return replace(
        corpus,
        ids=tuple(corpus.ids[place] for place in places),
        texts=tuple(corpus.texts[place] for place in places),
        parents=tuple(parents[place] for place in places),
    )


def alone(site: RetrievalSet) -> RetrievalSet:
    """Return a site asked by headings of two words or more that stand once in it, without their page."""
    headings = [query.partition(": ")[2] for query in site.queries]
    once = Counter(headings)
    kept = [place for place, one in enumerate(headings) if len(one.split()) > 1 and once[one] == 1]
    return replace(site.select(kept), queries=tuple(headings[place] for place in kept))


def without_titles(data: RetrievalSet) -> RetrievalSet:
    """Return the set with texts that do not begin with their title, which names the parent."""
    parents = data.corpus.parents or ()
    texts = [text.removeprefix(f"{parent} ") for text, parent in zip(data.corpus.texts, parents, strict=True)]
    return replace(data, corpus=replace(data.corpus, texts=tuple(texts)))


def headed(data: RetrievalSet) -> RetrievalSet:
    """Return the set with each text's parent in front of it."""
    pairs = zip(data.corpus.texts, data.corpus.parents or (), strict=True)
    texts = [f"{(parent or '').replace('_', ' ')} {text}".strip() for text, parent in pairs]
    return replace(data, corpus=replace(data.corpus, texts=tuple(texts)))


def results(data: RetrievalSet) -> SetResult:
    return evaluate([data], systems=SYSTEMS).sets[0]


def scores(result: SetResult, system: str) -> np.ndarray:
    return result.scores[system][MAIN_METRIC]


if __name__ == "__main__":
    main()

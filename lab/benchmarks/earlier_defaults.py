"""`cde-rag index` with nothing set, the same passages without titles, and an earlier commit's `cde-rag index`.

The earlier commit is a checkout beside this one, which runs in processes of its own: its passages, titles, model and
ranking are its own. Source code and `.mdx` are read by it, too, where its own default leaves them out. Run as a module,
from the root of a clone, after `git worktree add --detach ../earlier 587d3ff4`, the last commit before these defaults
were decided: python -m lab.benchmarks.earlier_defaults FOLDER… --earlier ../earlier (folders of `cde-rag evaluate`).
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from cde_rag import Collection
from cde_rag.cli.answers import corpora_of, indexed, pages_of
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.answer_evaluation import MRR
from cde_rag.evaluation.answer_scores import JudgedPassages, answer_difference, mean_score, parts_of
from cde_rag.evaluation.answer_systems import JudgedIndex
from cde_rag.evaluation.question_folder import Site, page_names, read_questions
from cde_rag.evaluation.ranking import DEPTH
from lab.benchmarks.tutorials import INDEX, SystemScores, TutorialHit, index_scores, kept_scores, tutorial_scores

WITHOUT_TITLES: Final = "without titles"
EARLIER: Final = "earlier"
OTHERS: Final = (WITHOUT_TITLES, EARLIER)
_READ: Final = ["--as-text", ".mdx", "--as-text", ".py"]
_COMMAND: Final = "from cde_rag.cli import app; app()"
_SEARCH: Final = """
import json, sys
from cde_rag import Collection
with Collection.open(sys.argv[1]) as collection:
    found = collection.searcher("hybrid").search_batch(json.load(sys.stdin), int(sys.argv[2]))
print(json.dumps([[[hit.metadata["source"], hit.text] for hit in some] for some in found]))
"""


def without_titles(index: JudgedIndex, kept: Path) -> SystemScores:
    """Score the passages of an index in a collection of the same embedder, in which no record has a title."""
    own = index.collection
    place = kept / "without-titles.faiss"
    made = Collection.open(place) if place.exists() else Collection.create(place, own.embedder, parent_key="source")
    with made, warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        made.add_records(replace(record, title="") for record in own.scroll())
        return index_scores(replace(index, collection=made), math.nan)


def earlier(tree: Path, pages: Path, asked: JudgedPassages, kept: Path) -> SystemScores:
    """Index a folder by an earlier commit's command, and score its hybrid search, which was the command's default."""
    place, pages = kept / "earlier.faiss", pages.resolve()
    run = partial(subprocess.run, check=True, text=True, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)})
    run([sys.executable, "-c", _COMMAND, "index", str(pages), str(place), *_READ], stdout=subprocess.DEVNULL)
    search = [sys.executable, "-c", _SEARCH, str(place), str(DEPTH)]
    found = json.loads(run(search, input=json.dumps(asked.queries), stdout=subprocess.PIPE).stdout)
    hits = [[TutorialHit(str(pages.parent / source), text) for source, text in some] for some in found]
    by_query = dict(zip(asked.queries, hits, strict=True))
    return tutorial_scores(lambda _: by_query.__getitem__, pages, asked)


def measured(
    folder: Path, site: Site, work: Path, tree: Path, others: Sequence[str]
) -> tuple[JudgedPassages, dict[str, SystemScores]]:
    """Return the passages of one corpus with the questions, and the scores of each system.

    Args:
        folder: Folder of the corpus.
        site: Facts about it.
        work: Scores and indexes are kept there; what is there is not measured again.
        tree: Checkout of the earlier commit.
        others: Systems to compare with the index.
    """
    pages, kept = pages_of(folder, work / site.name)
    with indexed(pages, kept, []) as collection:
        index = JudgedIndex.of_pages(collection, read_questions(folder, site.name, page_names(pages)), site)
        systems = {
            INDEX: lambda: index_scores(index, math.nan),
            WITHOUT_TITLES: lambda: without_titles(index, kept),
            EARLIER: lambda: earlier(tree, pages, index.data, kept),
        }
        runs = {}
        for system in (INDEX, *others):
            runs[system] = kept_scores(kept, system, systems[system])
            score = 100 * runs[system].scores[MRR].mean()
            print(f"{site.name}: {system} {score:.1f}", file=sys.stderr, flush=True)
        return index.data, runs


def rows(corpora: Sequence[tuple[JudgedPassages, dict[str, SystemScores]]]) -> list[dict[str, Any]]:
    """Return a row of MRR@10 for each corpus and for all, with the index less each other system."""
    data = [each for each, _ in corpora]
    by_system = {system: [runs[system].scores[MRR] for _, runs in corpora] for system in corpora[0][1]}
    found = []
    for name, part in parts_of(data).items():
        row: dict[str, Any] = {"part": name, "questions": sum(int(mask.sum()) for mask in part)}
        row |= {system: round(mean_score(scores, part), 4) for system, scores in by_system.items()}
        for system in list(by_system)[1:]:
            less = answer_difference(data, by_system[INDEX], by_system[system], part)
            row[f"less {system}"] = round(less.mean, 4)
            for over, interval in (("questions", less.queries), ("corpora", less.sets)):
                for end, value in zip(("low", "high"), interval or ("", ""), strict=True):
                    row[f"{system}, {over}, {end}"] = value if value == "" else round(float(value), 4)
        found.append(row)
    return found


def main() -> None:
    """Measure, print the rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of pages with questions")
    parser.add_argument("--split", default="dev", help="of a folder with several corpora")
    parser.add_argument("--earlier", type=Path, required=True, help="checkout of the earlier commit")
    parser.add_argument("--work", type=Path, default=Path("runs/earlier"), help="keep indexes and scores there")
    parser.add_argument("--others", nargs="+", choices=OTHERS, default=OTHERS, help="systems to compare with")
    parser.add_argument("--output", type=Path, help="table, CSV")
    options = parser.parse_args()
    corpora = corpora_of(options.folders, options.split)
    places = options.work.resolve(), options.earlier.resolve()
    found = rows([measured(*corpus, *places, options.others) for corpus in corpora])
    for row in found:
        print(*(f"{key} {value}" for key, value in row.items()), sep=", ")
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()

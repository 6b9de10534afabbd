"""Answers that the calibrated scale of hybrid scores loses, and queries that it refuses, on complete folders.

Each folder is indexed as `cde-rag index` does. Its own questions are asked, those of the other folders, and letters.
Run as a module, from the root of a clone: python -m lab.benchmarks.score_floor FOLDER… (those of `cde-rag evaluate`).
"""

import argparse
import csv
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from cde_rag import Collection
from cde_rag.cli.answers import corpora_of, indexed, pages_of
from cde_rag.evaluation.answer_systems import JudgedIndex
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.evaluation.question_folder import Site, page_names, read_questions
from cde_rag.search.calibration import few_letter_queries, random_queries
from cde_rag.stores.faiss import FaissStore

SHARES: Final = (0.01, 0.03, 0.05, 0.1)  # of answers that a threshold loses
MASH: Final = "qqqqzzzz"
LETTERS: Final = (MASH, *random_queries(1), *few_letter_queries(1))  # others than those of the calibration
_FIELDS: Final = ("site", "passages", "answers", "lost", "letters", "mash", "share", "threshold", "foreign")


def measured(folder: Path, site: Site, work: Path, asked: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return the rows of one corpus.

    Args:
        folder: Folder of the corpus.
        site: Facts about it.
        work: Indexes are kept there.
        asked: Questions of every corpus, by its name; the others' are foreign to this one.
    """
    pages, kept = pages_of(folder, work / site.name)
    with indexed(pages, kept, []) as index, tempfile.TemporaryDirectory() as scratch:
        data = JudgedIndex.of_pages(index, _questions(pages, folder, site), site)
        store, copy = index.store, Path(scratch) / "copy.faiss"
        assert isinstance(store, FaissStore)
        shutil.copytree(store.folder, copy)
        with Collection.open(copy) as calibrated:
            calibrated.calibrate()
            found = calibrated.search_batch(asked[site.name], k=10)
            others = [query for name, queries in asked.items() if name != site.name for query in queries]
            foreign = calibrated.search_batch(others, k=1)
            letters = calibrated.search_batch(LETTERS, k=1)
            passages = len(calibrated)
            calibrated.store.update_settings({"calibration": {}})
            before = calibrated.search_batch(asked[site.name], k=10)
    scores, without = (
        [
            hit.score
            for hits, right in zip(some, data.data.answers, strict=True)
            for hit in hits
            if data.ids[hit.id] in right
        ]
        for some in (found, before)
    )
    best = np.array([hits[0].score if hits else -1.0 for hits in foreign])
    common = {
        "site": site.name,
        "passages": passages,
        "answers": len(without),
        "lost": len(without) - len(scores),
        "letters": round(sum(not hits for hits in letters) / len(letters), 3),
        "mash": len(letters[0]),
    }
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        threshold = float(np.quantile(scores, share))
        refused = float((best < threshold).mean())
        rows.append({**common, "share": share, "threshold": round(threshold, 3), "foreign": round(refused, 3)})
    return rows


def _questions(pages: Path, folder: Path, site: Site) -> tuple[JudgedQuestion, ...]:
    return read_questions(folder, site.name, page_names(pages))


def main() -> None:
    """Write the rows of all corpora."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of pages with questions")
    parser.add_argument("--split", default="dev", help="of a folder with several corpora")
    parser.add_argument("--work", type=Path, default=Path("runs/tutorials"), help="keep indexes there")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    corpora = list(corpora_of(options.folders, options.split))
    asked = {
        site.name: [one.text for one in _questions(pages_of(folder, options.work / site.name)[0], folder, site)]
        for folder, site in corpora
    }
    with options.output.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, _FIELDS, lineterminator="\n")
        table.writeheader()
        for folder, site in corpora:
            table.writerows(measured(folder, site, options.work, asked))
            file.flush()


if __name__ == "__main__":
    main()

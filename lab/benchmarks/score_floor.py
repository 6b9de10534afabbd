"""What the calibrated scale of hybrid scores loses and refuses, on documentation sites with questions in users' words.

Each site's passages that answer, and others up to a number, are one collection. Its own questions are asked, those of
the other sites, and random letters. Run as a module: python -m lab.benchmarks.score_floor --data FOLDER SITE …
"""

import argparse
import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cde_rag import Collection, Hit, Record
from cde_rag.readers import RecordReader
from cde_rag.search.calibration import random_queries

SHARES: Final = (0.01, 0.03, 0.05, 0.1)  # of answers that a threshold loses
_ENDS: Final = 60  # characters of a quote that a passage has to hold, from its start or to its end
_FIELDS: Final = ("site", "passages", "answers", "lost", "letters", "share", "threshold", "foreign")


def questions(folder: Path) -> list[dict[str, Any]]:
    """Return the judged questions of a site."""
    return [json.loads(line) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


def answers(record: Record | Hit, question: dict[str, Any]) -> bool:
    """Return True if a passage holds the beginning or the end of one of a question's quotes."""
    text = " ".join(record.text.split())
    quotes = [" ".join(one["quote"].split()) for one in question["answers"] if _of_page(record, one["page"])]
    return any(quote[:_ENDS] in text or quote[-_ENDS:] in text for quote in quotes)


def _of_page(record: Record | Hit, page: str) -> bool:
    return str(record.metadata["source"]).endswith(page)


def cut(records: Sequence[Record], asked: Sequence[dict[str, Any]], count: int) -> list[Record]:
    """Return the passages that answer a question, and others at random up to `count`, in their order."""
    chosen = {place for place, record in enumerate(records) if any(answers(record, one) for one in asked)}
    others = [place for place in range(len(records)) if place not in chosen]
    random.Random(0).shuffle(others)
    return [records[place] for place in sorted([*chosen, *others[: max(0, count - len(chosen))]])]


def measured(site: Path, others: Sequence[Path], count: int) -> list[dict[str, Any]]:
    """Return the rows of one site.

    Args:
        site: Folder of a site.
        others: Folders of the sites whose questions are foreign to it.
        count: Passages of the collection.
    """
    asked = questions(site)
    records = cut(list(RecordReader(site / "pages")), asked, count)
    papers = Collection.from_texts(
        [record.text for record in records],
        ids=[record.id for record in records],
        titles=[record.title or "" for record in records],
        metadata=[record.metadata for record in records],
        parent_key="source",
    )
    with papers:
        found = papers.search_batch([one["question"] for one in asked], k=10)
        foreign = papers.search_batch([one["question"] for other in others for one in questions(other)], k=1)
        letters = papers.search_batch(["qqqqzzzz", *(query[::-1] for query in random_queries())], k=1)
        papers.store.update_settings({"calibration": {}})
        before = papers.search_batch([one["question"] for one in asked], k=10)
    scores, without = (
        [hit.score for hits, one in zip(some, asked, strict=True) for hit in hits if answers(hit, one)]
        for some in (found, before)
    )
    best = np.array([hits[0].score if hits else -1.0 for hits in foreign])
    common = {
        "site": site.name,
        "passages": len(records),
        "answers": len(without),
        "lost": len(without) - len(scores),
        "letters": sum(not hits for hits in letters) / len(letters),
    }
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        threshold = float(np.quantile(scores, share))
        refused = float((best < threshold).mean())
        rows.append({**common, "share": share, "threshold": round(threshold, 3), "foreign": round(refused, 3)})
    return rows


def main() -> None:
    """Write the rows of all sites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", nargs="+", help="names of folders in the data")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=140)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    folders = [arguments.data / name for name in arguments.sites]
    with arguments.output.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, _FIELDS, lineterminator="\n")
        table.writeheader()
        for site in folders:
            table.writerows(measured(site, [one for one in folders if one != site], arguments.passages))
            file.flush()


if __name__ == "__main__":
    main()

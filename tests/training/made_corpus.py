"""A corpus of small pages with questions about them, and a language model that writes some."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tiny import WORDS

from cde_rag.evaluation.own_questions import OwnCorpus
from cde_rag.records import Record

PAGES, EACH = 40, 4


def page_records(pages: int = PAGES) -> list[Record]:
    """Pages of four passages, each of words drawn at random and two letters of its own."""
    random = np.random.default_rng(0)
    found: list[Record] = []
    for number in range(pages * EACH):
        words = " ".join(random.choice(WORDS, size=14))
        own = f"{'bcdefghijk'[number % 10]} {'bcdefghijklmnopqrst'[number % 19]}"
        page = f"docs/page-{number // EACH}.md"
        text = f"{words} {own} {number} {words[:9]}"
        found.append(Record(f"{page}#{number % EACH}", text, f"title {page}", {"source": page}))
    return found


def own_corpus() -> OwnCorpus:
    """The same as passages."""
    return OwnCorpus.of(page_records(), parent_key="source")


def page_questions(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Two questions of each page, with page and quote."""
    asked = [one for number, one in enumerate(records) if number % 2]
    return [
        {
            "question": f"is {' '.join(one.text.split()[3:9])} of {number}",
            "kind": "plain" if number % 4 else "keyword",
            "answers": [{"page": one.metadata["source"], "quote": one.text[-40:]}],
        }
        for number, one in enumerate(asked)
    ]


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_records(path: Path) -> Path:
    """Write the corpus as JSON Lines; its pages are named in `source`."""
    rows = [{"id": one.id, "title": one.title, "text": one.text, **one.metadata} for one in page_records()]
    return write_rows(path, rows)


def section_of(body: dict[str, Any]) -> str:
    """The section that a request asks about."""
    found = re.search(r"<section>\n(.*)\n</section>", body["messages"][1]["content"], re.DOTALL)
    assert found is not None
    return found[1]


def three_questions(body: dict[str, Any]) -> str:
    """Three usable questions about the section of a request, in a code block."""
    words = section_of(body).split()
    rows = [
        {
            "question": f"is {' '.join(words[place : place + 5])} so",
            "kind": kind,
            "quote": " ".join(words[place : place + 8]),
        }
        for place, kind in ((1, "plain"), (10, "named"), (18, "keyword"))
    ]
    return f"Here they are:\n```json\n{json.dumps(rows)}\n```"

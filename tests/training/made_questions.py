"""Small corpora of questions with quoted answers, on disk."""

import gzip
import json
from pathlib import Path

ROLLBACK = """---
title: Undo a release
---

# Roll back

Every release keeps its history. The command `helm rollback` returns to an earlier revision of it.

## By hand

If the command fails, apply the old manifests yourself, and delete whatever the new ones added to the cluster.
"""
LIMITS = """# Limits

A release may be at most one megabyte large, compressed, since it is kept in a secret of the cluster.
"""
SWIFTS = """# Swifts

Swifts sleep on the wing, and stay in the air for ten months of the year without landing once.
"""
QUESTIONS = [
    {
        "id": "helm-1",
        "question": "how do I get back to what ran yesterday?",
        "kind": "plain",
        "answers": [
            {"page": "ops/rollback.md", "section": "", "quote": "`helm rollback` returns to\nan earlier revision"},
            {"page": "ops/rollback.md", "section": "By hand", "quote": "apply the old manifests yourself"},
        ],
    },
    {
        "question": "release too large secret",
        "kind": "keyword",
        "answers": [{"page": "limits.mdx", "quote": "A release may be one megabyte, compressed, in a secret"}],
    },
    {
        "question": "who wrote this?",
        "answers": [{"page": "limits.mdx", "quote": "it was written by nobody at all on a rainy day"}],
    },
]
SITES = (
    "site,split,form,licence,source,commit\nbirds,dev,people,CC0,github:birds/birds,abc\nhelm,,documentation,MIT,,\n"
)


def write_corpus(folder: Path, pages: dict[str, str], questions: list, *, packed: bool = True) -> Path:
    """One corpus; its pages in one file, or as files."""
    folder.mkdir(parents=True)
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in questions))
    if packed:
        rows = "".join(f"{json.dumps({'path': path, 'text': text})}\n" for path, text in pages.items())
        (folder / "pages.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    else:
        for path, text in pages.items():
            (folder / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "pages" / path).write_text(text)
    return folder


def write_questions(folder: Path) -> Path:
    """Two corpora, one of them for development."""
    write_corpus(folder / "helm", {"ops/rollback.md": ROLLBACK, "limits.mdx": LIMITS, "blank.md": " \n"}, QUESTIONS)
    answers = [{"page": "swifts.md", "quote": "Swifts sleep on the wing"}]
    birds = [{"question": "where do swifts sleep?", "kind": "named", "answers": answers}]
    write_corpus(folder / "birds", {"swifts.md": SWIFTS}, birds, packed=False)
    (folder / "sites.csv").write_text(SITES)
    return folder


def lines(path: Path) -> list:
    """Rows of a gzip file of JSON Lines."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]

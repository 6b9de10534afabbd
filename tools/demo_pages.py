"""Packs pages of docs/ for `cde-rag demo`, and looks whether they still hold the quotes of its questions.

Run it before a release, with: python tools/demo_pages.py
Questions whose quotes their pages have lost are named; take new words of the pages into
cde_rag/evaluation/documentation/questions.jsonl.
"""

import gzip
import json
import sys
from pathlib import Path

from cde_rag.evaluation.answer_scores import judged
from cde_rag.evaluation.demo_corpus import FOLDER, demo_corpus

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ALONE = "concepts durability drift faq install interop migration production training".split()


def main() -> None:
    pages = [*(DOCS / f"{name}.md" for name in ALONE), *sorted((DOCS / "guide").glob("*.md"))]
    lines = [{"path": page.relative_to(DOCS).as_posix(), "text": page.read_text(encoding="utf-8")} for page in pages]
    packed = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    (FOLDER / "pages.jsonl.gz").write_bytes(gzip.compress(packed, mtime=0))
    data = judged(demo_corpus())
    lost = [question.id for question, found in zip(data.questions, data.found, strict=True) if not found]
    print(f"{len(pages)} pages, {len(data.questions)} questions; without an answer: {', '.join(lost) or 'none'}")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()

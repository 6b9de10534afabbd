"""Folders in the layout of BEIR, for tests."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_set(
    folder: Path,
    corpus: Sequence[Mapping[str, object]],
    queries: Mapping[str, str],
    judgments: Sequence[tuple[str, str, int]],
    *,
    ending: str = ".jsonl",
) -> Path:
    """A whole set; each document is `{"_id", "text", …}`, each judgment (query, document, grade)."""
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / f"corpus{ending}", corpus)
    write_lines(folder / f"queries{ending}", [{"_id": name, "text": text} for name, text in queries.items()])
    write_qrels(folder, "test", judgments)
    return folder


def write_qrels(folder: Path, split: str, judgments: Sequence[tuple[str, str, int]]) -> None:
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, judgment)) for judgment in judgments)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")

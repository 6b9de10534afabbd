"""Retrieval sets of random words: each query is the first words of its document; three documents have one parent."""

import json
from pathlib import Path

import numpy as np

from cde_rag.evaluation.beir import Corpus, RetrievalSet

DOCUMENTS, QUERIES = 30, 6  # of a set on disk


def made_set(name: str, *, seed: int, words: list[str], documents: int, queries: int) -> RetrievalSet:
    """In memory."""
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(words, 12)) + f" {words[row % len(words)]}" for row in range(documents)]
    corpus = Corpus(
        name=name,
        ids=tuple(f"d{row}" for row in range(documents)),
        texts=tuple(texts),
        parents=tuple(f"p{row // 3}" for row in range(documents)),
    )
    return RetrievalSet(
        corpus,
        query_ids=tuple(f"q{row}" for row in range(queries)),
        queries=tuple(" ".join(text.split()[:4]) for text in texts[:queries]),
        judgments=tuple({f"d{row}": 1} for row in range(queries)),
    )


def write_set(folder: Path, *, seed: int, words: list[str]) -> None:
    """A folder in BEIR's layout."""
    made = made_set(folder.name, seed=seed, words=words, documents=DOCUMENTS, queries=QUERIES)
    (folder / "qrels").mkdir(parents=True)
    held = zip(made.corpus.ids, made.corpus.texts, made.corpus.parents or (), strict=True)
    corpus = [{"_id": name, "text": text, "parent": parent} for name, text, parent in held]
    queries = [{"_id": name, "text": text} for name, text in zip(made.query_ids, made.queries, strict=True)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = zip(made.query_ids, made.judgments, strict=True)
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{right}\t1" for query, (right,) in judged)]
    (folder / "qrels/test.tsv").write_text("\n".join(lines))

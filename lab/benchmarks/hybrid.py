"""NDCG@10 through a Collection: by vectors, by words, and by both, in FaissStore and in QdrantEdgeStore.

Beside them BM25 as `cde-rag evaluate` has it (bm25s, Snowball's stems), and milliseconds a query. Run with: python
lab/benchmarks/hybrid.py FOLDER… [--queries 300] [--candidates 100] [--output lab/tables/hybrid.csv], folders being in
the layout of BEIR. It writes the table of the guide, and prints the times.
"""

import argparse
import csv
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag import Collection, ContextualEmbedder
from cde_rag.evaluation.beir import RetrievalSet, read_beir
from cde_rag.evaluation.bm25 import BM25
from cde_rag.evaluation.metrics import ndcg
from cde_rag.search.searcher import Searcher
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.transfer.parquet import export_collection, import_collection

K = 10
MODEL = "cde-mini-0"  # of the figures in docs/guide/search.md
HEAD = (
    "set", "documents", "queries", "vectors", "words (FAISS)", "hybrid (FAISS)", "words (Qdrant Edge)",
    "hybrid (Qdrant Edge)", "bm25s",
)  # fmt: skip


def mean_ndcg(judged: RetrievalSet, found: Sequence[Sequence[str]]) -> float:
    """In hundredths; a document with its query's id is the query, and left out."""
    scores = [
        ndcg([id_ for id_ in ids if id_ != query][:K], judgments, K)
        for query, ids, judgments in zip(judged.query_ids, found, judged.judgments, strict=True)
    ]
    return 100 * float(np.mean(scores))


def asked(judged: RetrievalSet, searcher: Searcher) -> Mapping[str, float]:
    """NDCG@10 and milliseconds a query."""
    started = time.perf_counter()
    found = [[hit.id for hit in searcher.search(query, K + 1)] for query in judged.queries]
    spent = time.perf_counter() - started
    return {"ndcg@10": mean_ndcg(judged, found), "ms": 1000 * spent / len(found)}


def measure(folder: Path, queries: int, candidates: int) -> dict[str, Any]:
    """One set, by all ways."""
    judged = read_beir(folder).sample_queries(queries)
    corpus = judged.corpus
    baseline = BM25(list(corpus.texts))
    lexical = [[corpus.ids[place] for place, _ in baseline.search(query, K + 1)] for query in judged.queries]
    found: dict[str, Any] = {
        "set": folder.name,
        "documents": len(corpus.ids),
        "queries": len(judged.queries),
        "bm25s": {"ndcg@10": mean_ndcg(judged, lexical)},
    }
    with tempfile.TemporaryDirectory() as scratch:
        store = FaissStore(Path(scratch, "papers.faiss"))
        papers = Collection.create(store, ContextualEmbedder.from_corpus(list(corpus.texts), model=MODEL))
        papers.add(corpus.texts, ids=corpus.ids)
        export_collection(store, Path(scratch, "papers.parquet"))
        edge = QdrantEdgeStore(Path(scratch, "papers.qdrant"))
        import_collection(Path(scratch, "papers.parquet"), edge)
        for name, one in (("faiss", papers), ("edge", Collection(edge, papers.embedder))):
            ways = {by: one.searcher(by, candidates=candidates) for by in ("vectors", "bm25", "hybrid")}
            found[name] = {way: asked(judged, searcher) for way, searcher in ways.items()}
            one.close()
    return found


def main() -> None:
    """Write the table, print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "tables/hybrid.csv")
    options = parser.parse_args()
    results = [measure(folder, options.queries, options.candidates) for folder in options.folders]
    with options.output.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(HEAD)
        for one in results:
            cells = [one["faiss"][way] for way in ("vectors", "bm25", "hybrid")]
            cells += [*(one["edge"][way] for way in ("bm25", "hybrid")), one["bm25s"]]
            writer.writerow(
                [one["set"], one["documents"], one["queries"], *(f"{cell['ndcg@10']:.1f}" for cell in cells)]
            )
    for one in results:
        spent = "; ".join(
            f"{store} " + ", ".join(f"{way} {one[store][way]['ms']:.1f}" for way in one[store])
            for store in ("faiss", "edge")
        )
        print(f"ms a query in {one['set']}: {spent}")


if __name__ == "__main__":
    main()

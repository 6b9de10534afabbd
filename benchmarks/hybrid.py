"""NDCG@10 through a Collection: by vectors, by words, and by both, in FaissStore and in QdrantEdgeStore.

Beside them BM25 as `cde-rag evaluate` has it (bm25s, Snowball's stems), and milliseconds a query. Run with:
python benchmarks/hybrid.py FOLDER… [--queries 300] [--candidates 100] [--json], folders being in the layout of BEIR.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag import Collection, ContextualEmbedder, Searcher
from cde_rag.evaluation.beir import RetrievalSet, read_beir
from cde_rag.evaluation.bm25 import BM25
from cde_rag.evaluation.metrics import ndcg
from cde_rag.parquet import export_collection, import_collection
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore

K = 10


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
        papers = Collection.create(store, ContextualEmbedder.from_corpus(list(corpus.texts)))
        papers.add(corpus.texts, ids=corpus.ids)
        export_collection(store, Path(scratch, "papers.parquet"))
        edge = QdrantEdgeStore(Path(scratch, "papers.qdrant"))
        import_collection(Path(scratch, "papers.parquet"), edge)
        for name, one in (("faiss", papers), ("edge", Collection(edge, papers.embedder))):
            ways = {"vectors": one, "words": one.lexical(), "hybrid": one.hybrid(candidates=candidates)}
            found[name] = {way: asked(judged, searcher) for way, searcher in ways.items()}
            one.close()
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(folder, options.queries, options.candidates) for folder in options.folders]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print("| set | documents | queries | vectors | words (FAISS) | hybrid | words (points) | hybrid | bm25s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for one in results:
        cells = [one["faiss"][way] for way in ("vectors", "words", "hybrid")]
        cells += [one["edge"][way] for way in ("words", "hybrid")]
        scores = " | ".join(f"{cell['ndcg@10']:.1f}" for cell in [*cells, one["bm25s"]])
        print(f"| {one['set']} | {one['documents']:,} | {one['queries']} | {scores} |")
    for one in results:
        spent = "; ".join(
            f"{store} " + ", ".join(f"{way} {one[store][way]['ms']:.1f}" for way in one[store])
            for store in ("faiss", "edge")
        )
        print(f"\nms a query in {one['set']}: {spent}")


if __name__ == "__main__":
    main()

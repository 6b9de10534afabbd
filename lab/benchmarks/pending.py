"""Searching a collection before its vectors are made: time to the first answer, and quality by budget and by share.

For each BEIR set of the command: seconds until another process gets a first hybrid answer, as a share of the seconds of
embedding all; then NDCG@10 and MRR@10 as shares of those of the finished collection, for searches with a budget that
each meet a collection without any vector, and for searches without one while the collection is filled. A query's time
is the mean of its search. Times are of this machine alone: compare shares.

Run with: python lab/benchmarks/pending.py FOLDER… [--split dev] [--passages 2000] [--queries 100] [--model cde-mini-1]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from cde_rag import Collection, ContextualEmbedder
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError
from cde_rag.evaluation.beir import RetrievalSet, read_beir
from cde_rag.evaluation.metrics import ndcg, reciprocal_rank
from cde_rag.stores.engine import Result
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreState

BUDGETS_MS = (0, 250, 500, 1000, 3000)
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ANSWER = "import sys; from cde_rag import Collection; print(Collection.open(sys.argv[1]).search(sys.argv[2])[0].id)"


class UnwrittenStore(FaissStore):
    """A store whose searches write no vectors back, so that each meets it as it was made."""

    def write(self, work: Callable[[StoreState], Result], *, wait: bool = True) -> Result:
        """Refuse writes that are not waited for."""
        if not wait:
            raise StoreError("Vectors of a search are not kept in this measurement.")
        return super().write(work)


def main() -> None:
    """Print the figures of each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--split", default="test", help="name of the judgments' file")
    parser.add_argument("--passages", type=int, default=10_000, help="at most so many, judged ones first")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--model", default="cde-mini-1")
    options = parser.parse_args()
    for folder in options.folders:
        judged = read_beir(folder, split=options.split).sample_queries(options.queries)
        for line in measured(judged, options.passages, options.model):
            print(f"{folder.name}: {line}", flush=True)


def measured(judged: RetrievalSet, passages: int, model: str) -> Iterator[str]:
    """Yield the lines of one set."""
    wanted = {document for grades in judged.judgments for document in grades}
    order = sorted(range(len(judged.corpus.ids)), key=lambda place: judged.corpus.ids[place] not in wanted)
    found = {judged.corpus.ids[place]: judged.corpus.texts[place] for place in order[:passages]}
    ids, texts = list(found), list(found.values())
    with tempfile.TemporaryDirectory() as scratch:
        bare, filled = Path(scratch, "bare.faiss"), Path(scratch, "filled.faiss")
        started = time.perf_counter()
        embedder = ContextualEmbedder.from_corpus(texts, model=model)
        context_s = time.perf_counter() - started
        with Collection.create(bare, embedder) as made:
            made.add(texts, ids=ids, embed="later")
        written_s = time.perf_counter() - started
        shutil.copytree(bare, filled)
        subprocess.run([sys.executable, "-c", ANSWER, bare, judged.queries[0]], check=True, capture_output=True)
        answer_s = time.perf_counter() - started
        shutil.rmtree(bare)
        shutil.copytree(filled, bare)
        yield f"{len(ids):,} passages: context {context_s:.1f} s, searchable {written_s:.1f} s, answer {answer_s:.1f} s"
        by_share, embedding_s = [], 0.0
        with Collection(UnwrittenStore(filled), embedder) as collection:
            for share in SHARES:
                due = round(share * len(ids)) - (len(ids) - collection.pending)
                started = time.perf_counter()
                if due:
                    collection.embed_pending(limit=due)
                embedding_s += time.perf_counter() - started
                by_share.append(scores(judged, [collection] * len(judged.queries), budget_ms=0))
        yield f"embedding all {embedding_s:.1f} s; first answer after {answer_s / (context_s + embedding_s):.1%} of all"
        whole = by_share[-1]
        for share, row in zip(SHARES, by_share, strict=True):
            yield f"{share:.0%} filled, no budget: {described(row, whole)}"
        for budget in BUDGETS_MS:
            row = scores(judged, unfilled(bare, embedder, len(judged.queries)), budget_ms=budget)
            yield f"nothing filled, {budget} ms: {described(row, whole)}"


def unfilled(place: Path, embedder: Embedder, times: int) -> Iterator[Collection]:
    """Yield a collection without vectors for each query, which remembers none of another one."""
    for _ in range(times):
        with Collection(UnwrittenStore(place), embedder) as collection:
            yield collection


def scores(
    judged: RetrievalSet, collections: Sequence[Collection] | Iterator[Collection], *, budget_ms: int
) -> tuple[float, float, float]:
    """Return the mean NDCG@10 and MRR@10, and the mean seconds of a search."""
    rows: list[tuple[float, float, float]] = []
    for query, grades, collection in zip(judged.queries, judged.judgments, collections, strict=True):
        started = time.perf_counter()
        ranking = [hit.id for hit in collection.searcher(embed_budget_ms=budget_ms).search(query)]
        rows.append((ndcg(ranking, grades, 10), reciprocal_rank(ranking, grades, 10), time.perf_counter() - started))
    quality, rank, seconds = np.mean(rows, axis=0)
    return float(quality), float(rank), float(seconds)


def described(row: tuple[float, float, float], whole: tuple[float, float, float]) -> str:
    """Return figures with their shares of the finished collection's."""
    (quality, rank, seconds), (best_quality, best_rank, _) = row, whole
    return (
        f"NDCG@10 {100 * quality:.1f} ({quality / max(best_quality, 1e-9):.1%}), MRR@10 {100 * rank:.1f} "
        f"({rank / max(best_rank, 1e-9):.1%}), {1000 * seconds:.0f} ms a query"
    )


if __name__ == "__main__":
    main()

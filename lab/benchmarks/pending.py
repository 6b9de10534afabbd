"""Searching a collection before its vectors are made: time to the first answer, and quality by budget and by share.

Each folder of the command is a set in the layout of BEIR, or has pages and judged questions. Seconds until another
process gets a first hybrid answer, as a share of the seconds of embedding all; then NDCG@10 and MRR@10 while the
collection is filled, without a budget and with the default one, and of a collection without any vector, for each
budget. Each search with a budget meets a collection that no search before has given a vector. Of questions, passages
that hold an answer count. A query's time is the mean of its search. Times are of this machine alone: compare shares.

Run with: python lab/benchmarks/pending.py FOLDER… [--passages 2000] [--queries 60] [--output F.csv] [--plot F.svg]
"""

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cde_rag import Collection, ContextualEmbedder, Record
from cde_rag.embedders.contextual import as_model
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError, require
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.judged_questions import QUESTIONS, existing
from cde_rag.evaluation.metrics import ndcg, reciprocal_rank
from cde_rag.evaluation.own_questions import OwnCorpus, find_answers
from cde_rag.evaluation.question_folder import Site, read_corpus, unpack
from cde_rag.models.model import Model
from cde_rag.readers import PARENT_KEY, RecordReader
from cde_rag.records import embedded_text
from cde_rag.stores.engine import Result
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreState

BUDGETS_MS: Final = (0, 500, 1000, 3000)
DEFAULT_MS: Final = 1000  # budget of a collection
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ANSWER: Final = (
    "import sys; from cde_rag import Collection; print(Collection.open(sys.argv[1]).search(sys.argv[2])[0].id)"
)


class UnwrittenStore(FaissStore):
    """A store whose searches write no vectors back, so that each meets it as it was made."""

    def write(self, work: Callable[[StoreState], Result], *, wait: bool = True) -> Result:
        """Refuse writes that are not waited for."""
        if not wait:
            raise StoreError("Vectors of a search are not kept in this measurement.")
        return super().write(work)


class JudgedRecords(NamedTuple):
    """Records, and queries with the grades of the records that answer them.

    Attributes:
        records: In the order in which they are filled.
        queries: Texts, each with an answer among the records.
        judgments: Grades by record id for each query.
        parent_key: Of the collection.
    """

    records: Sequence[Record]
    queries: Sequence[str]
    judgments: Sequence[Mapping[str, int]]
    parent_key: str | None


class FillingRow(NamedTuple):
    """Mean scores of the queries in one state of a collection: fractions, and the seconds of a search."""

    set: str
    passages: int
    filled: float
    budget_ms: int
    ndcg: float
    mrr: float
    seconds: float


def main() -> None:
    """Print the figures of each set, and write them where the options name files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--split", default="test", help="name of the judgments' file of a set in BEIR's layout")
    parser.add_argument("--passages", type=int, default=10_000, help="maximum; those with answers are kept first")
    parser.add_argument("--queries", type=int, default=200, help="maximum")
    parser.add_argument("--model", default="cde-mini-1")
    parser.add_argument("--output", type=Path, help="file for the rows")
    parser.add_argument("--plot", type=Path, help="file for the curves of the means over sets")
    options = parser.parse_args()
    model, rows = as_model(options.model), list[FillingRow]()
    for folder in options.folders:
        of_questions = existing(folder, QUESTIONS) is not None
        read = partial(answered, model=model) if of_questions else partial(retrieval_set, split=options.split)
        rows += measured(folder.name, read(folder, options.passages, options.queries), model)
    if options.output is not None:
        with options.output.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(FillingRow._fields)
            table.writerows([*row[:4], *(f"{value:.4f}" for value in row[4:])] for row in rows)
    if options.plot is not None:
        plot(rows, options.plot)


def retrieval_set(folder: Path, limit: int, queries: int, *, split: str) -> JudgedRecords:
    """Read a set in the layout of BEIR; its records have no parents."""
    judged = read_beir(folder, split=split).sample_queries(queries)
    wanted = {document for grades in judged.judgments for document in grades}
    texts = dict(zip(judged.corpus.ids, judged.corpus.texts, strict=True))
    kept = set(sorted(texts, key=lambda id_: id_ not in wanted)[:limit])
    records = [Record(id_, text) for id_, text in texts.items() if id_ in kept]  # answers are not filled first
    return JudgedRecords(records, judged.queries, judged.judgments, None)


def answered(folder: Path, limit: int, queries: int, *, model: Model) -> JudgedRecords:
    """Read pages with judged questions, cut as `cde-rag index` does; pages stay complete, those with answers first."""
    corpus = read_corpus(folder, Site(folder.name))
    asked = corpus.questions[:queries]
    wanted = {answer.page for one in asked for answer in one.answers}
    with tempfile.TemporaryDirectory() as scratch:
        unpack(corpus.pages, Path(scratch, "pages"))
        reader = RecordReader(Path(scratch, "pages"))
        reader.count_with(partial(model.count_tokens, windows=False), model.identity.max_length)
        of_pages = dict[str, list[Record]]()
        for record in reader:
            of_pages.setdefault(str(record.metadata[PARENT_KEY]).partition("/")[2], []).append(record)
    kept, size = set[str](), 0
    for page in sorted(of_pages, key=lambda page: page not in wanted):
        if size + len(of_pages[page]) <= limit:
            kept.add(page)
            size += len(of_pages[page])
    records = [record for page, some in of_pages.items() if page in kept for record in some]
    found = find_answers(asked, OwnCorpus.of(records, parent_key=PARENT_KEY), name=folder.name).queries
    return JudgedRecords(records, found.queries, found.judgments, PARENT_KEY)


def measured(name: str, judged: JudgedRecords, model: Model) -> Iterator[FillingRow]:
    """Print the times of one set, and yield its rows, which are printed, too."""
    records, count = judged.records, len(judged.records)
    with tempfile.TemporaryDirectory() as scratch:
        place, searched = Path(scratch, "filled.faiss"), Path(scratch, "searched.faiss")
        started = time.perf_counter()
        embedder = ContextualEmbedder.from_corpus(map(embedded_text, records), model=model)
        context_s = time.perf_counter() - started
        parent_key = judged.parent_key if embedder.max_siblings else None
        with Collection.create(place, embedder, parent_key=parent_key) as made:
            made.add_records(records, embed="later")
        written_s = time.perf_counter() - started
        shutil.copytree(place, searched)
        subprocess.run([sys.executable, "-c", ANSWER, searched, judged.queries[0]], check=True, capture_output=True)
        answer_s = time.perf_counter() - started
        embedding_s = 0.0
        print(f"{name}: {count:,} passages, {len(judged.queries)} queries", flush=True)
        for share in SHARES:
            with Collection(UnwrittenStore(place), embedder) as collection:
                due = round(share * count) - (count - collection.pending)
                started = time.perf_counter()
                if due:
                    collection.embed_pending(limit=due)
                embedding_s += time.perf_counter() - started
            with Collection(UnwrittenStore(place), embedder) as collection:
                row = scores(judged, [collection] * len(judged.queries), budget_ms=0)
            yield described(FillingRow(name, count, share, 0, *row))
            for budget in [each for each in BUDGETS_MS if each and (each == DEFAULT_MS or not share) and share < 1]:
                row = scores(judged, unsearched(place, embedder, len(judged.queries)), budget_ms=budget)
                yield described(FillingRow(name, count, share, budget, *row))
        print(f"  context {context_s:.1f} s, searchable {written_s:.1f} s, answer {answer_s:.1f} s", end=", ")
        print(f"all {context_s + embedding_s:.1f} s; answer after {answer_s / (context_s + embedding_s):.1%} of all")


def unsearched(place: Path, embedder: Embedder, times: int) -> Iterator[Collection]:
    """Yield the collection for each query, without memory of the searches before."""
    for _ in range(times):
        with Collection(UnwrittenStore(place), embedder) as collection:
            yield collection


def scores(judged: JudgedRecords, collections: Iterable[Collection], *, budget_ms: int) -> tuple[float, float, float]:
    """Return the mean NDCG@10 and MRR@10, and the mean seconds of a search."""
    rows = list[tuple[float, float, float]]()
    for query, grades, collection in zip(judged.queries, judged.judgments, collections, strict=True):
        started = time.perf_counter()
        ranking = [hit.id for hit in collection.searcher(embed_budget_ms=budget_ms).search(query)]
        rows.append((ndcg(ranking, grades, 10), reciprocal_rank(ranking, grades, 10), time.perf_counter() - started))
    quality, rank, seconds = np.mean(rows, axis=0)
    return float(quality), float(rank), float(seconds)


def described(row: FillingRow) -> FillingRow:
    """Print a row, and return it."""
    given = f"  {row.filled:4.0%} filled, {row.budget_ms / 1000:g} s:"
    found = f"NDCG@10 {100 * row.ndcg:.1f}, MRR@10 {100 * row.mrr:.1f}, {row.seconds:.2f} s a query"
    print(f"{given:22} {found}", flush=True)
    return row


def curve(rows: Sequence[FillingRow], column: str, **fixed: float) -> tuple[list[float], list[float]]:
    """Return the values of a column in rows with fixed values of another, and the mean MRR@10 × 100 over sets."""
    kept = [row for row in rows if all(getattr(row, name) == value for name, value in fixed.items())]
    values = sorted({float(getattr(row, column)) for row in kept})
    means = [100 * np.mean([row.mrr for row in kept if getattr(row, column) == value]) for value in values]
    return values, [float(mean) for mean in means]


def plot(rows: Sequence[FillingRow], path: Path) -> None:
    """Draw MRR@10 by the share that is filled, and by the budget of a search in a collection without vectors."""
    figure: Any = require("matplotlib.figure", "train").Figure(figsize=(8, 3), layout="constrained")
    by_share, by_budget = figure.subplots(1, 2, sharey=True)
    complete = [row._replace(budget_ms=DEFAULT_MS) for row in rows if row.filled == 1]  # nothing is left to make
    for budget, marker in ((0, "x--"), (DEFAULT_MS, "o-")):
        shares, means = curve([*rows, *complete], "filled", budget_ms=budget)
        by_share.plot([100 * share for share in shares], means, marker, label=f"{budget / 1000:g} s a search")
    budgets, means = curve(rows, "budget_ms", filled=0.0)
    by_budget.plot([budget / 1000 for budget in budgets], means, "o-")
    by_share.set(xlabel="% of the vectors made", ylabel="MRR@10 × 100", ylim=(0, None))
    by_budget.set(xlabel="budget of a search, s; no vectors made before")
    by_share.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, facecolor="white")


if __name__ == "__main__":
    main()

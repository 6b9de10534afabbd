"""Searching a collection before its vectors are made: time to the first answer, and quality by budget and by share.

Each folder of the command is a set in the layout of BEIR, whose parents are titles, or has pages and judged questions.
Seconds until another process gets a first hybrid answer, as a share of the seconds of embedding all; then NDCG@10 and
MRR@10 while the collection is filled, without a budget and with the default one, and of a collection without any
vector, for each budget. Each query meets a copy that no search before has given a vector, opened and searched once in
vain, so that its time is that of a process at work. Of questions, passages that hold an answer count. The last lines
compare with the filled collection: NDCG@10 of sets, MRR@10 of questions, which the plot draws, too. Budgets are seconds
of this machine: on another one, compare the vectors made. On a busy machine --cpu-seconds lets budgets and times be
those of the processor, all threads together.

Run with: python -m lab.benchmarks.pending FOLDER… [--passages 2000] [--queries 60] [--output F.csv] [--plot F.svg]
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from unittest import mock

import numpy as np

from cde_rag import CDEModel, Collection, ContextualEmbedder, Record
from cde_rag.embedders.contextual import as_model
from cde_rag.errors import StoreError, require
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.judged_questions import QUESTIONS, existing
from cde_rag.evaluation.metrics import ndcg, reciprocal_rank
from cde_rag.evaluation.own_questions import OwnCorpus, find_answers
from cde_rag.evaluation.question_folder import Site, read_corpus, unpack, unpacked_path
from cde_rag.indexing import pending
from cde_rag.models.model import Model
from cde_rag.models.token_batches import KeptVectors
from cde_rag.readers import PARENT_KEY, RecordReader
from cde_rag.records import Hits, embedded_text
from cde_rag.stores.engine import Result
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreState
from lab.experiments.result_tables import write_table

Clock: TypeAlias = Callable[[], float]  # seconds
Kind: TypeAlias = Literal["sets", "questions"]
GOALS: Final[Mapping[Kind, tuple[str, float]]] = {"sets": ("ndcg", 0.98), "questions": ("mrr", 0.85)}  # of a filled one
NAMES: Final = {"ndcg": "NDCG@10", "mrr": "MRR@10"}
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
        kind: Sets have NDCG@10, questions MRR@10.
        records: In the order in which they are filled.
        queries: Texts, each with an answer among the records.
        judgments: Grades by record id for each query.
        parent_key: Of the collection.
    """

    kind: Kind
    records: Sequence[Record]
    queries: Sequence[str]
    judgments: Sequence[Mapping[str, int]]
    parent_key: str | None


class FillingRow(NamedTuple):
    """Mean scores of the queries in one state of a collection: fractions, vectors made by a search, and its seconds."""

    set: str
    kind: Kind
    passages: int
    queries: int
    filled: float
    budget_ms: int
    ndcg: float
    mrr: float
    made: float
    seconds: float


def main() -> None:
    """Print the figures of each set, and write them where the options name files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--split", default="test", help="name of the judgments' file of a set in BEIR's layout")
    parser.add_argument("--passages", type=int, default=10_000, help="maximum; those with answers are kept first")
    parser.add_argument("--queries", type=int, default=200, help="maximum")
    parser.add_argument("--model", default="cde-mini")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="filled, from 0 to 1, rising")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS_MS, help="milliseconds of a search")
    parser.add_argument("--output", type=Path, help="file for the rows")
    parser.add_argument("--plot", type=Path, help="file for the curves of the means over sets")
    parser.add_argument("--cpu-seconds", action="store_true", help="budgets and times of the processor, not the clock")
    options = parser.parse_args()
    model, rows = as_model(options.model), list[FillingRow]()
    clock = time.process_time if options.cpu_seconds else time.perf_counter
    for folder in options.folders:
        of_questions = existing(folder, QUESTIONS) is not None
        read = partial(answered, model=model) if of_questions else partial(retrieval_set, split=options.split)
        judged = read(folder, options.passages, options.queries)
        busy = mock.patch.object(pending, "time", SimpleNamespace(monotonic=clock))  # whose clock ends a budget
        with busy if options.cpu_seconds else nullcontext():
            rows += measured(folder.name, judged, model, clock, shares=options.shares, budgets=options.budgets)
        if options.output is not None:
            write_table(options.output, rows)  # after each: a command that is stopped keeps the others
    for kind, (metric, goal) in GOALS.items():
        for budget, kept in zip(*curve(rows, kind, "budget_ms", filled=0.0), strict=True):
            count = len({row.set for row in rows if row.kind == kind})
            print(f"{count} {kind}, no vectors, {budget / 1000:g} s: {kept:.1f} % of the filled collection's ", end="")
            print(f"{NAMES[metric]} (goal {goal:.0%})")
    if options.plot is not None:
        plot(rows, options.plot)


def retrieval_set(folder: Path, limit: int, queries: int, *, split: str) -> JudgedRecords:
    """Read a set in the layout of BEIR; the names of parents are titles, and its records have no parents."""
    judged = read_beir(folder, split=split).sample_queries(queries)
    wanted = {document for grades in judged.judgments for document in grades}
    corpus = judged.corpus
    titles = corpus.parents or [None] * len(corpus.ids)
    texts = {id_: (text, title or "") for id_, text, title in zip(corpus.ids, corpus.texts, titles, strict=True)}
    kept = set(sorted(texts, key=lambda id_: id_ not in wanted)[:limit])
    records = [Record(id_, *each) for id_, each in texts.items() if id_ in kept]  # answers are not filled first
    return JudgedRecords("sets", records, judged.queries, judged.judgments, None)


def answered(folder: Path, limit: int, queries: int, *, model: Model) -> JudgedRecords:
    """Read pages with judged questions, cut as `cde-rag index` does; pages stay complete, those with answers first."""
    corpus = read_corpus(folder, Site(folder.name))
    asked = [
        replace(one, answers=tuple(replace(answer, page=unpacked_path(answer.page)) for answer in one.answers))
        for one in sorted(corpus.questions, key=lambda one: hashlib.sha256(one.id.encode()).digest())[:queries]
    ]
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
    return JudgedRecords("questions", records, found.queries, found.judgments, PARENT_KEY)


def measured(
    name: str, judged: JudgedRecords, model: Model, clock: Clock, *, shares: Sequence[float], budgets: Sequence[int]
) -> Iterator[FillingRow]:
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
        for share in shares:
            due = round(share * count)
            with Collection(FaissStore(place), embedder) as collection:
                began = clock()
                if due > count - collection.pending:
                    collection.embed_pending(limit=due - (count - collection.pending))
                embedding_s += clock() - began
                if count - collection.pending != due:
                    raise StoreError(f"Expected {due} vectors, found {count - collection.pending}. Give rising shares.")
            for budget in budgets:
                if not share or not budget or (budget == DEFAULT_MS and share < 1):  # in a filled one nothing is left
                    row = scores(judged, unsearched(place, embedder, len(judged.queries)), clock, budget_ms=budget)
                    yield described(FillingRow(name, judged.kind, count, len(judged.queries), share, budget, *row))
        if clock is time.perf_counter:  # those of the other process are no seconds of this one's processor
            print(f"  context {context_s:.1f} s, searchable {written_s:.1f} s, answer {answer_s:.1f} s", end=", ")
            print(
                f"all {context_s + embedding_s:.1f} s; answer after {answer_s / (context_s + embedding_s):.1%} of all"
            )


def unsearched(place: Path, embedder: ContextualEmbedder, times: int) -> Iterator[Collection]:
    """Yield the collection for each query, opened, without memory of the searches before."""
    for _ in range(times):
        if isinstance(embedder.model, CDEModel):
            embedder.model.kept_siblings = KeptVectors()
        with Collection(UnwrittenStore(place), embedder) as collection:
            collection.searcher(embed_budget_ms=0).search("a search that opens the files")
            yield collection


def scores(
    judged: JudgedRecords, collections: Iterator[Collection], clock: Clock, *, budget_ms: int
) -> tuple[float, float, float, float]:
    """Return the mean NDCG@10 and MRR@10, and the mean of the vectors that a search makes, and of its seconds."""
    rows = list[tuple[float, float, float, float]]()
    for query, grades, collection in zip(judged.queries, judged.judgments, collections, strict=True):
        waiting, started = collection.pending, clock()
        hits = collection.searcher(embed_budget_ms=budget_ms).search(query)
        seconds = clock() - started
        if collection.pending != waiting:
            raise StoreError(f"Expected no vectors to be kept, found {waiting - collection.pending}.")
        ranking, made = [hit.id for hit in hits], waiting - Hits.of(hits, hits).pending
        rows.append((ndcg(ranking, grades, 10), reciprocal_rank(ranking, grades, 10), made, seconds))
    quality, rank, made, seconds = np.mean(rows, axis=0)
    return float(quality), float(rank), float(made), float(seconds)


def described(row: FillingRow) -> FillingRow:
    """Print a row, and return it."""
    given = f"  {row.filled:4.0%} filled, {row.budget_ms / 1000:g} s:"
    found = f"NDCG@10 {100 * row.ndcg:.1f}, MRR@10 {100 * row.mrr:.1f}"
    print(f"{given:22} {found}; a query makes {row.made:.1f} vectors in {row.seconds:.2f} s", flush=True)
    return row


def curve(rows: Sequence[FillingRow], kind: Kind, column: str, **fixed: float) -> tuple[list[float], list[float]]:
    """Return the values of a column in rows with fixed values of another, and what is kept there of the score.

    Scores are means over the sets of one kind, in per cent of those of the filled collections; without these none.
    """
    metric = GOALS[kind][0]
    filled = [getattr(row, metric) for row in rows if row.kind == kind and row.filled == 1]
    kept = [row for row in rows if row.kind == kind and all(getattr(row, name) == fixed[name] for name in fixed)]
    values = sorted({float(getattr(row, column)) for row in kept}) if filled else []
    means = [np.mean([getattr(row, metric) for row in kept if getattr(row, column) == value]) for value in values]
    return values, [float(100 * mean / np.mean(filled)) for mean in means]


def plot(rows: Sequence[FillingRow], path: Path) -> None:
    """Draw what is kept of the score by the share that is filled, and by the budget in a collection without vectors."""
    figure: Any = require("matplotlib.figure", "train").Figure(figsize=(8, 3.2), layout="constrained")
    by_share, by_budget = figure.subplots(1, 2, sharey=True)
    complete = [row._replace(budget_ms=DEFAULT_MS) for row in rows if row.filled == 1]  # nothing is left to make
    for kind, colour in (("sets", "tab:blue"), ("questions", "tab:orange")):
        metric, goal = GOALS[kind]
        if not any(row.kind == kind for row in rows):
            continue
        for budget, style in ((0, "x--"), (DEFAULT_MS, "o-")):
            shares, kept = curve([*rows, *complete], kind, "filled", budget_ms=budget)
            name = f"{NAMES[metric]}, {kind}, {budget / 1000:g} s a search"
            by_share.plot([100 * share for share in shares], kept, style, color=colour, label=name)
        budgets, kept = curve(rows, kind, "budget_ms", filled=0.0)
        by_budget.plot([budget / 1000 for budget in budgets], kept, "o-", color=colour)
        by_budget.axhline(100 * goal, color=colour, linestyle=":", label=f"goal of {kind}: {goal:.0%} in 3 s")
    by_share.set(xlabel="% of the vectors made", ylabel="% of the filled collection's score", ylim=(0, 105))
    by_budget.set(xlabel="budget of a search, s; no vectors made before")
    for axes in (by_share, by_budget):
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, facecolor="white")


if __name__ == "__main__":
    main()

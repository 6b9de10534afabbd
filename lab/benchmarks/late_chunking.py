"""Late chunking next to siblings and to passages alone, NDCG@10 in each corpus's own context with cde-mini.

Reported, not tuned: nothing is chosen by it. Sets are cut to whole documents, at most 400 passages, and 150 queries.

Run with: python -m lab.benchmarks.late_chunking --data FOLDER [--output FILE.csv]
"""

import argparse
import csv
import gzip
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random

import numpy as np
from jaxtyping import Float32

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.errors import CDEWarning
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.readers.splitting import split
from lab.benchmarks.headers import SITES, alone
from lab.benchmarks.windows import blocks, scores

PASSAGES, QUERIES, CHARACTERS, SHOWN = 400, 150, 600, 40_000
WAYS = ("alone", "siblings", "late chunking")


def main() -> None:
    """Print one line for each set and way, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CDEWarning)
    model = CDEModel.from_pretrained(runtime="torch")
    rows, pairs = list[tuple[object, ...]](), dict[str, list[PairedQueries]]()
    for name, data in drawn(options.data):
        embedder = ContextualEmbedder.from_corpus(data.corpus.texts, model=model)
        queries, owners = embedder.embed_queries(data.queries), range(len(data.corpus.texts))
        found = {way: scores(data, queries @ each.T, owners) for way, each in vectors(embedder, data.corpus)}
        for way in WAYS:
            pair = PairedQueries(found[way] - found["siblings"], blocks(data))
            pairs.setdefault(way, []).append(pair)
            figures = row(pair)
            rows.append((name, len(data.corpus.texts), len(data.queries), way, 100 * found[way].mean(), *figures))
            print(
                f"{name:34} {way:14} {rows[-1][4]:5.1f} {figures[0]:+5.1f} ({figures[1]:+.1f} … {figures[2]:+.1f})",
                flush=True,
            )
    for way in ("alone", "late chunking"):
        gain = compare(pairs[way])
        low, high = gain.queries
        print(f"mean, {way} less siblings: {100 * gain.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")
    if options.output is not None:
        with options.output.open("w", newline="") as file:
            head = ("set", "passages", "queries", "way", "ndcg@10", "gain over siblings", "low", "high")
            rounded = [[round(each, 2) if isinstance(each, float) else each for each in one] for one in rows]
            csv.writer(file, lineterminator="\n").writerows([head, *rounded])


def row(pair: PairedQueries) -> tuple[float, float, float]:
    """Return a gain and the ends of its 95 % interval, times 100."""
    gain = compare([pair])
    low, high = gain.queries
    return 100 * float(gain.mean), 100 * float(low), 100 * float(high)


def drawn(folder: Path) -> Iterator[tuple[str, RetrievalSet]]:
    """Yield the sets by name."""
    for name in SITES:
        site = read_beir(folder / name, parent_key="parent")
        yield f"{name}, page and heading", cut(site)
        yield f"{name}, heading", cut(alone(site))
    code = read_beir(folder / "anthropic_codebase")
    files = tuple(name.rpartition("_")[0] for name in code.corpus.ids)
    yield "anthropic_codebase", cut(replace(code, corpus=replace(code.corpus, parents=files)))
    yield "chunking_eval", cut(chunked(folder / "chunking_eval"))


def chunked(folder: Path) -> RetrievalSet:
    """Return the beginnings of five long documents in passages; right are those that overlap a reference."""
    texts, ids, parents, spans = list[str](), list[str](), list[str](), dict[str, tuple[str, int, int]]()
    for each in _lines(folder / "corpora.jsonl.gz"):
        for start, end in split(each["text"][:SHOWN], CHARACTERS):
            ids.append(f"{each['corpus_id']}-{start}")
            texts.append(each["text"][start:end])
            parents.append(each["corpus_id"])
            spans[ids[-1]] = (each["corpus_id"], start, end)
    questions, judgments = list[str](), list[dict[str, int]]()
    for each in _lines(folder / "questions.jsonl.gz"):
        right = {
            name: 1
            for name, (corpus, start, end) in spans.items()
            for reference in each["references"]
            if corpus == each["corpus_id"] and start < reference["end_index"] and reference["start_index"] < end
        }
        if right and all(reference["end_index"] <= SHOWN for reference in each["references"]):
            questions.append(each["question"])
            judgments.append(right)
    corpus = Corpus("chunking_eval", ids=tuple(ids), texts=tuple(texts), parents=tuple(parents))
    return RetrievalSet(
        corpus=corpus,
        query_ids=tuple(map(str, range(len(questions)))),
        queries=tuple(questions),
        judgments=tuple(judgments),
    )


def _lines(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def cut(data: RetrievalSet) -> RetrievalSet:
    """Return the set with some of its documents, drawn by chance, whose passages stand one after another."""
    parents = data.corpus.parents or ()
    groups = [
        list(places)
        for _, places in groupby(
            sorted(range(len(parents)), key=lambda place: str(parents[place])), key=lambda place: parents[place]
        )
    ]
    Random(0).shuffle(groups)
    kept: list[int] = []
    for group in groups:
        if len(kept) + len(group) <= PASSAGES or not kept:
            kept += group
    ids = {data.corpus.ids[place] for place in kept}
    corpus = replace(
        data.corpus,
        ids=tuple(data.corpus.ids[place] for place in kept),
        texts=tuple(data.corpus.texts[place] for place in kept),
        parents=tuple(parents[place] for place in kept),
    )
    asked = [place for place, right in enumerate(data.judgments) if right.keys() <= ids]
    return replace(data, corpus=corpus).select(asked).sample_queries(QUERIES)


def vectors(embedder: ContextualEmbedder, corpus: Corpus) -> Iterator[tuple[str, Float32[np.ndarray, "passages dim"]]]:
    """Yield the vectors of each way."""
    parents: Sequence[str | None] = corpus.parents or ()
    yield "alone", embedder.embed_documents(corpus.texts)
    yield "siblings", embedder.embed_documents(corpus.texts, parents=parents)
    documents = [
        [corpus.texts[place] for place in places]
        for _, places in groupby(range(len(parents)), key=lambda place: parents[place])
    ]
    yield "late chunking", np.concatenate(embedder.embed_chunks(documents))


if __name__ == "__main__":
    main()

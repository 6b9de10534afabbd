"""What long texts find that are read in windows, cut, or split; plan and results in lab/pages/windows.md.

Run with: python -m lab.benchmarks.windows --data FOLDER [--output FILE.csv] [--model FOLDER]
"""

import argparse
import csv
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from jaxtyping import Float32

from cde_rag import CDEModel, ContextualEmbedder, PlainEmbedder
from cde_rag.errors import CDEWarning
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.models.windows import pool_windows
from cde_rag.readers.splitting import split
from lab.benchmarks.headers import SITES, alone

TEXTS, QUERIES, CHARACTERS, OVERLAP, TOKENS = 300, 200, 600, 64, 256
DECIDING, TEST = ("financebench_evidence",), ("covidqa_articles",)
WAYS = ("cut", "windows", "overlapping windows", "split")


def main() -> None:
    """Print one line for each set, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--model", help="folder or name of a plain model, read to 256 tokens, in place of cde-mini")
    parser.add_argument("--test", action="store_true", help="ask the test set, once, after the choice")
    options = parser.parse_args()
    warnings.simplefilter("ignore", CDEWarning)
    plain = options.model and PlainEmbedder(options.model, max_length=TOKENS)
    model = None if plain else CDEModel.from_pretrained()
    last, long, embedded = (), 0, list[tuple[str, tuple[Float32[np.ndarray, "rows dim"], list[int]]]]()
    rows, pairs = list[tuple[object, ...]](), dict[str, list[PairedQueries]]()
    for name, data in drawn(options.data, TEST if options.test else DECIDING, () if options.test else SITES):
        embedder = plain or ContextualEmbedder.from_corpus(data.corpus.texts, model=model)
        queries = embedder.embed_queries(data.queries)
        if data.corpus.texts != last:  # a site is evaluated twice
            last, embedded = data.corpus.texts, list(vectors(embedder, data, options.model))
            long = int(embedder.embed_passages(last, None).truncated.sum())
        found = {way: scores(data, queries @ matrix.T, owners) for way, (matrix, owners) in embedded}
        for way in found:
            pair = PairedQueries(found[way] - found["cut"], blocks(data))
            pairs.setdefault(way, []).append(pair)
            gain = compare([pair])
            low, high = gain.queries
            rows.append((name, len(data.corpus.texts), long, way, round(100 * float(found[way].mean()), 2)))
            figures = f"{100 * gain.mean:+5.1f} ({100 * low:+.1f} … {100 * high:+.1f})"
            print(f"{name:36} {long:4}/{len(data.corpus.texts):4} {way:20} {rows[-1][-1]:6} {figures}", flush=True)
    for way in WAYS[1:]:
        if way not in pairs:
            continue
        gain = compare(pairs[way])
        low, high = gain.queries
        print(f"mean of {len(pairs[way])} sets: {way:20} {100 * gain.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")
    if options.output is not None:
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("set", "texts", "long", "way", "ndcg@10"), *rows])


def drawn(folder: Path, names: Sequence[str], sites: Sequence[str]) -> list[tuple[str, RetrievalSet]]:
    """Return the sets by name."""
    found = [(name, cut(read_beir(folder / name))) for name in names]
    for name in sites:
        site = read_beir(folder / name, parent_key="parent")
        found += [(f"{name}, page and heading", cut(pages(site))), (f"{name}, heading", cut(pages(alone(site))))]
    return [(name, data.sample_queries(QUERIES)) for name, data in found]


def pages(site: RetrievalSet) -> RetrievalSet:
    """Return a site whose documents are its pages."""
    parents = site.corpus.parents or ()
    texts: dict[str, list[str]] = {}
    for parent, text in zip(parents, site.corpus.texts, strict=True):
        texts.setdefault(str(parent), []).append(text)
    page_of = {name: str(parent) for name, parent in zip(site.corpus.ids, parents, strict=True)}
    corpus = replace(
        site.corpus, ids=tuple(texts), texts=tuple("\n\n".join(parts) for parts in texts.values()), parents=None
    )
    judgments = tuple({page_of[name]: grade for name, grade in right.items()} for right in site.judgments)
    return replace(site, corpus=corpus, judgments=judgments)


def cut(data: RetrievalSet) -> RetrievalSet:
    """Return the set with some of its documents, those that answer queries first drawn by chance."""
    places = list(range(len(data.corpus.ids)))
    Random(0).shuffle(places)
    kept = sorted(places[:TEXTS])
    ids = {data.corpus.ids[place] for place in kept}
    corpus: Corpus = replace(
        data.corpus,
        ids=tuple(data.corpus.ids[place] for place in kept),
        texts=tuple(data.corpus.texts[place] for place in kept),
        parents=None,
    )
    asked = [place for place, right in enumerate(data.judgments) if right.keys() <= ids]
    return replace(data, corpus=corpus).select(asked)


def vectors(
    embedder: ContextualEmbedder, data: RetrievalSet, model: str | None
) -> Iterator[tuple[str, tuple[Float32[np.ndarray, "rows dim"], list[int]]]]:
    """Yield the vectors of each way, each with the document that it belongs to; `model` is the plain one's."""
    texts = data.corpus.texts
    whole = list(range(len(texts)))
    yield "cut", (embedder.embed_passages(texts, None).vectors, whole)
    if embedder.context.identity.is_plain:
        windowed = PlainEmbedder(str(model), max_length=TOKENS, windows=True)
        yield "windows", (windowed.embed_passages(texts, None).vectors, whole)
    else:
        windowed = embedder.with_context(embedder.context.with_windows(windows=True))
        yield "windows", (windowed.embed_passages(texts, None).vectors, whole)
        pieces = [overlapping(embedder, text) for text in texts]
        flat = [piece for each in pieces for piece in each]
        lengths = [len(token.ids) for token in embedder.model.tokenize(flat)]
        starts = np.cumsum([0, *map(len, pieces[:-1])]).tolist()
        pooled = pool_windows(embedder.embed_passages(flat, None).vectors, lengths, starts)
        yield "overlapping windows", (pooled, whole)
    passages = [[text[start:end] for start, end in split(text, CHARACTERS)] for text in texts]
    owners = [row for row, each in enumerate(passages) for _ in each]
    yield "split", (embedder.embed_passages([passage for each in passages for passage in each], None).vectors, owners)


def blocks(data: RetrievalSet) -> np.ndarray:
    """Return a number for each query, the same for queries of one document."""
    numbers: dict[tuple[str, ...], int] = {}
    return np.asarray([numbers.setdefault(tuple(sorted(right)), len(numbers)) for right in data.judgments])


def overlapping(embedder: ContextualEmbedder, text: str) -> list[str]:
    """Cut a text into windows that the model reads completely, each with the last tokens of the one before."""
    limit, found, start = embedder.model.config.max_length, list[str](), 0
    while text[start:].strip():
        (reach,) = embedder.model.tokenizer.reach([text[start:]], limit)
        end = start + reach
        if end < len(text) and (space := text.rfind(" ", start + reach // 2, end)) > 0:
            end = space
        found.append(text[start:end])
        if end >= len(text):
            break
        start = end - OVERLAP * reach // limit
    return found


def scores(data: RetrievalSet, similar: Float32[np.ndarray, "queries rows"], owners: Sequence[int]) -> np.ndarray:
    """Return each query's NDCG@10; of several rows of a document the best counts."""
    best = np.full((len(similar), len(data.corpus.ids)), -np.inf, np.float32)
    np.maximum.at(best.T, np.asarray(owners), similar.T)
    found: list[float] = []
    for row, right in zip(best, data.judgments, strict=True):
        ranked = [data.corpus.ids[place] for place in np.argsort(-row, kind="stable")[:10]]
        found.append(ndcg(ranked, right, 10))
    return np.asarray(found)


if __name__ == "__main__":
    main()

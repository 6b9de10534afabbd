"""What the indexes of a FaissStore find, take and cost, on real texts embedded by the bundled model.

Run with: python lab/benchmarks/faiss_indexes.py recall TEXTS --cache FOLDER [--records 100000] [--json]
          python lab/benchmarks/faiss_indexes.py ndcg FOLDER… [--model NAME] [--json]

`recall`: TEXTS is a folder with */pairs.jsonl.gz (`query`, `document`). The vectors are kept in --cache, with which a
killed run goes on. Of the beginnings of these documents, the ten best by each index are compared with the exact ten,
under filters that keep shares of the records: drawn at random, or nearest to one of them. `ndcg`: NDCG@10 of folders in
the layout of BEIR.
"""

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from cde_rag import ContextualEmbedder, Record
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.metrics import ndcg
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore

CHARACTERS = 180
QUERIES = 300
TIMED = 40  # queries, each asked of two stores in turn
K = 10
MODEL = "cde-mini-0"  # of the figures in docs/guide/compression.md
CHUNK = 2000  # texts that are embedded and kept at once
SPACE = "0" * 64
SHARES = (0.6, 0.5, 0.1, 0.01, 0.001)
INDEXES = [("flat", None)] + [
    (index, quantization)
    for index in ("flat", "hnsw", "ivf")
    for quantization in (None, "int8", "binary", "prefix-128")
    if (index, quantization) != ("flat", None)
]


def pairs(folder: Path) -> list[tuple[str, str]]:
    """Beginnings of different documents, each with a query, in an order drawn at random."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*/pairs.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                pair = json.loads(line)
                text = " ".join(pair["document"].split())[:CHARACTERS]
                if len(text) > 20:
                    found.setdefault(text, pair["query"])
    drawn = list(found.items())
    random.Random(0).shuffle(drawn)
    return drawn


def embedded(folder: Path, cache: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of `count` documents, and of queries for others."""
    cache.mkdir(parents=True, exist_ok=True)
    done = [path for number in range(0, count, CHUNK) if (path := cache / f"{number // CHUNK:03}.npy").exists()]
    if len(done) < -(-count // CHUNK) or not (cache / "queries.npy").exists():
        drawn = pairs(folder)
        if len(drawn) < count + QUERIES:
            raise SystemExit(f"{folder}: expected {count + QUERIES} different documents, found {len(drawn)}.")
        embedder = ContextualEmbedder.from_corpus([text for text, _ in drawn[:count]], model=MODEL, seed=0)
        _keep(cache / "queries.npy", lambda: embedder.embed_queries([query for _, query in drawn[count:][:2000]]))
        for start in range(0, count, CHUNK):
            texts = [text for text, _ in drawn[start : min(start + CHUNK, count)]]
            _keep(cache / f"{start // CHUNK:03}.npy", lambda texts=texts: embedder.embed_documents(texts))
    vectors = np.concatenate([np.load(cache / f"{number // CHUNK:03}.npy") for number in range(0, count, CHUNK)])
    return vectors[:count], np.load(cache / "queries.npy")[:QUERIES]


def _keep(path: Path, make: Callable[[], np.ndarray]) -> None:
    if not path.exists():
        new = path.with_suffix(".new.npy")
        np.save(new, make())
        new.replace(path)


def filled(store: FaissStore, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Records for vectors; returns the fields that filters look at: a number for each record, each number once."""
    rows = len(vectors)
    fields = {
        "drawn": np.random.default_rng(1).permutation(rows),
        "near": np.argsort(np.argsort(-(vectors @ vectors[0]), kind="stable"), kind="stable"),
    }
    store.create(dim=vectors.shape[1], fingerprint=SPACE, context=b"", settings={})
    for start in range(0, rows, CHUNK):
        some = range(start, min(start + CHUNK, rows))
        batch = [
            Row(Record(str(place), "", metadata={name: int(field[place]) for name, field in fields.items()}), "")
            for place in some
        ]
        store.add(batch, vectors[start : start + CHUNK], fingerprint=SPACE)
    return fields


def filters(fields: dict[str, np.ndarray], rows: int) -> Iterator[tuple[str, dict[str, Any] | None, np.ndarray]]:
    """Each filter with its name and what it keeps."""
    yield "all", None, np.arange(rows)
    for name, field in fields.items():
        for share in SHARES:
            most = max(1, round(share * rows))
            yield f"{name} {share:.1%}", {name: {"lt": most}}, np.flatnonzero(field < most)


def exact(vectors: np.ndarray, queries: np.ndarray, kept: np.ndarray) -> list[set[str]]:
    """Ids of the best."""
    scores = queries @ vectors[kept].T
    best = np.argpartition(-scores, min(K, len(kept)) - 1, axis=1)[:, :K]
    return [{str(kept[place]) for place in line} for line in best]


def recall(folder: Path, cache: Path, records: int) -> dict[str, Any]:
    """For each index what it found, took and cost."""
    vectors, queries = embedded(folder, cache, records)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        plain = FaissStore(Path(scratch, "plain.faiss"), index="flat")
        fields = filled(plain, vectors)
        store = plain.copy_to(Path(scratch, "store.faiss"))
        truth = {name: (where, exact(vectors, queries, kept)) for name, where, kept in filters(fields, records)}
        for index, quantization in INDEXES:
            started = time.perf_counter()
            store.reindex(index=index, quantization=quantization)
            line: dict[str, Any] = {"index": index, "quantization": quantization}
            line["build_s"] = time.perf_counter() - started
            line["file_mb"] = sum(path.stat().st_size for path in store.folder.glob("index-*")) / 1e6
            line["recall"] = {}
            for name, (where, best) in truth.items():
                found = store.search(queries, K, fingerprint=SPACE, where=where)
                if any(len(hits) != len(wanted) for hits, wanted in zip(found, best, strict=True)):
                    raise AssertionError(f"{index}, {quantization}, {name}: fewer hits than there are")
                same = sum(len({hit.id for hit in hits} & wanted) for hits, wanted in zip(found, best, strict=True))
                line["recall"][name] = same / sum(map(len, best))
            line["time"] = {name: _ratio(store, plain, queries, truth[name][0]) for name in ("all", "drawn 10.0%")}
            lines.append(line)
            print(json.dumps(line), flush=True)
        plain.close()
        store.close()
    return {"records": records, "queries": len(queries), "indexes": lines}


def _ratio(store: FaissStore, plain: FaissStore, queries: np.ndarray, where: dict[str, Any] | None) -> dict[str, float]:
    """Median time of one query, and how often that goes into the time of the exact search beside it."""
    times: list[list[float]] = [[], []]
    for query in queries[:TIMED]:
        for place, one in enumerate((store, plain)):
            started = time.perf_counter()
            one.search(query[None], K, fingerprint=SPACE, where=where)
            times[place].append(time.perf_counter() - started)
    return {"ms": 1e3 * median(times[0]), "faster": median(two / one for one, two in zip(*times, strict=True))}


def quality(folders: list[Path], model: str) -> dict[str, Any]:
    """NDCG@10 by each index."""
    sets = {}
    for folder in folders:
        data = read_beir(folder).sample_queries(QUERIES)
        embedder = ContextualEmbedder.from_corpus(data.corpus.texts, model=model, seed=0)
        queries = embedder.embed_queries(list(data.queries))
        rows = [Row(Record(id_, text), "") for id_, text in zip(data.corpus.ids, data.corpus.texts, strict=True)]
        sets[folder.name] = found = {}
        with tempfile.TemporaryDirectory() as scratch:
            store = FaissStore(Path(scratch, "store.faiss"), index="flat")
            store.create(dim=embedder.dim, fingerprint=SPACE, context=b"", settings={})
            store.add(rows, embedder.embed_documents(list(data.corpus.texts)), fingerprint=SPACE)
            for index, quantization in INDEXES:
                store.reindex(index=index, quantization=quantization)
                hits = store.search(queries, K, fingerprint=SPACE)
                rankings = zip(hits, data.judgments, strict=True)
                values = [ndcg([hit.id for hit in one], judged, K) for one, judged in rankings]
                found[_name(index, quantization)] = float(np.mean(values))
            store.close()
    return sets


def _name(index: str, quantization: str | None) -> str:
    return index if quantization is None else f"{index}, {quantization}"


def print_recall(result: dict[str, Any]) -> None:
    """As two tables."""
    names = list(result["indexes"][0]["recall"])
    print(f"recall@{K} over {result['records']:,} records, {result['queries']} queries\n")
    print("| index | " + " | ".join(names) + " |")
    print("| --- |" + " --- |" * len(names))
    for line in result["indexes"]:
        found = " | ".join(f"{line['recall'][name]:.3f}" for name in names)
        print(f"| {_name(line['index'], line['quantization'])} | {found} |")
    print("\n| index | file, MB | built in, s | a query, ms | as fast as exact | filtered to a tenth |")
    print("| --- | --- | --- | --- | --- | --- |")
    for line in result["indexes"]:
        times = line["time"]["all"], line["time"]["drawn 10.0%"]
        figures = f"{line['file_mb']:.0f} | {line['build_s']:.0f} | {times[0]['ms']:.1f}"
        ratios = " | ".join(f"{time['faster']:.1f} ×" for time in times)
        print(f"| {_name(line['index'], line['quantization'])} | {figures} | {ratios} |")


def main() -> None:
    """Print tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["recall", "ndcg"])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--model", default=MODEL, help="of ndcg")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "recall":
        if len(options.folders) != 1 or options.cache is None:
            parser.error("recall: give one folder of texts, and --cache")
        result = recall(options.folders[0], options.cache, options.records)
    else:
        result = quality(options.folders, options.model)
    if options.json:
        print(json.dumps(result, indent=2))
    elif options.what == "recall":
        print_recall(result)
    else:
        print("| index | " + " | ".join(result) + " |")
        print("| --- |" + " --- |" * len(result))
        for index, quantization in INDEXES:
            name = _name(index, quantization)
            print(f"| {name} | " + " | ".join(f"{100 * found[name]:.2f}" for found in result.values()) + " |")


if __name__ == "__main__":
    main()

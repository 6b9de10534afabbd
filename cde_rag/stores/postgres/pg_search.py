"""Searches in SQL: by every vector, by an index, by words."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.base import Hit, Row
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition
from cde_rag.stores.postgres.pg_tables import RECORD, PgManifest, PgTables, condition, read_record
from cde_rag.stores.text_analysis import words_in

_K1, _B = 1.2, 0.75  # of BM25


def _hits(rows: Sequence[tuple[Any, ...]]) -> list[Hit]:
    return [Row(read_record(*row[:-1]), "").hit(float(row[-1])) for row in rows]


def exact(
    tables: PgTables,
    table: str,
    query: Float32[np.ndarray, " dim"],
    k: int,
    where: Filter | None,
) -> list[Hit]:
    """Compare a query with every vector of a table."""
    kept = condition(where)
    return _hits(
        tables.rows(
            f"SELECT {RECORD}, -near.distance FROM (SELECT place, vector <#> %s AS distance "  # noqa: S608
            f"FROM {table} WHERE {kept.sql} ORDER BY distance, place LIMIT %s) near "
            "JOIN records r USING (place) ORDER BY near.distance, place",
            *(query, *kept.parameters, k),
        )
    )


def approximate(
    tables: PgTables,
    table: str,
    manifest: PgManifest,
    query: Float32[np.ndarray, " dim"],
    k: int,
    where: Filter | None,
) -> list[Hit]:
    """Take candidates from the index of a table, and score them by their full vectors."""
    kept, candidates = condition(where), manifest.index.candidates(k)
    manifest.index.tune(tables.run, candidates)
    found = _hits(
        tables.rows(
            f"WITH near AS MATERIALIZED (SELECT place, vector FROM {table} WHERE {kept.sql} "  # noqa: S608
            f"ORDER BY {manifest.index.distance(manifest.dim)} LIMIT %s) "
            f"SELECT {RECORD}, -(near.vector <#> %s) AS score FROM near JOIN records r USING (place) "
            "ORDER BY score DESC, place LIMIT %s",
            *(*kept.parameters, query, candidates, query, k),
        )
    )
    return found if len(found) == k else exact(tables, table, query, k, where)  # a rare filter


def by_words(tables: PgTables, query: str, k: int, kept: Condition) -> list[Hit]:
    """Search by words with BM25; see `PgVectorStore`."""
    times = Counter(words_in(query))
    if not times:
        return []
    ((texts, words),) = tables.rows("SELECT texts, words FROM manifest")
    having = dict(tables.rows("SELECT term, count(*) FROM words WHERE term = ANY(%s) GROUP BY term", list(times)))
    weights = {
        term: count * math.log(1 + (texts - having[term] + 0.5) / (having[term] + 0.5))
        for term, count in times.items()
        if term in having
    }
    norm = f"{_K1 * (1 - _B)} + {_K1 * _B} * l.length / %s"
    return _hits(
        tables.rows(
            f"SELECT {RECORD}, best.score FROM (SELECT w.place, "  # noqa: S608
            f"sum(asked.weight * w.times * {_K1 + 1} / (w.times + {norm}) ORDER BY w.term) AS score "
            "FROM unnest(%s::text[], %s::float8[]) AS asked (term, weight) "
            'JOIN words w ON w.term = asked.term COLLATE "C" '
            f"JOIN records l ON l.place = w.place WHERE w.place IN (SELECT place FROM records WHERE {kept.sql}) "
            "GROUP BY w.place ORDER BY score DESC, w.place LIMIT %s) best "
            "JOIN records r ON r.place = best.place ORDER BY best.score DESC, best.place",
            *(words / max(1, texts), list(weights), list(weights.values()), *kept.parameters, k),
        )
    )

"""Searches in SQL: by every vector, by an index, by words."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.engine import Found
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition
from cde_rag.stores.manifests import PENDING
from cde_rag.stores.postgres.index import PgIndex, built, presence
from cde_rag.stores.postgres.tables import RECORD, PgTables, condition, read_record, read_score
from cde_rag.stores.postgres.words import live
from cde_rag.stores.text_analysis import ANALYZER, K1, B, TextAnalyzer


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the search of one generation.

    Attributes:
        generation: Its number.
        state: SQL for the state of the tables that the plan depends on.
        dim: Length of a vector.
        index: Settings of its index; none until it is built.
    """

    generation: int
    state: str
    dim: int
    index: PgIndex


def plan(tables: PgTables, generation: int) -> Plan:
    """Return the plan of a search in a generation; of one by words in the active generation.

    It holds for one collection, one vector space and one analyzer: in a database that went back to an earlier state the
    numbers come again.
    """
    manifest = tables.manifest
    index = PgIndex.of(manifest)
    there = index.kind is not None and built(tables, generation)
    due = "" if there or index.kind is None else f", {presence(generation)}"
    store = "" if manifest.store is None else "store, "
    settings = f"settings->>'{ANALYZER}', settings->>'{PENDING}'"
    state = (
        f"SELECT concat_ws(' ', m.tableoid, {store}format, active, g.fingerprint, {settings}, "  # noqa: S608
        f"index, quantization{due}) AS state "
        f"FROM {tables.names.manifest} m LEFT JOIN {tables.names.generations} g ON g.number = {generation}"
    )
    return Plan(generation, state, manifest.dim, index if there else PgIndex())


def nearest(
    tables: PgTables,
    plan: Plan,
    query: Float32[np.ndarray, " dim"],
    k: int,
    where: Filter | None,
    *,
    complete: bool,
) -> tuple[str | None, list[Found]]:
    """Find the best records for a query in one statement: of every vector, or of candidates that an index gives.

    Candidates are scored by their full vectors.

    Returns:
        The state that the plan depends on, as the statement saw it, and the records.
    """
    kept = condition(where, tables.names)
    if plan.index.kind is not None:
        distance, limit = plan.index.distance(tables.names, plan.dim), plan.index.candidates(k)
        taken, parameters = f"ORDER BY {distance} LIMIT {limit}", plan.index.parameters(k)
        state, found = _nearest(tables, plan, kept, query, k, taken, parameters, complete=complete)
        if len(found) == k:
            return state, found  # else it was a rare filter
    return _nearest(tables, plan, kept, query, k, f"ORDER BY distance, place LIMIT {k}", complete=complete)


def _nearest(
    tables: PgTables,
    plan: Plan,
    kept: Condition,
    query: Float32[np.ndarray, " dim"],
    k: int,
    taken: str,
    parameters: str = "",
    *,
    complete: bool,
) -> tuple[str | None, list[Found]]:
    names = tables.names
    rows = tables.rows(
        f"WITH asked AS MATERIALIZED (SELECT %s::{names.pgvector('vector')} AS query{parameters}), "  # noqa: S608
        f"near AS MATERIALIZED (SELECT place, vector {names.operator('<#>')} (SELECT query FROM asked) AS distance "
        f"FROM {names.vectors(plan.generation)} WHERE {kept.sql} {taken}), "
        f"best AS (SELECT place, distance FROM near ORDER BY distance, place LIMIT {k}) "
        f"SELECT now.state, place, -best.distance{_columns(complete=complete)} FROM ({plan.state}) now "
        f"LEFT JOIN (best JOIN {names.records} r USING (place)) ON true ORDER BY best.distance, place",
        *(query, *kept.parameters),
    )
    return _answer(rows)


def by_words(
    tables: PgTables, plan: Plan, analyzer: TextAnalyzer, query: str, k: int, where: Filter | None, *, complete: bool
) -> tuple[str | None, list[Found]]:
    """Find the best records for a query by words with BM25, like `nearest`; see `PgVectorStore`."""
    names, kept, times = tables.names, condition(where, tables.names), Counter(analyzer.terms(query))
    if not times:
        return None, []
    rows = tables.rows(
        "WITH asked AS (SELECT * FROM unnest(%s::text[], %s::float8[]) WITH ORDINALITY AS a (term, times, number)), "  # noqa: S608
        f"every AS (SELECT texts, words::float8 / greatest(1, texts) AS length FROM {names.manifest}), "
        "live AS MATERIALIZED (SELECT asked.number, e.place, e.times::float8, r.length::float8 FROM asked "
        f'JOIN {names.words} w ON w.term = asked.term COLLATE "C" {live(names)}), '
        "counted AS (SELECT number, count(*) + 0.5::float8 AS n FROM live GROUP BY number), "
        "weights AS (SELECT array_agg(times * ln(1 + ((SELECT texts FROM every) + 1 - n) / n) ORDER BY number) "
        "AS found FROM asked LEFT JOIN counted USING (number)), "
        f"best AS (SELECT place, sum((SELECT found FROM weights)[number] * times * {K1 + 1}::float8 "
        f"/ (times + {K1 * (1 - B)}::float8 + {K1 * B}::float8 * length / (SELECT length FROM every)) "
        f"ORDER BY number) AS score FROM live WHERE {kept.sql} GROUP BY place ORDER BY score DESC, place LIMIT {k}) "
        f"SELECT now.state, place, best.score{_columns(complete=complete)} FROM ({plan.state}) now "
        f"LEFT JOIN (best JOIN {names.records} r USING (place)) ON true ORDER BY best.score DESC, place",
        *(list(times), list(times.values()), *kept.parameters),
    )
    return _answer(rows)


def _columns(*, complete: bool) -> str:
    """Return the columns of a record, if the search reads it."""
    return f", {RECORD}" if complete else ""


def _answer(rows: list[tuple[Any, ...]]) -> tuple[str | None, list[Found]]:
    found = [
        Found(place, read_score(score), read_record(*record) if record else None)
        for _, place, score, *record in rows
        if place is not None
    ]
    return rows[0][0] if rows else None, found

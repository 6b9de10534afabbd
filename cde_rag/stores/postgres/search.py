"""Searches in SQL: by every vector, by an index, by words."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from cde_rag.stores.base import Hit, Row
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filter_sql import Condition
from cde_rag.stores.manifests import GenerationRow
from cde_rag.stores.postgres.index import PgIndex, built, presence
from cde_rag.stores.postgres.tables import RECORD, PgManifest, PgTables, condition, read_record, read_score
from cde_rag.stores.postgres.words import check_postings, live
from cde_rag.stores.text_analysis import K1, B


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the search of one generation.

    Attributes:
        state: SQL for the state of the tables that the plan depends on.
        found: Result of `state` when the plan was made; another one makes the plan obsolete.
        generation: Number and fingerprint.
        dim: Length of a vector.
        index: Settings of its index; none until it is built.
    """

    state: str
    found: str
    generation: GenerationRow
    dim: int
    index: PgIndex


def plan(tables: PgTables, manifest: PgManifest, generation: GenerationRow) -> Plan:
    """Return the plan of a search in a generation.

    It holds for one collection and one vector space: in a database that went back to an earlier state the numbers come
    again.
    """
    index = PgIndex.of(manifest)
    there = index.kind is not None and built(tables, generation.number)
    due = "" if there or index.kind is None else f", {presence(generation.number)}"
    store = "" if manifest.store is None else "store, "
    state = (
        f"SELECT concat_ws(' ', m.tableoid, {store}format, active, g.fingerprint, index, quantization{due}) AS state "  # noqa: S608
        f"FROM {tables.names.manifest} m LEFT JOIN {tables.names.generations} g ON g.number = {generation.number}"
    )
    return Plan(state, tables.rows(state)[0][0], generation, manifest.dim, index if there else PgIndex())


def nearest(
    tables: PgTables, plan: Plan, query: Float32[np.ndarray, " dim"], k: int, where: Filter | None
) -> list[Hit] | None:
    """Return the hits of a query in one statement: of every vector, or of candidates that an index gives.

    Candidates are scored by their full vectors. None means that the manifest is not as it was when `plan` was made.
    """
    kept = condition(where, tables.names)
    if plan.index.kind is not None:
        distance, limit = plan.index.distance(tables.names, plan.dim), plan.index.candidates(k)
        taken, parameters = f"ORDER BY {distance} LIMIT {limit}", plan.index.parameters(k)
        found = _hits(tables, plan, kept, query, k, taken, parameters)
        if found is None or len(found) == k:
            return found  # else it was a rare filter
    return _hits(tables, plan, kept, query, k, f"ORDER BY distance, place LIMIT {k}")


def _hits(
    tables: PgTables,
    plan: Plan,
    kept: Condition,
    query: Float32[np.ndarray, " dim"],
    k: int,
    taken: str,
    parameters: str = "",
) -> list[Hit] | None:
    names = tables.names
    rows = tables.rows(
        f"WITH asked AS MATERIALIZED (SELECT %s::{names.pgvector('vector')} AS query{parameters}), "  # noqa: S608
        f"near AS MATERIALIZED (SELECT place, vector {names.operator('<#>')} (SELECT query FROM asked) AS distance "
        f"FROM {names.vectors(plan.generation.number)} WHERE {kept.sql} {taken}), "
        f"best AS (SELECT place, distance FROM near ORDER BY distance, place LIMIT {k}) "
        f"SELECT now.state, {RECORD}, -best.distance FROM ({plan.state}) now "
        f"LEFT JOIN (best JOIN {names.records} r USING (place)) ON true ORDER BY best.distance, place",
        *(query, *kept.parameters),
    )
    if not rows or rows[0][0] != plan.found:
        return None
    return [Row(read_record(*row[1:-1]), "").hit(read_score(row[-1])) for row in rows if row[1] is not None]


def by_words(tables: PgTables, manifest: PgManifest, query: str, k: int, where: Filter | None) -> list[Hit]:
    """Search by words with BM25; see `PgVectorStore`."""
    names, kept, texts = tables.names, condition(where, tables.names), manifest.texts
    check_postings(manifest.format)
    times = Counter(manifest.analyzer.terms(query))
    if not times:
        return []
    rows = tables.rows(
        "WITH asked AS (SELECT * FROM unnest(%s::text[], %s::float8[]) WITH ORDINALITY AS a (term, times, number)), "  # noqa: S608
        "live AS MATERIALIZED (SELECT asked.number, e.place, e.times::float8, r.length::float8 FROM asked "
        f'JOIN {names.words} w ON w.term = asked.term COLLATE "C" {live(names)}), '
        "counted AS (SELECT number, count(*) + 0.5::float8 AS n FROM live GROUP BY number), "
        "weights AS (SELECT array_agg(times * ln(1 + (%s + 1 - n) / n) ORDER BY number) AS found "
        "FROM asked LEFT JOIN counted USING (number)), "
        f"best AS (SELECT place, sum((SELECT found FROM weights)[number] * times * {K1 + 1}::float8 "
        f"/ (times + {K1 * (1 - B)}::float8 + {K1 * B}::float8 * length / %s) ORDER BY number) AS score "
        f"FROM live WHERE {kept.sql} GROUP BY place ORDER BY score DESC, place LIMIT %s) "
        f"SELECT {RECORD}, best.score FROM best JOIN {names.records} r USING (place) "
        "ORDER BY best.score DESC, best.place",
        *(list(times), list(times.values()), texts, manifest.words / max(1, texts), *kept.parameters, k),
    )
    return [Row(read_record(*row[:-1]), "").hit(read_score(row[-1])) for row in rows]

"""What a store of `lives.py` has to hold, whatever befell it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lives import LIFE, PART, SPACES, Operation, expected_records, nothing, space_after, stub

from cde_rag.records import Row
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store

ALL = 10_000  # more records than any test has
MANY = 500  # records, of which an index may miss a hit


def answers(store: Store) -> dict[str, Any]:
    """All that it can be asked."""
    manifest = store.manifest()
    rows = list(store.scroll(page=ALL))
    ids = [row.record.id for row in rows]
    queries = np.concatenate(
        [stub(space).embed_queries(["first text of 7", "another text of 5"]) for space in range(SPACES)]
    )
    some = {"odd": True, "n": {"lt": 40}}
    return {
        "manifest": manifest,
        "generations": store.generations(),
        "context": store.context(),
        "rows": rows,
        "get": store.get(ids),
        "vectors": store.vectors(ids, fingerprint=manifest.fingerprint).tobytes(),
        "count": (store.count(), store.count(some)),
        "filtered": [row.record.id for row in store.scroll(where=some, page=ALL)],
        "hits": store.search(queries, 10, fingerprint=manifest.fingerprint),
        "filtered hits": store.search(queries, 10, fingerprint=manifest.fingerprint, where=some),
        "words": words(store, ["text of 7", "another 5"], some),
    }


def words(store: Store, queries: Sequence[str], where: Mapping[str, Any]) -> list[Any]:
    """What is found by words; of Edge without scores, in which words of deleted records count until it optimizes."""
    found = store.search_text(queries, ALL, where=where)
    return [sorted(hit.id for hit in hits) for hits in found] if isinstance(store, QdrantEdgeStore) else found


def check_sound(store: Store) -> tuple[list[Row], int]:
    """Wholly one generation, whatever records there are: every vector and every score; returns rows and space."""
    manifest, rows = store.manifest(), list(store.scroll(page=ALL))
    space = next(number for number in range(SPACES) if stub(number).fingerprint == manifest.fingerprint)
    embedder, ids, texts = stub(space), [row.record.id for row in rows], [row.record.text for row in rows]
    assert store.verify() == []
    assert store.count() == len(rows)
    assert store.context() == embedder.context.to_bytes()
    (active,) = (one for one in store.generations() if one.active)
    assert active.vectors == len(rows)
    np.testing.assert_array_equal(store.vectors(ids, fingerprint=manifest.fingerprint), embedder.embed_queries(texts))
    if rows:
        query = embedder.embed_queries(["another text of 5"])
        (hits,) = store.search(query, 10, fingerprint=manifest.fingerprint)
        scores = embedder.embed_queries(texts).astype(np.float64) @ query[0].astype(np.float64)
        best = [ids[place] for place in np.argsort(-scores, kind="stable")[:10]]
        found = [hit.id for hit in hits]
        assert found == best or (len(rows) > MANY and len({*found} & {*best}) >= 8)
        np.testing.assert_allclose([hit.score for hit in hits], [scores[ids.index(id_)] for id_ in found], atol=1e-6)
    return rows, space


def check_between(found: Sequence[Row], before: Sequence[Row], after: Sequence[Row], operation: Operation) -> int:
    """Parts are done from the first on, each wholly; new texts of a part at once, and new metadata; returns how many.

    A part whose records do not change counts as done.
    """
    was, shall, now = ({row.record.id: row for row in rows} for rows in (before, after, found))
    changed = {id_ for id_ in was.keys() | shall.keys() if was.get(id_) != shall.get(id_)}
    assert all(now.get(id_) in (was.get(id_), shall.get(id_)) for id_ in was.keys() | shall.keys() | now.keys())
    assert all(now.get(id_) == was.get(id_) for id_ in now.keys() - changed)
    done, ended = 0, False
    for part in operation.parts():
        texts = {
            id_
            for id_ in changed & {*part}
            if id_ not in was or id_ not in shall or was[id_].digest != shall[id_].digest
        }
        states = [{now.get(id_) == shall.get(id_) for id_ in some} for some in (texts, changed & {*part} - texts)]
        assert {True, False} not in states, "part of a part"
        whole = {False} not in states
        assert not (ended and {True} in states), "a part before one that was to be written first"
        done, ended = done + (whole and not ended), ended or not whole
    return done


def check_done(store: Store, count: int) -> dict[str, Any]:
    """What a store tells after so many operations, which is what the obvious way holds."""
    rows, space = check_sound(store)
    assert [row.record for row in rows] == list(expected_records(LIFE[:count]).values())
    assert space == space_after(LIFE[:count])
    return answers(store)


def check_finishes(store: Store, number: int, states: Sequence[dict[str, Any] | None], progress: int) -> None:
    """What is there lies between two operations; and the same call made again comes to the end."""
    check_there(store, number, states, progress)
    LIFE[number].do(store, nothing)
    assert answers(store) == states[number + 1]
    check_sound(store)


def check_there(store: Store, number: int, states: Sequence[dict[str, Any] | None], progress: int) -> None:
    """What is there lies between two operations, the second of which said that it had done so many records."""
    operation, before, after = LIFE[number], states[number], states[number + 1]
    assert after is not None
    if store.exists():
        rows, space = check_sound(store)
        assert space in (space_after(LIFE[:number]), space_after(LIFE[: number + 1]))
        done = check_between(rows, [] if before is None else before["rows"], after["rows"], operation)
        assert not operation.puts or done >= -(-progress // PART), "what was said to be done is not there"
    else:
        assert not progress

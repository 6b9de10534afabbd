"""What others do with a collection while it is moved to a new context: they search it, and change it.

python others.py search KIND FOLDER RECORDS COUNT    says when each of so many searches began and ended
python others.py write KIND FOLDER RECORDS ROUND     changes as many records as there are; says how many so far
"""

import dataclasses
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from lives import opened, record, small_parts, store_at, stub

from cde_rag.records import Record
from cde_rag.stores.store import Store

SLICE = 20  # records changed in one call

Interval = tuple[float, float]  # time.monotonic(), which is the same in all processes


def search(store: Store, records: int, count: int) -> Iterator[Interval]:
    """Search, and compare every answer with the obvious one; all spaces have the same, unless they mix."""
    collection, texts = opened(store), [record(number).text for number in range(records)]
    vectors = stub(0).embed_queries(texts)
    queries = [f"first text of {number}" for number in range(0, records, records // 20)]
    best: list[list[str]] = []
    scores: list[np.ndarray] = []
    for vector in stub(0).embed_queries(queries):
        found = vectors.astype(np.float64) @ vector.astype(np.float64)
        order = np.argsort(-found, kind="stable")[:10]
        best.append([f"d{place}" for place in order])
        scores.append(found[order])
    for number in range(count):
        which, began = number % len(queries), time.monotonic()
        hits = collection.search(queries[which], 10, by="vectors")
        yield began, time.monotonic()
        assert [hit.id for hit in hits] == best[which], "another answer"
        np.testing.assert_allclose([hit.score for hit in hits], scores[which], atol=1e-6)


def held_after(records: int, rounds: int) -> dict[str, Record]:
    """The obvious way: a dictionary, after so many rounds of changes."""
    held = {one.id: one for one in map(record, range(records))}
    for round_ in range(1, rounds + 1):
        for what, some in changes(held, round_):
            for one in some:
                if what == "delete":
                    del held[one.id]
                else:
                    held[one.id] = one
    return held


def changes(held: dict[str, Record], round_: int) -> list[tuple[str, list[Record]]]:
    """As many changed records as there are, in calls of a few: a quarter each is new, replaced, updated, deleted."""
    dice, quarter, old = random.Random(round_), len(held) // 4, list(held.values())
    dice.shuffle(old)
    made = {
        "add": [record(100_000 * round_ + number) for number in range(quarter)],
        "replace": [dataclasses.replace(one, text=f"{one.text}, round {round_}") for one in old[:quarter]],
        "update": [
            dataclasses.replace(one, metadata={**one.metadata, "round": round_}) for one in old[quarter : 2 * quarter]
        ],
        "delete": old[2 * quarter : 3 * quarter],
    }
    calls = [(what, some[start : start + SLICE]) for what, some in made.items() for start in range(0, quarter, SLICE)]
    dice.shuffle(calls)
    return calls


def write(store: Store, records: int, round_: int) -> Iterator[int]:
    """Make the changes of a round; gives out how many are made."""
    collection, done = opened(store), 0
    for what, some in changes(held_after(records, round_ - 1), round_):
        if what == "delete":
            collection.delete([one.id for one in some])
        else:
            collection.add_records(some)
        done += len(some)
        yield done


if __name__ == "__main__":
    what, kind, folder, records, number = sys.argv[1:]
    store = store_at(kind, Path(folder))
    with small_parts():
        if what == "search":
            for interval in search(store, int(records), int(number)):
                print(*interval, flush=True)
        else:
            for done in write(store, int(records), int(number)):
                print(done, flush=True)
    store.close()

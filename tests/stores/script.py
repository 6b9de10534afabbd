"""One life of a store as a list of steps, each one call; a process runs them and may be killed anywhere.

python script.py write FOLDER FIRST     does the steps from FIRST on, and says after each that it is done
python script.py fill FOLDER DIM BYTES  adds until no file may grow beyond BYTES; says so with a StoreError
python script.py add FOLDER FIRST END   adds the batches from FIRST to before END
python script.py read FOLDER ROWS       searches until there are ROWS records, and checks what it finds

A folder whose name ends in .qdrant holds a QdrantEdgeStore, which indexes early; any other a FaissStore.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag.errors import ContextMismatchError, StoreError
from cde_rag.records import Hit, Record, Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.store import Store

BATCH = 20
DIM = 8
DELETED = (2, 3)  # batches of each generation that a step deletes
Step = Callable[[Store], object]


def store_in(folder: Path) -> FaissStore | QdrantEdgeStore:
    return QdrantEdgeStore(folder, flat_rows=32) if folder.suffix == ".qdrant" else FaissStore(folder)


def fingerprint(generation: int) -> str:
    return f"{generation:064d}"


def matrix(generation: int, rows: int, dim: int = DIM) -> np.ndarray:
    """Each generation lies on an axis of its own: one vector of another one has the score 0 where 1 is due."""
    vectors = np.zeros((rows, dim), np.float32)
    vectors[:, generation % dim] = 1
    return vectors


def batch(number: int, text: str = "text") -> list[Row]:
    records = [Record(f"{number}-{place}", text, "", {"batch": number}) for place in range(BATCH)]
    return [Row(record, f"digest of {text}") for record in records]


def ids(*numbers: int) -> list[str]:
    return [row.record.id for number in numbers for row in batch(number)]


def steps() -> list[Step]:
    done: list[Step] = [lambda store: store.create(dim=DIM, fingerprint=fingerprint(1), context=b"1", settings={})]
    for generation in range(1, 4):
        first = generation * 10

        def add(store: Store, number: int, text: str = "text", generation: int = generation) -> None:
            store.add(batch(number, text), matrix(generation, BATCH), fingerprint=fingerprint(generation))

        def begin(store: Store, new: int = generation + 1) -> None:
            store.create_generation(fingerprint=fingerprint(new), context=str(new).encode() * 5000)

        def fill(store: Store, number: int, new: int = generation + 1) -> None:
            store.add_to_generation(new, store.get(ids(number)), [f"digest {new}"] * BATCH, matrix(new, BATCH))

        done += [
            *(lambda store, number=first + place, add=add: add(store, number) for place in range(6)),
            lambda store, number=first, add=add: add(store, number, "another text"),
            lambda store, number=first: store.update_metadata({id_: {"new": True} for id_ in ids(number + 1)}),
            lambda store, number=first: store.delete(ids(*(number + place for place in DELETED))),
            lambda store: store.compact() if isinstance(store, FaissStore) else None,
            lambda store, begin=begin: begin(store),
            *(
                lambda store, number=number, fill=fill: fill(store, number)
                for past in range(1, generation + 1)
                for number in (past * 10, past * 10 + 1, past * 10 + 4, past * 10 + 5)
            ),
            lambda store, new=generation + 1: store.activate(new),
            lambda store, old=generation: store.drop(old),
        ]
    return done


def answers(store: Store) -> dict[str, Any]:
    """All that a store can be asked."""
    generation = store.manifest().fingerprint
    rows = list(store.scroll())
    found = [row.record.id for row in rows]
    matrix = store.vectors(found, fingerprint=generation)
    return {
        "manifest": store.manifest(),
        "generations": store.generations(),
        "context": store.context(),
        "rows": rows,
        "get": store.get(found),
        "vectors": matrix.tobytes(),
        "filtered": [row.record.id for row in store.scroll(where={"batch": {"gte": 11}, "new": {"exists": False}})],
        "words": words(store),
        "hits": store.search(np.eye(matrix.shape[1], dtype=np.float32), 10, fingerprint=generation),
    }


def words(store: Store) -> list[Any]:
    """What is found by words; of Edge without scores, since after a kill it counts some records twice for a while."""
    found = store.search_text(["another", "texts"], 10_000, where={"new": {"exists": False}})
    return [sorted(hit.id for hit in hits) for hits in found] if isinstance(store, QdrantEdgeStore) else found


def write(folder: Path, first: int) -> None:
    store = store_in(folder)
    for number, step in enumerate(steps()[first:], first):
        step(store)
        print(number, flush=True)


def fill(folder: Path, dim: int, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    store = store_in(folder)
    try:
        store.create(dim=dim, fingerprint=fingerprint(1), context=b"1", settings={})
        for number in range(10_000):
            store.add(batch(number, "text" * 100), matrix(1, BATCH, dim), fingerprint=fingerprint(1))
            print(number, flush=True)
    except StoreError as error:
        print(error, flush=True)


def add(folder: Path, first: int, end: int) -> None:
    store = store_in(folder)
    for number in range(first, end):
        store.add(batch(number), matrix(1, BATCH), fingerprint=fingerprint(1))


def read(folder: Path, rows: int) -> None:
    store = store_in(folder)
    hits: list[Hit] = []
    staying, switches, generation = set[str](), 0, 1
    while len(hits) < rows:
        try:
            (hits,) = store.search(matrix(generation, 1), rows, fingerprint=fingerprint(generation))
        except ContextMismatchError as error:
            generation, switches = int(error.expected), switches + 1
            continue
        assert all(hit.score == 1 for hit in hits), "vectors of two generations"
        assert len(hits) % BATCH == 0, "part of a batch"
        found = {hit.id for hit in hits if int(hit.id.split("-")[0]) % 10 not in DELETED}
        assert found >= staying, "records went missing"
        staying = found
    print(switches, flush=True)


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    {"write": write, "fill": fill, "add": add, "read": read}[what](Path(folder), *map(int, numbers))

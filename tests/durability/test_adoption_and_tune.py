"""An adoption whose process is killed loses nothing of the application's; a weight that is tuned while the collection
moves to another context is kept, and is chosen by searches that mix nothing."""

import contextlib
import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lives import direction, opened, record, store_at, stub
from qdrant_client import QdrantClient, models
from sound import check_sound

from cde_rag.adoption import QdrantCollection, adopt
from cde_rag.collection.collection import Collection
from cde_rag.collection.settings import HYBRID_WEIGHT
from cde_rag.evaluation.beir import JudgedQueries
from cde_rag.evaluation.hybrid_weight import tuned_weight
from cde_rag.indexing.upsert import Progress
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.store import Store

POINTS = 40
State = list[tuple[object, object, object]]


def their_state(client: QdrantClient) -> State:
    """The points as their application sees them: id, payload without keys of ours, and vector."""
    found, _ = client.scroll("theirs", limit=1000, with_vectors=True)
    return [
        (
            point.id,
            {key: value for key, value in (point.payload or {}).items() if not key.startswith("cde_")},
            np.round(point.vector["own"] if isinstance(point.vector, dict) else [], 5).tolist(),
        )
        for point in found
    ]


def fill(folder: Path) -> State:
    with contextlib.closing(QdrantClient(path=str(folder))) as client:
        params = models.VectorParams(size=4, distance=models.Distance.DOT)
        client.create_collection("theirs", vectors_config={"own": params})
        points = [
            models.PointStruct(
                id=number, vector={"own": direction(str(number))[:4].tolist()}, payload={"text": f"text {number}"}
            )
            for number in range(POINTS)
        ]
        client.upsert("theirs", points)
        return their_state(client)


def adopted_by_a_process(folder: Path, last: int) -> tuple[int, int]:
    """Adopt in a fork, which is killed when it says that its step `last` is done; returns its steps and exit status."""
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            client = QdrantClient(path=str(folder))
            adopt(
                QdrantCollection(client, "theirs", "text"),
                embedder=stub(0),
                on_progress=lambda _: os.write(sender, b"."),
            )
            client.close()
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sender)
    steps = 0
    with os.fdopen(receiver, "rb", buffering=0) as told:
        while told.read(1):
            steps += 1
            if steps == last:
                os.kill(child, signal.SIGKILL)
    return steps, os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_adoption_whose_process_is_killed_is_completed_by_the_same_call(
    scratch: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """The client is in local mode, in a folder, so that process and database die together."""
    dice, kills = random.Random(seed), times(3, 60)
    killed, folder, before = 0, scratch / "0", fill(scratch / "0")
    while killed < kills:
        _, status = adopted_by_a_process(folder, dice.randint(1, 5))
        with contextlib.closing(QdrantClient(path=str(folder))) as client:
            assert their_state(client) == before
            rows = list(QdrantStore(client, "theirs").scroll())  # those that are taken in so far
            assert all(row.record.text == f"text {row.record.id}" for row in rows)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            folder = scratch / str(killed)
            assert fill(folder) == before
    steps, status = adopted_by_a_process(folder, 0)
    assert (status, steps > 0) == (0, True)
    with contextlib.closing(QdrantClient(path=str(folder))) as client:
        assert their_state(client) == before
        rows, space = check_sound(QdrantStore(client, "theirs"))
        assert ([row.record.text for row in rows], space) == ([f"text {number}" for number in range(POINTS)], 0)
    tell(f"{killed} adoptions killed; all completed")


def test_a_weight_that_is_tuned_while_the_collection_moves(
    kind: str, scratch: Path, tell: Callable[[str], None]
) -> None:
    """Tuning searches both ways in whatever space is active, and writes to the settings of the moving store."""
    folder, numbers = scratch / "papers", range(0, 48, 2)
    store = store_at(kind, folder)
    Collection.create(store, stub(0)).add_records(map(record, range(48)))
    judged = JudgedQueries(
        ids=tuple(map(str, numbers)),
        queries=tuple(f"first text of {number}" for number in numbers),
        judgments=tuple({f"d{number}": 1} for number in numbers),
        blank=0,
    )
    still, written = tuned(store, judged), list[float]()

    def meanwhile(_: Progress) -> None:
        other = store_at(kind, folder)
        assert tuned(other, judged) == still
        written.append(round(0.1 + len(written) / 100, 2))
        other.update_settings({HYBRID_WEIGHT: written[-1]})
        other.close()

    opened(store).recontextualize(embedder=stub(1), on_progress=meanwhile)
    assert store.manifest().settings[HYBRID_WEIGHT] == written[-1]
    assert check_sound(store)[1] == 1
    opened(store).rollback(on_progress=meanwhile)
    assert store.manifest().settings[HYBRID_WEIGHT] == written[-1]
    assert tuned(store, judged) == still
    store.close()
    tell(f"{len(written)} weights written during a recontextualization and a rollback")


def tuned(store: Store, judged: JudgedQueries) -> tuple[float, list[float]]:
    """Return the weight that tuning chooses, and the figures of all; each space has the same hits and scores."""
    choice = tuned_weight(opened(store).searcher, judged)
    return choice.weight, [round(figure, 6) for figure in choice.figures.values()]

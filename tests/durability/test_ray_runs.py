"""Ray: a driver that is killed at any time, or whose store is full; the same call made again completes it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from cde_rag import CDEModel, Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore

pytest.importorskip("ray")

pytestmark = pytest.mark.long  # a cluster for each try; `make torture` tries them, too

TEXTS = {f"r{number}": f"Passage {number} is about bird number {number % 13}." for number in range(300)}
SCRIPT = """
import resource, sys
from pathlib import Path
import ray, ray.data
from cde_rag import CDEModel
from cde_rag.distributed import index
from cde_rag.distributed.ray_pool import connect
from cde_rag.readers import Fields
connect(None)
ray.data.DataContext.get_current().enable_progress_bars = False
texts = {texts!r}
rows = [{{"id": id_, "text": text, "book": f"book {{at // 7}}"}} for at, (id_, text) in enumerate(texts.items())]
model = CDEModel.from_pretrained("cde-mini", dtype="float32", runtime="torch")
dataset = ray.data.from_items(rows, override_num_blocks=5)
if (most := int(sys.argv[1])):  # bytes of a file of this process, which alone writes to the store
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
index(dataset, Path({place!r}), fields=Fields(parent="book"), model=model, context_size=64, bucket_rows=20)
"""


@pytest.fixture(scope="module")
def expected() -> Mapping[str, np.ndarray]:
    """Vectors that one process makes, by id."""
    model = CDEModel.from_pretrained("cde-mini", dtype="float32", runtime="torch")
    embedder = ContextualEmbedder.from_corpus(list(TEXTS.values()), model=model, context_size=64)
    parents = [f"book {number // 7}" for number in range(len(TEXTS))]
    return dict(zip(TEXTS, embedder.embed_documents(list(TEXTS.values()), parents=parents), strict=True))


@pytest.fixture
def run(scratch: Path) -> Callable[[int], subprocess.Popen[str]]:
    """Starts the script of a driver in a session of its own; takes the bytes that its files may have, or 0."""
    script = scratch / "driver.py"
    script.write_text(SCRIPT.format(texts=TEXTS, place=str(scratch / "p.faiss")))
    environment = os.environ | {"CDE_RAG_RUNTIME": "torch"}

    def start(most: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), str(most)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)

    return start


def check_whole(place: Path) -> None:
    """No record is damaged, and those that are there are right; siblings of books that came in part may be missing."""
    if not FaissStore(place).exists():
        return
    with Collection.open(FaissStore(place)) as found:
        assert list(found.verify()) == []
        assert {record.id: record.text for record in found.scroll()}.items() <= TEXTS.items()


def check_completes(
    run: Callable[[int], subprocess.Popen[str]], place: Path, expected: Mapping[str, np.ndarray]
) -> None:
    """A driver that nobody disturbs makes the collection of one process."""
    with run(0) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    with Collection.open(FaissStore(place)) as found:
        ids = [record.id for record in found.scroll()]
        assert sorted(ids) == sorted(expected)
        vectors = found.store.vectors(ids, fingerprint=found.embedder.fingerprint)
        np.testing.assert_allclose(vectors, np.stack([expected[id_] for id_ in ids]), atol=1e-5)


def test_a_driver_killed_at_any_time_is_resumed(
    run: Callable[[int], subprocess.Popen[str]],
    scratch: Path,
    expected: Mapping[str, np.ndarray],
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    dice, place, seconds, ended = random.Random(seed), scratch / "p.faiss", 20.0, 0
    for _ in range(times(3, 60)):
        began = time.monotonic()
        with run(0) as process:
            try:
                process.communicate(timeout=dice.uniform(2.0, seconds))
                seconds, ended = time.monotonic() - began, ended + 1
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        check_whole(place)
    check_completes(run, place, expected)
    tell(f"{times(3, 60)} drivers, {ended} of them ended before they were killed")


def test_a_driver_whose_store_is_full_goes_on(
    run: Callable[[int], subprocess.Popen[str]],
    scratch: Path,
    expected: Mapping[str, np.ndarray],
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
) -> None:
    dice, place, refused = random.Random(seed), scratch / "p.faiss", 0
    for _ in range(times(2, 20)):
        with run(dice.randrange(4_096, 500_000)) as process:
            _, errors = process.communicate(timeout=300)
        if process.returncode:
            assert "cde_rag.errors." in errors.rstrip().rpartition("\n")[2], errors
            refused += 1
        check_whole(place)
    assert refused
    check_completes(run, place, expected)
    tell(f"{times(2, 20)} full stores, {refused} of them refused a write")

"""Worker processes embed what one process embeds; one that is killed is replaced."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from cde_rag import CDEModel, Collection, ContextualEmbedder, EmbedderOptions, ProcessPool
from cde_rag.embedders.pool import SLICE, EmbedderSpec, Slice, embed_on
from cde_rag.embedders.protocol import Embedded
from cde_rag.errors import CorpusError, PoolError

TEXTS = [f"Passage {number} is about bird number {number % 13}, seen in {1900 + number % 90}." for number in range(300)]
PARENTS = [None if number % 10 == 9 else f"book {number // 7}" for number in range(300)]


@pytest.fixture(scope="module")
def embedder() -> ContextualEmbedder:
    model = CDEModel.from_pretrained("cde-mini", dtype="float32")
    return ContextualEmbedder.from_corpus(TEXTS, model=model)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(2, device="cpu") as two:
        yield two


@pytest.fixture(scope="module")
def expected(embedder: ContextualEmbedder) -> np.ndarray:
    return embedder.embed_documents(TEXTS, parents=PARENTS)


@pytest.mark.long
def test_pool_embeds_as_one_process_does(embedder: ContextualEmbedder, pool: ProcessPool, expected: np.ndarray):
    found = embedder.with_pool(pool).embed_documents(TEXTS, parents=PARENTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(pool.pids()) == 2


@pytest.mark.long
def test_workers_take_devices_in_turn(embedder: ContextualEmbedder, expected: np.ndarray):
    """Two names of the CPU stand for two GPUs; a worker that is killed is replaced on its own device."""
    with ProcessPool(devices=["cpu:0", "cpu"]) as pool:
        found = embedder.with_pool(pool).embed_documents(TEXTS, parents=PARENTS)
        assert sorted(str(worker.device) for worker in pool._running) == ["cpu", "cpu:0"]
        lost = pool._running[0]
        os.kill(lost.process.pid or 0, signal.SIGKILL)
        again = embedder.with_pool(pool).embed_documents(TEXTS, parents=PARENTS)
        assert lost not in pool._running
        assert sorted(str(worker.device) for worker in pool._running) == ["cpu", "cpu:0"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(again, expected, atol=1e-5)


def test_devices_that_are_none():
    for given in ({"devices": "cuda"}, {"devices": ["cpu"], "device": "cpu"}):
        with pytest.raises(TypeError, match="Expected device='cuda' or devices="):
            ProcessPool(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one device"):
        ProcessPool(devices=[])
    assert ProcessPool(devices=["cuda:0", "cuda:1", "cuda:2"]).workers == 3
    assert ProcessPool(2, devices=["cuda:0"]).workers == 2


def test_a_pool_that_is_closed_leaves_no_semaphores(embedder: ContextualEmbedder):
    """A worker that was killed would leave tqdm's lock, of which Python warns on the command's stderr."""
    with ProcessPool(1, device="cpu") as pool:
        embedder.with_pool(pool).embed_documents(TEXTS[:64])
        process = pool._running[0].process
    assert process.exitcode == 0


def test_worker_that_is_killed_is_replaced(embedder: ContextualEmbedder, pool: ProcessPool, expected: np.ndarray):
    embedder.with_pool(pool).embed_documents(TEXTS[:64])
    before = pool.pids()
    killer = threading.Timer(0.3, lambda: os.kill(before[0], signal.SIGKILL))
    killer.start()
    found = embedder.with_pool(pool).embed_documents(TEXTS, parents=PARENTS)
    killer.join()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(embedder.with_pool(pool).embed_documents(TEXTS, parents=PARENTS), expected, atol=1e-5)
    assert before[0] not in pool.pids()


def test_collection_on_a_pool(embedder: ContextualEmbedder, pool: ProcessPool, tmp_path: Path):
    metadata = [{} if parent is None else {"book": parent} for parent in PARENTS]
    ids = [str(number) for number in range(len(TEXTS))]
    found: list[tuple[str, dict[str, np.ndarray]]] = []
    for place, workers in (("one.faiss", None), ("two.faiss", pool)):
        with Collection.create(tmp_path / place, embedder.with_pool(workers), parent_key="book") as papers:
            papers.add(TEXTS, ids=ids, metadata=metadata)
            papers.delete(["3"])
            papers.recontextualize(seed=1)
            assert papers.embedder.options.pool is workers
            kept = [row.record.id for row in papers.store.scroll()]
            vectors = papers.store.vectors(kept, fingerprint=papers.embedder.fingerprint)
            found.append((papers.embedder.fingerprint, dict(zip(kept, vectors, strict=True))))
    (of_one, one), (of_two, two) = found
    assert one.keys() == two.keys()
    assert of_one == of_two
    np.testing.assert_allclose(np.stack(list(two.values())), np.stack(list(one.values())), atol=1e-5)
    with Collection.open(tmp_path / "two.faiss", options=EmbedderOptions(pool=pool)) as papers:
        assert papers.embedder.options.pool is pool
        assert papers.search("bird number 4", 1)


def test_stuck_workers_are_ended(embedder: ContextualEmbedder):
    with ProcessPool(1, device="cpu", timeout_s=1.0) as pool:
        with pytest.raises(PoolError, match=r"No worker finished a slice in 1 s.*fewer workers or a longer timeout_s"):
            embedder.with_pool(pool).embed_documents(TEXTS)  # the worker has not loaded torch in one second
        assert pool.pids() == []


def test_an_embedder_is_sent_to_a_process_of_ones_own(embedder: ContextualEmbedder, expected: np.ndarray):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
        found = own.submit(embedder.embed_documents, TEXTS, parents=PARENTS).result()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert copy.deepcopy(embedder) is embedder


def test_worker_without_the_model(embedder: ContextualEmbedder, pool: ProcessPool):
    there = EmbedderSpec.of(embedder)
    space = EmbedderSpec("no-such-model", "", there.context, there.dtype, there.mini_batch_size)
    with pytest.raises(PoolError, match=r"A worker needs the model 'no-such-model' and does not have it"):
        list(pool.embed(space, [Slice(["a text"], None)]))
    assert list(pool.embed(there, [Slice(["a text"], None)])), "the pool serves on"


def test_bad_text_has_its_position(embedder: ContextualEmbedder, pool: ProcessPool):
    with pytest.raises(CorpusError, match="Text 250 is empty or blank"):
        embedder.with_pool(pool).embed_documents([*TEXTS[:250], " ", *TEXTS[250:]])


@pytest.mark.parametrize("workers", [0, -1])
def test_number_of_workers(workers: int):
    with pytest.raises(ValueError, match="workers"):
        ProcessPool(workers)


def test_workers_end_with_their_parent(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import time\n"
        "from cde_rag import ContextualEmbedder, EmbedderOptions, ProcessPool\n"
        "if __name__ == '__main__':\n"
        "    texts = [f'text {number}' for number in range(100)]\n"
        "    with ProcessPool(1, device='cpu') as pool:\n"
        "        ContextualEmbedder.from_corpus(texts, options=EmbedderOptions(pool=pool)).embed_documents(texts)\n"
        "        print(pool.pids()[0], flush=True)\n"
        "        time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        os.kill(worker, 0)
        process.kill()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _alive(worker):
        time.sleep(0.2)
    assert not _alive(worker)


def test_script_without_a_guard(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from cde_rag import ContextualEmbedder, EmbedderOptions, ProcessPool\n"
        "texts = [f'text {number}' for number in range(100)]\n"
        "ContextualEmbedder.from_corpus(texts, options=EmbedderOptions(pool=ProcessPool(1))).embed_documents(texts)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert 'code that starts a pool belongs under if __name__ == "__main__"' in done.stderr


class Recorder:
    """A pool of one that embeds here, and keeps the slices."""

    workers = 1

    def __init__(self, embedder: ContextualEmbedder) -> None:
        self.embedder = embedder
        self.slices: Sequence[Slice] = []

    def embed(self, spec: EmbedderSpec, slices: Sequence[Slice]) -> Iterator[tuple[int, Embedded]]:
        self.slices = slices
        for place in reversed(range(len(slices))):
            yield place, self.embedder.embed_passages(slices[place].texts, slices[place].siblings)


@pytest.mark.long
def test_slices_end_where_parents_end(embedder: ContextualEmbedder):
    recorder, texts = Recorder(embedder), [f"text {number}" for number in range(3 * SLICE)]
    siblings = [
        [texts[other] for other in range(place // 5 * 5, place // 5 * 5 + 5) if other != place and other < len(texts)]
        for place in range(len(texts))
    ]
    found = embed_on(recorder, embedder, texts, siblings)
    lengths = [len(each.texts) for each in recorder.slices]
    assert sum(lengths) == len(texts)
    assert len(lengths) == 3
    assert all(sum(lengths[:place]) % 5 == 0 for place in range(len(lengths)))
    np.testing.assert_allclose(found.vectors, embedder.embed_passages(texts, siblings).vectors, atol=1e-5)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False

"""Worker processes beside one process: overhead, scaling, and the same collection after kills.

Short records of eight words with five passages to a parent. First each way of indexing is timed in one run, Ray's and
the pools' start included. With --proof the dataset is indexed on two Ray workers of which one is killed, then the
driver; one shard is truncated; the run is resumed, and its collection is compared with that of one process.

Run with: python -m lab.benchmarks.distributed [--records N] [--proof] [--json]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag import CDEModel, Collection, ContextualEmbedder, EmbedderOptions, ProcessPool, Record
from cde_rag.models.runtimes.threads import set_threads
from cde_rag.readers import Fields

WORDS, PASSAGES = 8, 5


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--proof", action="store_true", help="kill workers and driver, and compare, in float32")
    parser.add_argument(
        "--model", default="cde-mini", help="name, folder, or tiny: as lab.benchmarks.train_tiny begins"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        on_ray(Path(options.driver), options.records, 2, options.model, "float32")
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.model == "tiny":
            from lab.benchmarks.train_tiny import write_start

            options.model = str(Path(folder) / "tiny")
            write_start(Path(options.model), seed=0)
        found = (proof if options.proof else timed)(Path(folder), options.records, options.model)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for what, value in found.items():
        print(f"{what:40} {value:12.3f}" if isinstance(value, float) else f"{what:40} {value!s:>12}")


def rows(count: int) -> Iterator[dict[str, str]]:
    """Yield records of drawn words, always the same."""
    dice = random.Random(0)
    words = [f"{first}{second}" for first in "basket river stone lamp".split() for second in range(500)]
    for number in range(count):
        yield {
            "id": f"r{number}",
            "text": " ".join(dice.choices(words, k=WORDS)),
            "book": f"b{number // PASSAGES}",
        }


def records(count: int) -> Iterator[Record]:
    """Yield the rows as records."""
    return (Record(row["id"], row["text"], "", {"book": row["book"]}) for row in rows(count))


def in_one_process(place: Path, count: int, name: str, dtype: str | None = None, threads: int | None = None) -> float:
    """Index in this process; returns seconds."""
    started = time.monotonic()
    if threads is not None:
        set_threads(threads)
    model = CDEModel.from_pretrained(name, dtype=dtype)
    embedder = ContextualEmbedder.from_corpus((row["text"] for row in rows(count)), model=model)
    with Collection.create(place, embedder, parent_key="book") as made:
        made.add_records(records(count))
    return time.monotonic() - started


def on_pool(place: Path, count: int, name: str, workers: int) -> float:
    """Index on a ProcessPool; returns seconds."""
    started = time.monotonic()
    with ProcessPool(workers) as pool:
        embedder = ContextualEmbedder.from_corpus(
            (row["text"] for row in rows(count)), model=name, options=EmbedderOptions(pool=pool)
        )
        with Collection.create(place, embedder, parent_key="book") as made:
            made.add_records(records(count))
    return time.monotonic() - started


def on_ray(place: Path, count: int, workers: int, name: str, dtype: str | None = None) -> float:
    """Index on Ray; returns seconds, without those in which Ray itself starts."""
    import ray
    import ray.data

    from cde_rag.distributed import index

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
    started = time.monotonic()
    model = CDEModel.from_pretrained(name, dtype=dtype)
    dataset = ray.data.from_items(list(rows(count)), override_num_blocks=16)
    index(dataset, place, fields=Fields(parent="book"), model=model, workers=workers)
    return time.monotonic() - started


def timed(folder: Path, count: int, name: str) -> dict[str, Any]:
    """Return seconds of each way, and their ratios to one process."""
    alone = "one process, one thread"
    seconds = {
        alone: in_one_process(folder / "one.faiss", count, name, threads=1),
        "one process, two threads": in_one_process(folder / "two.faiss", count, name, threads=2),
        "ProcessPool(2), a thread each": on_pool(folder / "pool.faiss", count, name, 2),
        "Ray, one worker, a thread": on_ray(folder / "ray1.faiss", count, 1, name),
        "Ray, two workers, a thread each": on_ray(folder / "ray2.faiss", count, 2, name),
    }
    found: dict[str, Any] = {"records": count, "cores": os.cpu_count()}
    for way, took in seconds.items():
        found[f"{way}, s"] = took
        found[f"{way}, of {alone}"] = took / seconds[alone]
    return found


def proof(folder: Path, count: int, name: str) -> dict[str, Any]:
    """Kill, truncate, resume, and compare; returns what was found."""
    one, two, shards = folder / "one.faiss", folder / "two.faiss", folder / "two.faiss.shards"
    command = [sys.executable, "-m", "lab.benchmarks.distributed", "--driver", str(two), "--records", str(count)]
    command += ["--model", name]
    killed = 0
    with subprocess.Popen(command, start_new_session=True) as driver:
        while len(list(shards.glob("*.parquet"))) < 3 and driver.poll() is None:
            time.sleep(0.1)
        killed = _kill_a_worker()
        while len(list(shards.glob("*.parquet"))) < count // 4096 and driver.poll() is None:
            time.sleep(0.1)
        driver.kill()
    made = sorted(shards.glob("*.parquet"))
    made[0].write_bytes(made[0].read_bytes()[:1000])
    subprocess.run(command, check=True)
    in_one_process(one, count, name, "float32")
    model = CDEModel.from_pretrained(name, dtype="float32")
    with Collection.open(one, model=model) as ours, Collection.open(two, model=model) as theirs:
        left, right = ({row.record.id: row for row in each.store.scroll()} for each in (ours, theirs))
        fingerprint, worst = ours.embedder.fingerprint, 0.0
        for start in range(0, count, 4096):
            ids = [f"r{number}" for number in range(start, min(count, start + 4096))]
            pair = [np.asarray(each.store.vectors(ids, fingerprint=fingerprint)) for each in (ours, theirs)]
            worst = max(worst, float(np.abs(pair[0] - pair[1]).max()))
        hits = [
            [[hit.id for hit in each.search(row["text"], by="vectors")] for each in (ours, theirs)]
            for _, row in zip(range(100), rows(count), strict=False)
        ]
        return {
            "records": count,
            "workers killed": killed,
            "shards when the driver was killed": len(made),
            "same fingerprint": ours.embedder.fingerprint == theirs.embedder.fingerprint,
            "same records and digests": left == right,
            "largest difference of a vector": worst,
            "queries of 100 with the same top ten": sum(one == two for one, two in hits),
        }


def _kill_a_worker() -> int:
    """Kill one worker process that embeds; returns how many were found and killed."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"BucketWriter" in name:
            os.kill(int(process.name), signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    main()

"""Memory of `cde-rag serve` under mixed load: queries, embeddings of batches of all sizes and lengths, and upserts of
passages with siblings. After the first third of the time it may grow by 10 %, and no more.

Run with: make flat-memory   (half an hour), or: python lab/benchmarks/flat_memory.py --minutes 5 --runtime torch

It prints the resident memory of the server's process in MiB, without the pages of mapped files, which the system takes
back by itself, and exits with 1 if it grew. Clients are on this machine,
`CLIENTS` at a time, each request has at most `TEXTS` texts, and the collection keeps its size.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from cde_rag import Collection, ContextualEmbedder
from lab.python_docs import documentation

CLIENTS, TEXTS, RECORDS = 4, 32, 256
# Kernels are made for each new shape of a batch until the cache has its bound; a slow machine needs minutes for that.
WARM_UP = 1 / 3  # of the time
GROWTH = 1.1  # of the largest size after the warm-up over the largest in it
EVERY_S = 0.5  # seconds
COMMAND = [sys.executable, "-c", "from cde_rag.cli import app; app()", "serve", "--port", "0"]


def main() -> None:
    """Print the sizes, and exit with 1 if they grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--runtime", choices=["openvino", "onnx", "torch"], default="openvino")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = [record.text for record, _ in zip(documentation(), range(1000), strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        embedder = ContextualEmbedder.from_corpus(texts)
        with Collection.create(Path(folder, "docs.faiss"), embedder, parent_key="page") as collection:
            ids = [f"r{number}" for number in range(RECORDS)]
            pages = [{"page": f"p{number // 8}"} for number in range(RECORDS)]
            collection.add(texts[:RECORDS], ids=ids, metadata=pages)
        sizes = measured(Path(folder, "docs.faiss"), options.runtime, texts, 60 * options.minutes, options.seed)
    warm = round(WARM_UP * len(sizes))
    growth = max(sizes[warm:]) / max(sizes[:warm])
    tenths = [sizes[min(len(sizes) - 1, len(sizes) * tenth // 10)] for tenth in range(11)]
    print(f"{options.runtime}, {options.minutes:g} minutes, resident MiB by tenths of the time: {tenths}")
    print(f"largest after the first third over the largest in them: {growth:.3f} (at most {GROWTH})")
    sys.exit(growth > GROWTH)


def measured(store: Path, runtime: str, texts: list[str], seconds: float, seed: int) -> list[int]:
    """Return the server's resident memory in MiB, twice a second."""
    sizes = list[int]()
    with served(store, runtime) as (url, process):
        ended = time.monotonic() + seconds
        failures = list[str]()

        def work(number: int) -> None:
            try:
                load(url, texts, random.Random(f"{seed} {number}"), ended)
            except Exception as error:  # noqa: BLE001 (goes to the main thread)
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while time.monotonic() < ended and not failures:
            sizes.append(resident(process))
            time.sleep(EVERY_S)
        for thread in threads:
            thread.join(120)
        assert not failures, failures
    return sizes


@contextmanager
def served(store: Path, runtime: str) -> Iterator[tuple[str, int]]:
    """Serve a collection; yields its address and the process."""
    environment = {**os.environ, "CDE_RAG_RUNTIME": runtime}
    process = subprocess.Popen([*COMMAND, str(store), "--llm", "none"], stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    lines = (line.decode() for line in process.stderr)
    url = next(found[1] for line in lines if (found := re.search(r"running on (http://\S+?)[\s\"]", line)))
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()
        drain.wait()


def load(url: str, texts: list[str], draw: random.Random, ended: float) -> None:
    """Send requests of all kinds, one after the other."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=120)

    def send(path: str, body: object) -> None:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            answer = response.read()
        assert response.status < 300, answer[:300]

    while time.monotonic() < ended:
        kind = draw.random()
        if kind < 0.6:
            query = cut(draw.choice(texts), draw.randrange(1, 40))
            send("/v1/collections/docs/search", {"query": query, "k": draw.randrange(1, 20)})
        elif kind < 0.9:
            some = [cut(draw.choice(texts), draw.randrange(5, 400)) for _ in range(draw.randrange(1, TEXTS + 1))]
            send("/v1/embeddings", {"model": "docs", "input": some, "input_type": "document"})
        else:
            page = draw.randrange(RECORDS // 8)
            records = [
                {"id": f"r{8 * page + place}", "text": cut(draw.choice(texts), draw.randrange(5, 300)),
                 "metadata": {"page": f"p{page}"}}
                for place in range(draw.randrange(1, 9))
            ]  # fmt: skip
            send("/v1/collections/docs/records", {"records": records})


def cut(text: str, words: int) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:words])


def resident(process: int) -> int:
    """Return the resident memory of a process without files, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) // 2**10


if __name__ == "__main__":
    main()

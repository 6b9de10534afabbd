"""What the server costs: its documents a second next to the library's in a loop, and queries of clients at one time
next to one after the other. Interleaved rounds; the medians of the rounds' ratios are printed.

Run with: python lab/benchmarks/serve.py [--rounds N] [--json]   (needs the extra serve)
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from cde_rag import Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore
from lab.python_docs import documentation

BATCH, CLIENTS, QUERIES = 32, 32, 512
COMMAND = [sys.executable, "-c", "from cde_rag.cli import app; app()", "serve", "--port", "0"]


def main() -> None:
    """Print the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = [record.text for record, _ in zip(documentation(), range(2000), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "docs.faiss")
        Collection.create(FaissStore(path), embedder).close()
        process = subprocess.Popen([*COMMAND, str(path)], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"running on (http://\S+)", line)))
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        try:
            found = measure(url, embedder, texts[: options.documents], options.rounds)
        finally:
            process.terminate()
            process.wait()
            drain.wait()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:<60}{value:8.2f}")


class Client:
    """A connection of the standard library: httpx takes as much of a shared core for a request as the server.

    It is made for one phase, since the server closes connections that idle for seconds.
    """

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=120)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def embed(self, texts: list[str], role: str) -> None:
        """Send texts, and check that each has a vector."""
        body = {"model": "docs", "input": texts, "input_type": role, "encoding_format": "base64"}
        self._connection.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
        with self._connection.getresponse() as response:
            answer = json.load(response)
        assert len(answer["data"]) == len(texts), answer

    def queries(self, texts: list[str]) -> None:
        """Send texts one after the other, as queries."""
        for text in texts:
            self.embed([text], "query")


def measure(url: str, embedder: ContextualEmbedder, texts: list[str], rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds."""
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    queries = [" ".join(text.split()[:8]) for text in texts[:QUERIES]]
    served, looped, together, single = [], [], [], []
    Client(url).embed(texts[:BATCH], "document")
    embedder.embed_documents(texts[:BATCH])
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(rounds):
            client, started = Client(url), time.perf_counter()
            for batch in batches:
                client.embed(batch, "document")
            served.append(time.perf_counter() - started)
            started = time.perf_counter()
            for batch in batches:
                embedder.embed_documents(batch)
            looped.append(time.perf_counter() - started)
            clients = [Client(url) for _ in range(CLIENTS)]
            started = time.perf_counter()
            shares = [queries[number::CLIENTS] for number in range(CLIENTS)]
            list(pool.map(Client.queries, clients, shares))
            together.append(time.perf_counter() - started)
            client, started = Client(url), time.perf_counter()
            client.queries(queries)
            single.append(time.perf_counter() - started)
    return {
        "documents a second, served": len(texts) / median(served),
        "documents a second, library": len(texts) / median(looped),
        "served to library": median(b / a for a, b in zip(served, looped, strict=True)),
        "queries a second, 32 clients": len(queries) / median(together),
        "queries a second, one after the other": len(queries) / median(single),
        "32 clients to one after the other": median(b / a for a, b in zip(together, single, strict=True)),
    }


if __name__ == "__main__":
    main()

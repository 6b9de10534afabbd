"""What the server costs: its documents a second next to the library's in a loop, and queries of clients at one time
next to one after the other. Interleaved rounds; the medians of the rounds' ratios are printed.

Run with: python benchmarks/serve.py [--rounds N] [--json]   (needs the extra serve, and httpx)
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx

from cde_rag import Collection, ContextualEmbedder
from cde_rag.evaluation.demo_corpus import documentation
from cde_rag.stores.faiss import FaissStore

BATCH, CLIENTS, QUERIES = 32, 32, 128
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
            found = asyncio.run(measure(url, embedder, texts[: options.documents], options.rounds))
        finally:
            process.terminate()
            process.wait()
            drain.wait()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:<60}{value:8.2f}")


async def measure(url: str, embedder: ContextualEmbedder, texts: list[str], rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds."""
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    queries = [" ".join(text.split()[:8]) for text in texts[:QUERIES]]
    served, looped, together, single = [], [], [], []
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:

        async def embed(given: list[str], role: str) -> None:
            body = {"model": "docs", "input": given, "input_type": role, "encoding_format": "base64"}
            (await client.post("/v1/embeddings", json=body)).raise_for_status()

        async def work(some: list[str]) -> None:
            for query in some:
                await embed([query], "query")

        await embed(texts[:BATCH], "document")
        embedder.embed_documents(texts[:BATCH])
        for _ in range(rounds):
            started = time.perf_counter()
            for batch in batches:
                await embed(batch, "document")
            served.append(time.perf_counter() - started)
            started = time.perf_counter()
            for batch in batches:
                embedder.embed_documents(batch)
            looped.append(time.perf_counter() - started)
            started = time.perf_counter()
            await asyncio.gather(*(work(queries[number::CLIENTS]) for number in range(CLIENTS)))
            together.append(time.perf_counter() - started)
            started = time.perf_counter()
            await work(queries)
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

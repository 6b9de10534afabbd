"""Time and memory by the maximum tokens of a batch in OpenVINO, which keeps the memory of the largest batch.

Each limit has a process of its own, which embeds 300 docstrings, 128 texts of 180 words, and 900 of 100 characters (the
control: no limit cuts these batches much), and prints the processor's seconds of each and the private memory then.

Run with: python lab/benchmarks/tokens_at_once.py [--limits 100000 2048 1024 512] [--rounds 3]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from cde_rag import ContextualEmbedder
from cde_rag.models.runtimes.stage_runner import StageRunner
from lab.python_docs import documentation


def main() -> None:
    """Print a line for each limit and round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, nargs="+", default=[100_000, 2_048, 1_024, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(f"{options.one:7} tokens: {measured(options.one)}", flush=True)
        return
    for _ in range(options.rounds):
        for limit in options.limits:
            command = [sys.executable, "-W", "ignore", __file__, "--one", str(limit)]
            subprocess.run(command, check=True, env={**os.environ, "CDE_RAG_RUNTIME": "openvino"})


def measured(limit: int) -> str:
    """Embed the three kinds of texts in batches of at most so many tokens."""
    texts = [record.text for record, _ in zip(documentation(), range(900), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts[:200])
    stages: StageRunner = embedder.model.stages  # type: ignore[attr-defined]
    stages.tokens_at_once = limit
    long = [
        " ".join(f"{one} {other} {texts[0] * 3}".split()[:180])
        for one, other in zip(texts, texts[128:256], strict=False)
    ]
    found: list[str] = []
    for name, some in (("docstrings", texts[200:500]), ("long", long), ("short", [text[:100] for text in texts])):
        began = time.process_time()
        embedder.embed_documents(some)
        status = Path("/proc/self/status").read_text()
        private = int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) // 2**10
        found.append(f"{name} {time.process_time() - began:.1f} s, {private} MiB")
    return "; ".join(found)


if __name__ == "__main__":
    main()

"""What langchain-cde costs beside the embedding that it asks the core for.

The adapter's own work on all documents is timed with an embedder that replays vectors, and a collection that takes
documents and does nothing: a few milliseconds would be lost in the noise of minutes. In the same run, the core and the
core through the adapter embed some of the documents, slice by slice in turns.

Run with: python lab/benchmarks/langchain_adapter.py [--documents 5000] [--embedded 1000] [--json]
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from langchain_core.documents import Document

from cde_rag import Collection, ContextualEmbedder
from cde_rag.errors import TruncationWarning
from lab.python_docs import documentation
from langchain_cde import CDEEmbeddings, CDEVectorStore

SLICE = 50  # documents embedded by one and then by the other
ROUNDS = 5  # of the adapter's own work


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call, over all threads; unlike wall time it does not tell who else is at work."""
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(count: int, embedded: int) -> dict[str, float]:
    """Processor seconds for `count` documents: of the core, of the core through LangChain, of the adapter's own work.

    The first two are measured on `embedded` documents, spread over all.
    """
    warnings.simplefilter("ignore", TruncationWarning)
    texts = [record.text for record, _ in zip(documentation(), range(count), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts)
    embeddings = CDEEmbeddings(embedder)
    sample = texts[:: max(1, len(texts) // embedded)]
    vectors = embedder.embed_documents(sample[:SLICE])  # so that neither pays for the first call

    core, through = 0.0, 0.0
    for number, start in enumerate(range(0, len(sample), SLICE)):
        part = sample[start : start + SLICE]
        calls = [partial(embedder.embed_documents, part), partial(embeddings.embed_documents, part)]
        times = {turn: seconds(calls[turn]) for turn in ((0, 1) if number % 2 else (1, 0))}
        core, through = core + times[0], through + times[1]

    def replay(asked: Sequence[str]) -> np.ndarray:
        return np.resize(vectors, (len(asked), embedder.dim))

    replaying = CDEEmbeddings(
        cast(ContextualEmbedder, SimpleNamespace(embed_documents=replay, fingerprint=embedder.fingerprint))
    )
    idle = CDEVectorStore(cast(Collection, SimpleNamespace(embedder=embedder, add=_ignore)))
    documents = [Document(page_content=text, metadata={"source": str(n // 10)}) for n, text in enumerate(texts)]
    own = median(seconds(lambda: replaying.embed_documents(texts)) for _ in range(ROUNDS))
    adding = median(seconds(lambda: idle.add_documents(documents)) for _ in range(ROUNDS))
    all_documents = len(texts) / len(sample)
    return {
        "documents": len(texts),
        "core_s": core * all_documents,
        "through_s": through * all_documents,
        "embeddings_own_s": own,
        "vector_store_own_s": adding,
        "embeddings_share": own / (core * all_documents),
        "vector_store_share": adding / (core * all_documents),
    }


def _ignore(texts: Sequence[str], **columns: Any) -> None:
    """A collection that takes everything and does nothing."""


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--embedded", type=int, default=1000, help="of them, to measure the core with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.documents, options.embedded)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), **found}, indent=2))
        return
    print(f"{found['documents']} documents, {torch.get_num_threads()} threads")
    print(f"core {found['core_s']:.1f} s, the same through CDEEmbeddings {found['through_s']:.1f} s (processor time)")
    print(f"CDEEmbeddings' own work  {1e3 * found['embeddings_own_s']:.0f} ms, {found['embeddings_share']:.3%} of core")
    print(f"CDEVectorStore's own work {1e3 * found['vector_store_own_s']:.0f} ms, {found['vector_store_share']:.3%}")


if __name__ == "__main__":
    main()

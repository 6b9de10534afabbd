"""What langchain-cde costs beside the embedding that it asks the core for.

The adapter's own work is timed in the same run with an embedder that replays the core's vectors, and a collection that
takes documents and does nothing: a few milliseconds would be lost in the noise of minutes. The whole is timed too, the
core and the adapter on the same slice in turns.

Run with: python benchmarks/langchain_adapter.py [--documents 5000] [--json]
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from langchain_core.documents import Document

from cde_rag import Collection, ContextualEmbedder, TruncationWarning
from cde_rag.demo.corpus import documentation
from langchain_cde import CDEEmbeddings, CDEVectorStore

SLICE = 250  # documents embedded by one and then by the other
ROUNDS = 5  # of the adapter's own work


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call, over all threads; unlike wall time it does not tell who else is at work."""
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(count: int) -> dict[str, float]:
    """Processor seconds of the core, of the whole through LangChain, and of the adapter alone; and the two shares."""
    warnings.simplefilter("ignore", TruncationWarning)
    texts = [record.text for record, _ in zip(documentation(), range(count), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts)
    embeddings = CDEEmbeddings(embedder)
    embedder.embed_documents(texts[:SLICE])  # so that neither pays for the first call

    core, through, parts = 0.0, 0.0, list[np.ndarray]()
    for number, start in enumerate(range(0, len(texts), SLICE)):
        part = texts[start : start + SLICE]
        turns: list[Callable[[], object]] = [
            lambda part=part: parts.append(embedder.embed_documents(part)),
            lambda part=part: embeddings.embed_documents(part),
        ]
        times = {turn: seconds(turns[turn]) for turn in ((0, 1) if number % 2 else (1, 0))}
        core, through = core + times[0], through + times[1]
    vectors = np.concatenate(parts)

    def replay(asked: Sequence[str]) -> np.ndarray:
        return vectors[: len(asked)]

    replaying = CDEEmbeddings(
        cast(ContextualEmbedder, SimpleNamespace(embed_documents=replay, fingerprint=embedder.fingerprint))
    )
    idle = CDEVectorStore(cast(Collection, SimpleNamespace(embedder=embedder, add=_ignore)))
    documents = [Document(page_content=text, metadata={"source": str(n // 10)}) for n, text in enumerate(texts)]
    own = median(seconds(lambda: replaying.embed_documents(texts)) for _ in range(ROUNDS))
    adding = median(seconds(lambda: idle.add_documents(documents)) for _ in range(ROUNDS))
    return {
        "documents": len(texts),
        "core_s": core,
        "through_s": through,
        "embeddings_own_s": own,
        "vector_store_own_s": adding,
        "embeddings_share": own / core,
        "vector_store_share": adding / core,
    }


def _ignore(texts: Sequence[str], **columns: Any) -> None:
    """A collection that takes everything and does nothing."""


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.documents)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), **found}, indent=2))
        return
    print(f"{found['documents']} documents, {torch.get_num_threads()} threads")
    print(f"core {found['core_s']:.1f} s, the same through CDEEmbeddings {found['through_s']:.1f} s")
    print(f"CDEEmbeddings' own work  {1e3 * found['embeddings_own_s']:.0f} ms, {found['embeddings_share']:.3%} of core")
    print(f"CDEVectorStore's own work {1e3 * found['vector_store_own_s']:.0f} ms, {found['vector_store_share']:.3%}")


if __name__ == "__main__":
    main()

"""What the LlamaIndex packages cost beside the embedding that they ask the core for.

Their own work on all documents is timed with an embedder that replays vectors, and a collection that takes records and
does nothing: a few milliseconds would be lost in the noise of minutes. In the same run the core, and the core through
CDEEmbedding, embed some of the documents, slice by slice in turns.

Run with: python lab/benchmarks/llama_index_adapter.py [--documents 5000] [--embedded 1000] [--json]
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
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index.vector_stores.cde import CDEVectorStore

from cde_rag import Collection, ContextualEmbedder
from cde_rag.errors import TruncationWarning
from lab.python_docs import documentation

SLICE = 250  # documents embedded by one and then by the other
ROUNDS = 5  # of the packages' own work


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call, over all threads; unlike wall time it does not tell who else is at work."""
    started = time.process_time()
    call()
    return time.process_time() - started


def replaying(embedder: ContextualEmbedder) -> ContextualEmbedder:
    """An embedder of the same context whose vectors cost nothing."""
    vector = np.full(embedder.dim, embedder.dim**-0.5, dtype=np.float32)

    def replay(asked: Sequence[str], **_: Any) -> np.ndarray:
        return np.broadcast_to(vector, (len(asked), embedder.dim))

    return cast(ContextualEmbedder, SimpleNamespace(context=embedder.context, embed_documents=replay))


def measure(count: int, embedded: int) -> dict[str, float]:
    """Processor seconds of core and packages, and the packages' shares."""
    warnings.simplefilter("ignore", TruncationWarning)
    texts = [record.text for record, _ in zip(documentation(), range(count), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts)
    through = CDEEmbedding.from_embedder(embedder)
    embedder.embed_documents(texts[:SLICE])  # so that neither pays for the first call
    core_s, through_s = 0.0, 0.0
    for number, start in enumerate(range(0, embedded, SLICE)):
        part = texts[start : start + SLICE]
        turns = (partial(embedder.embed_documents, part), partial(through.get_text_embedding_batch, part))
        times = {turn: seconds(turns[turn]) for turn in ((0, 1), (1, 0))[number % 2]}
        core_s, through_s = core_s + times[0], through_s + times[1]
    core_s *= len(texts) / embedded

    nodes = [
        TextNode(text=text, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=str(number // 10))})
        for number, text in enumerate(texts)
    ]
    own = CDEEmbedding.from_embedder(replaying(embedder))
    idle = CDEVectorStore(cast(Collection, SimpleNamespace(add_records=list)))
    for each in nodes:
        each.embedding = None
    works: dict[str, Callable[[], object]] = {
        "vector_store": lambda: idle.add(nodes),
        "strings": lambda: own.get_text_embedding_batch(texts),
        "nodes": lambda: own(nodes),
    }
    found = {name: median(seconds(work) for _ in range(ROUNDS)) for name, work in works.items()}
    return {
        "documents": len(texts),
        "core_s": core_s,
        "through_share": through_s * len(texts) / embedded / core_s - 1,
        **{f"{name}_s": own_s for name, own_s in found.items()},
        **{f"{name}_share": own_s / core_s for name, own_s in found.items()},
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--embedded", type=int, default=1000, help="of these, embedded by the core and through both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.documents, options.embedded)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), **found}, indent=2))
        return
    print(
        f"{found['documents']} documents, {torch.get_num_threads()} threads; core {found['core_s']:.1f} s of processor"
    )
    print(f"through CDEEmbedding, in turns {found['through_share']:+.1%}; own work of")
    for name, call in (
        ("strings", "get_text_embedding_batch"),
        ("nodes", "CDEEmbedding(nodes)"),
        ("vector_store", "CDEVectorStore.add"),
    ):
        print(f"  {call:25} {1e3 * found[f'{name}_s']:5.0f} ms, {found[f'{name}_share']:.2%} of core")


if __name__ == "__main__":
    main()

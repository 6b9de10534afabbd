"""Roofline of one query and of a batch of documents: arithmetic and weights read, against what the CPU can do.

Arithmetic is counted by PyTorch in the network itself: in the null context, in a context, with a context and siblings,
and in a two-way network of the published sizes. The CPU's limits are measured: products of large matrices by dtype, and
a copy in memory, in the same run as the times. A query runs on one thread, a batch on all.

Run with: python lab/benchmarks/roofline.py [--two-way] [--json]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from two_way import write_random

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY

SHAPES = {"query of 32 tokens": (1, 32, QUERY), "32 documents of 128 tokens": (32, 128, DOCUMENT)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIDE, COPIED = 3072, 2**28
ROUNDS = 15


def main() -> None:
    """Print two tables: arithmetic of the networks, and times of the runtimes against the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--two-way", action="store_true", help="count a network of the published sizes, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counted = [*one_way(), *(two_way() if options.two_way else [])]
    limits = {(dtype, threads): peak(DTYPES[dtype], threads) for dtype in DTYPES for threads in (1, 0)}
    bandwidth = copy_speed()
    timed = [row for runtime, dtype in runtime_choice.candidates() for row in times(runtime, dtype, counted, limits)]
    if options.json:
        print(json.dumps({"counted": counted, "copy_gb_s": bandwidth, "timed": timed}, indent=2))
        return
    print(f"{runtime_choice.cpu_name()}, {' '.join(runtime_choice.cpu_flags())}, {torch.get_num_threads()} threads")
    print(f"copy in memory: {bandwidth:.1f} GB/s; products of matrices, GFLOP/s: ", end="")
    print(", ".join(f"{dtype} on {threads or 'all'} {value:.0f}" for (dtype, threads), value in limits.items()))
    print("\n| network | work | GFLOP | weights, MB | FLOP for each byte of weights |\n| --- | --- | --- | --- | --- |")
    for row in counted:
        share = 1e3 * row["gflop"] / row["weights_mb"]
        print(f"| {row['network']} | {row['work']} | {row['gflop']:.2f} | {row['weights_mb']:.0f} | {share:.0f} |")
    print("\n| runtime | work | ms | GFLOP/s | of the products' |\n| --- | --- | --- | --- | --- |")
    for row in timed:
        print(f"| {row['runtime']} | {row['work']} | {row['ms']:.1f} | {row['gflop_s']:.0f} | {row['share']:.0%} |")


def one_way() -> list[dict[str, Any]]:
    """Count the bundled model's second stage."""
    model = CDEModel.from_pretrained(runtime="torch", dtype="float32", device="cpu")
    layers = sum(p.numel() for p in model.network.second_stage.parameters()) * 4 / 1e6
    texts = [f"text number {number}" for number in range(64)]
    contexts = {
        "null context": Context.null(model),
        "one-way": ContextualEmbedder.from_corpus(texts, model=model).context,
    }
    rows = []
    for work, (count, tokens, role) in SHAPES.items():
        ids = [[1000 + place for place in range(tokens)]] * count
        given = (
            np.ones((count, ContextualEmbedder(model, contexts["null context"]).max_siblings, model.dim), np.float32)
            / model.dim**0.5
        )
        kinds = {
            **{name: (context, None) for name, context in contexts.items()},
            "one-way, 16 siblings": (contexts["one-way"], given),
        }
        for name, (context, siblings) in kinds.items():
            if siblings is not None and role == QUERY:
                continue
            mask = None if siblings is None else np.ones(siblings.shape[:2], np.bool_)
            prepared = model.prepare(context)
            gflop = counted(partial(model.stages.embed, ids, role, prepared, siblings, mask))
            rows.append({"network": f"cde-mini, {name}", "work": work, "gflop": gflop, "weights_mb": layers})
    return rows


def two_way() -> list[dict[str, Any]]:
    """Count a network of random weights in the sizes of jxm/cde-small-v1, with its context of 512 documents."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = CDEModel.from_pretrained(
            write_random("random:v1", Path(folder, "model")), dtype="float32", device="cpu", runtime="torch"
        )
        weights = sum(p.numel() for p in model.network.second_stage.parameters()) * 4 / 1e6
        context = np.random.default_rng(0).standard_normal((512, 768)).astype(np.float32)
        prepared = model.stages.prepare(context, np.ones(512, np.int64))
        for work, (count, tokens, role) in SHAPES.items():
            ids = [[1000 + place for place in range(tokens)]]
            gflop = count * counted(partial(model.stages.embed, ids, role, prepared, None, None))
            rows.append({"network": "two-way, cde-small-v1", "work": work, "gflop": gflop, "weights_mb": weights})
    return rows


def counted(work: Callable[[], object]) -> float:
    """Return the billions of operations of a call."""
    attention = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}  # not counted by itself
    with FlopCounterMode(display=False, custom_mapping=attention) as counter:
        work()
    return counter.get_total_flops() / 1e9


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the operations of attention, by the shapes of its inputs."""
    return sdpa_flop_count(query, key, value)


def peak(dtype: torch.dtype, threads: int) -> float:
    """Return billions of operations a second in a product of large matrices; 0 threads stand for all."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    found = 2 * SIDE**3 / fastest(lambda: a @ b, 5) / 1e9
    torch.set_num_threads(before)
    return found


def copy_speed() -> float:
    """Return gigabytes a second that are read and written by a copy."""
    source = np.ones(COPIED // 8)
    target = np.empty_like(source)
    return 2 * COPIED / fastest(lambda: np.copyto(target, source), 5) / 1e9


def fastest(work: Callable[[], object], rounds: int) -> float:
    found = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found[1:])


def times(
    runtime: str, dtype: str, arithmetic: list[dict[str, Any]], limits: dict[tuple[str, int], float]
) -> list[dict[str, Any]]:
    """Time a runtime on the same token ids, with a context."""
    model = CDEModel.from_pretrained(runtime=runtime, dtype=dtype, device="cpu")
    texts = [f"text number {number}" for number in range(64)]
    prepared = model.prepare(ContextualEmbedder.from_corpus(texts, model=model).context)
    rows = []
    for work, (count, tokens, role) in SHAPES.items():
        ids = [[1000 + place for place in range(tokens)]] * count
        found = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            model.stages.embed(ids, role, prepared, None, None)
            found.append(time.perf_counter() - started)
        gflop = next(
            row["gflop"] for row in arithmetic if row["work"] == work and row["network"] == "cde-mini, one-way"
        )
        speed = gflop / median(found[3:])
        share = speed / limits[dtype, 1 if count == 1 else 0]
        rows.append(
            {
                "runtime": f"{runtime} {dtype}",
                "work": work,
                "ms": 1e3 * median(found[3:]),
                "gflop_s": speed,
                "share": share,
            }
        )
    return rows


if __name__ == "__main__":
    main()

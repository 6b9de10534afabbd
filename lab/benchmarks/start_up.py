"""Seconds to the first query vector in a fresh process, and the memory of that process, in each runtime.

Memory is resident (RSS), and of that private (no file behind it): processes share pages of files, and the system takes
them back when it needs memory. `import torch` stands beside. Run with: python lab/benchmarks/start_up.py [--model NAME]
[--rounds N] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from statistics import median

EMBEDDING = """
from cde_rag import CDEModel, Context, ContextualEmbedder
model = CDEModel.from_pretrained({model!r})
embedder = ContextualEmbedder(model, Context.null(model))
embedder.embed_queries(["how do I parse a date?"])
"""
PACKAGES = {"torch": "torch", "openvino": "openvino", "onnx": "onnxruntime"}
MEASURED = """
import json, time
started = time.perf_counter()
{code}
seconds = time.perf_counter() - started
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
resident, private = (int(lines[name].split()[0]) / 1e3 for name in ("VmRSS", "RssAnon"))
print(json.dumps([seconds, resident, private]))
"""


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cde-mini")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runtimes = [runtime for runtime, package in PACKAGES.items() if find_spec(package)]
    embedding = EMBEDDING.format(model=options.model)
    cases = {"import cde_rag": ("import cde_rag", ""), "import torch": ("import torch", "")}
    cases = {name: case for name, case in cases.items() if find_spec(name.split()[1])}
    cases |= {f"first query, {runtime}": (embedding, runtime) for runtime in runtimes}
    for code, runtime in cases.values():
        measured(code, runtime)  # fills caches
    found: dict[str, list[list[float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, case in cases.items():
            found[name].append(measured(*case))
    figures = {
        name: dict(zip(("seconds", "resident_mb", "private_mb"), map(median, zip(*rounds, strict=True)), strict=True))
        for name, rounds in found.items()
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':<22} {'s':>7} {'resident MB':>12} {'private MB':>12}")
    for name, each in figures.items():
        print(f"{name:<22} {each['seconds']:7.2f} {each['resident_mb']:12.0f} {each['private_mb']:12.0f}")


def measured(code: str, runtime: str) -> list[float]:
    """Run code in a fresh process; return its seconds, resident and private megabytes."""
    environment = os.environ | ({"CDE_RAG_RUNTIME": runtime} if runtime else {})
    command = [sys.executable, "-c", MEASURED.format(code=code)]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    found: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

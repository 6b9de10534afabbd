"""How long until the first embedding, in fresh processes; beside it what `import torch` takes alone.

Run with: python benchmarks/start_up.py [--json]
"""

import argparse
import json
import subprocess
import sys
from statistics import median

CASES = {
    "import cde_rag": "import cde_rag",
    "import torch": "import torch",
    "first embedding": (
        "from cde_rag import CDEModel, Context, ContextualEmbedder\n"
        "model = CDEModel.from_pretrained('cde-mini')\n"
        "ContextualEmbedder(model, Context.null(model)).embed_queries(['how do I parse a date?'])"
    ),
}
TIMED = "import time; started = time.perf_counter()\n{code}\nprint(time.perf_counter() - started)"


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, code in CASES.items():
            command = [sys.executable, "-c", TIMED.format(code=code)]
            times[name].append(float(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
    medians = {name: median(values) for name, values in times.items()}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    for name, value in medians.items():
        print(f"{name:<16} {value:6.3f} s")


if __name__ == "__main__":
    main()

"""README's table of speeds: runs the benchmarks that it names, and writes what each found beside what was aimed for.

Run with: python lab/benchmarks/speed.py [query] [documents] [start-up] [memory] [--folder FOLDER] [--output FILE], on a
quiet machine; rows of benchmarks that are not named stay as they are. `documents` needs FOLDER, in BEIR's layout.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
MILLION = ("--records", "1000000")


class Speed(NamedTuple):
    """A row: what is looked at, what was found, what was aimed for, and the command that prints it."""

    what: str
    found: str
    aim: str
    command: str


def query(found: Mapping[str, Any]) -> list[Speed]:
    """Of `query.py`."""
    ratios = {row["dtype"]: row["ratio"] for row in found["rows"]}
    return [
        Speed(
            "a query given a context, to one without",
            f"{ratios['float32']:.2f} × (fp32), {ratios['bfloat16']:.2f} × (bf16)",
            "1.10 ×",
            "`python lab/benchmarks/query.py`",
        )
    ]


def documents(found: Mapping[str, Any]) -> list[Speed]:
    """Of `documents.py`."""
    what = "documents, to sentence-transformers' all-MiniLM-L6-v2"
    return [Speed(what, f"{found['ratio']:.1f} × as fast", "2.5 ×", "`python lab/benchmarks/documents.py FOLDER`")]


def start_up(found: Mapping[str, Any]) -> list[Speed]:
    """Of `start_up.py`."""
    first = {name.rpartition(" ")[2]: each["seconds"] for name, each in found.items() if name.startswith("first")}
    seconds = f"{found['import cde_rag']['seconds']:.3f} s; " + ", ".join(
        f"{first[name]:.1f} s ({name})" for name in first
    )
    what = "`import cde_rag`; a fresh process to its first query vector"
    return [Speed(what, seconds, "0.3 s; 2 s, without torch 1 s", "`python lab/benchmarks/start_up.py`")]


def memory(found: Mapping[str, Any]) -> list[Speed]:
    """Of `memory.py`."""
    records = f"{found['records']:_}".replace("_", " ")
    what = f"memory that indexing {records} short records adds, with a flat index and vectors made before"
    command = f"`python lab/benchmarks/memory.py {' '.join(MILLION)}`"
    return [
        Speed(what, f"{found['growth_mb']:.0f} MB", "200 MB", command),
        Speed(
            "one record more to these writes (the most of 50)",
            f"{found['single_most_bytes'] / 1e3:.0f} KB",
            "1 MB",
            "the same",
        ),
    ]


BENCHMARKS: Mapping[str, Callable[[Mapping[str, Any]], list[Speed]]] = {
    "query": query,
    "documents": documents,
    "start-up": start_up,
    "memory": memory,
}


def known(path: Path) -> dict[str, Speed]:
    """The rows that are there, by what they look at."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["what"]: Speed(**row) for row in csv.DictReader(lines)}


def main() -> None:
    """Run what is asked for, in the table's order, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--folder", help="texts for documents, in BEIR's layout")
    parser.add_argument("--output", type=Path, default=HERE.parent / "tables/speed.csv")
    options = parser.parse_args()
    names = options.names or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"Expected names out of {', '.join(BENCHMARKS)}, found {', '.join(unknown)}.")
    if "documents" in names and options.folder is None:
        parser.error("Expected --folder with texts for documents, found none; or name the others.")
    arguments = {"documents": [options.folder], "memory": list(MILLION)}
    rows = known(options.output)
    for name in names:
        script = HERE / f"{name.replace('-', '_')}.py"
        command = [sys.executable, str(script), *arguments.get(name, []), "--json"]
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        for row in BENCHMARKS[name](json.loads(printed)):
            rows[row.what] = row
            print(f"{row.what}: {row.found} (aim {row.aim})")
    with options.output.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows([Speed._fields, *rows.values()])


if __name__ == "__main__":
    main()

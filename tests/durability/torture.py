"""The long durability run: every test of TESTS with torture's counts, one after the other.

    python tests/durability/torture.py --seed 0

Each finished test is noted in lab/tables/durability.jsonl, so that a run that was stopped continues with the next test
when it is started again, on another day too; a test is run again once the sources of `cde_rag` are others than then.
After each test the table of lab/pages/durability.md is written from the notes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from cde_rag.stores.files import replace_durably

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "lab/tables/durability.jsonl"
PAGE = ROOT / "lab/pages/durability.md"
TESTS = ("tests/durability", "tests/test_two_runs.py")
BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"


@dataclass(frozen=True)
class Note:
    """The outcome of one test.

    Attributes:
        test: Its pytest id.
        seed: Of its random draws.
        sources: Hash of git's tree of `cde_rag` then.
        day: ISO 8601.
        minutes: Time that it took.
        outcome: "passed", "failed" or "skipped".
        counts: One line for each `tell` of the test.
    """

    test: str
    seed: int
    sources: str
    day: str
    minutes: float
    outcome: str
    counts: Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the draws")
    parser.add_argument("--only", default="", help="run tests whose id contains this text")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="begin no test after so many minutes")
    arguments = parser.parse_args()
    now, ended = sources(), time.monotonic() + 60 * arguments.minutes
    done = {(note.test, note.seed, note.sources) for note in notes()}
    tests = [test for test in _collected(arguments.seed) if arguments.only in test]
    left = [test for test in tests if (test, arguments.seed, now) not in done]
    print(f"{len(tests)} tests, {len(left)} of them left, seed {arguments.seed}", file=sys.stderr)
    failed = 0
    for test in tqdm(left, unit="test"):
        if time.monotonic() >= ended:
            break
        note = _run(test, arguments.seed, now)
        failed += note.outcome == "failed"
        lines = [json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in (*notes(), note)]
        replace_durably(NOTES, "".join(lines).encode())
        write_table(PAGE, notes())
    write_table(PAGE, notes())
    sys.exit(1 if failed else 0)


def notes() -> list[Note]:
    """The notes of all runs, oldest first."""
    lines = NOTES.read_text("utf-8").splitlines() if NOTES.exists() else ()
    return [Note(**json.loads(line)) for line in lines]


def write_table(page: Path, found: Iterable[Note]) -> None:
    """Write the newest note of each test and seed into the page's table."""
    newest = {(note.test, note.seed): note for note in found}
    lines = ["| test | seed | result | counts | day | sources |", "| --- | --- | --- | --- | --- | --- |"]
    for (test, seed), note in sorted(newest.items()):
        name = test.rpartition("::")[2]
        counts = "; ".join(line.partition(": ")[2] for line in note.counts).replace("|", "\\|") or "–"
        lines.append(f"| {name} | {seed} | {note.outcome} | {counts} | {note.day} | {note.sources[:7]} |")
    replaced(page, BEGIN, END, lines)


def replaced(page: Path, begin: str, end: str, lines: Sequence[str]) -> None:
    """Write the lines of a table between two comments of a page.

    Raises:
        ValueError: The page lacks them.
    """
    text = page.read_text("utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page}: expected {begin} and {end}, once each, to write the table between them.")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    replace_durably(page, "\n".join([before + begin, "", *lines, "", end + after]).encode())


def sources() -> str:
    """The hash of git's tree of `cde_rag`, which has to be committed."""
    command = ["git", "ls-files", "-s", "cde_rag"]
    index = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    if changed := subprocess.run(["git", "diff", "--name-only", "cde_rag"], cwd=ROOT, capture_output=True).stdout:
        sys.exit(f"Expected the committed sources, found changes in {changed.decode().split()}. Commit them first.")
    hashed = subprocess.run(["git", "hash-object", "--stdin"], cwd=ROOT, check=True, input=index, capture_output=True)
    return hashed.stdout.decode().strip()


def _collected(seed: int) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--override-ini", "addopts=", "--collect-only", "-q", *TESTS]
    environment = {**os.environ, "CDE_TORTURE": str(seed)}
    told = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    return [line for line in told.splitlines() if "::" in line]


def _run(test: str, seed: int, sources: str) -> Note:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        environment = {**os.environ, "CDE_TORTURE": str(seed), "CDE_TORTURE_COUNTS": str(counts)}
        command = [sys.executable, "-m", "pytest", "--override-ini", "addopts=", "-q", "-rs", test]
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        lines = counts.read_text("utf-8").splitlines() if counts.exists() else []
    outcome = "failed" if run.returncode else "skipped" if " skipped" in run.stdout.splitlines()[-1] else "passed"
    if outcome == "failed":
        print(run.stdout, file=sys.stderr)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return Note(test, seed, sources, day, round((time.monotonic() - began) / 60, 1), outcome, lines)


if __name__ == "__main__":
    main()

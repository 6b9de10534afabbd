"""Share of mutants that the tests kill, at two commits: `python -m lab.mutants BEFORE AFTER`.

Each commit gets a checkout of its own in OUTPUT, in whose files the mutants are written one by one. Every test of
`--tests` runs once and notes the lines it reaches. A mutant then meets the tests that reach its statement, the cheapest
first, until one fails; one that no test reaches survives. All is noted in OUTPUT, so that the same command goes on.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import coverage

from lab.mutants import forked_tests
from lab.mutants.sample import PACKAGES, Mutant, sample

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests", "integrations")
LEFT_OUT = ("/docs/", "/durability/", "/house/", "/reference/", "/training/")  # minutes, or no promise of the packages
LONGEST, BUDGET = 8.0, 16.0  # processor seconds: of a test that takes part, and of all tests that one mutant meets
MAPPING = 900  # processor seconds for the tests of one file


class NotRunError(RuntimeError):
    """The process could not run the tests."""


class Checkout:
    """One commit in a folder of its own, and the process that runs its tests."""

    def __init__(self, commit: str, output: Path, tests: list[str]) -> None:
        self.commit, self.output = commit, output
        self.root = output / "trees" / commit
        if not self.root.exists():
            subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, self.root], check=True)
        subprocess.run(["git", "-C", self.root, "checkout", "--quiet", "--force", "--detach", commit], check=True)
        found = [path for each in tests for path in sorted(self.root.glob(each))]
        files = [file for path in found for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
        names = dict.fromkeys(path.relative_to(self.root).as_posix() for path in files)
        self.files = [name for name in names if not any(part in name for part in LEFT_OUT)]
        self.temporary = output / "temporary" / commit
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Checkout":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.process.communicate()  # it ends where its requests end
            self.process = None

    def answer(self, request: dict[str, object]) -> dict[str, Any]:
        """Send one request to the process of `forked_tests`, which is started by the first.

        Raises:
            RuntimeError: The tests cannot be collected.
            NotRunError: The process could not run them.
        """
        if self.process is None:
            imported = ["", "training", "models/*", "integrations/*", "integrations/*/src"]
            folders = [
                path for each in imported for path in ([self.root] if not each else sorted(self.root.glob(each)))
            ]
            tools = Path(coverage.__file__).parents[1]  # at the end: they may be in a folder of their own
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(map(str, [*folders, tools])),
                "CI": "true",  # the same examples of properties each time
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, forked_tests.__file__]
            with (self.output / f"{self.commit}.log").open("w", encoding="utf-8") as log:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                self.process = subprocess.Popen(command, cwd=self.root, env=environment, text=True, **pipes)
            if self.exchange(self.files)["status"]:
                raise RuntimeError(f"The tests of {self.root} cannot be collected: run pytest --collect-only there.")
        answer = self.exchange({"temporary": str(self.temporary), **request})
        if "error" in answer:
            raise NotRunError(f"Tests of {self.root} could not be run: {answer['error']}")
        return answer

    def exchange(self, message: object) -> dict[str, Any]:
        """Send one line, and read one."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(message), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def lines(self) -> Iterator[dict[str, Any] | None]:
        """Costs and lines of the tests of each file, in turn; None for each file that had to run first."""
        sources = [f"{self.root / package}/*" for package in PACKAGES]
        for name in self.files:
            path = self.output / "lines" / self.commit / f"{name.replace('/', '.')}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                answer = self.answer({"tests": [name], "sources": sources, "seconds": MAPPING, "patience": 4 * MAPPING})
                path.write_text(json.dumps(answer), encoding="utf-8")
                seconds = sum(answer.get("costs", {}).values())
                print(f"{self.commit} {name}: {seconds:.0f} s, failed {answer.get('failed')}", flush=True)
                yield None
            yield json.loads(path.read_text(encoding="utf-8"))

    def outcome(self, mutant: Mutant, tests: list[dict[str, Any]]) -> dict[str, Any]:
        """Note on a mutant that met the tests which reach its statement."""
        first, last = mutant.statement
        reaching = {
            test: file["costs"][test]
            for file in tests
            for test, lines in file.get("lines", {}).items()
            if file["costs"][test] <= LONGEST and any(first <= line <= last for line in lines.get(mutant.file, ()))
        }
        chosen, cost = [], 0.0
        for test in sorted(reaching, key=lambda each: reaching[each]):
            cost += reaching[test]
            if cost <= BUDGET:
                chosen.append(test)
        note = {"reaching": len(reaching), "met": len(chosen), "killed": False}
        if not chosen:
            return note
        path = self.root / mutant.file
        unchanged, times = path.read_text(encoding="utf-8"), path.stat()
        try:
            path.write_text(mutant.source, encoding="utf-8")
            seconds = int(30 + 3 * min(cost, BUDGET))
            request = {
                "mutant": str(path),
                "function": mutant.function,
                "seconds": seconds,
                "patience": 60 + 4 * seconds,
            }
            answer = self.answer({"tests": chosen, **request})
        finally:
            path.write_text(unchanged, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its compiled form stays good
        by = answer.get("failed") or ["a limit of time or memory"]
        return note | ({"killed": True, "by": by[0], "reason": answer.get("reason")} if answer["status"] else {})


def drawn(checkout: Checkout, *, count: int, seed: int) -> list[Mutant]:
    """The sample of a checkout, which is drawn once."""
    path = checkout.output / f"sample-{checkout.commit}-{seed}-{count}.json"
    if not path.exists():
        path.write_text(
            json.dumps([asdict(each) for each in sample(checkout.root, count=count, seed=seed)]), encoding="utf-8"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Mutant(**{**each, "statement": tuple(each["statement"])}) for each in found]


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share, of 95 %."""
    share, weight = hits / total, z * z / total
    middle, half = share + weight / 2, z * ((share * (1 - share) + weight / 4) / total) ** 0.5
    return (middle - half) / (1 + weight), (middle + half) / (1 + weight)


def newcombe(before: tuple[int, int], after: tuple[int, int]) -> tuple[float, float]:
    """Newcombe's interval of the difference of two shares, after less before, each as hits and total."""
    old, new = before[0] / before[1], after[0] / after[1]
    (old_low, old_high), (new_low, new_high) = wilson(*before), wilson(*after)
    low = ((new - new_low) ** 2 + (old_high - old) ** 2) ** 0.5
    return new - old - low, new - old + ((new_high - new) ** 2 + (old - old_low) ** 2) ** 0.5


def report(outcomes: dict[tuple[str, int], dict[str, Any]], commits: list[str]) -> str:
    """The shares of both commits over the numbers that both have, and the interval of their difference."""
    both = [n for commit, n in outcomes if commit == commits[0] and (commits[1], n) in outcomes]
    if not both:
        return "No mutant has an outcome at both commits yet."
    counts = [(sum(outcomes[commit, n]["killed"] for n in both), len(both)) for commit in commits]
    lines = [
        f"{commit}: {hits} of {total} killed, {hits / total:.3f} ({low:.3f} to {high:.3f})"
        for commit, (hits, total) in zip(commits, counts, strict=True)
        for low, high in [wilson(hits, total)]
    ]
    low, high = newcombe(*counts)
    return "\n".join([*lines, f"difference: {low:+.3f} to {high:+.3f} (95 %)"])


def read(path: Path, seed: int) -> dict[tuple[str, int], dict[str, Any]]:
    """The last outcome of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(each["commit"], each["number"]): each for each in map(json.loads, lines) if each["seed"] == seed}


def main() -> None:
    """Record lines, test mutants at one commit and the other in turn, and print the shares."""
    parser = argparse.ArgumentParser(prog="python -m lab.mutants", description=__doc__)
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="before, and after")
    parser.add_argument("--output", type=Path, default=Path("runs/mutants"), help="folder of checkouts and notes")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files, folders or patterns, in this order")
    parser.add_argument("--count", type=int, default=500, help="mutants at each commit; 0 prints the shares so far")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    path = options.output.resolve() / "outcomes.jsonl"
    if options.count:
        before, after = (Checkout(commit, options.output.resolve(), options.tests) for commit in options.commits)
        with before, after:
            run([before, after], path, count=options.count, seed=options.seed)
    print(report(read(path, options.seed), options.commits))


def run(checkouts: list[Checkout], path: Path, *, count: int, seed: int) -> None:
    """Append the outcome of each mutant that has none yet, or that survived fewer files of tests."""
    found: list[list[dict[str, Any]]] = [[], []]
    for pair in zip_longest(*(each.lines() for each in checkouts)):
        for tests, lines in zip(found, pair, strict=True):
            if lines is not None:
                tests.append(lines)
    samples = [drawn(each, count=count, seed=seed) for each in checkouts]
    outcomes = read(path, seed)
    for number in range(max(map(len, samples))):
        for checkout, tests, mutants in zip(checkouts, found, samples, strict=True):
            last = outcomes.get((checkout.commit, number), {"killed": False, "files": 0})
            if number >= len(mutants) or last["killed"] or last["files"] == len(tests):
                continue
            mutant = mutants[number]
            note = {"commit": checkout.commit, "seed": seed, "number": number, "files": len(tests)}
            note |= {"file": mutant.file, "function": mutant.function, "statement": mutant.statement}
            note |= {"change": mutant.difference(checkout.root)}
            try:
                note |= checkout.outcome(mutant, tests)
            except NotRunError as error:  # the mutant raises where pytest itself ends by it
                print(f"{checkout.commit} {number} {mutant.file} {mutant.function}: left out. {error}", flush=True)
                continue
            with path.open("a", encoding="utf-8") as notes:
                print(json.dumps(note, ensure_ascii=False), file=notes)
            end = "killed" if note["killed"] else "survived"
            print(f"{checkout.commit} {number} {mutant.file} {mutant.function}: {end}", flush=True)


if __name__ == "__main__":
    main()

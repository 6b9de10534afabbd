"""Mutants: a beginning of a sample is the sample of a smaller count, tests that reach a mutant kill it or do not."""

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="it is installed beside the environment, see lab/README.md")
pytest.importorskip("coverage")

from lab.mutants.__main__ import Checkout, newcombe, report, run, wilson
from lab.mutants.sample import sample, statements

SOURCE = """
def share(part: int, total: int) -> float:
    if total == 0:
        return 0.5
    return part / total


def unused(first: int) -> int:
    return first + 1
"""
WEAK = """
from cde_rag.context.shares import share


def test_share():
    assert share(1, 4) == 0.25
"""
GOOD = WEAK + "    assert share(1, 0) == 0.5"


def checkout(folder: Path, name: str, tests: str) -> Checkout:
    """A repository of one module and one file of tests, whose process imports it from there."""
    root = folder / "trees" / name
    (root / "cde_rag/context").mkdir(parents=True)
    (root / "tests").mkdir()
    for package in ("cde_rag", "cde_rag/context"):
        (root / package / "__init__.py").touch()
    (root / "cde_rag/context/shares.py").write_text(SOURCE)
    (root / "tests/test_shares.py").write_text(tests)
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    mutations\n    long\n")
    git = ["git", "-C", root, "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["tag", name]):
        subprocess.run([*git, *arguments], check=True)
    return Checkout(name, folder, ["tests"])


def test_a_beginning_is_a_sample_and_statements_are_the_innermost(tmp_path: Path) -> None:
    root = checkout(tmp_path, "one", GOOD).root
    drawn = sample(root, count=5, seed=3)
    assert drawn[:2] == sample(root, count=2, seed=3)
    assert {each.function for each in sample(root, count=99, seed=3)} == {"share", "unused"}
    assert all(each.source != SOURCE for each in drawn)
    assert [statements(SOURCE)[line] for line in (2, 3, 4, 5)] == [(2, 2), (3, 3), (4, 4), (5, 5)]


def test_weak_tests_kill_less_and_a_second_run_adds_nothing(tmp_path: Path) -> None:
    """Nothing reaches `unused`; the weak test never divides by zero, and reaches the condition all the same."""
    notes = tmp_path / "outcomes.jsonl"
    with checkout(tmp_path, "good", GOOD) as before, checkout(tmp_path, "weak", WEAK) as after:
        for _ in range(2):
            run([before, after], notes, count=9, seed=0)
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    assert len(found) == 2 * 6
    killed = {
        name: {
            each["change"].splitlines()[2].strip("+ ") for each in found if each["killed"] and each["commit"] == name
        }
        for name in ("good", "weak")
    }
    wrong = {"if total != 0:", "return part * total"}
    assert killed == {"good": {*wrong, "if total == 1:", "return 1.5"}, "weak": wrong}
    assert {each["reaching"] for each in found if each["function"] == "unused"} == {0}
    assert [path.read_text() for path in tmp_path.glob("trees/*/cde_rag/context/shares.py")] == [SOURCE, SOURCE]


def test_intervals() -> None:
    """Wilson's and Newcombe's own example of 1998: 56 of 70 against 48 of 80 gives 0.0524 to 0.3339."""
    assert wilson(56, 70) == pytest.approx((0.6918, 0.8768), abs=1e-3)
    assert newcombe((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    outcomes = {(name, number): {"killed": number < most} for name, most in (("a", 1), ("b", 2)) for number in range(4)}
    assert report(outcomes, ["a", "b"]).startswith("a: 1 of 4 killed, 0.250")

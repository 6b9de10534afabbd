"""Each guard is missed by its test."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mutations.py"


def test_guards_and_their_tests_exist() -> None:
    script = runpy.run_path(str(SCRIPT))
    for mutation in script["MUTATIONS"]:
        assert (script["PACKAGE"] / mutation.module).read_text(encoding="utf-8").count(mutation.guard) == 1, mutation
        module, _, test = mutation.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (SCRIPT.parent / module).read_text(encoding="utf-8"), mutation


@pytest.mark.mutations
def test_no_guard_can_be_taken_out() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

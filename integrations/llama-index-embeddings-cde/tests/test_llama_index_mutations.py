"""Each guard is missed by its test."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mutations
def test_no_guard_can_be_taken_out() -> None:
    script = Path(__file__).with_name("llama_index_mutations.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

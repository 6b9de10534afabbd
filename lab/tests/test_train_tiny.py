"""`make train-tiny`, shortened to one seed: a real tiny model learns from real pairs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "lab/benchmarks/train_tiny.py"


@pytest.mark.slow
def test_a_tiny_model_learns(shared_data: Path):
    command = [sys.executable, SCRIPT, "--seeds", "0", "--updates", "30", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["loss_after"] < 0.8 * row["loss_before"]
    assert row["gain_low"] > 0.05
    assert row["ndcg_after"] > row["ndcg_before"]

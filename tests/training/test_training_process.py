"""The command as a process: stopped by Ctrl-C or killed, the same command goes on, and ends as if nothing had been."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prepared_stub import prepared_stub
from test_training_cli import RECIPE
from tiny import tiny_network, tiny_tokenizer

from cde_rag.models.one_way import checkpoint as checkpoints

COMMAND = [sys.executable, "-m", "cde_rag_training", "train"]
UPDATES = 120  # so many that a busy machine sends the signal before the last


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("run")
    checkpoints.write(folder / "tiny", tiny_network(), tiny_tokenizer())
    prepared_stub(folder / "prepared")
    text = RECIPE.format(model=json.dumps(str(folder / "tiny")), updates=UPDATES)
    (folder / "recipe.toml").write_text(text)
    return [str(folder / "prepared"), "--config", str(folder / "recipe.toml")]


def logged(output: Path) -> list[str]:
    path = output / "log.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [row["update"] for row in csv.DictReader(file) if row["loss"]]


def stopped(arguments: list[str], output: Path, number: signal.Signals) -> "subprocess.CompletedProcess[str]":
    """Start the command, and send it a signal once some updates are logged."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--output", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(logged(output)) < 7 and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, number)
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def finished(arguments: list[str], output: Path) -> bytes:
    """The weights that the command ends with."""
    subprocess.run([*COMMAND, *arguments, "--output", str(output)], check=True, capture_output=True)
    return (output / "model/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_stopped_run_goes_on(number: signal.Signals, arguments: list[str], tmp_path: Path):
    """Here of the command; tests/training/test_training.py kills runs, too."""
    output = tmp_path / "stopped"
    done = stopped(arguments, output, number)
    assert not (output / "model").exists(), "the run was over before it was stopped"
    if number is signal.SIGINT:
        assert done.returncode == 130
        assert done.stderr.splitlines()[-1] == (
            f"Stopped; {output} keeps the last checkpoint. Run the same command again to continue."
        )
    assert done.stdout == ""
    assert finished(arguments, output) == finished(arguments, tmp_path / "at once")
    assert logged(output) == [str(update) for update in range(1, UPDATES + 1)]

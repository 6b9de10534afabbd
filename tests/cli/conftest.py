"""The command line with a tiny model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer
from typer.testing import CliRunner, Result

from cde_rag.cli import app
from cde_rag.models.one_way import checkpoint as checkpoints

Run = Callable[..., Result]
WITHOUT_MODEL = "backup count doctor export get import inspect list reindex restore verify --version".split()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_model")
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture
def run(model_folder: Path) -> Run:
    """Run a command, with the tiny model where it takes one, and compare its exit code."""

    def run_command(*arguments: object, code: int = 0, stdin: bytes | None = None) -> Result:
        command = [str(argument) for argument in arguments]
        if command[0] not in WITHOUT_MODEL:
            command += ["--model", str(model_folder)]
        result = CliRunner().invoke(app, command, input=stdin, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run_command


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Twenty records, five for each parent; record 7 is longer than the model reads."""
    path = tmp_path / "records.jsonl"
    lines = [
        {
            "id": f"r{i}",
            "title": WORDS[i],
            "text": f"{WORDS[i]} {WORDS[-1 - i]}",
            "book": f"b{i // 5}",
            "year": 2000 + i,
        }
        for i in range(20)
    ]
    lines[7]["text"] = "river " * 100
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

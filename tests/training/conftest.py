"""The command cde-rag-train and the script of published figures, for the tests of training."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from training_run import Run
from typer.testing import CliRunner, Result

from cde_rag_training.cli import app


@pytest.fixture
def run() -> Run:
    """Run a command and compare its exit code."""

    def run_command(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run_command


@pytest.fixture(scope="session")
def run_questions() -> Any:
    """The script that the published figures of questions come from, as a module."""
    script = Path(__file__).resolve().parents[3] / "shared/prototypes/3/run_questions.py"
    if not script.exists():
        pytest.skip("the prototypes are on the project's own machines only")
    spec = importlib.util.spec_from_file_location("run_questions", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

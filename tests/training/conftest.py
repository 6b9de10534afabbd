"""The command cde-rag-train, for the tests of training."""

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

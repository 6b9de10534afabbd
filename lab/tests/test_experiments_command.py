"""The program lab.experiments lists and runs experiments, and bad input is one sentence."""

import json
from pathlib import Path

import pytest
from prepared_stub import prepared_stub
from training_run import one_sentence
from typer.testing import CliRunner, Result

from lab.experiments.__main__ import app


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return prepared_stub(tmp_path / "prepared").folder


def test_experiments_are_listed_and_run(prepared: Path, tmp_path: Path):
    def experiment(*arguments: object, code: int = 0) -> Result:
        ran = CliRunner().invoke(app, [*map(str, arguments)])
        assert ran.exit_code == code, ran.output
        return ran

    assert "figure 6" in experiment("list").stdout
    files = json.loads(experiment("run", "difficulty", prepared, "--output", tmp_path / "a/b", "--json").stdout)
    assert all(Path(path).is_file() for path in files["files"])
    assert "there are difficulty" in experiment("run", "harder", prepared, code=2).output
    assert "--sets" in experiment("run", "heatmap", code=2).output
    assert "PREPARED" in experiment("run", "difficulty", code=2).output
    (tmp_path / "file").touch()
    assert "is a file" in experiment("run", "difficulty", prepared, "--output", tmp_path / "file", code=2).output
    assert "--seed" in experiment("run", "difficulty", prepared, "--seed", -1, code=2).output
    sets = tmp_path / "sets.toml"
    for text, expected in (
        (b'[[sets]]\npath = "\xff"', "Expected a recipe (TOML)"),
        (b'[[sets]]\npath = "river"\nmax_characters = -1', "max_characters of 0"),
    ):
        sets.write_bytes(text)
        assert expected in one_sentence(experiment("run", "heatmap", "--sets", sets, code=1))

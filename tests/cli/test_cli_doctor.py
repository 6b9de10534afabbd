"""doctor tells what is there, and fails when the bundled model does."""

import json
import re
from pathlib import Path

import pytest

from cde_rag.cli import doctor as command
from cde_rag.errors import ModelError
from cde_rag.model import CDEModel


def test_doctor_passes_here(run):
    found = json.loads(run("doctor", "--json").stdout)
    assert found["self_test"] == "passed"
    assert found["model"].startswith("cde-mini-")
    assert isinstance(found["cpu_bf16"], bool)
    assert found["threads"] >= 1


def test_doctor_speaks_to_people(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(command.EXTRAS, "files", ("no-such-package",))
    lines = run("doctor").stdout.splitlines()
    assert "extra files        no-such-package (not installed)" in lines
    assert any(re.fullmatch(r"self test +passed", line) for line in lines)


def test_doctor_fails_without_a_model(run, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ModelError("Expected model.safetensors, found nothing.")

    monkeypatch.setattr(CDEModel, "from_pretrained", fail)
    found = json.loads(run("doctor", "--json", code=1).stdout)
    assert found["self_test"] == "failed: Expected model.safetensors, found nothing."


def test_extras_are_those_of_the_project():
    project = Path(__file__).resolve().parents[2].joinpath("pyproject.toml").read_text()
    for extra, packages in command.EXTRAS.items():
        line = next(line for line in project.splitlines() if line.startswith(f"{extra} = ["))
        assert tuple(re.findall(r'"([A-Za-z0-9-]+?)[><=]', line)) == packages

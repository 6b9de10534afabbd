"""doctor tells what is there, and fails when the bundled model does."""

import json
import re
from pathlib import Path

import pytest

from cde_rag.cli import doctor as command
from cde_rag.errors import ModelError
from cde_rag.models import CDEModel
from cde_rag.models.runtimes.runtime_choice import Timing, Trial, timings


def test_doctor_passes_here(run):
    found = json.loads(run("doctor", "--json").stdout)
    assert found["self_test"] == "passed"
    assert found["model"].startswith("cde-mini-")
    assert isinstance(found["cpu_bf16"], bool)
    assert 1 <= found["threads_of_a_batch"] <= found["cores"]


@pytest.mark.long
def test_doctor_measures_when_asked(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cde_rag.models.runtimes.runtime_choice.SECONDS", 0.01)
    monkeypatch.setattr("cde_rag.models.runtimes.runtime_choice.native_bfloat16", lambda: False)
    assert json.loads(run("doctor", "--json").stdout)["runtime_times"] == {}  # CDE_RAG_RUNTIME names one
    measured = run("doctor", "--json", "--measure")
    assert re.fullmatch(r"Measuring which runtime is fastest for cde-mini-\d .*\n", measured.stderr)
    found = json.loads(measured.stdout)
    assert found["runtime_times"].keys() == {f"{runtime} float32" for runtime in found["runtimes"]}
    assert found["fastest_runtime"] in found["runtime_times"]
    assert found["runtime"] == "torch"
    assert found["measured_models"].keys() == {found["model"]}
    assert found["measured_models"][found["model"]].startswith(found["fastest_runtime"])
    plain = Timing("onnx", "float32", 2.0, 1.0, 1.0, 3.0)
    monkeypatch.setattr("cde_rag.models.runtimes.runtime_choice.measure", lambda _: [plain])
    timings("0" * 64, "some/plain_model", _never_loaded)
    monkeypatch.delenv("CDE_RAG_RUNTIME")
    monkeypatch.setattr("cde_rag.models.runtimes.runtime_choice.STEADY", float("inf"))  # however busy this machine is
    lines = run("doctor").stdout.splitlines()
    assert any(
        re.fullmatch(r"fastest for some/plain_model +onnx float32, 2.0 ms a document, .*", line) for line in lines
    )
    assert any(re.fullmatch(r"time torch float32 +[\d.]+ ms a document, .*", line) for line in lines)
    assert any(re.fullmatch(rf"runtime +{found['fastest_runtime'].split()[0]}", line) for line in lines)


def _never_loaded(runtime: str, dtype: str) -> Trial:
    raise AssertionError(f"{runtime} {dtype} is loaded, though nothing is measured.")


def test_doctor_speaks_to_people(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(command.EXTRAS, "files", ("no-such-package",))
    lines = run("doctor").stdout.splitlines()
    assert lines[0].split()[0] == "cde-rag"
    assert any(re.fullmatch(r"extra files +no-such-package \(not installed\)", line) for line in lines)
    assert any(re.fullmatch(r"to install an extra +pip install 'cde-rag\[EXTRA\]'.*", line) for line in lines)
    assert any(re.fullmatch(r"self test +passed", line) for line in lines)


def test_doctor_fails_without_a_model(run, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ModelError("Expected model.safetensors, found nothing.")

    monkeypatch.setattr(CDEModel, "from_pretrained", fail)
    found = json.loads(run("doctor", "--json", code=1).stdout)
    assert found["self_test"] == "failed: Expected model.safetensors, found nothing."


def test_extras_are_those_of_the_project():
    project = Path(__file__).resolve().parents[2].joinpath("pyproject.toml").read_text()
    table = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    found = {
        extra: tuple(re.findall(r'"([A-Za-z0-9-]+?)(?:\[[a-z,]+\])?[><=][^;"]*"', packages))
        for extra, packages in re.findall(r"^([a-z-]+) = \[(.*?)\]$", table, re.MULTILINE | re.DOTALL)
    }
    assert {
        extra: packages for extra, packages in found.items() if extra not in ("all", "setup", "dev")
    } == command.EXTRAS

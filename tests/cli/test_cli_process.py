"""The command as a process: fast help, pipes that close, versions."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cde_rag
from cde_rag.cli import app

COMMAND = [sys.executable, "-c", "from cde_rag.cli import app; app(prog_name='cde-rag')"]
COMMANDS = (
    "index search count inspect verify reindex audit export import backup restore "
    "drift recontextualize rollback tune evaluate mteb convert demo serve mcp doctor"
).split()


@pytest.mark.parametrize("missing", ["torch", "cde_rag.evaluation"])
def test_a_missing_module_is_an_error_with_a_remedy_and_one_of_ours_a_fault(
    missing: str, monkeypatch: pytest.MonkeyPatch
):
    def absent(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("typer.core.TyperGroup.invoke", absent)
    ran = CliRunner().invoke(app, ["doctor"])
    assert ran.exit_code == 1
    assert ("'torch' is needed here and is not installed. cde-rag doctor" in ran.stderr) == (missing == "torch")
    assert isinstance(ran.exception, SystemExit) == (missing == "torch")


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from cde_rag.cli import app; print({'torch', 'numpy', 'faiss', 'rich', 'tqdm'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["count", "papers.faiss"], 0),
        (["count", "papers.faiss", "--where", '{"year": {"about": 1}}'], 1),
        (["inspect", "papers.faiss"], 0),
        (["inspect", "papers.faiss", "--erasure"], 0),
        (["verify", "papers.faiss"], 0),
        (["search", "papers.faiss", "river", "--by", "words"], 0),
        (["search", "papers.faiss", "river", "--where", '{"year": {"about": 1}}'], 1),
        (["search", "nowhere.faiss", "river"], 1),
        (["export", "papers.faiss", "papers.parquet"], 0),
        (["backup", "papers.faiss", "copy"], 0),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_needs_no_model_needs_no_torch(run, records: Path, tmp_path: Path, arguments: list[str], code: int):
    assert run("index", str(records), str(tmp_path / "papers.faiss")).exit_code == 0
    without = ["-c", "import sys; sys.modules['torch'] = None; from cde_rag.cli import app; app(prog_name='cde-rag')"]
    found = subprocess.run([sys.executable, *without, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == code, found.stderr
    assert "torch" not in found.stderr


def test_a_closed_pipe_is_no_error():
    reader = subprocess.Popen(["head", "-c", "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert reader.stdin is not None
    writer = subprocess.run([*COMMAND, "index", "--help"], stdout=reader.stdin, stderr=subprocess.PIPE, check=False)
    reader.communicate()
    assert writer.stderr == b""


def test_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"cde-rag {cde_rag.__version__}\n")


def test_help_names_every_command():
    result = CliRunner().invoke(app, ["--help"])
    listed = result.stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str):
    help_text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"\n    cde-rag {command} " in help_text
    assert ("--json" in help_text) == (command not in ("serve", "mcp"))  # which answer requests

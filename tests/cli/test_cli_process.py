"""The command as a process: fast help, pipes that close, versions."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cde_rag
from cde_rag.cli import app

COMMAND = [sys.executable, "-c", "from cde_rag.cli import app; app(prog_name='cde-rag')"]
COMMANDS = (
    "index search count inspect list get delete verify reindex upgrade audit stamp reembed release export import "
    "backup restore drift recontextualize rollback tune evaluate models convert demo serve mcp doctor"
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
        (["list", "papers.faiss"], 0),
        (["get", "papers.faiss", "r3"], 0),
        (["get", "papers.faiss", "nothing"], 1),
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


@pytest.mark.parametrize(("package", "command"), [("cde_rag", "cde-rag"), ("cde_rag_training", "cde-rag-train")])
def test_a_package_is_run_as_its_command(package: str, command: str, tmp_path: Path):
    """The scripts' folder is in no PATH."""
    run = [sys.executable, "-m", package]
    found = subprocess.run([*run, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(f"Usage: {command} [OPTIONS] COMMAND")
    wrong = subprocess.run([*run, "nothing"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (wrong.returncode, f"Try '{command} -h' for help." in wrong.stderr) == (2, True)


def test_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"cde-rag {cde_rag.__version__}\n")


def test_help_names_every_command():
    result = CliRunner().invoke(app, ["--help"])
    listed = result.stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS


@pytest.mark.parametrize("more", [[], ["--help"], ["SciFact", "my set/", "--seed", "1"]], ids=len)
def test_mteb_answers_with_the_line_that_runs_it(more: list[str]):
    result = CliRunner().invoke(app, ["mteb", *more])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f": {shlex.join(['python', '-m', 'lab.mteb', 'run', *more])}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str):
    help_text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"\n    cde-rag {command} " in help_text
    assert ("--json" in help_text) == (command not in ("serve", "mcp"))  # which answer requests


LONG = "n" * 300


def test_a_path_that_is_too_long_is_one_sentence(
    run, records: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run("index", str(records), "ok.faiss")
    of_collections = ("verify", "inspect", "count", "reindex", "drift", "recontextualize", "serve", "mcp")
    for arguments in [
        ["index", "records.jsonl", LONG, "--model", str(model_folder)],
        ["index", f"{LONG}.jsonl", "y.faiss"],
        ["index", "records.jsonl", "z.faiss", "--model", LONG],
        ["search", LONG, "x"],
        *([name, LONG] for name in of_collections),
        ["evaluate", LONG],
        ["audit", LONG],
        ["export", "ok.faiss", f"{LONG}.parquet"],
        ["import", f"{LONG}.parquet", "y.faiss"],
        ["backup", "ok.faiss", LONG],
        ["restore", LONG, "y.faiss"],
        ["tune", "ok.faiss", LONG, "--model", str(model_folder)],
        ["demo", "--path", LONG],
    ]:
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, SystemExit), (arguments[0], result.exception)
        assert result.exit_code in (1, 2), arguments[0]
        assert "nnnnnnnnnnnnnnnnnnnn" in result.stderr, arguments[0]
        assert len(result.stderr) < 1500, arguments[0]


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["search", "--help"], ["inspect", "papers.faiss"]])
def test_a_full_disk_behind_standard_output_is_one_sentence(
    run, records: Path, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    run("index", str(records), tmp_path / "papers.faiss")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == (
        "Error: standard output: No space left on device. Make room, and run the same command again.\n"
    )
    assert done.returncode == 1


def test_an_option_may_name_a_path_at_home(run, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    checked = Path("~").expanduser()
    assert checked == tmp_path
    run("index", records, "papers.faiss")
    shutil.copytree(tmp_path / "papers.faiss", tmp_path / "home.faiss")
    assert run("count", "~/home.faiss").exit_code == 0
    result = CliRunner().invoke(app, ["drift", "papers.faiss", "--model=~/none"])
    assert f"found '{tmp_path}/none'" in result.stderr

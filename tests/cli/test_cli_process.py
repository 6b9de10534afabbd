"""The command as a process: fast help, pipes that close, versions."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import cde_rag
from cde_rag.cli import app

COMMAND = [sys.executable, "-c", "from cde_rag.cli import app; app(prog_name='cde-rag')"]
COMMANDS = (
    "index search inspect verify audit export import backup restore "
    "drift recontextualize rollback evaluate mteb convert demo doctor"
).split()


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from cde_rag.cli import app; print({'torch', 'numpy', 'faiss', 'rich', 'tqdm'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


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
    assert "--json" in help_text

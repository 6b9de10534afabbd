"""README is true: its example prints what it shows, its commands exist, its figure is that of the tables."""

import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cde_rag.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the guide of the clone."""
    shutil.copytree(ROOT / "docs/guide", tmp_path / "docs/guide")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_print_what_is_shown(place: Path) -> None:
    example, (output,) = blocks("python")[0], blocks("text")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.sub(r"0\.\d\d", "#", done.stdout) == re.sub(r"0\.\d\d", "#", output)  # scores differ between CPUs
    (console,) = (block for block in blocks("console") if "cde-rag index" in block)
    index, search, serve = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, flags=re.MULTILINE)
    for command, shown in (index, search):
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, result.output
        expected, printed = (re.sub(r"\d+(\.\d+)?", "#", text) for text in (shown, result.stdout))
        for line in expected.removesuffix("…\n").splitlines():
            assert line.removesuffix(" …") in printed
    assert serve[0].startswith("cde-rag serve guide.faiss")


def test_the_lines_for_frameworks_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the README in order, as one who pastes it: the lines for frameworks use what the lines before have made."""
    pytest.importorskip("llama_index.embeddings.cde")
    pytest.importorskip("langchain_cde")
    pytest.importorskip("haystack_integrations.document_stores.cde")
    kept = ("tenants.md", "large-folders.md", "index-and-search.md")
    for page in (place / "docs/guide").iterdir():
        if page.name not in kept:
            page.unlink()
    (console,) = (block for block in blocks("console") if "cde-rag index" in block)
    (index,) = re.findall(r"^\$ (cde-rag index .+)$", console, flags=re.MULTILINE)
    assert CliRunner().invoke(app, shlex.split(index)[1:]).exit_code == 0
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(blocks("python")[0], "README.md", "exec"), names)
        capsys.readouterr()
        exec(compile(blocks("python")[1], "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] in {"guide/index-and-search.md", "guide/large-folders.md"}
    assert {line.rpartition("/")[2] for line in printed} <= set(kept)
    assert sum(line.startswith("guide/") for line in printed) > 4
    assert printed[-1] in kept  # LlamaIndex', which has names of files


def test_every_command_exists() -> None:
    named = set(re.findall(r"^\$ cde-rag (\w+)", README, flags=re.MULTILINE))
    assert {"index", "search", "serve"} <= named <= set(get_command(app).commands)


def test_it_has_at_most_600_words_of_prose() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->|\(http[^)]*\)|\]\([^)]*\)", " ", README, flags=re.DOTALL)
    assert len(re.findall(r"\w[\w'’.-]*", prose)) <= 600

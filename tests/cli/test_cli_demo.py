"""The demo on a small documentation: indexed once, continued where it stopped, made anew when something changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import WORDS

from cde_rag import records as intake
from cde_rag.cli import demo_collections as module
from cde_rag.cli.demo_collections import Demo, default_folder
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import MissingExtraError, StoreError
from cde_rag.evaluation.demo_questions import Question
from cde_rag.stores.base import Record
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.SmallContextWarning")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Twenty entries of four modules."""
    entries = [
        Record(f"m{i // 5}.{WORDS[i]}", f"{WORDS[i]} {WORDS[-1 - i]}", f"m.{WORDS[i]}()", {"module": f"m{i // 5}"})
        for i in range(20)
    ]
    monkeypatch.setattr(module, "documentation", lambda: iter(entries))
    monkeypatch.setattr(module, "documentation_digest", lambda: "one")
    asked = [Question(WORDS[2], frozenset({"m0.river"})), Question(WORDS[3], frozenset({"none"}))]
    monkeypatch.setattr(module, "questions", lambda: asked)
    return entries


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All texts that were embedded as documents."""
    texts: list[str] = []
    embed = ContextualEmbedder.embed_passages

    def count(self: ContextualEmbedder, batch: list[str], *arguments: Any, **named: Any) -> Any:
        texts.extend(batch)
        return embed(self, batch, *arguments, **named)

    monkeypatch.setattr(ContextualEmbedder, "embed_passages", count)
    return texts


def test_the_second_run_opens_what_the_first_stored(run, tmp_path: Path, embedded: list[str]):
    command = ("demo", "--path", tmp_path / "demo", "--query", "river", "--json", "-k", 3)
    first = json.loads(run(*command).stdout)
    assert [set(hit) for hit in first["hits"]] == [{"id", "score", "title", "text", "metadata"}] * 3
    assert len(embedded) == 40  # once in each context
    assert json.loads(run(*command).stdout) == first
    assert len(embedded) == 40


def test_answers_stand_beside_each_other(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("demo", "--path", tmp_path / "demo", "--query", "river", "-k", 2).stdout.splitlines()
    assert lines[:2] == ["", "river"]
    assert lines[2].split("  ")[0] == "own context + words"
    assert lines[2].split()[4:] == ["own", "context", "null", "context", "BM25"]
    assert lines[3].count("m.") == 4
    assert not any(mark in line for mark in "✓·" for line in lines)  # nobody knows what answers this


def test_questions_are_shown_and_right_answers_marked(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.evaluation.demo_questions.questions", module.questions)
    shown = run("demo", "--path", tmp_path / "demo").stdout
    assert "20 entries from the documentation of Python" in shown
    assert "✓" in shown  # BM25 finds the word


def test_bm25_may_be_missing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(texts: list[str]) -> None:
        raise MissingExtraError("'bm25s' is needed here")

    monkeypatch.setattr(module, "BM25", missing)
    shown = run("demo", "--path", tmp_path / "demo", "--query", "river")
    assert "Without BM25: 'bm25s' is needed here" in shown.stderr
    assert "null context" in shown.stdout


def test_check_measures_every_system(run, tmp_path: Path):
    found = json.loads(run("demo", "--path", tmp_path / "demo", "--check", "--json", code=1).stdout)
    assert found["hit@5"]["bm25"] == 0.5
    assert set(found["hit@5"]) == {"hybrid", "own", "null", "bm25"}
    assert found["hit@5"]["own"] < 0.8  # of which the exit code tells
    shown = run("demo", "--path", tmp_path / "demo", "--check", code=1).stdout.splitlines()
    assert shown[0] == "Share of twenty questions that one of the first 5 hits answers:"
    assert shown[-1].split() == ["BM25", "0.50"]


def test_an_interrupted_run_is_continued(run, tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "CHUNK", 5)
    add, calls = FaissStore.add, []

    def interrupted(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 6:  # in the second collection
            raise KeyboardInterrupt
        add(*arguments, **named)

    monkeypatch.setattr(FaissStore, "add", interrupted)
    command = ("demo", "--path", tmp_path / "demo", "--query", "river", "--json")
    assert "Run the same command again to continue." in run(*command, code=130).stderr
    assert len(embedded) == 30
    monkeypatch.setattr(FaissStore, "add", add)
    continued = run(*command).stdout
    assert len(embedded) == 45  # the batch that was lost again, and no other
    assert run("demo", "--path", tmp_path / "new", "--query", "river", "--json").stdout == continued


def test_another_documentation_is_indexed_anew(
    model_folder: Path, tmp_path: Path, small: list[Record], monkeypatch: pytest.MonkeyPatch
):
    Demo(tmp_path / "demo", model=model_folder).close()
    monkeypatch.setattr(module, "documentation_digest", lambda: "two")
    monkeypatch.setattr(module, "documentation", lambda: iter(small[:7]))
    demo = Demo(tmp_path / "demo", model=model_folder)
    assert demo.own.count() == demo.null.count() == 7
    assert demo.null.embedder.context.is_null
    assert not demo.own.embedder.context.is_null
    assert demo.own.parent_key == demo.null.parent_key == "module"
    demo.close()


def test_a_folder_of_other_files_is_left_alone(model_folder: Path, tmp_path: Path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(StoreError, match="holds other files than a demo's"):
        Demo(tmp_path, model=model_folder)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / module.STATE).write_text("{")
    with pytest.raises(StoreError, match="is not readable"):
        Demo(tmp_path, model=model_folder)
    with pytest.raises(StoreError, match="is not writable"):
        Demo(tmp_path / "thesis.txt" / "demo", model=model_folder)


def test_json_needs_a_question(run, tmp_path: Path):
    assert "--query or --check" in run("demo", "--path", tmp_path / "demo", "--json", code=2).stderr


def test_the_demo_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "cde-rag" / "demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "cde-rag" / "demo"

"""The demo on a small documentation: indexed once, continued where it stopped, made anew when something changed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny import WORDS

from cde_rag import records as intake
from cde_rag.cli import demo
from cde_rag.cli import demo_collections as module
from cde_rag.cli.demo_collections import Demo, QuestionRanks, default_folder
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import StoreError
from cde_rag.evaluation.demo_questions import Question
from cde_rag.records import Record
from cde_rag.stores.store_calls import StoreCalls

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Twenty entries of four modules, and a section of a README."""
    entries = [
        Record(f"m{i // 5}.{WORDS[i]}", f"{WORDS[i]} {WORDS[-1 - i]}", f"m.{WORDS[i]}()", {"module": f"m{i // 5}"})
        for i in range(20)
    ]
    monkeypatch.setattr(module, "documentation", lambda modules: iter(entries))
    monkeypatch.setattr(module, "documentation_digest", lambda modules: "one" if modules else "all")
    asked = [Question(WORDS[2], frozenset({"m0.river"})), Question(WORDS[3], frozenset({"none"}))]
    monkeypatch.setattr(module, "questions", lambda: asked)
    section = Record("pkg#1.0", f"{WORDS[5]} of the package", "Package", {"module": "pkg", "section": "Use"})
    query = Question(f"package {WORDS[5]}", frozenset({"pkg#1.0"}))
    monkeypatch.setattr(module, "readme_sections", lambda: ([section], [query]))
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
    assert len(embedded) == 42  # once in each context
    assert json.loads(run(*command).stdout) == first
    assert len(embedded) == 42


def test_answers_stand_beside_each_other(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("demo", "--path", tmp_path / "demo", "--query", "river", "-k", 2).stdout.splitlines()
    assert lines[:2] == ["", "river"]
    assert re.split("  +", lines[2]) == ["context + words", "context", "plain vectors", "words (BM25)"]
    assert lines[3].count("m.") == 4
    assert not any(mark in line for mark in "✓·" for line in lines)  # nobody knows what answers this


def test_answers_stand_under_each_other_where_columns_would_cut_their_names(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("demo", "--path", tmp_path / "demo", "--query", "river", "-k", 2).stdout.splitlines()[2:]
    assert lines[:9:3] == ["context + words", "context", "plain vectors"]
    assert [line.count("m.") for line in lines[:9]] == [0, 1, 1] * 3


def test_questions_are_shown_and_right_answers_marked(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown = run("demo", "--path", tmp_path / "demo").stdout
    assert shown.splitlines()[0].startswith("21 passages from the documentation of Python")
    assert re.split("  +", shown.splitlines()[2])[1:] == ["2 questions in users' words", "1 names of page and section"]
    assert "Of 2 questions in users' words, the first hit answers the most with" in shown
    assert "✓" in shown  # BM25 finds the word
    assert "pkg: Use" in shown  # package and heading of a section


def test_what_context_moved_is_shown_for_better_and_for_worse(capsys: pytest.CaptureFixture[str]):
    ranks = [
        QuestionRanks(Question(name, frozenset({"a"})), {"hybrid": 1, "own": own, "plain": plain, "bm25": None})
        for name, own, plain in (("same", 2, 2), ("worse", 9, 6), ("lost", None, 3), ("better", 1, 7))
    ]
    demo._print_changes(ranks)  # pyright: ignore[reportPrivateUsage]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines == [["7", "→", "1", "better"], ["6", "→", "9", "worse"], ["3", "→", "none", "of", "10", "lost"]]


@pytest.mark.parametrize(
    ("hybrid", "own", "plain", "expected"),
    [
        (
            13,
            16,
            16,
            ["the most with context or with plain vectors, 16;", "context adds none, words cost 3"],
        ),
        (18, 16, 14, ["the most with context + words, 18;", "context adds 2, words add 2"]),
        (12, 12, 15, ["the most with plain vectors, 15;", "context costs 3, words add none"]),
    ],
)
def test_the_conclusion_follows_from_the_ranks(hybrid: int, own: int, plain: int, expected: list[str]):
    found = {"hybrid": hybrid, "own": own, "plain": plain, "bm25": 8}
    ranks = [
        QuestionRanks(
            Question(str(place), frozenset({"a"})),
            {system: 1 if place < right else None for system, right in found.items()},
        )
        for place in range(20)
    ]
    said = demo._conclusion({"questions": ranks, "sections": ranks[:5]})  # pyright: ignore[reportPrivateUsage]
    kinds = ["Of 20 questions in users' words", "Of 5 names of page and section, "]
    for part in [*kinds, *expected, "`cde-rag tune COLLECTION JUDGED`", "`cde-rag evaluate`"]:
        assert part in said
    assert len(said.splitlines()) == 4  # nothing is said of words or context that the ranks do not show


def test_check_measures_every_system(run, tmp_path: Path):
    found = json.loads(run("demo", "--path", tmp_path / "demo", "--check", "--json", code=1).stdout)
    assert found["questions"]["hit@5"]["bm25"] == 0.5
    assert found["sections"]["hit@1"]["bm25"] == 1
    for kind in ("questions", "sections"):
        assert set(found[kind]["hit@5"]) == set(found[kind]["hit@1"]) == {"hybrid", "own", "plain", "bm25"}
    assert found["questions"]["hit@5"]["own"] < 0.8  # hence the exit code
    shown = run("demo", "--path", tmp_path / "demo", "--check", code=1).stdout.splitlines()
    assert shown[0].split()[2:4] == ["2", "questions"]
    assert shown[-1].split() == ["words", "(BM25)", "1", "1", "1", "1"]


def test_an_interrupted_run_is_continued(run, tmp_path: Path, embedded: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "CHUNK", 5)
    add, calls = StoreCalls.add, []

    def interrupted(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 7:  # in the second collection
            raise KeyboardInterrupt
        add(*arguments, **named)

    monkeypatch.setattr(StoreCalls, "add", interrupted)
    command = ("demo", "--path", tmp_path / "demo", "--query", "river", "--json")
    assert "Run the same command again to continue." in run(*command, code=130).stderr
    assert len(embedded) == 31
    monkeypatch.setattr(StoreCalls, "add", add)
    continued = run(*command).stdout
    assert len(embedded) == 47  # the batch that was lost again, and no other
    assert run("demo", "--path", tmp_path / "new", "--query", "river", "--json").stdout == continued


def test_another_documentation_is_indexed_anew(
    model_folder: Path, tmp_path: Path, small: list[Record], monkeypatch: pytest.MonkeyPatch
):
    Demo(tmp_path / "demo", model=model_folder).close()
    monkeypatch.setattr(module, "documentation_digest", lambda modules: "two")
    monkeypatch.setattr(module, "documentation", lambda modules: iter(small[:7]))
    opened = Demo(tmp_path / "demo", model=model_folder)
    assert opened.own.count() == opened.plain.count() == 8
    assert opened.plain.embedder.context.is_null
    assert not opened.own.embedder.context.is_null
    assert (opened.own.parent_key, opened.plain.parent_key) == ("module", None)
    opened.close()
    asked: list[object] = []
    monkeypatch.setattr(module, "documentation", lambda modules: asked.append(modules) or iter(small))
    Demo(tmp_path / "all", model=model_folder, everything=True).close()
    assert asked == [None]


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--json"], "--json: it needs --query or --check"),
        (["--query", " "], "--query: it is blank"),
        (["--check", "--query", "river"], "--check: it searches for nothing; leave it or --query out"),
    ],
)
def test_options_are_refused_before_anything_is_indexed(run, tmp_path: Path, options: list[str], expected: str):
    assert expected in run("demo", "--path", tmp_path / "demo", *options, code=2).stderr
    assert not (tmp_path / "demo").exists()


def test_the_demo_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "cde-rag" / "demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "cde-rag" / "demo"

"""The demo: our documentation indexed as users index theirs, and compared on questions with known answers."""

import json
import re
from pathlib import Path

import pytest

from cde_rag.cli import demo
from cde_rag.cli.demo import INDEX, NAMES, WITH_MINILM, WITHOUT_MINILM, DemoAnswers, default_folder
from cde_rag.evaluation import demo_corpus
from cde_rag.evaluation.answer_passages import PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages, judged
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site
from cde_rag.models.plain import checkpoint

pytestmark = pytest.mark.filterwarnings(
    "ignore::cde_rag.errors.SmallContextWarning", "ignore::cde_rag.errors.TruncationWarning"
)
PAGES = {
    "boats.md": "# Boats\n\nA boat has two oars, unless somebody has lost one of them.\n",
    "ropes.md": "# Ropes\n\nA rope reaches from here to the other side of the river.\n",
    "birds.md": "# Birds\n\nBirds come back in spring and stay until the leaves fall.\n",
}
QUESTIONS = [
    ("how many oars are there?", "boats.md", "A boat has two oars"),
    ("which month do birds return", "birds.md", "Birds come back in spring"),
]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pages and two questions in place of the documentation."""
    folder = tmp_path / "small"
    folder.mkdir()
    pages = [json.dumps({"path": path, "text": text}) for path, text in PAGES.items()]
    asked = [
        json.dumps({"question": text, "answers": [{"page": page, "quote": quote}]}) for text, page, quote in QUESTIONS
    ]
    (folder / "pages.jsonl").write_text("\n".join(pages))
    (folder / "questions.jsonl").write_text("\n".join(asked))
    monkeypatch.setattr(demo_corpus, "FOLDER", folder)
    monkeypatch.setattr(checkpoint, "carried", lambda name: None)  # MiniLM is for the test with the real pages
    return folder


def test_every_question_has_an_answer_in_the_packed_pages() -> None:
    data = judged(demo_corpus.demo_corpus())
    assert data.found.all()
    assert len(data.questions) >= 50
    assert {question.kind for question in data.questions} == {"plain", "named", "paraphrase", "keyword"}


def test_a_query_finds_its_page_and_the_second_run_embeds_nothing(run, small: Path, tmp_path: Path) -> None:
    command = ("demo", "--path", tmp_path / "index", "--query", "oars", "--json", "-k", 1)
    first = json.loads(run(*command).stdout)
    assert [hit["metadata"]["source"] for hit in first["hits"]] == ["pages/boats.md"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").rglob("*.f*") if path.is_file()}
    assert json.loads(run(*command).stdout) == first
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_systems_are_compared_and_questions_shown(run, small: Path, tmp_path: Path) -> None:
    shown = run("demo", "--path", tmp_path / "index").stdout
    first = r"The documentation of cde-rag: 3 pages, \d passages; 2 questions in users' words\.\n"
    assert re.match(first, shown)
    rows = [line for line in shown.splitlines() if line.startswith(tuple(NAMES.values()))]
    assert [row.startswith(NAMES[system]) for row, system in zip(rows, WITHOUT_MINILM, strict=True)] == [True] * 4
    assert "Answered by the first hit of cde-rag index (the default) alone:" in shown
    assert shown.splitlines()[-1].startswith("The same for pages of yours: cde-rag index")


@pytest.mark.parametrize(("on_path", "shown"), [(False, ".venv/bin/cde-rag"), (True, "cde-rag")])
def test_the_last_line_is_a_command_that_the_shell_finds(
    run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool, shown: str
) -> None:
    (tmp_path / "cde-rag").write_text("#!/bin/sh\n")
    (tmp_path / "cde-rag").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path if on_path else tmp_path / "none"))
    monkeypatch.setattr("sys.argv", [".venv/bin/cde-rag", "demo"])
    last = run("demo", "--path", tmp_path / "index").stdout.splitlines()[-1]
    assert last == f"The same for pages of yours: {shown} index FOLDER NAME.faiss"


def test_check_prints_fractions_and_fails_where_too_few_are_answered(
    run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("demo", "--path", tmp_path / "index", "--check")
    monkeypatch.setattr(demo, "ENOUGH", 0.5)  # of a model with random weights, whose words find one of two
    found = json.loads(run(*command, "--json").stdout)
    assert found["questions"] == 2
    assert set(found["systems"]) == set(WITHOUT_MINILM)
    assert set(found["index less"]) == set(WITHOUT_MINILM) - {INDEX}
    assert all(0 <= fraction <= 1 for scores in found["systems"].values() for fraction in scores.values())
    asked = (small / "questions.jsonl").read_text().splitlines()
    lost = {"question": "?", "answers": [{"page": "ropes.md", "quote": "words that no page of these three has in it"}]}
    more = [json.dumps({**lost, "question": f"{number}?"}) for number in range(9)]
    (small / "questions.jsonl").write_text("\n".join([*asked, *more]))
    assert "questions in users' words" in run(*command, code=1).stdout


def test_both_sides_of_a_comparison_are_shown() -> None:
    passages = tuple(PagePassage("a.md", number, "A", text, f"A\n\n{text}") for number, text in enumerate("xyz"))
    asked = tuple(JudgedQuestion(str(n), f"question {n}", "", (Answer("a.md", "x"),)) for n in range(3))
    right = (frozenset({"a.md#0"}), frozenset({"a.md#1"}), frozenset({"a.md#2"}))
    data = JudgedPassages(Site("demo"), passages, asked, right)
    won, lost = [["a.md#0"], ["a.md#1"], ["a.md#0"]], [["a.md#1"], ["a.md#1", "a.md#0"], ["a.md#2"]]
    found = DemoAnswers(data, dict(zip(WITH_MINILM, (won, lost, lost, [[], [], []]), strict=True)))
    assert [found.answered(system, 1) for system in WITH_MINILM] == [2, 2, 2, 0]
    lines = found.examples().splitlines()
    assert re.findall(r"alone: (\d)", lines[0]) == ["1", "1"]
    assert lines[3:6] == [
        "  question 0",
        "    ✓ cde-rag index: a.md: x",
        "    · MiniLM and words, fused alike: a.md: y",
    ]
    assert lines[8:11] == [
        "  question 2",
        "    · cde-rag index: a.md: x",
        "    ✓ MiniLM and words, fused alike: a.md: z",
    ]
    assert found.to_json()["index less"]["bm25"]["mean"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--json"], "--json: it needs --query or --check"),
        (["--query", " "], "--query: it is blank"),
        (["--check", "--query", "river"], "--check: it searches for nothing; leave it or --query out"),
    ],
)
def test_options_are_refused_before_anything_is_indexed(run, tmp_path: Path, options: list[str], expected: str) -> None:
    assert expected in run("demo", "--path", tmp_path / "demo", *options, code=2).stderr
    assert not (tmp_path / "demo").exists()


def test_the_demo_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "cde-rag" / "demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "cde-rag" / "demo"


@pytest.mark.long
def test_the_default_answers_more_than_minilm_and_words(run, tmp_path: Path) -> None:
    """With the real model: the claim of the README's first screen."""
    from typer.testing import CliRunner

    from cde_rag.cli import app

    result = CliRunner().invoke(app, ["demo", "--path", str(tmp_path / "index"), "--check", "--json"])
    assert result.exit_code == 0, result.output
    systems = json.loads(result.stdout)["systems"]
    assert systems[INDEX]["mrr@10"] > max(systems[name]["mrr@10"] for name in systems if name != INDEX)

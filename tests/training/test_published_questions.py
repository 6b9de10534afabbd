"""The published form has no texts of the pages; with a copy of them it becomes the same questions again."""

import gzip
import json
from pathlib import Path

import pytest
from made_questions import QUESTIONS, ROLLBACK, lines, write_corpus, write_questions
from training_run import Run, one_sentence

from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import flat
from cde_rag.evaluation.question_folder import QuestionCorpus, read_corpora
from cde_rag_training.questions.published_questions import publish, read_published


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two corpora whose quotes all stand in their pages."""
    write_questions(tmp_path / "in")
    path = tmp_path / "in/helm/questions.jsonl"
    path.write_text(f"{json.dumps(QUESTIONS[0])}\n")
    return tmp_path / "in"


def plain(corpora: list[QuestionCorpus]) -> list[tuple]:
    """Corpora with quotes in their usual white space."""
    return [
        (
            one.site,
            dict(one.pages),
            [
                (each.id, each.text, each.kind, [(a.page, flat(a.quote)) for a in each.answers])
                for each in one.questions
            ],
        )
        for one in corpora
    ]


def test_it_has_no_text_of_a_page(folder: Path, tmp_path: Path) -> None:
    publish(read_corpora(folder), tmp_path / "set.jsonl.gz")
    text = gzip.decompress((tmp_path / "set.jsonl.gz").read_bytes()).decode()
    assert QUESTIONS[0]["question"] in text
    assert not any(words in text for words in ("helm rollback", "earlier revision", "By hand", "on the wing"))


def test_with_the_pages_it_is_the_same_again(folder: Path, tmp_path: Path) -> None:
    publish(read_corpora(folder), tmp_path / "set.jsonl.gz")
    found = read_published(tmp_path / "set.jsonl.gz", folder)
    assert found.changes == []
    assert plain(found.corpora) == plain(list(read_corpora(folder)))
    publish(found.corpora, tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "set.jsonl.gz").read_bytes()


def test_a_clone_serves_and_its_changes_are_named(folder: Path, tmp_path: Path) -> None:
    """A quote that moved is found; one that is gone is named, and a question without any is left out."""
    publish(read_corpora(folder), tmp_path / "set.jsonl.gz")
    clone = tmp_path / "clones/helm"
    (clone / "ops").mkdir(parents=True)
    page = clone / "ops/rollback.md"
    page.write_text(f"New words in front.\n{ROLLBACK}".replace("apply the old", "use the old"))
    found = read_published(tmp_path / "set.jsonl.gz", tmp_path / "clones")
    assert [answer.quote for answer in found.corpora[0].questions[0].answers] == [
        "`helm rollback` returns to an earlier revision"
    ]
    assert [change.split(": ", 1)[0] for change in found.changes] == ["birds", *4 * ["helm"]]
    told = "\n".join(found.changes)
    for expected in ("birds: no pages, 1 questions", "'limits.mdx' is missing", "'ops/rollback.md' changed"):
        assert expected in told
    assert "helm-1: a quote is not in its page any more; the question keeps its other answers" in told
    page.write_text("Something else.")
    with pytest.raises(CorpusError, match="no question has its page"):
        read_published(tmp_path / "set.jsonl.gz", tmp_path / "clones")


def test_a_quote_that_is_nowhere_is_not_published(tmp_path: Path) -> None:
    write_corpus(tmp_path / "helm", {"limits.mdx": "Nothing."}, QUESTIONS[2:])
    with pytest.raises(CorpusError, match="quote of 'helm-001' is not in the page 'limits"):
        publish(read_corpora(tmp_path / "helm"), tmp_path / "set.jsonl.gz")
    assert not (tmp_path / "set.jsonl.gz").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pages": {"../x": "0"}}, "expected pages inside a folder, found '../x'"),
        ({"pages": {"/etc/passwd": "0"}}, "expected pages inside a folder"),
        ({"pages": []}, "expected an object in 'pages', found a list"),
        ({"questions": {}}, "expected a list in 'questions'"),
        ({"questions": ["a"]}, "expected an object for each question"),
        (
            {"questions": [{"id": "a", "question": "b", "answers": [["x", 1, 2]]}]},
            "expected answers of 5 values in 'a'",
        ),
        (
            {"questions": [{"id": "a", "question": "b", "answers": [["x", "1", 2, 3, "d"]]}]},
            "expected page, first and last position",
        ),
        ({"name": "../helm"}, r"expected letters, digits, .* in 'name', found '\.\./helm'"),
        ({"name": 7}, "expected a string in 'name', found a number"),
    ],
)
def test_a_bad_line_is_refused(change: dict, expected: str, folder: Path, tmp_path: Path) -> None:
    publish(read_corpora(folder), tmp_path / "set.jsonl.gz")
    first, *rest = lines(tmp_path / "set.jsonl.gz")
    (tmp_path / "bad.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in (*rest, first | change)))
    with pytest.raises(CorpusError, match=f"bad.jsonl, line 2: {expected}"):
        read_published(tmp_path / "bad.jsonl", folder)


def test_the_command_reads_it(folder: Path, tmp_path: Path, run: Run) -> None:
    publish(read_corpora(folder), tmp_path / "set.jsonl.gz")
    (folder / "birds").rename(tmp_path / "away")
    arguments = ("questions", tmp_path / "set.jsonl.gz", tmp_path / "out", "--surrogate", "none")
    done = run(*arguments, "--pages", folder)
    assert "birds: no pages, 1 questions left out" in done.stderr
    assert "train.jsonl.gz: 1 pair\n" in done.stdout
    assert "no corpus 'cats'" in one_sentence(run(*arguments, "--pages", folder, "--corpus", "cats", code=1))
    run(*arguments, code=2)

"""Questions whose answers are quoted become pairs with the passages that hold the quotes; bad input names its line."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_questions import QUESTIONS, ROLLBACK, SWIFTS, lines, write_corpus, write_questions
from training_run import Run, one_sentence

from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import AnswerFinder, holds, nearly_holds, page_passages
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site, read_corpora
from cde_rag_training.clustering.surrogate import tfidf_svd
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.reading import PairReader
from cde_rag_training.questions.question_pairs import evaluation_sets, write_pairs

FLAT = "The command `helm rollback` returns to an earlier revision of it."


def question(*quotes: str, page: str = "ops/rollback.md") -> JudgedQuestion:
    return JudgedQuestion("q", "how?", "", tuple(Answer(page, quote) for quote in quotes))


def test_a_folder_of_corpora_is_read(tmp_path: Path) -> None:
    birds, helm = read_corpora(write_questions(tmp_path))
    assert birds.site == Site("birds", "dev", "people", "CC0", "github:birds/birds", "abc")
    assert helm.site == Site("helm", "train", "documentation", "MIT")
    assert dict(birds.pages) == {"swifts.md": SWIFTS}
    assert [one.id for one in helm.questions] == ["helm-1", "helm-002", "helm-003"]
    assert helm.questions[0].answers[0] == Answer("ops/rollback.md", "`helm rollback` returns to\nan earlier revision")


def test_a_folder_may_be_one_corpus(tmp_path: Path) -> None:
    (found,) = read_corpora(write_questions(tmp_path) / "helm")
    assert (found.site, len(found.questions)) == (Site("helm"), 3)


def bad(folder: Path, file: str, content: str, expected: str) -> None:
    (write_questions(folder) / file).write_text(content)
    with pytest.raises(CorpusError, match=expected):
        list(read_corpora(folder))


ANSWER = '{"question": "a?", "answers": [{"page": "swifts.md", "quote": "wing"}]}\n'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\n{\n", r"questions\.jsonl, line 2: expected one JSON object a line"),
        (f"{ANSWER}not json\n", r"questions\.jsonl, line 2: not JSON"),
        (f'{ANSWER}{{"answers": []}}', r"line 2: expected a list of answers"),
        ('{"question": " ", "answers": [{"page": "swifts.md", "quote": "wing"}]}', "line 1: expected a string in 'que"),
        ('{"question": "a?", "answers": ["swifts.md"]}', "line 1: expected an object with page and quote .* a string"),
        ('{"question": "a?", "answers": [{"page": "swifts.md"}]}', "line 1: .*'quote', found no such field"),
        ('{"question": "a?", "answers": [{"page": "x.md", "quote": "wing"}]}', "line 1: no page 'x.md' in .*birds"),
        (2 * ANSWER.replace("{", '{"id": "1", ', 1), "line 2: the id '1' came before"),
        ("\n", "no questions in it"),
    ],
)
def test_a_bad_question_names_its_line(content: str, expected: str, tmp_path: Path) -> None:
    bad(tmp_path, "birds/questions.jsonl", content, expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("site,split\nbirds,dev\nhelm\n", r"sites\.csv, line 3"),
        ("site,split\nbirds,dev\n", "no line for the folder 'helm'"),
        ("site,split\nbirds,dev\nhelm,train\ncats,train\n", "line 4: no folder .*cats"),
        ("site,split\nbirds,dev\nbirds,train\nhelm,train\n", "line 3: the site 'birds' has a line already"),
        ("site,split\nbirds,../dev\nhelm,train\n", r"line 2: expected letters, .* in 'split', found '\.\./dev'"),
        ("name\nbirds\nhelm\n", "line 2: expected a string in 'site', found no such field"),
    ],
)
def test_a_bad_site_names_its_line(content: str, expected: str, tmp_path: Path) -> None:
    bad(tmp_path, "sites.csv", content, expected)


def test_pages_that_are_missing_or_no_text_are_refused(tmp_path: Path) -> None:
    write_questions(tmp_path)
    page = tmp_path / "birds/pages/swifts.md"
    page.write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=r"swifts\.md: not a readable text in UTF-8"):
        list(read_corpora(tmp_path))
    page.unlink()
    with pytest.raises(CorpusError, match=r"birds: expected pages\.jsonl"):
        list(read_corpora(tmp_path))
    with pytest.raises(CorpusError, match=r"nowhere: expected questions\.jsonl"):
        list(read_corpora(tmp_path / "nowhere"))
    with pytest.raises(CorpusError, match="no corpus 'cats'"):
        list(read_corpora(tmp_path, ["cats"]))


def test_pages_are_cut_as_by_the_reader() -> None:
    pages = {"a/rollback.md": ROLLBACK, "b/rollback.md": ROLLBACK, "code.py": "x = 1\n", "Make file": "all:\n", "e": ""}
    pages["who.md"] = "---\ntitle: Who uses it\n---\n"  # holds no text
    passages = page_passages(pages, max_characters=150)
    assert [(one.page, one.number) for one in passages if one.page != "a/rollback.md"][-2:] == [
        ("code.py", 0),
        ("Make file", 0),
    ]
    halves = [[one[1:] for one in passages if one.page == page] for page in list(pages)[:2]]
    assert halves[0] == halves[1]
    assert len(halves[0]) > 1
    assert passages[-2].embedded == "code x = 1"
    assert passages[-1].title == "Make file"
    assert all(one.embedded == f"{one.title} {one.text}" for one in passages)


def test_a_passage_answers_by_its_quote_or_most_of_its_words() -> None:
    passages = page_passages({"ops/rollback.md": ROLLBACK, "other.md": ROLLBACK}, max_characters=150)
    finder = AnswerFinder(passages)
    (place,) = [at for at, one in enumerate(passages) if one.page == "ops/rollback.md" and FLAT in one.text]
    assert finder.find(question("returns to an\n earlier revision")).best == (place,)
    reworded = finder.find(question("rollback returns you safely to an earlier revision"))
    assert reworded.best == (place,)
    assert reworded.all == {place}
    assert finder.find(question("nothing of this is anywhere")) == ((), frozenset())
    assert finder.find(question("returns to", page="gone.md")).best == ()


def test_the_rule_of_quotes_is_the_one_that_the_sets_were_measured_with(run_questions: Any) -> None:
    """`near` of the script that the published figures come from, on words drawn at random."""
    draw = random.Random(0)
    texts = [" \n".join(draw.choices("abcdefg", k=draw.randint(1, 25))) for _ in range(400)]
    pairs = [(one[: draw.randint(1, 20)].strip() or "a", other) for one, other in itertools.pairwise(texts)]
    ours = [(holds(quote, text), nearly_holds(quote, text)) for quote, text in pairs]
    theirs = [(run_questions.normal(q) in run_questions.normal(t), run_questions.near(q, t)) for q, t in pairs]
    assert ours == theirs
    assert {near for _, near in ours} == {True, False}


def test_pairs_and_their_report(tmp_path: Path) -> None:
    report = write_pairs(read_corpora(write_questions(tmp_path / "in")), tmp_path / "out")
    rows = lines(tmp_path / "out/train.jsonl.gz")
    assert [(row["id"], row["further"], row["kind"]) for row in rows] == [
        ("helm-1", False, "plain"),
        ("helm-002", False, "keyword"),
    ]
    assert rows[0]["document"] in ROLLBACK
    assert FLAT in rows[0]["document"]
    assert rows[1]["title"] == "Limits"
    assert rows[1]["passage"] == "limits.mdx#0"
    pairs = list(PairReader(tmp_path / "out/train.jsonl.gz"))
    names = ("documentation", "helm", "ops/rollback.md")
    assert pairs[0] == Pair(QUESTIONS[0]["question"], rows[0]["document"].strip(), *names)
    passages = lines(tmp_path / "out/passages.jsonl.gz")
    assert {row["corpus"] for row in passages} == {"birds", "helm"}
    assert {row["passage"] for row in rows} <= {row["id"] for row in passages}
    found = json.loads((tmp_path / "out/report.json").read_text())
    assert found == json.loads(json.dumps(report.to_json()))
    assert (found["questions"], found["found"], found["files"]) == (4, 3, {"dev.jsonl.gz": 1, "train.jsonl.gz": 2})
    assert found["kinds"]["keyword"] == {"questions": 1, "found": 1}
    assert found["corpora"][1]["not_found"] == ["helm-003"]
    assert found["corpora"][1]["kinds"][""] == {"questions": 1, "found": 0}


def test_several_passages_that_answer_are_several_pairs(tmp_path: Path) -> None:
    write_pairs(read_corpora(write_questions(tmp_path / "in"), ["helm"]), tmp_path / "out", max_characters=150)
    rows = [row for row in lines(tmp_path / "out/train.jsonl.gz") if row["id"] == "helm-1"]
    assert [row["further"] for row in rows] == [False, True]
    assert "yourself" in rows[1]["document"]


def overlapping(folder: Path) -> Path:
    """Corpora in which the one for training has a page of the one for development."""
    write_questions(folder)
    answers = [{"page": "copy.md", "quote": "stay in the air for ten months"}]
    asked = [*QUESTIONS[:1], {"question": "do they ever land?", "kind": "plain", "answers": answers}]
    for name in ("questions.jsonl", "pages.jsonl.gz"):
        (folder / "helm" / name).unlink()
    (folder / "helm").rmdir()
    write_corpus(folder / "helm", {"ops/rollback.md": ROLLBACK, "copy.md": SWIFTS}, asked)
    return folder


def test_pairs_of_other_splits_and_given_sets_are_removed(tmp_path: Path) -> None:
    overlapping(tmp_path / "in")
    (tmp_path / "sets/odd").mkdir(parents=True)
    (tmp_path / "sets/beir").mkdir()
    (tmp_path / "sets/beir/queries.jsonl").write_text(json.dumps({"_id": "1", "text": QUESTIONS[0]["question"]}))
    surrogate = tfidf_svd([ROLLBACK, SWIFTS, "how do I get back to what ran yesterday?"])
    report = write_pairs(read_corpora(tmp_path / "in"), tmp_path / "out", surrogate=surrogate)
    assert report.removed == {"birds": 1}
    assert report.files == {"dev.jsonl.gz": 1, "train.jsonl.gz": 1}
    report = write_pairs(
        read_corpora(tmp_path / "in"), tmp_path / "both", surrogate=surrogate, against=[tmp_path / "sets"]
    )
    assert report.removed == {"birds": 1, "beir": 1}
    assert report.files == {"dev.jsonl.gz": 1}
    assert report.passed_over == ("odd",)
    kept = write_pairs(read_corpora(tmp_path / "in"), tmp_path / "all")
    assert kept.files["train.jsonl.gz"] == 2


def test_evaluation_sets_may_be_questions(tmp_path: Path) -> None:
    (found,), others = evaluation_sets(write_questions(tmp_path / "in") / "birds")
    assert (found.name, found.queries, others) == ("birds", ["where do swifts sleep?"], [])
    assert "ten months" in found.documents[0]
    (tmp_path / "in" / "other").mkdir()
    (tmp_path / "in" / "other" / "questions.jsonl").write_text("{}\n")  # of another form: there are no pages
    assert "other" in evaluation_sets(tmp_path / "in")[1]
    with pytest.raises(CorpusError, match="expected an evaluation set or a folder of some"):
        evaluation_sets(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match="need a surrogate"):
        write_pairs(read_corpora(tmp_path / "in"), tmp_path / "out", against=[tmp_path])


def test_a_split_does_not_overwrite_the_passages(tmp_path: Path) -> None:
    (write_questions(tmp_path / "in") / "sites.csv").write_text("site,split\nbirds,passages\nhelm,train\n")
    with pytest.raises(CorpusError, match="birds: the split 'passages' would overwrite"):
        write_pairs(read_corpora(tmp_path / "in"), tmp_path / "out")


def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    write_questions(tmp_path / "in")
    for name in ("a", "b"):
        write_pairs(read_corpora(tmp_path / "in"), tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_the_command(tmp_path: Path, run: Run) -> None:
    write_questions(tmp_path / "in")
    done = run("questions", tmp_path / "in", tmp_path / "out", "--surrogate", "tfidf")
    assert "train.jsonl.gz: 2 pairs" in done.stdout
    assert "helm: 2 of 3; none for helm-003" in done.stderr
    shown = run("questions", tmp_path / "in", tmp_path / "out", "--surrogate", "none", "--corpus", "helm", "--json")
    assert json.loads(shown.stdout)["found"] == 2
    assert "no corpus 'cats'" in one_sentence(
        run("questions", tmp_path / "in", tmp_path / "out", "--corpus", "cats", code=1)
    )
    run("questions", tmp_path / "in", tmp_path / "out", "--surrogate", "word2vec", code=1)
    run("questions", tmp_path / "in", tmp_path / "out", "--pages", tmp_path, code=2)
    run("questions", tmp_path / "in", tmp_path / "out", "--surrogate", "none", "--against", tmp_path / "in", code=2)


def test_the_pairs_can_be_prepared(tmp_path: Path) -> None:
    from tiny import tiny_cde_model

    from cde_rag_training.data.preparation import PrepareConfig, prepare

    write_pairs(read_corpora(write_questions(tmp_path / "in")), tmp_path / "out")
    pairs = list(PairReader(tmp_path / "out/train.jsonl.gz"))
    prepared = prepare(
        pairs,
        tiny_cde_model().tokenizer,
        tmp_path / "prepared",
        PrepareConfig(max_length=64, surrogate="ones"),
        surrogate=lambda texts: np.eye(len(texts), 8, dtype=np.float32) + np.float32(0.1),
    )
    assert (prepared.source_names, prepared.domain_names) == (("documentation",), ("helm",))

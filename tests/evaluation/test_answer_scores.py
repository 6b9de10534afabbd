"""Answers within a number of tokens, and hits: those of the obvious way."""

import numpy as np
import pytest
from tiny import tiny_tokenizer

from cde_rag.evaluation.answer_passages import PagePassage, answers_question
from cde_rag.evaluation.answer_scores import answer_scores, found_within, judged_passages
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site
from cde_rag.models.tokenizer import TextTokenizer

WORDS = "river bank money loan flood water city house green stone tree road".split()


def passage(page: str, number: int, text: str) -> PagePassage:
    return PagePassage(page, number, "a title that does not count", text, text)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(tiny_tokenizer())


def test_hits_are_counted_at_one_and_five() -> None:
    passages = [passage(page, number, f"{page}{number}") for page in "abcdefg" for number in range(2)]
    questions = [JudgedQuestion(str(n), "?", "", (Answer("b", "b1"),)) for n in range(3)]
    data = judged_passages(Site("made"), passages, questions)
    found = answer_scores(
        data, [["b#1"], ["b#0", "c#0", "d#0", "e#0", "b#1"], ["a#0", "a#1", "c#0", "d#0", "e#0", "b#1"]]
    )
    assert found.hit_1.tolist() == [1, 0, 0]
    assert found.hit_5.tolist() == [1, 1, 0]
    assert found.page_hit_1.tolist() == [1, 1, 0]
    assert found.page_hit_5.tolist() == [1, 1, 1]
    assert found.answers.tolist() == [1, 1 / 5, 1 / 6]


def test_tokens_are_spent_in_order_and_the_last_passage_is_cut(tokenizer: TextTokenizer) -> None:
    passages = [passage("a", 0, " ".join(WORDS[:4])), passage("a", 1, " ".join(WORDS[4:12]))]
    (question,) = questions = [JudgedQuestion("1", "?", "", (Answer("a", " ".join(WORDS[6:9])),))]
    data = judged_passages(Site("made"), passages, questions)
    assert data.answers == (frozenset({"a#1"}),)
    found = found_within(data, [["a#0", "a#1"]], tokenizer, budgets=range(15))
    needed = next(budget for budget, scores in found.items() if scores[0])
    assert needed == 4 + 4  # the first passage, and of the second enough for 60 % of the quote's words
    assert [scores[0] for scores in found.values()] == [0.0] * needed + [1.0] * (15 - needed)
    assert answers_question(question, "a", " ".join(WORDS[4:8]))
    assert not answers_question(question, "b", " ".join(WORDS[4:8]))
    alone = found_within(data, [["a#1"]], tokenizer, budgets=[3, 4])
    assert {budget: scores.tolist() for budget, scores in alone.items()} == {3: [0.0], 4: [1.0]}
    assert found_within(data, [[]], tokenizer, budgets=[100])[100].tolist() == [0.0]


def test_more_tokens_never_find_less(tokenizer: TextTokenizer) -> None:
    draw = np.random.default_rng(0)
    passages = [passage(f"{n % 5}", n // 5, " ".join(draw.choice(WORDS, draw.integers(1, 12)))) for n in range(40)]
    questions = [
        JudgedQuestion(str(n), "?", "", (Answer(one.page, " ".join(one.text.split()[:4])),))
        for n, one in enumerate(passages)
    ]
    data = judged_passages(Site("made"), passages, questions)
    rankings = [[data.ids[at] for at in draw.permutation(40)[:20]] for _ in questions]
    found = np.array(list(found_within(data, rankings, tokenizer, budgets=range(0, 2_000, 50)).values()))
    assert (np.diff(found, axis=0) >= 0).all()
    in_twenty = [bool(right & set(ranking)) for right, ranking in zip(data.answers, rankings, strict=True)]
    assert found[-1].tolist() == in_twenty

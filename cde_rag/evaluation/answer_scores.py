"""Scores of rankings of passages on questions with quoted answers: ranks of answers and of pages, and tokens read.

A passage counts if it is from a page of an answer and holds its quote, or nearly holds it (`answer_passages`); a
question that no passage answers counts as not found. Long passages hold a quote more easily than short ones: where
passages differ, compare by the answers within a number of tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from cde_rag.evaluation.answer_passages import (
    MAX_CHARACTERS,
    AnswerFinder,
    PagePassage,
    answers_question,
    page_passages,
)
from cde_rag.evaluation.intervals import Difference, PairedQueries, compare
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.evaluation.metrics import hit, reciprocal_rank
from cde_rag.evaluation.question_folder import QuestionCorpus, Site
from cde_rag.evaluation.ranking import Ranking
from cde_rag.models.tokenizer import TextTokenizer

K: Final = 10  # hits that are looked at
BUDGETS: Final = (500, 1_000, 2_000)  # tokens of the passages that are returned first
_ALL: Final = 1_000_000  # tokens of a passage, at most


@dataclass(frozen=True)
class JudgedPassages:
    """Passages of a corpus, and questions with the passages that answer them.

    Attributes:
        site: Facts about the corpus.
        passages: Its passages.
        questions: Its questions.
        answers: Ids of the passages that count for each question; empty if none does.
    """

    site: Site
    passages: tuple[PagePassage, ...]
    questions: tuple[JudgedQuestion, ...]
    answers: tuple[frozenset[str], ...]

    @property
    def ids(self) -> list[str]:
        """Id of each passage, as rankings have it."""
        return [passage.id for passage in self.passages]

    @property
    def texts(self) -> list[str]:
        """Title and text of each passage, as a collection embeds them."""
        return [passage.embedded for passage in self.passages]

    @property
    def queries(self) -> list[str]:
        """Text of each question."""
        return [question.text for question in self.questions]

    @property
    def found(self) -> Bool[np.ndarray, " questions"]:
        """True where a passage answers the question."""
        return np.array([bool(right) for right in self.answers])

    @cached_property
    def blocks(self) -> Int64[np.ndarray, " questions"]:
        """Block number of each question; those that share their first right passage are not independent."""
        named = [min(right) if right else f"question {place}" for place, right in enumerate(self.answers)]
        return np.unique(np.array(named, dtype=object), return_inverse=True)[1]

    def part(self, limit: int, *, near: int = 0) -> "JudgedPassages":
        """Return the same questions with about `limit` passages: all that answer, and others by digest of their id.

        Args:
            limit: Passages; more stay if more answer.
            near: Passages in front of each that answers, and after it, that stay in any case.
        """
        right = frozenset[str]().union(*self.answers)
        around = {
            (passage.page, passage.number + step)
            for passage in self.passages
            if passage.id in right
            for step in range(-near, near + 1)
        }
        kept = frozenset(passage.id for passage in self.passages if (passage.page, passage.number) in around)
        others = sorted((each for each in self.ids if each not in kept), key=_order)
        kept |= frozenset(others[: max(0, limit - len(kept))])
        return replace(self, passages=tuple(passage for passage in self.passages if passage.id in kept))


class AnswerScores(NamedTuple):
    """Scores of one system on the questions of a corpus; fractions.

    Attributes:
        answers: One over the rank of the first of ten passages that answers, else 0; the mean is MRR@10.
        pages: One over the rank of the first page with an answer among the distinct pages of the ten passages.
        hit_1: 1 if the first passage answers, else 0.
        hit_5: 1 if one of the first five passages answers, else 0.
        page_hit_1: 1 if the first page has an answer, else 0.
        page_hit_5: 1 if one of the first five pages has an answer, else 0.
    """

    answers: Float64[np.ndarray, " questions"]
    pages: Float64[np.ndarray, " questions"]
    hit_1: Float64[np.ndarray, " questions"]
    hit_5: Float64[np.ndarray, " questions"]
    page_hit_1: Float64[np.ndarray, " questions"]
    page_hit_5: Float64[np.ndarray, " questions"]


def judged(corpus: QuestionCorpus, *, max_characters: int = MAX_CHARACTERS) -> JudgedPassages:
    """Cut a corpus into passages, and find those that answer its questions.

    Args:
        corpus: Pages and questions.
        max_characters: Maximum length of a passage.

    Raises:
        CorpusError: A page that cannot be read.
    """
    return judged_passages(corpus.site, page_passages(corpus.pages, max_characters=max_characters), corpus.questions)


def judged_passages(site: Site, passages: Sequence[PagePassage], questions: Sequence[JudgedQuestion]) -> JudgedPassages:
    """Find the passages that answer questions by page and quote.

    Args:
        site: Facts about the corpus.
        passages: All of the corpus.
        questions: With pages of the corpus.
    """
    finder = AnswerFinder(passages)
    answers = [frozenset(passages[place].id for place in finder.find(one).all) for one in questions]
    return JudgedPassages(site, tuple(passages), tuple(questions), tuple(answers))


def answer_scores(data: JudgedPassages, rankings: Sequence[Ranking]) -> AnswerScores:
    """Score the ranking of each question.

    Args:
        data: Passages and questions.
        rankings: Ids of passages for each question, best first.
    """
    page_of = {passage.id: passage.page for passage in data.passages}
    rows: list[tuple[float, ...]] = []
    for question, right, ranking in zip(data.questions, data.answers, rankings, strict=True):
        passages, pages = dict.fromkeys(right, 1), {answer.page: 1 for answer in question.answers}
        distinct = list(dict.fromkeys(page_of[each] for each in ranking[:K]))
        rows.append(
            (
                reciprocal_rank(ranking, passages, K),
                reciprocal_rank(distinct, pages, K),
                hit(ranking, passages, 1),
                hit(ranking, passages, 5),
                hit(distinct, pages, 1),
                hit(distinct, pages, 5),
            )
        )
    return AnswerScores(*np.array(rows, dtype=np.float64).reshape(-1, len(AnswerScores._fields)).T)


def found_within(
    data: JudgedPassages, rankings: Sequence[Ranking], tokenizer: TextTokenizer, *, budgets: Sequence[int] = BUDGETS
) -> dict[int, Float64[np.ndarray, " questions"]]:
    """Return 1 for each question with an answer among the first tokens of the passages that are returned, else 0.

    Passages are read in their order, without titles, until the tokens are spent; the last one is cut, and counts if
    what is left of it holds a quote, or nearly holds it.

    Args:
        data: Passages and questions.
        rankings: Ids of passages for each question, best first; long enough for the tokens.
        tokenizer: Counts tokens; special ones do not count. One tokenizer for all that is compared.
        budgets: Numbers of tokens.
    """
    texts = {passage.id: passage.text for passage in data.passages}
    page_of = {passage.id: passage.page for passage in data.passages}
    special = tokenizer.special_tokens
    lengths = [len(tokens.ids) - special for tokens in tokenizer(list(texts.values()), _ALL)]
    length_of = dict(zip(texts, lengths, strict=True))

    def is_found(question: JudgedQuestion, right: frozenset[str], ranking: Ranking, left: int) -> bool:
        for each in ranking:
            if length_of[each] <= left:
                if each in right:
                    return True
                left -= length_of[each]
                continue
            if not left or each not in right:
                return False
            read = texts[each][: tokenizer.reach([texts[each]], left + special)[0]]
            return answers_question(question, page_of[each], read)
        return False

    rows = list(zip(data.questions, data.answers, rankings, strict=True))
    return {budget: np.array([float(is_found(*row, budget)) for row in rows], dtype=np.float64) for budget in budgets}


def parts_of(corpora: Sequence[JudgedPassages]) -> Mapping[str, list[Bool[np.ndarray, " _"]]]:
    """Return masks of each corpus's questions: all, of each corpus, of each form of text, and of each kind of question.

    Args:
        corpora: Of different names.
    """
    none = [np.zeros(len(one.questions), dtype=np.bool_) for one in corpora]
    every = [~mask for mask in none]
    parts: dict[str, list[Bool[np.ndarray, " _"]]] = {"all": every}
    for form in sorted({one.site.form for one in corpora}):
        parts[f"form {form}"] = [every[at] if one.site.form == form else none[at] for at, one in enumerate(corpora)]
    for kind in sorted({question.kind for one in corpora for question in one.questions}):
        parts[f"kind {kind}"] = [np.array([each.kind == kind for each in one.questions]) for one in corpora]
    for place, one in enumerate(corpora):
        parts[one.site.name] = [every[at] if at == place else none[at] for at in range(len(corpora))]
    return parts


def mean_score(scores: Sequence[Float64[np.ndarray, " _"]], part: Sequence[Bool[np.ndarray, " _"]]) -> float:
    """Return the mean over corpora of the mean over their questions in a part; corpora without any are left out.

    Args:
        scores: Scores of one system for each corpus.
        part: Masks of `parts_of`.
    """
    means = [one[mask].mean() for one, mask in zip(scores, part, strict=True) if mask.any()]
    return float(np.mean(means))


def answer_difference(
    corpora: Sequence[JudgedPassages],
    ours: Sequence[Float64[np.ndarray, " _"]],
    theirs: Sequence[Float64[np.ndarray, " _"]],
    part: Sequence[Bool[np.ndarray, " _"]],
) -> Difference:
    """Compute the difference of two systems, ours less theirs, with intervals over questions and over corpora.

    Args:
        corpora: Passages and questions.
        ours: Scores of one system for each corpus.
        theirs: Those of the other.
        part: Masks of `parts_of`; corpora without a question in it are left out.
    """
    each = zip(corpora, ours, theirs, part, strict=True)
    return compare([PairedQueries((a - b)[mask], data.blocks[mask]) for data, a, b, mask in each if mask.any()])


def _order(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()

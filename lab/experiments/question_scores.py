"""Models on questions with quoted answers: reciprocal ranks of answers and pages, by vectors and in hybrid search."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cde_rag.evaluation.answer_scores import (
    AnswerScores,
    JudgedPassages,
    answer_difference,
    answer_scores,
    judged,
    mean_score,
    parts_of,
)
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.question_folder import SITES, read_corpora
from cde_rag.evaluation.ranking import Ranking, rank_hybrid, rank_vectors
from cde_rag.models import CDEModel
from cde_rag.models.runtimes.runtime_choice import Runtime
from lab.experiments.laboratory import Laboratory

CONTEXTS = ("own", "null")


class System(NamedTuple):
    """A model under a context.

    Attributes:
        name: Of the model, for tables.
        model: As for `CDEModel.from_pretrained`; one-way.
        context: "own", of the corpus's passages, or "null".
    """

    name: str
    model: str
    context: str


class ScoreRow(NamedTuple):
    """Result of one system on a part of the questions.

    Attributes:
        part: "all", a form of text, a kind of question, or a corpus.
        system: Name of the model.
        context: Its context.
        by: "vectors" or "hybrid".
        corpora: Corpora with questions in the part.
        questions: Their number.
        answers: MRR@10 of answers, mean over corpora.
        pages: MRR@10 of pages, mean over corpora.
        gain: Difference of answers to the first system, by the same ranking.
        low: Lower end of its 95 % interval over questions.
        high: Upper end.
        corpora_low: Lower end of its 95 % interval over corpora and questions; the first one's for one corpus.
        corpora_high: Upper end.
    """

    part: str
    system: str
    context: str
    by: str
    corpora: int
    questions: int
    answers: float
    pages: float
    gain: float
    low: float
    high: float
    corpora_low: float
    corpora_high: float


def read_judged(folders: Sequence[Path], *, split: str = "", passages: int = 0) -> list[JudgedPassages]:
    """Read folders of questions, and cut them.

    Args:
        folders: As `read_corpora` reads them.
        split: Keep corpora of this split only; empty: all. A folder without `sites.csv` has no splits, and is kept.
        passages: Approximate maximum per corpus; all that answer stay. 0: no limit.

    Raises:
        CorpusError: As `read_corpora`.
    """
    found = [
        judged(corpus)
        for folder in folders
        for corpus in read_corpora(folder)
        if not split or corpus.site.split == split or not (folder / SITES).is_file()
    ]
    return [one.part(passages) for one in found] if passages else found


def system_rankings(
    system: System, corpora: Sequence[JudgedPassages], cache: Path, *, seed: int, runtime: Runtime = "torch"
) -> Iterator[dict[str, list[Ranking]]]:
    """Yield the rankings of each corpus, by vectors and hybrid.

    Args:
        system: Model and context.
        corpora: Passages and questions.
        cache: Folder of vectors, by which a stopped call resumes.
        seed: Random seed of the contexts.
        runtime: Runtime of the models.
    """
    laboratory = Laboratory(CDEModel.from_pretrained(system.model, runtime=runtime), [], cache, seed)
    for data in corpora:
        space = laboratory.null() if system.context == "null" else laboratory.space(data.texts)
        queries, documents = space.queries(data.queries), space.documents(data.texts)
        names = data.ids, [f"question {question.id}" for question in data.questions]
        words = word_hits(data.texts, data.queries)
        yield {
            "vectors": rank_vectors(queries, documents, *names),
            "hybrid": rank_hybrid(queries, documents, words, *names),
        }


def score_rows(
    systems: Sequence[System],
    corpora: Sequence[JudgedPassages],
    cache: Path,
    *,
    seed: int = 0,
    runtime: Runtime = "torch",
) -> list[ScoreRow]:
    """Score systems on all parts of the questions; gains are over the first system.

    Args:
        systems: At least one.
        corpora: At least one.
        cache: Folder of vectors.
        seed: Random seed of the contexts.
        runtime: Runtime of the models.
    """
    scores: dict[tuple[System, str], list[AnswerScores]] = {}
    for system in systems:
        rankings_of = system_rankings(system, corpora, cache, seed=seed, runtime=runtime)
        for data, found in zip(corpora, rankings_of, strict=True):
            for by, rankings in found.items():
                scores.setdefault((system, by), []).append(answer_scores(data, rankings))
    rows: list[ScoreRow] = []
    for part, masks in parts_of(corpora).items():
        for (system, by), ours in scores.items():
            theirs = [one.answers for one in scores[systems[0], by]]
            gain = answer_difference(corpora, [one.answers for one in ours], theirs, masks)
            rows.append(
                ScoreRow(
                    part=part,
                    system=system.name,
                    context=system.context,
                    by=by,
                    corpora=sum(bool(mask.any()) for mask in masks),
                    questions=sum(int(mask.sum()) for mask in masks),
                    answers=mean_score([one.answers for one in ours], masks),
                    pages=mean_score([one.pages for one in ours], masks),
                    gain=gain.mean,
                    low=gain.queries[0],
                    high=gain.queries[1],
                    corpora_low=(gain.sets or gain.queries)[0],
                    corpora_high=(gain.sets or gain.queries)[1],
                )
            )
    return rows

"""Evaluation of indexes on judged questions: scores by system, means over corpora, intervals; JSON, and a table."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float64

from cde_rag.errors import CorpusError, counted
from cde_rag.evaluation.answer_scores import (
    BUDGETS,
    JudgedPassages,
    answer_difference,
    answer_scores,
    found_within,
    mean_score,
    parts_of,
)
from cde_rag.evaluation.answer_systems import (
    ANSWER_SYSTEMS,
    OF_INDEX,
    OF_MODEL,
    OF_WORDS,
    JudgedIndex,
    system_rankings,
)
from cde_rag.evaluation.costs import Cost, CostMeter
from cde_rag.evaluation.intervals import Difference
from cde_rag.evaluation.own_questions import LeftOut
from cde_rag.evaluation.ranking import Ranking
from cde_rag.evaluation.system_comparison import SystemComparison, table
from cde_rag.models.files import model_files
from cde_rag.models.loading import ModelSource
from cde_rag.models.tokenizer import TextTokenizer

MRR: Final = "mrr@10"
METRICS: Final[Mapping[str, str]] = {  # and their heading
    MRR: "MRR@10",
    "hit@1": "hit@1",
    "hit@5": "hit@5",
    "page_mrr@10": "page MRR@10",
    "page_hit@1": "page hit@1",
    "page_hit@5": "page hit@5",
    **{f"found@{budget}": f"{budget:,} tokens" for budget in BUDGETS},
}
_OF_CUTS: Final = "found@1000"
_TOKENIZER: Final = "cde-mini-1"  # whose tokens are counted, whatever model is evaluated
_FURTHER: Final = (("index_vectors", "minilm"), ("index_vectors", "null"))  # pairs, besides those of the first system
Scores = Mapping[str, Float64[np.ndarray, " questions"]]


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """Progress of an evaluation.

    Attributes:
        done: Systems finished on this corpus.
        total: Systems to run on it.
        corpus: Name of the corpus.
        system: The system that was finished last.
    """

    done: int
    total: int
    corpus: str
    system: str


@dataclass(frozen=True, eq=False)
class CorpusAnswers:
    """Results on the questions of one corpus.

    Attributes:
        data: Passages of the first index, and the questions.
        passages: Number of passages of each index, by its name.
        unanswered: Number of questions that no passage answers, for each index; they count as not found.
        dropped: Number of questions that were left out, by reason.
        scores: System → metric → one score per question, fractions.
        costs: Cost of each system.
    """

    data: JudgedPassages
    passages: Mapping[str, int]
    unanswered: Mapping[str, int]
    dropped: LeftOut
    scores: Mapping[str, Scores]
    costs: Mapping[str, Cost]


@dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """Results on all corpora. `str(evaluation)` is a table for people.

    Attributes:
        model: Name of the model of the first index.
        corpora: Results on each corpus.
    """

    model: str
    corpora: tuple[CorpusAnswers, ...]

    @cached_property
    def systems(self) -> tuple[str, ...]:
        """Systems that ran on all corpora; the first one is compared with each of the others."""
        return tuple(name for name in self.corpora[0].scores if all(name in one.scores for one in self.corpora))

    @cached_property
    def parts(self) -> Mapping[str, list[Bool[np.ndarray, " _"]]]:
        """Masks of all questions, of each form of text, each kind of question, and each corpus; see `parts_of`."""
        return parts_of([one.data for one in self.corpora])

    @property
    def metric(self) -> str:
        """MRR@10; answers within tokens if indexes cut the pages otherwise, since long passages hold more answers."""
        return _OF_CUTS if any(len(set(one.passages.values())) > 1 for one in self.corpora) else MRR

    @cached_property
    def comparison(self) -> SystemComparison:
        """The systems by `metric` on all questions, with their costs and advice."""
        return SystemComparison(
            metric=METRICS[self.metric],
            scores=[{name: one.scores[name][self.metric] for name in one.scores} for one in self.corpora],
            blocks=[one.data.blocks for one in self.corpora],
            costs={name: sum((one.costs[name] for one in self.corpora), Cost()) for name in self.systems},
        )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of systems whose difference is computed."""
        first, *others = self.systems
        return [(first, other) for other in others] + [pair for pair in _FURTHER if set(pair) <= {*others}]

    def mean(self, system: str, metric: str = MRR, *, part: str = "all") -> float:
        """Return the mean over corpora of the mean over their questions in a part, a fraction."""
        return mean_score(self._scores(system, metric), self.parts[part])

    def difference(self, system: str, other: str, metric: str = MRR, *, part: str = "all") -> Difference:
        """Return one system less another, with intervals over questions, and over corpora and questions."""
        data = [one.data for one in self.corpora]
        return answer_difference(data, self._scores(system, metric), self._scores(other, metric), self.parts[part])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; all metrics are fractions."""
        return {
            "model": self.model,
            "systems": list(self.systems),
            "comparison": self.comparison.to_json(),
            "parts": {part: self._part(part) for part in self.parts},
            "corpora": {
                one.data.site.name: {
                    "passages": dict(one.passages),
                    "questions": len(one.data.questions),
                    "unanswered": dict(one.unanswered),
                    "dropped": dict(one.dropped),
                }
                for one in self.corpora
            },
        }

    def __str__(self) -> str:
        questions = sum(len(one.data.questions) for one in self.corpora)
        several = len(self.corpora) > 1
        size = counted(questions, "question") + (f" about {len(self.corpora)} corpora" if several else "")
        lines = [f"answers × 100 · {self.model} · {size}", "", *table(self.comparison.rows()), ""]
        further = [name for name in METRICS if name != self.metric]
        rows = [[name, *(_percent(self.mean(name, metric)) for metric in further)] for name in self.systems]
        lines += [*table([["", *(METRICS[name] for name in further)], *rows]), ""]
        parts = [part for part, masks in self.parts.items() if not all(mask.all() for mask in masks)]
        if parts:
            lines += table(
                [
                    ["MRR@10", *parts],
                    *([name, *(_percent(self.mean(name, part=part)) for part in parts)] for name in self.systems),
                ]
            )
            lines.append("")
        return "\n".join([*lines, *self._notes(), self.comparison.advice]).rstrip()

    def _notes(self) -> list[str]:
        notes: list[str] = []
        for one in self.corpora:
            if len(set(one.passages.values())) > 1:
                cuts = ", ".join(f"{count:,} {name}".rstrip() for name, count in one.passages.items())
                notes.append(f"{one.data.site.name}: passages: {cuts}, so they are compared by tokens")
            for name, count in one.unanswered.items():
                if count and not (name and count == one.unanswered.get("")):
                    where = f"{one.data.site.name}{f' ({name})' if name else ''}"
                    asked = f"{count} of {len(one.data.questions)} questions"
                    notes.append(f"{where}: no passage answers {asked}; they count as not found")
            notes += [f"{one.data.site.name}: left out {each}" for each in one.dropped.in_words()]
        return notes

    def _part(self, part: str) -> dict[str, Any]:
        metrics = METRICS if part == "all" else (MRR,)
        masks = self.parts[part]
        return {
            "corpora": sum(bool(mask.any()) for mask in masks),
            "questions": sum(int(mask.sum()) for mask in masks),
            **{metric: {name: self.mean(name, metric, part=part) for name in self.systems} for metric in METRICS},
            "intervals": {
                metric: {"-".join(pair): asdict(self.difference(*pair, metric, part=part)) for pair in self.pairs}
                for metric in metrics
            },
        }

    def _scores(self, system: str, metric: str) -> list[Float64[np.ndarray, " _"]]:
        return [one.scores[system][metric] for one in self.corpora]


def evaluate_answers(
    corpora: Iterable[Sequence[JudgedIndex]],
    *,
    systems: Sequence[str] = tuple(ANSWER_SYSTEMS),
    folder: Path | None = None,
    on_progress: Callable[[AnswerProgress], None] | None = None,
) -> AnswerEvaluation:
    """Evaluate indexes on judged questions, with baselines of the same passages.

    Args:
        corpora: For each corpus one index, or several of the same questions, such as with other options; the systems
            without an index of their own are of the first one's passages. Taken one by one.
        systems: Names in `ANSWER_SYSTEMS`.
        folder: Baselines' collections are kept there, below the corpus's name; None for a temporary folder.
        on_progress: Called after each system of each corpus.

    Raises:
        CorpusError: There are no corpora, or two of one name.
        MissingExtraError: A dependency of a baseline is not installed.
        ValueError: Unknown systems, or none.
    """
    unknown = sorted(set(systems) - ANSWER_SYSTEMS.keys())
    if unknown or not systems:
        raise ValueError(f"Expected systems among {', '.join(ANSWER_SYSTEMS)}; found {', '.join(unknown) or 'none'}.")
    tokenizer = counting_tokenizer()
    found: list[CorpusAnswers] = []
    model = ""
    with tempfile.TemporaryDirectory(prefix="cde-rag-") if folder is None else nullcontext(folder) as place:
        for indexes in corpora:
            model = model or indexes[0].collection.embedder.context.identity.name
            found.append(_of_corpus(indexes, systems, Path(place), tokenizer, on_progress))
    names = [one.data.site.name for one in found]
    if not found or len(set(names)) < len(names):
        raise CorpusError(f"Expected at least one corpus, each of another name; found {names}.")
    return AnswerEvaluation(model, tuple(found))


def _of_corpus(
    indexes: Sequence[JudgedIndex],
    systems: Sequence[str],
    folder: Path,
    tokenizer: TextTokenizer,
    on_progress: Callable[[AnswerProgress], None] | None,
) -> CorpusAnswers:
    first, *_ = indexes
    name, meter = first.data.site.name, CostMeter()
    asked = _asked(indexes, systems)
    total = sum(len(some) for _, some in asked)
    scores: dict[str, Scores] = {}
    costs: dict[str, Cost] = {}
    for index, some in asked:
        for run in system_rankings(index, some, folder / name, meter):
            label = f"{run.system} {index.name}".rstrip()
            scores[label], costs[label] = scored(index.data, run.rankings, tokenizer), run.cost
            if on_progress is not None:
                on_progress(AnswerProgress(len(scores), total, name, label))
    return CorpusAnswers(
        data=first.data,
        passages={each.name: len(each.data.passages) for each in indexes},
        unanswered={each.name: int((~each.data.found).sum()) for each in indexes},
        dropped=first.dropped or LeftOut(),
        scores=scores,
        costs=costs,
    )


def _asked(indexes: Sequence[JudgedIndex], systems: Sequence[str]) -> list[tuple[JudgedIndex, list[str]]]:
    """Return the systems to run of each index: of further ones those that differ from the indexes before."""
    found: list[tuple[JudgedIndex, list[str]]] = []
    models, words = set[str](), set[tuple[str, ...]]()
    for index in indexes:
        model, texts = index.collection.embedder.context.identity.plain, tuple(index.data.texts)
        same = {*(OF_MODEL if model.weights_sha256 in models else ()), *(OF_WORDS if texts in words else ())}
        further = {*OF_INDEX, *OF_MODEL, *OF_WORDS}
        found.append((index, [each for each in systems if each not in same and (not found or each in further)]))
        models.add(model.weights_sha256)
        words.add(texts)
    return found


def counting_tokenizer() -> TextTokenizer:
    """Return the tokenizer that counts the tokens of all systems, whatever their models."""
    return ModelSource.of(model_files.find(_TOKENIZER)).files.tokenizer


def scored(data: JudgedPassages, rankings: Sequence[Ranking], tokenizer: TextTokenizer) -> Scores:
    """Score the ranking of each question by each metric of `METRICS`.

    Args:
        data: Passages and questions.
        rankings: Ids of passages for each question, best first.
        tokenizer: Counts tokens.
    """
    one, within = answer_scores(data, rankings), found_within(data, rankings, tokenizer)
    ranked = (one.answers, one.hit_1, one.hit_5, one.pages, one.page_hit_1, one.page_hit_5)
    return dict(zip(METRICS, (*ranked, *(within[budget] for budget in BUDGETS)), strict=True))


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"

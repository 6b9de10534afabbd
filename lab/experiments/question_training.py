"""The plan of lab/pages/user-questions-plan.md: models trained on users' questions, merged and judged by gates.

    python -m lab.experiments.question_training lab/plans/user-questions.toml --work runs/questions

Each step writes files below the folder of --work that the next one reads, and is not repeated: a run that was stopped
resumes. Long because the plan is one list of steps.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from cde_rag._files import write_durably
from cde_rag.evaluation.answer_scores import JudgedPassages, judged
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.intervals import Difference
from cde_rag.evaluation.question_folder import TRAIN, UNNAMED, read_corpora, read_sites
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.readers.tables import jsonl_rows, opened
from cde_rag_training.clustering.near_duplicates import DuplicateConfig
from cde_rag_training.clustering.surrogate import Surrogate, cached, minilm
from cde_rag_training.config import LossConfig, StartConfig, TrainingConfig
from cde_rag_training.data.duplicates import EvaluationTexts, without_near_duplicates
from cde_rag_training.data.pairs import CorpusPassage, Pair, per_source
from cde_rag_training.data.preparation import prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.reading import PairReader
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.loop.training import CARD, MODEL, train
from cde_rag_training.networks.interpolation import merge_models
from cde_rag_training.networks.start import load_start
from cde_rag_training.questions.hard_negatives import HardNegativesConfig, hard_negatives
from cde_rag_training.questions.question_pairs import evaluation_sets, write_lines, write_pairs
from cde_rag_training.recipe import RecipeError, changed, read_recipe, read_tables, recipe_of
from lab.experiments import bundled_pairs
from lab.experiments.laboratory import Laboratory, compared
from lab.experiments.question_scores import CONTEXTS, ScoreRow, System, read_judged, score_rows
from lab.experiments.result_tables import write_table

STEPS: Final = ("pairs", "old", "negatives", "prepared", "models", "merged", "scores")
NAMES: Final = ("questions", "sets", "gates")  # of tables of scores
SCORED: Final = "openvino"  # runtime of the scores of questions: faster than torch, the same figures
SURROGATE: Final = "minilm-256"
TITLED: Final = ", titled"  # ends the name of a source whose passages have their titles in front
FEWEST: Final = 3  # hard negatives of a pair
SPARE: Final = 1.25  # old pairs that are compared with other sets, for each that is wanted


@dataclass(frozen=True, kw_only=True)
class OldConfig:
    """Share of a source of old pairs."""

    source: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class VariantConfig:
    """One training: how many questions, and the seeds. Its recipe is the plan's with a change."""

    name: str
    seeds: tuple[int, ...] = (0,)
    questions: int = 0  # at most, over all corpora; 0: all
    corpora: int = 0  # at most; 0: all
    epochs: float = 1.0  # over the questions
    merged: bool = False  # merge with the start by the plan's shares; else the mean of the seeds is scored as it is


@dataclass(frozen=True, kw_only=True)
class GatesConfig:
    """Least differences to the start; fractions of one."""

    vectors: float = 0.06  # of answers, with both intervals above half of it
    hybrid: float = 0.045
    part: float = 0.01  # of each form of text and kind of question, by vectors
    sets: float = -0.003  # of NDCG@10, mean of the other development sets
    each_set: float = -0.02
    headings: float = -0.005  # mean of the sets named below
    heading_sets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Settings of the plan, without its recipes. Paths are below the folder of data."""

    start: str = "cde-mini-1"
    questions: str = "train/questions"
    development: tuple[str, ...] = ()  # further folders of questions that decide
    sets: str = ""  # TOML of development sets, next to the plan
    against: tuple[str, ...] = ()  # sets whose texts are not trained on, or folders of sets
    passages: int = 400  # of a corpus for training, about: all that answer, two around each, and others
    evaluated_passages: int = 450  # of a corpus for development, about; 0: all
    context: int = 256  # documents of the context in which negatives are looked for
    batch: int = 32  # pairs
    old_share: float = 0.5  # old pairs for each pair of a question
    old: tuple[OldConfig, ...] = ()
    shares: tuple[float, ...] = (0.5, 0.75, 1.0)  # of the way from the start, in all tensors
    negatives: HardNegativesConfig = field(default_factory=HardNegativesConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)


class Variant(NamedTuple):
    """A variant with its complete recipe."""

    config: VariantConfig
    recipe: TrainingConfig


class Gate(NamedTuple):
    """A gate and its verdict.

    Attributes:
        name: Of the figure.
        value: Its value, less the start's.
        low: Lowest end of its intervals; NaN where none is looked at.
        least: Value that it has to reach.
        passed: True if it does.
    """

    name: str
    value: float
    low: float
    least: float
    passed: bool


class SetRow(NamedTuple):
    """NDCG@10 of a model on a development set, or on the mean of all, under its own context.

    Attributes:
        corpus: The set, or "mean".
        model: Name of the model.
        ndcg: Mean over queries.
        gain: Less that of the start.
        low: Lower end of its 95 % interval over queries.
        high: Upper end.
    """

    corpus: str
    model: str
    ndcg: float
    gain: float
    low: float
    high: float


def read_plan(path: Path) -> tuple[PlanConfig, list[Variant]]:
    """Read a plan: settings, a table [recipe], and of each of [[variants]] its settings and its [change].

    Raises:
        RecipeError: The file is missing or no TOML, a setting is unknown or invalid, or variants share a name.
    """
    tables = read_tables(path)
    recipe = cast("Mapping[str, object]", tables.pop("recipe", {}))
    variants: list[Variant] = []
    for table in cast("list[dict[str, object]]", tables.pop("variants", [])):
        change = cast("Mapping[str, object]", table.pop("change", {}))
        config = recipe_of(table, VariantConfig, file=str(path))
        variants.append(Variant(config, recipe_of(changed(recipe, change), TrainingConfig, file=str(path))))
    if len({each.config.name for each in variants}) < len(variants) or not variants:
        raise RecipeError(f"{path}: expected [[variants]] of different names.")
    return recipe_of(tables, PlanConfig, file=str(path)), variants


class TrainingPlan:
    """The steps of a plan, each done once.

    Args:
        config: Settings.
        variants: Trainings.
        data: Folder of questions, old pairs and sets.
        work: Folder of results.
        beside: Folder of the plan's file.
        names: Corpora to train on; empty: all.

    Raises:
        RecipeError: The folder of results is of other settings or corpora.
    """

    def __init__(
        self,
        config: PlanConfig,
        variants: Sequence[Variant],
        data: Path,
        work: Path,
        beside: Path,
        names: Sequence[str],
    ) -> None:
        self.config, self.variants, self.data, self._work, self._names = config, variants, data, work, names
        self._sets_file = beside / config.sets
        work.mkdir(parents=True, exist_ok=True)
        self._claim()
        loaded = cache(minilm)
        self.surrogate: Surrogate = cached(lambda texts: loaded()(texts), SURROGATE, work / "cache")

    def _claim(self) -> None:
        """Write the settings into the folder of results, or compare them with those that are there."""
        path = self._work / "settings.json"
        settings = json.dumps({"corpora": sorted(self._names), **asdict(self.config)}, indent=1).encode()
        if not path.exists():
            write_durably(path, settings)
        elif path.read_bytes() != settings:
            raise RecipeError(f"{path}: results of other settings or corpora are in this folder. Name another one.")

    def pairs(self) -> Path:
        """Write the pairs of questions for training, without overlaps; return the folder."""
        folder = self._work / "pairs"
        if not (folder / "report.json").exists():
            corpora = read_corpora(self.data / self.config.questions, self.chosen(evaluated=True))
            write_pairs(corpora, folder, surrogate=self.surrogate, against=self._against())
        return folder

    def old(self) -> Path:
        """Write the old pairs that may join, without overlaps; return the file."""
        path = self._work / "old.jsonl"
        if not path.exists():
            weights = {each.source: each.weight for each in self.config.old}
            found = [each for each in bundled_pairs.pairs_beside_questions(self.data) if each.source in weights]
            wanted = SPARE * self.config.old_share * sum(1 for _ in PairReader(self.pairs() / f"{TRAIN}.jsonl.gz"))
            limits = {source: round(wanted * weight / sum(weights.values())) for source, weight in weights.items()}
            pairs = per_source(found, limits)
            sets = [one for given in self._against() for one in evaluation_sets(given)[0]] + self._questions_apart()
            kept = without_near_duplicates(pairs, DuplicateConfig(), surrogate=self.surrogate, against=sets).pairs
            bundled_pairs.write_pairs(kept, path)
        return path

    def negatives(self) -> Path:
        """Write the hard negatives of each corpus, with the passages that stay; return the folder."""
        folder = self._work / "negatives"
        folder.mkdir(exist_ok=True)
        missing = [name for name in self.chosen() if not (folder / f"{name}.jsonl.gz").exists()]
        if not missing:
            return folder
        model = CDEModel.from_pretrained(self.config.start, runtime="torch")
        laboratory = Laboratory(model, [], self._work / "vectors")
        for corpus in read_corpora(self.data / self.config.questions, missing):
            data = judged(corpus).part(self.config.passages, near=2)
            space = laboratory.space(data.texts, size=self.config.context)
            similarities = space.queries(data.queries) @ space.documents(data.texts).T
            found = hard_negatives(data, similarities, word_hits(data.texts, data.queries), self.config.negatives)
            rows: list[Mapping[str, Any]] = [
                {"id": each.id, "page": each.page, "text": each.text, "embedded": each.embedded}
                for each in data.passages
            ]
            rows += [
                {
                    "question": question.id,
                    "negatives": [data.ids[place] for place in each.passages],
                    "unmarked": [data.ids[place] for place in each.unmarked],
                    "above": each.above,
                }
                for question, each in zip(data.questions, found, strict=True)
            ]
            write_lines(folder / f"{corpus.site.name}.jsonl.gz", rows)
        return folder

    def prepared(self, variant: Variant) -> Prepared:
        """Prepare the data of a variant."""
        pairs, passages = self._material(variant)
        return prepare(
            pairs,
            load_start(StartConfig(model=self.config.start), seed=0).tokenizer,
            self._work / variant.config.name / "prepared",
            replace(variant.recipe.prepare, surrogate=SURROGATE),
            surrogate=self.surrogate,
            passages=passages,
        )

    def models(self, variant: Variant) -> list[Path]:
        """Train a variant with each seed; return the models' folders."""
        folders = [self._work / variant.config.name / f"seed-{seed}" for seed in variant.config.seeds]
        missing = {
            seed: folder
            for seed, folder in zip(variant.config.seeds, folders, strict=True)
            if not (folder / MODEL / CARD).exists()
        }
        if not missing:
            return [folder / MODEL for folder in folders]
        prepared = self.prepared(variant)
        sources = [prepared.source_names[code] for code in prepared.sources]
        old = {each.source for each in self.config.old}
        questions = sum(source not in old for source in sources)
        updates = round(variant.config.epochs * questions * (1 + self.config.old_share) / self.config.batch)
        for seed, folder in missing.items():
            phases = tuple(
                replace(
                    phase,
                    schedule=replace(phase.schedule, updates=max(1, updates)),
                    corpora=replace(phase.corpora, batch_size=self.config.batch),
                    loss=taught(phase.loss, frozenset(sources)),
                )
                for phase in variant.recipe.phases
            )
            start = replace(variant.recipe.start, model=self.config.start, name=variant.config.name)
            recipe = replace(variant.recipe, seed=seed, start=start, phases=phases)
            self._share_first_stage(variant, folder)
            train(prepared, recipe, folder)
        return [folder / MODEL for folder in folders]

    def merged(self, variant: Variant) -> list[Path]:
        """Merge a variant's models with the start; return the new models' folders."""
        folders: list[Path] = []
        for share in self.config.shares if variant.config.merged else (1.0,):
            folder = self._work / variant.config.name / f"{variant.config.name}-share-{share:g}"
            if not (folder / checkpoints.CONFIG).exists():
                merge_models(self.config.start, self.models(variant), folder, share=share)
            folders.append(folder)
        return folders

    def scores(self, variant: Variant) -> list[Path]:
        """Score a variant's merged models, and judge them by the gates; return the tables.

        Of a variant that is not merged only the questions are scored: it is a point of a curve.
        """
        written: list[Path] = []
        names = NAMES if variant.config.merged else NAMES[:1]
        for model in self.merged(variant):
            files = [self._work / "scores" / f"{model.name}-{name}.csv" for name in names]
            written += files
            if all(path.exists() for path in files):
                continue
            files[0].parent.mkdir(exist_ok=True)
            systems = [System(self.config.start, self.config.start, "own")]
            systems += [System(model.name, str(model), context) for context in CONTEXTS]
            questions = score_rows(systems, self.judged(), self._work / "vectors", runtime=SCORED)
            write_table(files[0], questions)
            if variant.config.merged:
                sets = self._set_rows(model)
                write_table(files[1], sets)
                write_table(files[2], gates(questions, sets, self.config.gates, model.name))
        return written

    def judged(self) -> list[JudgedPassages]:
        """Return the corpora that decide."""
        folders = [self.data / each for each in self.config.development]
        questions = self.data / self.config.questions
        limit = self.config.evaluated_passages
        apart = sorted({site.split for site in read_sites(questions).values()} - {TRAIN})
        found = [one for split in apart for one in read_judged([questions], split=split, passages=limit)]
        return found + read_judged(folders, passages=limit)

    def chosen(self, *, evaluated: bool = False) -> list[str]:
        """Return the corpora for training, and with `evaluated` the others too."""
        sites = read_sites(self.data / self.config.questions)
        return [
            name
            for name, site in sites.items()
            if (evaluated and site.split != TRAIN) or (site.split == TRAIN and (not self._names or name in self._names))
        ]

    def _against(self) -> list[Path]:
        held_out = self._work / "held-out.jsonl"
        if not held_out.exists():
            bundled_pairs.write_pairs(bundled_pairs.held_out_pairs(self.data), held_out)
        return [*(self.data / each for each in (*self.config.against, *self.config.development)), held_out]

    def _questions_apart(self) -> list[EvaluationTexts]:
        sites = read_sites(self.data / self.config.questions)
        apart = [name for name, site in sites.items() if site.split != TRAIN]
        if not apart:
            return []
        found = [judged(one) for one in read_corpora(self.data / self.config.questions, apart)]
        return [EvaluationTexts(one.site.name, [each.text for each in one.passages], one.queries) for one in found]

    def _material(self, variant: Variant) -> tuple[list[Pair], list[CorpusPassage]]:
        """Return the pairs of a variant, with hard negatives, and the passages of their corpora.

        The passages of every other corpus of a form have titles in front: it is of the source "FORM, titled".
        """
        rows = chosen_questions(rows_of_file(self.pairs() / f"{TRAIN}.jsonl.gz"), variant.config)
        folder = self.negatives()
        pairs: list[Pair] = []
        passages: list[CorpusPassage] = []
        for name, source in sources_of(rows, least=self._fewest(variant)).items():
            known = list(rows_of_file(folder / f"{name}.jsonl.gz"))
            texts = {row["id"]: row for row in known if "id" in row}
            negatives = {row["question"]: row["negatives"] for row in known if "question" in row}
            shown = "embedded" if source.endswith(TITLED) else "text"
            passages += [CorpusPassage(row[shown].strip(), source, name, row["page"]) for row in texts.values()]
            for row in rows:
                if row["domain"] == name and row["passage"] in texts and len(negatives[row["id"]]) >= FEWEST:
                    hard = tuple(texts[each][shown].strip() for each in negatives[row["id"]])
                    document = texts[row["passage"]][shown].strip()
                    pairs.append(Pair(row["query"], document, source, name, row["parent"], hard))
        wanted = round(self.config.old_share * len(pairs))
        return pairs + self._old_pairs(wanted, least=self._fewest(variant)), passages

    def _old_pairs(self, wanted: int, *, least: int) -> list[Pair]:
        """Return about so many old pairs, by source as in the plan, every other one with its parent's name in front."""
        old = list(PairReader(self.old()))
        limits = {
            each.source: round(wanted * each.weight / sum(one.weight for one in self.config.old))
            for each in self.config.old
        }
        kept = per_source(old, limits)
        counts = {source: sum(pair.source == source for pair in kept) for source in limits}
        return [
            replace(pair, document=f"{pair.parent} {pair.document}") if pair.parent and _even(pair.query) else pair
            for pair in kept
            if counts[pair.source] >= least
        ]

    def _share_first_stage(self, variant: Variant, run: Path) -> None:
        """Let all seeds of a variant keep the vectors of the first stage, which none of them trains, in one folder."""
        shared = self._work / variant.config.name / "first-stage"
        shared.mkdir(parents=True, exist_ok=True)
        run.mkdir(exist_ok=True)
        if not (run / shared.name).exists():
            (run / shared.name).symlink_to(Path("..", shared.name), target_is_directory=True)

    def _fewest(self, variant: Variant) -> int:
        """Return the least number of pairs of a source: a batch and the smallest context apart from it."""
        return self.config.batch + max(phase.corpora.context.smallest for phase in variant.recipe.phases)

    def _set_rows(self, model: Path) -> list[SetRow]:
        sets = read_sets(read_recipe(self._sets_file, SetsConfig), self.data)
        figures = []
        for name in (self.config.start, str(model)):
            laboratory = Laboratory(CDEModel.from_pretrained(name, runtime="torch"), sets, self._work / "vectors")
            figures.append([laboratory.space(one.corpus.texts).score(one) for one in sets])
        rows: Iterable[tuple[str, float, Difference]] = compared(sets, figures[1], figures[0])
        return [SetRow(corpus, model.name, ndcg, gain.mean, *gain.queries) for corpus, ndcg, gain in rows]


def chosen_questions(rows: Iterable[Mapping[str, Any]], config: VariantConfig) -> list[Mapping[str, Any]]:
    """Return the rows of the questions and corpora of a variant: those of the lowest digests, all rows of a question.

    Args:
        rows: Lines of a file of pairs.
        config: Limits; smaller choices are parts of larger ones.
    """
    listed = list(rows)
    corpora = sorted({row["domain"] for row in listed}, key=_order)[: config.corpora or None]
    inside = [row for row in listed if row["domain"] in set(corpora)]
    named = [f"{row['domain']} {row['id']}" for row in inside]
    kept = set(sorted(set(named), key=_order)[: config.questions or None])
    return [row for row, name in zip(inside, named, strict=True) if name in kept]


def taught(loss: LossConfig, sources: frozenset[str]) -> LossConfig:
    """Return a loss whose teacher is of those of its sources that the data has; without any there is no teacher."""
    known = tuple(each for each in loss.teacher_sources if each in sources)
    if loss.teacher_sources and not known:
        return replace(loss, teacher="none", teacher_sources=())
    return replace(loss, teacher_sources=known)


def gates(questions: Sequence[ScoreRow], sets: Sequence[SetRow], config: GatesConfig, model: str) -> list[Gate]:
    """Judge a model.

    Args:
        questions: Its scores, and the start's, which gains are over.
        sets: Its scores on the other development sets.
        config: Least differences.
        model: Its name.
    """
    own = {(row.part, row.by): row for row in questions if (row.system, row.context) == (model, "own")}
    found: list[Gate] = []
    for by, least in (("vectors", config.vectors), ("hybrid", config.hybrid)):
        row = own["all", by]
        low = min(row.low, row.corpora_low)
        found.append(Gate(f"answers by {by}", row.gain, low, least, row.gain >= least and low > least / 2))
    for (part, by), row in own.items():
        if by == "vectors" and part.startswith(("form ", "kind ")):
            found.append(Gate(part, row.gain, float("nan"), config.part, row.gain >= config.part))
    mean, *_ = (row for row in sets if row.corpus == "mean")
    found.append(Gate("mean of the sets", mean.gain, float("nan"), config.sets, mean.gain >= config.sets))
    found += [
        Gate(row.corpus, row.gain, float("nan"), config.each_set, row.gain >= config.each_set)
        for row in sets
        if row.corpus != "mean"
    ]
    headings = [row.gain for row in sets if row.corpus in config.heading_sets]
    if headings:
        gain = float(np.mean(headings))
        found.append(Gate("page and heading", gain, float("nan"), config.headings, gain >= config.headings))
    return found


def sources_of(rows: Sequence[Mapping[str, Any]], *, least: int) -> dict[str, str]:
    """Name the source of each corpus: its form, with titles for every other corpus of it.

    Args:
        rows: Lines of a file of pairs.
        least: Pairs that a batch needs; where a source has fewer, all corpora are of one form.
    """
    forms = {row["domain"]: row["source"] for row in rows}
    found = _every_other_titled(forms)
    counts = Counter(found[row["domain"]] for row in rows)
    return found if min(counts.values()) >= least else _every_other_titled(dict.fromkeys(forms, UNNAMED))


def _every_other_titled(forms: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for form in dict.fromkeys(forms.values()):
        corpora = sorted((name for name in forms if forms[name] == form), key=_order)
        found |= {name: form + (TITLED if place % 2 else "") for place, name in enumerate(corpora)}
    return found


def rows_of_file(path: Path) -> list[Mapping[str, Any]]:
    """Read a file of JSON Lines, plain or gzip."""
    with opened(path) as file:
        return [parse() for _, parse in jsonl_rows(file, str(path))]


def _order(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _even(name: str) -> bool:
    return _order(name)[0] % 2 == 0


def main() -> None:
    """Run the plan, or its first steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, help="TOML of the plan")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data")
    parser.add_argument("--work", type=Path, required=True, help="folder of results; the same one to resume")
    parser.add_argument("--until", choices=STEPS, default=STEPS[-1], help="last step")
    parser.add_argument("--variant", action="append", help="only this variant; repeatable")
    parser.add_argument("--corpus", action="append", default=[], help="only this corpus for training; repeatable")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    config, variants = read_plan(asked.plan)
    chosen = [each for each in variants if not asked.variant or each.config.name in asked.variant]
    plan = TrainingPlan(config, chosen, asked.data, asked.work, asked.plan.parent, asked.corpus)
    once: dict[str, Callable[[], Path]] = {"pairs": plan.pairs, "old": plan.old, "negatives": plan.negatives}
    each_variant: dict[str, Callable[[Variant], Any]] = {
        "prepared": plan.prepared,
        "models": plan.models,
        "merged": plan.merged,
        "scores": plan.scores,
    }
    for step in STEPS[: STEPS.index(asked.until) + 1]:
        if step in once:
            sys.stdout.write(f"{step}: {once[step]()}\n")
            continue
        for variant in chosen:
            done = each_variant[step](variant)
            shown = done.folder if isinstance(done, Prepared) else ", ".join(map(str, done))
            sys.stdout.write(f"{step}, {variant.config.name}: {shown}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

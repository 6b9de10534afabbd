"""A model adapted to one corpus of documents in a few minutes, and compared to doing nothing."""

import csv
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cde_rag._files import write_durably
from cde_rag._validation import digest
from cde_rag.context.file_format import canonical_json
from cde_rag.errors import counted
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.models import CDEModel
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.adapt.before_after import BeforeAfter, Scores, bm25_scores, compared, minilm_scores, model_scores
from cde_rag_training.adapt.corpus_pairs import to_pairs
from cde_rag_training.adapt.material import Material
from cde_rag_training.adapt.output_folder import REJECTED, REPORT, claimed
from cde_rag_training.adapt.own_recipe import of_network, own_recipe, settings_of
from cde_rag_training.clustering.surrogate import minilm
from cde_rag_training.config import (
    DistillationConfig,
    EvaluationConfig,
    GuardConfig,
    LossConfig,
    MachineConfig,
    PhaseConfig,
    RatesConfig,
    ScheduleConfig,
    StartConfig,
    TrainingConfig,
)
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import TransformationConfig
from cde_rag_training.loop.guard import TrainingError
from cde_rag_training.loop.logs import LOG
from cde_rag_training.loop.training import train
from cde_rag_training.networks.start import MINILM, load_start

RESERVE = 1.3  # times the seconds that the comparison should take are kept for it
SURROGATE_TOKENS = 96
DISTILLATION = DistillationConfig(updates=300, max_length=SURROGATE_TOKENS)  # where the first stage is new: minilm
DISTILLATION_SHARE = 0.15  # of the time, kept for that
FEW_UPDATES = 100  # fewer are too few to tell anything
LEAST_MINUTES = 0.2  # of training
SECONDS_A_SHARE = 5.0  # to write and load one more model


def silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class AdaptationConfig:
    """Configuration of an adaptation. All defaults ours."""

    model: str = "cde-mini"  # a bundled model, a model's folder, or "minilm"
    minutes: float = 10.0  # of wall clock for all of it, comparison included
    batch_size: int = 64  # pairs; a third of all of them where there are few
    max_length: int = 128  # tokens of a text in training
    largest_context: int = 256  # documents in training
    encoder_rate: float = 2e-5
    context_rate: float = 1e-4
    gate_rate: float = 1e-3
    shares: tuple[float, ...] = (0.3, 0.6, 1.0)  # of the training, that the development part chooses from
    mini_batch_size: int = 32  # texts per forward pass
    recipe: TrainingConfig | None = None  # whose losses, batches, filters and rates count in place of the above
    seed: int = 0


@dataclass(frozen=True)
class Adaptation:
    """Result of an adaptation.

    Attributes:
        model: Folder of the adapted model: the output folder if it is better, else `not-better` inside of it.
        comparison: Comparison with the start model and BM25.
        minutes: Training time.
        updates: Training updates in that time.
    """

    model: Path
    comparison: BeforeAfter
    minutes: float
    updates: int

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        training = {"training_minutes": self.minutes, "updates": self.updates}
        return {"model": str(self.model.resolve())} | training | self.comparison.to_json()

    def __str__(self) -> str:
        lines = [str(self.comparison), f"Trained for {self.minutes:.1f} minutes: {counted(self.updates, 'update')}."]
        if not self.comparison.better and self.updates < FEW_UPDATES:
            lines.append("So few updates teach little: give more minutes, or a faster machine.")
        return "\n".join(lines)


def adapt(
    material: Material,
    config: AdaptationConfig,
    output: Path,
    *,
    progress: bool = False,
    say: Callable[[str], None] = silent,
) -> Adaptation:
    """Train on pairs made from a corpus, and measure on held-out parents if the adapted model is better.

    Development queries choose the share of the training to keep; test queries are used once. An interrupted adaptation
    resumes when called again with the same arguments.

    Args:
        material: Material of the corpus.
        config: How to adapt.
        output: Created if missing. Contains the model, if it is better; `report.json`; and intermediate files in
            `work`, which may be deleted.
        progress: True to show a progress bar of the training.
        say: Called with a message before each step.

    Raises:
        CorpusError: Too few pairs.
        ModelError: No such model.
        ResumeError: `output` holds something else, or a finished adaptation.
        TrainingError: Training had to stop, or no time is left for it.
    """
    clock = time.monotonic()
    start = load_start(StartConfig(model=config.model), seed=config.seed)  # before anything is written
    work = claimed(output, _plan(material, config))
    say(f"Measuring what {config.model} and BM25 do as they are")
    scores, once = _scores_before(config, material)
    _minutes_left(config, material, spent=0.0, once=once)  # told before the pairs are prepared where there are none
    say("Preparing the pairs: tokens, vectors, clusters")
    prepared = _prepared(config, material, start.tokenizer, work)
    minutes = _minutes(config, material, work, spent=time.monotonic() - clock, once=once)
    null = start.network.config.null_embedding
    recipe = recipe_of(config, material, minutes=minutes, name=output.resolve().name, null=null)
    recipe = of_network(recipe, start.network)
    if start.new_first_stage:
        recipe = replace(recipe, start=replace(recipe.start, distillation=DISTILLATION))
    say(f"Training for {minutes:.1f} minutes")
    train(prepared, recipe, work / "run", progress=progress)
    say("Choosing how much of the training to keep, on the development part")
    folders = {share: _finished(prepared, recipe, work, share) for share in config.shares}
    chosen = {share: float(_scores(folder, material.development).mean()) for share, folder in folders.items()}
    share = max(chosen, key=lambda each: chosen[each])
    say(f"Asking the test queries, of a model with {share:g} of the training")
    comparison = compared(
        material.test,
        material.kinds,
        scores | {"adapted": _scores(folders[share], material.test)},
        start=config.model,
        shares=chosen,
        share=share,
    )
    done = Adaptation(
        install(folders[share], output, comparison), comparison, minutes, updates=updates_of(work / "run")
    )
    told = done.to_json() | {"pairs": asdict(material.pairs), "config": asdict(config)}
    write_durably(output / REPORT, json.dumps(told, indent=2).encode())
    return done


def install(model: Path, output: Path, comparison: BeforeAfter) -> Path:
    """Copy an adapted model to where the verdict says, and return that folder."""
    folder = output if comparison.better else output / REJECTED
    shutil.copytree(model, folder, dirs_exist_ok=True)
    return folder


def recipe_of(
    config: AdaptationConfig, material: Material, *, minutes: float, name: str, null: bool = True
) -> TrainingConfig:
    """Return the training recipe of an adaptation: small batches, low learning rates, a time limit.

    Args:
        config: How to adapt.
        material: Material of the corpus.
        minutes: Minutes of training.
        name: Name of the model.
        null: True if it knows a null context.
    """
    third = len(material.parts.training) // 3
    corpora = CorporaConfig(
        batch_size=min(config.batch_size, third),
        context=ContextConfig(
            smallest=min(32, third), largest=min(config.largest_context, third), null_share=0.2 if null else 0.0
        ),
        transformations=TransformationConfig(titled_share=0.5 if material.titled else 0.0),
    )
    phase = PhaseConfig(
        name="adaptation",
        corpora=corpora,
        filter=FilterConfig(rule="relative"),
        loss=LossConfig(temperature=0.03),
        schedule=ScheduleConfig(updates=0, minutes=minutes),
        rates=RatesConfig(encoder=config.encoder_rate, context=config.context_rate, gates=config.gate_rate),
        context_dropout=0.005 if null else 0.0,
    )
    recipe = TrainingConfig(
        seed=config.seed,
        start=StartConfig(model=config.model, name=name),
        phases=(phase,),
        evaluation=EvaluationConfig(every=0, probe_every=0),
        guard=GuardConfig(action="none"),
        machine=MachineConfig(mini_batch_size=config.mini_batch_size, gradient_caching=False, save_every=20),
    )
    return own_recipe(recipe, config.recipe, largest=third, null=null)


def _plan(material: Material, config: AdaptationConfig) -> dict[str, Any]:
    """Return the identity of an adaptation: the corpus, and the config without its time."""
    asked = [[one.query, one.shown] for one in (*material.parts.training, *material.parts.test)]
    return {"config": settings_of(asdict(config)), "corpus": digest(canonical_json({"asked": asked})).hex()}


def _scores_before(config: AdaptationConfig, material: Material) -> tuple[dict[str, Scores], float]:
    """Return the test scores of the start model and of BM25, and the seconds to evaluate the start model."""
    began = time.monotonic()
    if config.model == MINILM:
        start = minilm_scores(material.test)
    else:
        start = model_scores(CDEModel.from_pretrained(config.model, runtime="torch"), material.test)
    once = time.monotonic() - began
    return {"start": start, "bm25": bm25_scores(material.test)}, once


def _prepared(config: AdaptationConfig, material: Material, tokenizer: TextTokenizer, work: Path) -> Prepared:
    settings = PrepareConfig(
        max_length=config.max_length,
        surrogate=f"minilm-{SURROGATE_TOKENS}",
        lexical=config.recipe is not None and config.recipe.is_lexical,
        seed=config.seed,
    )
    surrogate = minilm(max_length=SURROGATE_TOKENS)
    return prepare(to_pairs(material.parts.training), tokenizer, work / "prepared", settings, surrogate=surrogate)


def _minutes(config: AdaptationConfig, material: Material, work: Path, *, spent: float, once: float) -> float:
    """Return the minutes of training that remain, computed on the first call and read from disk afterwards."""
    path = work / "minutes.json"
    if path.exists():
        return float(json.loads(path.read_text(encoding="utf-8")))
    minutes = _minutes_left(config, material, spent=spent, once=once)
    write_durably(path, json.dumps(minutes).encode())
    return minutes


def _minutes_left(config: AdaptationConfig, material: Material, *, spent: float, once: float) -> float:
    """Return the minutes between the time spent and the final comparison; `spent` and `once` are in seconds."""
    share_of_test = len(material.development.corpus.ids) / len(material.test.corpus.ids)
    comparison = once + len(config.shares) * (once * share_of_test + SECONDS_A_SHARE)
    new_first_stage = DISTILLATION_SHARE if config.model == MINILM else 0.0
    other = (spent + RESERVE * comparison) / 60
    minutes = (1 - new_first_stage) * config.minutes - other
    if minutes < LEAST_MINUTES:
        enough = math.ceil(2 * other / (1 - new_first_stage) + 1)
        raise TrainingError(
            f"Of {config.minutes:g} minutes none is left for training: {spent / 60:.1f} are over, and the comparison "
            f"takes {comparison / 60:.1f} on this machine. The same command with --minutes {enough} continues; with "
            "--max-records and another output, fewer documents are compared."
        )
    return minutes


def _finished(prepared: Prepared, recipe: TrainingConfig, work: Path, share: float) -> Path:
    """Write the model with a given share of the training, and return its folder."""
    folder = work / f"share-{share:g}"
    shutil.copytree(train(prepared, replace(recipe, share=share), work / "run"), folder, dirs_exist_ok=True)
    return folder


def updates_of(run: Path) -> int:
    """Return the number of updates of a run, resumed parts included."""
    with (run / LOG).open(encoding="utf-8") as file:
        return sum(bool(row["loss"]) for row in csv.DictReader(file))


def _scores(folder: Path, data: RetrievalSet) -> Scores:
    return model_scores(CDEModel.from_pretrained(folder, runtime="torch"), data)

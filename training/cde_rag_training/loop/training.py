"""From prepared pairs to a finished model: `train`."""

import copy
import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from tqdm import tqdm

from cde_rag._files import given_path, write_durably
from cde_rag.errors import CorpusError, require
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.two_way import checkpoint
from cde_rag.models.two_way.network import TwoWay
from cde_rag.stores.files import locked
from cde_rag_training.config import AdaptersConfig, PhaseConfig, RatesConfig, TrainingConfig
from cde_rag_training.corpora.filtering import warn_of_start_model
from cde_rag_training.data.array_folder import LOCK, MANIFEST
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.card import card
from cde_rag_training.loop.distillation import distil_first_stage
from cde_rag_training.loop.held_out import retrieval, retrieval_rows
from cde_rag_training.loop.logs import Board, Log
from cde_rag_training.loop.optimiser import place_of
from cde_rag_training.loop.prefixes import Prefixes
from cde_rag_training.loop.state import STATE, RunProgress, State, StateFile
from cde_rag_training.loop.teacher import StartModel, start_batches
from cde_rag_training.loop.trainer import WEIGHTS, Run, Trainer, batches_of, part_of
from cde_rag_training.loop.training_data import Data, opened
from cde_rag_training.networks.interpolation import interpolate
from cde_rag_training.networks.stages import Stages, stages_of
from cde_rag_training.networks.start import Start, load_start, start_settings
from cde_rag_training.processes import check_device, first_one_first, joined, rank
from cde_rag_training.recipe import RecipeError

MODEL, CARD = "model", "README.md"
NO_PART_OF_A_RUN = ("machine", "evaluation", "guard", "share", "prepare")  # settings; the data has a digest of its own


def train(
    data: Data,
    config: TrainingConfig,
    output: Path | str,
    *,
    held_out: Data | None = None,
    progress: bool = False,
) -> Path:
    """Train a model, or resume an earlier call with the same arguments from its checkpoint.

    The run's folder holds `log.csv` (a row for each update), `state.safetensors` (the checkpoint) and in the end
    `model`, with a model card, and for 2-D Matryoshka embeddings `model-<number>-layers`. A run that was killed and
    resumed ends with the very same weights, bit by bit, as one that was not, on the same CPU with the same number of
    threads, unless its schedule follows a clock. The config's machine, evaluation, guard and share may change between
    calls; given another share, a finished run only writes its model again. Under `torchrun` the processes share each
    batch or, where an update has several, divide them: the loss is that of one process.

    Args:
        data: Prepared pairs, their folder or packed file; or pairs, or a file of them, which are prepared in `output`
            first. Phases that name data of their own ignore it.
        config: How to train.
        output: The run's folder; created if missing.
        held_out: Likewise, for evaluation during training; never trained on.
        progress: True to show a progress bar.

    Returns:
        The finished model's folder, for `CDEModel.from_pretrained`.

    Raises:
        CorpusError: The data does not go with the config or the start.
        MissingExtraError: Pairs that are not prepared need the extra `train`, adapters `peft`.
        ModelError: There is no such start.
        PreparedError: The data is no prepared folder, or damaged.
        RecipeError: Settings that the start cannot be trained with, or a device that torch does not have.
        ResumeError: `output` holds a run with other settings, start or data.
        StoreError: Another run trains in `output`, or it is an empty path.
        TrainingError: Training had to stop; the message says why, and what to change.
    """
    output = given_path(output, "The run's folder")
    output.mkdir(parents=True, exist_ok=True)
    with joined(config.machine.device) as device, _claimed(output):
        check_device(device)
        start = load_start(config.start, seed=config.seed)
        prepare = replace(config.prepare, lexical=config.prepare.lexical or config.is_lexical)

        def opened_as(data: Data, name: str) -> Prepared:
            return opened(data, start.tokenizer, prepare, output / name)

        sets = [
            opened_as(phase.data, f"prepared-{number}") if phase.data else opened_as(data, "prepared")
            for number, phase in enumerate(config.phases)
        ]
        held = None if held_out is None else opened_as(held_out, "held_out")
        stages = _stages(start, device, config)
        for phase, prepared in zip(config.phases, sets, strict=True):
            _check(phase, stages, prepared)
        file = StateFile(output / STATE, _identity(config, start.network, sets))
        known = copy.deepcopy(start.network) if _needs_start(config) else None
        teaching = None if known is None else _stages(start._replace(network=known), device, config)
        if config.machine.layer_checkpoints:
            stages.checkpoint_layers()
        state = file.read()
        if state is None and start.new_first_stage:
            _teach_first_stage(stages, sets[0], config, output, bar=progress)
        adapters = _adapters(stages, config)
        state = _resumed(start, state)
        run = Run(
            config=config,
            output=output,
            state_file=file,
            log=Log(output, keep=state.progress.log_bytes) if rank() == 0 else None,
            board=_board(config, output, state.progress),
            held_out=None if held is None else (held, retrieval_rows(held, config.evaluation, seed=config.seed)),
            bar=progress,
        )
        done = _phases(run, stages, teaching, sets, state)
        if adapters is not None:
            adapters.merge()
        if known is not None and config.share < 1:
            kept = interpolate(known.state_dict(), start.network.state_dict(), config.share)
            start.network.load_state_dict(kept)
        with first_one_first():
            if rank() == 0:
                _write(run, stages, start, sets, done)
    return output / MODEL


def _claimed(output: Path) -> AbstractContextManager[None]:
    """Lock the folder against other runs; of several processes of one run, the first holds the lock."""
    if rank() > 0:
        return nullcontext()
    return locked(
        output / LOCK, f"{output}: another run trains in this folder. Wait for its end, or name another folder"
    )


def _stages(start: Start, device: str, config: TrainingConfig) -> Stages:
    return stages_of(start.network, start.tokenizer, device=device, precision=config.machine.precision)


class Adapters:
    """Low-rank adapters of every linear layer of the second stage's encoder, initialised to have no effect.

    Args:
        network: Network of either kind; changed in place.
        layers: Number of layers of its second stage.
        config: Their sizes.
        seed: Random seed of their first weights.

    Raises:
        MissingExtraError: peft is not installed.

    Source: Hu et al. 2021 (LoRA).
    """

    def __init__(self, network: nn.Module, layers: int, config: AdaptersConfig, *, seed: int) -> None:
        peft: Any = require("peft", "peft")
        linear = [
            name
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear) and place_of(f"{name}.", layers).part == "encoder"
        ]
        options = peft.LoraConfig(
            r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=linear
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._tuner = peft.LoraModel(network, options, "default")

    def merge(self) -> None:
        """Add the adapters to the encoder's weights, and remove them."""
        self._tuner.merge_and_unload()


def _adapters(stages: Stages, config: TrainingConfig) -> Adapters | None:
    return Adapters(stages.network, stages.layers, config.adapters, seed=config.seed) if config.adapters.rank else None


def _resumed(start: Start, state: State | None) -> State:
    """Return the checkpoint, with its weights loaded into the network."""
    if state is None:
        return State(RunProgress(), {})
    start.network.load_state_dict(part_of(state, WEIGHTS))
    return state


def _phases(run: Run, stages: Stages, teaching: Stages | None, sets: Sequence[Prepared], state: State) -> RunProgress:
    """Train the phases that are not finished."""
    try:
        while state.progress.phase < len(sets):
            state = State(_phase(run, stages, teaching, sets[state.progress.phase], state), {})
    finally:
        for log in (run.log, run.board):
            if log is not None:
                log.close()
    stages.network.eval().requires_grad_(requires_grad=False)
    return state.progress


def _check(phase: PhaseConfig, stages: Stages, prepared: Prepared) -> None:
    """Refuse a phase that cannot be trained, before the ones in front of it take their time."""
    rates, null_share = phase.rates, phase.corpora.context.null_share
    if isinstance(stages.network, TwoStage) and rates.embeddings > 0 and rates.first_stage == 0:
        raise RecipeError(
            f"Phase {phase.name!r}: expected a first stage that is trained where the embeddings are, since it reads "
            "with them; found rates.first_stage 0. Give it a rate, or set rates.embeddings to 0."
        )
    if isinstance(stages.network, TwoWay) and rates.gates != RatesConfig().gates:
        raise RecipeError(
            f"Phase {phase.name!r}: expected no rates.gates, since {stages.network.config.name} is a two-way model, "
            f"which has neither gates nor an output map; found {rates.gates}. Leave it out."
        )
    if not stages.knows_null and (phase.context_dropout or null_share or phase.loss.teacher == "start"):
        raise RecipeError(
            f"Phase {phase.name!r}: {stages.network.config.name} has no null embedding. Set context_dropout and "
            "corpora.context.null_share to 0, and choose another teacher than the start."
        )
    if phase.loss.dims and max(phase.loss.dims) > stages.dim:
        raise RecipeError(
            f"Phase {phase.name!r}: expected loss.dims of at most {stages.dim}, those of the embeddings, found "
            f"{list(phase.loss.dims)}. Leave the larger ones out."
        )
    depths = phase.loss.layers
    if depths and not stages.fewest_layers <= min(depths) <= max(depths) < stages.layers:
        raise RecipeError(
            f"Phase {phase.name!r}: expected loss.layers in {stages.fewest_layers} … {stages.layers - 1}, below all "
            f"layers and, in a one-way model, with one that attends to the context; found {list(depths)}."
        )
    if phase.context_dropout_by == "text" and not isinstance(stages.network, TwoWay):
        raise RecipeError(
            f'Phase {phase.name!r}: expected context_dropout_by "batch", since a one-way model condenses a '
            "context once for "
            'all texts; found "text".'
        )
    _check_data(phase, prepared)
    Prefixes(prepared, phase.sources, stages)  # says what the model cannot read
    batches_of(prepared, phase, seed=0)  # says what its data lacks


def _check_data(phase: PhaseConfig, prepared: Prepared) -> None:
    """Refuse a phase whose settings do not go with its data."""
    if phase.is_lexical and prepared.lexical is None:
        raise CorpusError(
            f"Phase {phase.name!r}: expected BM25 weights in {prepared.folder}, found none. Prepare the data with them "
            "(lexical), or leave the rule 'agreement' and lexical_share out."
        )
    drawn = phase.corpora.hard_negatives and (np.asarray(prepared.hard_negatives) >= 0).any()
    if drawn and phase.filter.rule != "none" and prepared.negative_vectors is None:
        raise CorpusError(
            f"Phase {phase.name!r}: expected surrogate embeddings of the hard negatives in {prepared.folder}, "
            "which the "
            "filter compares, found none. Prepare the data again, or set corpora.hard_negatives to 0."
        )
    if prepared.grades is not None and phase.loss.kind != "graded":
        raise CorpusError(
            f"Phase {phase.name!r}: expected loss.kind 'graded' for the grades of pairs in {prepared.folder}, found "
            f"{phase.loss.kind!r}, by which a document of grade 0 is a right answer. Set it, or prepare right answers "
            "alone, without grades."
        )
    if unknown := sorted(set(phase.loss.teacher_sources) - set(prepared.source_names)):
        raise CorpusError(
            f"Phase {phase.name!r}: loss.teacher_sources names {unknown[0]!r}, which {prepared.folder} lacks. It has "
            f"{', '.join(prepared.source_names)}."
        )
    if unknown := sorted({each.name for each in phase.sources} - set(prepared.source_names)):
        raise CorpusError(
            f"Phase {phase.name!r}: sources names {unknown[0]!r}, which {prepared.folder} lacks. It has "
            f"{', '.join(prepared.source_names)}."
        )


def _needs_start(config: TrainingConfig) -> bool:
    return config.share < 1 or any(phase.loss.teacher == "start" or _masks_all(phase) for phase in config.phases)


def _masks_all(phase: PhaseConfig) -> bool:
    """Return True if the filter would mask everything to learn, were its surrogate the start model."""
    return phase.filter.rule == "relative" and phase.filter.margin == 0


def _identity(config: TrainingConfig, network: nn.Module, sets: Sequence[Prepared]) -> dict[str, Any]:
    """Return the identity of the run: all that the trained weights depend on."""
    settings = {name: value for name, value in asdict(config).items() if name not in NO_PART_OF_A_RUN}
    weights = save({name: value.contiguous() for name, value in network.state_dict().items()})
    data = [hashlib.sha256((each.folder / MANIFEST).read_bytes()).hexdigest() for each in sets]
    return {"config": settings, "start": hashlib.sha256(weights).hexdigest(), "data": data}


def _board(config: TrainingConfig, output: Path, done: RunProgress) -> Board | None:
    if not config.machine.tensorboard or rank() > 0:
        return None
    return Board(output, first=done.earlier_updates + done.update)


def _teach_first_stage(stages: Stages, prepared: Prepared, config: TrainingConfig, output: Path, *, bar: bool) -> None:
    if prepared.document_vectors.shape[1] != stages.dim:
        raise CorpusError(
            f"{prepared.folder}: expected surrogate embeddings of {stages.dim} dimensions, which the new first stage "
            f"is taught, found {prepared.document_vectors.shape[1]}. Prepare the pairs with the start as surrogate."
        )
    rows = [stages.first_ids(prepared.texts[row]) for row in prepared.documents.tolist()]
    targets = prepared.document_vectors[:].astype("float32")
    chosen = config.start.distillation
    with first_one_first(), tqdm(total=chosen.updates, desc="first stage", unit="update", disable=not bar) as shown:

        def log(update: int, cosine: float) -> None:
            shown.set_postfix_str(f"cosine {cosine:.3f}", refresh=False)
            shown.update(update - shown.n)

        distil_first_stage(stages, rows, targets, chosen, output, seed=config.seed, log=log)


def _phase(run: Run, stages: Stages, teaching: Stages | None, prepared: Prepared, state: State) -> RunProgress:
    config, size = run.config, run.config.machine.mini_batch_size
    phase = config.phases[state.progress.phase]
    teacher = None
    if teaching is not None and teaching.knows_null:
        prefixes = Prefixes(prepared, phase.sources, teaching)
        teacher = StartModel(teaching, prepared, prefixes=prefixes, mini_batch_size=size)
        if _masks_all(phase) and state.progress.update == 0 and rank() == 0:
            batches = batches_of(prepared, phase, seed=config.seed + state.progress.phase)
            warn_of_start_model(start_batches(teacher, phase, batches, prepared, device=stages.device))
    return Trainer(run, stages, prepared, state, teacher=teacher).train()


def _write_network(folder: Path, network: TwoStage | TwoWay, start: Start) -> None:
    if isinstance(network, TwoStage):
        checkpoints.write(folder, network, start.tokenizer.serialised)
    else:
        checkpoint.write(folder, network, start.tokenizer.serialised)


def _write(run: Run, stages: Stages, start: Start, sets: Sequence[Prepared], done: RunProgress) -> None:
    folder, network = run.output / MODEL, stages.network
    _write_network(folder, network, start)
    for depth in run.config.phases[-1].loss.layers:
        _write_network(run.output / f"{MODEL}-{depth}-layers", stages.shortened(depth), start)
    found = {}
    if run.held_out is not None and run.config.evaluation.every:
        size, sources = run.config.machine.mini_batch_size, run.config.phases[-1].sources
        found = retrieval(stages, *run.held_out, sources=sources, mini_batch_size=size)
    settings = start_settings(network)  # what the model is, whatever was asked for
    if start.new_first_stage:
        settings["distillation"] = asdict(run.config.start.distillation)
    text = card(run.config, settings, sets, run.output, seconds=done.earlier_seconds, found=found)
    write_durably(folder / CARD, text.encode())

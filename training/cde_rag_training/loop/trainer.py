"""One phase of training: updates to its end, a row in the log for each, and now and then a checkpoint or evaluation."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm

from cde_rag.errors import CorpusError
from cde_rag_training.config import PhaseConfig, ScheduleConfig, TrainingConfig
from cde_rag_training.corpora.batch import Batch, Batches
from cde_rag_training.corpora.corpus_batches import Corpora
from cde_rag_training.corpora.packed_batches import PackedBatches
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.averaging import WeightAverage
from cde_rag_training.loop.first_vectors import FirstStageVectors
from cde_rag_training.loop.gradients import Figures, Gradients
from cde_rag_training.loop.guard import ContextGuard, enough_memory, not_finite
from cde_rag_training.loop.held_out import RetrievalRows, mean_of, retrieval
from cde_rag_training.loop.logs import Board, Log
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.loop.optimiser import Optimiser, groups_of
from cde_rag_training.loop.prefixes import Prefixes
from cde_rag_training.loop.state import RunProgress, State, StateFile
from cde_rag_training.losses.objective import Objective, Teacher
from cde_rag_training.networks.stages import Stages
from cde_rag_training.processes import average_gradients, averages, count, of_first, rank

FOREIGN = 32  # batches that are looked through for a foreign context
SAVE_AFTER = 120.0  # seconds without a checkpoint, where updates are slow
WEIGHTS, AVERAGE, OPTIMISER = "weights:", "average:", "optimiser:"  # begin the names of a state's tensors


@dataclass(frozen=True)
class Run:
    """State shared by all phases of a run.

    Attributes:
        config: Configuration of the run.
        output: Its folder.
        state_file: Its checkpoint.
        log: Its metrics; None in all processes but the first.
        board: Its metrics for TensorBoard, if configured.
        held_out: Held-out pairs and the sets made of them, if any.
        bar: True to show a progress bar.
    """

    config: TrainingConfig
    output: Path
    state_file: StateFile
    log: Log | None
    board: Board | None
    held_out: tuple[Prepared, list[RetrievalRows]] | None
    bar: bool


class Schedule:
    """Schedule of a phase from 0 to 1, by updates, by time, or by whichever ends first.

    Args:
        config: How long it lasts.

    Examples:
        >>> schedule = Schedule(ScheduleConfig(updates=10, warmup=0.2))
        >>> [schedule.factor(update, seconds=0.0) for update in (0, 1, 2, 6, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config

    def share(self, update: int, *, seconds: float) -> float:
        """Return the finished share of the phase, 1 at the end.

        Args:
            update: Updates done.
            seconds: Time spent, resumed parts included.
        """
        by_updates = update / self._config.updates if self._config.updates else 0.0
        by_time = seconds / (60 * self._config.minutes) if self._config.minutes else 0.0
        return min(1.0, max(by_updates, by_time))

    def factor(self, update: int, *, seconds: float) -> float:
        """Return the factor of the learning rates: linear warm-up, then linear decay to 0 at the end.

        The first update of a phase has a rate above 0.

        Args:
            update: Updates done.
            seconds: Time spent.

        Source: paper §5.
        """
        share, warmup = self.share(update, seconds=seconds), self._config.warmup
        first = self.share(update + 1, seconds=seconds) if self._config.updates else share + 0.01 * warmup
        rising = first / warmup if warmup else 1.0
        return min(1.0, rising, (1 - share) / (1 - warmup))

    def left(self, update: int, *, seconds: float) -> float:
        """Estimate the seconds to the end from the speed so far; infinite before the first update.

        Args:
            update: Updates done.
            seconds: Time spent.
        """
        share = self.share(update, seconds=seconds)
        return seconds * (1 - share) / share if share else float("inf")


def in_updates(config: ScheduleConfig, per_epoch: int, per_update: int = 1) -> ScheduleConfig:
    """Return the schedule with epochs as updates, and a warm-up in updates as a share of them.

    Args:
        config: The schedule.
        per_epoch: Batches of an epoch.
        per_update: Batches of an update; fewer at the end of the last epoch are left out.

    Examples:
        >>> schedule = in_updates(ScheduleConfig(updates=0, epochs=3, warmup_updates=3), 10, 2)
        >>> schedule.updates, schedule.warmup
        (15, 0.2)
    """
    updates = max(1, config.epochs * per_epoch // per_update) if config.epochs else config.updates
    warmup = min(config.warmup_updates, updates - 1) / updates if config.warmup_updates else config.warmup
    return replace(config, updates=updates, epochs=0, warmup=warmup, warmup_updates=0)


class Trainer:
    """Trainer of one phase, from its beginning or from a checkpoint.

    Args:
        run: State shared by all phases.
        stages: The network, trained in place.
        prepared: The phase's data.
        state: The checkpoint; its weights are loaded into the network already.
        teacher: The start model, if it is the teacher.

    Raises:
        CorpusError: The data does not go with the config.
    """

    def __init__(self, run: Run, stages: Stages, prepared: Prepared, state: State, *, teacher: Teacher | None) -> None:
        self._run, self._stages, self._prepared, self._progress = run, stages, prepared, state.progress
        self._machine, self._evaluation = run.config.machine, run.config.evaluation
        self.phase: PhaseConfig = run.config.phases[state.progress.phase]
        self._batches = batches_of(prepared, self.phase, seed=run.config.seed + state.progress.phase)
        per_update = self.phase.batches_per_update
        _check_processes(self._batches, per_update)
        self._shared = per_update == 1
        self._own_batches = range(per_update) if self._shared else range(rank(), per_update, count())
        schedule = in_updates(self.phase.schedule, self._batches.per_epoch, per_update)
        self._schedule, self._updates = Schedule(schedule), schedule.updates
        self._optimiser = Optimiser(
            groups_of(stages.network, stages.layers, self.phase.rates, run.config.adapters), clip=self.phase.rates.clip
        )
        self._average = self._new_average()
        self._guard = ContextGuard(run.config.guard, state.progress.gains)
        self._gradients = self._new_gradients(teacher)
        if state.progress.update:
            self._optimiser.restore(part_of(state, OPTIMISER))
            if self._average is not None:
                self._average.restore(part_of(state, AVERAGE))

    def _new_average(self) -> WeightAverage | None:
        named = {name: value for group in self._optimiser.groups for name, value in group.parameters.items()}
        return WeightAverage(named, decay=self.phase.average) if self.phase.average else None

    def _new_gradients(self, teacher: Teacher | None) -> Gradients:
        size, stages = self._machine.mini_batch_size, self._stages
        finished = self.phase.rates.first_stage == 0
        prefixes = Prefixes(self._prepared, self.phase.sources, stages)
        folder = self._run.output / "first-stage"
        return Gradients(
            stages,
            Cutter(self._prepared, stages, prefixes=prefixes, mini_batch_size=size),
            Objective(self.phase.loss, self.phase.filter, self._prepared, device=stages.device, start=teacher),
            vectors=(
                FirstStageVectors(stages, self._prepared, folder, prefixes=prefixes, mini_batch_size=size)
                if finished
                else None
            ),
            context_dropout=self.phase.context_dropout,
            dropout_by_text=self.phase.context_dropout_by == "text",
            caching=self._machine.gradient_caching,
            mini_batch_size=size,
            seed=[self._run.config.seed, self._progress.phase],
            shared=self._shared,
            depths=self.phase.loss.layers,
        )

    def train(self) -> RunProgress:
        """Train to the end of the phase.

        Returns:
            Progress at the beginning of the next phase, saved as a checkpoint.

        Raises:
            TrainingError: A loss or gradient is no number, memory or disk ran out, or the context is being ignored and
                the config says to stop then.
        """
        saved = time.monotonic()
        started = saved - self._progress.seconds
        if self._progress.update == 0:
            self._report({"phase": self.phase.name, "update": 0})
        with tqdm(
            total=self._updates or None,
            initial=self._progress.update,
            desc=self.phase.name,
            unit="update",
            disable=not self._run.bar or rank() > 0,
        ) as bar:
            while self._share() < 1:
                self._update(started, bar)
                if self._progress.update % self._machine.save_every == 0 or time.monotonic() - saved > SAVE_AFTER:
                    self._save()
                    saved = time.monotonic()
        if self._average is not None:
            self._average.apply()
        done = self._progress
        self._progress = RunProgress(
            phase=done.phase + 1,
            earlier_updates=done.earlier_updates + done.update,
            earlier_seconds=done.earlier_seconds + done.seconds,
        )
        self._save(finished=True)
        return self._progress

    def _share(self) -> float:
        return self._schedule.share(self._progress.update, seconds=self._progress.seconds)

    def _update(self, started: float, bar: "tqdm[Any]") -> None:
        """Run one update, with its probes and its row of the log."""
        before, number, begun = self._progress, self._progress.update + 1, time.monotonic()
        first = before.update * self.phase.batches_per_update
        factor = self._schedule.factor(before.update, seconds=before.seconds)
        scale = before.loss_scale.value if self._stages.scaled else 1.0
        self._stages.network.train()
        with enough_memory(self._machine, number):
            self._optimiser.zero_grad()
            batches, found = list[Batch](), list[Figures]()
            for place in self._own_batches:
                batches.append(self._batches.batch(first + place))
                share = scale / len(self._own_batches)
                found.append(self._gradients.add(batches[-1], first + place, scale=share))
            average_gradients(self._optimiser.parameters)
            norm = self._optimiser.clip(scale)
            for each, its in zip(batches, found, strict=True):
                self._check(each, number, total=its.total, norm=norm if scale == 1 else 0.0)
            row = self._figures(batches, found) | self._probe(batches[-1], found[-1], number)
            loss_scale = before.loss_scale
            if self._stages.scaled:
                loss_scale = self._optimiser.step_scaled(factor, norm, loss_scale)
            else:
                self._optimiser.step(factor)
        if self._average is not None:
            self._average.update(number)
        now = of_first(time.monotonic() - started, device=self._stages.device)
        self._progress = replace(before, update=number, seconds=now, loss_scale=loss_scale)
        rates = {f"{part}_rate": rate for part, rate in self._optimiser.rates(factor).items()}
        speed = float(row["tokens"]) / max(time.monotonic() - begun, 1e-9)
        row |= {"phase": self.phase.name, "update": number, "norm": norm, "seconds": now, "tokens_per_second": speed}
        self._report(row | rates | self._stages.figures())
        if isinstance(gain := row.get("null_gain", row.get("foreign_gain")), float):
            self._guard.look(gain, number)
        self._show(bar, float(row["loss"]), speed)

    def _check(self, batch: Batch, number: int, *, total: float, norm: float) -> None:
        for name, value in (("loss", total), ("gradient norm", norm)):
            if not math.isfinite(value):
                raise not_finite(batch, self._prepared, self._run.output, number, found=f"a {name} of {value}")

    def _figures(self, batches: Sequence[Batch], found: Sequence[Figures]) -> dict[str, float | int | str]:
        """Compute the row of an update: means over its batches, counts over all, and facts of this process's last."""
        columns = np.array([[each.contrastive, each.distillation, each.masked] for each in found])
        taught = columns[~np.isnan(columns[:, 1]), 1]  # batches of some sources have no teacher
        counts = [[each.tokens, each.siblings] for each in found]
        own = [columns[:, 0].mean(), columns[:, 2].mean(), taught.sum(), len(taught), *np.sum(counts, axis=0)]
        own.append(sum(batch.random_negatives for batch in batches))
        device = self._stages.device
        loss, masked, distillation, taught_batches, *sums = averages([float(each) for each in own], device=device)
        tokens, siblings, filled = (round(each * count()) for each in sums)
        row: dict[str, float | int | str] = {"loss": loss, "masked": masked, "tokens": tokens, "siblings": siblings}
        if taught_batches:
            row["distillation"] = distillation / taught_batches
        if filled or any(batch.hard_negatives.size for batch in batches):
            row["filled"] = filled // count() if self._shared else filled  # a shared batch is known to all
        most = self._stages.network.config.context_size or len(batches[-1].context)  # a two-way model reads no more
        return row | {"context": min(most, len(batches[-1].context)), "corpus": batches[-1].corpus}

    def _probe(self, batch: Batch, figures: Figures, number: int) -> dict[str, float]:
        """Compute the batch's loss under the null context and under another batch's, before the update."""
        every, row = self._evaluation.probe_every, dict[str, float]()
        if every == 0 or number % every:
            return row
        found = self._losses_under_others(batch) if len(batch.context) else {}
        for name in ("null", "foreign"):  # in each process, since its batch may have no context
            loss = found.get(name)
            own = [0.0, 0.0, 0.0] if loss is None else [loss, loss - figures.contrastive, 1.0]
            total, gain, having = averages(own, device=self._stages.device)
            row |= {f"{name}_loss": total / having, f"{name}_gain": gain / having} if having else {}
        return row

    def _losses_under_others(self, batch: Batch) -> dict[str, float]:
        contexts: dict[str, Batch | None] = {"null": None} if self._stages.knows_null else {}
        if (foreign := self._foreign(batch)) is not None:
            contexts["foreign"] = foreign
        return dict(zip(contexts, self._gradients.losses_under(batch, list(contexts.values())), strict=True))

    def _foreign(self, batch: Batch) -> Batch | None:
        """Return a batch with a context of another source or, failing that, with the most unshared documents."""
        source, shared = self._prepared.sources[batch.pairs[0]], np.union1d(batch.context, batch.documents)
        best: Batch | None = None
        following = (self._progress.update + 1) * self.phase.batches_per_update
        for step in range(FOREIGN):
            other = self._batches.batch(following + step)
            other = replace(other, context=np.setdiff1d(other.context, shared))
            if len(other.context) and self._prepared.sources[other.pairs[0]] != source:
                return other
            if len(other.context) > (0 if best is None else len(best.context)):
                best = other
        return best

    def _report(self, row: dict[str, float | int | str]) -> None:
        """Add the held-out figures where they are due, and write the row."""
        every, last = self._evaluation.every, self._share() >= 1
        if self._run.held_out is not None and every and (last or self._progress.update % every == 0):
            self._stages.network.eval()
            if rank() == 0:
                size, sources = self._machine.mini_batch_size, self.phase.sources
                found = retrieval(self._stages, *self._run.held_out, sources=sources, mini_batch_size=size)
                figures = mean_of(found)._asdict()
                row |= {f"{name}_ndcg": value for name, value in figures.items() if not math.isnan(value)}
        elif self._progress.update == 0:
            return
        if self._run.log is not None:
            self._run.log.write(row)
        if self._run.board is not None:
            self._run.board.write(row, self._progress.earlier_updates + self._progress.update)

    def _show(self, bar: "tqdm[Any]", loss: float, speed: float) -> None:
        left = self._schedule.left(self._progress.update, seconds=self._progress.seconds)
        bar.set_postfix_str(f"loss {loss:.3f}, {speed:.0f} tokens/s, {left / 60:.1f} min left", refresh=False)
        bar.update()

    def _save(self, *, finished: bool = False) -> None:
        if self._run.log is None:
            return
        tensors: dict[str, Tensor] = {
            f"{WEIGHTS}{name}": value for name, value in self._stages.network.state_dict().items()
        }
        if not finished:
            tensors |= {f"{OPTIMISER}{name}": value for name, value in self._optimiser.state()}
            if self._average is not None:
                tensors |= {f"{AVERAGE}{name}": value for name, value in self._average.weights.items()}
        gains = () if finished else self._guard.gains
        self._progress = replace(self._progress, log_bytes=self._run.log.keep(), gains=gains)
        self._run.state_file.write(State(self._progress, tensors))


def part_of(state: State, kind: str) -> dict[str, Tensor]:
    """Return the tensors of one kind, without the kind's prefix."""
    return {name.removeprefix(kind): value for name, value in state.tensors.items() if name.startswith(kind)}


def batches_of(prepared: Prepared, phase: PhaseConfig, *, seed: int) -> Batches:
    """Return the configured batches of a phase."""
    if phase.batches == "corpora":
        return Corpora(prepared, phase.corpora, seed=seed)
    context, negatives = phase.corpora.context, phase.corpora.hard_negatives
    packing = replace(phase.packing, seed=phase.packing.seed + seed)
    return PackedBatches(prepared, packing, context, hard_negatives=negatives)


def _check_processes(batches: Batches, per_update: int) -> None:
    size = len(batches.batch(0).pairs)
    if per_update > 1 and per_update % count():
        raise CorpusError(
            f"Expected batches_per_update that {count()} processes can divide, found {per_update}. Choose 1, a batch "
            "that all share, or a multiple of the number of processes."
        )
    if per_update == 1 and size % count():
        raise CorpusError(
            f"Expected batches that {count()} processes can share, found {size} pairs. Choose a batch_size that is a "
            "multiple of the number of processes."
        )

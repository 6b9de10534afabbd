"""MTEB scores under several contexts, to separate the model's quality from the luck of the sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

import mteb
import numpy as np
from mteb.abstasks import AbsTask
from mteb.cache import ResultCache
from mteb.results import TaskResult

from cde_rag._files import user_path
from cde_rag.errors import CorpusError
from cde_rag.evaluation.system_comparison import table
from cde_rag.models import CDEModel
from lab.mteb.model import CDEForMTEB
from lab.mteb.task_prefixes import task_prefixes


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """A task's main score under each context.

    Attributes:
        name: The task's.
        type: MTEB's kind of task.
        metric: The main score, by MTEB's name.
        scores: One for each seed, mostly fractions: means over the task's splits and subsets.
    """

    name: str
    type: str
    metric: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.scores))

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; None of a single one."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return the scores as a JSON object."""
        return {
            "type": self.type,
            "metric": self.metric,
            "mean": self.mean,
            "spread": self.spread,
            "scores": list(self.scores),
        }


@dataclass(frozen=True, kw_only=True)
class MTEBSweep:
    """MTEB scores under several contexts. `str(sweep)` is a table for people.

    Attributes:
        model: Exact name of the model.
        context_size: Number of context documents requested.
        seeds: Random seeds of the contexts.
        tasks: Tasks in the order given.
    """

    model: str
    context_size: int
    seeds: tuple[int, ...]
    tasks: tuple[TaskScores, ...]

    @property
    def mean(self) -> float:
        """Over the tasks' means."""
        return float(np.mean([task.mean for task in self.tasks]))

    def to_json(self) -> dict[str, Any]:
        """Return the scores as a JSON object."""
        return {
            "model": self.model,
            "context_size": self.context_size,
            "seeds": list(self.seeds),
            "mean": self.mean,
            "tasks": {task.name: task.to_json() for task in self.tasks},
        }

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        rows = [["task", "metric", "mean", "spread"]]
        for task in self.tasks:
            spread = "" if task.spread is None else f"{100 * task.spread:.2f}"
            rows.append([task.name, task.metric, f"{100 * task.mean:.2f}", spread])
        rows.append(["mean", "", f"{100 * self.mean:.2f}", ""])
        head = f"MTEB × 100 · {self.model} · {self.context_size} context documents · seeds {seeds}"
        return "\n".join([head, *table(rows)])


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of a sweep.

    Attributes:
        done: Tasks scored, over all seeds.
        total: Tasks to score.
        task: The one that was scored last.
        seed: Under the context of this seed.
    """

    done: int
    total: int
    task: str
    seed: int


def sweep(
    tasks: Sequence[AbsTask],
    *,
    model: str | Path | CDEModel = "cde-mini",
    context_size: int | None = None,
    context: Literal["own", "null"] | Sequence[str] = "own",
    seeds: Sequence[int] = (0,),
    output: str | Path | None = None,
    batch_size: int = 32,
    device: str | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> MTEBSweep:
    """Score a model on tasks of MTEB, each under as many contexts as there are seeds.

    Only the context differs between seeds; the random choices of a task itself do not.

    Args:
        tasks: From `mteb.get_tasks`, `find_tasks` or `local_retrieval_task`.
        model: As for `CDEForMTEB`.
        context_size: As for `CDEForMTEB`.
        context: As for `CDEForMTEB`.
        seeds: Random seeds of the contexts.
        output: Folder for MTEB's own result files. Existing results are not computed again, so that an interrupted
            run resumes.
        batch_size: Texts per forward pass.
        device: Device of the model.
        on_progress: Called after each task under each seed.

    Raises:
        ContextError: The model expects another number of context documents.
        CorpusError: A task's data is neither cached nor available for download.
        ModelError: No such model.
        ValueError: No task or no seed.
    """
    if not tasks or not seeds:
        raise ValueError(f"Expected at least one task and one seed; found {len(tasks)} tasks, seeds={seeds}.")
    encoder = CDEForMTEB(model, context_size=context_size, context=context, device=device)
    name = encoder.model.identity.name
    cache = None if output is None else ResultCache(cache_path=user_path(output))
    scores: dict[int, tuple[float, ...]] = {}
    for place in sorted(range(len(tasks)), key=lambda place: sorted(task_prefixes(tasks[place].metadata).items())):
        found: list[float] = []  # in an order in which prefixes seldom change: a change loads the model again
        for seed in seeds:
            encoder.reseed(seed)
            found.append(_score(encoder, tasks[place], cache, batch_size))
            if on_progress is not None:
                done = len(scores) * len(seeds) + len(found)
                on_progress(SweepProgress(done, len(tasks) * len(seeds), tasks[place].metadata.name, seed))
        scores[place] = tuple(found)
    return MTEBSweep(
        model=name,
        context_size=encoder.context_size,
        seeds=tuple(seeds),
        tasks=tuple(
            TaskScores(
                name=task.metadata.name,
                type=task.metadata.type,
                metric=task.metadata.main_score,
                scores=scores[place],
            )
            for place, task in enumerate(tasks)
        ),
    )


def _score(encoder: CDEForMTEB, task: AbsTask, cache: ResultCache | None, batch_size: int) -> float:
    """Score one task, unless its result is in the cache; one of other data of that name is scored again."""
    try:
        try:
            result = _result(encoder, task, cache, batch_size, "only-missing")
        except JSONDecodeError:  # of a result that was being written when the run was killed
            result = None
        if result is None or result.dataset_revision != task.metadata.revision:
            result = _result(encoder, task, cache, batch_size, "always")
    except OSError as error:
        if task.data_loaded:
            raise
        raise CorpusError(
            f"{task.metadata.name}: its data is not in the cache and could not be downloaded ({error}). Run once with "
            "network, or give a folder in BEIR's layout."
        ) from error
    return float(result.get_score())


def _result(
    encoder: CDEForMTEB, task: AbsTask, cache: ResultCache | None, batch_size: int, overwrite: str
) -> TaskResult:
    task.rng_state, task.np_rng = Random(task.seed), np.random.default_rng(task.seed)  # the same under each context
    found = mteb.evaluate(
        cast(Any, encoder),
        task,
        co2_tracker=False,
        cache=cache,
        overwrite_strategy=overwrite,
        encode_kwargs={"batch_size": batch_size, "show_progress_bar": False},
        show_progress_bar=False,
    )
    return found.task_results[0]

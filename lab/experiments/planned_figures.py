"""Several figures of recipes by one plan: run after run within a time, and the tables of figures that are complete."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag_training.config import TrainingConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.recipe import RecipeError, read_tables
from lab.experiments.cells import Cell, read_cells, run, run_readings

DONE = "done"  # an empty file in the folder of a run that is trained and evaluated


class TimeOverError(KeyboardInterrupt):
    """The plan's time is over. Training resumes from its checkpoint, as after Ctrl-C."""


class PlannedFigure(NamedTuple):
    """One figure of a plan.

    Attributes:
        name: Name of its recipes, table and picture.
        cells: The first one is the reference of the others.
    """

    name: str
    cells: list[Cell]

    @property
    def runs(self) -> list[tuple[Cell, TrainingConfig]]:
        """All runs, those of the first seed first."""
        return [each for some in zip(*self._by_cell, strict=True) for each in some]

    @property
    def _by_cell(self) -> list[list[tuple[Cell, TrainingConfig]]]:
        return [[(cell, recipe) for recipe in cell.recipes] for cell in self.cells]


def read_plan(path: Path) -> list[PlannedFigure]:
    """Read a plan: `recipes`, a list of files next to it, in the form of `read_cells` and in the order of the runs.

    Raises:
        RecipeError: The file or one of its recipes is missing or no TOML, or cannot be so; cells of one name differ.
    """
    tables = read_tables(path)
    listed = tables.get("recipes")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if tables.keys() != {"recipes"} or not names or names != listed:
        raise RecipeError(
            f"{path}: expected recipes, a list of names of files, and nothing else; found {dict(tables)}."
        )
    figures = [PlannedFigure(Path(name).stem, read_cells(path.parent / name)) for name in names]
    known: dict[tuple[str, int], TrainingConfig] = {}
    for cell, recipe in (each for figure in figures for each in figure.runs):
        if known.setdefault((cell.name, recipe.seed), recipe) != recipe:
            raise RecipeError(f"{path}: expected one recipe of cells named {cell.name!r}, found two. Rename one.")
    return figures


def run_plan(
    figures: Sequence[PlannedFigure],
    prepared: Prepared,
    sets: Sequence[RetrievalSet],
    folder: Path,
    output: Path,
    *,
    seed: int,
    minutes: float | None,
) -> tuple[list[Path], dict[str, int]]:
    """Train and evaluate the missing runs of a plan, figure by figure, and write the tables of complete figures.

    When the time is over, the run at hand stops, and the same call resumes it from its latest checkpoint. Call it in
    the main thread of a process, which gets the alarm.

    Args:
        figures: The plan.
        prepared: Training data of all figures.
        sets: Evaluation sets.
        folder: Stores runs and vectors. A cell that several figures have in common is trained once.
        output: Folder of tables and pictures.
        seed: Random seed of the contexts used in evaluation.
        minutes: Minutes from now; None for as long as it takes.

    Returns:
        The files of complete figures, and the number of runs that each other figure lacks.
    """
    files: list[Path] = []
    with _limited(minutes):
        for figure in figures:
            for cell, recipe in _missing(figure, folder):
                run_readings(cell, recipe, prepared, sets, folder, seed=seed)
                (cell.run(recipe, folder) / DONE).touch()
            files += run(figure.cells, prepared, sets, folder, output / figure.name, seed)
    left = {figure.name: len(_missing(figure, folder)) for figure in figures}
    return files, {name: count for name, count in left.items() if count}


def _missing(figure: PlannedFigure, folder: Path) -> list[tuple[Cell, TrainingConfig]]:
    return [(cell, recipe) for cell, recipe in figure.runs if not (cell.run(recipe, folder) / DONE).exists()]


@contextmanager
def _limited(minutes: float | None) -> Iterator[None]:
    """Leave the block when the time is over."""

    def stop(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TimeOverError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes if minutes else 0)
        yield
    except TimeOverError:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

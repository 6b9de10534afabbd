"""Ablations: models trained from recipes that differ in one part (tables and figures of the paper, §5)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from tqdm import tqdm

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.models import CDEModel
from cde_rag_training.clustering.packing import difficulty
from cde_rag_training.config import TrainingConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.trainer import batches_of
from cde_rag_training.loop.training import train
from cde_rag_training.recipe import RecipeError, changed, read_tables, recipe_of
from lab.experiments.laboratory import MEAN, Laboratory, average, compared_runs
from lab.experiments.models import Figures, readings
from lab.experiments.result_tables import new_figure, write_table

LOOKED_AT = 64  # batches of a run


class Cell(NamedTuple):
    """One recipe.

    Attributes:
        name: In tables and figures.
        recipes: The same one for each seed.
    """

    name: str
    recipes: tuple[TrainingConfig, ...]

    @property
    def given(self) -> str:
        """Context given at evaluation: "context", or "null" if no training phase shows one."""
        shown = [phase.corpora.context.null_share < 1 for phase in self.recipes[0].phases]
        return "context" if any(shown) else "null"

    def run(self, recipe: TrainingConfig, folder: Path) -> Path:
        """Return the folder of one of its runs among those of `folder`."""
        return folder / f"{self.name}-{recipe.seed}"


class CellRow(NamedTuple):
    """Result of one cell on one set, or on the mean of all sets.

    Attributes:
        corpus: The set, or "mean".
        cell: Its name.
        given: As in `ModelRow`.
        ndcg: NDCG@10, mean over queries and seeds; of all sets their mean.
        spread: Standard deviation over seeds (ddof 0).
        gain: NDCG@10 minus that of the first cell under its own `given`.
        low: Lower end of the gain's 95 % interval (queries drawn again, seeds averaged).
        high: Upper end.
        difficulty: Mean surrogate cosine of a query with the other documents of its batch, masked ones too.
    """

    corpus: str
    cell: str
    given: str
    ndcg: float
    spread: float
    gain: float
    low: float
    high: float
    difficulty: float


def read_cells(path: Path) -> list[Cell]:
    """Read cells: `seeds`, a table [base] that is a recipe, and for each of [[cells]] its name and its [change].

    `base` may also be the name of a file next to it, whose [base] is taken.

    Raises:
        RecipeError: The file or that of its base is missing or no TOML, a recipe cannot be so, or cells share a name.
    """
    tables = read_tables(path)
    if isinstance(other := tables.get("base"), str):
        tables["base"] = read_tables(path.parent / other).get("base")
    if unknown := sorted(tables.keys() - {"seeds", "base", "cells"}):
        raise RecipeError(f"{path}: unknown key {unknown[0]!r}. There are seeds, base, cells.")
    seeds, base, listed = tables.get("seeds", [0]), tables.get("base", {}), tables.get("cells", [])
    if not (isinstance(seeds, list) and isinstance(base, Mapping) and isinstance(listed, list) and seeds and listed):
        raise RecipeError(f"{path}: expected a list of seeds, a table [base] and a table [[cells]] or more.")
    changes = cast("list[Mapping[str, object]]", listed)
    cells = [_cell(path, cast("list[object]", seeds), cast("Mapping[str, object]", base), each) for each in changes]
    if len({cell.name for cell in cells}) < len(cells):
        raise RecipeError(f"{path}: expected cells of different names, found {[cell.name for cell in cells]}.")
    return cells


def _cell(path: Path, seeds: Sequence[object], base: Mapping[str, object], table: Mapping[str, object]) -> Cell:
    name, change = table.get("name"), table.get("change", {})
    if not isinstance(name, str) or not name or not isinstance(change, Mapping) or table.keys() - {"name", "change"}:
        raise RecipeError(f"{path}: expected of a cell its name and a table change, found {dict(table)}.")
    merged = changed(base, cast("Mapping[str, object]", change))
    recipes = [recipe_of(merged | {"seed": seed}, TrainingConfig, file=f"{path}, cell {name}") for seed in seeds]
    return Cell(name, tuple(replace(each, start=replace(each.start, name=name)) for each in recipes))


def batch_difficulty(prepared: Prepared, cell: Cell) -> float:
    """Return the mean difficulty of the first `LOOKED_AT` batches of a cell's first phase, over all seeds.

    Raises:
        CorpusError: A source has too few pairs for them.

    Source: paper figures 2 and 6.
    """
    each = [
        batches_of(prepared, recipe.phases[0], seed=recipe.seed).batch(update).pairs
        for recipe in cell.recipes
        for update in range(LOOKED_AT)
    ]
    rows, places = np.unique(np.stack(each), return_inverse=True)
    batches = places.reshape(len(each), -1)
    return float(difficulty(batches, prepared.query_vectors_of(rows), prepared.document_vectors_of(rows)).mean())


def cell_rows(
    cells: Sequence[Cell], prepared: Prepared, sets: Sequence[RetrievalSet], folder: Path, *, seed: int
) -> list[CellRow]:
    """Train the models that are missing in the folder, and evaluate all of them on the sets.

    Args:
        cells: The first one is the reference of the others.
        prepared: Training data of all cells.
        sets: Evaluation sets of all cells; none of their texts may be in `prepared`.
        folder: Stores runs and vectors; a stopped experiment resumes from there.
        seed: Random seed of the contexts used in evaluation.
    """
    found: dict[tuple[str, str], list[Figures]] = {}
    runs = [(cell, recipe) for cell in cells for recipe in cell.recipes]
    for cell, recipe in tqdm(runs, desc="cells", unit="run"):
        for given, figures in run_readings(cell, recipe, prepared, sets, folder, seed=seed).items():
            found.setdefault((cell.name, given), []).append(figures)
    reference = average(found[cells[0].name, cells[0].given])
    hard = {cell.name: batch_difficulty(prepared, cell) for cell in cells}
    return [
        CellRow(corpus, name, given, ndcg, spread, gain.mean, *gain.queries, hard[name])
        for (name, given), figures in found.items()
        for corpus, ndcg, spread, gain in compared_runs(sets, figures, reference)
    ]


def run_readings(
    cell: Cell, recipe: TrainingConfig, prepared: Prepared, sets: Sequence[RetrievalSet], folder: Path, *, seed: int
) -> dict[str, Figures]:
    """Train one model of a cell, unless it is in the folder, and evaluate it; arguments as for `cell_rows`."""
    trained = train(prepared, recipe, cell.run(recipe, folder))
    model = CDEModel.from_pretrained(trained, runtime="torch")
    return readings(Laboratory(model, sets, folder / "vectors", seed))


def run(
    cells: Sequence[Cell], prepared: Prepared, sets: Sequence[RetrievalSet], folder: Path, output: Path, seed: int
) -> list[Path]:
    """Write OUTPUT.csv and OUTPUT.svg."""
    rows = cell_rows(cells, prepared, sets, folder, seed=seed)
    table, figure = (output.with_name(f"{output.name}.{kind}") for kind in ("csv", "svg"))
    return [write_table(table, rows), _plot(cells, rows, figure)]


def _plot(cells: Sequence[Cell], rows: Sequence[CellRow], path: Path) -> Path:
    figure, axes = new_figure(height=1.2 + 0.4 * len(cells))
    for place, cell in enumerate(cells):
        (mean,) = [row for row in rows if (row.corpus, row.cell, row.given) == (MEAN, cell.name, cell.given)]
        ends = [[100 * (mean.gain - mean.low)], [100 * (mean.high - mean.gain)]]
        axes.errorbar([100 * mean.gain], [place], xerr=ends, fmt="o", color="black")
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(cells)), [cell.name for cell in cells])
    axes.invert_yaxis()
    axes.set_xlabel(f"NDCG@10 × 100 less that of {cells[0].name} (95 %)")
    figure.savefig(path)
    return path

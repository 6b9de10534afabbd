"""Experiments for the figures of the documentation: `python -m lab.experiments`, from the repository's root."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.commands import command_line
from cde_rag.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from cde_rag.evaluation.beir import RetrievalSet


app = command_line()


@app.callback()
def main() -> None:
    """Experiments on prepared pairs, models, recipes and retrieval sets; each writes a CSV and an SVG."""


@app.command("list")
def list_experiments(as_json: JsonOption = False) -> None:
    """List all experiments with the question that each answers."""
    from lab.experiments import ON_MODELS, ON_PAIRS, ON_RECIPES, ON_SETS

    every = ON_PAIRS | ON_SETS | ON_MODELS | ON_RECIPES
    listed = {name: f"{found.question} ({found.source})" for name, found in every.items()}
    if as_json:
        print_json(listed)
        return
    for name, question in listed.items():
        typer.echo(f"{name:<15} {question}")


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `list`.")],
    prepared: Annotated[
        Path | None, typer.Argument(metavar="[PREPARED]", help="Prepared pairs, for experiments on pairs.")
    ] = None,
    sets: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with retrieval sets, for experiments on sets.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the sets. [default: the file's folder]")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="A one-way model; repeatable for `models`. [default: cde-mini]"),
    ] = None,
    recipes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with the recipes to compare, for cells.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Cache of vectors. [default: OUTPUT/cache]")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", file_okay=False, help="Folder for table and figure.")
    ] = Path(),
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run one experiment and write its table (CSV) and figure (SVG).

    FILE has a table [[sets]] for each set: path (a folder in BEIR's layout, or a file of pairs), and if need be name,
    split, parent_key, domains and max_characters; above them documents and queries limit how much of each is used.
    A file of recipes has seeds, a recipe [base], and a table [[cells]] for each: a name, and a change of the base;
    table and figure have its name.

    \b
    Examples:
      python -m lab.experiments run difficulty prepared --output figures
      python -m lab.experiments run heatmap --sets development.toml --data datasets --output figures
      python -m lab.experiments run models --sets development.toml --model runs/a/model --model runs/b/model
      python -m lab.experiments run cells prepared --recipes table1.toml --sets development.toml --output figures
    """
    from lab.experiments import ON_MODELS, ON_PAIRS, ON_RECIPES, ON_SETS

    every = ON_PAIRS | ON_SETS | ON_MODELS | ON_RECIPES
    if name in ON_PAIRS:
        files = _on_pairs(name, prepared, output, seed)
    elif name in ON_RECIPES:
        files = _on_recipes(name, recipes, prepared, sets, data, cache or output / "cache", output, seed)
    elif name in every:
        files = _on_sets(name, sets, data, model or ["cde-mini"], cache or output / "cache", output, seed)
    else:
        raise typer.BadParameter(f"{name}; there are {', '.join(every)}", param_hint="NAME")
    print_json({"files": files}) if as_json else typer.echo("\n".join(files))


@app.command("plan")
def plan(
    file: Annotated[Path, typer.Argument(metavar="PLAN", help="TOML with recipes, the files of several figures.")],
    prepared: Annotated[Path, typer.Argument(metavar="PREPARED", help="Prepared pairs of all runs.")],
    sets: Annotated[Path, typer.Option(metavar="FILE", help="TOML with retrieval sets.")],
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the sets. [default: the file's folder]")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of runs and vectors. [default: OUTPUT/cache]")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", file_okay=False, help="Folder for tables and figures.")
    ] = Path(),
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Stop after this time; the same command resumes. [default: none]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of evaluation's contexts.")] = 0,
) -> None:
    """Run all experiments on recipes of a plan, at the lowest priority, and write the complete tables.

    \b
    Examples:
      python -m lab.experiments plan lab/plans/paper.toml prepared --sets lab/plans/brief.toml \\
        --data ../shared/data --output lab/tables --minutes 60
    """
    from cde_rag_training.data.prepared import Prepared
    from lab.experiments.planned_figures import read_plan, run_plan

    os.nice(19)
    figures, pairs, found = read_plan(file), Prepared.load(prepared), _read_sets(sets, data)
    output.mkdir(parents=True, exist_ok=True)
    files, left = run_plan(figures, pairs, found, cache or output / "cache", output, seed=seed, minutes=minutes)
    for path in files:
        typer.echo(str(path))
    for name, count in left.items():
        typer.echo(f"{name}: {count} runs are missing; run the same command again", err=True)


def _on_pairs(name: str, prepared: Path | None, output: Path, seed: int) -> list[str]:
    from cde_rag_training.data.prepared import Prepared
    from lab.experiments import ON_PAIRS

    if prepared is None:
        raise typer.BadParameter("give prepared pairs (see cde-rag-train prepare)", param_hint="PREPARED")
    found = Prepared.load(prepared)
    output.mkdir(parents=True, exist_ok=True)
    return [str(path) for path in ON_PAIRS[name].run(found, output, seed)]


def _on_recipes(
    name: str,
    recipes: Path | None,
    prepared: Path | None,
    sets: Path | None,
    data: Path | None,
    cache: Path,
    output: Path,
    seed: int,
) -> list[str]:
    from cde_rag_training.data.prepared import Prepared
    from lab.experiments import ON_RECIPES
    from lab.experiments.cells import read_cells

    if recipes is None or prepared is None:
        raise typer.BadParameter(
            "name recipes (TOML with [[cells]]) and prepared pairs", param_hint="--recipes, PREPARED"
        )
    cells, pairs, found = read_cells(recipes), Prepared.load(prepared), _read_sets(sets, data)
    output.mkdir(parents=True, exist_ok=True)
    return [str(path) for path in ON_RECIPES[name].run(cells, pairs, found, cache, output / recipes.stem, seed)]


def _read_sets(sets: Path | None, data: Path | None) -> "list[RetrievalSet]":
    from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
    from cde_rag_training.recipe import read_recipe

    if sets is None:
        raise typer.BadParameter("give a TOML file with [[sets]]", param_hint="--sets")
    return read_sets(read_recipe(sets, SetsConfig), data or sets.parent)


def _on_sets(
    name: str, sets: Path | None, data: Path | None, models: list[str], cache: Path, output: Path, seed: int
) -> list[str]:
    from cde_rag.models import CDEModel
    from cde_rag.models.one_way.network import TwoStage
    from lab.experiments import ON_MODELS, ON_SETS
    from lab.experiments.laboratory import Laboratory

    if name in ON_SETS and len(models) > 1:
        raise typer.BadParameter(f"{name} looks at one; {', '.join(ON_MODELS)} compares", param_hint="--model")
    found = _read_sets(sets, data)
    labs = [Laboratory(CDEModel.from_pretrained(model, runtime="torch"), found, cache, seed) for model in models]
    for asked, lab in zip(models, labs, strict=True):
        if not isinstance(lab.model.network, TwoStage):
            raise typer.BadParameter(f"expected a one-way model, found {asked}, a two-way one", param_hint="--model")
    if len(set(names := [lab.model.config.name for lab in labs])) < len(labs):
        raise typer.BadParameter(f"expected models of different names, found {names}", param_hint="--model")
    output.mkdir(parents=True, exist_ok=True)
    files = ON_SETS[name].run(labs[0], output) if name in ON_SETS else ON_MODELS[name].run(labs, output)
    return [str(path) for path in files]


if __name__ == "__main__":
    app(prog_name="python -m lab.experiments")

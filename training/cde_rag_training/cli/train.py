"""The commands train and presets."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import INTERRUPTED, JsonOption, ProgressOption, print_json
from cde_rag_training.cli.recipes import (
    NAMES,
    ConfigOption,
    PreparedArgument,
    PresetOption,
    checked,
    chosen_recipe,
    settings_told,
)


def train(
    prepared: PreparedArgument,
    output: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Folder of the run; the model is written to its model/.")
    ],
    config: ConfigOption = None,
    preset: PresetOption = None,
    held_out: Annotated[
        Path | None, typer.Option(metavar="PREPARED", help="Prepared pairs for evaluation during training.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda. [default: the recipe's]")] = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model from prepared pairs.

    A recipe holds all settings; the presets command prints the bundled ones as a starting point. A run that was
    stopped, by Ctrl-C or otherwise, resumes from its last checkpoint when the same command is run again.

    \b
    Examples:
      cde-rag-train train prepared --preset laptop --output runs/laptop
      cde-rag-train train prepared --config recipe.toml \\
        --output runs/a --held-out held-out
      torchrun --nproc-per-node 2 -m cde_rag_training train prepared \\
        --config recipe.toml --output runs/a
    """
    from cde_rag_training.loop.state import STATE
    from cde_rag_training.loop.training import train as run
    from cde_rag_training.loop.training_data import TABLES

    recipe = chosen_recipe(config, preset)
    if device is not None:
        recipe = replace(recipe, machine=replace(recipe.machine, device=device))
    shown = sys.stderr.isatty() if progress is None else progress
    if prepared.suffix in TABLES and not (output / STATE).exists():
        told = "their near-duplicates stay in, which cde-rag-train prepare takes out"
        typer.echo(f"{prepared} holds pairs: preparing them in {output} first; {told}.", err=True)
    try:
        with settings_told():
            model = run(prepared, recipe, output, held_out=held_out, progress=shown)
    except KeyboardInterrupt as error:
        kept = "keeps the last checkpoint" if (output / STATE).exists() else "has no checkpoint yet"
        typer.echo(f"Stopped; {output} {kept}. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks
        return
    if as_json:
        print_json({"model": str(model.resolve()), "log": str((output / "log.csv").resolve())})
    else:
        typer.echo(f"{model}: try it with cde-rag evaluate FOLDER --model {model}")


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Preset to print; without it, list all.")] = (
        None
    ),
    as_json: JsonOption = False,
) -> None:
    """List the recipes that come with the package, or print one, to begin your own with.

    \b
    Examples:
      cde-rag-train presets
      cde-rag-train presets laptop > recipe.toml
    """
    from cde_rag_training.presets import preset_text

    if name is not None:
        text = preset_text(checked(name))
        print_json({"name": name, "toml": text}) if as_json else typer.echo(text, nl=False)
        return
    summaries = {each: _summary(preset_text(each)) for each in NAMES}
    if as_json:
        print_json(summaries)
    else:
        for each, summary in summaries.items():
            typer.echo(f"{each:<12} {summary}")


def _summary(text: str) -> str:
    """Return the first sentence of a preset's comment, up to its colon or full stop."""
    comment = " ".join(line.removeprefix("#").strip() for line in text.split("\n\n")[0].splitlines())
    return comment.split(": ")[0].split(". ")[0].rstrip(".") + "."

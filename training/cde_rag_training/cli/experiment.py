"""The command experiment."""

from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, print_json


def experiment(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="All are listed without.")] = None,
    prepared: Annotated[Path | None, typer.Argument(metavar="[PREPARED]", help="What prepare made.")] = None,
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="For table and figure.")] = Path(),
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a named experiment on prepared pairs; it writes a table (CSV) and a figure (SVG).

    \b
    Examples:
      cde-rag-train experiment
      cde-rag-train experiment difficulty prepared --output figures
    """
    from cde_rag_training.experiments import EXPERIMENTS

    if name is None:
        listed = {each: f"{found.question} (paper, {found.source})" for each, found in EXPERIMENTS.items()}
        if as_json:
            print_json(listed)
        else:
            for each, question in listed.items():
                typer.echo(f"{each:<12} {question}")
        return
    if name not in EXPERIMENTS:
        raise typer.BadParameter(f"{name}; there are {', '.join(EXPERIMENTS)}", param_hint="NAME")
    if prepared is None:
        raise typer.BadParameter("which pairs? Name what prepare made", param_hint="PREPARED")
    from cde_rag_training.prepared import Prepared

    data = Prepared.load(prepared)
    output.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in EXPERIMENTS[name].run(data, output, seed)]
    print_json({"files": files}) if as_json else typer.echo("\n".join(files))

"""The command interpolate."""

from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, print_json


def interpolate(
    start: Annotated[str, typer.Argument(metavar="START", help="What TRAINED started from: a bundled name or folder.")],
    trained: Annotated[Path, typer.Argument(metavar="TRAINED", help="Folder of the trained model.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Is made; must not exist.")],
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FOLDER", help="Of another model trained from START; the mean of all is taken."),
    ] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the way from START (0) to TRAINED (1).")] = 0.5,
    siblings: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Factor of the siblings' trained weight in the output.")
    ] = 1.0,
    exponent: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Of the output map. [default: as trained]", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the model that lies between a start and what was trained from it.

    A short training adds and forgets; in between there is often more of the one than of the other. The encoder's
    weights are mixed; context path, gates and first stage stay as trained, but for the siblings' weight and the output
    map, which can be set. Trainings of other seeds that begin alike (with the same first stage and context path) may be
    averaged: each --with adds one. Choose all of these on development sets.

    \b
    Examples:
      cde-rag-train interpolate cde-mini runs/first/model between --share 0.5
      cde-rag-train interpolate cde-mini runs/first/model mean --with runs/second/model --share 1
      cde-rag evaluate scifact/ --model between
    """
    from cde_rag_training.networks.interpolation import interpolate_models

    averaged = others or []
    made = interpolate_models(
        start, trained, folder, share=share, others=averaged, siblings=siblings, exponent=exponent
    )
    if as_json:
        print_json({"folder": str(made.resolve()), "share": share, "averaged": 1 + len(averaged)})
    else:
        end = f"the mean of {1 + len(averaged)} models" if averaged else str(trained)
        typer.echo(f"{made}: {share:g} of the way from {start} to {end}")

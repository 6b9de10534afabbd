"""The command interpolate."""

from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, print_json


def interpolate(
    start: Annotated[str, typer.Argument(metavar="START", help="Start model of TRAINED: a bundled name or a folder.")],
    trained: Annotated[Path, typer.Argument(metavar="TRAINED", help="Folder of the trained model.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder; must not exist.")],
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FOLDER", help="Another model trained from START, to average; repeatable."),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Interpolation weight: START (0) to TRAINED (1).")
    ] = 0.5,
    siblings: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Factor of the siblings' trained weight in the output.")
    ] = 1.0,
    exponent: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exponent of the output map. [default: as trained]", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Interpolate between a start model and a model trained from it.

    A short training learns and forgets; an interpolated model often keeps more of both. The encoder's weights are
    interpolated; context path, gates and first stage stay as trained, except the siblings' weight and the output map,
    which can be set. Models trained with other seeds from the same first stage and context path can be averaged: each
    --with adds one. Choose all of these on development sets.

    \b
    Examples:
      cde-rag-train interpolate cde-mini runs/first/model between --share 0.5
      cde-rag-train interpolate cde-mini runs/first/model mean \\
        --with runs/second/model --share 1
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

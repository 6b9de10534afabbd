"""The command rotate."""

from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, print_json
from cde_rag_training.cli.recipes import PreparedArgument


def rotate(
    trained: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a finished model.")],
    prepared: PreparedArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder; must not exist.")],
    pairs: Annotated[int, typer.Option(min=1, help="Maximum number of pairs to embed.")] = 8192,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of their sample.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Rotate a model's embeddings so that their first dimensions hold most of the similarity.

    Embeddings truncated to 256 or 128 dimensions then keep most of their retrieval quality, without Matryoshka
    training; full embeddings give the same results as before. The axes are those in which the prepared pairs' queries
    and documents agree most.

    \b
    Examples:
      cde-rag-train rotate runs/first/model prepared my-model
    """
    from cde_rag_training.data.prepared import Prepared
    from cde_rag_training.networks.rotation import rotate_model

    made = rotate_model(trained, Prepared.load(prepared), folder, pairs=pairs, seed=seed)
    if as_json:
        print_json({"folder": str(made.resolve())})
    else:
        typer.echo(f"{made}: {trained}, turned")

"""The command convert."""

from pathlib import Path
from typing import Annotated

import typer

from cde_rag._files import user_path
from cde_rag.cli.output import JsonOption, print_json


def convert(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id such as jxm/cde-small-v2, also with @revision; or a folder.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder; must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Convert a published model to a folder that works offline: weights, tokenizer, and their digests.

    For private and gated models of the hub, first log in (hf auth login) or set HF_TOKEN.

    \b
    Examples:
      cde-rag convert jxm/cde-small-v2 models/cde-small-v2
      cde-rag index notes/ notes.faiss --model models/cde-small-v2
    """
    from cde_rag.models.files.names import ModelName
    from cde_rag.models.loading import ModelSource

    name = ModelName(base=model) if user_path(model).is_dir() else ModelName.parse(model)
    if name.has_options:
        raise typer.BadParameter("options are given where the model is loaded, not here", param_hint="MODEL")
    ModelSource.find(name).convert(folder)
    made = folder.resolve()
    if as_json:
        print_json({"model": model, "folder": str(made)})
    else:
        typer.echo(made)

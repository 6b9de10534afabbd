"""Shared options of the commands: recipes and prepared pairs; warnings of skipped rows."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cde_rag.cli.output import printable
from cde_rag.errors import CDEError

if TYPE_CHECKING:
    from cde_rag_training.config import TrainingConfig
    from cde_rag_training.data.reading import Columns

NAMES = ("paper-small", "paper-large", "gte", "cde-mini", "laptop")
PreparedArgument = Annotated[Path, typer.Argument(metavar="PREPARED", help="Prepared pairs: a folder, or one file.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="TOML", help="A recipe; missing keys keep their defaults.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help=f"A bundled recipe: {', '.join(NAMES)}.")
]

PairsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="PAIRS",
        help="JSONL, CSV, TSV (also .gz) or Parquet; or a data set of the Hugging Face hub, as "
        "hub:OWNER/NAME@REVISION#CONFIG/SPLIT.",
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Other names of columns, as query=anchor,document=positive. hard_negatives may be repeated.",
    ),
]
RowsOption = Annotated[
    int | None, typer.Option("--rows", min=1, help="Rows to read of each file or data set. [default: all]")
]
StreamOption = Annotated[
    bool, typer.Option("--stream", help="Stream data sets of the hub, without a copy on this disk.")
]


def columns_of(text: str | None) -> "Columns":
    """Parse --columns."""
    from cde_rag_training.data.reading import Columns

    named: dict[str, list[str]] = {}
    known = [field.name for field in fields(Columns)]
    for part in text.split(",") if text else []:
        role, _, name = part.partition("=")
        if role not in known or not name or (role in named and role != "hard_negatives"):
            raise typer.BadParameter(
                f"expected {', '.join(known)}, each once with =COLUMN, found {part!r:.80}", param_hint="--columns"
            )
        named.setdefault(role, []).append(name)
    given: dict[str, Any] = {
        role: tuple(names) if role == "hard_negatives" else names[0] for role, names in named.items()
    }
    return Columns(**given)


def chosen_recipe(config: Path | None, preset: str | None) -> "TrainingConfig":
    """Return the recipe of --config or --preset, or the default recipe."""
    from cde_rag_training import presets
    from cde_rag_training.config import TrainingConfig

    if config is not None and preset is not None:
        raise typer.BadParameter("give --config or --preset, not both", param_hint="--preset")
    if preset is not None:
        return presets.preset(checked(preset))
    return TrainingConfig() if config is None else TrainingConfig.from_toml(config)


def checked(preset: str) -> str:
    """Return a preset's name, or raise a usage error if there is no such preset."""
    if preset not in NAMES:
        raise typer.BadParameter(f"{preset}; there are {', '.join(NAMES)}", param_hint="NAME")
    return preset


@contextmanager
def settings_told() -> Generator[None, None, None]:
    """Convert a ValueError about invalid settings to a CDEError, which the command reports in one sentence."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, CDEError) else CDEError(str(error)) from error


def tell_skipped(count: int, reports: Sequence[str]) -> None:
    """Report the number of skipped rows or records on stderr, with the first of them."""
    if count:
        typer.echo(f"Skipped {count} bad ones:", err=True)
        for line in reports:
            typer.echo(printable(f"  {line}"), err=True)

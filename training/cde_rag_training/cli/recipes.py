"""What commands share: how they take a recipe, and how they tell what was passed over."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import printable
from cde_rag.errors import CDEError

if TYPE_CHECKING:
    from cde_rag_training.config import TrainingConfig

NAMES = ("paper-small", "cde-mini", "laptop")
PreparedArgument = Annotated[Path, typer.Argument(metavar="PREPARED", help="What prepare made: a folder, or one file.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="TOML", help="A recipe; what it leaves out keeps its default.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help=f"A recipe of the package: {', '.join(NAMES)}.")
]


def chosen_recipe(config: Path | None, preset: str | None) -> "TrainingConfig":
    """The recipe that was asked for, or the defaults."""
    from cde_rag_training import presets
    from cde_rag_training.config import TrainingConfig

    if config is not None and preset is not None:
        raise typer.BadParameter("give --config or --preset, not both", param_hint="--preset")
    if preset is not None:
        return presets.preset(checked(preset))
    return TrainingConfig() if config is None else TrainingConfig.from_toml(config)


def checked(preset: str) -> str:
    """A preset's name that exists."""
    if preset not in NAMES:
        raise typer.BadParameter(f"{preset}; there are {', '.join(NAMES)}", param_hint="NAME")
    return preset


@contextmanager
def settings_told() -> Generator[None, None, None]:
    """Settings that do not go together, or not with the data, are a ValueError of the library: one sentence here."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, CDEError) else CDEError(str(error)) from error


def tell_skipped(count: int, reports: Sequence[str]) -> None:
    """Say on stderr how many rows or records were passed over, and the first of them."""
    if count:
        typer.echo(f"Skipped {count} bad ones:", err=True)
        for line in reports:
            typer.echo(printable(f"  {line}"), err=True)

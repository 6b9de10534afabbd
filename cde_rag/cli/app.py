"""The commands together, and what they share: `--version`, errors, warnings, Ctrl-C."""

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from cde_rag import __version__
from cde_rag.cli import collections, contexts, convert, demo, doctor, evaluate, index
from cde_rag.cli.output import INTERRUPTED, printable
from cde_rag.errors import CDEError, CDEWarning


class Commands(TyperGroup):
    """Turns our errors and warnings into sentences on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run one command."""
        cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")  # not all terminals show all texts
        try:
            with _spoken_warnings():
                return super().invoke(ctx)
        except CDEError as error:
            typer.echo(printable(f"Error: {error}"), err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("Stopped. Run the same command again to continue.", err=True)
            raise typer.Exit(INTERRUPTED) from error


@contextmanager
def _spoken_warnings() -> Generator[None, None, None]:
    """Say our warnings in one line; other libraries' are for developers."""

    def say(message: Warning | str, *_: object) -> None:
        typer.echo(printable(f"Warning: {message}"), err=True)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", CDEWarning)
        warnings.showwarning = say
        yield


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"cde-rag {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Retrieval with contextual document embeddings: index texts, search them, measure how well that works.

    \b
    First steps:
      cde-rag demo                                # this Python's documentation, indexed and asked
      cde-rag index notes/ notes.faiss            # a folder of text and Markdown files
      cde-rag search notes.faiss "how do I …"

    Data goes to stdout (as JSON with --json), everything else to stderr. Exit codes: 0 done, 1 an error that one
    sentence explains, 2 wrong usage.
    """


for command in (
    index.index,
    collections.search,
    collections.inspect,
    collections.verify,
    contexts.recontextualize,
    contexts.rollback,
    evaluate.evaluate,
    convert.convert,
    demo.demo,
    doctor.doctor,
):
    app.command()(command)

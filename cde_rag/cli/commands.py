"""Base of the command lines: errors, warnings and log as sentences on stderr, Ctrl-C with a hint to resume."""

import errno
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated, Any, cast

import typer
from typer.core import TyperArgument, TyperGroup

from cde_rag._files import user_path
from cde_rag._validation import meant_by
from cde_rag.cli.output import INTERRUPTED, printable
from cde_rag.errors import CDEError, CDEWarning

_MAY_BE_EMPTY = frozenset({"--document-prefix", "--headers", "--query-prefix"})
_OPTION_AT_HOME = re.compile(r"^(--[a-z-]+=)(~.*)", re.DOTALL)
_REMEDIES = {
    errno.ENAMETOOLONG: "Name a shorter path: most file systems take 255 bytes between two slashes.",
    errno.ENOSPC: "Make room, and run the same command again.",
}
_UsageError = cast(type[Exception], typer.BadParameter.__base__)  # which typer does not export


class Commands(TyperGroup):
    """Turns our errors, warnings and log into sentences on stderr, and refuses empty arguments."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command and its arguments.

        An empty one is mostly an unset variable of the shell, `"$DOCS"`, and would be taken as the present folder, the
        default or no limit.

        Raises:
            BadParameter: An argument is empty, or the value of an option for which that has no meaning.
        """
        found = super().resolve_command(ctx, args)
        for before, argument in pairwise([str(found[0]), *found[2]]):
            option = before if not argument else argument[:-1] if re.fullmatch("--[a-z-]+=", argument) else None
            if option is not None and option not in _MAY_BE_EMPTY:
                raise typer.BadParameter(f"the argument after {option} is empty. Is a variable unset?", ctx)
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options in front of a command, of which `--help` and `--version` print."""
        with _system_errors_on_stderr():
            return super().parse_args(ctx, [_OPTION_AT_HOME.sub(_at_home, arg) for arg in args])

    def invoke(self, ctx: Any) -> Any:
        """Run one command."""
        with _system_errors_on_stderr():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")  # not all terminals show all texts
        try:
            with _warnings_on_stderr(), _log_on_stderr():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            if getattr(error.param, "nargs", 1) != -1 or error.message or error.ctx is None:
                raise
            # One of several positional arguments is missing; the parser takes it for the first.
            due = [str(each.metavar) for each in error.ctx.command.params if isinstance(each, TyperArgument)]
            found = f"Missing argument: expected {' and '.join(due)}, found fewer. {due[-1]} comes last"
            found += ": cde-rag index docs/ docs.faiss" if due[-1] == "COLLECTION" else "."
            raise typer.BadParameter(found, error.ctx) from error
        except _UsageError as error:
            if option := getattr(error, "option_name", None):
                cast(Any, error).message += _hint(option, getattr(error, "ctx", None))
            raise
        except CDEError as error:
            typer.echo(printable(f"Error: {error}"), err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if str(error.name).startswith("cde_rag"):
                raise
            found = f"{error.name!r} is needed here and is not installed. cde-rag doctor shows which extra installs it."
            typer.echo(printable(f"Error: {found}"), err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("Stopped. Run the same command again to continue.", err=True)
            raise typer.Exit(INTERRUPTED) from error


@contextmanager
def _system_errors_on_stderr() -> Generator[None, None, None]:
    """Print errors of the operating system, such as a full disk or a path that is too long, as one line."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BrokenPipeError | CDEError):
            raise
        where = "standard output" if _drop_unwritten() else error.filename
        named = "" if where is None else f"{os.fsdecode(where) if isinstance(where, bytes) else where!s:.300}: "
        remedy = _REMEDIES.get(error.errno, "Mend that, and run the same command again.")
        typer.echo(printable(f"Error: {named}{error.strerror}. {remedy}"), err=True)
        raise typer.Exit(1) from error


def _drop_unwritten() -> bool:
    """Return True if standard output cannot be written; drops its buffer, which Python would write again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _at_home(option: re.Match[str]) -> str:
    """Return `--option=~/path` with the home folder, which a shell puts there in `--option ~/path` alone."""
    return f"{option[1]}{user_path(option[2])}"


def _hint(option: str, context: Any) -> str:
    """Return a sentence with the option that is meant by an unknown one, such as `-k` for `--top-k`; or nothing."""
    params: list[Any] = [] if context is None else context.command.params
    options: dict[str, str] = {each.name: each.opts[0] for each in params if not isinstance(each, TyperArgument)}
    meant = meant_by(option.lstrip("-").replace("-", "_"), options)
    return "" if meant is None else f". Write {options[meant]} for it."


@contextmanager
def _warnings_on_stderr() -> Generator[None, None, None]:
    """Say our warnings in one line; other libraries' are for developers."""

    def say(message: Warning | str, *_: object) -> None:
        typer.echo(printable(f"Warning: {message}"), err=True)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", CDEWarning)
        warnings.showwarning = say
        yield


class _Stderr(logging.Handler):
    """Prints each message as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        typer.echo(printable(record.getMessage()), err=True)


@contextmanager
def _log_on_stderr() -> Generator[None, None, None]:
    """Print messages of models, such as that a runtime is being chosen."""
    log, handler = logging.getLogger("cde_rag.model"), _Stderr()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def command_line() -> typer.Typer:
    """Return a command line without commands."""
    return typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def moved(app: typer.Typer, name: str, program: str) -> None:
    """Let a command that left the package answer with the line that does its work, whatever its arguments.

    Args:
        app: The command line that had the command.
        name: The command.
        program: The beginning of that line, which runs in a clone of the repository.
    """

    @app.command(name, hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
    def answer(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        """Print the line that replaces this command, and exit as wrong usage does."""
        line = shlex.join([*program.split(), *(arguments or ())])
        found = f"Error: {name} has moved to the laboratory. Run in a clone of the repository: {line}"
        typer.echo(printable(found), err=True)
        raise typer.Exit(2)

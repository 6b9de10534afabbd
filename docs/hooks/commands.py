"""Help of the command line as Markdown, out of the commands themselves."""

from collections.abc import Iterator

import click
from typer.main import get_command

from cde_rag.cli import app
from cde_rag_training.cli import app as training

HEAD = """# Command line

Data goes to stdout, progress to stderr; `--json` on every reading command. Exit codes: 0 done, 1 an error in one
sentence, 2 wrong usage, 3 a measurement says "do it" (`drift`) or "keep what you have" (`adapt`), 130 stopped by
Ctrl-C. What follows is made from the commands when this page is built.
"""


def page() -> str:
    """The page: each command with its usage, arguments and options."""
    parts = [HEAD]
    for name, program in (("cde-rag", app), ("cde-rag-train", training)):
        parts += _sections(get_command(program), click.Context(get_command(program), info_name=name), level=2)
    return "\n\n".join(parts) + "\n"


def _sections(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    yield f"```text\n{' '.join(_usage(command, context))}\n```"
    if command.help:
        yield _paragraphs(command.help)
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context))]
    if rows:
        yield "\n".join(["| argument, option | |", "| --- | --- |", *rows])
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _sections(inner, click.Context(inner, info_name=name, parent=context), level=level + 1)


def _usage(command: click.Command, context: click.Context) -> list[str]:
    return [context.command_path, *command.collect_usage_pieces(context)]


def _paragraphs(text: str) -> str:
    r"""What click prints as it stands (behind a line of \b) as a block, the rest as prose."""
    parts: list[str] = []
    for part in text.split("\n\n"):
        if part.startswith("\b"):
            parts.append("```text\n" + part.lstrip("\b\n") + "\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts)


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name in ("help", "install_completion", "show_completion"):
        return None
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, text = record
    return f"| `{names.strip()}` | {text.strip()} |".replace("\n", " ")

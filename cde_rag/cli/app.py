"""The commands together, and `--version`."""

from typing import Annotated

import typer

from cde_rag._version import __version__
from cde_rag.cli import audit, collections, contexts, convert, copies, demo, doctor, drift, evaluate, index, mteb, serve
from cde_rag.cli.commands import command_line

app = command_line()


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
    """Retrieval with contextual document embeddings: index, search and evaluate.

    \b
    First steps:
      cde-rag demo                                # search this Python's documentation
      cde-rag index notes/ notes.faiss            # a folder of text and Markdown files
      cde-rag search notes.faiss "how do I …"

    Data goes to stdout (as JSON with --json), everything else to stderr. Exit codes: 0 success, 1 error, 2 wrong usage,
    130 stopped by Ctrl-C; 3, from drift only, a new context is worth it.
    """


for command in (
    index.index,
    collections.search,
    collections.inspect,
    collections.verify,
    collections.reindex,
    audit.audit,
    copies.export,
    copies.import_,
    copies.backup,
    copies.restore,
    drift.drift,
    contexts.recontextualize,
    contexts.rollback,
    evaluate.evaluate,
    mteb.mteb,
    convert.convert,
    demo.demo,
    serve.serve,
    serve.mcp,
    doctor.doctor,
):
    app.command(command.__name__.rstrip("_"))(command)

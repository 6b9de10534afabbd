"""The commands together, and `--version`."""

from typing import Annotated

import typer

from cde_rag._version import __version__
from cde_rag.cli import (
    audit,
    collections,
    contexts,
    convert,
    copies,
    demo,
    doctor,
    documents,
    drift,
    evaluate,
    index,
    models,
    reembed,
    serve,
    tune,
    upgrade,
)
from cde_rag.cli.commands import command_line, moved

app = command_line()
_SHORT = {  # in the list of commands, at 80 columns
    "index": "Add a folder, files or records to a collection.",
    "search": "Search a collection.",
    "count": "Deprecated: inspect --where counts passages.",
    "list": "List documents, with their numbers of passages.",
    "get": "Print passages with their metadata.",
    "delete": "Delete documents or passages.",
    "inspect": "Show a collection's size, model and context.",
    "verify": "Compare a collection with its checksums.",
    "reindex": "Rebuild the BM25 and filter indexes.",
    "upgrade": "Adopt the newest defaults, after a backup.",
    "audit": "Check that stored vectors were made from their texts.",
    "stamp": "Write into a store by which model its vectors were made.",
    "reembed": "Move another application's vectors to a new model.",
    "release": "End such a move: delete the vectors not in use.",
    "export": "Export a collection to one Parquet file.",
    "import": "Import a collection from an export.",
    "backup": "Back up a collection, and verify the copy.",
    "restore": "Restore a collection from a backup.",
    "drift": "Estimate the gain of a new context.",
    "recontextualize": "Sample a new context, embed anew, and switch.",
    "rollback": "Return to the context before the last one.",
    "tune": "Choose the weight of hybrid search by judged queries.",
    "evaluate": "Compare a model with baselines on your queries.",
    "models": "List models: bundled, installed, worth a download.",
    "convert": "Convert a published model.",
    "demo": "Index and search this documentation, beside plain search.",
    "serve": "Serve collections over HTTP, with a page to search.",
    "mcp": "Serve collections to coding agents (MCP).",
    "doctor": "Show what is installed, and test the bundled model.",
}


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
      cde-rag demo                                # search this documentation
      cde-rag index notes/ notes.faiss            # a folder of text and Markdown
      cde-rag search notes.faiss "how do I …"

    Data goes to stdout (as JSON with --json), everything else to stderr. Exit codes: 0 success, 1 error, 2 wrong usage,
    130 stopped by Ctrl-C; 3, from drift only, a new context is worth it.
    """


for command in (
    index.index,
    collections.search,
    collections.count,
    documents.inspect,
    documents.list_,
    documents.get,
    documents.delete,
    collections.verify,
    collections.reindex,
    upgrade.upgrade,
    audit.audit,
    audit.stamp,
    reembed.reembed,
    reembed.release,
    copies.export,
    copies.import_,
    copies.backup,
    copies.restore,
    drift.drift,
    contexts.recontextualize,
    contexts.rollback,
    tune.tune,
    evaluate.evaluate,
    models.models,
    convert.convert,
    demo.demo,
    serve.serve,
    serve.mcp,
    doctor.doctor,
):
    name = command.__name__.rstrip("_")
    app.command(name, short_help=_SHORT[name])(command)
moved(app, "mteb", "python -m lab.mteb run")

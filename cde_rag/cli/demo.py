"""The command demo."""

import shutil
import sys
from collections.abc import Collection as Several
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, ProgressOption, hits_json, one_line, print_fields, print_json, progress_bar
from cde_rag.errors import MissingExtraError

if TYPE_CHECKING:
    from cde_rag.cli.demo_collections import Demo
    from cde_rag.indexing.upsert import Progress

HEADINGS = {"hybrid": "own context + words", "own": "own context", "null": "null context", "bm25": "BM25"}
SPACES = {"own": "its own context", "null": "the null context, to compare with"}
SHOWN = 5  # of the committed questions
ENOUGH = 0.8  # share of the committed questions that the own context has to answer
WIDTH = (120, 24)  # columns and lines, where there is no terminal
GAP = 2  # characters between columns


def demo(
    query: Annotated[str | None, typer.Option(metavar="TEXT", help="Search for this, and exit.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits per question.")] = 5,
    check: Annotated[
        bool, typer.Option("--check", help="Measure the share of twenty questions answered by one of the first 5 hits.")
    ] = False,
    path: Annotated[Path | None, typer.Option(help="Folder of the index. [default: your cache folder]")] = None,
    model: Annotated[str, typer.Option(help="Bundled name or folder.")] = "cde-mini",
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index the documentation of this Python and its packages, and search it.

    The first run indexes some thousands of docstrings, twice: in their own context, and in the null context, to
    compare with. Answers are ranked by vectors and by words; beside them stands what each finds alone. Later runs open
    what is stored.

    \b
    Examples:
      cde-rag demo                                            # some questions, then yours
      cde-rag demo --query "put a zip file together"
      cde-rag demo --query "measure how long my code takes" --json | jq -r '.hits[].id'
      cde-rag demo --check
    """
    with closing(_opened(path, model, shown=progress)) as opened:
        if check:
            _print_check(opened.check(), as_json=as_json)
        elif query is not None and as_json:
            print_json(hits_json(opened.ask(query, k, systems=["hybrid"])["hybrid"]))
        elif query is not None:
            _print_answers(opened, query, k)
        elif as_json:
            raise typer.BadParameter("it needs --query or --check", param_hint="--json")
        else:
            _converse(opened, k)


def _opened(path: Path | None, model: str, *, shown: bool | None) -> "Demo":
    from cde_rag.cli.demo_collections import COLLECTIONS, Demo, default_folder

    with progress_bar("index", "documents", shown=shown) as update:

        def on_progress(name: str, progress: "Progress") -> None:
            if not progress.done:
                found = f"{progress.total:,} passages" if progress.total else "documentation"
                typer.echo(f"Indexing {found} in {SPACES[name]} (minutes on two cores, once).", err=True)
            total = progress.total or 0
            update(COLLECTIONS.index(name) * total + progress.done, len(COLLECTIONS) * total or None)

        return Demo(path or default_folder(), model=model, on_progress=on_progress)


def _converse(opened: "Demo", k: int) -> None:
    from cde_rag.evaluation.demo_questions import questions

    version = ".".join(map(str, sys.version_info[:3]))
    typer.echo(f"{opened.own.count():,} entries from the documentation of Python {version} and its packages.")
    typer.echo("✓ is known to answer, · is not. Here a context changes little of what is found: --check counts.")
    for question in questions()[:SHOWN]:
        _print_answers(opened, question.text, k, right=question.answers)
    if not sys.stdin.isatty():
        return
    typer.echo("\nNow yours; an empty line ends.")
    while question := _typed():
        _print_answers(opened, question, k)


def _typed() -> str:
    try:
        return input("\n? ").strip()
    except EOFError:
        return ""


def _print_answers(opened: "Demo", question: str, k: int, *, right: Several[str] = ()) -> None:
    """The hits of each system in columns; those that are known to be right are marked."""
    from cde_rag.cli.demo_collections import STORED, SYSTEMS

    try:
        hits = opened.ask(question, k, systems=SYSTEMS)
    except MissingExtraError as error:
        hits = opened.ask(question, k, systems=STORED)
        typer.echo(f"Without BM25: {error}", err=True)
    width = (shutil.get_terminal_size(WIDTH).columns - GAP * (len(hits) - 1)) // len(hits)
    columns = [
        [HEADINGS[system], *(f"{_mark(hit.id, right)}{hit.score:.3f} {hit.title}" for hit in found)]
        for system, found in hits.items()
    ]
    typer.echo(f"\n{question}")
    for row in zip_longest(*columns, fillvalue=""):
        typer.echo((" " * GAP).join(f"{one_line(cell, width):<{width}}" for cell in row).rstrip())


def _mark(entry: str, right: Several[str]) -> str:
    """Return the mark of an entry: right, not right, or empty if the answers are unknown."""
    if not right:
        return ""
    return "✓ " if entry in right else "· "


def _print_check(shares: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        print_json({"hit@5": shares})
    else:
        typer.echo("Share of twenty questions that one of the first 5 hits answers:")
        print_fields({HEADINGS[system]: f"{share:.2f}" for system, share in shares.items()})
    if shares["own"] < ENOUGH:
        raise typer.Exit(1)

"""The command demo."""

import shutil
import sys
from collections.abc import Collection as Several
from collections.abc import Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, ProgressOption, hits_json, one_line, print_json, progress_bar

if TYPE_CHECKING:
    from cde_rag.cli.demo_collections import Demo, QuestionRanks
    from cde_rag.indexing.upsert import Progress

HEADINGS = {"hybrid": "context + words", "own": "context", "plain": "plain vectors", "bm25": "words (BM25)"}
SPACES = {"own": "in its own context", "plain": "as plain vectors, to compare with"}
SHOWN = 3  # of the committed questions
FIRST = 5  # hits among which an answer is to be
ENOUGH = 0.8  # share of the committed questions that the own context has to answer
WIDTH = (120, 24)  # columns and lines, where there is no terminal
GAP = 2  # characters between columns


def demo(
    query: Annotated[str | None, typer.Option(metavar="TEXT", help="Search for this, and exit.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits per question.")] = 5,
    check: Annotated[bool, typer.Option("--check", help="Print the score of the twenty questions, and exit.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Index all of the standard library and the installed packages: minutes, once."),
    ] = False,
    path: Annotated[Path | None, typer.Option(help="Folder of the index. [default: your cache folder]")] = None,
    model: Annotated[str, typer.Option(help="Bundled name or folder.")] = "cde-mini",
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index a part of this Python's documentation, and search it in four ways.

    The pages are modules of the standard library, the passages their docstrings, about a thousand. They are indexed in
    their own context and, for comparison, as plain vectors, in about a minute on two cores. The command prints the
    score of twenty questions with known answers (for context and words together, context, plain vectors, and words by
    BM25), the questions that context answers better or worse, and a conclusion; then some answers, and yours. Later
    runs open the stored index.

    \b
    Examples:
      cde-rag demo  # some questions, then yours
      cde-rag demo --query "put a zip file together"
      cde-rag demo --query "measure how long my code takes" --json \\
        | jq -r '.hits[].id'
      cde-rag demo --check
    """
    with closing(_opened(path, model, everything=everything, shown=progress)) as opened:
        if check:
            _print_check(opened.ranks(), as_json=as_json)
        elif query is not None and as_json:
            print_json(hits_json(opened.ask(query, k, systems=["hybrid"])["hybrid"]))
        elif query is not None:
            _print_answers(opened, query, k)
        elif as_json:
            raise typer.BadParameter("it needs --query or --check", param_hint="--json")
        else:
            _interactive(opened, k)


def _opened(path: Path | None, model: str, *, everything: bool, shown: bool | None) -> "Demo":
    from cde_rag.cli.demo_collections import COLLECTIONS, Demo, default_folder

    with progress_bar("index", "passages", shown=shown) as update:

        def on_progress(name: str, progress: "Progress") -> None:
            if not progress.done:
                found = f"{progress.total:,} passages" if progress.total else "documentation"
                typer.echo(f"Indexing {found} {SPACES[name]} (once).", err=True)
            total = progress.total or 0
            update(COLLECTIONS.index(name) * total + progress.done, len(COLLECTIONS) * total or None)

        place = path or default_folder() / ("all" if everything else "part")
        return Demo(place, model=model, everything=everything, on_progress=on_progress)


def _interactive(opened: "Demo", k: int) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    ranks = opened.ranks()
    typer.echo(f"{opened.own.count():,} entries from the documentation of Python {version}.\n")
    _print_scores(ranks)
    _print_changes(ranks)
    typer.echo(f"\n{_conclusion(ranks)}")
    typer.echo("\nThe first hits; ✓ is known to answer, · is not.")
    for rank in ranks[:SHOWN]:
        _print_answers(opened, rank.question.text, k, right=rank.question.answers)
    if not sys.stdin.isatty():
        return
    typer.echo("\nNow yours; an empty line ends.")
    while question := _read_question():
        _print_answers(opened, question, k)


def _read_question() -> str:
    try:
        return input("\n? ").strip()
    except EOFError:
        return ""


def _print_answers(opened: "Demo", question: str, k: int, *, right: Several[str] = ()) -> None:
    """The hits of each system in columns; those that are known to be right are marked."""
    from cde_rag.cli.demo_collections import SYSTEMS

    hits = opened.ask(question, k, systems=SYSTEMS)
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


def _shares(ranks: "Sequence[QuestionRanks]", first: int) -> dict[str, float]:
    """Return, for each system, the share of questions that one of its first hits answers."""
    found = {system: [rank.of[system] for rank in ranks] for system in HEADINGS}
    return {
        system: sum(place is not None and place <= first for place in places) / len(ranks)
        for system, places in found.items()
    }


def _print_scores(ranks: "Sequence[QuestionRanks]") -> None:
    best, good = _shares(ranks, 1), _shares(ranks, FIRST)
    width = max(map(len, HEADINGS.values()))
    typer.echo(f"{len(ranks)} questions{'':{width - 7}}  answered by the first hit   by one of the first {FIRST}")
    for system, heading in HEADINGS.items():
        first, five = (round(shares[system] * len(ranks)) for shares in (best, good))
        typer.echo(f"{heading:<{width}}  {first:>25}   {five:>21}")


def _print_changes(ranks: "Sequence[QuestionRanks]") -> None:
    """Print the questions whose answer context moved, in either direction."""
    moved = [rank for rank in ranks if rank.of["own"] != rank.of["plain"]]
    typer.echo(f"\nContext moved the answer to {len(moved)} of them (rank by plain vectors → with context):")
    far = sys.maxsize
    for rank in sorted(moved, key=lambda one: (one.of["own"] or far) - (one.of["plain"] or far)):
        before, after = (str(rank.of[system] or "none of 10") for system in ("plain", "own"))
        typer.echo(f"  {before:>10} → {after:<10}  {rank.question.text}")


def _conclusion(ranks: "Sequence[QuestionRanks]") -> str:
    """Name the ways that answer most by the first hit, the effects of words and context, and the next commands."""
    first = {system: round(share * len(ranks)) for system, share in _shares(ranks, 1).items()}
    most = max(first.values())
    best = " and ".join(HEADINGS[system] for system in HEADINGS if first[system] == most)
    by_words, by_context = first["hybrid"] - first["own"], first["own"] - first["plain"]
    words = {
        -1: f"Words cost {-by_words}, probably since the questions paraphrase: they share few words with their answers",
        0: "Words changed nothing in sum",
        1: f"Words add {by_words}",
    }
    context = {
        -1: f"Context costs {-by_context} here",
        0: "Context changed nothing in sum here",
        1: f"Context adds {by_context} here",
    }
    return (
        f"By the first hit, most is answered by {best}: {most} of {len(ranks)}. {words[_sign(by_words)]}. "
        f"{context[_sign(by_context)]}; it gains most on documentation whose queries name page and section "
        "(docs/models/cde-mini-1.md).\n"
        "For your own collection, `cde-rag tune COLLECTION JUDGED` fits the weight of words, and `cde-rag evaluate` "
        "compares the ways."
    )


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _print_check(ranks: "Sequence[QuestionRanks]", *, as_json: bool) -> None:
    shares = _shares(ranks, FIRST)
    if as_json:
        print_json({"hit@1": _shares(ranks, 1), f"hit@{FIRST}": shares})
    else:
        _print_scores(ranks)
    if shares["own"] < ENOUGH:
        raise typer.Exit(1)

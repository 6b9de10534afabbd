"""The command demo."""

import shutil
import sys
from collections.abc import Collection as Several
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, ProgressOption, hits_json, one_line, print_json, progress_bar

if TYPE_CHECKING:
    from cde_rag.cli.demo_collections import Demo, QuestionRanks
    from cde_rag.indexing.upsert import Progress
    from cde_rag.records import Hit

KINDS = {"questions": "questions in users' words", "sections": "names of page and section"}
HEADINGS = {"hybrid": "context + words", "own": "context", "plain": "plain vectors", "bm25": "words (BM25)"}
SPACES = {"own": "in its own context", "plain": "as plain vectors, to compare with"}
SHOWN = 2  # of the twenty questions
FIRST = 5  # hits among which an answer is to be
ENOUGH = 0.8  # share of the twenty questions that the own context has to answer
WIDTH = (120, 24)  # columns and lines, where there is no terminal
GAP = 2  # characters between columns
NARROWEST = 23  # characters of a column; ways with fewer stand under each other


def demo(
    query: Annotated[str | None, typer.Option(metavar="TEXT", help="Search for this, and exit.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits per question.")] = 5,
    check: Annotated[bool, typer.Option("--check", help="Print the scores, and exit.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Index all docstrings of the library and the packages: minutes, once."),
    ] = False,
    path: Annotated[Path | None, typer.Option(help="Folder of the index. [default: your cache folder]")] = None,
    model: Annotated[str, typer.Option(help="Listed by cde-rag models.")] = "cde-mini",
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index documentation of this Python and its packages, and search it in four ways.

    The passages are docstrings of the standard library and sections of the packages' READMEs, some 1,600. They are
    indexed in their own context and, for comparison, as plain vectors, in about a minute on two cores. The command
    prints how many questions with known answers are answered by context and words together, context, plain vectors, and
    words by BM25: twenty in users' words, which name no page, and the names of page and section. Then the questions
    that context answers better or worse, a conclusion, some answers, and yours. Later runs open the stored index.

    \b
    Examples:
      cde-rag demo  # some questions, then yours
      cde-rag demo --query "put a zip file together"
      cde-rag demo --query "measure how long my code takes" --json \\
        | jq -r '.hits[].id'
      cde-rag demo --check
    """
    if query is not None and not query.strip():
        raise typer.BadParameter("it is blank", param_hint="--query")
    if check and query is not None:
        raise typer.BadParameter("it searches for nothing; leave it or --query out", param_hint="--check")
    if as_json and not check and query is None:
        raise typer.BadParameter("it needs --query or --check", param_hint="--json")
    with closing(_opened(path, model, everything=everything, shown=progress)) as opened:
        if check:
            _print_check({kind: opened.ranks(kind) for kind in KINDS}, as_json=as_json)
        elif query is not None and as_json:
            print_json(hits_json(opened.ask(query, k, systems=["hybrid"])["hybrid"]))
        elif query is not None:
            _print_answers(opened, query, k)
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
    ranks = {kind: opened.ranks(kind) for kind in KINDS}
    typer.echo(f"{opened.own.count():,} passages from the documentation of Python {version} and its packages.\n")
    _print_scores(ranks)
    _print_changes(ranks["questions"])
    typer.echo(f"\n{_conclusion(ranks)}")
    typer.echo("\nThe first hits; ✓ is known to answer, · is not.")
    for rank in [*ranks["questions"][:SHOWN], *ranks["sections"][:1]]:
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
    """Print the hits of each system, in columns where they fit; those that are known to be right are marked."""
    from cde_rag.cli.demo_collections import SYSTEMS

    hits = opened.ask(question, k, systems=SYSTEMS)
    columns = [
        [HEADINGS[system], *(f"{_mark(hit.id, right)}{hit.score:.3f} {_name(hit)}" for hit in found)]
        for system, found in hits.items()
    ]
    typer.echo(f"\n{question}")
    whole = shutil.get_terminal_size(WIDTH).columns
    width = (whole - GAP * (len(columns) - 1)) // len(columns)
    if width < NARROWEST:
        for heading, *lines in columns:
            typer.echo("\n".join([heading, *(" " * GAP + one_line(line, whole - GAP) for line in lines)]))
        return
    for row in zip_longest(*columns, fillvalue=""):
        typer.echo((" " * GAP).join(f"{one_line(cell, width):<{width}}" for cell in row).rstrip())


def _name(hit: "Hit") -> str:
    """Return the signature of a docstring's object, or package and heading of a section."""
    from cde_rag.evaluation.demo_corpus import PARENT_KEY

    return f"{hit.metadata[PARENT_KEY]}: {section}" if (section := hit.metadata.get("section")) else hit.title


def _mark(entry: str, right: Several[str]) -> str:
    """Return the mark of an entry: right, not right, or empty if the answers are unknown."""
    if not right:
        return ""
    return "✓ " if entry in right else "· "


def _answered(ranks: "Sequence[QuestionRanks]", first: int) -> dict[str, int]:
    """Return, for each system, the number of questions that one of its first hits answers."""
    found = {system: [rank.of[system] for rank in ranks] for system in HEADINGS}
    return {system: sum(place is not None and place <= first for place in places) for system, places in found.items()}


def _print_scores(ranks: "Mapping[str, Sequence[QuestionRanks]]") -> None:
    width = max(map(len, HEADINGS.values()))
    titles = [f"{len(some)} {KINDS[kind]}" for kind, some in ranks.items()]
    typer.echo("  ".join([f"{'answered by':<{width}}", *(f"{title:>28}" for title in titles)]))
    typer.echo(" " * width + f"  {'the first hit':>16} {f'the first {FIRST}':>11}" * len(ranks))
    for system, heading in HEADINGS.items():
        numbers = [(_answered(some, 1)[system], _answered(some, FIRST)[system]) for some in ranks.values()]
        typer.echo(f"{heading:<{width}}" + "".join(f"  {first:>16} {five:>11}" for first, five in numbers))


def _print_changes(ranks: "Sequence[QuestionRanks]") -> None:
    """Print the questions whose answer context moved, in either direction."""
    moved = [rank for rank in ranks if rank.of["own"] != rank.of["plain"]]
    few = f"{len(moved)} of the {len(ranks)} questions"
    typer.echo(f"\nContext moved the answer to {few} (rank by plain vectors → with context):")
    far = sys.maxsize
    for rank in sorted(moved, key=lambda one: (one.of["own"] or far) - (one.of["plain"] or far)):
        before, after = (str(rank.of[system] or "none of 10") for system in ("plain", "own"))
        typer.echo(f"  {before:>10} → {after:<10}  {rank.question.text}")


def _conclusion(ranks: "Mapping[str, Sequence[QuestionRanks]]") -> str:
    """Name, for each kind of question, the ways that answer most and the effects of words and context."""
    said = [f"Of {len(some)} {KINDS[kind]}, {_comparison(some)}." for kind, some in ranks.items()]
    return "\n".join(
        [
            *said,
            "For your own collection, `cde-rag tune COLLECTION JUDGED` fits the weight of words, and",
            "`cde-rag evaluate` compares the ways.",
        ]
    )


def _comparison(ranks: "Sequence[QuestionRanks]") -> str:
    first = _answered(ranks, 1)
    most = max(first.values())
    best = " or with ".join(HEADINGS[system] for system in HEADINGS if first[system] == most)
    by_context, by_words = first["own"] - first["plain"], first["hybrid"] - first["own"]
    context = (
        f"context {'adds' if by_context > 0 else 'costs'} {abs(by_context)}" if by_context else "context adds none"
    )
    words = f"words {'add' if by_words > 0 else 'cost'} {abs(by_words)}" if by_words else "words add none"
    return f"the first hit answers the most with {best}, {most}; {context}, {words}"


def _print_check(ranks: "Mapping[str, Sequence[QuestionRanks]]", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                kind: {
                    f"hit@{first}": {system: number / len(some) for system, number in _answered(some, first).items()}
                    for first in (1, FIRST)
                }
                for kind, some in ranks.items()
                if some
            }
        )
    else:
        _print_scores(ranks)
    asked = ranks["questions"]
    if _answered(asked, FIRST)["own"] < ENOUGH * len(asked):
        raise typer.Exit(1)

"""The command questions."""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, print_json, printable
from cde_rag.errors import counted
from cde_rag_training.cli.prepare import SURROGATE, surrogate_of
from cde_rag_training.cli.recipes import tell_skipped

if TYPE_CHECKING:
    from cde_rag.evaluation.question_folder import QuestionCorpus
    from cde_rag_training.clustering.surrogate import Surrogate
    from cde_rag_training.questions.question_pairs import PairsReport

LOW = 0.95  # share of a corpus's questions with an answer, below which its line is shown


def questions(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Folder with questions and pages, or a published set of questions.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the training files.")],
    corpus: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this corpus of SOURCE; repeatable.")
    ] = None,
    pages: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For a published set: FOLDER/CORPUS has the pages, such as a clone."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Remove texts of this evaluation set, or of all sets in this folder; repeatable."
        ),
    ] = None,
    surrogate: Annotated[
        str, typer.Option(help=f"Embedder that finds near-duplicates: none: keep them; {SURROGATE}")
    ] = "minilm",
    max_characters: Annotated[int, typer.Option(min=1, help="Maximum length of a passage.")] = 600,
    as_json: JsonOption = False,
) -> None:
    """Build training pairs from questions whose answers are quoted from pages.

    SOURCE holds questions.jsonl and pages.jsonl.gz (or a folder pages/), or a folder of that form for each corpus. A
    line of questions.jsonl:

    \b
      {"question": "can I undo a release", "kind": "plain",
       "answers": [{"page": "ops/rollback.md",
                    "quote": "helm rollback returns to an earlier one"}]}

    \b
    A line of pages.jsonl.gz: {"path": "ops/rollback.md", "text": "..."}
    Optional sites.csv: site,split,form,licence,source,commit

    Pages are cut into passages by the rules of version 0.2. A passage answers if it holds the quote, or else at least
    60 % of its words in order. OUT gets a file of pairs for each split, such as train.jsonl.gz, for cde-rag-train
    prepare; all passages, for hard negatives; and report.json. Pairs for training that are near-duplicates of the
    evaluation sets or of a corpus of another split are removed.

    \b
    Examples:
      cde-rag-train questions my-questions pairs
      cde-rag-train questions data/train/questions pairs \\
        --against data/eval --json
      cde-rag-train questions published.jsonl.gz pairs \\
        --pages clones --corpus flask
      cde-rag-train prepare pairs/train.jsonl.gz --output prepared
    """
    from cde_rag_training.questions.question_pairs import write_pairs

    if against and surrogate == "none":
        raise typer.BadParameter("it needs a surrogate; leave one of them out", param_hint="--against")
    csv.field_size_limit(sys.maxsize)
    found = _read(source, corpus or [], pages)
    report = write_pairs(
        found,
        output,
        max_characters=max_characters,
        surrogate=_surrogate(surrogate, output),
        against=against or [],
    )
    if as_json:
        print_json(report.to_json() | {"folder": str(output.resolve())})
    else:
        _tell(report)
        for name, count in report.files.items():
            typer.echo(f"{output / name}: {counted(count, 'pair')}")


def _read(source: Path, names: list[str], pages: Path | None) -> "list[QuestionCorpus]":
    from cde_rag.evaluation.question_folder import read_corpora
    from cde_rag_training.questions.published_questions import read_published

    if not source.is_file():
        if pages is not None:
            raise typer.BadParameter(f"{source} has pages of its own; leave it out", param_hint="--pages")
        return list(read_corpora(source, names))
    if pages is None:
        raise typer.BadParameter(f"name the folder with the pages of {source}", param_hint="--pages")
    rebuilt = read_published(source, pages, names)
    tell_skipped(len(rebuilt.changes), rebuilt.changes)
    return rebuilt.corpora


def _surrogate(name: str, output: Path) -> "Surrogate | None":
    """Return the surrogate; vectors that do not depend on the texts around are kept in OUT/cache."""
    from cde_rag_training.clustering.surrogate import cached

    if name == "none":
        return None
    key, embed = surrogate_of(name, None, 256)
    return cached(embed, key, output / "cache") if key else embed


def _tell(report: "PairsReport") -> None:
    """Print questions and answers by kind, corpora with many questions without one, and removed pairs to stderr."""
    for kind, count in report.kinds.items():
        typer.echo(f"  {kind or 'no kind':<12} {count.found:>7,} of {counted(count.questions, 'question')}", err=True)
    for one in report.corpora:
        if one.count.found < LOW * one.count.questions:
            missing = ", ".join(one.not_found[:3])
            typer.echo(
                printable(f"  {one.corpus}: {one.count.found:,} of {one.count.questions:,}; none for {missing} …"),
                err=True,
            )
    for where, count in report.removed.items():
        typer.echo(printable(f"  removed, as in {where}: {counted(count, 'pair')}"), err=True)
    if report.passed_over:
        typer.echo(printable(f"  no evaluation sets: {', '.join(report.passed_over)}"), err=True)

"""The command adapt."""

import csv
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import INTERRUPTED, JsonOption, ProgressOption, one_line, print_json, printable
from cde_rag_training.cli.recipes import tell_skipped

if TYPE_CHECKING:
    from cde_rag_training.adapt.corpus_pairs import PairReport

NOT_BETTER = 3  # exit code: done, and the model that was there is to be kept
WIDTH = 110  # characters of a line of text


def adapt(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files or folders of documents, as for cde-rag index.")
    ],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder for the adapted model.")],
    queries: Annotated[
        Path | None,
        typer.Option(metavar="JSONL", help="Your own queries: lines with query, and the document's id or its text."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit, comparison included.")] = 10.0,
    model: Annotated[str, typer.Option(help="Start model: a bundled name, a folder, or minilm.")] = "cde-mini",
    parent_key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the longer document. [default: for text files the file]"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unusable records.")] = False,
    id_field: Annotated[str | None, typer.Option(metavar="FIELD", help="[default: id, else _id]")] = None,
    text_field: Annotated[str, typer.Option(metavar="FIELD")] = "text",
    title_field: Annotated[str, typer.Option(metavar="FIELD")] = "title",
    max_characters: Annotated[int, typer.Option(min=1, help="Maximum length of a passage of text files.")] = 600,
    max_records: Annotated[int, typer.Option(min=1, help="Sample larger corpora down to this size.")] = 8000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the training pairs and stop.")] = False,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt a model to your own documents, and measure the gain in retrieval.

    Training queries are generated from the documents: titles, headings, first sentences and keywords. Some parents are
    held out, and the adapted model is compared with the start model and BM25 on their queries. Real queries are a
    better test: with --queries, only these are used for the comparison.

    Exit code 0: better, and FOLDER is the model. 3: not better, keep the start model; the adapted one is in
    FOLDER/not-better. To resume an interrupted command, run it again.

    \b
    Examples:
      cde-rag-train adapt docs/ --output my-model
      cde-rag-train adapt corpus.jsonl --output my-model \\
        --parent-key page --dry-run
      cde-rag-train adapt corpus.jsonl --output my-model \\
        --queries asked.jsonl --minutes 30
      cde-rag index docs/ docs.faiss --model my-model
    """
    from cde_rag.readers import Fields, RecordReader
    from cde_rag_training.adapt.material import MaterialConfig, material

    csv.field_size_limit(sys.maxsize)
    fields = Fields(id=id_field, text=text_field, title=title_field, parent=parent_key)
    reader = RecordReader(*sources, fields=fields, skip_bad=skip_bad, max_characters=max_characters)
    found = material(
        reader,
        MaterialConfig(records=max_records, seed=seed),
        parent_key=reader.fields.parent,
        queries=queries,
        name=", ".join(sources),
    )
    tell_skipped(reader.skipped, reader.reports)
    _tell_pairs(found.pairs)
    if dry_run:
        if as_json:
            print_json(asdict(found.pairs))
        return
    from cde_rag_training.adapt.adaptation import AdaptationConfig
    from cde_rag_training.adapt.adaptation import adapt as run

    shown = sys.stderr.isatty() if progress is None else progress
    config = AdaptationConfig(model=model, minutes=minutes, seed=seed)
    try:
        done = run(found, config, output, progress=shown, say=lambda line: typer.echo(f"{line} …", err=True))
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped; {output} keeps the finished steps. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(str(done))
        typer.echo(f"The model is in {done.model}" + ("." if done.comparison.better else ", to look at."))
    if not done.comparison.better:
        raise typer.Exit(NOT_BETTER)


def _tell_pairs(pairs: "PairReport") -> None:
    """Print statistics and examples of the pairs to stderr."""
    made = ", ".join(f"{count:,} by {kind}" for kind, count in pairs.made.items())
    typer.echo(f"Pairs: {made}", err=True)
    for reason, count in pairs.dropped.items():
        typer.echo(f"  no pair: {count:,} × {reason}", err=True)
    for one in pairs.examples:
        text = one_line(one.text, max(20, WIDTH - len(one.query)))
        typer.echo(f"  {one.kind:<8}  {printable(' '.join(one.query.split()))} → {text}", err=True)

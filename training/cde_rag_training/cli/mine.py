"""The command mine."""

import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, ProgressOption, print_json
from cde_rag.errors import counted
from cde_rag_training.cli.prepare import SURROGATE, check_surrogate_device, surrogate_of
from cde_rag_training.cli.recipes import (
    ColumnsOption,
    PairsArgument,
    RowsOption,
    StreamOption,
    columns_of,
    settings_told,
    tell_skipped,
)


def mine(
    files: PairsArgument,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="JSONL file of the pairs, to prepare.")],
    by: Annotated[str, typer.Option(help=f"Ranking: bm25; {SURROGATE}")] = "bm25",
    first: Annotated[int, typer.Option(min=1, help="First rank of the window; 1 is the best wrong one.")] = 10,
    last: Annotated[int, typer.Option(min=1, help="Last rank of the window.")] = 100,
    count: Annotated[int, typer.Option(min=1, help="Hard negatives of a pair, at most.")] = 7,
    margin: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Least distance below the own document's score, as its share.")
    ] = 0.05,
    best: Annotated[bool, typer.Option("--best", help="Take the best of the window, not random ones.")] = False,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Source of rows without one. [default: the file's name]")
    ] = None,
    columns: ColumnsOption = None,
    rows: RowsOption = None,
    stream: StreamOption = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unusable rows.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="Device of the model, such as cuda. [default: cpu for minilm, cuda if any for models]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the draws.")] = 0,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add hard negatives to pairs: documents of the same source that rank high and do not answer.

    Documents that score nearly as high as the pair's own, or higher, may be answers that nobody noted: they are left
    out. Hard negatives that a pair has already stay.

    \b
    Examples:
      cde-rag-train mine pairs.jsonl --output mined.jsonl
      cde-rag-train mine pairs.jsonl --output mined.jsonl \\
        --by minilm --first 30 --last 200 --count 15
    """
    from cde_rag._files import write_durably
    from cde_rag.readers.reader import JSONL
    from cde_rag_training.data import mining
    from cde_rag_training.data.reading import PairReader

    check_surrogate_device(device, by)
    if output.suffix not in JSONL:
        raise typer.BadParameter(f"{output} would hold JSONL; end its name in .jsonl", param_hint="--output")
    output.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    csv.field_size_limit(sys.maxsize)
    reader = PairReader(*files, columns=columns_of(columns), source=source, skip_bad=skip_bad, rows=rows, stream=stream)
    with settings_told():
        draw = "best" if best else "random"
        config = mining.MiningConfig(first=first, last=last, count=count, margin=margin, draw=draw, seed=seed)
    pairs = list(reader)
    tell_skipped(reader.skipped, reader.reports)
    scores = mining.bm25_scores
    if by != "bm25":
        scores = mining.surrogate_scores(surrogate_of(by, pairs, 256, device=device)[1])
    found = mining.mine(pairs, scores, config, progress=sys.stderr.isatty() if progress is None else progress)
    written = ({name: value for name, value in asdict(pair).items() if value is not None} for pair in found.pairs)
    write_durably(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in written).encode())
    if as_json:
        print_json({"file": str(output.resolve()), "found": found.found, "without": found.without})
        return
    for name, number in found.found.items():
        without = counted(found.without[name], "pair")
        typer.echo(f"{name}: {counted(number, 'hard negative')}; {without} without", err=True)
    typer.echo(f"{output}: {counted(len(found.pairs), 'pair')}")

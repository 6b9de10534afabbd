"""The command inspect."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, one_line, print_fields, print_json
from cde_rag_training.cli.recipes import ConfigOption, PreparedArgument, PresetOption, chosen_recipe, settings_told

if TYPE_CHECKING:
    from cde_rag_training.corpora.batch_report import BatchReport

WIDTH = 110  # characters of a line of text


def inspect(
    prepared: PreparedArgument,
    update: Annotated[int, typer.Option(min=0, help="Number of the update, from 0.")] = 0,
    config: ConfigOption = None,
    preset: PresetOption = None,
    phase: Annotated[int, typer.Option(min=0, help="Phase of the recipe, from 0.")] = 0,
    examples: Annotated[int, typer.Option(min=0, help="Pairs and context documents to show, the hardest first.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show one training batch: queries and documents, their difficulty, filtered negatives by rule, the context.

    Similarities are cosines of the surrogate. The difficulty of a batch is the mean over its queries and other
    documents; a batch of one cluster is harder than one of random pairs.

    \b
    Examples:
      cde-rag-train inspect prepared
      cde-rag-train inspect prepared --preset cde-mini --update 17 --examples 10
      cde-rag-train inspect prepared --json | jq .difficulty
    """
    from cde_rag_training.corpora.batch_report import report_batch
    from cde_rag_training.data.prepared import Prepared
    from cde_rag_training.loop.trainer import batches_of

    recipe = chosen_recipe(config, preset)
    if phase >= len(recipe.phases):
        raise typer.BadParameter(f"the recipe has {len(recipe.phases)} phases, from 0", param_hint="--phase")
    chosen, data = recipe.phases[phase], Prepared.load(prepared)
    with settings_told():
        batch = batches_of(data, chosen, seed=recipe.seed + phase).batch(update)
        found = report_batch(data, batch, chosen.filter, update=update, examples=examples)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)


def _print(found: "BatchReport") -> None:
    print_fields(
        {
            "batch": f"update {found.update}: {found.size} pairs of {found.source}, drawn as {found.corpus}",
            "documents shown": found.shown or "as they are",
            "parents": found.parents,
            "with siblings": f"{found.with_siblings} of {found.size} documents",
            "hard negatives": f"{found.hard_negatives} of each pair, {found.filled} of them random documents",
            "context": f"{found.context} documents" if found.context else "null",
            "difficulty": f"{found.difficulty:.3f}; nearest other document {found.hardest:.3f}, own {found.own:.3f}",
            "filtered": "; ".join(f"{name}: {100 * share:.2f} %" for name, share in found.filtered.items()),
            "loses its hardest": f"{100 * found.loses_hardest:.0f} % of queries",
        }
    )
    for pair in found.pairs:
        asked = f"{pair.parent} | {pair.query}" if pair.parent else pair.query
        typer.echo("")
        typer.echo(f"query     {one_line(asked, WIDTH)}")
        typer.echo(f"  {pair.similarity:.3f}   {one_line(pair.document, WIDTH)}")
        reason = f"  [filtered: {pair.filtered}]" if pair.filtered else ""
        typer.echo(f"  {pair.hardest_similarity:.3f} ≠ {one_line(pair.hardest, WIDTH)}{reason}")
    for text in found.context_examples:
        typer.echo(f"context   {one_line(text, WIDTH)}")

"""The command drift."""

from typing import Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, ModelOption, TenantOption, existing, open_collection
from cde_rag.cli.output import JsonOption, nothing_new, print_fields, print_json
from cde_rag.errors import counted

PAYS = 3  # exit code; not that of an error (1), of wrong usage (2) or of Ctrl-C (130)


def drift(
    collection: CollectionArgument,
    seed: Annotated[int, typer.Option(help="Random seed of the new context's sample.")] = 0,
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of the new context. [default: 512]")
    ] = None,
    strategy: Annotated[str, typer.Option(help="Sampling of the new context: random, or clusters.")] = "random",
    probes: Annotated[
        int, typer.Option(min=1, help="Number of passages to probe; embeds seven texts per passage, plus a context.")
    ] = 512,
    worth: Annotated[
        float, typer.Option(help="Minimum gain in NDCG@10 that justifies a new context, as a fraction.")
    ] = 0.01,
    tenant: TenantOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the gain of a new context, without judgments and without changing the collection.

    A sample of documents is embedded in the current context, in the one that recontextualize with the same options
    would sample, and in none; the queries are made of their own words. Exit codes, for cron: 0 no need; 3 the
    interval of the gain is above 0 and the estimate at least --worth; 1 and 2 as for every command.

    \b
    Examples:
      cde-rag drift papers.faiss
      cde-rag drift papers.faiss --json; [ $? -eq 3 ] \\
        && cde-rag recontextualize papers.faiss
    """
    if strategy not in ("random", "clusters"):
        raise typer.BadParameter(f"{strategy}; there are random and clusters", param_hint="--strategy")
    with open_collection(existing(collection, tenant), model) as opened:
        if not as_json:
            typer.echo(f"Sampling a context. If it is new, both embed up to {counted(probes, 'passage')}.", err=True)
        found = opened.drift(seed=seed, context_size=context_size, strategy=strategy, probes=probes)
    pays, fields = found.pays(worth), found.to_json()
    if as_json:
        print_json({"pays": pays, **fields})
    elif not found.probes:
        typer.echo(f"Nothing to gain: {nothing_new(found.present.size)}")
    else:
        low, high = found.interval
        verdict = "yes" if pays else "not surely" if high >= worth else "no"
        shown = {
            "gain": f"{found.gain:+.3f} NDCG@10 (90 %: {low:+.3f} … {high:+.3f})",
            "neighbours_kept": f"{found.neighbours_kept:.1%}",
            "elapsed_s": f"{found.elapsed_s:.1f}",
        }
        del fields["interval"]
        print_fields({"pays": verdict} | fields | shown)
    if pays:
        raise typer.Exit(PAYS)

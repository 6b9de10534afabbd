"""The commands recontextualize and rollback."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, ModelOption, TenantOption, existing, open_collection
from cde_rag.cli.output import JsonOption, ProgressOption, print_fields, print_json, progress_bar

if TYPE_CHECKING:
    from cde_rag.generations import Recontextualization
    from cde_rag.writing import Progress


def recontextualize(
    collection: CollectionArgument,
    seed: Annotated[int, typer.Option(help="Of the new context's sample.")] = 0,
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of the new context. [default: 512, or the model's]")
    ] = None,
    strategy: Annotated[str, typer.Option(help="random, or clusters: one document near each of so many centroids.")] = (
        "random"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what it would cost, and change nothing.")] = False,
    tenant: TenantOption = None,
    model: ModelOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sample a new context from a collection's own documents, embed all of them in it, and switch.

    The collection is searched and written in its old context until the switch. Interrupted, the same command goes on
    where it stopped. What was there before stays for rollback.

    \b
    Examples:
      cde-rag recontextualize papers.faiss --dry-run
      cde-rag recontextualize papers.faiss --seed 1
    """
    from cde_rag.recontextualization import estimate
    from cde_rag.recontextualization import recontextualize as run

    if strategy not in ("random", "clusters"):
        raise typer.BadParameter(f"{strategy}; there are random and clusters", param_hint="--strategy")
    with open_collection(existing(collection, tenant), model) as opened:
        if dry_run:
            cost = asdict(estimate(opened))
            print_json(cost) if as_json else print_fields(cost | {"seconds": f"{cost['seconds']:.1f}"})
            return
        with progress_bar("recontextualize", "documents", shown=progress) as update:

            def on_progress(now: "Progress") -> None:
                update(now.done, now.total)

            report = run(opened, seed=seed, context_size=context_size, strategy=strategy, on_progress=on_progress)
    _tell(report, as_json)


def rollback(
    collection: CollectionArgument,
    tenant: TenantOption = None,
    model: ModelOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go back to the context before the last recontextualize.

    What was added since is embedded in it first, and what was deleted stays deleted. Interrupted, the same command goes
    on where it stopped.

    \b
    Example:
      cde-rag rollback papers.faiss
    """
    with (
        open_collection(existing(collection, tenant), model) as opened,
        progress_bar("rollback", "documents", shown=progress) as update,
    ):

        def on_progress(now: "Progress") -> None:
            update(now.done, now.total)

        report = opened.rollback(on_progress=on_progress)
    _tell(report, as_json)


def _tell(report: "Recontextualization", as_json: bool) -> None:
    fields = asdict(report)
    if as_json:
        print_json(fields)
    else:
        print_fields(fields | {"elapsed_s": f"{report.elapsed_s:.1f}"})

"""The command cluster."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.output import JsonOption, one_line, print_json
from cde_rag_training.cli.recipes import PreparedArgument

WIDTH = 100  # characters of a line of queries


def cluster(
    prepared: PreparedArgument,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FOLDER", help="Cluster anew, into this folder.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=2, help="Pairs of a cluster; once for each level. [default: 512, 4096]")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's 100 steps, best of 3, all dimensions.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the first centroids.")] = 0,
    examples: Annotated[int, typer.Option(min=0, help="Clusters to show of each source and level.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Show the clusters of prepared pairs, or make others.

    Similar pairs share a cluster, so that a batch drawn from one is hard. The similarity of a cluster is the mean
    cosine of a query with the documents of the others in it.

    \b
    Examples:
      cde-rag-train cluster prepared
      cde-rag-train cluster prepared --output finer --size 128 --size 1024
    """
    from cde_rag_training.clustering.clusters import LAPTOP, PAPER
    from cde_rag_training.data.cluster_report import recluster, report_clusters
    from cde_rag_training.data.prepared import Prepared

    data = Prepared.load(prepared)
    if output is not None:
        config = replace(PAPER if paper else LAPTOP, seed=seed)
        data = recluster(data, [replace(config, size=one) for one in sorted(size or [512, 4096])], output)
    elif size or paper:
        raise typer.BadParameter("name a folder for the new clusters: --output", param_hint="--size")
    found = report_clusters(data, examples=examples, queries=4)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        sizes = f"{one.smallest} … {one.median} … {one.largest} pairs"
        typer.echo(f"level {one.level}, {one.source}: {one.pairs:,} pairs in {one.clusters:,} clusters of {sizes}")
        for shown in one.examples:
            queries = one_line(" | ".join(shown.queries), WIDTH)
            typer.echo(f"  {shown.pairs:>6} pairs, similarity {shown.similarity:.3f}: {queries}")

"""The commands recontextualize and rollback."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cde_rag.cli.collections import (
    CollectionArgument,
    ModelOption,
    RayOption,
    TenantOption,
    WorkersOption,
    existing,
    on_workers,
    open_collection,
)
from cde_rag.cli.foreign import TextOption, VectorOption, is_foreign
from cde_rag.cli.output import (
    JsonOption,
    ProgressOption,
    clock,
    nothing_new,
    print_fields,
    print_json,
    progress_bar,
    shown_place,
    updating,
)
from cde_rag.cli.reembed import JournalOption, OldContextOption, OldModelOption, rollback_move
from cde_rag.errors import CorpusError, counted

_TIMED = 32  # documents that are embedded to measure the speed
_WORTH_PROBING = 10_000  # documents; the estimate of a smaller collection would take a good part of the run itself
_PROBED = 64

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.evaluation.judged_questions import JudgedQuestion
    from cde_rag.indexing.backfill import Recontextualization
    from cde_rag.indexing.canary import Canary
    from cde_rag.indexing.recontextualization import Estimate


def recontextualize(
    collection: CollectionArgument,
    seed: Annotated[int, typer.Option(help="Random seed of the new context's sample.")] = 0,
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of the new context. [default: 512, or the model's]")
    ] = None,
    strategy: Annotated[str, typer.Option(help="random, or clusters: one passage near each centroid.")] = ("random"),
    windows: Annotated[
        bool | None,
        typer.Option(
            "--windows/--cut",
            help="Embed texts longer than the model's window in windows, or truncate them. [default: as now]",
        ),
    ] = None,
    to_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Move to this model, see cde-rag models. [default: the current one]"),
    ] = None,
    canary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Judged questions that must pass by vectors before the switch.",
        ),
    ] = None,
    may_lose: Annotated[
        int, typer.Option(min=0, help="Maximum number of canary queries that may fail in the new context.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate cost and gain with the current model, and change nothing.")
    ] = False,
    workers: WorkersOption = None,
    ray: RayOption = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sample a new context from a collection's own documents, re-embed all of them, and switch.

    The collection can be searched and written in its old context until the switch. To resume an interrupted command,
    run it again. The old generation is kept for rollback. With --canary it switches only if every query
    that finds one of its documents in the top ten by vectors now also does in the new context.

    \b
    Examples:
      cde-rag recontextualize papers.faiss --dry-run
      cde-rag recontextualize papers.faiss --seed 1
      cde-rag recontextualize papers.faiss --seed 1 --canary judged.jsonl
      cde-rag recontextualize papers.faiss --to-model runs/first/model
      cde-rag recontextualize papers.faiss --workers 8  # embed in eight processes
      cde-rag recontextualize papers.faiss --ray auto  # or on a Ray cluster
    """
    from cde_rag.embedders.contextual import as_model
    from cde_rag.evaluation.judged_questions import read_judged_questions
    from cde_rag.indexing.recontextualization import samples_the_same

    if strategy not in ("random", "clusters"):
        raise typer.BadParameter(f"{strategy}; there are random and clusters", param_hint="--strategy")
    questions = [] if canary is None else read_judged_questions(canary)  # a bad file is found before a model is loaded
    with open_collection(existing(collection, tenant), model) as opened:
        known = _canary(questions, opened, may_lose) if questions else None
        target = None if to_model is None else as_model(to_model)
        if dry_run:
            cost = opened.recontextualize(
                seed=seed, context_size=context_size, strategy=strategy, windows=windows, model=target, dry_run=True
            )
            _print_cost(cost, opened.embedder.context.size, as_json)
            return
        same = to_model is None and samples_the_same(
            opened.store, opened.embedder, seed=seed, context_size=context_size, strategy=strategy, windows=windows
        )
        before = opened.store.manifest().generation
        if opened.count() and not same:
            _print_estimate(opened, collection)
        with progress_bar("recontextualize", "passages", shown=progress) as update, on_workers(opened, workers, ray):
            report = opened.recontextualize(
                seed=seed,
                context_size=context_size,
                strategy=strategy,
                windows=windows,
                model=target,
                canary=known,
                on_progress=updating(update),
            )
    if report.generation == before:
        typer.echo("Nothing to do: the passages that were sampled are the context that it has.", err=True)
    _print_report(report, as_json)


def _print_cost(cost: "Estimate", context_size: int, as_json: bool) -> None:
    """Print the result of a dry run."""
    fields = asdict(cost)
    if as_json:
        print_json(fields)
    elif not cost.documents:
        typer.echo(f"Nothing to do: {nothing_new(context_size)}")
    else:
        shown: dict[str, Any] = {
            "time": f"about {clock(cost.seconds)}",
            "vectors": f"{cost.vector_bytes / 1e6:,.1f} MB",
        }
        del fields["interval"], fields["seconds"], fields["vector_bytes"]
        if cost.gain is None or cost.interval is None:
            del fields["gain"]
        else:
            low, high = cost.interval
            shown["gain"] = f"{cost.gain:+.3f} NDCG@10 (90 %: {low:+.3f} … {high:+.3f})"
        print_fields(fields | shown)


def _print_estimate(opened: "Collection", path: str) -> None:
    """Print the expected time of a run, and the expected gain of a new context or the command that estimates it."""
    from cde_rag.indexing.recontextualization import estimate

    cost = estimate(opened.store, opened.embedder, opened.parent_key, sample=_TIMED)
    typer.echo(f"Embedding {counted(cost.documents, 'passage')} takes about {clock(cost.seconds)}.", err=True)
    if opened.embedder.context.identity.is_plain or opened.embedder.context.is_null:
        return
    if cost.documents < _WORTH_PROBING:
        typer.echo(f"cde-rag drift {shown_place(path)} estimates the gain of a new context.", err=True)
        return
    found = opened.drift(probes=_PROBED)
    low, high = found.interval
    typer.echo(f"A new context gains {found.gain:+.3f} NDCG@10, as drift expects ({low:+.3f} … {high:+.3f}).", err=True)


def rollback(
    collection: CollectionArgument,
    tenant: TenantOption = None,
    model: ModelOption = None,
    old_model: OldModelOption = None,
    from_context: OldContextOption = None,
    text: TextOption = None,
    vector: VectorOption = None,
    journal: JournalOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Return to the context before the last recontextualize, or to the vectors before a reembed.

    Documents added since are embedded in it first, and deleted ones stay deleted. To resume an interrupted command, run
    it again.

    \b
    Examples:
      cde-rag rollback papers.faiss
      cde-rag rollback chroma:chroma_db#papers
    """
    if is_foreign(collection):
        rollback_move(collection, old_model, from_context, text=text, vector=vector, journal=journal, as_json=as_json)
        return
    with (
        open_collection(existing(collection, tenant), model) as opened,
        progress_bar("rollback", "passages", shown=progress) as update,
    ):
        report = opened.rollback(on_progress=updating(update))
    _print_report(report, as_json)


def _canary(questions: "list[JudgedQuestion]", collection: "Collection", may_lose: int) -> "Canary":
    """Return questions with the ids of the records that answer them; the canary itself finds unknown ids."""
    from cde_rag.evaluation.own_questions import find_answers, known_records
    from cde_rag.indexing.canary import Canary

    relevant: dict[str, list[str]] = {each.text: list(each.grades) for each in questions}
    if not all(each.by_id for each in questions):
        found = find_answers(questions, known_records(collection, questions), source="The canary", name="canary")
        if found.dropped:
            why = "; ".join(found.dropped.in_words())
            raise CorpusError(
                f"The canary: expected an answer in the collection for each question, found: {why}. Mend it."
            )
        relevant = {each.text: list(each.grades) for each in found.data.questions}
    return Canary(relevant, may_lose=may_lose)


def _print_report(report: "Recontextualization", as_json: bool) -> None:
    fields = asdict(report)
    if as_json:
        print_json(fields)
    else:
        print_fields(fields | {"elapsed_s": f"{report.elapsed_s:.1f}"})

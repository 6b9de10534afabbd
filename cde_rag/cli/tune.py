"""The command tune."""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, ModelOption, TenantOption, existing, open_collection
from cde_rag.cli.output import JsonOption, print_json, printable, shown_place

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.evaluation.hybrid_weight import WeightChoice


def tune(
    collection: CollectionArgument,
    judged: Annotated[
        Path | None,
        typer.Argument(
            metavar="JUDGED",
            help="Judged questions: lines with question and answers (page and quote, or id), a file saved from the "
            "page of cde-rag serve, or a folder in the layout of BEIR.",
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Write this weight of the vectors, without queries: 1 is vectors alone."),
    ] = None,
    split: Annotated[str, typer.Option(help="Name of the judgments: qrels/SPLIT.tsv.")] = "test",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the weight, and write nothing.")] = False,
    tenant: TenantOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune the weight of vectors and BM25 in hybrid search on judged queries.

    Each query is scored (NDCG@10) at the weight that the other queries chose. If the 95 % interval of the gain is above
    0, the weight chosen by all queries is written to the collection, and hybrid search uses it in every program that
    opens the collection. The command picks the weight closest to the current one among those within one standard error
    of the best. At least 20 queries are needed; some hundred make the choice reliable.

    \b
    Examples:
      cde-rag tune docs.faiss judged.jsonl
      cde-rag tune docs.faiss --weight 0.65      # back to the default
    """
    from cde_rag.collection.settings import HYBRID_WEIGHT

    if (judged is None) == (weight is None):
        raise typer.BadParameter("name a file of judged questions, or --weight", param_hint="JUDGED")
    with contextlib.closing(existing(collection, tenant)) as store:
        place = shown_place(collection)
        if judged is None:
            store.update_settings({HYBRID_WEIGHT: weight})
            print_json({"weight": weight, "written": True}) if as_json else typer.echo(
                f"{place}: hybrid search weighs vectors {weight:g}. Programs that have it open read it when they open "
                "it again."
            )
            return
        choice = _chosen(open_collection(store, model), judged, split)
        write = choice.is_worth_storing and not dry_run
        if write:
            store.update_settings({HYBRID_WEIGHT: choice.weight})
        if as_json:
            print_json(asdict(choice) | {"written": write})
            return
        typer.echo(_described(choice))
        if write:
            typer.echo(
                f"Written to {place}: hybrid search uses {choice.weight:g} from now on. Restart running servers."
            )
        elif choice.weight == choice.current_weight:
            typer.echo(f"{place} is unchanged: it has this weight.")
        elif choice.is_sure:
            typer.echo(f"{place} is unchanged, since this is a dry run.")
        else:
            hint = f"cde-rag tune {place} --weight N writes one anyway."
            typer.echo(f"{place} is unchanged, since the gain is not sure. {hint}")


def _chosen(collection: "Collection", judged: Path, split: str) -> "WeightChoice":
    """Search both ways by the judged questions that have an answer in the collection, and choose."""
    from cde_rag.evaluation.hybrid_weight import tuned_weight
    from cde_rag.evaluation.judged_questions import read_judged_questions
    from cde_rag.evaluation.own_questions import find_answers, known_records

    questions = read_judged_questions(judged, split=split)
    found = find_answers(questions, known_records(collection, questions), source=str(judged), name="collection")
    if left := len(questions) - len(found.queries.ids):
        why = "; ".join(found.dropped.in_words())
        typer.echo(printable(f"{left} of {len(questions)} questions are left out: {why}."), err=True)
    return tuned_weight(collection.searcher, found.queries, current=collection.inspect().hybrid_weight)


def _described(choice: "WeightChoice") -> str:
    figures, (low, high) = choice.figures, choice.gain.queries
    vectors, words, own = (100 * figures[weight] for weight in (1.0, 0.0, choice.weight))
    gain = f"{100 * choice.gain.mean:+.1f}; 95 %: {100 * low:+.1f} … {100 * high:+.1f}"
    others = f"{100 * choice.held_out:.1f} on queries that did not ({gain})"
    return (
        f"{choice.queries} queries, NDCG@10 × 100: vectors {vectors:.1f}, words {words:.1f}, hybrid "
        f"{100 * choice.current:.1f} by its weight {choice.current_weight:g}.\n"
        f"Weight {choice.weight:g}: {own:.1f} on the queries that chose it, {others}."
    )

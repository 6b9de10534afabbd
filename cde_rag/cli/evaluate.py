"""The command evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import JsonOption, ProgressOption, print_json, progress_bar, updating

if TYPE_CHECKING:
    from cde_rag.evaluation.report import SetResult

SYSTEM_NAMES = (
    "own, own_without_relevant, null, foreign, parents, bm25, minilm, centred, whitened, hybrid, own_hybrid, "
    "parents_hybrid, headers, headers_hybrid, siblings_mean, lead, whitened_lead, neighbours, late_chunking."
)


def evaluate(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER", help="Retrieval sets in the layout of BEIR, conteb/NAME, or folders of Markdown."
        ),
    ],
    model: Annotated[str, typer.Option(help="Bundled name or folder.")] = "cde-mini",
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of a context. [default: 512, or the model's]")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Random seed of the context; repeatable, for a mean over contexts. [default: 0]"),
    ] = None,
    system: Annotated[
        list[str] | None, typer.Option(help=f"System to run; repeatable. [default: all] {SYSTEM_NAMES}")
    ] = None,
    foreign: Annotated[
        Path | None, typer.Option(help="Folder with the corpus of the foreign context. [default: the next set]")
    ] = None,
    split: Annotated[str, typer.Option(help="Name of the judgments: qrels/SPLIT.tsv.")] = "test",
    parent_key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of a document that names its parent.")
    ] = None,
    max_characters: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Split longer documents; each is ranked by its best passage. [default: never; Markdown at 600]",
        ),
    ] = None,
    max_queries: Annotated[
        int, typer.Option(min=1, help="Maximum number of queries per set; larger sets are sampled.")
    ] = 2000,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at blank queries and at judged documents that the corpus lacks.")
    ] = False,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model's retrieval, compared with baselines that need no contextual model.

    A set is a folder with corpus.jsonl, queries.jsonl (these also as .gz) and qrels/test.tsv. The table shows NDCG@10
    of the corpus's own context, the null context, the context of a foreign corpus, BM25, all-MiniLM-L6-v2 and others,
    with intervals for the differences. Values in JSON are fractions.

    conteb/NAME is a set of ConTEB, downloaded once from the Hugging Face hub; a local folder in its layout works, too.
    The chunks of one document are each other's siblings.

    In a folder of Markdown, the headings are the queries, and the sections under them, without the heading, the
    documents: a first look if you have no queries of your users yet.

    \b
    Examples:
      cde-rag evaluate docs/ --system own_hybrid --system parents_hybrid
      cde-rag evaluate scifact/
      cde-rag evaluate scifact/ nfcorpus/ --seed 0 --seed 1 --json
      cde-rag evaluate conteb/covid-qa --system own --system late_chunking
      cde-rag evaluate handbook/ --parent-key page --system own --system parents
    """
    from cde_rag.evaluation import SYSTEMS
    from cde_rag.evaluation import evaluate as evaluate_folders
    from cde_rag.evaluation.harness import APPLIES
    from cde_rag.evaluation.markdown_set import is_markdown

    if unknown := sorted(set(system or ()) - set(SYSTEMS)):
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {', '.join(SYSTEMS)}", param_hint="--system")
    with progress_bar("evaluate", "systems", shown=progress) as update:
        update(0, None)
        found = evaluate_folders(
            folders,
            model=model,
            context_size=context_size,
            seeds=seed or [0],
            systems=system or tuple(SYSTEMS),
            foreign=foreign,
            split=split,
            parent_key=parent_key,
            max_characters=max_characters,
            max_queries=max_queries,
            strict=strict,
            on_progress=updating(update),
        )
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(str(found))
    if left := [name for name in system or () if name not in found.systems]:
        typer.echo(f"Not run, since no set or model meets the requirements: {', '.join(left)}. {APPLIES}", err=True)
    for folder, result in zip(folders, found.sets, strict=True):
        if is_markdown(folder):
            counts = f"queries: {len(result.query_ids)} headings; documents: {result.documents} sections"
            typer.echo(f"{folder}: {counts} of Markdown. {_advice(folder, result)}")


def _advice(folder: Path, result: "SetResult") -> str:
    """Return a sentence about the best of the systems that one can take, whose names are commands' options."""
    ways = {
        "parents_hybrid": f"cde-rag index {folder} {folder.name}.faiss",
        "own_hybrid": f"cde-rag index {folder} {folder.name}.faiss --alone",
        "parents": "the same collection, searched --by vectors",
        "own": "cde-rag index --alone, searched --by vectors",
        "bm25": "cde-rag search --by bm25",
        "minilm": "a plain embedder",
        "hybrid": "a plain embedder with BM25",
    }
    ran = [system for system in ways if system in result.scores]
    if len(ran) < 2:
        return ""
    best, second = sorted(ran, key=lambda system: -result.mean(system))[:2]
    from cde_rag.evaluation.intervals import compare

    paired = result.paired(best, second)
    difference = compare([paired]) if paired else None
    sure = "" if difference and difference.queries[0] > 0 else f", not surely more than {second}"
    return f"{best} finds most{sure}: {ways[best]}"

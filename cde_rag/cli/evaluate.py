"""The command evaluate."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cde_rag._files import user_path
from cde_rag.cli.answers import (
    INDEXES,
    AnswerOptions,
    evaluate_collection,
    evaluate_folders,
    has_questions,
    index_command,
    is_collection,
    print_found,
    print_way,
)
from cde_rag.cli.collections import TenantOption
from cde_rag.cli.output import JsonOption, ProgressOption, progress_bar, updating
from cde_rag.errors import counted

ANSWER_SYSTEM_NAMES = "index, index_vectors, null, null_hybrid, bm25, minilm, hybrid."
SYSTEM_NAMES = (
    "own, own_without_relevant, null, foreign, parents, bm25, minilm, centred, whitened, hybrid, own_hybrid, "
    "parents_hybrid, headers, headers_hybrid, siblings_mean, lead, whitened_lead, neighbours, late_chunking."
)


def evaluate(
    sets: Annotated[
        list[str],
        typer.Argument(
            metavar="SET",
            help="Folders of pages with questions.jsonl; a COLLECTION and judged questions; retrieval sets in BEIR's "
            "layout; conteb/NAME; or folders of Markdown.",
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Listed by cde-rag models; repeatable, to compare several. [default: cde-mini, or the collection's]"
        ),
    ] = None,
    context_size: Annotated[
        int | None, typer.Option(min=1, help="Documents of a context. [default: 512, or the model's]")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Random seed of the context; repeatable, for a mean over contexts. [default: 0]"),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            help=f"System to run; repeatable. [default: all] Of judged questions: {ANSWER_SYSTEM_NAMES} Of retrieval "
            f"sets: {SYSTEM_NAMES}"
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTIONS",
            help="For folders of pages: options of cde-rag index, such as '--max-tokens 100', or default for none; "
            "repeatable. [default: default, --alone, --headers section]",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For judged questions: keep the indexes there, so that the command can be run again and resumes.",
        ),
    ] = None,
    passages: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="For a COLLECTION: compare on at most N of its passages, all that answer among them.",
        ),
    ] = None,
    tenant: TenantOption = None,
    foreign: Annotated[
        Path | None, typer.Option(help="Folder with the corpus of the foreign context. [default: the next set]")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Name of the judgments, qrels/SPLIT.tsv, or of corpora in sites.csv. [default: test; all corpora]"
        ),
    ] = None,
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
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw differences, intervals and costs: an .svg file.")
    ] = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate retrieval on judged questions, compared with baselines.

    A folder of pages has pages/ (or pages.jsonl.gz) and questions.jsonl, whose lines have question and answers, each
    with page and quote. The pages are indexed as by cde-rag index, by each model. A passage answers if it holds the
    quote. The tables show MRR@10 with intervals and costs, hits of answers and pages, and answers within the first 500,
    1,000 and 2,000 tokens that are returned, by which indexes with other passages are compared; the baselines search
    the same passages: without context, all-MiniLM-L6-v2, BM25, both together. The last lines name the system to take:
    the cheapest that is within two points of the best one, and not surely below it.

    A COLLECTION and a file of judged questions (such lines, with page and quote or with id, or saved from the page of
    cde-rag serve) are evaluated alike. Each other --model embeds the same passages; nothing is written to the
    collection.

    A retrieval set is a folder with corpus.jsonl, queries.jsonl (these also as .gz) and qrels/test.tsv. The table shows
    NDCG@10 of many systems, with intervals for the differences; conteb/NAME is a set of ConTEB, downloaded once from
    the Hugging Face hub, or a local folder in its layout. In a folder of Markdown, the headings are the queries, and
    the sections under them the documents: a first look if you have no questions yet. Values in JSON are fractions.

    \b
    Examples:
      cde-rag evaluate pages/
      cde-rag evaluate pages/ --model cde-mini --model cde-base-1 --plot m.svg
      cde-rag evaluate pages/ --index default --index "--max-tokens 100"
      cde-rag evaluate docs.faiss judged.jsonl --model cde-base-1
      cde-rag evaluate docs/ --system own_hybrid --system parents_hybrid
      cde-rag evaluate scifact/ nfcorpus/ --seed 0 --seed 1 --json
      cde-rag evaluate conteb/covid-qa --system own --system late_chunking
      cde-rag evaluate handbook/ --parent-key page --system own --system parents
    """
    of_questions = {"--index": index, "--work": work, "--tenant": tenant, "--passages": passages}
    of_sets = {"--foreign": foreign, "--parent-key": parent_key, "--max-characters": max_characters, "--strict": strict}
    first, further = (model[0], model[1:]) if model else (None, [])
    in_collection = len(sets) == 2 and is_collection(sets[0])
    if in_collection or any(has_questions(user_path(each)) for each in sets):
        _refuse(of_sets, "retrieval sets")
        options = _answer_options(
            AnswerOptions(
                systems=system or (),
                indexes=index or INDEXES,
                models=(model or ()) if in_collection else further,
                split=split,
                work=None if work is None else user_path(work),
                shown=progress,
                as_json=as_json,
                plot=None if plot is None else user_path(plot),
                passages=passages,
            ),
            {"--model": first, "--context-size": context_size, "--seed": (seed or [None])[0]},
        )
        if in_collection:
            _refuse({"--index": index, "--context-size": context_size, "--seed": seed}, "folders of pages")
            evaluate_collection(sets[0], user_path(sets[1]), options, tenant=tenant)
        else:
            _refuse({"--tenant": tenant, "--passages": passages}, "a collection")
            _refuse({"a second --seed": (seed or [])[1:]}, "retrieval sets")
            evaluate_folders([user_path(folder) for folder in sets], options)
        return
    _refuse(of_questions, "judged questions")
    from cde_rag.embedders.contextual import as_model
    from cde_rag.evaluation import SYSTEMS
    from cde_rag.evaluation import evaluate as evaluate_sets
    from cde_rag.evaluation.harness import APPLIES, OF_CORPUS
    from cde_rag.evaluation.markdown_set import is_markdown

    if unknown := sorted(set(system or ()) - set(SYSTEMS)):
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {', '.join(SYSTEMS)}", param_hint="--system")
    shared: dict[str, Any] = {
        "context_size": context_size,
        "seeds": seed or [0],
        "split": split or "test",
        "parent_key": parent_key,
        "max_characters": max_characters,
        "max_queries": max_queries,
        "strict": strict,
    }
    asked = system or tuple(SYSTEMS)
    own = [name for name in asked if name not in OF_CORPUS]
    loaded = as_model(first or "cde-mini")
    others = {name: as_model(name) for name in further if own}  # a wrong name is found before anything is embedded
    with progress_bar("evaluate", "systems", shown=progress) as update:
        update(0, None)
        found = evaluate_sets(
            sets, model=loaded, systems=asked, foreign=foreign, on_progress=updating(update), **shared
        )
        for name, another in others.items():
            other = evaluate_sets(sets, model=another, systems=own, on_progress=updating(update), **shared)
            found = found.with_model(shlex.quote(name), other)
    for folder, result in zip(map(Path, sets), () if as_json else found.sets, strict=not as_json):
        if is_markdown(folder):
            queries, documents = counted(len(result.query_ids), "heading"), counted(result.documents, "section")
            typer.echo(f"{folder}: queries: {queries}; documents: {documents} of Markdown.")
    if print_found(found, plot=None if plot is None else user_path(plot), as_json=as_json):
        return
    if left := [name for name in system or () if name not in found.systems]:
        typer.echo(f"Not run, since no set or model meets the requirements: {', '.join(left)}. {APPLIES}", err=True)
    folder = Path(sets[0])
    if folder.is_dir():
        corpus = next(folder.glob("corpus.jsonl*"), None)
        of_records = {"parents": f"--parent-key {parent_key}", "headers": f"--headers {parent_key}"}
        of_files = {"own": "--alone", "headers": "--alone --headers section"}
        words = "" if first is None else f"--model {shlex.quote(first)}"
        models = {"": loaded, **{f"--model {shlex.quote(name)}": another for name, another in others.items()}}
        plain = [options for options, each in models.items() if each.identity.is_plain]
        made = index_command(corpus or folder)
        print_way(found.comparison, made, words, of_records if corpus else of_files, plain=plain)


def _refuse(given: Mapping[str, object], of: str) -> None:
    """Refuse options that are not for these sets."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(f"it is for {of}; leave it out", param_hint=name)


def _answer_options(options: AnswerOptions, further: Mapping[str, object]) -> AnswerOptions:
    """Return options with their systems in order, and with those that every index has."""
    from cde_rag.evaluation.answer_systems import ANSWER_SYSTEMS

    if unknown := sorted(set(options.systems) - ANSWER_SYSTEMS.keys()):
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {', '.join(ANSWER_SYSTEMS)}", param_hint="--system")
    words = [str(word) for name, value in further.items() if value is not None for word in (name, value)]
    systems = [name for name in ANSWER_SYSTEMS if not options.systems or name in options.systems]
    return replace(options, systems=systems, further=words)

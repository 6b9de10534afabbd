"""Commands on collections: index, search, inspect, verify."""

import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cde_rag.cli.output import (
    INTERRUPTED,
    JsonOption,
    ProgressOption,
    hits_json,
    print_fields,
    print_hits,
    print_json,
    progress_bar,
)
from cde_rag.errors import StoreError

if TYPE_CHECKING:
    from cde_rag.collection import Collection
    from cde_rag.reading import RecordReader
    from cde_rag.writing import AddReport, Progress

ModelOption = Annotated[
    str | None, typer.Option(help="Bundled name or folder. [default: the collection's own; for a new one cde-mini]")
]
CollectionArgument = Annotated[Path, typer.Argument(metavar="COLLECTION", help="The collection's folder.")]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('expected a JSON object such as {"year": {"gte": 2020}}')
    return cast(dict[str, Any], value)


def index(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files or folders of documents; - for JSONL on stdin.")
    ],
    collection: CollectionArgument,
    parent_key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field that names the longer document which a record was cut from; a record is embedded given the "
            "others of its parent. [default: for text files the file]",
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over bad records and report them.")] = False,
    id_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="[default: id, else _id, else a digest of text and parent]")
    ] = None,
    text_field: Annotated[str, typer.Option(metavar="FIELD")] = "text",
    title_field: Annotated[str, typer.Option(metavar="FIELD")] = "title",
    max_characters: Annotated[int, typer.Option(min=1, help="Longest passage that text files are cut into.")] = 1000,
    context_size: Annotated[int, typer.Option(min=1, help="Documents sampled for a new collection's context.")] = 512,
    seed: Annotated[int, typer.Option(help="Of that sample.")] = 0,
    model: ModelOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put documents into a collection, which is made if there is none.

    Reads JSONL (fields id, text and, if you like, title), CSV and TSV with a header (these also as .gz), Parquet, and
    text and Markdown files, which are cut into passages. Other fields become metadata, which searches can filter; the
    cells of a CSV are strings.

    A new collection first samples its context from the documents and keeps it; documents that come later are embedded
    in the same context. Documents that are there already cost no work, so that an interrupted command is continued by
    running it again.

    \b
    Examples:
      cde-rag index papers.jsonl papers.faiss
      cde-rag index docs/ docs.faiss                          # folder of text and Markdown, cut into passages
      cde-rag index chunks.parquet books.faiss --parent-key book
      zcat dump.jsonl.gz | cde-rag index - dump.faiss --skip-bad
    """
    from cde_rag.reading import Fields, RecordReader

    csv.field_size_limit(sys.maxsize)
    fields = Fields(id=id_field, text=text_field, title=title_field, parent=parent_key)
    reader = RecordReader(*sources, fields=fields, skip_bad=skip_bad, max_characters=max_characters)
    opened, total = _open_or_create(
        collection, reader, parent_key=parent_key, model=model, context_size=context_size, seed=seed
    )
    with opened:
        report = _add(opened, reader, total, shown=progress)
        documents = opened.count()
    if reader.skipped:
        typer.echo(f"Skipped {reader.skipped} bad records:", err=True)
        for line in reader.reports:
            typer.echo(f"  {line}", err=True)
    counts = {**asdict(report), "skipped": reader.skipped}
    if as_json:
        print_json({"documents": documents, **counts})
    else:
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
        typer.echo(f"{collection}: {documents:,} documents ({found})")


def _open_or_create(
    path: Path, reader: "RecordReader", *, parent_key: str | None, model: str | None, context_size: int, seed: int
) -> "tuple[Collection, int]":
    """The collection, and how many records the source has; reads the source once, so that bad records show first."""
    from cde_rag import Collection, ContextualEmbedder
    from cde_rag.intake import embedded_text
    from cde_rag.stores.faiss import FaissStore

    store = FaissStore(path)
    if store.exists():
        opened = Collection.open(store, model=model)
        if parent_key not in (None, opened.parent_key):
            raise StoreError(
                f"{path} was made with the parent key {opened.parent_key!r}, not {parent_key!r}. "
                "Leave --parent-key out, or make a new collection."
            )
        size = opened.embedder.context.size
        typer.echo(f"{path} exists and keeps its context of {size} documents.", err=True)
        return opened, sum(1 for _ in reader)
    texts = (embedded_text(record) for record in reader)
    embedder = ContextualEmbedder.from_corpus(texts, model=model or "cde-mini", context_size=context_size, seed=seed)
    try:
        opened = Collection.create(store, embedder, parent_key=parent_key or reader.parent_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--parent-key") from error
    return opened, embedder.context.manifest.documents_seen


def _add(collection: "Collection", reader: "RecordReader", total: int, *, shown: bool | None) -> "AddReport":
    done = 0
    try:
        with progress_bar("index", "documents", shown=shown) as update:

            def on_progress(progress: "Progress") -> None:
                nonlocal done
                done = progress.done
                update(done, total)

            update(0, total)
            return collection.add_records(reader, on_progress=on_progress)
    except KeyboardInterrupt as error:
        stopped = f"Stopped at {done:,} of {total:,} documents. Run the same command again to continue."
        typer.echo(stopped, err=True)
        raise typer.Exit(INTERRUPTED) from error


def search(
    collection: CollectionArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you look for, in your own words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Hits at most.")] = 10,
    where: Annotated[
        dict[str, Any] | None, typer.Option(parser=_json_object, metavar="JSON", help="Filter over the metadata.")
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the documents of a collection that are nearest to a query, best first.

    A filter names metadata fields: a value, or operators eq, ne, in, nin, gt, gte, lt, lte, exists, contains; and, or,
    not combine filters.

    \b
    Examples:
      cde-rag search papers.faiss "late interaction" -k 3
      cde-rag search papers.faiss "late interaction" --where '{"year": {"gte": 2020}}'
      cde-rag search docs.faiss "rotate the logs" --json | jq -r '.hits[].id'
    """
    with _opened(collection, model) as opened:
        hits = opened.search(query, k, where=where)
    if as_json:
        print_json(hits_json(hits))
    else:
        print_hits(hits)


def inspect(collection: CollectionArgument, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Tell what a collection is: documents, model, context, fingerprint.

    \b
    Example:
      cde-rag inspect papers.faiss --json
    """
    with _opened(collection, model) as opened:
        fields = asdict(opened.inspect())
    if as_json:
        print_json(fields)
    else:
        print_fields(fields)


def verify(collection: CollectionArgument, as_json: JsonOption = False) -> None:
    """Read everything in a collection and compare it with its checksums. Exit code 1 where something is damaged.

    Needs no model, so that a collection too damaged to be opened can still be verified.

    \b
    Example:
      cde-rag verify papers.faiss
    """
    from cde_rag.inspection import verify as find_damage
    from cde_rag.stores.faiss import FaissStore

    damages = find_damage(FaissStore(collection))
    if as_json:
        print_json({"damage": [asdict(damage) for damage in damages]})
    elif damages:
        for damage in damages:
            typer.echo(f"{damage.where}: {damage.found}")
    else:
        typer.echo(f"{collection} is whole.")
    if damages:
        raise typer.Exit(1)


def _opened(path: Path, model: str | None) -> "Collection":
    from cde_rag import Collection
    from cde_rag.stores.faiss import FaissStore

    return Collection.open(FaissStore(path), model=model)

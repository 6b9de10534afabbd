"""The commands search, inspect and verify, and how every command opens a collection."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from cde_rag.cli.output import JsonOption, hits_json, print_fields, print_hits, print_json, printable
from cde_rag.errors import ModelError, StoreError

if TYPE_CHECKING:
    from cde_rag.collection import Collection
    from cde_rag.stores.base import Store

ModelOption = Annotated[
    str | None, typer.Option(help="Folder of the collection's model, where that is not a bundled one.")
]
CollectionArgument = Annotated[
    Path,
    typer.Argument(
        metavar="COLLECTION", help="The collection's folder. A new NAME.qdrant is kept by Qdrant Edge."
    ),
]
_EDGE: Final = ".qdrant"  # how the name of a new collection for Qdrant Edge ends
_EDGE_MANIFEST: Final = "cde.json"  # in the folder of one that is there, whatever its name


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('expected a JSON object such as {"year": {"gte": 2020}}')
    return cast(dict[str, Any], value)


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
    if not query.strip():
        raise typer.BadParameter("it is blank", param_hint="QUERY")
    with open_collection(existing(collection), model) as opened:
        hits = opened.search(query, k, where=where)
        counts = None if hits else (opened.count(where), opened.count())
    if as_json:
        print_json(hits_json(hits))
    elif counts is None:
        print_hits(hits)
    else:
        typer.echo(f"No hits: {counts[0]:,} of {counts[1]:,} documents match the filter.", err=True)


def inspect(collection: CollectionArgument, as_json: JsonOption = False) -> None:
    """Tell what a collection is: documents, model, context, fingerprint. Needs no model.

    \b
    Example:
      cde-rag inspect papers.faiss --json
    """
    from cde_rag.inspection import inspect as tell

    fields = asdict(tell(existing(collection)))
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

    damages = find_damage(existing(collection))
    if as_json:
        print_json({"damage": [asdict(damage) for damage in damages]})
    elif damages:
        for damage in damages:
            typer.echo(printable(f"{damage.where}: {damage.found}"))
    else:
        typer.echo(f"{collection} is whole.")
    if damages:
        raise typer.Exit(1)


def open_collection(store: "Store", model: str | None) -> "Collection":
    """The collection in a store.

    Raises:
        ModelError: Its model is not here.
    """
    from cde_rag import Collection

    try:
        return Collection.open(store, model=model)
    except ModelError as error:
        if model is not None:
            raise
        name = store.manifest().settings["model"]
        reason = error.__cause__
        raise ModelError(
            f"The collection was made with the model {name!r}. {reason} Name its folder: --model"
        ) from error


def store_at(path: Path) -> "Store":
    """The store at a path, or for it: Qdrant Edge's or FAISS's."""
    from cde_rag.stores.faiss import FaissStore

    faiss = FaissStore(path)
    if (path / _EDGE_MANIFEST).exists() or (path.suffix == _EDGE and not faiss.exists()):
        from cde_rag.stores.qdrant_edge import QdrantEdgeStore

        return QdrantEdgeStore(path)
    return faiss


def existing(path: Path) -> "Store":
    """The store at a path.

    Raises:
        StoreError: There is none.
    """
    store = store_at(path)
    if not store.exists():
        if path.is_dir() and any(path.iterdir()):
            raise StoreError(
                f"{path}: expected a collection, found a folder with other files. Name the collection's own."
            )
        raise StoreError(f"{path}: expected a collection, found none. Make one with: cde-rag index SOURCE {path}")
    return store

"""The commands search, verify and reindex, and how every command opens a collection."""

import contextlib
import json
import math
import warnings
from collections.abc import Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from cde_rag._validation import RepeatedKeyError, unique_keys
from cde_rag.cli.foreign import TextOption, VectorOption, is_foreign, open_foreign
from cde_rag.cli.output import (
    RERANKER,
    UNCALIBRATED,
    JsonOption,
    explain_no_hits,
    groups_json,
    hits_json,
    print_groups,
    print_hits,
    print_json,
    print_scale,
    printable,
    shown_place,
)
from cde_rag.errors import (
    ContextMismatchError,
    ModelError,
    PendingVectorsWarning,
    PoolError,
    StoreFormatError,
    TenantError,
    TextIndexError,
    UnknownFieldWarning,
    counted,
)

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.distributed import RayPool
    from cde_rag.stores.store import Store
    from cde_rag.stores.tenant_stores import TenantStores

_FULL = (
    "Print full texts, with their line breaks. [default: on a terminal the lines with most words of the query, in a "
    "pipe each text on one line]"
)
ModelOption = Annotated[
    str | None,
    typer.Option(help="Model of the collection, if its stored name does not find it: a folder, or a model of an API."),
]
CollectionArgument = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTION",
        help="Folder of the collection (a new one named NAME.qdrant is made with Qdrant Edge), or an address, "
        "postgresql://USER@HOST/DATABASE/NAME.",
    ),
]
TenantOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Tenant, if COLLECTION holds one collection per tenant.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Embed in N processes, each with its own copy of the model and its share of the cores. [default: in one]",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Embed on a Ray cluster: its address, auto for this machine's cluster, or local to start one.",
    ),
]
_MOST: Final = 1_000_000_000  # hits


def _json_object(text: str) -> dict[str, Any]:
    value: object = None
    with contextlib.suppress(ValueError, RecursionError):
        try:
            value = json.loads(text, object_pairs_hook=unique_keys)
        except RepeatedKeyError as error:
            raise typer.BadParameter(str(error)) from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f'expected a JSON object such as {{"year": {{"gte": 2020}}}}, found {text!r:.80}')
    return cast(dict[str, Any], value)


def _metadata_key(text: str) -> str:
    from cde_rag.records import check_key

    try:
        check_key(text, "it")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(text)):
            return number
    raise typer.BadParameter(f"{text!r} is not a number")


def _ranking(text: str) -> str:
    from cde_rag.search.fusion import ranking_of

    try:
        return ranking_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


WhereOption = Annotated[
    dict[str, Any] | None,
    typer.Option(
        parser=_json_object, metavar="JSON", help="Filter over the metadata; files have source, section, page, line."
    ),
]


def search(
    collection: CollectionArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Query in natural language.")],
    k: Annotated[int, typer.Option("-k", min=1, max=_MOST, help="Maximum number of hits, or of groups.")] = 10,
    where: WhereOption = None,
    by: Annotated[
        str,
        typer.Option(
            parser=_ranking,
            metavar="hybrid|vectors|bm25",
            help="Rank by vectors, by the query's terms (bm25), which find names and rare words, or by both.",
        ),
    ] = "hybrid",
    group_by: Annotated[
        str | None,
        typer.Option(parser=_metadata_key, metavar="KEY", help="Group hits by this metadata field."),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Maximum number of hits per group, with --group-by.  [default: 3]"),
    ] = None,
    score_threshold: Annotated[
        float | None,
        typer.Option(parser=_number, metavar="FLOAT", help="Minimum score of a hit."),
    ] = None,
    offset: Annotated[int, typer.Option(min=0, max=_MOST, help="Skip this many hits (or groups).")] = 0,
    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Rerank the best hits by a cross-encoder, a folder or a hub id such as "
            "cross-encoder/ms-marco-MiniLM-L6-v2; by cohere:MODEL, jina:MODEL, or an address.",
        ),
    ] = None,
    rerank_top: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Number of hits to rerank, with --rerank.  [default: 50]"),
    ] = None,
    rerank_budget_ms: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST, help="Milliseconds of reranking, with --rerank.  [default: no limit]"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help=_FULL)] = False,
    text: TextOption = None,
    vector: VectorOption = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a collection, or another application's index; print the best hits first.

    Nothing is written to an index such as chroma:FOLDER#NAME or langchain-faiss:FOLDER (targets as for audit): a copy
    in the user's cache is searched. Its stamp or --model names the model, which a sample has to confirm.

    A filter names metadata fields: a value, or operators eq, ne, in, nin, gt, gte, lt, lte, exists, contains; and, or,
    not combine filters.

    \b
    Examples:
      cde-rag search papers.faiss "late interaction" -k 3
      cde-rag search papers.faiss "attention" --where '{"year": {"gte": 2020}}'
      cde-rag search docs.faiss "rotate the logs" --json | jq -r '.hits[].id'
      cde-rag search docs.faiss "ERR_CONN_RESET" --by bm25 --group-by source
      cde-rag search chroma:chroma_db#papers "late interaction" \\
        --model intfloat/e5-small-v2
      cde-rag search docs.faiss "lost connections" \\
        --rerank cross-encoder/ms-marco-MiniLM-L6-v2
    """
    from cde_rag.search.fusion import CANDIDATES, Ranking
    from cde_rag.search.searcher import RERANKED, bm25_searcher
    from cde_rag.stores.filters import parse

    if not query.strip():
        raise typer.BadParameter("it is blank", param_hint="QUERY")
    if where is not None:
        parse(where)  # a wrong filter is found before a model is loaded
    _check_needed("--group-by KEY", group_by, {"--group-size": group_size})
    _check_needed("--rerank NAME", rerank, {"--rerank-top": rerank_top, "--rerank-budget-ms": rerank_budget_ms})
    foreign = open_foreign(collection, model, tenant, text=text, vector=vector) if is_foreign(collection) else None
    _check_needed("an index of another application", foreign, {"--text": text, "--vector": vector})
    if foreign is None and not at(collection).exists() and Path(query).exists() and at(query).exists():
        raise typer.BadParameter(f"{query} is the collection, and comes first", param_hint="COLLECTION")
    place = existing(collection, tenant) if foreign is None else foreign.store
    with contextlib.closing(place) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)  # explain_no_hits says it
        warnings.simplefilter("ignore", PendingVectorsWarning)  # a line below says it
        if by == "hybrid" and not has_words(store, say=True):
            by = "vectors"
        if by == "bm25":
            searcher = bm25_searcher(store)
        else:
            searcher = (open_collection(store, model) if foreign is None else foreign).searcher(cast(Ranking, by))
        top = rerank_top or RERANKED
        searcher = searcher if rerank is None else searcher.reranked(rerank, candidates=top, budget_ms=rerank_budget_ms)
        asked: dict[str, Any] = {"where": where, "score_threshold": score_threshold, "offset": offset}
        hits = searcher.search(query, k, **asked) if group_by is None else []
        grouped: dict[str, Any] = {"group_by": group_by, "group_size": group_size or 3, **asked}
        groups = [] if group_by is None else searcher.search_groups(query, k, **grouped)
        narrowed = offset > 0 or score_threshold is not None
        _say_pending(store, by)
        scale = _scale(store, by) if rerank is None else RERANKER
        nothing = "" if hits or groups else explain_no_hits(store, where, group_by, by, narrowed=narrowed)
        nothing += _said_of_language(store, query, by) if nothing else ""
    if by == "hybrid" and rerank is None and group_by is None and CANDIDATES <= offset + len(hits) < offset + k:
        typer.echo(f"A hybrid search has {2 * CANDIDATES} hits at most; --by vectors has more.", err=True)
    if as_json:
        print_json(hits_json(hits) if group_by is None else groups_json(groups))
    elif not nothing:
        print_hits(hits, query=query, full=full)
        print_groups(groups, query=query, full=full)
        print_scale(scale)
    if nothing:
        typer.echo(f"No hits: {nothing}", err=True)


def _check_needed(option: str, given: object, others: Mapping[str, object]) -> None:
    """Refuse options that mean nothing without another one."""
    if given is None and (alone := [name for name, value in others.items() if value is not None]):
        raise typer.BadParameter(f"it needs {option}", param_hint=alone[0])


def _scale(store: "Store", by: str) -> str:
    """Return the kind of a ranking's scores, for `print_scale`: hybrid ones may compare those of one query alone."""
    from cde_rag.search.calibration import calibration_of

    manifest = store.manifest()
    known = not store.count_pending() and calibration_of(manifest.settings, manifest.fingerprint) is not None
    return UNCALIBRATED if by == "hybrid" and not known else by


def _said_of_language(store: "Store", query: str, by: str) -> str:
    """Return a sentence for a query that found nothing, if the vectors' model does not read its language."""
    from cde_rag.search.query_language import foreign_query

    sentence = "" if by == "bm25" else foreign_query(query, str(store.manifest().settings.get("model", "")))
    return f" {sentence}" if sentence else ""


def _say_pending(store: "Store", by: str) -> None:
    """Say on stderr that passages may be missing, and how many were not compared by vectors, if any were."""
    say_unfinished(store)
    if by != "bm25" and (pending := store.count_pending()):
        found = f"{pending:,} of {store.count():,} passages wait for their vectors"
        typer.echo(f"{found}. cde-rag index, run again, makes them.", err=True)


def say_unfinished(store: "Store") -> None:
    """Say on stderr if the first run of `index` was stopped, or goes on: its sources may not all have been read."""
    from cde_rag.collection.first_context import is_unfinished

    if is_unfinished(store.manifest().settings):
        unfinished = "Passages may be missing: the first cde-rag index has not ended. If none runs, run it again."
        typer.echo(unfinished, err=True)


def has_words(store: "Store", *, say: bool = False) -> bool:
    """Return True if a collection has a text index; otherwise stderr may say so."""
    try:
        store.search_text(["."], 1)  # a query without words costs nothing, and reads the text index
    except TextIndexError as error:
        if say:
            typer.echo(f"Searched by vectors alone. {error}", err=True)
        return False
    return True


def count(
    collection: CollectionArgument,
    where: WhereOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count passages. Deprecated: inspect --where says the number among the other figures.

    \b
    Examples:
      cde-rag count papers.faiss  # deprecated, for:
      cde-rag inspect papers.faiss --where '{"year": {"gte": 2020}}'
    """
    typer.echo("cde-rag count is deprecated, and goes in 1.0. Write: cde-rag inspect COLLECTION --where JSON", err=True)
    with contextlib.closing(existing(collection, tenant)) as store:
        found = store.count(where)
        nothing = "" if found or where is None else explain_no_hits(store, where, None, "vectors")
    print_json({"passages": found}) if as_json else typer.echo(str(found))
    if nothing:
        typer.echo(f"No passages: {nothing}", err=True)


def verify(collection: CollectionArgument, tenant: TenantOption = None, as_json: JsonOption = False) -> None:
    """Read everything in a collection and compare it with its checksums. Exit code 1 if something is damaged.

    Needs no model, so that a collection too damaged to be opened can still be verified.

    \b
    Examples:
      cde-rag verify papers.faiss
    """
    from cde_rag.collection.info import verify as find_damage

    damages = find_damage(existing(collection, tenant))
    if as_json:
        print_json({"damage": [asdict(damage) for damage in damages]})
    elif damages:
        for damage in damages:
            typer.echo(printable(f"{damage.where}: {damage.found}"))
    else:
        typer.echo(f"{shown_place(collection)} is intact.")
    if damages:
        raise typer.Exit(1)


def reindex(collection: CollectionArgument, tenant: TenantOption = None, as_json: JsonOption = False) -> None:
    """Rebuild the BM25 and filter indexes from the records. Embeds nothing, and needs no model.

    Adds BM25 to a collection that was made without it, and converts a collection of an earlier version of cde-rag to
    the current format, which older versions cannot open. To resume an interrupted command, run it again.

    \b
    Examples:
      cde-rag reindex papers.qdrant
    """
    store = existing(collection, tenant)
    store.index_texts()
    documents = store.count()
    print_json({"documents": documents}) if as_json else typer.echo(
        f"{shown_place(collection)}: {counted(documents, 'passage')}"
    )


def open_collection(store: "Store", model: str | None) -> "Collection":
    """Open the collection in a store.

    Raises:
        ModelError: Its model cannot be found, or another one is named.
    """
    from cde_rag import Collection
    from cde_rag.embedders.active import stored_context
    from cde_rag.models.plain.function_model import FUNCTION

    try:
        return Collection.open(store, model=model)
    except ContextMismatchError as error:
        if model is None:
            raise
        made = f"The collection was made with {store.manifest().settings['model']!r}, found the model {model!r}."
        hint = f"Leave --model out; or move the collection: cde-rag recontextualize COLLECTION --to-model {model}"
        raise ModelError(f"{made} {hint}") from error
    except ModelError as error:
        if model is not None:
            raise
        made = store.manifest().settings["model"]
        if stored_context(store).identity.pooling == FUNCTION:
            raise ModelError(
                f"The collection was made with {made!r}, an API's model or a Python function; neither address nor code "
                f"is stored. Name an API again: --model openai:{made}, or --model http://HOST/v1#{made}; or open it in "
                "Python: Collection.open(place, model=embedder). Here search --by bm25 needs no model."
            ) from error
        if error.__cause__ is None:  # as of an unknown runtime
            raise
        hint = f"{error.__cause__} Name its folder: --model"
        raise ModelError(f"The collection was made with the model {made!r}. {hint}") from error


def at(place: str) -> "Store":
    """Return the store of a folder or an address, existing or new, of the kind that `cde_rag.stores.kinds` says."""
    from cde_rag.stores.kinds import store_at

    return store_at(place)


def existing(path: str, tenant: str | None = None) -> "Store":
    """Return the existing store at a path; that of a tenant, if one is named.

    Raises:
        StoreError: There is no store.
        TenantError: A tenant is named for a collection without tenants, or none for one with tenants.
    """
    store = existing_place(path)
    from cde_rag.stores.tenant_names import check_is_of, check_names_a_tenant, place_key

    if tenant is None:
        with contextlib.suppress(StoreFormatError):  # what is damaged can still be verified
            check_names_a_tenant(store.manifest().settings)
        return store
    of_tenant = tenant_stores(path).of(place_key(tenant))
    if not of_tenant.exists():
        hint = "Make it with: cde-rag index SOURCE COLLECTION --tenant NAME"
        raise TenantError(f"{shown_place(path)}: expected the tenant {tenant!r:.80}, found none of this name. {hint}")
    with contextlib.suppress(StoreFormatError):
        check_is_of(of_tenant.manifest().settings, tenant)
    return of_tenant


def existing_place(path: str) -> "Store":
    """Return the existing store at a path, which may be the common store of tenants.

    Raises:
        StoreError: There is no store.
    """
    from cde_rag.stores.kinds import check_there

    store = at(path)
    check_there(path, store)
    return store


def new_store(path: str, tenant: str | None) -> "Store":
    """Return the store at a path, existing or new; a tenant's, if one is named.

    Raises:
        StoreError: There is no store of tenants at the path.
        TenantError: There is a collection without tenants.
    """
    from cde_rag.stores.tenant_names import place_key

    if tenant is None:
        return at(path)
    existing_place(path)
    return tenant_stores(path).of(place_key(tenant))


def tenant_stores(path: str) -> "TenantStores":
    """Return the stores of tenants at a path.

    Raises:
        TenantError: There is a collection without tenants.
    """
    from cde_rag.stores.kinds import tenants_at

    stores = tenants_at(path)
    common = stores.common()
    if common.exists() and "tenant_key" not in common.manifest().settings:
        raise TenantError(
            f"{shown_place(path)}: expected a collection for each tenant, found one for all. Leave --tenant out."
        )
    return stores


@contextlib.contextmanager
def on_workers(collection: "Collection", workers: int | None, ray: str | None) -> Generator[None, None, None]:
    """Let a collection embed its passages in worker processes, on this machine or on a Ray cluster.

    Raises:
        PoolError: The collection's model is no contextual one, or there is no cluster at the address.
    """
    from cde_rag import ProcessPool
    from cde_rag.embedders.contextual import contextual

    if workers is None and ray is None:
        yield
        return
    embedder = contextual(collection.embedder)
    if embedder is None or not embedder.model.in_workers:
        raise PoolError("Workers embed with contextual models only. Leave --workers and --ray out.")
    with ProcessPool(workers) if ray is None else _ray_pool(workers, ray) as pool:
        collection.embedder = embedder.with_pool(pool)
        yield


def _ray_pool(workers: int | None, address: str) -> "RayPool":
    from cde_rag.distributed import RayPool

    return RayPool(workers, address=None if address == "local" else address)

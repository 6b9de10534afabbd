"""Runs of the command index: on this machine, as a dry run, and on a Ray cluster.

Long because all of them open or make the collection by the same options.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from cde_rag.cli.collections import at, has_words, on_workers, open_collection, tenant_stores
from cde_rag.cli.index_report import (
    are_most,
    documents_of,
    print_left_out,
    print_missing,
    print_plan,
    print_result,
    print_stale,
    print_state,
    searchable,
    shown_index,
    warn_of_language,
)
from cde_rag.cli.output import INTERRUPTED, print_json, printable, progress_bar, shown_place, updating
from cde_rag.errors import CDEError, CorpusError, StoreError, counted

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection, When
    from cde_rag.embedders.protocol import Embedder
    from cde_rag.indexing.pending import EmbedReport
    from cde_rag.indexing.upsert import AddReport, Progress
    from cde_rag.models.model import Model
    from cde_rag.readers import ReadingRules, RecordReader
    from cde_rag.records import Record
    from cde_rag.stores.store import Store


class MissingFieldError(typer.BadParameter):
    """A field that an option of a new collection names, and that no record has.

    Args:
        message: For people.
        option: "--headers" or "--parent-key".
        field: Name of the field.
    """

    def __init__(self, message: str, *, option: str, field: str) -> None:
        super().__init__(message, param_hint=option)
        self.option = option
        self.field = field


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of the command, but for those of its reader.

    Attributes:
        sources: Files or folders, or "-".
        path: Folder or address of the collection.
        parent_key: Field of parents; None for the collection's, or that of text files.
        alone: Embed passages of text files without siblings.
        headers: Fields in front of each text; None for the collection's.
        windows: Read long texts in windows, in a new collection.
        tenant: Name of the tenant, if the collection has tenants.
        changes: Rules by which files become passages, other than the collection's or the newest.
        model: Name or folder of the model; None for the collection's, or that of new ones.
        context_size: Documents of a new collection's context; None for the model's number.
        seed: Random seed of their sample.
        sync: Delete passages that are not in the sources.
        yes: Also more than half of them.
        workers: Processes that embed; None for this one.
        shown: Whether progress is shown; None where there is a terminal.
        watch: Go on with the changes of the folders.
        as_json: Print JSON.
    """

    sources: list[str]
    path: str
    parent_key: str | None
    alone: bool
    headers: list[str] | None
    windows: bool
    tenant: str | None
    changes: Mapping[str, Any]
    model: str | None
    context_size: int | None
    seed: int
    sync: bool
    yes: bool
    workers: int | None
    shown: bool | None
    watch: bool
    as_json: bool


def plan(reader: "RecordReader", options: IndexOptions) -> None:
    """Print the changes that a run would write; creates neither a collection nor a tenant.

    Raises:
        CorpusError: There are no documents.
    """
    try:
        _check_found(reader, options)
        counts = _plan(reader, options)
        print_plan(options.path, counts, as_json=options.as_json)
    finally:
        print_left_out(reader)


def run(reader: "RecordReader", options: IndexOptions) -> None:
    """Upsert the documents of a reader, and print the result.

    Raises:
        CorpusError: There are no documents.
        StoreError: The collection was made with other options, or cannot be written.
    """
    from cde_rag.indexing.replacement import missing_documents, missing_tables, stale_rows
    from cde_rag.readers.reading_rules import NEWEST

    watch = None
    if options.watch:  # before any file is read
        from cde_rag.cli.index_watch import FolderWatch

        watch = FolderWatch(reader, options.path, yes=options.yes, shown=options.shown, as_json=options.as_json)
    total: int | None = 0
    try:
        found = _check_found(reader, options)
        store = at(options.path) if options.tenant is None else _tenant(reader, options.tenant, options)
        make = _begin if found and _is_read_once(reader, options) else _create
        opened, total = (_open if store.exists() else make)(store, reader, options)
    finally:
        if total is not None:
            print_left_out(reader)
    if total is not None:
        warn_of_language(opened, reader, total)
    with opened:
        others = _others(opened, reader, yes=options.yes) if options.sync else {}
        with on_workers(opened, options.workers, None):
            report = _add(opened, reader, total, options)
            deleted = _delete_others(opened, reader, others)
            if report.truncated and reader.splits and reader.decided.tokens is None:
                read_all = f"Of text files --max-tokens {NEWEST.tokens} makes passages that the model reads completely."
                typer.echo(read_all, err=True)
            counts = {**asdict(report), "skipped": reader.skipped, "deleted": report.deleted + deleted}
            if watch is not None:
                watch.follow(opened, counts)
                return
        documents = opened.count()
        print_missing([*missing_documents(opened.store, reader), *missing_tables(opened.store, reader)])
        print_stale(stale_rows(opened.store, reader))
    print_result(options.path, documents, counts, as_json=options.as_json)


def _follow(reader: "RecordReader", stored: "ReadingRules", options: IndexOptions) -> None:
    """Let a reader split files by some rules, with the changes of the options."""
    if options.changes:
        try:
            reader.reading = stored.with_changes(options.changes)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--overlap") from error
    reader.read_as(stored)


def _check_found(reader: "RecordReader", options: IndexOptions) -> bool:
    """Refuse sources without documents; return True if the first one can be used."""
    from cde_rag.readers.columns import kept_fields
    from cde_rag.readers.reading_rules import NEWEST
    from cde_rag.stores.tenant_names import place_key

    name = options.tenant
    with closing(at(options.path) if name is None else tenant_stores(options.path).of(place_key(name))) as store:
        reader.kept_fields = kept_fields(store.manifest().settings) if store.exists() else None
    _follow(reader, NEWEST, options)
    reader.count_with(lambda texts: sum(map(len, texts)), None)  # until the model is there
    first = next(iter(reader), None)
    if first is None and not reader.skipped:
        raise CorpusError(
            f"{', '.join(options.sources)}: expected documents, found none. Is it the right file or folder?"
        )
    return first is not None


def _plan(reader: "RecordReader", options: IndexOptions) -> dict[str, int]:
    """Count the writes of a run."""
    from cde_rag.indexing.replacement import missing_documents, missing_tables, stale_rows, unread_passages

    store = at(options.path) if options.tenant is None else _tenant_store(options.tenant, options)
    if store is None or not store.exists():
        _count_tokens(reader, options)
        new = len({record.id for record in reader})
        nothing = dict.fromkeys(("replaced", "updated", "unchanged", "deleted"), 0)
        return {"documents": 0, "added": new, "embedded": new, "skipped": reader.skipped, **nothing}
    opened, _ = _open(store, reader, options)
    with opened:
        others = unread_passages(opened.store, reader) if options.sync else {}
        if others and reader.bad_rows:
            typer.echo(f"--sync would delete nothing, since {_passed_over(reader)}.", err=True)
            others = {}
        counts = asdict(opened.add_records(reader, dry_run=True))
        if not options.sync:
            print_missing([*missing_documents(opened.store, reader), *missing_tables(opened.store, reader)])
            print_stale(stale_rows(opened.store, reader))
        if others:
            needs = "; without a terminal this needs --yes" if are_most(others, opened) else ""
            typer.echo(printable(f"--sync would delete passages of: {documents_of(others)}{needs}."), err=True)
        deleted = counts["deleted"] + len(others)
        return {"documents": opened.count(), **counts, "skipped": reader.skipped, "deleted": deleted}


def _count_tokens(reader: "RecordReader", options: IndexOptions) -> "Model":
    """Let a reader count the tokens of a new collection's model; return the model."""
    model = _new_model(options)
    reader.count_tokens_of(model)
    return model


def _new_model(options: IndexOptions) -> "Model":
    """Load the model of a new collection, or of new tenants."""
    from cde_rag.embedders.contextual import as_model

    return as_model(options.model or "cde-mini")


def _tenant_store(name: str, options: IndexOptions) -> "Store | None":
    """Return the store of a tenant; None if there is none yet."""
    from cde_rag import Tenants

    stores = tenant_stores(options.path)
    if not stores.common().exists():
        return None
    with Tenants.open(stores, model=options.model) as tenants:
        return tenants.get(name).store if name in tenants.names() else None


def _open(store: "Store", reader: "RecordReader", options: IndexOptions) -> "tuple[Collection, int]":
    """Open the collection and count the sources' records; reads them once, so that bad records are reported first."""
    from cde_rag.field_names import key_of
    from cde_rag.indexing.replacement import locate
    from cde_rag.models.plain.fixed_texts import corpus_size
    from cde_rag.readers.reading_rules import reading_of

    opened = open_collection(store, options.model)
    _check_options(opened, options)
    locate(reader, store)
    _follow(reader, reading_of(store.manifest().settings), options)
    opened.prepare_reader(reader)
    if _makes_context(opened):
        kept = "has no context yet, and makes one of its passages"
    elif size := corpus_size(opened.embedder.context):
        kept = f"exists and keeps its context of {counted(size, 'passage')}"
    else:
        kept = "has no context; recontextualize makes one"
    print_state(f"{shown_place(options.path)} {kept}.")
    reader.fields = replace(reader.fields, parent=opened.parent_key)
    total = sum(1 for _ in reader)
    if opened.parent_key is not None and key_of(opened.parent_key) not in reader.keys:
        typer.echo(f"No record has {opened.parent_key!r}, the collection's parent key: all stand alone.", err=True)
    return opened, total


def _makes_context(collection: "Collection") -> bool:
    """Return True for a collection without a context of its own that is to get one, as of a run that was stopped."""
    from cde_rag.collection.first_context import is_first, moves_at

    return is_first(collection.embedder.context) and moves_at(collection.store.manifest().settings) < math.inf


def _check_options(opened: "Collection", options: IndexOptions) -> None:
    """Refuse options other than those that a collection was made with."""
    place = shown_place(options.path)
    if options.parent_key not in (None, opened.parent_key):
        raise StoreError(
            f"{place} was made with the parent key {opened.parent_key!r}, not {options.parent_key!r}. "
            "Leave --parent-key out, or make a new collection."
        )

    headers = opened.store.manifest().settings.get("headers", [])
    if options.headers not in (None, headers):
        raise StoreError(
            f"{place} was made with the headers {', '.join(headers) or 'none'}, not "
            f"{', '.join(options.headers or [])}. Leave --headers out, or make a new collection."
        )
    if options.windows and not opened.inspect().windows:
        anew = f"embed them anew with cde-rag recontextualize {place} --windows"
        if opened.embedder.context.identity.is_plain:
            anew = "move it in Python to an embedder made with windows=True"
        raise StoreError(f"{place} cuts texts longer than the model's window. Leave --windows out, or {anew}.")
    if options.alone and opened.parent_key is not None:
        raise StoreError(
            f"{place} was made with the parent key {opened.parent_key!r}, by which passages have siblings. "
            "Leave --alone out, or make a new collection."
        )


def _tenant(reader: "RecordReader", name: str, options: IndexOptions) -> "Store":
    """Return the store of a tenant, which is created if necessary, with the common store."""
    from cde_rag import ContextualEmbedder, Tenants
    from cde_rag.embedders.corpus_contexts import first_context

    stores = tenant_stores(options.path)
    if not stores.common().exists():
        sum(1 for _ in reader)  # so that a bad record leaves no tenants with its parent key
        loaded = _new_model(options)
        embedder = ContextualEmbedder(loaded, first_context(loaded))
        try:
            Tenants.create(stores, embedder, parent_key=_parent_key(embedder, reader, options)).close()
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--parent-key") from error
    with Tenants.open(stores, model=options.model) as tenants:
        return (tenants.get if name in tenants.names() else tenants.add)(name).store


def _is_read_once(reader: "RecordReader", options: IndexOptions) -> bool:
    """Return True if a new collection is searchable by words while its sources are read, and gets its context then.

    In folders a bad file stops nothing. A bad record of a named file, or an option that fits none, is to leave nothing.
    """
    given = options.parent_key, options.headers, options.tenant, options.context_size
    plain = given == (None, None, None, None) and not options.windows and not options.seed
    others = reader.files or reader.row_files or "-" in options.sources
    return plain and bool(reader.skip_bad) and not others


def _begin(store: "Store", reader: "RecordReader", options: IndexOptions) -> "tuple[Collection, int | None]":
    """Create a collection that is to get its context when all is read, by `embed_pending`; the number is not known."""
    from cde_rag import Collection
    from cde_rag.collection.first_context import AT_ONCE, create_without_documents

    model = _count_tokens(reader, options)
    if model.identity.is_plain:  # its first context is of another family than its own
        return _create(store, reader, options)
    try:
        embedder = create_without_documents(store, model, reader.fields.parent, at=AT_ONCE)
    except StoreError as error:
        raise _made_meanwhile(store, options, error) from error
    return Collection(store, embedder), None


def _create(store: "Store", reader: "RecordReader", options: IndexOptions) -> "tuple[Collection, int]":
    """Create a collection and count the sources' records; reads them once, before anything is written."""
    from cde_rag import Collection, ContextualEmbedder
    from cde_rag.embedders.corpus_contexts import contextual_identity, first_context, sampled
    from cde_rag.field_names import key_of
    from cde_rag.indexing.headers import with_headers
    from cde_rag.records import embedded_text

    new, headers = _count_tokens(reader, options), options.headers or []
    records: Iterable[Record] = reader
    if headers:
        records = with_headers(reader, {"headers": headers}, ContextualEmbedder(new, first_context(new)))
    texts = (embedded_text(record) for record in records)
    identity = contextual_identity(new, windows=options.windows or None)
    context = sampled(new, identity, texts, options.context_size, seed=options.seed, unit="passage")
    embedder = ContextualEmbedder(new, context)
    for option, key in (("--parent-key", options.parent_key), *(("--headers", header) for header in headers)):
        if key is not None and key_of(key) not in reader.keys:
            found = ", ".join(sorted(reader.keys)) or "none"
            hint = "; the title is in front of every text without it" if (option, key) == ("--headers", "title") else ""
            raise MissingFieldError(
                f"no record has a metadata field {key!r}; found: {printable(found):.200}{hint}",
                option=option,
                field=key,
            )
    try:
        parent_key = _parent_key(embedder, reader, options)
        opened = Collection.create(store, embedder, parent_key=parent_key, headers=headers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--parent-key") from error
    except StoreError as error:
        raise _made_meanwhile(store, options, error) from error
    return opened, embedder.context.manifest.documents_seen


def _made_meanwhile(store: "Store", options: IndexOptions, error: StoreError) -> StoreError:
    """Return the error of a new collection that is there by now; else the error itself."""
    if not store.exists():
        return error
    return StoreError(f"{shown_place(options.path)} was made by another run meanwhile. Run the same command again.")


def _parent_key(embedder: "Embedder", reader: "RecordReader", options: IndexOptions) -> str | None:
    """Return the parent key of a new collection: files are parents by themselves, if the model reads siblings."""
    return options.parent_key or (reader.fields.parent if embedder.max_siblings else None)


def _others(collection: "Collection", reader: "RecordReader", *, yes: bool) -> dict[str, str] | None:
    """Return the ids that `--sync` deletes, each with its document; None if one may be that of a bad record.

    More than half of the passages need confirmation, or `yes`; without a terminal they are refused.
    """
    from cde_rag.indexing.replacement import unread_passages

    others = unread_passages(collection.store, reader)
    if others and reader.bad_rows:  # it may be one of these that is to stay
        return None
    if not yes and are_most(others, collection):
        would = f"--sync would delete {len(others):,} of {collection.count():,} passages: {documents_of(others)}."
        if not _is_terminal():
            raise StoreError(f"{would} Nothing was written. If the sources are right, add --yes.")
        typer.confirm(printable(f"{would} Are the sources right?"), abort=True, err=True)
    return others


def _delete_others(collection: "Collection", reader: "RecordReader", others: dict[str, str] | None) -> int:
    if others is None:
        raise StoreError(
            f"All is added; --sync deleted nothing, since {_passed_over(reader)}. Mend "
            f"{'it' if reader.bad_rows == 1 else 'them'}, and run the same command again."
        )
    if others:
        typer.echo(printable(f"Deleted, since no longer in the sources: {documents_of(others)}."), err=True)
    return collection.delete(list(others))


def _passed_over(reader: "RecordReader") -> str:
    return (
        "1 bad record was passed over" if reader.bad_rows == 1 else f"{reader.bad_rows:,} bad records were passed over"
    )


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _add(collection: "Collection", reader: "RecordReader", total: int | None, options: IndexOptions) -> "AddReport":
    """Write all passages, so that they are found by words, and then make the vectors that they lack."""
    from cde_rag.collection.first_context import is_unfinished

    store = collection.store
    if not has_words(store) and not is_unfinished(store.manifest().settings):  # only vectors find them, made once
        return _written(collection, reader, total, options, "first")
    try:
        report = _written(collection, reader, total, options, "later")
    finally:
        if total is None:
            print_left_out(reader)
    if total is None:
        warn_of_language(collection, reader, report.added)
    filled = _filled(collection, options)
    return replace(report, truncated=filled.truncated)


def _filled(collection: "Collection", options: IndexOptions) -> "EmbedReport":
    """Make the vectors that passages wait for, saying how far that is."""
    documents, place = collection.count(), shown_index(options.path)
    if pending := collection.pending:
        print_state(f"{place} is {searchable(documents, pending, stopped=False)}.")
    try:
        with progress_bar("embed", "passages", shown=options.shown) as update:
            if (options.seed or options.context_size) and _makes_context(collection):
                seed, size = options.seed, options.context_size
                collection.recontextualize(seed=seed, context_size=size, embed="later")
            if pending:
                update(0, pending)  # of these alone: after a small edit a bar of all would begin at 99 %
            return collection.embed_pending(
                on_progress=lambda made: update(made.done - made.before, (made.total or made.done) - made.before)
            )
    except KeyboardInterrupt as error:
        stopped = f"Stopped. {place} is {searchable(documents, collection.pending, stopped=True)}"
        typer.echo(f"{stopped}. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    except CDEError as error:
        stopped = f"{place} is {searchable(documents, collection.pending, stopped=True)}"
        raise CDEError(f"{error} {stopped}; mend that and run the same command again.") from error


def _written(
    collection: "Collection", reader: "RecordReader", total: int | None, options: IndexOptions, embed: "When"
) -> "AddReport":
    done, said, empty = 0, False, collection.count() == 0 and total is not None
    of = "" if total is None else f" of {total:,}"
    try:
        with progress_bar("index", "passages", shown=options.shown) as update:

            def on_progress(progress: "Progress") -> None:
                nonlocal done, said
                if total is None and not said and done:  # not of a small folder, which is read by now
                    print_state(f"{shown_index(options.path)} is searchable by words while the sources are read.")
                    said = True
                done = progress.done
                update(done, total)

            update(0, total)
            return collection.add_records(reader, embed=embed, on_progress=on_progress)
    except KeyboardInterrupt as error:
        stopped = f"Stopped at {done:,}{of} passages. Run the same command again to continue."
        typer.echo(stopped, err=True)
        raise typer.Exit(INTERRUPTED) from error
    except CDEError as error:
        again = f"Stopped at {done:,}{of} passages; mend that and run the same command again."
        anew = (
            f" {shown_index(options.path)} keeps its context; for one of other texts, delete it first." if empty else ""
        )
        raise CDEError(f"{error} {again}{anew}") from error


def run_on_ray(reader: "RecordReader", options: IndexOptions, address: str) -> None:
    """Index the sources on a Ray cluster and print the result.

    Args:
        reader: Its settings are those of the readers on the cluster.
        options: Options of the command.
        address: Address of the cluster, auto or local.
    """
    from cde_rag import distributed
    from cde_rag.indexing.replacement import locate, missing_documents
    from cde_rag.readers.columns import FIELDS, kept_fields
    from cde_rag.readers.reading_rules import NEWEST, READING, reading_of

    path, model = options.path, options.model
    if at(path).exists():
        with open_collection(at(path), model) as opened:
            model = model or opened.store.manifest().settings["model"]
            _check_options(opened, options)
            locate(reader, opened.store)
            _follow(reader, reading_of(opened.store.manifest().settings), options)
            reader.fields = replace(reader.fields, parent=opened.parent_key)
            reader.kept_fields = kept_fields(opened.store.manifest().settings)
    else:
        _follow(reader, NEWEST, options)
    distributed.connect(None if address == "local" else address)
    dataset = distributed.read_sources(
        options.sources,
        reader.fields,
        reading=reader.decided,
        model=model,
        max_line_bytes=reader.max_line_bytes,
        kept_fields=reader.kept_fields,
        roots=reader.roots,
    )
    with progress_bar("index", "passages", shown=options.shown) as update:
        indexed = distributed.index(
            dataset,
            path,
            fields=reader.fields,
            headers=options.headers or (),
            windows=options.windows,
            model=options.model,
            context_size=options.context_size,
            seed=options.seed,
            workers=options.workers,
            on_progress=updating(update),
        )
    given = reader.fields.settings()
    at(path).update_settings({READING: reader.decided.settings(), **({FIELDS: given} if given else {})})
    print_missing(missing_documents(at(path), reader))
    if "://" not in path:
        typer.echo(f"The shards stay in {path}.shards; delete the folder when no run needs them.", err=True)
    if options.as_json:
        print_json(asdict(indexed))
    else:
        counts = {**asdict(indexed.report), "buckets": indexed.buckets, "reused": indexed.reused}
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        typer.echo(f"{shown_place(path)}: {counted(indexed.documents, 'passage')} ({found})")

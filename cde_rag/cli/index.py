"""The command index.

Long because its options and their help take a quarter of it.
"""

import csv
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cde_rag.cli.collections import (
    CollectionArgument,
    RayOption,
    WorkersOption,
    at,
    on_workers,
    open_collection,
    tenant_stores,
)
from cde_rag.cli.output import (
    INTERRUPTED,
    JsonOption,
    ProgressOption,
    in_passages,
    print_json,
    printable,
    progress_bar,
    shown_place,
    updating,
)
from cde_rag.errors import CDEError, CorpusError, StoreError, how_to_install

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.indexing.upsert import AddReport, Progress
    from cde_rag.readers import RecordReader
    from cde_rag.records import Record
    from cde_rag.stores.base import Store

_ROLES = ("id", "text", "title")
_ROWS = frozenset({".csv", ".jsonl", ".parquet", ".tsv"})  # suffixes of records, read only where they are named


class _Options(NamedTuple):
    """Options that a collection keeps; None where the command names none."""

    parent_key: str | None
    alone: bool
    headers: list[str] | None
    windows: bool


def _field_names(text: str) -> dict[str, str]:
    named = dict[str, str]()
    for part in text.split(","):
        role, _, field = part.partition("=")
        if role not in _ROLES or not field or role in named:
            raise typer.BadParameter(f"expected id=FIELD,text=FIELD,title=FIELD, or some of them, found {text!r:.80}")
        named[role] = field
    return named


def _roles(fields: dict[str, str] | None, old: Mapping[str, str | None]) -> dict[str, str]:
    """Return the fields that --fields names, or the options before it, which are deprecated."""
    given = {role: field for role, field in old.items() if field is not None}
    if given:
        names = ",".join(f"{role}={field}" for role, field in given.items())
        typer.echo(f"--{next(iter(given))}-field is deprecated, and goes in 1.0. Write: --fields {names}", err=True)
    return {**given, **(fields or {})}


def index(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files or folders of documents; - for JSONL on stdin."),
    ],
    collection: CollectionArgument,
    parent_key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field that names the longer document a record was cut from; records of one parent are embedded as "
            "siblings. [default: the file, for text files]",
        ),
    ] = None,
    headers: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS",
            help="Comma-separated fields, such as section of Markdown files, to insert between title and text for "
            "embedding and BM25; helps queries that name their page. [default: the collection's; none for a new one]",
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Embed passages of text files without siblings, for queries about details."),
    ] = False,
    windows: Annotated[
        bool,
        typer.Option(
            "--windows",
            help="In a new collection, embed texts longer than the model's window in windows. [default: truncate them]",
        ),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip and report unusable records and text files.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Afterwards delete passages that are not in the sources.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Let --sync delete more than half of the passages without confirmation.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the numbers of records to add, embed and delete; write nothing.")
    ] = False,
    fields: Annotated[
        dict[str, str] | None,
        typer.Option(
            parser=_field_names,
            metavar="id=FIELD,text=FIELD,title=FIELD",
            help="Fields of records that have these roles, or some of them. [default: text and title; id, else _id, "
            "else a digest of text and parent]",
        ),
    ] = None,
    id_field: Annotated[str | None, typer.Option(hidden=True)] = None,  # before --fields; goes in 1.0
    text_field: Annotated[str | None, typer.Option(hidden=True)] = None,
    title_field: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_text: Annotated[
        list[str] | None,
        typer.Option(metavar="SUFFIX", help="Also read files of this suffix as text, such as .py; repeatable."),
    ] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Maximum length of a passage of text files.")] = 600,
    max_line_bytes: Annotated[
        int, typer.Option(min=1, help="Longest line of JSONL or CSV; a longer one is a bad record.")
    ] = 64 * 2**20,
    context_size: Annotated[
        int | None,
        typer.Option(min=1, help="Documents sampled for a new collection's context. [default: 512, or the model's]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of that sample.")] = 0,
    workers: WorkersOption = None,
    ray: RayOption = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tenant of the documents. COLLECTION then holds one collection per tenant, each in the null context "
            "until recontextualize --tenant NAME.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Bundled name or folder. [default: the collection's own; cde-mini for a new one]")
    ] = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upsert documents into a collection, which is created if necessary.

    Reads JSONL (fields id, text and optionally title), CSV and TSV with a header (these also as .gz), Parquet, and
    text and Markdown files, which are split into passages; with the extra documents also PDF, HTML, Word, PowerPoint.
    Other fields become metadata for filters; cells of a CSV are strings, also if they look like numbers.

    A new collection first samples its context from the documents and keeps it; later documents are embedded in the same
    context. Unchanged documents are not embedded again: to resume an interrupted command, run it again.

    A record replaces the stored one with the same id. A text file that is read again replaces all its passages; one
    that cannot be read keeps them, and so does one that left its folder, until --sync. The id of a passage consists of
    the folder's name and the file's path in it (docs/guide/start.md#0), also if such a file is given by itself later,
    or else of the file's absolute path (/home/me/start.md#0).

    \b
    Examples:
      cde-rag index papers.jsonl papers.faiss
      cde-rag index papers.jsonl papers.qdrant  # stored by Qdrant Edge
      # folder of text and Markdown, split into passages
      cde-rag index docs/ docs.faiss
      # also delete documents that left the folder
      cde-rag index docs/ docs.faiss --sync
      cde-rag index docs/ docs.faiss --sync --dry-run  # show the changes first
      cde-rag index src/ code.faiss --as-text .py --as-text .toml
      # headings in front of each passage
      cde-rag index docs/ docs.faiss --headers section
      cde-rag index chunks.parquet books.faiss --parent-key book
      cde-rag index acme.jsonl customers.faiss --tenant acme
      # embed in eight processes
      cde-rag index papers.parquet papers.faiss --workers 8
      # read and embed on a Ray cluster
      cde-rag index one.parquet two.parquet papers.faiss --ray auto
      zcat dump.jsonl.gz | cde-rag index - dump.faiss --skip-bad
    """
    from cde_rag.indexing.replacement import missing_documents
    from cde_rag.readers import Fields, RecordReader

    csv.field_size_limit(sys.maxsize)
    roles = _roles(fields, {"id": id_field, "text": text_field, "title": title_field})
    reader = RecordReader(
        *sources,
        fields=Fields(parent=parent_key, **roles),
        skip_bad=skip_bad,
        max_characters=max_characters,
        max_line_bytes=max_line_bytes,
        as_text=as_text or (),
    )
    if alone:
        reader.fields = replace(reader.fields, parent=None)
    options = _options(parent_key, headers, tenant, alone=alone, windows=windows)
    if ray is not None:
        _check_ray("-" in sources or skip_bad or sync or dry_run or bool(as_text) or tenant is not None)
        _on_ray(sources, collection, reader, options, ray, workers, model, context_size, seed, progress, as_json)
        return
    try:
        if next(iter(reader), None) is None and not reader.skipped:
            raise CorpusError(f"{', '.join(sources)}: expected documents, found none. Is it the right file or folder?")
        if dry_run:
            counts = _plan(collection, reader, tenant, options, model=model, sync=sync)
            _print_plan(collection, counts, as_json=as_json)
            return
        made = None if tenant is None else _tenant(collection, reader, tenant, parent_key=parent_key, model=model)
        store = at(collection) if made is None else made
        if store.exists():
            opened, total = _open(store, collection, reader, options, model=model)
        else:
            opened, total = _create(
                store, collection, reader, options, model=model, context_size=context_size, seed=seed
            )
    finally:
        if reader.skipped:
            typer.echo(f"Skipped {reader.skipped} bad records:", err=True)
            for line in reader.reports:
                typer.echo(printable(f"  {line}"), err=True)
        _print_unread(reader)
    _warn_of_language(opened, reader, total)
    with opened:
        others = _others(opened, reader, yes=yes) if sync else {}
        with on_workers(opened, workers, None):
            report = _add(opened, collection, reader, total, shown=progress)
        deleted = _delete_others(opened, reader, others)
        documents = opened.count()
        _print_missing(missing_documents(opened.store, reader))
    if report.truncated and reader.splits:
        shorter = max_characters * 3 // 5
        typer.echo(f"Of text files --max-characters {shorter} would make shorter passages.", err=True)
    counts = {**asdict(report), "skipped": reader.skipped, "deleted": report.deleted + deleted}
    if as_json:
        print_json({"documents": documents, **counts})
    else:
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
        typer.echo(f"{shown_place(collection)}: {in_passages(documents)} ({found})")


def _check_ray(excluded: bool) -> None:
    if excluded:
        named = "--skip-bad, --sync, --dry-run, --as-text, --tenant and - for stdin do not go with it"
        raise typer.BadParameter(named, param_hint="--ray")


def _on_ray(
    sources: list[str],
    path: str,
    reader: "RecordReader",
    options: _Options,
    address: str,
    workers: int | None,
    model: str | None,
    context_size: int | None,
    seed: int,
    shown: bool | None,
    as_json: bool,
) -> None:
    """Index the sources on a Ray cluster and print the result."""
    from cde_rag import distributed
    from cde_rag.indexing.replacement import locate, missing_documents

    if at(path).exists():
        with open_collection(at(path), model) as opened:
            _check_options(opened, path, options)
            locate(reader, opened.store)
            reader.fields = replace(reader.fields, parent=opened.parent_key)
    distributed.connect(None if address == "local" else address)
    dataset = distributed.read_sources(
        sources,
        reader.fields,
        max_characters=reader.max_characters,
        max_line_bytes=reader.max_line_bytes,
        roots=reader.roots,
    )
    with progress_bar("index", "passages", shown=shown) as update:
        indexed = distributed.index(
            dataset,
            path,
            fields=reader.fields,
            headers=options.headers or (),
            windows=options.windows,
            model=model,
            context_size=context_size,
            seed=seed,
            workers=workers,
            on_progress=updating(update),
        )
    _print_missing(missing_documents(at(path), reader))
    if "://" not in path:
        typer.echo(f"The shards stay in {path}.shards; delete the folder when no run needs them.", err=True)
    if as_json:
        print_json(asdict(indexed))
    else:
        counts = {**asdict(indexed.report), "buckets": indexed.buckets, "reused": indexed.reused}
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        typer.echo(f"{shown_place(path)}: {in_passages(indexed.documents)} ({found})")


def _options(
    parent_key: str | None, headers: str | None, tenant: str | None, *, alone: bool, windows: bool
) -> _Options:
    """Return the options that a collection keeps."""
    if alone and parent_key is not None:
        raise typer.BadParameter("without siblings there is no parent key; leave one of them out", param_hint="--alone")
    if headers is not None and tenant is not None:
        raise typer.BadParameter("collections of tenants have none; leave it out", param_hint="--headers")
    if windows and tenant is not None:
        raise typer.BadParameter("it is for recontextualize --tenant NAME --windows", param_hint="--windows")
    fields = None if headers is None else [field.strip() for field in headers.split(",") if field.strip()]
    return _Options(parent_key, alone, fields, windows)


def _print_unread(reader: "RecordReader") -> None:
    """Print how many files of the folders are not read, by suffix, and how many hold no text."""
    from cde_rag.readers.documents import DOCUMENTS
    from cde_rag.readers.passages import as_text_options

    if unread := reader.unread():
        kinds = ", ".join(f"{suffix} {count}" for suffix, count in unread.most_common(8))
        remedy = f" {how_to_install('documents')} to read documents." if DOCUMENTS & unread.keys() else ""
        if rows := sorted(_ROWS & unread.keys()):
            remedy += f" Name files of rows ({', '.join(rows)}) one by one: cde-rag index FILE COLLECTION."
        if options := as_text_options(unread):
            remedy += f" To read them as text, add {options}."
        typer.echo(printable(f"Files not read: {kinds}.{remedy}"), err=True)
    if reader.empty_files:
        stored = "Passages that are stored of them stay; --sync deletes them."
        typer.echo(printable(f"Files without text: {_named(reader.empty_files)}. {stored}"), err=True)


def _warn_of_language(opened: "Collection", reader: "RecordReader", total: int) -> None:
    """Warn once of texts in other languages than a bundled model reads, with their number."""
    from cde_rag.model.model_files import MULTILINGUAL, packaged

    name = opened.embedder.context.identity.name
    if reader.foreign and packaged(name) is not None and name not in MULTILINGUAL:
        found = f"{reader.foreign:,} of {total:,} texts do not look like English, the language that {name} reads"
        remedy = "Search by words finds them; for vectors take a multilingual model: --model cde-multilingual"
        typer.echo(f"Warning: {found}. {remedy}.", err=True)


def _plan(
    path: str,
    reader: "RecordReader",
    tenant: str | None,
    options: "_Options",
    *,
    model: str | None,
    sync: bool,
) -> dict[str, int]:
    """Count the writes of a run, for `--dry-run`; creates neither a collection nor a tenant."""
    from cde_rag.indexing.replacement import missing_documents, unread_passages

    store = at(path) if tenant is None else _tenant_store(path, tenant, model)
    if store is None or not store.exists():
        new = len({record.id for record in reader})
        nothing = dict.fromkeys(("replaced", "updated", "unchanged", "deleted"), 0)
        return {"documents": 0, "added": new, "embedded": new, "skipped": reader.skipped, **nothing}
    opened, _ = _open(store, path, reader, options, model=model)
    with opened:
        if sync and reader.skipped:
            typer.echo(f"--sync would delete nothing, since {reader.skipped} bad records were passed over.", err=True)
        others = unread_passages(opened.store, reader) if sync and not reader.skipped else {}
        counts = asdict(opened.add_records(reader, dry_run=True))
        _print_missing([] if sync else missing_documents(opened.store, reader))
        if others:
            needs = "; without a terminal this needs --yes" if _are_most(others, opened) else ""
            typer.echo(printable(f"--sync would delete passages of: {_documents(others)}{needs}."), err=True)
        deleted = counts["deleted"] + len(others)
        return {"documents": opened.count(), **counts, "skipped": reader.skipped, "deleted": deleted}


def _print_plan(path: str, counts: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, **counts})
        return
    planned = {
        name: count for name, count in counts.items() if count and name not in ("documents", "unchanged", "skipped")
    }
    found = ", ".join(f"{count:,} {name}" for name, count in planned.items())
    would = f"A run would write: {found}." if found else "There is nothing to do."
    typer.echo(f"{shown_place(path)}: {counts['documents']:,} passages. Nothing was written. {would}")


def _tenant_store(path: str, name: str, model: str | None) -> "Store | None":
    """Return the store of a tenant; None if there is none yet."""
    from cde_rag import Tenants

    stores = tenant_stores(path)
    if not stores.common().exists():
        return None
    with Tenants.open(stores, model=model) as tenants:
        return tenants.get(name).store if name in tenants.names() else None


def _open(
    store: "Store", path: str, reader: "RecordReader", options: "_Options", *, model: str | None
) -> "tuple[Collection, int]":
    """Open the collection and count the sources' records; reads them once, so that bad records are reported first."""
    from cde_rag.field_names import key_of
    from cde_rag.indexing.replacement import locate

    opened = open_collection(store, model)
    _check_options(opened, path, options)
    locate(reader, store)
    size = opened.embedder.context.size
    kept = f"exists and keeps its context of {size} passages" if size else "has no context; recontextualize makes one"
    typer.echo(f"{shown_place(path)} {kept}.", err=True)
    reader.fields = replace(reader.fields, parent=opened.parent_key)
    total = sum(1 for _ in reader)
    if opened.parent_key is not None and key_of(opened.parent_key) not in reader.keys:
        typer.echo(f"No record has {opened.parent_key!r}, the collection's parent key: all stand alone.", err=True)
    return opened, total


def _check_options(opened: "Collection", path: str, options: _Options) -> None:
    """Refuse options other than those that a collection was made with."""
    if options.parent_key not in (None, opened.parent_key):
        raise StoreError(
            f"{shown_place(path)} was made with the parent key {opened.parent_key!r}, not {options.parent_key!r}. "
            "Leave --parent-key out, or make a new collection."
        )
    from cde_rag import ContextualEmbedder

    headers = opened.store.manifest().settings.get("headers", [])
    if options.headers not in (None, headers):
        raise StoreError(
            f"{shown_place(path)} was made with the headers {', '.join(headers) or 'none'}, not "
            f"{', '.join(options.headers or [])}. Leave --headers out, or make a new collection."
        )
    if options.windows and not opened.inspect().windows:
        anew = f"embed them anew with cde-rag recontextualize {shown_place(path)} --windows"
        if not isinstance(opened.embedder, ContextualEmbedder):
            anew = "move it in Python to an embedder made with windows=True"
        raise StoreError(
            f"{shown_place(path)} cuts texts longer than the model's window. Leave --windows out, or {anew}."
        )
    if options.alone and opened.parent_key is not None:
        raise StoreError(
            f"{shown_place(path)} was made with the parent key {opened.parent_key!r}, by which passages have siblings. "
            "Leave --alone out, or make a new collection."
        )


def _tenant(path: str, reader: "RecordReader", name: str, *, parent_key: str | None, model: str | None) -> "Store":
    """Return the store of a tenant, which is created if necessary, with the common store."""
    from cde_rag import CDEModel, Context, ContextualEmbedder, Tenants

    stores = tenant_stores(path)
    if not stores.common().exists():
        loaded = CDEModel.from_pretrained(model or "cde-mini")
        embedder = ContextualEmbedder(loaded, Context.null(loaded))
        try:
            Tenants.create(stores, embedder, parent_key=parent_key or reader.fields.parent).close()
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--parent-key") from error
    with Tenants.open(stores, model=model) as tenants:
        return (tenants.get if name in tenants.names() else tenants.add)(name).store


def _create(
    store: "Store",
    path: str,
    reader: "RecordReader",
    options: "_Options",
    *,
    model: str | None,
    context_size: int | None,
    seed: int,
) -> "tuple[Collection, int]":
    """Create a collection and count the sources' records; reads them once, before anything is written."""
    from cde_rag import CDEModel, Collection, Context, ContextualEmbedder
    from cde_rag.field_names import key_of
    from cde_rag.indexing.headers import with_headers
    from cde_rag.records import embedded_text

    new, headers = CDEModel.from_pretrained(model or "cde-mini"), options.headers or []
    records: Iterable[Record] = reader
    if headers:
        records = with_headers(reader, {"headers": headers}, ContextualEmbedder(new, Context.null(new)))
    texts = (embedded_text(record) for record in records)
    embedder = ContextualEmbedder.from_corpus(
        texts, model=new, context_size=context_size, seed=seed, windows=options.windows
    )
    for option, key in (("--parent-key", options.parent_key), *(("--headers", header) for header in headers)):
        if key is not None and key_of(key) not in reader.keys:
            found = ", ".join(sorted(reader.keys)) or "none"
            hint = "; the title is in front of every text without it" if (option, key) == ("--headers", "title") else ""
            raise typer.BadParameter(
                f"no record has a metadata field {key!r}; found: {printable(found):.200}{hint}",
                param_hint=option,
            )
    try:
        opened = Collection.create(store, embedder, parent_key=reader.fields.parent, headers=headers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--parent-key") from error
    except StoreError as error:
        if store.exists():
            raise StoreError(
                f"{shown_place(path)} was made by another run meanwhile. Run the same command again."
            ) from error
        raise
    return opened, embedder.context.manifest.documents_seen


def _others(collection: "Collection", reader: "RecordReader", *, yes: bool) -> dict[str, str] | None:
    """Return the ids that `--sync` deletes, each with its document; None if bad records were passed over.

    More than half of the passages need confirmation, or `yes`; without a terminal they are refused.
    """
    from cde_rag.indexing.replacement import unread_passages

    if reader.skipped:  # it may be one of these that is to stay
        return None
    others = unread_passages(collection.store, reader)
    if not yes and _are_most(others, collection):
        would = f"--sync would delete {len(others):,} of {collection.count():,} passages: {_documents(others)}."
        if not _is_terminal():
            raise StoreError(f"{would} Nothing was written. If the sources are right, add --yes.")
        typer.confirm(printable(f"{would} Are the sources right?"), abort=True, err=True)
    return others


def _delete_others(collection: "Collection", reader: "RecordReader", others: dict[str, str] | None) -> int:
    if others is None:
        raise StoreError(
            f"All is added; --sync deleted nothing, since {reader.skipped} bad records were passed over. Mend them, "
            "and run the same command again."
        )
    if others:
        typer.echo(printable(f"Deleted, since no longer in the sources: {_documents(others)}."), err=True)
    return collection.delete(list(others))


def _are_most(passages: dict[str, str], collection: "Collection") -> bool:
    """Return True for more than half of a collection's passages."""
    return 2 * len(passages) > collection.count()


def _documents(passages: dict[str, str]) -> str:
    """Return the first names of the documents of passages, given by the passages' ids."""
    return _named(list(dict.fromkeys(passages.values())))


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _print_missing(documents: list[str]) -> None:
    if documents:
        count = "1 document is" if len(documents) == 1 else f"{len(documents):,} documents are"
        found = f"{count} no longer in the sources, and the passages stay: {_named(documents)}. --sync deletes them."
        typer.echo(printable(found), err=True)


def _named(names: list[str]) -> str:
    """Return the first three names, and the number of the others."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _add(collection: "Collection", path: str, reader: "RecordReader", total: int, *, shown: bool | None) -> "AddReport":
    done, empty = 0, collection.count() == 0
    try:
        with progress_bar("index", "passages", shown=shown) as update:

            def on_progress(progress: "Progress") -> None:
                nonlocal done
                done = progress.done
                update(done, total)

            update(0, total)
            return collection.add_records(reader, on_progress=on_progress)
    except KeyboardInterrupt as error:
        stopped = f"Stopped at {done:,} of {total:,} passages. Run the same command again to continue."
        typer.echo(stopped, err=True)
        raise typer.Exit(INTERRUPTED) from error
    except CDEError as error:
        again = f"Stopped at {done:,} of {total:,} passages; mend that and run the same command again."
        anew = f" {shown_place(path)} keeps its context; for one of other texts, delete it first." if empty else ""
        raise CDEError(f"{error} {again}{anew}") from error

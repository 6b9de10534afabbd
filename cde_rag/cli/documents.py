"""The commands inspect, list, get and delete: the contents of a collection, by documents and by passages."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cde_rag.cli.collections import (
    CollectionArgument,
    ModelOption,
    TenantOption,
    WhereOption,
    existing,
    open_collection,
    say_unfinished,
)
from cde_rag.cli.output import (
    WHOLE,
    JsonOption,
    explain_no_hits,
    one_line,
    print_fields,
    print_json,
    printable,
    shown_place,
    titled,
)
from cde_rag.errors import CDEError, StoreError, counted

if TYPE_CHECKING:
    from cde_rag.collection.contents import StoredDocument
    from cde_rag.records import Record
    from cde_rag.stores.store import Store

_MOST: Final = 200_000  # passages whose documents inspect counts: a second or two
_NAMES: Final = (
    "Ids of passages, as search prints them, or names of documents, as list prints them; of a CSV or another file of "
    "rows its name, for all its rows."
)


def inspect(
    collection: CollectionArgument,
    where: WhereOption = None,
    erasure: Annotated[
        bool, typer.Option("--erasure", help="Also read every passage, to find deleted ones in the context.")
    ] = False,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a collection's size, documents, last change, model, context and fingerprint. Needs no model.

    \b
    Examples:
      cde-rag inspect papers.faiss --json
      # how many passages match a filter, as in search?
      cde-rag inspect papers.faiss --where '{"year": {"gte": 2020}}'
      # are deleted documents still in its context?
      cde-rag inspect papers.faiss --erasure
    """
    from cde_rag.collection.info import erasures as find_erasures
    from cde_rag.collection.info import inspect as inspect_store
    from cde_rag.readers import Fields

    store = existing(collection, tenant)
    size, changed = _at_rest(store)
    inspection = inspect_store(store)
    fields = asdict(inspection)
    matching = {} if where is None else {"matching": store.count(where)}
    own = {"documents": fields["documents"], **matching, "sources": _count_documents(store)}
    fields = {**own, "disk_bytes": size, "changed": changed, **fields}
    if where is not None and not matching["matching"]:
        typer.echo(f"No passages: {explain_no_hits(store, where, None, 'vectors')}", err=True)
    erasures = [asdict(one) for one in find_erasures(store)] if erasure else []
    if as_json:
        print_json(fields | {"erasure": erasures} if erasure else fields)
        return
    megabytes = None if size is None else f"{size / 1e6:,.1f} MB"
    in_words = {"reading": inspection.reading.described, "fields": Fields(**inspection.fields).described or None}
    print_fields(fields | {"disk_bytes": megabytes, **in_words})
    say_unfinished(store)
    if inspection.newer_defaults:
        of_tenant = "" if tenant is None else f" --tenant {shlex.quote(tenant)}"
        typer.echo(f"To adopt the newer defaults: cde-rag upgrade {shown_place(collection)}{of_tenant}", err=True)
    for one in erasures:
        kept = "" if one["active"] else ", kept next to the active one,"
        found = f"holds {one['gone']} of {one['context_size']} passages that are not in the collection any more"
        typer.echo(f"The context of generation {one['generation']}{kept} {found}.")
    if any(one["gone"] for one in erasures):
        again = f"cde-rag recontextualize {shown_place(collection)} --seed N"
        typer.echo(f"Remove them with: {again}; a generation that is kept goes with the next such run.", err=True)


def list_(
    collection: CollectionArgument,
    where: WhereOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the documents of a collection with their numbers of passages. Reads all passages; needs no model.

    A document is a file, or the records of one parent. A record without a parent is a document of its own, with its
    title or first words, and its id; for an id that nobody gave stands its file and row, and --json has the id.

    \b
    Examples:
      cde-rag list docs.faiss
      cde-rag list docs.faiss --where '{"source": {"contains": "guide/"}}'
    """
    from cde_rag.collection.contents import StoredDocument, count_passage

    documents = dict[str, StoredDocument]()
    with contextlib.closing(existing(collection, tenant)) as store:
        key: str | None = store.manifest().settings["parent_key"]
        for row in store.scroll(where=where):
            count_passage(documents, row.record, key)
        nothing = "" if documents else explain_no_hits(store, where, None, "vectors")
    if as_json:
        found = [{"name": one.name, "title": one.title, "passages": one.passages} for one in documents.values()]
        print_json({"documents": found})
        return
    width = shutil.get_terminal_size(WHOLE).columns - 9
    for one in documents.values():
        typer.echo(f"{one.passages:7,}  {_listed(one, width)}")
    if nothing:
        typer.echo(f"No documents: {nothing}", err=True)
        return
    passages = counted(sum(one.passages for one in documents.values()), "passage")
    typer.echo(f"{counted(len(documents), 'document')}, {passages}.", err=True)


def _listed(document: "StoredDocument", width: int) -> str:
    """Return a document in words, of at most `width` characters: its name, or the label of a record, and its id."""
    if document.where is not None:
        return one_line(document.name, width)
    return titled(document.label, document.place if document.is_digest and document.place else document.name, width)


def get(
    collection: CollectionArgument,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help=_NAMES)],
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print passages with their metadata, by id or by document. Needs no model.

    Exit code 1 if there is nothing of a name.

    \b
    Examples:
      cde-rag get docs.faiss 'docs/guide/start.md#0'
      cde-rag get docs.faiss docs/guide/start.md --json
    """
    with contextlib.closing(existing(collection, tenant)) as store:
        found = _named(store, names)
    if as_json:
        print_json({"records": [asdict(record) for record in found]})
        return
    for record in found:
        typer.echo(printable(f"{record.title}  [{record.id}]" if record.title else f"[{record.id}]"))
        for field, value in record.metadata.items():
            typer.echo(printable(f"{'':8}{field}: {value}"))
        typer.echo("\n".join(f"{'':8}{line}".rstrip() for line in printable(record.text).splitlines()))


def delete(
    collection: CollectionArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help=_NAMES)] = None,
    where: WhereOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete more than half of the passages without confirmation.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the number of passages; delete nothing.")] = False,
    tenant: TenantOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete documents or passages, by name or by a filter; embed passages again whose siblings left.

    Nothing is deleted if there is nothing of one of the names. A context may hold texts that are deleted: inspect
    --erasure counts them.

    \b
    Examples:
      cde-rag delete docs.faiss docs/guide/old.md
      cde-rag delete docs.faiss 'docs/guide/start.md#3' 'docs/guide/start.md#4'
      cde-rag delete papers.faiss --where '{"year": {"lt": 2000}}' --dry-run
    """
    from cde_rag.stores.filters import check_narrows

    if bool(names) == (where is not None):
        raise typer.BadParameter("give names or --where, one of them", param_hint="NAME")
    if where:
        check_narrows(where, "The filter of all passages is {}.")
    with contextlib.closing(existing(collection, tenant)) as store:
        if where is None:
            ids = [record.id for record in _named(store, names or ())]
            wanted = len(ids)
        else:
            ids, wanted = None, store.count(where)
            if not wanted:
                typer.echo(f"No passages: {explain_no_hits(store, where, None, 'vectors')}", err=True)
        stored, deleted = store.count(), 0
        if wanted and not dry_run:
            _check_wanted(wanted, stored, yes=yes)
            with open_collection(store, model) as opened:
                deleted = opened.delete(ids, where=where)
                stored = opened.count()
    counts: dict[str, Any] = {"documents": stored, "deleted": deleted}
    if as_json:
        print_json({"dry_run": True, **counts, "deleted": wanted} if dry_run else counts)
    elif dry_run:
        typer.echo(f"{shown_place(collection)}: {wanted:,} of {counted(stored, 'passage')} would be deleted.")
    else:
        typer.echo(f"{shown_place(collection)}: {counted(stored, 'passage')} ({deleted:,} deleted)")


def _at_rest(store: "Store") -> tuple[int | None, str | None]:
    """Return the bytes of a store's folder and its last change, UTC in ISO 8601; None for those of a server."""
    from cde_rag.stores.files import MARKERS
    from cde_rag.stores.store import Folder

    if not isinstance(store, Folder):
        return None, None
    files = list[tuple[Path, os.stat_result]]()
    for path in store.folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a writer has deleted it
            files += [(path, path.stat())] if path.is_file() and not path.name.endswith("-shm") else []
    written = [(path, found) for path, found in files if found.st_size and path.suffix != ".lock"]
    database = [each for each in written if each[0].name in (MARKERS["faiss"], f"{MARKERS['faiss']}-wal")]
    latest = max((found.st_mtime for _, found in database or written), default=None)  # searches derive files, too
    changed = None if latest is None else datetime.fromtimestamp(latest, timezone.utc).isoformat(timespec="seconds")
    return sum(found.st_size for _, found in files), changed


def _count_documents(store: "Store") -> int | None:
    """Return the number of documents; None for so many passages that reading them takes more than seconds."""
    from cde_rag.readers.passages import document_name

    if store.count() > _MOST:
        return None
    key: str | None = store.manifest().settings["parent_key"]
    return len({document_name(row.record, key) for row in store.scroll()})


def _named(store: "Store", names: Sequence[str]) -> "list[Record]":
    """Return the passages of all names, once each: the one of this id, those of this document, or this file's rows.

    Raises:
        StoreError: There is nothing of a name.
    """
    from cde_rag.collection.contents import document_records, file_rows

    by_id = {row.record.id: row.record for row in store.get(list(dict.fromkeys(names)))}
    found: dict[str, Record] = {}
    for name in names:
        records = [by_id[name]] if name in by_id else document_records(store, name) or file_rows(store, name)
        if not records:
            raise StoreError(
                f"Expected a passage or a document of the name {name!r:.200}, found none. cde-rag list shows the "
                "documents, cde-rag search the ids of passages."
            )
        found |= {record.id: record for record in records}
    return list(found.values())


def _check_wanted(wanted: int, stored: int, *, yes: bool) -> None:
    """Have the deletion of more than half of the passages confirmed.

    Raises:
        CDEError: There is no terminal to confirm it on, and `yes` is not given.
    """
    if yes or 2 * wanted <= stored:
        return
    would = f"This would delete {wanted:,} of {counted(stored, 'passage')}."
    if not sys.stdin.isatty():
        raise CDEError(f"{would} Nothing was deleted. If that is right, add --yes.")
    typer.confirm(f"{would} Delete them?", abort=True, err=True)

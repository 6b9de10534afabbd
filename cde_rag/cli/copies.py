"""The commands export, import, backup and restore: a collection that goes elsewhere and comes back."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, TenantOption, existing, new_store, whole
from cde_rag.cli.output import JsonOption, ProgressOption, print_json, progress_bar

if TYPE_CHECKING:
    from cde_rag.indexing.upsert import Progress

BackupArgument = Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's folder.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet file.")]


def export(
    collection: CollectionArgument,
    file: FileArgument,
    tenant: TenantOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a whole collection to one Parquet file: records, vectors, context and settings. Needs no model.

    It may be searched and written meanwhile. Any tool that reads Parquet reads the file; import makes a collection of
    it again, in a store of any kind.

    \b
    Examples:
      cde-rag export papers.faiss papers.parquet
      cde-rag export papers.faiss papers.parquet && cde-rag import papers.parquet papers.qdrant
    """
    from cde_rag.transfer.parquet import export_collection

    with progress_bar("export", "documents", shown=progress) as update:

        def on_progress(now: "Progress") -> None:
            update(now.done, now.total)

        done = export_collection(existing(collection, tenant), file, on_progress=on_progress)
    print_json(asdict(done)) if as_json else typer.echo(f"{file}: {done.documents:,} documents")


def import_(
    file: FileArgument,
    collection: CollectionArgument,
    tenant: TenantOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new collection of what export wrote. Nothing is embedded, and no model is needed.

    The file is compared with its checksum before anything is written. Interrupted, the same command goes on; before it
    is through the collection cannot be opened. With --tenant it is made one of COLLECTION's, and has to be the export
    of that tenant.

    \b
    Examples:
      cde-rag import papers.parquet papers.faiss
      cde-rag import papers.parquet papers.qdrant             # kept by Qdrant Edge
    """
    from cde_rag.transfer.parquet import import_collection

    with progress_bar("import", "documents", shown=progress) as update:

        def on_progress(now: "Progress") -> None:
            update(now.done, now.total)

        done = import_collection(file, new_store(collection, tenant), tenant=tenant, on_progress=on_progress)
    print_json(asdict(done)) if as_json else typer.echo(f"{collection}: {done.documents:,} documents")


def backup(
    collection: CollectionArgument, folder: BackupArgument, tenant: TenantOption = None, as_json: JsonOption = False
) -> None:
    """Copy a collection while it is searched and written, and read the copy to see that it is whole. Needs no model.

    Of a FAISS collection all is kept as it was at one instant, of others the records and vectors as export does. The
    folder is whole or not there. Where COLLECTION holds a collection for each tenant it is one of all, or with --tenant
    of one.

    \b
    Examples:
      cde-rag backup papers.faiss backups/papers-2026-11-20
      cde-rag restore backups/papers-2026-11-20 papers.faiss
    """
    from cde_rag.transfer.backup import back_up

    made = back_up(whole(collection) if tenant is None else existing(collection, tenant), folder)
    print_json(asdict(made)) if as_json else typer.echo(f"{folder}: {made.documents:,} documents")


def restore(
    folder: BackupArgument, collection: CollectionArgument, tenant: TenantOption = None, as_json: JsonOption = False
) -> None:
    """Make a new collection of what backup wrote. Every byte of it is compared with its checksum first.

    With --tenant it is made one of COLLECTION's, and has to be the backup of that tenant.

    \b
    Examples:
      cde-rag restore backups/papers-2026-11-20 papers.faiss
      cde-rag restore backups/acme customers.faiss --tenant acme
    """
    from cde_rag.transfer.backup import restore as make

    made = make(folder, new_store(collection, tenant), tenant=tenant)
    print_json(asdict(made)) if as_json else typer.echo(f"{collection}: {made.documents:,} documents")

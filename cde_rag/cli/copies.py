"""The commands export, import, backup and restore: a collection that goes elsewhere and comes back."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, TenantOption, existing, existing_place, new_store
from cde_rag.cli.output import JsonOption, ProgressOption, print_json, progress_bar, shown_place, updating
from cde_rag.errors import counted

BackupArgument = Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's folder.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet file.")]


def export(
    collection: CollectionArgument,
    file: FileArgument,
    tenant: TenantOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a collection to one Parquet file: records, vectors, context and settings. Needs no model.

    It may be searched and written meanwhile. Any Parquet tool can read the file; import restores the collection, in a
    store of any kind.

    \b
    Examples:
      cde-rag export papers.faiss papers.parquet
      cde-rag export papers.faiss papers.parquet \\
        && cde-rag import papers.parquet papers.qdrant
    """
    from cde_rag.transfer.parquet import export_collection

    with progress_bar("export", "passages", shown=progress) as update:
        done = export_collection(existing(collection, tenant), file, on_progress=updating(update))
    print_json(asdict(done)) if as_json else typer.echo(f"{file}: {counted(done.documents, 'passage')}")


def import_(
    file: FileArgument,
    collection: CollectionArgument,
    tenant: TenantOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import a collection from an export. Nothing is embedded, and no model is needed.

    The file's checksum is verified before anything is written. To resume an interrupted import, run it again; until it
    has finished, the collection cannot be opened. With --tenant the export must be that tenant's, and becomes one of
    COLLECTION's tenants.

    \b
    Examples:
      cde-rag import papers.parquet papers.faiss
      cde-rag import papers.parquet papers.qdrant  # stored by Qdrant Edge
    """
    from cde_rag.transfer.parquet import import_collection

    with progress_bar("import", "passages", shown=progress) as update:
        done = import_collection(file, new_store(collection, tenant), tenant=tenant, on_progress=updating(update))
    print_json(asdict(done)) if as_json else typer.echo(
        f"{shown_place(collection)}: {counted(done.documents, 'passage')}"
    )


def backup(
    collection: CollectionArgument, folder: BackupArgument, tenant: TenantOption = None, as_json: JsonOption = False
) -> None:
    """Back up a collection while it is searched and written, and verify the copy. Needs no model.

    A FAISS collection is copied completely, as of one instant; of others, records and vectors are exported. The backup
    is created atomically. If COLLECTION holds a collection per tenant, all are backed up, or with --tenant one of them.

    \b
    Examples:
      cde-rag backup papers.faiss backups/papers-2026-11-20
      cde-rag restore backups/papers-2026-11-20 papers.faiss
    """
    from cde_rag.stores.kinds import tenants_at
    from cde_rag.stores.tenant_names import is_common
    from cde_rag.transfer.backup import back_up

    store = existing_place(collection) if tenant is None else existing(collection, tenant)
    whole = tenants_at(collection) if is_common(store.manifest().settings) else store
    made = back_up(whole, folder)
    print_json(asdict(made)) if as_json else typer.echo(f"{folder}: {counted(made.documents, 'passage')}")


def restore(
    folder: BackupArgument, collection: CollectionArgument, tenant: TenantOption = None, as_json: JsonOption = False
) -> None:
    """Restore a collection from a backup. All checksums are verified first.

    With --tenant the backup must be that tenant's, and becomes one of COLLECTION's tenants.

    \b
    Examples:
      cde-rag restore backups/papers-2026-11-20 papers.faiss
      cde-rag restore backups/acme customers.faiss --tenant acme
    """
    from cde_rag.stores.files import TENANTS
    from cde_rag.stores.kinds import tenants_at
    from cde_rag.transfer.backup import restore as make

    of_all = tenant is None and (folder / TENANTS).is_dir()
    made = make(folder, tenants_at(collection) if of_all else new_store(collection, tenant), tenant=tenant)
    print_json(asdict(made)) if as_json else typer.echo(
        f"{shown_place(collection)}: {counted(made.documents, 'passage')}"
    )

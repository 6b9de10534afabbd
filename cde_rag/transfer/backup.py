"""Backups of a collection, made while it is searched and written.

    papers.backup/
        backup.json           manifest, with the sha256 of every other file
        collection/           a copy of the store's folder, all generations, as of one instant (FAISS);
        collection.parquet    for other stores an export of the active generation, each record as of one instant
        tenants/<key>/        the same for each tenant, one after the other, if the folder holds tenants

The folder is renamed to its final name once all of it is on the disk: a crash before that leaves no backup.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from cde_rag._files import file_sha256, fsync_folder, given_path, read_file
from cde_rag._version import __version__
from cde_rag.errors import StoreError, StoreFormatError, TenantError
from cde_rag.stores.files import (
    TENANTS,
    check_no_link,
    check_outside,
    check_path,
    check_store_outside,
    copy_durably,
    write_new,
)
from cde_rag.stores.store import Folder, Store
from cde_rag.stores.tenant_names import check_is_of, is_common
from cde_rag.stores.tenant_stores import FolderTenants, TenantStores
from cde_rag.transfer.parquet import export_collection, import_collection

FORMAT: Final = 2
_MANIFEST: Final = "backup.json"
_COPY: Final = "collection"
_EXPORT: Final = "collection.parquet"


@runtime_checkable
class CopiedFolder(Folder, Protocol):
    """One that can be copied while others write to it."""

    def copy_to(self, folder: Path) -> Store:
        """Make a copy of one state of the store, durably, in a new folder.

        Raises:
            StoreError: The folder is there or cannot be written, or there is no store.
        """
        ...


@dataclass(frozen=True, slots=True)
class Backup:
    """Manifest of a backup.

    Attributes:
        documents: Number of records, of all tenants.
        fingerprint: Fingerprint of the active generation; with tenants, of their common Context.
        created: UTC, ISO 8601.
        library_version: Version of cde-rag.
        files: The sha256 of each file, by its path in the backup.
        settings: Settings of the collection, such as the tenant's name; empty in backups of format 1.
    """

    documents: int
    fingerprint: str
    created: str
    library_version: str
    files: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


def back_up(store: Store | TenantStores, folder: str | Path) -> Backup:
    """Copy a collection into a new folder, and verify the copy by reading it once.

    Others may read and write meanwhile. A folder of tenants is copied with all of them. (A folder of Qdrant Edge is
    open in one process, which has to make the backup.)

    Args:
        store: Holds a collection; or the stores of all tenants, such as `PgTenants(dsn, "customers")`.
        folder: Folder of the backup; must not exist yet.

    Raises:
        ContextMismatchError: During an export the collection was moved to another context meanwhile.
        StoreError: `folder` exists, cannot be written or is inside a collection's, or there is no collection in the
            store.
        StoreFormatError: The collection is damaged.
        TenantError: The store is the one that tenants on a server have in common.
    """
    tenants = _tenant_stores(store)
    common = store.common() if isinstance(store, TenantStores) else store
    folder = given_path(folder, "The folder of the backup")
    check_path(folder)
    check_outside(folder, own=common.folder if isinstance(common, Folder) else None)
    with _new_folder(folder) as new:
        documents, fingerprint = _copied(common, new)
        if tenants is not None:
            for key in tenants.listed():
                (new / TENANTS / key).mkdir(parents=True)
                with closing(tenants.of(key)) as tenant:
                    documents += _copied(tenant, new / TENANTS / key)[0]
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        settings = dict(common.manifest().settings)
        backup = Backup(documents, fingerprint, created, __version__, _files(new), settings)
        write_new(new / _MANIFEST, json.dumps({"format": FORMAT, **asdict(backup)}, indent=2).encode())
    return backup


def restore(folder: str | Path, store: Store | TenantStores, *, tenant: str | None = None) -> Backup:
    """Restore a collection from a backup into an empty store; every file is compared with its checksum first.

    Args:
        folder: Folder of the backup; not modified.
        store: Empty store. A FaissStore for the backup of one; a store of any kind for other backups. For a backup with
            tenants a folder, or the stores of tenants, such as `PgTenants(dsn, "customers")`.
        tenant: Tenant that the backup must belong to, if the store is a tenant's.

    Raises:
        StoreError: There is a collection already, the store cannot be written or is of another kind, or the backup
            holds a link.
        StoreFormatError: The backup is damaged, of a newer format, or no backup.
        TenantError: It is another tenant's collection.
    """
    folder = given_path(folder, "The folder of the backup")
    check_path(folder)
    backup = _read(folder)
    if tenant is not None:
        check_is_of(backup.settings, tenant)
        if isinstance(store, Folder):
            store.folder.parent.mkdir(exist_ok=True)  # there were no tenants yet
    if isinstance(store, FolderTenants):
        store = store.common()
    if isinstance(store, TenantStores):
        _restore_tenants(folder, store)
        return backup
    if store.exists():
        raise StoreError(f"Expected a store without a collection, found one in {store}. Restore into a new one.")
    if (folder / _EXPORT).exists() and not (folder / TENANTS).exists():
        import_collection(folder / _EXPORT, store)
    elif isinstance(store, Folder):
        check_store_outside(store.folder)
        with _new_folder(store.folder, copied=lambda new: _restore_folder(folder, store, new)):
            pass
    else:
        raise StoreError(
            f"{folder}: expected a folder for this backup, found {store}. Restore it as a folder, then export and "
            "import its collections; or give the stores of tenants, such as PgTenants(dsn, name)."
        )
    return backup


def check_no_tenants(folder: str | Path) -> None:
    """Refuse a backup of several collections, where one is to be opened.

    Raises:
        StoreFormatError: The backup's manifest is damaged, or there is none.
        TenantError: It is a backup of tenants.
    """
    folder = given_path(folder, "The folder of the backup")
    check_path(folder)
    if is_common(_manifest(folder).settings) or (folder / TENANTS).exists():  # format 1 has no settings
        raise TenantError(
            f"{folder} is a backup of tenants. Restore it with cde_rag.transfer.backup.restore(folder, stores), then "
            "open it with Tenants.open(stores)."
        )


def _copied(store: Store, folder: Path) -> tuple[int, str]:
    """Write the backup of one collection into a folder; return its number of documents and fingerprint."""
    if not isinstance(store, CopiedFolder):
        exported = export_collection(store, folder / _EXPORT)
        return exported.documents, exported.fingerprint
    copy = store.copy_to(folder / _COPY)
    for damage in copy.verify():
        raise StoreFormatError(f"{damage.where}: {damage.found} No backup was made. Restore an older one.")
    told = copy.count(), copy.manifest().fingerprint
    copy.close()
    return told


def _tenant_stores(store: Store | TenantStores) -> TenantStores | None:
    """Return the stores of tenants whose common store this is; None for a collection without tenants."""
    if isinstance(store, TenantStores):
        return store
    if not is_common(store.manifest().settings):
        return None
    if not isinstance(store, Folder):
        raise TenantError(
            f"Expected the stores of all tenants, found the one that they have in common: {store}. Give them, such "
            "as PgTenants(dsn, name)."
        )
    return FolderTenants(store.folder, store.at)


def _restore_tenants(folder: Path, stores: TenantStores) -> None:
    """Restore the exports of tenants, and last the common store, without which they cannot be opened."""
    with closing(stores.common()) as common:
        there = stores.listed()
        if there or common.exists():
            raise StoreError(
                f"Expected no tenants at {common!r}, found {len(there)} of them, or of a restore that was interrupted. "
                "Restore under another name, or remove them."
            )
        for path in sorted((folder / TENANTS).iterdir()) if (folder / TENANTS).exists() else ():
            with closing(stores.of(path.name)) as tenant:
                _import(path, tenant)
        _import(folder, common)


def _restore_folder(folder: Path, store: Folder, new: Path) -> None:
    """Restore a copied store folder, tenants included, into a new folder."""
    stores = FolderTenants(new, store.at)
    with closing(stores.common()) as common:
        _restore_collection(folder, common, new)
    keys = (folder / TENANTS).iterdir() if (folder / TENANTS).exists() else ()
    for path in keys:
        with closing(stores.of(path.name)) as tenant:
            (new / TENANTS).mkdir(exist_ok=True)
            _restore_collection(path, tenant, new / TENANTS / path.name)


def _restore_collection(folder: Path, store: Store, new: Path) -> None:
    if not (folder / _EXPORT).exists() and isinstance(store, CopiedFolder):
        copy_durably(folder / _COPY, new)
    else:
        _import(folder, store)


def _import(folder: Path, store: Store) -> None:
    if not (folder / _EXPORT).exists():
        raise StoreError(f"{folder}: a backup of a FaissStore; restore it as one, then export and import that.")
    import_collection(folder / _EXPORT, store)


def _read(folder: Path) -> Backup:
    """Read a backup's manifest, and verify every file against it."""
    backup = _manifest(folder)
    try:
        found = _files(folder)
    except OSError as error:
        raise StoreFormatError(f"{folder}: expected files that can be read, found: {error}.") from error
    for name in sorted(backup.files.keys() | found.keys()):
        if backup.files.get(name) != found.get(name):
            changed = "has changed" if name in backup.files else "was added"
            changed = f"{changed} since the backup was made" if name in found else "is missing in the backup"
            raise StoreFormatError(f"{folder / name} {changed}. Restore another backup.")
    return backup


def _manifest(folder: Path) -> Backup:
    """Read a backup's manifest alone."""
    path = folder / _MANIFEST
    try:
        fields: dict[str, Any] = json.loads(read_file(path))
        if fields.pop("format") > FORMAT:
            raise StoreFormatError(f"{path}: expected format {FORMAT} or older. Update cde-rag to read it.")
        return Backup(**fields)
    except FileNotFoundError as error:
        raise StoreFormatError(
            f"{folder}: expected a backup, found no {_MANIFEST} in it. Name the folder that cde-rag backup made."
        ) from error
    except NotADirectoryError as error:
        raise StoreFormatError(
            f"{folder}: expected the folder of a backup, found a file. cde-rag import reads files of cde-rag export."
        ) from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreFormatError(f"{path}: expected a backup's description of itself, found: {error}.") from error


def _files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a backup except its manifest."""
    files: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        check_no_link(path)
        if path.is_file() and path != folder / _MANIFEST:
            files[path.relative_to(folder).as_posix()] = file_sha256(path)
    return files


@contextmanager
def _new_folder(folder: Path, *, copied: Callable[[Path], None] = Path.mkdir) -> Generator[Path, None, None]:
    """Create a folder under a temporary name; rename it when the block ends, remove it if the block fails."""
    check_path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder}: expected nothing, or an empty folder, found other files. Give another name.")
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        copied(new)
        yield new
        fsync_folder(new)
        new.replace(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise StoreError(f"{folder}: not written ({error}). Choose a writable folder with space.") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)

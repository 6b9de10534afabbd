"""Kinds of stores: folders by the suffix of a new folder's name, servers by the scheme of an address.

Other packages register theirs by an entry point: every command, backups and tenants work with `NAME.sqlite`, and
commands with `mydb://HOST/NAME`. The class takes the folder's path or the address, and is a
`cde_rag.stores.store.Store` over an engine of its own (`cde_rag.stores.engine`, most easily `cde_rag.stores.exact`).
The attribute `folder` and the method `at(folder)` of a store in a folder serve backups and tenants.

    [project.entry-points."cde_rag.stores"]
    sqlite = "my_package:SqliteStore"
    mydb = "my_package:MyStore"
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

from cde_rag._files import given_path, user_path
from cde_rag.errors import StoreError
from cde_rag.stores.files import MARKERS
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_stores import FolderTenants, TenantStores

GROUP: Final = "cde_rag.stores"  # of entry points
Opener: TypeAlias = Callable[[Any], Store]  # from a folder's path or an address


class StoreKind(NamedTuple):
    """A kind of store.

    Attributes:
        name: Suffix of the name of a new folder, or scheme of an address.
        target: "module:class".
        marker: A file in every such folder, whatever its name; None of a server.
        tenants: "module:class" of its stores of tenants; None of folders, whose tenants are in folders too.
    """

    name: str
    target: str
    marker: str | None = None
    tenants: str | None = None


_POSTGRES: Final = (
    "cde_rag.stores.postgres:PgVectorStore.at_address",
    None,
    "cde_rag.stores.postgres:PgTenants.at_address",
)
KINDS: Final = (
    StoreKind("faiss", "cde_rag.stores.faiss:FaissStore", MARKERS["faiss"]),
    StoreKind("qdrant", "cde_rag.stores.qdrant_edge:QdrantEdgeStore", MARKERS["qdrant"]),
    StoreKind("postgresql", *_POSTGRES),
    StoreKind("postgres", *_POSTGRES),
)
_FOLDERS: Final = tuple(kind for kind in KINDS if kind.marker is not None)


def store_at(place: str | Path) -> Store:
    """Return the store at an address, or in a folder: of the kind of its files, else of its name's suffix, else FAISS.

    Raises:
        MissingExtraError: A library of this kind of store is not installed.
        StoreError: An empty path, an unknown scheme or an address that cannot be read; or the package that registers
            the suffix cannot be imported, or two packages register it.
    """
    if (server := _server(place)) is not None:
        return _load(server.target)(place)
    path = given_path(place, "The collection")
    return kind_at(path)(path)


def temporary_store() -> Store:
    """Return a new FaissStore in a temporary folder, which is deleted with it or when the process ends.

    Raises:
        MissingExtraError: faiss is not installed.
    """
    folder = Path(tempfile.mkdtemp(prefix="cde-rag-")).resolve()
    try:
        store = store_at(folder / "temporary.faiss")
    except BaseException:
        _remove(folder, os.getpid())
        raise
    weakref.finalize(store, _remove, folder, os.getpid())
    return store


def _remove(folder: Path, process: int) -> None:
    """Delete a folder, but not in a process that was forked from the one that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def shown_place(place: str | Path) -> str:
    """Return the path of a collection, or its address without passwords and secrets."""
    if "://" not in str(place):
        return str(place)
    from cde_rag.stores.postgres.address import without_password

    return without_password(str(place))


def check_there(place: str | Path, store: Store) -> None:
    """Refuse a folder or an address without a collection.

    Raises:
        StoreError: There is none; the message names one next to a folder of documents, or how to make one.
    """
    if store.exists():
        return
    path = user_path(place)
    if _server(place) is not None or not path.is_dir() or not any(path.iterdir()):
        shown = shown_place(place)
        raise StoreError(f"{shown}: expected a collection, found none. Make one with: cde-rag index SOURCE {shown}")
    names = [path.resolve().with_name(f"{path.resolve().name}.{kind.name}") for kind in _FOLDERS]
    found = [name for name, kind in zip(names, _FOLDERS, strict=True) if (name / str(kind.marker)).exists()]
    hint = f"Open {found[0].name}, next to it." if found else f"Make one with: cde-rag index {path} {names[0].name}"
    raise StoreError(f"{path}: expected a collection, found a folder with other files. {hint}")


def tenants_at(place: str | Path) -> TenantStores:
    """Return the stores of tenants at an address or in a folder.

    Raises:
        MissingExtraError, StoreError: As `store_at`.
    """
    if (server := _server(place)) is None:
        return FolderTenants(place, kind_at(user_path(place)))
    if server.tenants is None:
        shown = shown_place(place)
        raise StoreError(f"{shown}: expected a kind of store with tenants, found {server.name}://, which has none.")
    return cast(TenantStores, _load(server.tenants)(place))


def _server(place: str | Path) -> StoreKind | None:
    """Return the kind of an address, by its scheme; None for a folder."""
    scheme, found, _ = str(place).partition("://")
    if not found or isinstance(place, Path):
        return None
    servers = [kind for kind in KINDS if kind.marker is None]
    kind = next((kind for kind in servers if kind.name == scheme), None) or _registered(scheme)
    if kind is None:
        known = ", ".join(f"{one.name}://" for one in servers)
        raise StoreError(f"Expected a folder or an address that begins with {known}, found {scheme}://.")
    return kind


def kind_at(path: Path) -> Opener:
    """Return the class of the store at a path, or for a new one there: by its files, then by its suffix, else FAISS.

    Raises:
        StoreError: The package that registers the suffix cannot be imported, or two packages register it.
    """
    by_files = next((kind for kind in _FOLDERS if (path / str(kind.marker)).exists()), None)
    by_suffix = next((kind for kind in _FOLDERS if path.suffix == f".{kind.name}"), None)
    return _load((by_files or by_suffix or _registered(path.suffix[1:]) or _FOLDERS[0]).target)


def _registered(name: str) -> StoreKind | None:
    """Return the kind that another package registers under a suffix or a scheme; None if there is none."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if len(found) > 1:
        targets = ", ".join(sorted(point.value for point in found))
        raise StoreError(f"Expected one package that registers {name!r}, found {len(found)}: {targets}. Uninstall one.")
    return StoreKind(name, found[0].value) if found else None


def _load(target: str) -> Opener:
    try:
        return cast(Opener, EntryPoint("store", target, GROUP).load())
    except (ImportError, AttributeError) as error:
        raise StoreError(f"Expected the store {target}, found: {error}. Install its package.") from error

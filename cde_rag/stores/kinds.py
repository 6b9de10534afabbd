"""Kinds of stores: folders by the suffix of a new folder's name, servers by the scheme of an address.

Other packages register theirs. With a class for `NAME.sqlite` as an entry point, every command, backups and tenants
work with it. The class takes the folder's path and implements `cde_rag.stores.base.Store`, most easily as a
`cde_rag.stores.table_store.TableStore`; its attribute `folder` and its method `at(folder)` serve backups and tenants.

    [project.entry-points."cde_rag.stores"]
    sqlite = "my_package:SqliteStore"
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

from cde_rag.errors import StoreError
from cde_rag.stores.base import Store
from cde_rag.stores.tenant_stores import FolderTenants, TenantStores

GROUP: Final = "cde_rag.stores"  # of entry points
Opener: TypeAlias = Callable[[Any], Store]  # from a folder's path or an address


class StoreKind(NamedTuple):
    """A kind of store.

    Attributes:
        suffix: End of the name of a new folder.
        marker: A file in every such folder, whatever its name.
        target: "module:class".
    """

    suffix: str
    marker: str
    target: str


KINDS: Final = (
    StoreKind(".faiss", "collection.sqlite", "cde_rag.stores.faiss:FaissStore"),
    StoreKind(".qdrant", "cde.json", "cde_rag.stores.qdrant_edge:QdrantEdgeStore"),
)


_POSTGRES: Final = ("cde_rag.stores.postgres:PgVectorStore.at_address", "cde_rag.stores.postgres:PgTenants.at_address")
SERVERS: Final = {"postgresql": _POSTGRES, "postgres": _POSTGRES}  # scheme → one store, stores of tenants


def store_at(place: str | Path) -> Store:
    """Return the store at an address, or in a folder: of the kind of its files, else of its name's suffix, else FAISS.

    Raises:
        MissingExtraError: A library of this kind of store is not installed.
        StoreError: An unknown scheme or an address that cannot be read; or the package that registers the suffix cannot
            be imported, or two packages register it.
    """
    if (servers := _servers(place)) is not None:
        return _load(EntryPoint("store", servers[0], GROUP))(place)
    return kind_at(Path(place))(Path(place))


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


def check_there(place: str | Path, store: Store) -> None:
    """Refuse a folder or an address without a collection.

    Raises:
        StoreError: There is none; the message names one that lies next to a folder of documents, or how to make one.
    """
    if store.exists():
        return
    path = Path(place)
    if _servers(place) is not None or not path.is_dir() or not any(path.iterdir()):
        raise StoreError(f"{place}: expected a collection, found none. Make one with: cde-rag index SOURCE {place}")
    names = [path.resolve().with_name(f"{path.resolve().name}{kind.suffix}") for kind in KINDS]
    found = [name for name, kind in zip(names, KINDS, strict=True) if (name / kind.marker).exists()]
    hint = f"Open {found[0].name}, next to it." if found else f"Make one with: cde-rag index {path} {names[0].name}"
    raise StoreError(f"{path}: expected a collection, found a folder with other files. {hint}")


def tenants_at(place: str | Path) -> TenantStores:
    """Return the stores of tenants at an address or in a folder.

    Raises:
        MissingExtraError, StoreError: As `store_at`.
    """
    if (servers := _servers(place)) is not None:
        return cast(TenantStores, _load(EntryPoint("tenants", servers[1], GROUP))(place))
    return FolderTenants(place, kind_at(Path(place)))


def _servers(place: str | Path) -> tuple[str, str] | None:
    """Return the classes for an address's scheme; None for a folder."""
    scheme, found, _ = str(place).partition("://")
    if not found or isinstance(place, Path):
        return None
    if scheme not in SERVERS:
        known = ", ".join(f"{one}://" for one in SERVERS)
        raise StoreError(f"Expected a folder or an address that begins with {known}, found {scheme}://.")
    return SERVERS[scheme]


def kind_at(path: Path) -> Opener:
    """Return the class of the store at a path, or for a new one there: by its files, then by its suffix, else FAISS.

    Raises:
        StoreError: The package that registers the suffix cannot be imported, or two packages register it.
    """
    for kind in KINDS:
        if (path / kind.marker).exists():
            return _load(EntryPoint(kind.suffix, kind.target, GROUP))
    for kind in KINDS:
        if path.suffix == kind.suffix:
            return _load(EntryPoint(kind.suffix, kind.target, GROUP))
    registered = [point for point in entry_points(group=GROUP) if f".{point.name}" == path.suffix]
    if len(registered) > 1:
        raise StoreError(f"{path}: expected one package that registers {path.suffix}, found {_names(registered)}.")
    return _load(registered[0] if registered else EntryPoint("faiss", KINDS[0].target, GROUP))


def _load(point: EntryPoint) -> Opener:
    try:
        return cast(Opener, point.load())
    except (ImportError, AttributeError) as error:
        raise StoreError(f"Expected the store {point.value}, found: {error}. Install its package.") from error


def _names(points: list[EntryPoint]) -> str:
    return f"{len(points)}: {', '.join(sorted(point.value for point in points))}"

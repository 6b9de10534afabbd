"""Kinds of stores that are folders, by the suffix of a new folder's name; other packages register theirs.

A package registers a class for `NAME.sqlite` by an entry point, and every command, backups and tenants then work with
it. The class takes the folder's path and implements `cde_rag.stores.base.Store`, most easily as a
`cde_rag.stores.table_store.TableStore`; its attribute `folder` and its method `at(folder)` serve backups and tenants.

    [project.entry-points."cde_rag.stores"]
    sqlite = "my_package:SqliteStore"
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

from cde_rag.errors import StoreError
from cde_rag.stores.base import Store

GROUP: Final = "cde_rag.stores"  # of entry points
Opener: TypeAlias = Callable[[Path], Store]


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

"""Settings of a collection, which its store keeps."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cde_rag._version import __version__
from cde_rag.embedders.protocol import Embedder
from cde_rag.indexing.headers import check_headers
from cde_rag.readers.reading_rules import NEWEST as NEWEST_READING
from cde_rag.readers.reading_rules import READING
from cde_rag.records import check_key
from cde_rag.search.calibration import CALIBRATION
from cde_rag.stores.store import Store
from cde_rag.stores.text_analysis import ANALYZER, NEWEST

HYBRID_WEIGHT: Final = "hybrid_weight"  # key of the weight of vectors in hybrid search


def _check_parent_key(parent_key: str | None, *, siblings: int) -> None:
    """Refuse a parent key that names no field, or that a model without siblings has no use for."""
    if parent_key is not None:
        check_key(parent_key, "parent_key")
    if parent_key is not None and not siblings:
        raise ValueError(
            f"This model reads no siblings, found parent_key={parent_key!r}. Leave it out, or give the siblings of a "
            "plain embedder a weight: ArithmeticEmbedder.from_corpus(texts, model=embedder, weight=0.3)."
        )


def create_in(store: Store, embedder: Embedder, settings: Mapping[str, Any]) -> None:
    """Make an empty collection in a store, in the embedder's context; raises as `Store.create`."""
    context = embedder.context.to_bytes()
    store.create(dim=embedder.dim, fingerprint=embedder.fingerprint, context=context, settings=settings)


def settings_of(embedder: Embedder, parent_key: str | None, headers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings of a new collection, stored with its context.

    Raises:
        TypeError: One `str` in place of headers, or a key that is none.
        ValueError: A key that is empty or one of and, or, not, or a `parent_key` for a model that reads no siblings.
    """
    _check_parent_key(parent_key, siblings=embedder.max_siblings)
    headers = check_headers(headers)
    return {
        "parent_key": parent_key,
        **({"headers": headers} if headers else {}),
        ANALYZER: NEWEST.name,
        READING: NEWEST_READING.settings(),
        CALIBRATION: {},
        "model": embedder.context.identity.name,
        "library_version": __version__,
    }

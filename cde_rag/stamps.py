"""Stamps: the vector space's fingerprint as metadata, in any store that keeps metadata alongside its vectors.

    collection.modify(metadata=stamp(embedder.fingerprint))                  # when the vectors are written
    check(collection.metadata, embedder.fingerprint, where=collection.name)  # before they are searched

Two runs of one program can disagree about model, context or prefixes without an error anywhere: the vectors have the
same length, and the search returns wrong results. A stamp makes that an error.

Stores of this library need no stamp. Their fingerprint is computed in `cde_rag.context.context`, and compared by
`cde_rag.stores.manifests.check_space` in each write and search.
"""

from collections.abc import Mapping
from typing import Any, Final

from cde_rag.errors import ContextMismatchError, ContextMissingError

KEY: Final = "cde_fingerprint"


def stamp(fingerprint: str) -> dict[str, str]:
    """Return metadata with a fingerprint; merge them into those of a collection, table or index."""
    return {KEY: fingerprint}


def stamped(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the fingerprint in a store's metadata; None if there is no stamp."""
    found = (metadata or {}).get(KEY)
    return found if isinstance(found, str) else None


def check(metadata: Mapping[str, Any] | None, fingerprint: str, *, where: str) -> None:
    """Refuse to write to, or search, vectors of another space.

    Args:
        metadata: Metadata of the store; other keys are ignored.
        fingerprint: Fingerprint of the embedder of the texts or queries.
        where: The store's name or path, for messages.

    Raises:
        ContextMismatchError: The stamp is of another model or context.
        ContextMissingError: There is no stamp, so that the vectors may be of any model.
    """
    found = stamped(metadata)
    if found is None:
        raise ContextMissingError(
            f"{where}: expected the stamp {KEY!r}, which names the model and context of the vectors, found none. "
            "Compare the vectors with this embedder's by `cde-rag audit`; if they are the same, add "
            "cde_rag.stamps.stamp(embedder.fingerprint) to the metadata, else embed the texts again."
        )
    if found != fingerprint:
        raise ContextMismatchError(
            expected=found, found=fingerprint, remedy=f"Search {where} with the embedder that filled it."
        )

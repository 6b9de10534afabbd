"""Collections that begin without documents, and move to a context of their own when there are enough."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cde_rag.collection.settings import create_in, settings_of
from cde_rag.context.identity import PLAIN
from cde_rag.embedders.protocol import unwrapped
from cde_rag.errors import CDEWarning, StoreError, warn_user
from cde_rag.stores.store import Store

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.embedders.contextual import AnyModel, ContextualEmbedder

MOVES_AT: Final = "moves_at"  # key of the number of records at which a collection moves to a context of its own
AT_ONCE: Final = 1  # of a collection that gets its documents now, and its vectors after the move
_NUMBERS: Final = (64, 512)  # enough to show common features; as many as a context has


def create_without_documents(
    store: Store, model: "AnyModel", parent_key: str | None, *, at: int = _NUMBERS[0]
) -> "ContextualEmbedder":
    """Make an empty collection in the context of no corpus, which moves by itself at 64 and at 512 records.

    Args:
        store: Store without a collection.
        model: As in `ContextualEmbedder.from_corpus`.
        parent_key: As in `Collection.create`, if the model reads siblings.
        at: Number of records at which it moves first; with `AT_ONCE` it moves once, before the first vector is made by
            `embed_pending`.

    Returns:
        The embedder to open it with: no name says where an API or an object is.

    Raises:
        ModelError: No such model.
        StoreError: There is a collection already, or the place is not writable.
    """
    from cde_rag.embedders.contextual import ContextualEmbedder, as_model
    from cde_rag.embedders.corpus_contexts import first_context

    loaded = as_model(model)
    embedder = ContextualEmbedder(loaded, first_context(loaded))
    settings = settings_of(embedder, parent_key if embedder.max_siblings else None)
    create_in(store, embedder, {**settings, MOVES_AT: at})
    return embedder


def moves_at(settings: Mapping[str, Any]) -> float:
    """Return the number of records at which a collection moves to a context of its own; infinite if it has one."""
    number = settings.get(MOVES_AT)
    return math.inf if number is None else float(number)


def move(collection: "Collection") -> None:
    """Move a collection to a context of its own records.

    Warns:
        CDEWarning: Another run is in progress, or the store cannot be written; the records are there.
    """
    from cde_rag.embedders.contextual import contextual

    store, own = collection.store, contextual(unwrapped(collection.embedder))
    is_plain = own is not None and own.context.identity.attention == PLAIN  # its first Context is of no corpus
    try:
        collection.recontextualize(model=own if is_plain else None, embed="later")
    except StoreError as error:
        warn_user(
            f"The records are added, but not embedded in a context of their own. {error} "
            "collection.recontextualize() does it; so does the next add.",
            CDEWarning,
        )
    else:
        count, manifest = store.count(), store.manifest()
        first = manifest.settings.get(MOVES_AT) == AT_ONCE
        if first:  # nobody asked for the context before, so that nobody returns to it
            for generation in store.generations():
                if generation.number != manifest.generation:
                    store.drop(generation.number)
        store.update_settings({MOVES_AT: next((n for n in _NUMBERS if n > count and not first), None)})

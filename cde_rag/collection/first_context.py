"""Collections that begin without documents, and move to a context of their own when there are enough."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cde_rag.collection.settings import create_in, settings_of
from cde_rag.context.context import Context
from cde_rag.context.identity import PLAIN
from cde_rag.embedders.active import stored_context
from cde_rag.embedders.protocol import unwrapped
from cde_rag.errors import CDEWarning, StoreError, warn_user
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState

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


def is_unfinished(settings: Mapping[str, Any]) -> bool:
    """Return True if the first run of `cde-rag index` was stopped, or goes on: its sources may not all be read."""
    return moves_at(settings) == AT_ONCE


def is_first(context: Context) -> bool:
    """Return True for a Context that was made without documents."""
    return context.manifest.sampling == "none"


def move(collection: "Collection") -> bool:
    """Move a collection to a context of its own records; return False, with a warning, if that cannot be now.

    One that is to move once, and that somebody gave a context meanwhile, keeps that.

    Warns:
        CDEWarning: Another run is in progress, or the store cannot be written; the records are there.
    """
    from cde_rag.embedders.contextual import contextual

    store, embedder = collection.store, collection.embedder
    own = contextual(unwrapped(embedder))
    is_plain = own is not None and own.context.identity.attention == PLAIN  # its first Context is of no corpus
    try:
        if is_first(embedder.context) or moves_at(store.manifest().settings) != AT_ONCE:
            collection.recontextualize(model=own if is_plain else None, embed="later")
    except StoreError as error:
        warn_user(
            f"The records are added, but not embedded in a context of their own. {error} "
            "collection.recontextualize() does it; so does the next add.",
            CDEWarning,
        )
        return False
    store.write(_end_move)
    return True


def _end_move(state: StoreState) -> None:
    """Note when a collection moves again; drop the first generation of one that moves once.

    Nobody asked for its context, so that nobody returns to it. Other runs may have made generations meanwhile.
    """
    count, manifest = state.count(), state.manifest()
    at = moves_at(manifest.settings)
    for generation in state.generations() if at == AT_ONCE else ():
        if generation.number < manifest.generation and is_first(stored_context(state, generation.number)):
            state.drop(generation.number)
    later = (number for number in _NUMBERS if number > count) if AT_ONCE < at < math.inf else ()
    state.update_settings({MOVES_AT: next(iter(later), None)})

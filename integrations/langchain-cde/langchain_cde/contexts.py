"""Contexts brought back from where they are kept, each with its model; errors name the remedies of this package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cde_rag import CDEModel, Context, ContextFormatError, ContextMissingError, ContextualEmbedder, ModelError

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

_REMEDIES = {  # the core's, and what does it here
    "embedder.context.save(path)": "embeddings.save(path)",
    "write_context": "embeddings.save_to_qdrant(client, collection)",
    "Name one.": "Name one with fingerprint=….",
}


def from_file(path: str | Path, model: str | Path | CDEModel | None) -> ContextualEmbedder:
    """Load a context from a file, and its model; errors name the methods of CDEEmbeddings as remedy."""
    with _own_remedies():
        context = Context.load(path)
    return _bound(context, model)


def from_qdrant(
    client: "QdrantClient", collection: str, fingerprint: str | None, model: str | Path | CDEModel | None
) -> ContextualEmbedder:
    """Load a context stored with a Qdrant collection, and its model; errors name the methods of CDEEmbeddings."""
    from cde_rag.stores.qdrant import read_context

    with _own_remedies():
        context = read_context(client, collection, fingerprint)
    return _bound(Context.from_bytes(context, where=f"The context of the collection {collection!r}"), model)


@contextmanager
def _own_remedies() -> Iterator[None]:
    """Replace core functions named as the remedy in an error by the corresponding methods of CDEEmbeddings."""
    try:
        yield
    except (ContextMissingError, ContextFormatError) as error:
        message = str(error)
        for theirs, ours in _REMEDIES.items():
            message = message.replace(theirs, ours)
        error.args = (message,)
        raise


def _bound(context: Context, model: str | Path | CDEModel | None) -> ContextualEmbedder:
    """Bind the context to the given model, or to the one that it names."""
    name = context.identity.name
    try:
        return ContextualEmbedder(name if model is None else model, context)
    except ModelError as error:
        raise ModelError(f"The context was made by the model {name!r}. {error} Give its folder as model=….") from error

"""Contexts brought back from where they are kept, each with its model; errors name the remedies of this package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from langchain_core.embeddings import Embeddings

from cde_rag import Context, ContextualEmbedder, FunctionEmbedder
from cde_rag.context.cache import cache_or_warn, cached_context, cached_path
from cde_rag.embedders.active import loaded
from cde_rag.embedders.contextual import AnyModel
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextFormatError, ContextMissingError, ModelError
from cde_rag.models.named import is_served
from cde_rag.models.plain.function_model import FUNCTION

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

_REMEDIES = {  # the core's, and what does it here
    "embedder.context.save(path)": "embeddings.save(path)",
    "write_context": "embeddings.save_to_qdrant(client, collection)",
    "Name one.": "Name one with fingerprint=….",
}


def function_of(embeddings: Embeddings) -> ContextualEmbedder:
    """Wrap a user's own Embeddings; its class and its `model` or `model_name` are the name."""
    told = (getattr(embeddings, attribute, None) for attribute in ("model", "model_name"))
    model = next((name for name in told if isinstance(name, str)), "")
    return FunctionEmbedder(
        embeddings.embed_documents,
        name=f"{type(embeddings).__name__}({model})",
        query_function=lambda texts: [embeddings.embed_query(text) for text in texts],
    )


def from_file(path: str | Path, model: "AnyModel | Embeddings | None") -> Embedder:
    """Load a context from a file, and its model; errors name the methods of CDEEmbeddings as remedy."""
    with _own_remedies():
        context = Context.load(path)
    return _bound(context, model)


def from_qdrant(
    client: "QdrantClient", collection: str, fingerprint: str | None, model: "AnyModel | Embeddings | None"
) -> Embedder:
    """Load a context stored with a Qdrant collection, and its model; errors name the methods of CDEEmbeddings."""
    from cde_rag.stores.qdrant import read_context

    with _own_remedies():
        context = read_context(client, collection, fingerprint)
    return _bound(Context.from_bytes(context, where=f"The context of the collection {collection!r}"), model)


def cache(context: Context) -> None:
    """Write a context to the user's cache, from which `from_cache` loads it in another process.

    Warns:
        CDEWarning: The cache is not writable.
    """
    cache_or_warn(context, otherwise="Without embeddings.save(path) it is lost with this process.")


def from_cache(fingerprint: str) -> Embedder:
    """Load the context of a stamp from the user's cache, and its model.

    Raises:
        ContextFormatError: The file is damaged.
        ContextMissingError: It is not there.
        ModelError: It was made by your own Embeddings.
    """
    context = cached_context(fingerprint)
    if context is None:
        raise ContextMissingError(
            f"The vectors were made in the context {fingerprint[:16]}…, which is not in this user's cache "
            f"({cached_path(fingerprint)}). Bring it from where they were made: embeddings.save(path) there, "
            "CDEEmbeddings.load(path) here. The same documents make the same context: "
            "CDEEmbeddings.from_documents(documents)."
        )
    return _bound(context, None)


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


def _bound(context: Context, model: "AnyModel | Embeddings | None") -> Embedder:
    """Bind the context to the given model, or to the one that it names."""
    name = context.identity.name
    unnamed = model is None or (isinstance(model, str | Path) and not is_served(model))
    if context.identity.pooling == FUNCTION and unnamed:
        raise ModelError(
            f"The context was made by the Embeddings {name!r}, found model={model!r:.80}. Give them as model=…, or a "
            "model that an API serves by its name, such as openai:text-embedding-3-small."
        )
    try:
        return loaded(context, model=function_of(model) if isinstance(model, Embeddings) else model)
    except ModelError as error:
        raise ModelError(f"The context was made by the model {name!r}. {error} Give its folder as model=….") from error

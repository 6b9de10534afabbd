"""A user's own embedding of LlamaIndex as an embedder of cde-rag, whose vectors get context by arithmetic."""

from llama_index.core.base.embeddings.base import BaseEmbedding

from cde_rag import Context, ContextualEmbedder, FunctionEmbedder
from cde_rag.errors import ContextMismatchError, ModelError
from cde_rag.models.named import is_served
from cde_rag.models.plain.function_model import FUNCTION


def name_of(model: BaseEmbedding) -> str:
    """Return the class and the model's name, which are part of the fingerprint."""
    return f"{type(model).__name__}({model.model_name})"


def function_of(model: BaseEmbedding) -> ContextualEmbedder:
    """Wrap a user's own embedding; it embeds eight fixed texts at once, as documents and as queries.

    Raises:
        ModelError: It returns other than one finite vector for each text.
        TypeError: It has a cache.
    """
    if model.embeddings_cache is not None:
        raise TypeError(
            f"{name_of(model)} has an embeddings_cache, whose keys name neither the model nor the role. Give the cache "
            "to CDEEmbedding instead: CDEEmbedding(model=…, embeddings_cache=…)."
        )
    return FunctionEmbedder(
        model.get_text_embedding_batch,
        name=name_of(model),
        query_function=lambda texts: [model.get_query_embedding(text) for text in texts],
        mini_batch_size=model.embed_batch_size,
    )


def check_owner(context: Context, model: BaseEmbedding | None, model_name: str) -> None:
    """Refuse a context of a user's own embedding or of an API without it, and that of another model with an own one.

    Args:
        context: The context.
        model: The user's own embedding, if it was given.
        model_name: Name of the model.

    Raises:
        ContextMismatchError: The context was made by a model of cde-rag, and an own embedding was given.
        ModelError: The context was made by an own embedding or an API, which was not given.
    """
    name, own = context.identity.name, context.identity.pooling == FUNCTION
    if own and model is None and not is_served(model_name):
        raise ModelError(
            f"The vectors were made with your own embedding {name!r}, which no file holds. Give it: "
            "CDEEmbedding(model=…); or, of an API, by its address: CDEEmbedding(model_name=…)."
        )
    if model is not None and not own:
        remedy = f"The vectors were made with the model {name!r}, found {name_of(model)!r}: leave model out."
        raise ContextMismatchError(expected=context.fingerprint, found=name_of(model), remedy=remedy)

"""Embedder of an OpenAI-compatible API: OpenAI's own, or a server such as vLLM, Ollama or text-embeddings-inference."""

from collections.abc import Mapping

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import first_context
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.models.plain.api_model import MINI_BATCH_SIZE, api_client, api_model


def openai_embedder(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    dimensions: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    mini_batch_size: int = MINI_BATCH_SIZE,
    max_retries: int = 5,
    timeout_s: float = 60.0,
) -> ContextualEmbedder:
    """Make an embedder of a model that an OpenAI-compatible API serves.

    Two short calls are made at once, to know the model by its vectors. `embedder.count_tokens(texts)` estimates what
    texts are going to cost, without a call. Neither address nor key is stored with vectors; a collection is opened with
    `Collection.open(store, model=embedder)`.

    Args:
        model: Such as "text-embedding-3-small".
        base_url: Address of the API, such as "http://localhost:8000/v1"; that of OpenAI by default.
        api_key: By default the environment's OPENAI_API_KEY; local servers mostly take any.
        dimensions: Length of the vectors, for models that can shorten them.
        prefixes: Prefixes of a "query" and a "document"; none by default.
        mini_batch_size: Most texts of a call; long ones go in calls of fewer.
        max_retries: Retries of a call that failed by the network, a limit or the server, after growing pauses.
        timeout_s: Seconds that a call may take.

    Raises:
        MissingExtraError: The extra `openai` is not installed.
        ModelError: There is no key, or the API does not answer with one vector for each text.
        TypeError: `dimensions` or `mini_batch_size` is no whole number.
        ValueError: One of them is below 1.
    """
    client = api_client(base_url, api_key, max_retries=max_retries, timeout_s=timeout_s)
    made = api_model(client, model, dimensions=dimensions, prefixes=prefixes, mini_batch_size=mini_batch_size)
    return ContextualEmbedder(made, first_context(made), options=EmbedderOptions(mini_batch_size=mini_batch_size))

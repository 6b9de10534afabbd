"""LlamaIndex events of an embedding: start and end, with the model's name, without texts."""

from collections.abc import Iterator
from contextlib import contextmanager

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent, EmbeddingStartEvent
from llama_index_instrumentation import get_dispatcher

dispatcher = get_dispatcher(__name__)


@contextmanager
def announced(embedding: BaseEmbedding) -> Iterator[None]:
    """Send the start event when the context is entered and the end event when it is left."""
    payload = embedding.to_payload()
    dispatcher.event(EmbeddingStartEvent(model_dict=payload))
    with embedding.callback_manager.event(CBEventType.EMBEDDING, {EventPayload.SERIALIZED: payload}) as event:
        yield
        event.on_end(payload={EventPayload.CHUNKS: [], EventPayload.EMBEDDINGS: []})
    dispatcher.event(EmbeddingEndEvent(chunks=[], embeddings=[]))

"""The embedding of an index over a collection: documents are left to the collection, queries are embedded."""

import inspect
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from typing_extensions import override

from cde_rag import Collection, ContextError

DEFERRED: Embedding = []  # what a node carries whose vector the collection makes


class EmbeddingStore(BasePydanticVectorStore):
    """A store that makes the vectors of its nodes itself."""


class CollectionEmbedding(BaseEmbedding):
    """Embeds in the context of a collection, but leaves to it the documents that it will store.

    An index asks for the vectors of its nodes as bare strings, and only then gives the nodes to its store. The
    collection embeds nodes itself, since it alone knows their siblings; so what an index or pipeline over a
    CDEVectorStore gets from here is empty. Other callers get real vectors, without siblings, and other stores an error.

    Args:
        collection: In whose context queries are embedded.
    """

    _collection: Collection = PrivateAttr()

    def __init__(self, collection: Collection) -> None:
        super().__init__(model_name=collection.embedder.context.identity.name)
        self._collection = collection

    @classmethod
    @override
    def class_name(cls) -> str:
        """The name under which LlamaIndex writes it down."""
        return "CollectionEmbedding"

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """The fields, with the fingerprint, and a number that keeps caches of pipelines from handing on nothing."""
        space = self._collection.embedder.fingerprint
        return {**super().to_dict(**kwargs), "fingerprint": space, "deferred": uuid4().hex}

    @override
    def get_text_embedding_batch(self, texts: list[str], show_progress: bool = False, **kwargs: Any) -> list[Embedding]:
        """Nothing for a CDEVectorStore, which embeds by itself; vectors for others.

        Raises:
            ContextError: The vectors would go to another store.
        """
        if _for_collection():
            return [DEFERRED] * len(texts)
        return self._collection.embedder.embed_documents(texts, progress=show_progress).tolist()

    @override
    async def aget_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> list[Embedding]:
        """As `get_text_embedding_batch`."""
        return self.get_text_embedding_batch(texts, show_progress)

    @override
    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Mark the nodes of a pipeline as ready for its CDEVectorStore."""
        if _for_collection():
            for node in nodes:
                node.embedding = DEFERRED
        return nodes

    @override
    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """As `__call__`."""
        return self(nodes, **kwargs)

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Refuses to go to a worker process, whose nodes would come back as if they had been embedded."""
        raise ContextError("The embedding of a collection stays in its process: run the pipeline without num_workers.")

    @override
    def _get_query_embedding(self, query: str) -> Embedding:
        return self._collection.embedder.embed_queries([query])[0].tolist()

    @override
    async def _aget_query_embedding(self, query: str) -> Embedding:
        return self._get_query_embedding(query)

    @override
    def _get_text_embedding(self, text: str) -> Embedding:
        return self._collection.embedder.embed_documents([text])[0].tolist()


def _for_collection() -> bool:
    """Whether the nearest index or pipeline on the stack stores in a collection.

    Raises:
        ContextError: It stores elsewhere.
    """
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, BaseIndex):
            return _embeds_itself(owner.storage_context.vector_store)
        if isinstance(owner, IngestionPipeline):
            return _embeds_itself(owner.vector_store)
        frame = frame.f_back
    return False


def _embeds_itself(store: BasePydanticVectorStore | None) -> bool:
    if isinstance(store, EmbeddingStore):
        return True
    raise ContextError(
        f"This embedding leaves documents to the CDEVectorStore that it is from, and found {type(store).__name__}. "
        "For other stores there is CDEEmbedding, in llama-index-embeddings-cde."
    )

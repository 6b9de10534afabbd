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

from cde_rag import Collection
from cde_rag.errors import ContextError

DEFERRED: Embedding = []  # what a node carries whose vector the collection makes


class EmbeddingStore(BasePydanticVectorStore):
    """A store that makes the vectors of its nodes itself."""


class CollectionEmbedding(BaseEmbedding):
    """Embedding model in a collection's context that leaves documents for the collection to embed.

    An index embeds its nodes as bare strings first, and only then passes the nodes to its store. The collection embeds
    nodes itself, since only it knows their siblings; therefore an index or pipeline over a CDEVectorStore gets empty
    vectors from this class. Other callers get real vectors, without siblings, and other stores an error.

    Args:
        collection: Collection whose context is used.
    """

    _collection: Collection = PrivateAttr()

    def __init__(self, collection: Collection) -> None:
        super().__init__(model_name=collection.embedder.context.identity.name)
        self._collection = collection

    @classmethod
    @override
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex's serialised form."""
        return "CollectionEmbedding"

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the fields, the fingerprint, and a random number that keeps pipelines from caching empty vectors."""
        space = self._collection.embedder.fingerprint
        return {**super().to_dict(**kwargs), "fingerprint": space, "deferred": uuid4().hex}

    @override
    def get_text_embedding_batch(self, texts: list[str], show_progress: bool = False, **kwargs: Any) -> list[Embedding]:
        """Return empty vectors for a CDEVectorStore, which embeds by itself; real vectors for others.

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
        """Call `get_text_embedding_batch`."""
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
        """Call `__call__`."""
        return self(nodes, **kwargs)

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Refuse pickling for a worker process, whose nodes would come back without vectors."""
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
    """Return True if the nearest index or pipeline on the stack stores in a collection.

    Raises:
        ContextError: It has another store.
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

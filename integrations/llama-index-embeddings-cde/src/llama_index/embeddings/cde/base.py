"""CDEEmbedding: cde-rag's embedder for LlamaIndex. Its checks of the context are in fitting.py."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.ingestion import run_transformations
from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.embeddings.cde.binding import DEFAULT_MODEL
from llama_index.embeddings.cde.caching import through_cache
from llama_index.embeddings.cde.callers import Caller, caller_of, is_empty
from llama_index.embeddings.cde.events import announced
from llama_index.embeddings.cde.fitting import FittedEmbedding
from llama_index.embeddings.cde.marks import mark_nodes
from llama_index.embeddings.cde.parts import divided, in_place, insert_parts, waiting_nodes
from llama_index.embeddings.cde.spaces import check_alike
from llama_index.embeddings.cde.texts import check_fits, content, embed_documents, nodes_only
from typing_extensions import override

from cde_rag import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import first_context


class CDEEmbedding(FittedEmbedding):
    """Contextual document embeddings, in one context that is made once from a corpus.

    Without a file at `context_path`, the context is made in the first build of an index, run of a pipeline or direct
    call of `get_text_embedding_batch`, from all texts of that call. Documents that are inserted into an empty index are
    embedded in the null context, with a warning. Queries, other inserted or refreshed documents and a splitter's
    sentences are refused until there is a context, since they are no sample of the corpus.

    A node that is longer than the model's window is indexed by its parts, and retrieved with its best part's score.
    Texts that come without nodes are read in windows if `windows` says so, else refused if they are too long.

    As a transformation it gets nodes, and embeds each with its siblings: the nodes of the same source document.

    Examples:
        embedding = CDEEmbedding(context_path="papers.context.safetensors")
        transformations = [SentenceSplitter(chunk_size=170, chunk_overlap=20), embedding]
        index = VectorStoreIndex.from_documents(documents, transformations=transformations, embed_model=embedding)
    """

    @classmethod
    @override
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex's serialised form."""
        return "CDEEmbedding"

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[BaseNode],
        *,
        transformations: Sequence[TransformComponent] | None = None,
        model_name: str = DEFAULT_MODEL,
        model: BaseEmbedding | None = None,
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
    ) -> "CDEEmbedding":
        """Make the context of documents, split as `VectorStoreIndex.from_documents` splits them.

        Args:
            documents: The complete corpus.
            transformations: Those of the index, without the embedding; `Settings.transformations` by default.
            model_name: As in the class.
            model: As in the class.
            context_size: As in the class.
            seed: As in the class.
            windows: As in the class.

        Raises:
            CorpusError: No text.
            TypeError: Something else than Documents or nodes; or a field of a bundled model beside `model`.
        """
        documents = nodes_only(documents, call="from_documents")
        steps = Settings.transformations if transformations is None else transformations
        nodes = run_transformations(documents, steps, in_place=False)
        return cls.from_nodes(
            nodes, model_name=model_name, model=model, context_size=context_size, seed=seed, windows=windows
        )

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[BaseNode],
        *,
        model_name: str = DEFAULT_MODEL,
        model: BaseEmbedding | None = None,
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
    ) -> "CDEEmbedding":
        """Make the context of nodes, as they will be embedded; arguments and errors as in `from_documents`."""
        texts = [content(node) for node in nodes_only(nodes, call="from_nodes")]
        embedding = cls(model_name=model_name, model=model, context_size=context_size, seed=seed, windows=windows)
        return embedding.fit(texts)

    @override
    def get_query_embedding(self, query: str) -> Embedding:
        """Embed a text that searches."""
        return self._query(query, self._sampled(caller_of(self)))

    @override
    async def aget_query_embedding(self, query: str) -> Embedding:
        """Run `get_query_embedding` in a thread."""
        return await asyncio.to_thread(self._query, query, await self._asampled(caller_of(self)))

    @override
    def get_text_embedding(self, text: str) -> Embedding:
        """Embed one document; never makes a context."""
        with announced(self):
            return self._get_text_embedding(text)

    @override
    async def aget_text_embedding(self, text: str) -> Embedding:
        """Run `get_text_embedding` in a thread."""
        return await asyncio.to_thread(self.get_text_embedding, text)

    @override
    def get_text_embedding_batch(self, texts: list[str], show_progress: bool = False, **kwargs: Any) -> list[Embedding]:
        """Embed documents that come as strings, without siblings; makes the context where that is due."""
        return self._batch(texts, self._sampled(caller_of(self)), show_progress)

    @override
    async def aget_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> list[Embedding]:
        """Run `get_text_embedding_batch` in a thread."""
        return await asyncio.to_thread(self._batch, texts, await self._asampled(caller_of(self)), show_progress)

    @override
    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Give nodes their embeddings, each made given its siblings; makes the context where that is due."""
        return self._transform(nodes, self._sampled(caller_of(self)), kwargs)

    @override
    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Run `__call__` in a thread."""
        return await asyncio.to_thread(self._transform, nodes, await self._asampled(caller_of(self)), kwargs)

    def _query(self, query: str, caller: Caller) -> Embedding:
        self._check(caller)
        if self.fingerprint is None and is_empty(caller) and (model := self._named_model()) is not None:
            return ContextualEmbedder(model, first_context(model)).embed_queries([query])[0].tolist()
        with announced(self):
            return self._get_query_embedding(query)

    def _batch(self, texts: Sequence[str], caller: Caller, progress: bool) -> list[Embedding]:  # noqa: FBT001
        with self._lock:  # calls make the context in the order in which they come
            waiting = waiting_nodes(caller, len(texts))
            parts = self._divided(waiting)
            pieces = texts if len(parts) == len(waiting) else [content(part) for _, part in parts]
            self._check_fits(pieces)
            self._admit(texts, caller)
        if not texts:
            return []
        with announced(self):
            embeddings = self._documents(pieces, None, progress=progress)
        return embeddings if pieces is texts else insert_parts(caller, parts, embeddings, self._bound().fingerprint)

    def _transform(self, nodes: Sequence[BaseNode], caller: Caller, options: Mapping[str, Any]) -> Sequence[BaseNode]:
        full = [node for node in nodes if content(node).strip()]  # an index skips the others, too
        with self._lock:
            of_nodes = self._divided(full)
            parts = [part for _, part in of_nodes]
            pieces = [content(part) for part in parts]
            self._check_fits(pieces)
            self._admit([content(node) for node in full], caller, {node.ref_doc_id or node.node_id for node in nodes})
        if isinstance(of_index := options.get("embed_model"), CDEEmbedding):
            check_alike(of_index.space(), self.space())
        if not full:
            return nodes
        with announced(self):
            progress = bool(options.get("show_progress"))
            embeddings = self._documents(pieces, [part.ref_doc_id for part in parts], progress=progress)
        for part, embedding in zip(parts, embeddings, strict=True):
            part.embedding = embedding
        mark_nodes(parts, self._bound().fingerprint)
        return nodes if len(parts) == len(full) else in_place(nodes, of_nodes)

    def _divided(self, nodes: Sequence[BaseNode]) -> list[tuple[BaseNode, BaseNode]]:
        """Return each node with itself, or with each of its parts if the model would truncate it."""
        model = None if self.windows else self._named_model()
        return [(node, node) for node in nodes] if model is None else divided(nodes, model)

    def _check_fits(self, texts: Sequence[str]) -> None:
        """Refuse texts of which a considerable part would not be read; raises TruncationError."""
        if texts and not self.windows and (model := self._named_model()) is not None:
            check_fits(texts, model)

    def _documents(
        self, texts: Sequence[str], parents: Sequence[str | None] | None, *, progress: bool = False
    ) -> list[Embedding]:
        """Embed documents.

        Vectors that depend on siblings are no function of the text alone, and are not cached.
        """
        embedder = self._bound()
        given = 0 if parents is None or not embedder.max_siblings else len(parents) - parents.count(None)
        self._with_parent += given
        self._without_parent += len(texts) - given
        if given:
            return embed_documents(embedder, texts, parents, progress=progress)
        return self._cached("document", texts, lambda part: embed_documents(embedder, part, None, progress=progress))

    def _cached(
        self, role: str, texts: Sequence[str], embed: Callable[[Sequence[str]], list[Embedding]]
    ) -> list[Embedding]:
        if self.embeddings_cache is None:
            return embed(texts)
        return through_cache(self.embeddings_cache, f"{self.fingerprint}:{role}", texts, embed)

    @override
    def _get_query_embedding(self, query: str) -> Embedding:
        embedder = self._bound()
        return self._cached("query", [query], lambda part: embedder.embed_queries(part).tolist())[0]

    @override
    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    @override
    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    @override
    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        self._check_fits(texts)
        return self._documents(texts, None)

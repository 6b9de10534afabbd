"""CDEDocumentEmbedder: documents embedded in the context of their corpus, given their siblings."""

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack_integrations.components.embedders.cde.long_texts import check_windows, warn_of_cut_texts

from cde_rag import Context, ContextualEmbedder, EmbedderOptions
from cde_rag._files import user_path
from cde_rag.context.siblings import sibling_texts
from cde_rag.embedders.active import loaded
from cde_rag.errors import ContextMissingError, ModelError
from cde_rag.field_names import value_at
from cde_rag.records import check_key

NEW = "cde-mini"  # model of a new context


@component
class CDEDocumentEmbedder:
    """Embeds documents, and keeps the context of their corpus in a file that the CDETextEmbedder reads.

    The first run samples the context from its documents, which are best the complete corpus, and writes the file.
    Every later run reads it, so that all vectors are of one space.

    Args:
        context: Path of the file, best named `*.context.safetensors`.
        model: A bundled name, a folder, a hub id such as "BAAI/bge-small-en-v1.5", or a model that an API serves:
            "openai:text-embedding-3-small" or "http://localhost:8000/v1#bge-m3", with the key in OPENAI_API_KEY. By
            default the one that the context names, which is never an address, and `cde-mini` for a new one.
        group_by: Metadata field of a document's source, such as "source_id": documents with the same value in one run
            are siblings, in their order, and each is embedded given the others. By default each is embedded alone.
        meta_fields_to_embed: Metadata keys whose values are embedded in front of the content; None and "" are left out.
        embedding_separator: Text between those values and the content.
        batch_size: Documents in one forward pass.
        context_size: Documents in the context; as many as the model expects, or 512, by default.
        seed: Random seed of the sample.
        windows: Read texts longer than the model's window in windows, and average their vectors; by default they are
            cut. Part of the fingerprint: later runs and queries read texts as the context's file says. A splitter with
            shorter chunks finds more (lab/pages/windows.md).
        device: Device of PyTorch, such as "cuda"; by default the fastest that is there.

    Raises:
        ValueError: `group_by` is empty, or one of and, or, not.

    Examples:
        embedder = CDEDocumentEmbedder("papers.context.safetensors", group_by="source_id")
        documents = embedder.run(documents)["documents"]
    """

    def __init__(
        self,
        context: str,
        *,
        model: str | None = None,
        group_by: str | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        batch_size: int = 32,
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
        device: str | None = None,
    ) -> None:
        if group_by is not None:
            check_key(group_by, "group_by")
        self.context = str(context)
        self.model = model
        self.group_by = group_by
        self.meta_fields_to_embed = list(meta_fields_to_embed or ())
        self.embedding_separator = embedding_separator
        self.batch_size = batch_size
        self.context_size = context_size
        self.seed = seed
        self.windows = windows
        self.device = device
        self._embedder: ContextualEmbedder | None = None

    def warm_up(self) -> None:
        """Load the context and its model, if the file is there.

        Raises:
            ContextMismatchError: `windows` is on, and the context has none.
            ModelError: The context was made by what an API serves, which is to be named.
        """
        if self._embedder is None and user_path(self.context).is_file():
            context = Context.load(self.context)
            check_windows(context, "name another file", windows=self.windows)
            self._embedder = loaded(
                context,
                model=self.model,
                options=EmbedderOptions(device=self.device, mini_batch_size=self.batch_size),
            )

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents.

        Args:
            documents: With text as content; in the first run the complete corpus.

        Returns:
            `documents`: copies with their embeddings. `meta`: the model, and the fingerprint of the vector space.

        Raises:
            ContextMismatchError: `windows` is on, and the context has none.
            ContextMissingError: There is no context, and no document to sample one from.
            ModelError: `group_by` for a model that reads no siblings.
            TypeError: That is no list of documents.
            ValueError: A document without text.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with the splitter's setting that makes them fit.
        """
        texts = [self._text(document) for document in _documents(documents)]
        embedder = self._ready(texts)
        found = embedder.embed_passages(texts, self._siblings(documents, texts, embedder))
        warn_of_cut_texts(int(found.truncated.sum()), len(texts), embedder.context)
        embedded = [replace(each, embedding=row.tolist()) for each, row in zip(documents, found.vectors, strict=True)]
        meta = {"model": embedder.context.identity.name, "fingerprint": embedder.fingerprint}
        return {"documents": embedded, "meta": meta}

    def _siblings(
        self, documents: list[Document], texts: list[str], embedder: ContextualEmbedder
    ) -> list[list[str]] | None:
        if self.group_by is None:
            return None
        if not embedder.max_siblings:
            raise ModelError(f"{embedder.context.identity.name} reads no siblings: leave group_by out.")
        parents = [_parent(value_at(document.meta, self.group_by)) for document in documents]
        return sibling_texts(parents, texts, embedder.max_siblings, rule=embedder.context.manifest.sibling_rule)

    def _ready(self, texts: list[str]) -> ContextualEmbedder:
        self.warm_up()
        if self._embedder is None:
            if not texts:
                raise ContextMissingError(
                    f"{self.context}: there is no context yet, and no document to sample one from. Run "
                    "CDEDocumentEmbedder with the documents of the corpus first."
                )
            self._embedder = ContextualEmbedder.from_corpus(
                texts,
                model=NEW if self.model is None else self.model,
                context_size=self.context_size,
                seed=self.seed,
                windows=self.windows,
                options=EmbedderOptions(device=self.device, mini_batch_size=self.batch_size),
            )
            self._embedder.context.save(self.context)
        return self._embedder

    def _text(self, document: Document) -> str:
        if not document.content or not document.content.strip():
            raise ValueError(f"Document {document.id}: expected text as content, found none. Leave it out.")
        found = [document.meta.get(key) for key in self.meta_fields_to_embed]
        values = [str(value) for value in found if value is not None and value != ""]  # 0 and False are values
        return self.embedding_separator.join([*values, document.content])

    def to_dict(self) -> dict[str, Any]:
        """Serialise the component."""
        return default_to_dict(
            self,
            context=self.context,
            model=self.model,
            group_by=self.group_by,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
            batch_size=self.batch_size,
            context_size=self.context_size,
            seed=self.seed,
            windows=self.windows,
            device=self.device,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CDEDocumentEmbedder":
        """Restore the component."""
        return default_from_dict(cls, data)


def _documents(documents: object) -> list[Document]:
    if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
        raise TypeError(
            f"CDEDocumentEmbedder expects a list of Documents, found {type(documents).__name__}. A query is embedded "
            "by the CDETextEmbedder."
        )
    return documents


def _parent(value: object) -> str | None:
    return None if value is None or value == "" else str(value)  # numbers group, too

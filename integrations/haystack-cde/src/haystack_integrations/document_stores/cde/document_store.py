"""CDEDocumentStore: a collection of cde-rag as Haystack stores and filters documents."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack_integrations.components.embedders.cde.long_texts import check_windows, warn_of_cut_texts
from haystack_integrations.document_stores.cde.filters import RESERVED, names_id, where_of

from cde_rag import Collection, ContextualEmbedder, Hit, Record
from cde_rag.collection.foreign_documents import restored, shown_metadata
from cde_rag.errors import ContextMismatchError, StoreError, TruncationWarning, adapter_warns
from cde_rag.errors import FilterError as GrammarError
from cde_rag.indexing.upsert_plan import first_records
from cde_rag.search.fusion import Ranking
from cde_rag.stores.filters import check_narrows, matches
from cde_rag.stores.kinds import store_at

NEW = "cde-mini"  # model of a new collection


class CDEDocumentStore:
    """Documents in a collection, which embeds them itself: each in the context of the corpus, given its siblings.

    The first `write_documents` makes the collection, whose context is sampled from its documents; later runs and other
    processes open it. Embeddings that documents bring are not stored. Search with the CDERetriever.

    Args:
        location: Folder of the collection, such as "papers.faiss", or an address such as "postgresql://…".
        model: Name of a model, as for `CDEDocumentEmbedder`; by default the one that the collection names, and
            `cde-mini` for a new one.
        group_by: Metadata field of a document's source, such as "source_id": documents with the same value are
            siblings. An existing collection keeps its own.
        context_size: Documents in the context; as many as the model expects, or 512, by default.
        seed: Random seed of the sample.
        windows: Read texts longer than the model's window in windows, in a new collection; by default they are cut. An
            existing collection reads texts as its vectors were made.

    Examples:
        store = CDEDocumentStore("papers.faiss", group_by="source_id")
        store.write_documents(documents)
    """

    def __init__(
        self,
        location: str,
        *,
        model: str | None = None,
        group_by: str | None = None,
        context_size: int | None = None,
        seed: int = 0,
        windows: bool = False,
    ) -> None:
        self.location = str(location)
        self.model = model
        self.group_by = group_by
        self.context_size = context_size
        self.seed = seed
        self.windows = windows
        self._collection: Collection | None = None

    @property
    def collection(self) -> Collection | None:
        """The collection; None before the first document.

        Raises:
            ContextMismatchError: `windows` is on, and the collection has none.
            StoreError: The collection was made with another `group_by`.
        """
        if self._collection is None:
            store = store_at(self.location)
            if store.exists():
                collection = Collection.open(store, model=self.model)
                remedy = "move the collection: CDEDocumentStore(location).collection.recontextualize(windows=True)"
                try:
                    check_windows(collection.embedder.context, remedy, windows=self.windows)
                    self._check_group_by(collection)
                except (ContextMismatchError, StoreError):
                    collection.close()
                    raise
                self._collection = collection
            else:
                store.close()
        return self._collection

    def _check_group_by(self, collection: Collection) -> None:
        if self.group_by not in (None, collection.parent_key):
            raise StoreError(
                f"The collection was made with group_by={collection.parent_key!r}, not {self.group_by!r}. Leave it out "
                "or make a new collection."
            )

    def close(self) -> None:
        """Close the collection; it is opened again when it is used."""
        if self._collection is not None:
            self._collection.close()
            self._collection = None

    def count_documents(self) -> int:
        """Count the documents."""
        return 0 if self.collection is None else self.collection.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Count the documents that match.

        Raises:
            FilterError: The filter is malformed.
        """
        return sum(1 for _ in self._matching(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match, all without a filter, in order of insertion.

        Raises:
            FilterError: The filter is malformed.
        """
        return [document_of(record) for record in self._matching(filters)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Embed documents and store them; also embeds siblings that have changed.

        Args:
            documents: With text as content.
            policy: For documents whose id is stored already; FAIL by default.

        Returns:
            The number of documents written.

        Raises:
            CorpusError: Metadata that JSON cannot hold, or no text that is not blank.
            DuplicateDocumentError: A document is stored already, and the policy is FAIL.
            ValueError: That is no list of documents, or one has no text.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with the splitter's setting that makes them fit.
        """
        if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
            raise ValueError(f"write_documents takes a list of Documents, found {documents!r:.80}.")
        records = self._chosen([record_of(each) for each in documents], policy)
        if self.collection is not None:
            records = restored(self.collection, records)
        if not records:
            return 0
        if self.collection is None:
            texts = [record.text for record in first_records(records, self.group_by)]
            embedder = ContextualEmbedder.from_corpus(
                texts,
                model=NEW if self.model is None else self.model,
                context_size=self.context_size,
                seed=self.seed,
                windows=self.windows,
            )
            self._collection = Collection.create(store_at(self.location), embedder, parent_key=self.group_by)
        assert self._collection is not None
        with adapter_warns(TruncationWarning):
            report = self._collection.add_records(records)
        warn_of_cut_texts(report.truncated, len(records), self._collection.embedder.context)
        return len(records)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents; unknown ids are skipped."""
        if self.collection is not None:
            self.collection.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents; the context stays."""
        if self.collection is not None:
            self.collection.delete(where={})

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match, and return their number.

        Raises:
            FilterError: The filter is malformed, or keeps every document.
        """
        found = [record.id for record in self._matching(_narrow(filters))]
        return 0 if self.collection is None or not found else self.collection.delete(found)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set metadata of the documents that match, and return their number.

        Raises:
            FilterError: The filter is malformed, or keeps every document.
            ValueError: That is no metadata, or it has a key that is reserved.
        """
        if not isinstance(meta, dict):
            raise ValueError(f"update_by_filter takes a dict of metadata, found {meta!r:.80}.")
        if RESERVED in meta:
            raise ValueError(f"The metadata key {RESERVED!r} is reserved. Choose another.")
        matching = self._matching(_narrow(filters))
        changed = [replace(record, metadata={**shown_metadata(record), **meta}) for record in matching]
        if self.collection is not None and changed:
            self.collection.add_records(restored(self.collection, changed))
        return len(changed)

    def to_dict(self) -> dict[str, Any]:
        """Serialise the store: its location and settings, not its documents."""
        return default_to_dict(
            self,
            location=self.location,
            model=self.model,
            group_by=self.group_by,
            context_size=self.context_size,
            seed=self.seed,
            windows=self.windows,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CDEDocumentStore":
        """Restore the store."""
        return default_from_dict(cls, data)

    def search(
        self, query: str, top_k: int, by: Ranking, filters: dict[str, Any] | None, rerank: str | None = None
    ) -> list[Document]:
        """Return the nearest documents with their scores; see the CDERetriever.

        Raises:
            FilterError: The filter is malformed, or is over ids that another program gave.
            ValueError: `by` is none of "hybrid", "vectors" and "bm25" (or "words", its other name).
        """
        where = where_of(filters)
        if self.collection is None:
            return []
        if names_id(filters) and self.collection.count({f"{RESERVED}.id": {"exists": False}}):
            raise FilterError(
                "A search can be limited by id where this store wrote all documents, and some are of another program. "
                "Limit it by meta, or take filter_documents."
            )
        try:
            hits = self.collection.search(query, top_k, by=by, where=where, rerank=rerank)
            return [document_of(hit) for hit in hits]
        except GrammarError as error:
            raise FilterError(str(error)) from error

    def _matching(self, filters: dict[str, Any] | None) -> Iterator[Record]:
        where = where_of(filters)
        if self.collection is None:
            return
        try:
            if where is None or not names_id(filters):
                yield from self.collection.scroll(where)
                return
            for record in self.collection.scroll():  # one of another program has its id nowhere else
                if matches(where, {**record.metadata, RESERVED: {"id": record.id}}):
                    yield record
        except GrammarError as error:
            raise FilterError(str(error)) from error

    def _chosen(self, records: Sequence[Record], policy: DuplicatePolicy) -> list[Record]:
        """Return the records to write: of one id the last one, or, for SKIP and FAIL, the first of a new id."""
        if policy == DuplicatePolicy.OVERWRITE:
            return list({record.id: record for record in records}.values())
        stored = set[str]()
        if self.collection is not None:
            stored = {record.id for record in self.collection.get([record.id for record in records])}
        chosen = dict[str, Record]()
        for record in records:
            if record.id not in stored and record.id not in chosen:
                chosen[record.id] = record
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(
                    f"Document {record.id} is stored already. Write with policy=DuplicatePolicy.SKIP or OVERWRITE."
                )
        return list(chosen.values())


def record_of(document: Document) -> Record:
    """Convert a document to a record: its text, and metadata from which the document can be restored.

    Raises:
        ValueError: The document has no text, or its metadata has a key that is reserved.
    """
    if not document.content or not document.content.strip():
        raise ValueError(f"Document {document.id}: expected text as content, found none. Leave it out.")
    if RESERVED in document.meta:
        raise ValueError(f"Document {document.id}: the metadata key {RESERVED!r} is reserved. Choose another.")
    rest = document.to_dict(flatten=False)
    kept = {key: rest[key] for key in ("blob", "sparse_embedding") if rest.get(key) is not None}
    return Record(document.id, document.content, metadata={**document.meta, RESERVED: {"id": document.id, **kept}})


def document_of(found: Record | Hit) -> Document:
    """Convert a record or hit back to its document, its title in the metadata; a hit's has a score."""
    meta = shown_metadata(found)
    rest = dict(meta.pop(RESERVED, {}))
    fields: dict[str, Any] = {**rest, "id": found.id, "content": found.text, "meta": meta}
    return Document.from_dict({**fields, "score": found.score} if isinstance(found, Hit) else fields)


def _narrow(filters: dict[str, Any]) -> dict[str, Any]:
    """Refuse filters that keep every document.

    Raises:
        FilterError: They do, or are malformed.
    """
    try:
        check_narrows(where_of(filters) or {}, "To delete all documents, call delete_all_documents().")
    except GrammarError as error:
        raise FilterError(str(error)) from error
    return filters

"""Description of an embedding, for people and for logs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingInspection:
    """Description of an embedding.

    Attributes:
        model: Name of the model.
        fingerprint: Fingerprint of the vector space; None while there is no context.
        context_size: Number of documents in the context.
        context_source: Origin of the sampled texts.
        context_documents_seen: Number of texts that the sample was drawn from.
        texts_with_parent: Number of documents that this object embedded as nodes of a source document, with siblings.
        texts_without_parent: Number of documents embedded as strings or as nodes without a source, without siblings.
    """

    model: str
    fingerprint: str | None
    context_size: int
    context_source: str | None
    context_documents_seen: int
    texts_with_parent: int
    texts_without_parent: int

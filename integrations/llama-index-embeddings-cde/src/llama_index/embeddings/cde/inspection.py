"""What an embedding is, for people and for logs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddingInspection:
    """What an embedding is.

    Attributes:
        model: Name of the model.
        fingerprint: Names the vector space; None while there is no context.
        context_size: Documents in the context.
        context_source: Which texts they were sampled from.
        context_documents_seen: Texts the sample was drawn from.
        texts_with_parent: Documents embedded by this object as nodes of a source document, given their siblings.
        texts_without_parent: Those that arrived as strings, or as nodes without a source: no parent level.
    """

    model: str
    fingerprint: str | None
    context_size: int
    context_source: str | None
    context_documents_seen: int
    texts_with_parent: int
    texts_without_parent: int

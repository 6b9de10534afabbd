"""Traces of deleted documents in contexts.

A Context holds a first-stage vector and a digest of each document of its sample, no text; both stay when the document
is deleted, and with them a trace in every vector that was made in that context.
"""

from dataclasses import dataclass

from cde_rag._validation import digest
from cde_rag.embedders.active import stored_context
from cde_rag.models.plain.fixed_texts import FIXED_DIGESTS
from cde_rag.records import embedded_text
from cde_rag.stores.base import Store


@dataclass(frozen=True, slots=True)
class Erasure:
    """Documents of one generation's Context that are no longer in the collection.

    Attributes:
        generation: Its number.
        active: True if searches use it.
        context_size: Documents of its Context.
        gone: Number of these without a record: deleted, replaced, or never added.
    """

    generation: int
    active: bool
    context_size: int
    gone: int


def erasures(store: Store) -> list[Erasure]:
    """Count the deleted documents in the Context of each generation, oldest generation first.

    Reads every record. `recontextualize` makes a context without them; the previous generation stays for `rollback`,
    and is dropped by the next run, or by `store.drop`.

    Args:
        store: Holds a collection.

    Raises:
        ContextFormatError: A stored Context is damaged, or of a newer format.
        StoreError: There is no collection in the store.
    """
    generations = store.generations()
    contexts = [stored_context(store, generation.number) for generation in generations]
    sampled = [{row.tobytes() for row in context.digests} - set(FIXED_DIGESTS) for context in contexts]
    gone = [set(documents) for documents in sampled]
    for row in store.scroll():
        found = digest(embedded_text(row.record))
        for documents in gone:
            documents.discard(found)
    return [
        Erasure(generation.number, generation.active, len(documents), len(left))
        for generation, documents, left in zip(generations, sampled, gone, strict=True)
    ]

"""Collection metadata, integrity checks, and traces of deleted documents. None of them loads the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cde_rag._validation import digest
from cde_rag.collection.first_context import is_unfinished
from cde_rag.collection.settings import HYBRID_WEIGHT
from cde_rag.embedders.active import stored_context
from cde_rag.errors import ContextFormatError
from cde_rag.indexing.backfill import earlier_generation
from cde_rag.models.plain.fixed_texts import FIXED_DIGESTS, corpus_size
from cde_rag.readers.columns import FIELDS
from cde_rag.readers.reading_rules import NEWEST, ReadingRules, reading_of
from cde_rag.records import embedded_text
from cde_rag.search.calibration import CALIBRATION
from cde_rag.search.fusion import WEIGHTS
from cde_rag.stores.base import Damage
from cde_rag.stores.store import Store
from cde_rag.stores.text_analysis import NEWEST as NEWEST_ANALYZER
from cde_rag.stores.text_analysis import analyzer_of


@dataclass(frozen=True, slots=True)
class Inspection:
    """Metadata of a collection.

    Attributes:
        documents: Number of records.
        fingerprint: Fingerprint of the vector space.
        model: Exact name of the model.
        dim: Length of a vector.
        generation: Number of the active generation.
        parent_key: The metadata key that names a record's parent, if parents are used.
        headers: The metadata keys that are embedded in front of each text.
        analyzer: Name of the text analyzer; see `cde_rag.stores.text_analysis`.
        hybrid_weight: Weight of the vectors in hybrid search, from 0 to 1.
        context_size: Number of documents of the corpus in the context; 0 for the null context.
        context_source: Origin of the sampled texts.
        context_sampling: Sampling strategy.
        context_seed: Random seed of the sample.
        context_documents_seen: Number of texts that the sample was drawn from.
        context_created: UTC, ISO 8601.
        windows: True if texts longer than the model's window are read in windows, False if they are cut.
        reading: Rules by which files become passages: their length, the titles of pages, whether source code is read.
        fields: Fields of rows that are read as id, text and title by later readers, too, by role: those that are not
            the default ones.
        library_version: Version of cde-rag when the collection was created.
        newer_defaults: What new collections have and this one has not, in words.
        tenant: Name of its tenant, if there are tenants.
        pending: Number of records that wait for their vectors.
        common_context: True if it is in the common context of all tenants, not in one of its own texts.
        earlier_generation: Number of the generation to which `rollback` returns; None if there is none.
        unfinished: True if the first `cde-rag index` was stopped, or goes on, so that passages may be missing.
    """

    documents: int
    fingerprint: str
    model: str
    dim: int
    generation: int
    parent_key: str | None
    headers: tuple[str, ...]
    analyzer: str
    hybrid_weight: float
    context_size: int
    context_source: str
    context_sampling: str
    context_seed: int
    context_documents_seen: int
    context_created: str
    windows: bool
    reading: ReadingRules
    library_version: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    newer_defaults: tuple[str, ...] = ()
    tenant: str | None = None
    common_context: bool = False
    pending: int = 0
    earlier_generation: int | None = None
    unfinished: bool = False


def inspect(store: Store) -> Inspection:
    """Return a collection's metadata; implements `Collection.inspect`.

    Raises:
        ContextFormatError: The stored Context is damaged, or of a newer format.
        StoreError: There is no collection in the store.
    """
    manifest = store.manifest()
    context = stored_context(store)
    return Inspection(
        documents=store.count(),
        fingerprint=manifest.fingerprint,
        model=context.identity.name,
        dim=manifest.dim,
        generation=manifest.generation,
        parent_key=manifest.settings["parent_key"],
        headers=tuple(manifest.settings.get("headers", ())),
        analyzer=analyzer_of(manifest.settings).name,
        hybrid_weight=manifest.settings.get(HYBRID_WEIGHT, WEIGHTS["convex"]),
        context_size=corpus_size(context),
        context_source=context.manifest.source,
        context_sampling=context.manifest.sampling,
        context_seed=context.manifest.seed,
        context_documents_seen=context.manifest.documents_seen,
        context_created=context.manifest.created,
        windows=context.identity.windows,
        reading=reading_of(manifest.settings),
        fields=dict(manifest.settings.get(FIELDS, {})),
        library_version=manifest.settings["library_version"],
        newer_defaults=newer_defaults(store),
        tenant=manifest.settings.get("tenant"),
        pending=store.count_pending(),
        common_context=manifest.settings.get("common_context") == manifest.fingerprint,
        earlier_generation=store.read(earlier_generation),
        unfinished=is_unfinished(manifest.settings),
    )


def newer_defaults(store: Store) -> tuple[str, ...]:
    """Return in words the defaults of new collections that this one has not; `cde-rag upgrade` adopts it.

    Raises:
        StoreError: There is no collection in the store.
    """
    settings = store.manifest().settings
    reading, analyzer = reading_of(settings), analyzer_of(settings).name
    found: list[str] = []
    if reading.tokens is None:
        found.append(f"passages of {NEWEST.described} in place of {reading.described.partition(',')[0]}")
    if reading.rules < NEWEST.rules:
        found.append("a page's own title in place of its first heading")
    if analyzer != NEWEST_ANALYZER.name:
        found.append(f"analyzer {NEWEST_ANALYZER.name} in place of {analyzer}")
    if CALIBRATION not in settings:
        found.append("hybrid scores on one scale for all queries")
    return tuple(found)


def verify(store: Store) -> list[Damage]:
    """Check a collection's integrity; implements `Collection.verify`.

    Needs no model, and works on collections too damaged to be opened.

    Raises:
        StoreError: There is no collection in the store.
    """
    if damages := store.verify():
        return damages
    try:
        found = stored_context(store).fingerprint
    except ContextFormatError as error:
        return [Damage("context", str(error))]
    expected = store.manifest().fingerprint
    return [] if found == expected else [Damage("context", f"Expected fingerprint {expected}, found {found}.")]


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

    A Context holds a first-stage vector and a digest of each document of its sample, no text; both stay when the
    document is deleted, and with them a trace in every vector that was made in that context. Reads every record.
    `recontextualize` makes a context without them; the previous generation stays for `rollback`,
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

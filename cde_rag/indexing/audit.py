"""Audits: comparison of stored vectors with those that a model and context make of their texts.

    from cde_rag.adoption.audit_sources import source_of

    embedder = PlainEmbedder("sentence-transformers/all-MiniLM-L6-v2")
    with source_of("qdrant:http://localhost:6333#papers") as source:
        print(audit(source, embedder).advice)

A changed model, prefix or context gives no error anywhere: the vectors are as long as before, and searches return wrong
results. An audit embeds a sample of the texts again and compares. It only reads. `cde-rag audit` is the command.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32

from cde_rag._validation import check_positive
from cde_rag.context.context import Context
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import CorpusError, StoreError
from cde_rag.indexing.sibling_passages import with_siblings
from cde_rag.indexing.stamping import Stampable, StampCheck, compared, stamp_of
from cde_rag.records import Row, embedded_text
from cde_rag.stores.store import Store

# Cosines of cde-mini-1 on 64 texts of CISI: 0.9999 and more between float32, bfloat16 and float16, in any batches;
# 0.9991 to 0.9995 between the contexts of two seeds.

SAMPLE: Final = 64  # texts that are embedded again; of vectors a tenth of which are others, 64 miss all once in 850
REPRODUCED: Final = 0.9998  # cosine
_Z: Final = 1.96  # of an interval of 95 %


class StoredVector(NamedTuple):
    """Text in a store, with its stored vector.

    Attributes:
        id: Id in the store.
        text: Embedded text.
        vector: Vector of any length and norm.
    """

    id: str
    text: str
    vector: Float32[np.ndarray, " dim"]


@runtime_checkable
class Source(Protocol):
    """A store that is read, of any kind."""

    @property
    def target(self) -> str:
        """Name of the store, for messages."""
        ...

    def count(self) -> int:
        """Return the number of vectors."""
        ...

    def stamp(self) -> str | None:
        """Return the stamp in its metadata, or None; see `cde_rag.stamps`."""
        ...

    def sample(self, count: int) -> list[StoredVector]:
        """Draw at most `count` random vectors that have a text.

        Raises:
            StoreError: The store cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit.

    Attributes:
        target: The store.
        model: Name of the embedder's model.
        fingerprint: Fingerprint of the embedder's space.
        stored: Number of vectors in the store.
        stamp: Fingerprint in the store's metadata; None if there is none.
        sampled: Number of texts that were embedded again.
        reproduced: Number of vectors that the embedder reproduces (cosine at least 0.9998).
        interval: 95 % interval of the share of such vectors in the complete store (Wilson 1927).
        as_queries: Number of other vectors that the embedder reproduces from the texts as queries.
        without_context: Number of other vectors that its model reproduces without a context.
        other_length: Number of other vectors with another length, or of zeros.
        others: Ids of all vectors that are not reproduced.
        cosine: Median cosine of the vectors in none of these classes; None if there are none.
        stamp_check: Comparison of the stamp for other programs with the embedder; None if there is no such stamp.
    """

    target: str
    model: str
    fingerprint: str
    stored: int
    stamp: str | None
    sampled: int
    reproduced: int
    interval: tuple[float, float]
    as_queries: int
    without_context: int
    other_length: int
    others: tuple[str, ...]
    cosine: float | None
    stamp_check: StampCheck | None = None

    @property
    def disputes(self) -> bool:
        """True if a stamp names another space than the embedder's, or cannot be read."""
        return self.stamp not in (None, self.fingerprint) or (
            self.stamp_check is not None and not self.stamp_check.agrees
        )

    @property
    def share(self) -> float:
        """Share of the sample that is reproduced."""
        return self.reproduced / self.sampled

    @property
    def mixed(self) -> bool:
        """True if the sample has vectors of more than one space."""
        named = (self.reproduced, self.as_queries, self.without_context, self.other_length)
        return sum(count > 0 for count in (*named, len(self.others) - sum(named[1:]))) > 1

    @property
    def advice(self) -> str:
        """Findings and advice, in sentences."""
        low, high = (f"{100 * bound:.1f}" for bound in self.interval)
        found = (
            f"{self.target}: {self.reproduced} of {self.sampled} sampled vectors equal those of {self.model} for their "
            f"texts ({low} to {high} % of all {self.stored}, at 95 % confidence)."
        )
        if self.stamp_check is not None:
            found += f" {self.stamp_check.finding}"
            if self.stamp_check.agrees and self.others:
                found += " The stored vectors disagree with the stamp."
        if self.stamp not in (None, self.fingerprint):
            found += f" The store's stamp names {self.stamp:.16}…, this embedder is {self.fingerprint[:16]}…."
        if not self.others:
            return found if self.disputes else f"{found} Nothing to do."
        if self.mixed:
            found += " Vectors of several spaces are mixed, and searches cannot rank them with each other."
        return " ".join([found, *self._causes(), self._remedy()])

    def _causes(self) -> list[str]:
        known = {
            "equal its vectors of the texts as queries": self.as_queries,
            "equal its vectors of the texts without a context": self.without_context,
            "have another length, or no direction": self.other_length,
        }
        causes = [f"{count} {what}." for what, count in known.items() if count]
        if unknown := len(self.others) - sum(known.values()):
            causes.append(
                f"{unknown} are of another model, prefix or context, or of texts that were embedded otherwise than "
                f"they are stored (median cosine {self.cosine:.4f})."
            )
        return causes

    def _remedy(self) -> str:
        if self.reproduced:
            return "Embed these texts again with this embedder; --json lists those of the sample."
        if self.as_queries == self.sampled:
            return "Check the prefixes that were given; if they are right, embed all texts again, as documents."
        return "Name the model and context that made them, or embed all texts again."


def audit(source: Source, embedder: Embedder, *, sample: int = SAMPLE) -> Audit:
    """Embed a sample of a store's texts again, and compare.

    Args:
        source: Only read.
        embedder: That is said to have made the vectors: a PlainEmbedder, or a ContextualEmbedder in its Context.
        sample: Texts at most.

    Raises:
        CorpusError: There is no text in the store.
        StoreError: It cannot be read.
        ValueError: `sample` is below 1.
    """
    sample, embedder = check_positive(sample, "sample"), uncached(embedder)
    found = source.sample(sample)
    texts = [stored.text for stored in found]
    made = lambda: embedder.embed_passages(texts, None).vectors  # noqa: E731
    result = _compared(source.target, source.count(), source.stamp(), found, embedder, made)
    text = source.stamp_text() if isinstance(source, Stampable) else None
    return result if text is None else replace(result, stamp_check=compared(text, embedder))


def stamp_source(source: Source, embedder: Embedder, *, sample: int = SAMPLE) -> Audit:
    """Audit a store, and write a stamp into its metadata that other programs can read; see docs/stamp.md.

    Args:
        source: Its records stay as they are.
        embedder: As for `audit`.
        sample: As for `audit`.

    Returns:
        The audit with the new stamp, which replaces another one.

    Raises:
        CorpusError: As for `audit`.
        StoreError: Not all of the sample are reproduced; or the store has no place for a stamp, or its application
            would notice.
    """
    if not isinstance(source, Stampable):
        raise StoreError(f"{source.target}: expected a database whose metadata a stamp can be in, found files.")
    found = audit(source, embedder, sample=sample)
    if found.others:
        raise StoreError(f"{found.advice} No stamp is written.")
    text = stamp_of(embedder)
    source.put_stamp(text)
    return replace(found, stamp=source.stamp(), stamp_check=compared(text, embedder))


def audit_collection(
    store: Store, embedder: Embedder, parent_key: str | None, *, sample: int = SAMPLE, seed: int = 0
) -> Audit:
    """Embed a sample of a collection's passages again, each with its siblings, and compare.

    Args:
        store: Holds a collection.
        embedder: Embedder of its active generation.
        parent_key: The metadata key that names a record's parent; None where parents are not used.
        sample: Records at most.
        seed: Random seed of the sample.

    Raises:
        ContextMismatchError: The embedder is of another space.
        CorpusError: The collection is empty.
        StoreError: It cannot be read.
    """
    sample, embedder = check_positive(sample, "sample"), uncached(embedder)
    rows = store.sample(sample, seed=seed)
    passages = with_siblings(store, rows, parent_key, embedder)
    fresh = [(row, passage) for row, passage in zip(rows, passages, strict=True) if passage.digest == row.digest]
    vectors = _vectors(store, [row for row, _ in fresh], embedder.fingerprint)
    kept = [(row, passage) for row, passage in fresh if row.record.id in vectors]
    texts, siblings = [embedded_text(row.record) for row, _ in kept], [passage.siblings for _, passage in kept]
    found = [
        StoredVector(row.record.id, text, vectors[row.record.id]) for (row, _), text in zip(kept, texts, strict=True)
    ]
    made = lambda: embedder.embed_passages(texts, siblings).vectors  # noqa: E731
    return _compared(repr(store), store.count(), store.manifest().fingerprint, found, embedder, made)


def unlike(found: Sequence[StoredVector], embedder: Embedder) -> list[str]:
    """Return the ids of stored vectors that an embedder does not make of their texts."""
    made = embedder.embed_passages([each.text for each in found], None).vectors
    return [each.id for each, cosine in zip(found, _cosines(found, made)[1], strict=True) if cosine < REPRODUCED]


def _vectors(store: Store, rows: Sequence[Row], fingerprint: str) -> dict[str, Float32[np.ndarray, " dim"]]:
    """Return the vectors of rows by id, without those deleted or replaced by another process meanwhile."""
    vectors: dict[str, Float32[np.ndarray, " dim"]] = {}
    for row in rows:
        with suppress(KeyError):
            (vectors[row.record.id],) = store.vectors([row.record.id], fingerprint=fingerprint)
    now = {row.record.id: row for row in store.get(list(vectors))}
    return {row.record.id: vectors[row.record.id] for row in rows if now.get(row.record.id) == row}


def _compared(
    target: str,
    stored: int,
    stamp: str | None,
    found: Sequence[StoredVector],
    embedder: Embedder,
    made: Callable[[], Float32[np.ndarray, "texts dim"]],
) -> Audit:
    if not found:
        raise CorpusError(f"{target}: expected texts with vectors, found none: there is nothing to compare.")
    usable, cosines = _cosines(found, made())
    left = usable & (cosines < REPRODUCED)
    queries = _of_another_kind(found, left, embedder.embed_queries)
    nulls = _of_another_kind(found, left & ~queries, _without_context(embedder))
    others = [each.id for each, cosine in zip(found, cosines, strict=True) if cosine < REPRODUCED]
    unknown = cosines[left & ~queries & ~nulls]
    return Audit(
        target=target,
        model=embedder.context.identity.name,
        fingerprint=embedder.fingerprint,
        stored=stored,
        stamp=stamp,
        sampled=len(found),
        reproduced=len(found) - len(others),
        interval=_wilson(len(found) - len(others), len(found)),
        as_queries=int(queries.sum()),
        without_context=int(nulls.sum()),
        other_length=int((~usable).sum()),
        others=tuple(others),
        cosine=float(np.median(unknown)) if len(unknown) else None,
    )


def _is_direction(vector: Float32[np.ndarray, " dim"], dim: int) -> bool:
    return len(vector) == dim and bool(np.isfinite(vector).all()) and bool(vector.any())


def _cosines(
    found: Sequence[StoredVector], made: Float32[np.ndarray, "texts dim"]
) -> tuple[Bool[np.ndarray, " texts"], Float32[np.ndarray, " texts"]]:
    """Return the vectors that have a direction and the right length, and the cosines with those made; 0 of others."""
    usable = np.array([_is_direction(each.vector, made.shape[1]) for each in found])
    cosines = np.zeros(len(found), np.float32)
    if usable.any():
        stored = np.stack([each.vector for each, use in zip(found, usable, strict=True) if use]).astype(np.float64)
        stored /= np.linalg.norm(stored, axis=1, keepdims=True)
        cosines[usable] = (stored * made[usable]).sum(axis=1)
    return usable, cosines


def _of_another_kind(
    found: Sequence[StoredVector],
    left: np.ndarray,
    embed: Callable[[list[str]], Float32[np.ndarray, "texts dim"]] | None,
) -> np.ndarray:
    """Mask of the vectors left that are embedded in this way."""
    kind = np.zeros(len(found), bool)
    if embed is not None and left.any():
        some = [each for each, use in zip(found, left, strict=True) if use]
        kind[left] = _cosines(some, embed([each.text for each in some]))[1] >= REPRODUCED
    return kind


def uncached(embedder: Embedder) -> Embedder:
    """Return the embedder of a model that embeds every text: kept vectors would reproduce themselves."""
    from cde_rag.embedders.contextual import ContextualEmbedder, contextual

    own = contextual(unwrapped(embedder))
    if own is None or not own.context.identity.is_plain:
        return embedder
    return ContextualEmbedder(own.model.uncached(), own.context, options=own.options.of_loaded)


def _without_context(embedder: Embedder) -> Callable[[list[str]], Float32[np.ndarray, "texts dim"]] | None:
    if embedder.context.size and not embedder.context.identity.is_plain:
        plain = unwrapped(embedder).with_context(Context.null(embedder.context))
        return lambda texts: plain.embed_passages(texts, None).vectors
    return None


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    """Compute the score interval of a share (Wilson 1927)."""
    share, weight = successes / trials, _Z**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)

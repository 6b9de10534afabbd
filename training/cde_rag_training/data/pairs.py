"""Training pairs: a query, the document that answers it, and where both come from."""

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pair:
    """Training example: a query and its relevant document.

    Attributes:
        query: A question, or a title, heading or synopsis in its place.
        document: The relevant text, without its title.
        source: The data set that it comes from; batches never mix sources.
        domain: The finer subject inside the source.
        parent: Name of the longer document that `document` was cut from, empty where there is none.
        hard_negatives: Documents that look like an answer and are none.
        query_prefix: Task prefix of the query, such as "search_query: "; None for the model's own, "" for none.
        document_prefix: Likewise, of the document, its hard negatives, and of it as a context document.
        grade: Relevance of the document, 0 … 1, for the loss "graded".
    """

    query: str
    document: str
    source: str
    domain: str
    parent: str = ""
    hard_negatives: tuple[str, ...] = ()
    query_prefix: str | None = None
    document_prefix: str | None = None
    grade: float = 1.0


@dataclass(frozen=True, slots=True)
class CorpusPassage:
    """Passage of a corpus, for contexts and siblings; it may be no pair's document.

    Attributes:
        text: As documents of pairs have it, without title.
        source: Source of the corpus's pairs.
        domain: Their domain; passages of domains without pairs are left out.
        parent: Name of the longer document, empty where there is none.
    """

    text: str
    source: str
    domain: str
    parent: str = ""


def text_key(text: str) -> bytes:
    """Return a digest that texts share which differ in case and white space alone."""
    return hashlib.sha256(" ".join(text.lower().split()).encode()).digest()


def without_negatives(pair: Pair, forbidden: Container[bytes]) -> Pair:
    """Return a pair without the hard negatives that have one of the keys of `text_key`; itself if it has none."""
    left = tuple(text for text in pair.hard_negatives if text_key(text) not in forbidden)
    return pair if len(left) == len(pair.hard_negatives) else replace(pair, hard_negatives=left)


def without_duplicates(pairs: Iterable[Pair], *, against: Iterable[str] = ()) -> list[Pair]:
    """Keep the first pair of each document, and none whose document or query stands in `against` (evaluation texts).

    Hard negatives that stand there go, too. Texts are compared without regard to case and white space. A repeated query
    stays: it has several right answers, which the loss masks for each other.
    """
    held_out = {text_key(text) for text in against}
    forbidden = set(held_out)
    kept: list[Pair] = []
    for pair in pairs:
        document = text_key(pair.document)
        if document in forbidden or text_key(pair.query) in forbidden:
            continue
        forbidden.add(document)
        kept.append(without_negatives(pair, held_out))
    return kept


def per_source(pairs: Iterable[Pair], limits: Mapping[str, int]) -> list[Pair]:
    """Sample about `limits[source]` pairs of each source, deterministically, in order, without splitting parents."""
    by_source: dict[str, dict[bytes, list[Pair]]] = {}
    for pair in pairs:
        group = text_key(f"{pair.domain} {pair.parent}" if pair.parent else pair.document)
        by_source.setdefault(pair.source, {}).setdefault(group, []).append(pair)
    chosen: list[Pair] = []
    for source, groups in by_source.items():
        kept, count = set[bytes](), 0
        for group in sorted(groups):
            if count < limits[source]:
                kept.add(group)
                count += len(groups[group])
        chosen += [pair for group, members in groups.items() if group in kept for pair in members]
    return chosen

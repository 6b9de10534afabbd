"""Pairs as text rows: every text once, and the ways in which each pair can be shown."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from cde_rag_training.data.alternative_queries import KeywordQueries, sentence_and_rest, without_parent
from cde_rag_training.data.layout import NO_PREFIX, VIEW_KINDS
from cde_rag_training.data.pairs import CorpusPassage, Pair

NONE = -1


class Rows(NamedTuple):
    """Pairs as numbers.

    Attributes:
        texts: Every text once; a text row is a place in it.
        arrays: As `layout.LAYOUT` names and shapes them: text rows, codes and views.
        source_names: By code.
        domain_names: By code; two sources may have a domain of the same name.
    """

    texts: list[str]
    arrays: dict[str, np.ndarray]
    source_names: tuple[str, ...]
    domain_names: tuple[str, ...]


def rows_of(
    pairs: Sequence[Pair],
    reach: Sequence[int],
    *,
    keyword_views: int,
    sentence_views: int,
    seed: int,
    passages: Sequence[CorpusPassage] = (),
) -> Rows:
    """Assign a row to every distinct text.

    The random draws for a pair depend on the pair, all documents and the seed, not on the order of the pairs.

    Args:
        pairs: At least one.
        reach: Characters of each pair's document that are read; keywords and sentences are taken from them.
        keyword_views: Maximum number per pair of views with a few words of the document as the query.
        sentence_views: Maximum number per pair of views with a sentence as the query, the rest as the document.
        seed: Random seed of the draws.
        passages: Passages of the pairs' corpora, in the order of their parents; those of other domains are left out.
    """
    rows: dict[str, int] = {}

    def row(text: str) -> int:
        return rows.setdefault(text, len(rows))

    keywords = KeywordQueries([pair.document for pair in pairs])
    views: list[tuple[int, int, int, int]] = []
    for number, (pair, end) in enumerate(zip(pairs, reach, strict=True)):
        random = np.random.default_rng([seed, int.from_bytes(_digest(pair)[:8], "little")])
        shown = dict.fromkeys(
            (VIEW_KINDS.index(kind), row(query), row(document))
            for kind, query, document in _views(pair, end, keywords, random, keyword_views, sentence_views)
        )
        views += [(number, *view) for view in shown]
    width = max(len(pair.hard_negatives) for pair in pairs)
    negatives = [[row(text) for text in pair.hard_negatives] for pair in pairs]
    sources, source_names = _codes([(pair.source,) for pair in pairs])
    domains, domain_names = _codes([(pair.source, pair.domain) for pair in pairs])
    codes = {name: code for code, name in enumerate(domain_names)}
    known = [passage for passage in passages if (passage.source, passage.domain) in codes]
    parents, parents_of_passages = _parents(pairs, known)
    arrays = {
        "queries": _integers([row(pair.query) for pair in pairs]),
        "documents": _integers([row(pair.document) for pair in pairs]),
        "titles": _integers([row(pair.parent) if pair.parent else NONE for pair in pairs]),
        "hard_negatives": _integers([some + [NONE] * (width - len(some)) for some in negatives]).reshape(
            len(pairs), width
        ),
        "sources": sources,
        "domains": domains,
        "parents": parents,
        "views": _integers(views),
    }
    prefixes = [(pair.query_prefix, pair.document_prefix) for pair in pairs]
    if any(prefix is not None for both in prefixes for prefix in both):
        arrays["prefixes"] = _integers([[_prefix_row(prefix, row) for prefix in both] for both in prefixes])
    if any(pair.grade != 1 for pair in pairs):
        arrays["grades"] = np.array([pair.grade for pair in pairs], dtype=np.float32)
    if passages:
        held = zip(known, parents_of_passages.tolist(), strict=True)
        places = [(row(one.text), codes[one.source, one.domain], parent) for one, parent in held]
        arrays["passages"] = _integers(places).reshape(-1, 3)
    return Rows(list(rows), arrays, tuple(name[-1] for name in source_names), tuple(name[-1] for name in domain_names))


def _prefix_row(prefix: str | None, row: Callable[[str], int]) -> int:
    """Return the text row of a prefix, without the space at its end, which the tokenizer ignores."""
    if prefix is None:
        return NONE
    return row(prefix.rstrip()) if prefix.strip() else NO_PREFIX


def pairs_digest(pairs: Sequence[Pair]) -> str:
    """Return a sha256 over the pairs in order, in hex."""
    sha256 = hashlib.sha256()
    for pair in pairs:
        sha256.update(_digest(pair))
    return sha256.hexdigest()


def passages_digest(passages: Sequence[CorpusPassage]) -> str:
    """Return a sha256 over the passages in order, in hex."""
    parts = ([passage.text, passage.source, passage.domain, passage.parent] for passage in passages)
    return hashlib.sha256(b"".join(json.dumps(part).encode() for part in parts)).hexdigest()


def _digest(pair: Pair) -> bytes:
    parts: list[object] = [pair.query, pair.document, pair.source, pair.domain, pair.parent, pair.hard_negatives]
    if (pair.query_prefix, pair.document_prefix) != (None, None):  # pairs without are what they were
        parts += [pair.query_prefix, pair.document_prefix]
    if pair.grade != 1:
        parts.append(pair.grade)
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _views(
    pair: Pair,
    reach: int,
    keywords: KeywordQueries,
    random: np.random.Generator,
    keyword_views: int,
    sentence_views: int,
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, query and document of every view of a pair."""
    yield "own", pair.query, pair.document
    nameless = without_parent(pair.query, pair.parent) if pair.parent else pair.query
    if nameless != pair.query and nameless.strip():
        yield "nameless", nameless, pair.document
    for _ in range(keyword_views):
        query = keywords.draw(pair.document[:reach], random)
        if query is not None:
            yield "keywords", query, pair.document
    for _ in range(sentence_views):
        split = sentence_and_rest(pair.document, random, reach=reach)
        if split is not None and split[1].strip():
            yield "sentence", *split


def _parents(
    pairs: Sequence[Pair], passages: Sequence[CorpusPassage]
) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " passages"]]:
    """Number the parents of pairs and passages alike; -1 where there is none."""
    both = [*pairs, *passages]
    numbers = np.full(len(both), NONE)
    held = [bool(one.parent) for one in both]
    numbers[held] = _codes([(one.source, one.domain, one.parent) for one in both if one.parent])[0]
    return numbers[: len(pairs)], numbers[len(pairs) :]


def _codes(names: Sequence[tuple[str, ...]]) -> tuple[Int64[np.ndarray, " names"], list[tuple[str, ...]]]:
    """Number names in sorted order; return the numbers and the sorted names."""
    known = sorted(set(names))
    codes = {name: code for code, name in enumerate(known)}
    return _integers([codes[name] for name in names]), known


def _integers(numbers: Sequence[object]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)

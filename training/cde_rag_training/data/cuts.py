"""Retrieval sets that take minutes: parts of larger ones, and pairs as a set."""

from collections.abc import Sequence
from hashlib import sha256

from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag_training.data.pairs import Pair


def _order(name: str) -> bytes:
    return sha256(name.encode()).digest()


def part(data: RetrievalSet, *, documents: int, queries: int) -> RetrievalSet:
    """Subsample a retrieval set: some queries, their relevant documents, and others; parents are not split."""
    few = data.sample_queries(queries)
    corpus = data.corpus
    groups = corpus.parents or corpus.ids
    group_of = {document: group or document for document, group in zip(corpus.ids, groups, strict=True)}
    kept = {group_of[document] for judged in few.judgments for document in judged if document in group_of}
    size = sum(group_of[document] in kept for document in corpus.ids)
    sizes: dict[str, int] = {}
    for group in group_of.values():
        sizes[group] = sizes.get(group, 0) + 1
    for group in sorted(sizes, key=_order):
        if size < documents and group not in kept:
            kept.add(group)
            size += sizes[group]
    rows = [row for row, document in enumerate(corpus.ids) if group_of[document] in kept]
    smaller = Corpus(
        name=corpus.name,
        ids=tuple(corpus.ids[row] for row in rows),
        texts=tuple(corpus.texts[row] for row in rows),
        parents=tuple(corpus.parents[row] for row in rows) if corpus.parents else None,
    )
    return RetrievalSet(smaller, few.query_ids, few.queries, few.judgments)


def one_to_one(name: str, pairs: Sequence[Pair]) -> RetrievalSet:
    """Convert pairs to a retrieval set: each query's relevant document is its own; a repeated query has several."""
    relevant: dict[str, dict[str, int]] = {}
    for number, pair in enumerate(pairs):
        relevant.setdefault(pair.query, {})[f"d{number}"] = 1
    ids = tuple(f"d{number}" for number in range(len(pairs)))
    corpus = Corpus(name=name, ids=ids, texts=tuple(pair.document for pair in pairs))
    queries = tuple(f"q{number}" for number in range(len(relevant)))  # a document of the query's own id is dropped
    return RetrievalSet(corpus, queries, tuple(relevant), tuple(relevant.values()))

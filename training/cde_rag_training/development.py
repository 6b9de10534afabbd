"""Small development sets, so that a choice takes minutes: parts of the listed ones, and held-out pairs."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir
from cde_rag_training.pairs import Pair
from cde_rag_training.reading import PairReader

DEVELOPMENT = {"cisi": "test", "cosqa": "dev", "nfcorpus_processed": "test", "financebench_evidence": "test"}
WITH_PARENTS = ("parents_redis", "parents_helm", "parents_govuk", "parents_prometheus", "squadshifts_newwiki")
HELD_OUT = {  # domains of each source that no training pair comes from
    "misc": (),
    "manpages": (),
    "pystdlib": (),
    "lfrqa": ("lfrqa_recreation",),
    "debian": ("debian_admin", "debian_graphics", "debian_mail", "debian_ruby", "debian_web"),
}


def _order(name: str) -> bytes:
    return sha256(name.encode()).digest()


def part(data: RetrievalSet, *, documents: int, queries: int) -> RetrievalSet:
    """At most so many queries, their relevant documents, and others up to so many; parents are kept whole."""
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


def _one_to_one(name: str, pairs: Sequence[Pair]) -> RetrievalSet:
    """Pairs as a retrieval set: each query's only relevant document is its own; a repeated query has several."""
    relevant: dict[str, dict[str, int]] = {}
    for number, pair in enumerate(pairs):
        relevant.setdefault(pair.query, {})[f"d{number}"] = 1
    ids = tuple(f"d{number}" for number in range(len(pairs)))
    corpus = Corpus(name=name, ids=ids, texts=tuple(pair.document for pair in pairs))
    queries = tuple(f"q{number}" for number in range(len(relevant)))  # a document of the query's own id is dropped
    return RetrievalSet(corpus, queries, tuple(relevant), tuple(relevant.values()))


def development_sets(data: Path, *, documents: int = 300, queries: int = 60) -> list[RetrievalSet]:
    """The development sets without parents, cut to `documents` and `queries`."""
    sets = [read_beir(data / "eval" / name, split=split) for name, split in DEVELOPMENT.items()]
    for source, domains in HELD_OUT.items():
        pairs = PairReader(data / "train" / source / "pairs.jsonl.gz", source=source)
        sets.append(_one_to_one(source, [pair for pair in pairs if not domains or pair.domain in domains]))
    return [part(one, documents=documents, queries=queries) for one in sets]


def parent_sets(data: Path, *, documents: int = 300, queries: int = 60) -> list[RetrievalSet]:
    """The development sets whose documents have parents (squadshifts_newwiki's are its titles), cut likewise."""
    return [
        part(
            read_beir(data / "eval" / name, parent_key="title" if name == "squadshifts_newwiki" else None),
            documents=documents,
            queries=queries,
        )
        for name in WITH_PARENTS
    ]

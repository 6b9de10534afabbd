"""Split of a corpus's queries into training, development and test parts, by parents."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag_training.adapt.corpus_pairs import Asked
from cde_rag_training.adapt.sections import place_of

DEVELOPMENT = (0.1, 200)  # share of the queries, and how many at most
TEST = (0.2, 400)
FEWEST = {"training": 64, "development": 16, "test": 32}


@dataclass(frozen=True)
class Parts:
    """Queries in three parts; no parent and no query occurs in two.

    Attributes:
        training: Training queries.
        development: Queries that choose the share of the training to keep.
        test: Queries of the reported results.
    """

    training: list[Asked]
    development: list[Asked]
    test: list[Asked]


def hold_out(asked: Sequence[Asked], *, seed: int) -> Parts:
    """Split queries by parent, in an order that depends only on the parents' names and the seed.

    Args:
        asked: Queries for the sections of a corpus.
        seed: Random seed of the choice.

    Raises:
        CorpusError: Too few queries, or too few parents, for three parts.
    """
    groups: dict[str, list[Asked]] = {}
    for one in asked:
        groups.setdefault(one.section.parent, []).append(one)
    left = {"test": min(round(TEST[0] * len(asked)), TEST[1])}
    left["development"] = min(round(DEVELOPMENT[0] * len(asked)), DEVELOPMENT[1])
    parts: dict[str, list[Asked]] = {"training": [], "development": [], "test": []}
    for parent in sorted(groups, key=lambda name: place_of(name, seed)):
        part = next((name for name, places in left.items() if places > 0), "training")
        parts[part] += groups[parent]
        if part in left:
            left[part] -= len(groups[parent])
    seen = set[str]()
    for name in ("test", "development", "training"):
        parts[name] = [one for one in parts[name] if one.query.lower() not in seen]
        seen |= {one.query.lower() for one in parts[name]}
    for name, fewest in FEWEST.items():
        if len(parts[name]) < fewest:
            counts = ", ".join(f"{len(found)} for {part}" for part, found in parts.items())
            raise CorpusError(
                f"Expected at least {fewest} queries for {name}, found {counts}, from {len(groups)} parents, which are "
                "never divided. Give more documents, or, where there are few parents, texts that name none."
            )
    return Parts(parts["training"], parts["development"], parts["test"])


def retrieval_set(
    name: str, asked: Sequence[Asked], answers: Sequence[Asked], shown: Sequence[tuple[str, str, str]]
) -> RetrievalSet:
    """Build a retrieval set; every document that a query was made for is relevant to it.

    Args:
        name: Name of the corpus.
        asked: The evaluated queries.
        answers: All queries of the corpus; a query made for several sections has several relevant documents.
        shown: Id, text and parent of each document, relevant ones included.
    """
    relevant: dict[str, dict[str, int]] = {one.query: {} for one in asked}
    for one in answers:
        if one.query in relevant:
            relevant[one.query][f"document {one.section.id}"] = 1  # never equal to a query's id
    sizes = Counter(parent for _, _, parent in shown)
    parents = tuple(parent if sizes[parent] > 1 else None for _, _, parent in shown)
    corpus = Corpus(
        name=name,
        ids=tuple(f"document {identifier}" for identifier, _, _ in shown),
        texts=tuple(text for _, text, _ in shown),
        parents=parents if any(parents) else None,
    )
    queries = tuple(f"query {number}" for number in range(len(relevant)))
    return RetrievalSet(corpus, queries, tuple(relevant), tuple(relevant.values()))

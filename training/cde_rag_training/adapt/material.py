"""Training pairs, development queries and test queries made from an unlabelled corpus."""

from collections.abc import Iterable
from dataclasses import dataclass

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.records import Record
from cde_rag_training.adapt.corpus_pairs import Asked, PairReport, ask, report, without_repeated
from cde_rag_training.adapt.parts import DEVELOPMENT, TEST, Parts, hold_out, retrieval_set
from cde_rag_training.adapt.sections import Section, sampled, sections
from cde_rag_training.data.cuts import part


@dataclass(frozen=True, kw_only=True)
class MaterialConfig:
    """Limits on the amount of the corpus that is used. All ours."""

    records: int = 8_000  # at most; parents whole
    documents: int = 1_000  # that the test queries are asked over, at most
    development_documents: int = 500  # that the development queries are asked over, at most
    seed: int = 0  # of the sample, the keywords, and what is kept apart


@dataclass(frozen=True)
class Material:
    """Data for an adaptation, made from a corpus.

    Attributes:
        parts: Training, development and test queries.
        pairs: Statistics of pairs made and sections dropped.
        development: Retrieval set of the development queries, over part of the corpus.
        test: Retrieval set of the test queries, over part of the corpus.
        kinds: Kind of each test query.
        titled: True if documents that share a parent are embedded with its title.
    """

    parts: Parts
    pairs: PairReport
    development: RetrievalSet
    test: RetrievalSet
    kinds: tuple[str, ...]
    titled: bool


def material(records: Iterable[Record], config: MaterialConfig, *, parent_key: str | None, name: str) -> Material:
    """Make training pairs from an unlabelled corpus, and hold out development and test queries.

    Args:
        records: Read twice or more.
        config: Sizes and seed.
        parent_key: Metadata key of the parent.
        name: Name of the corpus.

    Raises:
        CorpusError: Too few documents.
    """
    taken = list(sampled(records, parent_key=parent_key, limit=config.records, seed=config.seed))
    found, repeated = without_repeated(sections(taken, parent_key=parent_key))
    made = ask(found, seed=config.seed)
    dropped = {"a text that stands there twice": repeated, "a text of few words, or without any": made.count(None)}
    asked = [one for one in made if one is not None]
    parts = hold_out(asked, seed=config.seed)
    shown = _shown(found, asked)
    test = part(retrieval_set(name, parts.test, asked, shown), documents=config.documents, queries=TEST[1])
    kinds = {one.query: one.kind for one in parts.test}
    return Material(
        parts=parts,
        pairs=report(asked, dropped),
        development=part(
            retrieval_set(name, parts.development, asked, shown),
            documents=config.development_documents,
            queries=DEVELOPMENT[1],
        ),
        test=test,
        kinds=tuple(kinds[query] for query in test.queries),
        titled=any(one.section.title and one.kind != "title" for one in asked),
    )


def _shown(found: Iterable[Section], asked: Iterable[Asked]) -> list[tuple[str, str, str]]:
    """Return every section as a document of the comparison, without the part that became its query."""
    texts = {one.section.id: one.shown for one in asked}
    return [(section.id, texts.get(section.id, section.whole), section.parent) for section in found]

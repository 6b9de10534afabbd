"""Training pairs, development queries and test queries made from an unlabelled corpus."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.records import Record
from cde_rag_training.adapt.corpus_pairs import Asked, PairReport, ask, report, without_repeated
from cde_rag_training.adapt.parts import DEVELOPMENT, TEST, Parts, hold_out, retrieval_set
from cde_rag_training.adapt.sections import Section, sampled, sections, whole_records
from cde_rag_training.adapt.supplied_queries import read_supplied
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


def material(
    records: Iterable[Record], config: MaterialConfig, *, parent_key: str | None, queries: Path | None, name: str
) -> Material:
    """Make training pairs from an unlabelled corpus, and hold out development and test queries.

    Args:
        records: Read twice or more.
        config: Sizes and seed.
        parent_key: Metadata key of the parent.
        queries: File of the user's own queries for `read_supplied`; if given, only these are held out.
        name: Name of the corpus.

    Raises:
        CorpusError: Too few documents, no query that can be used, or a bad line.
    """
    taken = list(sampled(records, parent_key=parent_key, limit=config.records, seed=config.seed))
    cut = whole_records if queries else sections
    found, repeated = without_repeated(cut(taken, parent_key=parent_key))
    made = ask(found, seed=config.seed)
    dropped = {"a text that stands there twice": repeated, "a text of few words, or without any": made.count(None)}
    asked = [one for one in made if one is not None]
    if queries is not None:
        supplied, reasons = read_supplied(queries, found)
        if not supplied:
            why = ", ".join(f"{count} × {reason}" for reason, count in reasons.items()) or "no lines"
            raise CorpusError(f"{queries}: expected queries for documents of the corpus, found: {why}. Mend the file.")
        named = {one.section.id for one in supplied}
        asked = supplied + [one for one in asked if one.section.id not in named]
        dropped |= reasons
    parts = hold_out(asked, only="supplied" if queries else None, seed=config.seed)
    shown = _shown(found, [] if queries else asked)
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
        titled=queries is None and any(one.section.title and one.kind != "title" for one in asked),
    )


def _shown(found: Iterable[Section], asked: Iterable[Asked]) -> list[tuple[str, str, str]]:
    """Return every section as a document of the comparison, without the part that became its query."""
    texts = {one.section.id: one.shown for one in asked}
    return [(section.id, texts.get(section.id, section.whole), section.parent) for section in found]

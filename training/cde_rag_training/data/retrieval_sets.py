"""Retrieval sets named in a TOML file, for experiments and development curves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import RetrievalSet, read_beir
from cde_rag_training.data.cuts import one_to_one, part
from cde_rag_training.data.reading import PairReader


@dataclass(frozen=True, kw_only=True)
class SetConfig:
    """One set.

    Attributes:
        path: Below the data's folder: a folder in BEIR's layout, or a file of pairs, each of whose queries has to find
            its own document.
        name: By default the folder's name.
        split: Split of the judgments.
        parent_key: Field that names a document's parent; see `read_beir`.
        domains: Domains of the pairs to keep; all by default.
        max_characters: Longer documents are split; see `read_beir`.
    """

    path: str
    name: str = ""
    split: str = "test"
    parent_key: str = ""
    domains: tuple[str, ...] = ()
    max_characters: int = 0

    def __post_init__(self) -> None:
        if self.max_characters < 0:
            raise ValueError(f"Expected max_characters of 0 (texts stay uncut) or more, found {self.max_characters}.")


@dataclass(frozen=True, kw_only=True)
class SetsConfig:
    """Configuration of the sets, with limits on documents and queries.

    Attributes:
        documents: Approximate maximum per set; parents are not split, judged documents stay.
        queries: Maximum per set.
        sets: At least one.
    """

    documents: int = 1000
    queries: int = 200
    sets: tuple[SetConfig, ...] = ()

    def __post_init__(self) -> None:
        if min(self.documents, self.queries) < 1 or not self.sets:
            raise ValueError("Expected documents and queries of at least 1, and a set or more under [[sets]].")


def read_sets(config: SetsConfig, data: Path) -> list[RetrievalSet]:
    """Read the sets and cut them; the same cut each time.

    Raises:
        CorpusError: A set that is not as it should be, or two of one name.
    """
    found = [part(_read(one, data), documents=config.documents, queries=config.queries) for one in config.sets]
    names = [one.corpus.name for one in found]
    if len(set(names)) < len(names):
        raise CorpusError(f"Expected sets of different names, found {names}. Name one of them.")
    return found


def _read(config: SetConfig, data: Path) -> RetrievalSet:
    path = data / config.path
    if path.is_dir():
        found = read_beir(
            path,
            split=config.split,
            parent_key=config.parent_key or None,
            max_characters=config.max_characters or None,
        )
        return replace(found, corpus=replace(found.corpus, name=config.name or found.corpus.name))
    name = config.name or path.parent.name
    kept = [pair for pair in PairReader(path, source=name) if not config.domains or pair.domain in config.domains]
    if len(kept) < 2:
        raise CorpusError(f"{path}: expected two pairs or more of {config.domains}, found {len(kept)}.")
    return one_to_one(name, kept)


def with_parents(sets: Sequence[RetrievalSet]) -> list[RetrievalSet]:
    """Return the sets whose documents have parents.

    Raises:
        CorpusError: There is none.
    """
    found = [one for one in sets if one.corpus.parents is not None]
    if not found:
        raise CorpusError("Expected a set whose documents have parents, found none. Name one, with its parent_key.")
    return found

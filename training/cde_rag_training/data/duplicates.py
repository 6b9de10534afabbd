"""Removal of pairs that are near-duplicates of each other or of evaluation sets, with a report.

Two texts are near-duplicates if the sets of their 5-grams of words have a Jaccard index of 0.5 or more, or their
surrogate embeddings a cosine of 0.95 or more. What is removed, in this order:

1. a pair whose document or query is a near-duplicate of a document or a query of an evaluation set;
2. a pair whose document is a near-duplicate, but not the same, of a document that stays: it would be a false negative
   of that document's pairs, and teaches to tell versions apart by their noise;
3. a pair of a document that stays, with a query that it has already (repeated), or with one more query than a document
   may have: a text that answers anything (legal notices, "common parameters") answers nothing.

So the same document with another query stays: both queries are valid, and the loss masks the two for each other.
Texts are the same if they differ in case and white space alone. The first in the order given stays. Hard negatives that
are the same as a text of an evaluation set are taken out of pairs that stay.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cde_rag.errors import CorpusError
from cde_rag.readers.tables import jsonl_rows, opened
from cde_rag_training.clustering.near_duplicates import DuplicateConfig, Matches, UniqueTexts, matches, sharing_words
from cde_rag_training.clustering.surrogate import Surrogate
from cde_rag_training.data.pairs import Pair, text_key, without_negatives
from cde_rag_training.data.reading import PairReader

Side = Literal["document", "query"]
Rule = Literal["jaccard", "cosine", "repeated", "boilerplate"]


class EvaluationTexts(NamedTuple):
    """An evaluation set as texts.

    Attributes:
        name: Name of the set.
        documents: Without their titles.
        queries: Queries of all splits.
    """

    name: str
    documents: list[str]
    queries: list[str]


class Removal(NamedTuple):
    """Removed pair, with the reason.

    Attributes:
        pair: The removed pair.
        side: Side that is a near-duplicate: "document" or "query".
        found: The text that it is a near-duplicate of.
        where: Source or evaluation set of that text.
        rule: Rule that removed it.
        score: Jaccard index or cosine; 1 for the others.
    """

    pair: Pair
    side: Side
    found: str
    where: str
    rule: Rule
    score: float


class SetReport(NamedTuple):
    """Pairs removed from one source because of another, or of an evaluation set.

    Attributes:
        source: Source that lost pairs.
        where: Source or evaluation set that has their texts.
        by_rule: Number of pairs, by side and rule.
        examples: Some of them.
    """

    source: str
    where: str
    by_rule: Mapping[tuple[Side, Rule], int]
    examples: list[Removal]


class Deduplicated(NamedTuple):
    """Kept and removed pairs.

    Attributes:
        pairs: Kept pairs, in order; without hard negatives of evaluation sets.
        removals: Removed pairs, in order.
    """

    pairs: list[Pair]
    removals: list[Removal]

    def report(self, *, examples: int = 3) -> list[SetReport]:
        """Count the removed pairs for each pair of sets, the largest first."""
        groups: dict[tuple[str, str], list[Removal]] = {}
        for removal in self.removals:
            groups.setdefault((removal.pair.source, removal.where), []).append(removal)
        return [
            SetReport(source, where, Counter((one.side, one.rule) for one in group), group[:examples])
            for (source, where), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        ]


def read_evaluation(path: Path) -> EvaluationTexts:
    """Read the texts of an evaluation set.

    Args:
        path: A folder in BEIR's layout (`corpus.jsonl` and all `queries*.jsonl`, each plain or `.gz`), or a file of
            pairs as `PairReader` reads it.

    Raises:
        CorpusError: There is no such folder or file, no text in it, or a line is not as it should be.
    """
    if path.is_file():
        pairs = list(PairReader(path))
        return EvaluationTexts(path.name, [pair.document for pair in pairs], [pair.query for pair in pairs])
    documents, queries = (
        [text for part in sorted(path.glob(f"{name}*.jsonl*")) for text in _texts_of(part)]
        for name in ("corpus", "queries")
    )
    if not documents and not queries:
        raise CorpusError(
            f"{path}: expected a folder with corpus.jsonl or queries.jsonl (or .jsonl.gz), or a file of pairs, found "
            "no text in such files. Check its name: pairs would be compared with nothing."
        )
    return EvaluationTexts(path.name, documents, queries)


def without_near_duplicates(
    pairs: Iterable[Pair],
    config: DuplicateConfig,
    *,
    surrogate: Surrogate,
    against: Sequence[EvaluationTexts] = (),
) -> Deduplicated:
    """Take out near-duplicates by the rules above.

    Args:
        pairs: The first of several stays.
        config: When two texts are near-duplicates.
        surrogate: Texts to vectors; one that is `cached` serves `prepare` again.
        against: Evaluation sets.

    Raises:
        MissingExtraError: faiss or datasketch is not installed.

    Source: Lee et al. 2022 §4.2 for the n-grams; rules and thresholds are ours. Memory: about 3 kB a text with vectors
    of 384 dims. Time grows with the square of the number of documents, in faiss.
    """
    pairs = list(pairs)
    if not pairs:
        return Deduplicated([], [])
    sides: dict[Side, UniqueTexts] = {
        "document": UniqueTexts([pair.document for pair in pairs], surrogate, config),
        "query": UniqueTexts([pair.query for pair in pairs], surrogate, config),
    }
    removals = _against(pairs, sides, against, surrogate, config)
    removals |= _inside(pairs, sides, config, removals.keys())
    forbidden = {text_key(text) for one in against for text in (*one.documents, *one.queries)}
    kept = [without_negatives(pair, forbidden) for number, pair in enumerate(pairs) if number not in removals]
    return Deduplicated(kept, [removals[number] for number in sorted(removals)])


def _against(
    pairs: Sequence[Pair],
    sides: Mapping[Side, UniqueTexts],
    sets: Sequence[EvaluationTexts],
    surrogate: Surrogate,
    config: DuplicateConfig,
) -> dict[int, Removal]:
    """Return the pairs, by number, that have a text of an evaluation set (rule 1)."""
    names = {text: one.name for one in reversed(sets) for text in (*one.documents, *one.queries)}
    compared = list(names)
    if config.shared_words and names:
        given = [text for texts in sides.values() for text in texts.texts]
        compared = sharing_words(compared, given, least=config.shared_words)
    if not compared:
        return {}
    others = UniqueTexts(compared, surrogate, config)
    removals: dict[int, Removal] = {}
    for side, texts in sides.items():
        found = matches(texts, others, config)
        rows, places = np.unique(found.one, return_index=True)
        best = dict(zip(rows.tolist(), places.tolist(), strict=True))
        for number, pair in enumerate(pairs):
            place = best.get(texts.row_of[number])
            if place is not None and number not in removals:
                text = others.texts[int(found.other[place])]
                removals[number] = Removal(pair, side, text, names[text], *_said(found, place))
    return removals


def _inside(
    pairs: Sequence[Pair], sides: Mapping[Side, UniqueTexts], config: DuplicateConfig, out: Collection[int]
) -> dict[int, Removal]:
    """Return the pairs, by number, whose document repeats that of another pair that stays (rules 2 and 3).

    Pairs in `out` are ignored.
    """
    documents, queries = sides["document"], sides["query"]
    found = matches(documents, documents, config)
    starts = np.searchsorted(found.one, np.arange(len(documents.texts) + 1)).tolist()
    asked: dict[int, set[int]] = {}  # rows of documents that stay, and of their queries
    source: dict[int, str] = {}  # of these documents
    removals: dict[int, Removal] = {}
    for number, pair in enumerate(pairs):
        if number in out:
            continue
        row, query = documents.row_of[number], queries.row_of[number]
        if row not in asked:
            near = range(starts[row], starts[row + 1])
            place = next((place for place in near if int(found.other[place]) in asked), None)
            if place is not None:
                other = int(found.other[place])
                text = documents.texts[other]
                removals[number] = Removal(pair, "document", text, source[other], *_said(found, place))
                continue
            asked[row], source[row] = set(), pair.source
        if query in asked[row] or len(asked[row]) == config.queries_per_document:
            rule: Rule = "repeated" if query in asked[row] else "boilerplate"
            removals[number] = Removal(pair, "document", documents.texts[row], source[row], rule, 1.0)
        else:
            asked[row].add(query)
    return removals


def _said(found: Matches, place: int) -> tuple[Rule, float]:
    """Return the rule by which two texts are near-duplicates, and the score."""
    return "cosine" if found.cosine[place] else "jaccard", float(found.scores[place])


def _texts_of(path: Path) -> Iterator[str]:
    with opened(path) as file:
        for where, parse in jsonl_rows(file, str(path)):
            text = parse().get("text")
            if not isinstance(text, str):
                raise CorpusError(f"{where}: expected a string in 'text', found {text!r:.40}. Is it in BEIR's layout?")
            if text.strip():
                yield text

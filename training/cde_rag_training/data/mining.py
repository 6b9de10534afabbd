"""Hard negatives of pairs: documents of the same source that rank high for the query and are none of its answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag.errors import CorpusError, require
from cde_rag_training.clustering.clusters import unit
from cde_rag_training.clustering.surrogate import Surrogate
from cde_rag_training.data.pairs import Pair, text_key

BLOCK = 256  # queries whose scores are held at a time

Scores = Callable[[Sequence[str], Sequence[str]], Iterator[Float32[np.ndarray, " documents"]]]
"""Yields the scores of all documents, query by query: queries and documents in."""


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """Choice of hard negatives among the documents of a source."""

    first: int = 10  # rank from which a document is taken, 1 for the best that is no answer; GTE's and BGE's windows
    last: int = 100  # rank up to which it is taken
    count: int = 7  # hard negatives of a pair, at most
    margin: float = 0.05  # a negative scores so much less than the own document, as a share of its score; NV-Retriever
    draw: Literal["random", "best"] = "random"  # in the window
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last or self.count < 1 or not 0 <= self.margin < 1 or self.seed < 0:
            raise ValueError(
                "Expected ranks 1 ≤ first ≤ last, a count of at least 1, a margin in 0 … 1 and a seed of at least 0, "
                f"found {self}."
            )


class Mined(NamedTuple):
    """Pairs with hard negatives.

    Attributes:
        pairs: All pairs, in order; those that they had come first.
        found: Number of new ones, by source.
        without: Number of pairs that still have none, by source.
    """

    pairs: list[Pair]
    found: dict[str, int]
    without: dict[str, int]


def mine(pairs: Sequence[Pair], scores: Scores, config: MiningConfig, *, progress: bool = False) -> Mined:
    """Add hard negatives to pairs.

    Documents of a source are ranked for each query; its answers (the documents of all pairs with that query, copies
    included) have no rank, and documents of score 0 are not taken: they share no word with the query. A document of the
    window is taken if it scores less than the pair's own document by the margin, so that unnoted answers, which score
    high, are left out.

    Args:
        pairs: Of one or more sources.
        scores: `bm25_scores`, or `surrogate_scores(surrogate)`.
        config: Window, margin and number.
        progress: Show a bar on stderr.

    Raises:
        CorpusError: No pairs, or none of whose documents has a word, by BM25.

    Source: Qu et al. 2021 (window); Moreira et al. 2024 (NV-Retriever, TopK-PercPos: the margin).
    """
    if not pairs:
        raise CorpusError("Expected pairs to mine for, found none.")
    sources: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        sources.setdefault(pair.source, []).append(number)
    done = list(pairs)
    found, without = dict.fromkeys(sources, 0), dict.fromkeys(sources, 0)
    with tqdm(total=len(pairs), desc="mining", unit=" pairs", disable=not progress) as bar:
        for source, numbers in sources.items():
            documents = list({text_key(pairs[number].document): pairs[number].document for number in numbers}.values())
            places = {text_key(text): place for place, text in enumerate(documents)}
            answers: dict[bytes, set[int]] = {}
            for number in numbers:
                own = places[text_key(pairs[number].document)]
                answers.setdefault(text_key(pairs[number].query), set()).add(own)
            queries = [pairs[number].query for number in numbers]
            for number, of_documents in zip(numbers, scores(queries, documents), strict=True):
                pair = pairs[number]
                right = sorted(answers[text_key(pair.query)])
                random = np.random.default_rng([config.seed, number])
                own = places[text_key(pair.document)]
                chosen = [documents[place] for place in _chosen(of_documents, own, right, config, random)]
                known = {text_key(text) for text in pair.hard_negatives}
                new = [text for text in chosen if text_key(text) not in known]
                done[number] = replace(pair, hard_negatives=(*pair.hard_negatives, *new))
                found[source] += len(new)
                without[source] += not done[number].hard_negatives
                bar.update()
    return Mined(done, found, without)


def _chosen(
    scores: Float32[np.ndarray, " documents"],
    own: int,
    answers: Sequence[int],
    config: MiningConfig,
    random: np.random.Generator,
) -> list[int]:
    """Return positions of hard negatives, the best first."""
    highest = scores[own] - config.margin * abs(scores[own])
    others = scores.astype(np.float32).copy()
    others[list(answers)] = -np.inf
    last = min(config.last, len(others) - len(answers))
    if last < config.first:
        return []
    best = np.argpartition(-others, last - 1)[:last]
    window = best[np.lexsort((best, -others[best]))][config.first - 1 :]
    fitting = window[(others[window] < highest) & (others[window] != 0)]
    if config.draw == "best" or len(fitting) <= config.count:
        return fitting[: config.count].tolist()
    places = np.sort(random.choice(len(fitting), size=config.count, replace=False))
    return fitting[places].tolist()


def surrogate_scores(surrogate: Surrogate) -> Scores:
    """Return cosines by a surrogate."""

    def scores(queries: Sequence[str], documents: Sequence[str]) -> Iterator[Float32[np.ndarray, " documents"]]:
        held = unit(surrogate(documents))
        for start in range(0, len(queries), BLOCK):
            yield from unit(surrogate(queries[start : start + BLOCK])) @ held.T

    return scores


def bm25_scores(queries: Sequence[str], documents: Sequence[str]) -> Iterator[Float32[np.ndarray, " documents"]]:
    """Yield BM25 of all documents for each query: Lucene's, English stems without stop words, through bm25s.

    Raises:
        CorpusError: No document has a word.
        MissingExtraError: bm25s is not installed.
    """
    bm25s: Any = require("bm25s", "evaluation")
    stemmer: Any = require("Stemmer", "evaluation").Stemmer("english")

    def words(texts: Sequence[str]) -> list[list[str]]:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)

    held = words(documents)
    if not any(held):
        raise CorpusError("Expected documents with words, found none. Leave empty documents out.")
    index = bm25s.BM25(k1=1.2, b=0.75)
    index.index(held, show_progress=False)
    nothing = np.zeros(len(documents), dtype=np.float32)
    for query in words(queries):
        asked = [one for one in query if one in index.vocab_dict]
        yield index.get_scores(asked).astype(np.float32) if asked else nothing

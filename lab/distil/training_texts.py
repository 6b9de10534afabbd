"""Texts of a distillation: documents, queries, sentences and headings of training pairs, with their roles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cde_rag.errors import CorpusError
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.data.alternative_queries import sentence_and_rest
from cde_rag_training.data.pairs import Pair

AT_ONCE = 4096  # texts that are tokenized together

Reach = Callable[[Sequence[str]], Sequence[int]]


class TrainingText(NamedTuple):
    """Text that teacher and student embed.

    Attributes:
        text: Not blank.
        role: `second_stage.QUERY` or `second_stage.DOCUMENT`.
    """

    text: str
    role: int


def training_texts(pairs: Iterable[Pair], *, reach: Reach, seed: int) -> list[TrainingText]:
    """Collect the texts of pairs, each role's texts without repetition, in a random order.

    A pair gives its document and, if that has three sentences or more, one of them, in the document role; its query and
    its parent's name in the query role.

    Args:
        pairs: Read once.
        reach: Returns the number of characters of each text that are kept, from its start.
        seed: Random seed of sentences and order.

    Raises:
        CorpusError: There are no pairs.

    Source: ours; Vujanic & Rueckstiess 2025 (LEAF) for documents and queries without judgments.
    """
    random = np.random.default_rng(seed)
    distinct = list(dict.fromkeys(found for pair in pairs for found in _texts_of(pair, random)))
    if not distinct:
        raise CorpusError("Expected training pairs, found none. Name a file that has some.")
    cut: dict[TrainingText, None] = {}
    for start in range(0, len(distinct), AT_ONCE):
        part = distinct[start : start + AT_ONCE]
        ends = reach([each.text for each in part])
        cut |= dict.fromkeys(
            TrainingText(each.text[:end].strip(), each.role) for each, end in zip(part, ends, strict=True)
        )
    kept = [each for each in cut if each.text]
    return [kept[place] for place in np.random.default_rng([seed, 1]).permutation(len(kept)).tolist()]


def _texts_of(pair: Pair, random: np.random.Generator) -> Iterator[TrainingText]:
    yield TrainingText(pair.document, DOCUMENT)
    yield TrainingText(pair.query, QUERY)
    drawn = sentence_and_rest(pair.document, random, reach=len(pair.document))
    if drawn is not None:
        yield TrainingText(drawn[0], DOCUMENT)
    if pair.parent:
        yield TrainingText(pair.parent, QUERY)

"""Hard negatives of questions: passages of the same corpus that rank high and do not answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.search.fusion import Scored


@dataclass(frozen=True, kw_only=True)
class HardNegativesConfig:
    """Numbers of hard negatives of each question, and the filter of passages that may answer. All ours."""

    same_page: int = 6  # other passages of the pages that answer, the most similar first
    by_model: int = 12  # most similar of the others …
    pool: int = 50  # … among so many of the model's best passages
    by_words: int = 6  # best by BM25 of the others
    margin: float = 0.1  # cosine above the best passage that answers, from which another is taken for an answer too

    def __post_init__(self) -> None:
        if min(self.same_page, self.by_model, self.by_words) < 0 or self.pool < self.by_model:
            raise ValueError(f"Expected numbers of at least 0, and a pool of at least by_model, found {self}.")


@dataclass(frozen=True, slots=True)
class Negatives:
    """Negatives of one question.

    Attributes:
        passages: Positions of the hard negatives, hardest kind first.
        unmarked: Positions of passages that score above the best right one by the margin or more: further answers,
            probably, which nobody noted. They are no negatives.
        above: Number of passages that count as wrong and score above the best right one.
    """

    passages: tuple[int, ...]
    unmarked: tuple[int, ...]
    above: int


def hard_negatives(
    data: JudgedPassages,
    similarities: Float32[np.ndarray, "questions passages"],
    words: Sequence[Scored],
    config: HardNegativesConfig,
) -> list[Negatives]:
    """Choose hard negatives for each question; a question that no passage answers has none.

    Args:
        data: Passages and questions.
        similarities: Cosines of the model that is to be trained, under the corpus's context.
        words: Hits by BM25 for each question, named by their positions (`word_hits`).
        config: How many of each kind.
    """
    found: list[Negatives] = []
    for scores, hits, answers in zip(similarities, words, data.answers, strict=True):
        right = np.array([passage.id in answers for passage in data.passages])
        if not right.any():
            found.append(Negatives((), (), 0))
            continue
        best = float(scores[right].max())
        pages = {passage.page for passage, is_right in zip(data.passages, right, strict=True) if is_right}
        order = [place for place in np.argsort(-scores, kind="stable").tolist() if not right[place]]
        unmarked = [place for place in order if scores[place] >= best + config.margin]
        wrong = order[len(unmarked) :]
        chosen = [place for place in wrong if data.passages[place].page in pages][: config.same_page]
        pool = set(order[: config.pool])
        others = [place for place in wrong if place in pool and place not in chosen]
        chosen += others[: config.by_model]
        known = {*chosen, *unmarked}
        by_words = [int(place) for place, _ in hits if not right[int(place)] and int(place) not in known]
        chosen += by_words[: config.by_words]
        found.append(Negatives(tuple(chosen), tuple(unmarked), int((scores[~right] > best).sum())))
    return found

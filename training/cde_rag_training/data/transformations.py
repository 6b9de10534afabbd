"""Transformations of all documents of a corpus alike: with titles, truncated, or under a shared header.

Case is no such way. An uncased tokenizer has none left, and a cased one divides a word in lower case otherwise, so that
it cannot be changed on token ids: texts in another case are other data, made before `prepare`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from cde_rag_training.data.prepared import Prepared

NONE = -1  # no text row


@dataclass(frozen=True, kw_only=True)
class TransformationConfig:
    """Probabilities of changing all documents of a corpus alike.

    Ours; no gain is measured yet, so that all are off.
    """

    titled_share: float = 0.0  # of batches, documents with their titles; such batches have no hard negatives
    cut_share: float = 0.0  # of batches, documents cut short
    shortest_cut: int = 32  # tokens; drawn log-uniformly up to `max_length`
    header_share: float = 0.0  # of batches, documents under the start of a text of their source
    header_tokens: tuple[int, int] = (4, 24)  # least and most

    def __post_init__(self) -> None:
        """Refuse shares outside 0 … 1, and lengths out of order."""
        shares = (self.titled_share, self.cut_share, self.header_share)
        least, most = self.header_tokens
        if not (min(shares) >= 0 and max(shares) <= 1) or self.shortest_cut < 1 or not 0 <= least <= most:
            raise ValueError(
                "Expected shares in 0 … 1, a shortest_cut of at least 1 and header_tokens from 0 on, least and most, "
                f"found {self}."
            )


@dataclass(frozen=True)
class Transformation:
    """Transformation of every document of a batch, its context and its siblings.

    Attributes:
        titled: True if the parent's name is put before the text.
        cut: Tokens of the text itself that are kept; None: all.
        header: Text row of the header, -1 for none.
        header_tokens: Number of its first tokens that are put before every document, in front of the title.
    """

    titled: bool = False
    cut: int | None = None
    header: int = NONE
    header_tokens: int = 0


PLAIN = Transformation()


def draw_transformation(
    config: TransformationConfig, header: int, *, max_length: int, random: np.random.Generator
) -> Transformation:
    """Draw the transformation of one batch.

    Args:
        config: Probabilities.
        header: Text row whose start is the header, where there is one.
        max_length: Tokens; the longest cut.
        random: Draws.
    """
    titled, short, headed = random.random(3) < (config.titled_share, config.cut_share, config.header_share)
    shortest = min(config.shortest_cut, max_length)
    cut = round(float(np.exp(random.uniform(np.log(shortest), np.log(max_length)))))
    least, most = config.header_tokens
    header_tokens = int(random.integers(least, most + 1))
    return Transformation(
        titled=bool(titled),
        cut=cut if short else None,
        header=header if headed else NONE,
        header_tokens=header_tokens if headed else 0,
    )


class DocumentTokens:
    """Documents as token ids, transformed: they depend on the text row and the transformation only.

    Args:
        prepared: The data. A text that stands under several titles, or once under none, is shown without.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        pairs, documents = prepared.views[:, 0], prepared.views[:, 3]
        titles = np.asarray(prepared.titles)[pairs]
        self._titles = np.full(len(prepared.texts), NONE, dtype=np.int64)
        self._titles[documents] = titles
        self._titles[documents[self._titles[documents] != titles]] = NONE

    def __call__(self, rows: Sequence[int] | Int64[np.ndarray, " documents"], how: Transformation) -> list[list[int]]:
        """Return token ids of each document, at most `prepared.max_length`: [CLS] header title text [SEP].

        Longer sequences are truncated. The first and the last token of every text are its special ones.

        Args:
            rows: Text rows of documents, or of hard negatives, which have no titles.
            how: The batch's transformation.
        """
        texts = self._prepared.texts
        if how == PLAIN:
            return [texts[int(row)] for row in rows]
        header = [] if how.header == NONE else texts[how.header][1:-1][: how.header_tokens]
        shown: list[list[int]] = []
        for row in rows:
            first, *text, last = texts[int(row)]
            title = int(self._titles[row]) if how.titled else NONE
            named = [] if title == NONE else texts[title][1:-1]
            shown.append([first, *(header + named + text[: how.cut])[: self._prepared.max_length - 2], last])
        return shown

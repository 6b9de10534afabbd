"""One way to show all documents of a corpus: with their titles, cut short, under a header that all of them share.

Case is no such way: an uncased tokenizer has none left, and a cased one divides a word in lower case otherwise, so that
it cannot be changed on token ids. Data in another case is data of its own, made before `prepare`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from cde_rag_training.prepared import Prepared

NONE = -1  # no text row


@dataclass(frozen=True)
class Transformation:
    """How every document of a corpus is shown: the batch's, the context's and the siblings.

    Attributes:
        titled: Whether the parent's name stands before the text, where it has one.
        cut: Tokens of the text itself that are kept; None: all.
        header: Text row of the header, -1 for none.
        header_tokens: Its first tokens, so many, stand before every document, in front of the title.
    """

    titled: bool = False
    cut: int | None = None
    header: int = NONE
    header_tokens: int = 0


PLAIN = Transformation()


class DocumentTokens:
    """Documents as token ids, transformed.

    Args:
        prepared: The data. A text that stands under several titles is shown without one.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def __call__(self, rows: Sequence[int] | Int64[np.ndarray, " documents"], how: Transformation) -> list[list[int]]:
        """Token ids of each document: [CLS] header title text [SEP], no longer than `prepared.max_length`.

        The text's end is what gives way; a text without special tokens around it does not exist in prepared data.

        Args:
            rows: Text rows of documents, or of hard negatives.
            how: A batch's transformation.
        """
        raise NotImplementedError

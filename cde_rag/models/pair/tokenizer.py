"""Tokenization of texts for two encoders, with concatenated token ids."""

import hashlib
from collections.abc import Sequence

from cde_rag.models.tokenizer import TextTokenizer, Tokens


class PairTokenizer(TextTokenizer):
    """Tokenizer whose rows are the first half's token ids followed by the second half's, which start at `start`.

    A prefix is for the second half alone: the first distinguishes queries from documents by a vector.

    Args:
        first: Tokenizer of the first half.
        start: One more than the first half's highest id.
        serialised: The JSON of the second half's tokenizer.

    Raises:
        ModelError: `serialised` is no such JSON.
    """

    def __init__(self, first: TextTokenizer, start: int, serialised: str) -> None:
        super().__init__(serialised)
        self.first, self.start = first, start
        self.sha256 = hashlib.sha256(f"{first.sha256} {self.sha256}".encode()).hexdigest()

    @property
    def size(self) -> int:
        """One more than the highest id of the second half's tokens."""
        return self.start + super().size

    def __call__(self, texts: Sequence[str], max_length: int, *, prefix: str = "", first: int = 0) -> list[Tokens]:
        """Tokenize a batch; arguments and errors as in `TextTokenizer`, `max_length` for each half."""
        halves = zip(
            self.first(texts, max_length, first=first),
            super().__call__(texts, max_length, prefix=prefix, first=first),
            strict=True,
        )
        return [
            Tokens([*one.ids, *(self.start + each for each in other.ids)], one.truncated or other.truncated)
            for one, other in halves
        ]

    def count(self, ids: Sequence[int]) -> int:
        """Return the tokens of a row, of the half that has more: each half reads `max_length` of its own."""
        second = sum(each >= self.start for each in ids)
        return max(second, len(ids) - second)

    def reach(self, texts: Sequence[str], max_length: int) -> list[int]:
        """Return the number of characters of each text that both halves read; arguments as in `TextTokenizer`."""
        return list(map(min, self.first.reach(texts, max_length), super().reach(texts, max_length)))

"""Texts to the token ids of two encoders, one behind the other."""

import hashlib
from collections.abc import Sequence

from jaxtyping import Bool, Int
from torch import Tensor, arange

from cde_rag.model.tokenizer import TextTokenizer, Tokens


class PairTokenizer(TextTokenizer):
    """A tokenizer whose rows are the first half's token ids and behind them the second half's, which start at `start`.

    A prefix is for the second half alone: the first is told queries from documents by a vector.

    Args:
        first: Of the first half.
        start: One more than the first half's highest id.
        serialised: The JSON of the second half's tokenizer.

    Raises:
        ModelError: `serialised` is not that.
    """

    def __init__(self, first: TextTokenizer, start: int, serialised: str) -> None:
        super().__init__(serialised)
        self.first, self.start = first, start
        self.sha256 = hashlib.sha256(f"{first.sha256} {self.sha256}".encode()).hexdigest()

    @property
    def size(self) -> int:
        """One more than the highest id that it can give, at least."""
        return self.start + super().size

    def __call__(self, texts: Sequence[str], max_length: int, *, prefix: str = "", first: int = 0) -> list[Tokens]:
        """Tokenize a batch; arguments and errors as in `TextTokenizer`, `max_length` of each half."""
        halves = zip(
            self.first(texts, max_length, first=first),
            super().__call__(texts, max_length, prefix=prefix, first=first),
            strict=True,
        )
        return [
            Tokens([*one.ids, *(self.start + each for each in other.ids)], one.truncated or other.truncated)
            for one, other in halves
        ]

    def reach(self, texts: Sequence[str], max_length: int) -> list[int]:
        """How far each text is read by both halves; as in `TextTokenizer`."""
        return list(map(min, self.first.reach(texts, max_length), super().reach(texts, max_length)))


def halves(
    ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"], start: int
) -> tuple[
    tuple[Int[Tensor, "batch first"], Bool[Tensor, "batch first"]],
    tuple[Int[Tensor, "batch second"], Bool[Tensor, "batch second"]],
]:
    """A padded batch of a pair's rows as two padded batches, of the first half's ids and of the second's.

    Args:
        ids: Rows of a `PairTokenizer`, padded on the right.
        mask: True where there is a token.
        start: Of the tokenizer.
    """
    first = (mask & (ids < start)).sum(dim=1, keepdim=True)
    second = mask.sum(dim=1, keepdim=True) - first
    places = arange(int(second.max()), device=ids.device)
    here, there = mask[:, : int(first.max())], places < second
    here = here & (arange(here.shape[1], device=ids.device) < first)
    behind = (ids.gather(1, (first + places).clamp(max=ids.shape[1] - 1)) - start).where(there, 0)
    return (ids[:, : here.shape[1]].where(here, 0), here), (behind, there)

"""Batches of texts on their way through a model: tokens and siblings in, vectors out."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
from jaxtyping import Bool, Float32
from tqdm import tqdm

from cde_rag._validation import digest
from cde_rag.models.batching import tight_buckets
from cde_rag.models.model import Embedded
from cde_rag.models.tokenizer import Tokens
from cde_rag.models.windows import pool_windows

if TYPE_CHECKING:
    from cde_rag.models.cde_model import CDEModel

KEPT: Final = 4096  # vectors of siblings: some 10 MB
TOKENIZED_AT_ONCE: Final = 1024  # texts per tokenizer call; bounds memory and lets lengths be sorted


class KeptVectors:
    """Vectors that were made last, by keys of all that they depend on; thread-safe.

    Args:
        most: Number of vectors; None for `KEPT`.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._vectors = OrderedDict[Hashable, Float32[np.ndarray, " dim"]]()
        self._lock = threading.Lock()

    def __reduce__(self) -> "tuple[type[KeptVectors], tuple[int | None]]":
        """Describe an empty one, for copies and pickles of a model: their weights may be changed."""
        return KeptVectors, (self._most,)

    def of(
        self, keys: Sequence[Hashable], make: Callable[[list[int]], Float32[np.ndarray, "places dim"]]
    ) -> list[Float32[np.ndarray, " dim"]]:
        """Return the vector of each key; `make` gets the places of those that are not kept, if there are any."""
        with self._lock:
            known = {key: self._vectors[key] for key in keys if key in self._vectors}
        if missing := [place for place, key in enumerate(keys) if key not in known]:
            made = map(np.copy, make(missing))  # a view would keep all of them
            known |= dict(zip([keys[place] for place in missing], made, strict=True))
        with self._lock:
            for key in keys:
                self._vectors[key] = known[key]
                self._vectors.move_to_end(key)
            while len(self._vectors) > (KEPT if self._most is None else self._most):
                self._vectors.popitem(last=False)
        return [known[key] for key in keys]


class SiblingVectors:
    """First-stage vectors of the siblings of texts; each sibling is embedded once."""

    def __init__(self, model: "CDEModel", siblings: Sequence[Sequence[str]]) -> None:
        rows = {text: row for row, text in enumerate(dict.fromkeys(text for group in siblings for text in group))}
        self._rows = [[rows[text] for text in group] for group in siblings]
        texts = list(rows)
        found = model.kept_siblings.of(  # by digests: texts may be of any length
            [digest(text) for text in texts], lambda places: model.first_stage([texts[place] for place in places])
        )
        self._vectors = np.stack(found) if found else model.first_stage([])

    def padded(
        self, bucket: Sequence[int]
    ) -> tuple[Float32[np.ndarray, "batch siblings dim"] | None, Bool[np.ndarray, "batch siblings"] | None]:
        """Return the siblings of a batch of texts, padded, and their mask; None for both if no text has any."""
        width = max(len(self._rows[position]) for position in bucket)
        if width == 0:
            return None, None
        given = np.zeros((len(bucket), width, self._vectors.shape[1]), dtype=np.float32)
        mask = np.zeros((len(bucket), width), dtype=np.bool_)
        for number, position in enumerate(bucket):
            count = len(self._rows[position])
            given[number, :count] = self._vectors[self._rows[position]]
            mask[number, :count] = True
        return given, mask


@dataclass
class _TokenBatch:
    """One batch of texts, or of windows of texts, of similar length.

    Attributes:
        rows: Token ids of each.
        siblings: First-stage vectors of each one's siblings, padded; None if there are none.
        sibling_mask: True if there is a sibling; None with `siblings`.
        vectors: Embeddings, unit norm; set by whoever embeds the batch.
    """

    rows: Sequence[Sequence[int]]
    siblings: Float32[np.ndarray, "batch siblings dim"] | None
    sibling_mask: Bool[np.ndarray, "batch siblings"] | None
    vectors: Float32[np.ndarray, "batch dim"] = field(init=False)


class TokenBatches:
    """Texts of one role in batches, and their vectors once all batches are embedded.

    Iterate once, and set the `vectors` of each batch before the next.

    Args:
        model: Tokenizes the texts, and embeds their siblings.
        texts: Texts.
        role: `roles.QUERY` or `roles.DOCUMENT`.
        siblings: Siblings of each text; None where no text has any.
        size: Maximum texts of a batch.
        windows: Read texts longer than the model's window in windows; else they are cut.
        progress: Show a bar on stderr.

    Attributes:
        embedded: Vectors of all texts in their order, and which were cut.
    """

    def __init__(
        self,
        model: "CDEModel",
        texts: Sequence[str],
        role: int,
        siblings: Sequence[Sequence[str]] | None,
        *,
        size: int,
        windows: bool,
        progress: bool = False,
    ) -> None:
        self._model, self._texts, self._role, self._siblings = model, texts, role, siblings
        self._size, self._windows, self._progress = size, windows, progress
        self.embedded = Embedded(np.empty((len(texts), model.dim), np.float32), np.zeros(len(texts), np.bool_))

    def __iter__(self) -> Iterator[_TokenBatch]:
        """Yield each batch.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate; with its position.
        """
        with tqdm(total=len(self._texts), unit="text", disable=not self._progress) as bar:
            for start in range(0, len(self._texts), TOKENIZED_AT_ONCE):
                part = slice(start, start + TOKENIZED_AT_ONCE)
                tokens = self._model.tokenize(self._texts[part], role=self._role, first=start)
                given = None if self._siblings is None else SiblingVectors(self._model, self._siblings[part])
                for block in blocks_of(self._model, self._texts[part], tokens, self._role, windows=self._windows):
                    yield from self._batches(start, block, given, bar)

    def _batches(
        self, start: int, block: Sequence[tuple[int, Tokens]], given: SiblingVectors | None, bar: "tqdm[NoReturn]"
    ) -> Iterator[_TokenBatch]:
        starts = [row for row, (place, _) in enumerate(block) if row == 0 or place != block[row - 1][0]]
        lengths, begun = [len(row.ids) for _, row in block], set(starts)
        found = np.empty((len(block), self._model.dim), dtype=np.float32)
        for bucket in tight_buckets(lengths, self._size, self._model.stages.tokens_at_once):
            siblings = (None, None) if given is None else given.padded([block[row][0] for row in bucket])
            batch = _TokenBatch([block[row][1].ids for row in bucket], *siblings)
            yield batch
            found[bucket] = batch.vectors
            bar.update(len(begun.intersection(bucket)))
        places = [start + block[row][0] for row in starts]
        self.embedded.vectors[places] = pool_windows(found, lengths, starts)
        self.embedded.truncated[places] = np.logical_or.reduceat([row.truncated for _, row in block], starts)


def blocks_of(
    model: "CDEModel", texts: Sequence[str], tokens: Sequence[Tokens], role: int, *, windows: bool
) -> Iterator[list[tuple[int, Tokens]]]:
    """Yield the tokens that are read of each text, or of each of its windows, with the text's position; in blocks."""
    block: list[tuple[int, Tokens]] = []
    for place, row in enumerate(tokens):
        long = windows and row.truncated
        block += [(place, each) for each in (model.tokenize_windows(texts[place], role=role) if long else [row])]
        if len(block) >= TOKENIZED_AT_ONCE:
            yield block
            block = []
    if block:
        yield block

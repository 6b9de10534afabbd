"""Splitting by a model's tokens: passages that the model reads completely, begun and ended where the text allows it.

Of all divisions of a text into passages the cheapest is taken, as TeX breaks a paragraph into lines. Each begin of a
passage costs something: little at a section, more at a block, a sentence, a clause. A short passage costs, and so does
one that goes on into another section; a passage that ends with a heading costs most. Source: ours, after Knuth and
Plass, "Breaking paragraphs into lines" (1981).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cde_rag.readers.blocks import NEVER, Form, Piece, Pieces
from cde_rag.readers.headings import Heading
from cde_rag.readers.splitting import Span

PASSAGE: Final = 0.25  # cost of one passage more
OTHER_SECTION: Final = 0.5  # of a heading inside of a passage
SHORT: Final = 2.0  # of a passage without words, falling to 0 …
LONG_ENOUGH: Final = 0.5  # … at this share of the longest passage
FEWEST: Final = 8  # tokens of a passage, whatever is left of the window
TITLE: Final = 2  # a title has at most this part of the window, a half …
HEADINGS: Final = 4  # … and with the headings in front of the text, a quarter or the title alone


@dataclass(frozen=True)
class TokenSplitter:
    """Splitter that counts a model's tokens, special ones and the document's prefix apart.

    Attributes:
        count_tokens: Returns the tokens of all texts as the model reads them, as of an Embedder.
        window: Tokens that the model reads, special ones included; None if it has no limit.
        tokens: Tokens of a passage; fewer where the window ends. A quarter of it is left for title and headings.
        overlap: Tokens at the end of a passage that the next one of the same section begins with, at most.
    """

    count_tokens: Callable[[Sequence[str]], int]
    window: int | None
    tokens: int
    overlap: int = 0

    def title(self, title: str) -> str:
        """Return a title, cut if it takes more than half of the window."""
        if self.window is not None:
            while title and self._count(title) > self.window // TITLE:
                title = f"{title.rstrip('…')[: len(title) * 3 // 4].rstrip()}…"
        return title

    def split(self, text: str, title: str, form: Form, headings: Sequence[Heading] = ()) -> list[Span]:
        """Split a text into passages.

        Args:
            text: Any text.
            title: Title that is embedded in front of each passage.
            form: Form of the text.
            headings: Headings of a text that is no Markdown.

        Returns:
            Begin and end of each passage in the text, ascending; without overlap, only white space is between them.

        Raises:
            MissingExtraError: The text is Markdown, and the extra `files` is not installed.
        """
        most = self.tokens
        if self.window is not None:
            above = max(self._count(title) if title else 0, self.window // HEADINGS)
            most = min(most, self.window - 1 - self._special - above)
        most = max(FEWEST, most) if self.tokens >= FEWEST else self.tokens
        pieces = Pieces(text, self._count, max(1, most - self.overlap)).of(form, headings)
        groups = self._groups(text, pieces, max(1, most - self.overlap), most - self.overlap)
        return [(self._begin(pieces, group), pieces[group.stop - 1].end) for group in groups]

    @cached_property
    def _special(self) -> int:
        """Tokens that are read with every text."""
        return self.count_tokens(["."]) - 1

    def _count(self, text: str) -> int:
        return self.count_tokens([text]) - self._special

    def _groups(self, text: str, pieces: Sequence[Piece], most: int, limit: int) -> list[range]:
        """Return the pieces of each passage.

        The tokens of pieces add up, for tokenizers that divide at white space. Of others a passage may have more: it is
        divided again.
        """
        found: list[range] = []
        waiting = [(range(len(pieces)), most)]
        while waiting:
            part, room = waiting.pop()
            divided = _cheapest(pieces[part.start : part.stop], room)
            for start, stop in divided[::-1]:
                group = range(part.start + start, part.start + stop)
                whole = text[pieces[group.start].start : pieces[group.stop - 1].end]
                if len(group) > 1 and (over := self._count(whole) - limit) > 0:
                    waiting.append((group, max(1, min(room, sum(pieces[at].tokens for at in group)) - over)))
                else:
                    found.append(group)
        return sorted(found, key=lambda group: group.start)

    def _begin(self, pieces: Sequence[Piece], group: range) -> int:
        """Return where a passage begins, with the text that it repeats of the one before."""
        first, room = group.start, self.overlap
        while first and not pieces[first].heading and not pieces[first - 1].heading:
            room -= pieces[first - 1].tokens
            if room < 0:
                break
            first -= 1
        return pieces[first].start


def _cheapest(pieces: Sequence[Piece], most: int) -> list[tuple[int, int]]:
    """Return the cheapest division of pieces into passages of at most `most` tokens, unless a piece has more alone."""
    best = [0.0] * (len(pieces) + 1)
    last = [0] * (len(pieces) + 1)  # where the passage that ends here begins
    for stop in range(1, len(pieces) + 1):
        best[stop] = float("inf")
        tokens, crossed = 0, 0.0
        after = NEVER if pieces[stop - 1].heading and stop < len(pieces) else 0.0
        for start in range(stop - 1, -1, -1):
            piece = pieces[start]
            tokens += piece.tokens
            if tokens > most and start < stop - 1:
                break
            short = max(0.0, 1.0 - tokens / (most * LONG_ENOUGH))
            cost = best[start] + PASSAGE + SHORT * short * short + crossed + after + (piece.penalty if start else 0.0)
            if cost < best[stop]:
                best[stop], last[stop] = cost, start
            if piece.heading and (start == 0 or not pieces[start - 1].heading):
                crossed += OTHER_SECTION
    found: list[tuple[int, int]] = []
    stop = len(pieces)
    while stop:
        found.append((last[stop], stop))
        stop = last[stop]
    return found[::-1]

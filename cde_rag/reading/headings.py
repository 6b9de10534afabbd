"""The headings of a Markdown text, and the section in which a place of it stands."""

import re
from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from cde_rag.errors import require

_LINE_END = re.compile(r"\r\n?|\n")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t\r]*$", re.DOTALL | re.MULTILINE)


class Heading(NamedTuple):
    """A heading: `level` 1 to 6, `text` without markup's marks, and the characters that it takes in the whole text."""

    level: int
    text: str
    start: int
    end: int


class Headings:
    """The headings of a Markdown text, but for those inside lists and quotations; front matter has none.

    Attributes:
        all: In order.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """

    def __init__(self, markdown: str) -> None:
        self._text = markdown
        self.all = _read(markdown)
        self._starts = [heading.start for heading in self.all]
        self._paths: list[tuple[Heading, ...]] = []
        path: tuple[Heading, ...] = ()
        for heading in self.all:
            path = (*(above for above in path if above.level < heading.level), heading)
            self._paths.append(path)

    def above(self, start: int) -> tuple[Heading, ...]:
        """Under which headings the first words from a place on stand, from the highest to the lowest.

        Args:
            start: The place, in characters; headings that begin there are passed.
        """
        number = bisect_right(self._starts, start)
        place = max(start, self.all[number - 1].end) if number else start
        while number < len(self.all) and not self._text[place : self._starts[number]].strip():
            place = self.all[number].end
            number += 1
        return self._paths[number - 1] if number else ()


def _read(markdown: str) -> list[Heading]:
    parser = require("markdown_it", "files").MarkdownIt("commonmark")
    front = _FRONT_MATTER.match(markdown)
    begin = front.end() if front else 0
    starts = [begin, *(begin + found.end() for found in _LINE_END.finditer(markdown[begin:])), len(markdown)]
    tokens = parser.parse(markdown[begin:])
    found: list[Heading] = []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0:
            text = "".join(part.content or " " * (part.type == "softbreak") for part in inline.children).strip()
            first, last = token.map
            found += [Heading(int(token.tag[1:]), text, starts[first], starts[last])] if text else []
    return found

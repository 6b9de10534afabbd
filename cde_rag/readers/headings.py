"""The headings of a Markdown text, and the section in which a place of it stands."""

import re
from bisect import bisect_right
from typing import Any, NamedTuple, cast

from cde_rag.errors import require
from cde_rag.readers.titles import LONGEST, front_matter

_LINE_END = r"(?:\r\n?|\n)"
_MARKUP = re.compile(r"<!--.*?(?:-->|\Z)|</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>", re.DOTALL)  # of HTML; the rest is words


class Heading(NamedTuple):
    """A heading: `level` 1 to 6, `text` without markup's marks, at most `LONGEST` characters, and where it starts."""

    level: int
    text: str
    start: int


class Headings:
    """The headings of a Markdown text.

    Headings inside lists and quotations are ignored, and underlined ones of several lines, which are mostly a paragraph
    in front of a rule. Front matter has none.

    Attributes:
        all: In order.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """

    def __init__(self, markdown: str) -> None:
        self.all: list[Heading] = []
        self._words: list[int] = []  # where blocks start that say something
        self._ends: list[int] = []  # of these
        self._read(markdown)
        self._starts = [heading.start for heading in self.all]
        self._paths: list[tuple[Heading, ...]] = [()]  # above what follows so many headings
        for heading in self.all:
            above = (higher for higher in self._paths[-1] if higher.level < heading.level)
            self._paths.append((*above, heading))

    def above(self, start: int) -> tuple[Heading, ...]:
        """Return the headings above the first words from a position on, from the highest to the lowest level.

        Args:
            start: The position, in characters; headings, rules, comments and anchors that begin there are skipped.
        """
        block = bisect_right(self._ends, start)
        if block == len(self._ends):
            return self._paths[-1]
        return self._paths[bisect_right(self._starts, max(start, self._words[block]))]

    def _read(self, markdown: str) -> None:
        parser: Any = require("markdown_it", "files").MarkdownIt("commonmark")
        parser.disable("inline")  # that of headings is read below, and no other is needed
        begin = front_matter(markdown).end
        body = markdown[begin:]
        ends = (begin + found.end() for found in re.finditer(_LINE_END, body))
        lines = [begin, *ends, len(markdown)]
        references: dict[str, Any] = {}
        tokens: list[Any] = parser.parse(body, references)
        for number, token in enumerate(tokens):
            if token.level or not token.map:
                continue
            first, last = cast("list[int]", token.map)
            content = tokens[number + 1].content if token.type in ("heading_open", "paragraph_open") else token.content
            if token.type == "heading_open" and "\n" not in content:
                if text := _plain(parser, content, references):
                    self.all.append(Heading(int(token.tag[1:]), text, lines[first]))
            elif token.type not in ("hr", "paragraph_open", "html_block") or _MARKUP.sub("", content).strip():
                self._words.append(lines[first])
                self._ends.append(lines[last])


def _plain(parser: Any, inline: str, references: dict[str, Any]) -> str:
    """Return a heading's text on one line, without markup."""
    parts: list[Any] = []
    parser.inline.parse(inline, parser, references, parts)
    text = " ".join("".join(part.content for part in parts if part.type != "html_inline").split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"

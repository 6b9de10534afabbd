"""The headings of a Markdown text, and the section in which a place of it stands."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, cast

from cde_rag.errors import require
from cde_rag.readers.titles import LONGEST, front_matter, restructured_text_titles

_LINE_END = r"(?:\r\n?|\n)"
_MARKUP = re.compile(r"<!--.*?(?:-->|\Z)|</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>", re.DOTALL)  # of HTML; the rest is words
_MARKED = {
    "=": re.compile(r"^(={1,6})[ \t]+(\S[^\r\n]*)", re.MULTILINE),
    "*": re.compile(r"^(\*{1,9})[ \t]+(?:(?:TODO|DONE)[ \t]+)?(\S[^\r\n]*)", re.MULTILINE),
}
_TAGS = re.compile(r"[ \t]+:[\w@#%:]+:[ \t]*$")  # of Org
_BLOCK = re.compile(
    r"^(?P<mark>-{4,}|\.{4,}|```+)[^\S\n]*$.*?^(?P=mark)[^\S\n]*$|^[ \t]*#\+begin_(\w+).*?^[ \t]*#\+end_\2",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)


class Heading(NamedTuple):
    """A heading.

    Attributes:
        level: 1 for the highest; 6 is the lowest of Markdown.
        text: Without markup's marks, at most `LONGEST` characters.
        start: Where it begins, in characters.
        end: Where it ends.
    """

    level: int
    text: str
    start: int
    end: int


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
        self._paths = _paths(self.all)

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
                    self.all.append(Heading(int(token.tag[1:]), text, lines[first], lines[last]))
            elif token.type not in ("hr", "paragraph_open", "html_block") or _MARKUP.sub("", content).strip():
                self._words.append(lines[first])
                self._ends.append(lines[last])


class TextHeadings:
    """The headings of a text in another format, such as reStructuredText.

    Args:
        text: The text.
        headings: Its headings, in order.

    Attributes:
        all: In order.
    """

    def __init__(self, text: str, headings: Sequence[Heading]) -> None:
        self.all = list(headings)
        self._text = text
        self._starts = [heading.start for heading in self.all]
        self._paths = _paths(self.all)

    def above(self, start: int) -> tuple[Heading, ...]:
        """Return the headings above the first words from a position on; as `Headings.above`."""
        passed = bisect_right(self._starts, start)
        for heading in self.all[passed:]:
            if self._text[start : heading.start].strip():
                break
            start, passed = heading.end, passed + 1
        return self._paths[passed]


def restructured_text_headings(text: str) -> list[Heading]:
    """Return the titles of reStructuredText as headings, with levels in the order in which their styles occur."""
    lines = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    levels: dict[str, int] = {}
    return [
        Heading(levels.setdefault(title.style, len(levels) + 1), title.text, lines[title.first], lines[title.last + 1])
        for title in restructured_text_titles(text)
    ]


def marked_headings(text: str, mark: Literal["=", "*"]) -> list[Heading]:
    """Return the headings of AsciiDoc, marked by "=", or of Org, by "*"; none in blocks of code."""
    blocks = [found.span() for found in _BLOCK.finditer(text)]
    found: list[Heading] = []
    for line in _MARKED[mark].finditer(text):
        words = _TAGS.sub("", line[2]).strip() if mark == "*" else line[2].strip()
        if words and not any(start <= line.start() < end for start, end in blocks):
            text_ = words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
            found.append(Heading(len(line[1]), text_, line.start(), line.end()))
    return found


def _paths(headings: Sequence[Heading]) -> list[tuple[Heading, ...]]:
    """Return the headings above the text after so many of some headings, each below one of a higher level."""
    paths: list[tuple[Heading, ...]] = [()]
    for heading in headings:
        above = (higher for higher in paths[-1] if higher.level < heading.level)
        paths.append((*above, heading))
    return paths


def _plain(parser: Any, inline: str, references: dict[str, Any]) -> str:
    """Return a heading's text on one line, without markup."""
    parts: list[Any] = []
    parser.inline.parse(inline, parser, references, parts)
    text = " ".join("".join(part.content for part in parts if part.type != "html_inline").split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"

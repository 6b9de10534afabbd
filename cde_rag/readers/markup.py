"""Markup that says nothing to a reader: comments, imports and tags of MDX, shortcodes, directives of formats.

It is taken out of a page before that is split. Code in fences and between backquotes stays as it is.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from cde_rag.readers.splitting import Span

_CODE: Final = (
    r"^[ \t>]*(?P<fence>`{3,}(?!`)|~{3,}(?!~))[^\n]*\n(?:.*?^[ \t>]*(?P=fence)[`~]*[ \t]*\r?$|.*\Z)"
    r"|(?<!`)(?P<quotes>`+)(?!`).{1,2000}?(?<!`)(?P=quotes)(?!`)"  # complete runs, or a long one takes hours
)
_COMMENT: Final = r"<!--.*?(?:-->|\Z)"
_SHORTCODE: Final = (
    r"\{\{[<%][^{}]{0,1000}[%>]\}\}|\{%-?[ \t]*\w[^{}%]{0,1000}-?%\}|^[ \t]*:{3,}[ \t]*(?:\{[^{}\n]*\})?"
)
_ESM: Final = (  # up to a blank line, as MDX has it
    r"^(?:import[ \t]+[^\n]*?(?:from[ \t]+)?[\"'][^\"'\n]+[\"'];?[ \t]*\r?$"
    r"|import[ \t]+\{[^{}]*\}[ \t]*from[ \t]+[\"'][^\"'\n]+[\"'];?[ \t]*\r?$"
    r"|export[ \t]+(?:const|let|var|default|function|\{|\*)(?:[^\n]+(?:\n|\Z))+)"
)
_JSX_COMMENT: Final = r"\{/\*.*?(?:\*/\}|\Z)"
_TAG: Final = r"(?P<tag></?(?:[A-Z][\w.]*|(?=>)|(?:div|span|details|br|hr|center|p|img|a)(?=[\s/>])))"
_FLAGS: Final = re.MULTILINE | re.DOTALL
_MARKDOWN: Final = re.compile("|".join((_CODE, f"(?P<noise>{_COMMENT}|{_SHORTCODE})")), _FLAGS)
_MDX: Final = re.compile("|".join((_CODE, f"(?P<noise>{_COMMENT}|{_JSX_COMMENT}|{_SHORTCODE}|{_ESM})", _TAG)), _FLAGS)
_ASCIIDOC: Final = re.compile(
    r"^(?P<fence>-{4,}|\.{4,}|```+)[ \t]*\r?$(?:.*?^(?P=fence)[ \t]*\r?$|.*\Z)"
    r"|(?P<noise>^(?:/{4,}[ \t]*\r?$.*?(?:^/{4,}[ \t]*\r?$|\Z)|//[^/\n][^\n]*|:!?[\w-]+!?:(?:[ \t][^\n]*)?"
    r"|(?:ifdef|ifndef|ifeval|endif|include)::[^\n]*|\[\[[^\]\n]*\]\])[ \t]*\r?$)",
    _FLAGS,
)
_ORG: Final = re.compile(
    r"^[ \t]*#\+begin_(?P<fence>\w+).*?(?:^[ \t]*#\+end_(?P=fence)|\Z)"
    r"|(?P<noise>^[ \t]*(?::(?:PROPERTIES|LOGBOOK):[ \t]*\r?$.*?(?:^[ \t]*:END:|\Z)"
    r"|#\+\w+:[^\n]*|#(?:[ \t][^\n]*)?)[ \t]*\r?$)",
    _FLAGS | re.IGNORECASE,
)
_PATTERNS: Final = {
    **dict.fromkeys((".md", ".markdown", ".qmd", ".rmd"), _MARKDOWN),
    ".mdx": _MDX,
    **dict.fromkeys((".adoc", ".asciidoc"), _ASCIIDOC),
    ".org": _ORG,
}
_WORDS: Final = re.compile(r"\s(?:title|label|alt|heading|summary|description|header)=(?:\"([^\"{}]*)\"|'([^'{}]*)')")
_LONGEST_TAG: Final = 4_000  # characters


class Stripped:
    """A text without some of its parts, which knows where each place of it was.

    Args:
        text: The text.
        noise: The parts, in order and apart.

    Attributes:
        text: Without the parts.
    """

    def __init__(self, text: str, noise: Iterable[Span]) -> None:
        kept, done = list[str](), 0
        self._starts, self._shifts = [0], [0]  # in the stripped text, and how much was taken out before
        for start, end in noise:
            kept.append(text[done:start])
            done = end
            self._starts.append(self._starts[-1] + len(kept[-1]))
            self._shifts.append(self._shifts[-1] + end - start)
        kept.append(text[done:])
        self.text = "".join(kept)

    def origin(self, place: int) -> int:
        """Return where a place of the stripped text is in the text."""
        return place + self._shifts[bisect_right(self._starts, place) - 1]


def noise(text: str, suffix: str, start: int = 0) -> Iterator[Span]:
    r"""Yield the parts of a page from some place on that are markup without words, by the suffix of its file.

    Examples:
        >>> page = 'import Tabs from "@theme/Tabs";\n\n<Card title="Install">Run `<b>`.</Card> <!-- soon -->'
        >>> Stripped(page, noise(page, ".mdx")).text
        '\n\nInstallRun `<b>`. '
    """
    pattern = _PATTERNS.get(suffix)
    place = start
    while pattern is not None and (found := pattern.search(text, place)) is not None:
        place = max(found.end(), place + 1)
        if found["noise"]:
            yield found.span()
        elif pattern is _MDX and found["tag"]:
            end = _tag_end(text, found.end("tag"))
            if end:
                yield from _without_words(text, found.start(), end)
                place = end


def _without_words(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the parts of a tag around the words in its attributes."""
    for attribute in _WORDS.finditer(text, start, end):
        group = 1 if attribute[1] is not None else 2
        if attribute[group]:
            yield start, attribute.start(group)
            start = attribute.end(group)
    yield start, end


def _tag_end(text: str, place: int) -> int:
    """Return where a tag of JSX ends, whose attributes may hold strings and expressions; 0 if it is none."""
    depth, quote = 0, ""
    for at in range(place, min(len(text), place + _LONGEST_TAG)):
        character = text[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" or (character == "`" and depth):
            quote = character
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == ">" and not depth:
            return at + 1
        elif character == "<" and not depth:
            return 0
    return 0

"""Pieces of a text that a splitter joins to passages: headings, sentences, list items, rows, lines of code.

Source: ours. A list, a table or a block of code that fits into a passage is one piece.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from cde_rag.errors import require
from cde_rag.readers.headings import Heading
from cde_rag.readers.splitting import Span

Form: TypeAlias = Literal["markdown", "text", "code"]

# What it costs to begin a passage at a piece; a passage more costs 0.25 anyway.
SECTION: Final = 0.0
BLOCK: Final = 0.3  # a paragraph, a list, a table
ITEM: Final = 0.6  # of a list, a row of a table
DEEPER: Final = 0.1  # for each level inside
SENTENCE: Final = 1.0
LINE: Final = 1.2  # of code, or of a plain text
INTRODUCED: Final = 2.0  # what follows a colon
CLAUSE: Final = 3.0
INSIDE: Final = 6.0  # an expression, a word
NEVER: Final = 1000.0  # directly after a heading

_LINES: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_BLANK: Final = re.compile(r"(?:\r\n?|\n)(?:[ \t]*(?:\r\n?|\n))+")
_SENTENCE: Final = re.compile(
    r"[.!?\u2026]['\")\]\u201d\u2019\u00bb*_`]*(?P<gap>\s+)(?=['\"(\[\u201c\u2018\u00ab*_`]*\w)"
    r"|[\u3002\uff01\uff1f][\u300d\u300f\u201d\u2019]*(?P<none>)"
)
_ABBREVIATED: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Dr|Mr|Mrs|Ms|Fig|No|St|approx|al)|(?<!\w)\w)\Z")
_OPENING: Final = re.compile(r"['\"(\[\u201c\u2018\u00ab*_`]*")
_EXPRESSION: Final = re.compile(  # of Markdown and its kin: code, a link or picture, a tag, an address
    r"(?<!`)(`+)(?!`).{1,2000}?(?<!`)\1(?!`)|!?\[[^\]\n]{0,500}\](?:\([^)\s]{0,2000}(?:\s+[\"'][^\"'\n]{0,500}[\"'])?\)|\[[^\]\n]{0,200}\])"
    r"|</?[A-Za-z][^<>]{0,2000}>|(?<!\w)[A-Za-z]{2,12}://[^\s<>]+",
    re.DOTALL,
)
_CLAUSE: Final = re.compile(r"[,;:\u2013\u2014\uff0c\u3001\uff1b\uff1a]\s*")
_SPACE: Final = re.compile(r"\s+")
_ITEM: Final = re.compile(r"[ \t]*(?:[-*+\u2022]|\d{1,3}[.)]|\|)[ \t]")
_DELIMITED: Final = re.compile(  # AsciiDoc, Org
    r"^(?P<mark>(?:-{4,}|\.{4,}|\|={3,}|```+))[^\S\n]*$.*?^(?P=mark)[^\S\n]*$"
    r"|^[ \t]*#\+begin_(?P<kind>\w+).*?^[ \t]*#\+end_(?P=kind)[^\r\n]*",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_GRID: Final = re.compile(r"(?:\+[-=+]+\+|=+(?:[ \t]+=+)+|\|)")  # first line of a table in plain text
_CLOSES: Final = re.compile(r"[)\]}]|(?:end|fi|done|esac|else|elif|except|finally|catch|case|when)\b|`{3}|~{3}")
_OPENS: Final = re.compile(r"(?:[:({\[,\\=]|->|=>|\b(?:then|do))[ \t]*\Z")
_INTRODUCES: Final = re.compile(r"[:\uff1a]\Z|\A(?:!!!|\?{3}\+?)[ \t]")  # also an admonition, whose text follows
_LEADS: Final = re.compile(r"(?:@|#|//|/\*|\*|--|;|%)")  # a decorator or comment, which belongs to the next line
_DEEPEST: Final = 4  # levels of indentation that matter
_INDENT: Final = 4  # spaces of a level


class Piece(NamedTuple):
    """A part of a text that no passage divides.

    Attributes:
        start: Where it begins, in characters.
        end: Where it ends.
        tokens: Its number of tokens.
        penalty: Cost of a passage that begins here.
        heading: True for a heading.
    """

    start: int
    end: int
    tokens: int
    penalty: float
    heading: bool = False


class Pieces:
    """Cutter of one text into pieces; between them is white space only.

    Args:
        text: The text.
        count: Returns the number of tokens of a part of it that is not blank.
        most: Tokens of a passage, which no piece exceeds unless it is one character.
    """

    def __init__(self, text: str, count: Callable[[str], int], most: int) -> None:
        self._text, self._count, self._most = text, count, most
        self._lines = [found.start() for found in _LINES.finditer(text)]
        self._lines.append(len(text))
        self._found: list[Piece] = []
        self._counts: dict[Span, int] = {}  # a part that fits is counted to see that, and as a piece
        self._done = 0  # where the last piece ends

    def of(self, form: Form, headings: Sequence[Heading] = ()) -> list[Piece]:
        """Return the pieces, in order.

        Args:
            form: "markdown", "code", or "text", in which paragraphs are separated by blank lines.
            headings: Headings of a text that is no Markdown.
        """
        if form == "markdown":
            self._markdown()
        elif form == "code":
            self._code(0, len(self._text), SECTION)
        else:
            self._plain(headings)
        self._gap(len(self._text))
        return self._found

    def _markdown(self) -> None:
        parsers: Any = require("markdown_it", "files")
        trees: Any = require("markdown_it.tree", "files")
        parser = parsers.MarkdownIt("commonmark").enable("table").disable("inline")
        for node in trees.SyntaxTreeNode(parser.parse(self._text)).children:
            self._block(node, BLOCK, 0)

    def _block(self, node: Any, penalty: float, depth: int) -> None:
        """Add the pieces of a block of Markdown, and of those in it."""
        if not node.map:
            return
        first, last = cast("tuple[int, int]", node.map)
        start, end = self._lines[first], self._lines[min(last, len(self._lines) - 1)]
        self._gap(start)
        start = max(start, self._done)
        kind: str = node.type
        if kind == "heading":
            self._add(start, end, SECTION + DEEPER * (int(node.tag[1:]) - 1) / 2, heading=True)
        elif kind in ("paragraph", "html_block", "hr"):
            self._paragraph(start, end, penalty)
        elif self._fits(start, end):
            self._add(start, end, penalty)
        elif kind in ("fence", "code_block"):
            self._code(start, end, penalty)
        elif kind == "table":
            self._rows(start, end, penalty)
        else:
            inner = (ITEM if kind.endswith("_list") else BLOCK) + DEEPER * (depth + 1)
            for number, child in enumerate(node.children):
                self._block(child, inner if number else penalty, depth + 1)
            self._gap(end)

    def _plain(self, headings: Sequence[Heading]) -> None:
        """Add the pieces of a text with paragraphs between blank lines, and perhaps with headings."""
        for before, heading in pairwise([None, *headings, None]):
            if before is not None:
                self._add(before.start, before.end, SECTION + DEEPER * (before.level - 1) / 2, heading=True)
            start, end = self._done, len(self._text) if heading is None else heading.start
            for block in _DELIMITED.finditer(self._text, start, end):
                self._paragraphs(self._done, block.start())
                self._whole(block.start(), block.end(), BLOCK, self._code)
            self._paragraphs(self._done, end)

    def _paragraphs(self, start: int, end: int) -> None:
        """Add the pieces of a part without headings; indented paragraphs are one block with each other."""
        places = [start, *(found.end() for found in _BLANK.finditer(self._text, start, end)), end]
        blocks: list[list[int]] = []
        for begin, stop in pairwise(places):
            words = self._trimmed(begin, stop)
            if words is None:
                continue
            indented = self._text[begin : begin + 1] in (" ", "\t")
            if indented and blocks and blocks[-1][2]:
                blocks[-1][1] = words[1]
            else:
                blocks.append([begin, words[1], indented])
        for begin, stop, indented in blocks:
            if indented or _GRID.match(self._text, begin):
                self._whole(begin, stop, BLOCK, self._code)
            else:
                self._paragraph(begin, stop, BLOCK)

    def _whole(self, start: int, end: int, penalty: float, cut: Callable[[int, int, float], None]) -> None:
        """Add a block as one piece if it fits, else cut it."""
        self._add(start, end, penalty) if self._fits(start, end) else cut(start, end, penalty)

    def _rows(self, start: int, end: int, penalty: float) -> None:
        """Add a table row by row, its header with the first row."""
        rows = [place for place in self._lines if start <= place < end]
        for begin, stop in pairwise([start, *rows[3:], end]):
            self._sentence(begin, stop, penalty if begin == start else ITEM + DEEPER)

    def _code(self, start: int, end: int, penalty: float) -> None:
        """Add lines of code; blank lines and little indentation are where to cut."""
        first = bisect_right(self._lines, start) - 1
        before, blank = "", True
        for begin, stop in pairwise([start, *(line for line in self._lines[first + 1 :] if line < end), end]):
            line = self._text[begin:stop].rstrip()
            words = line.lstrip()
            if not words:
                blank = True
                continue
            deep = min(_DEEPEST, len(line[: len(line) - len(words)].expandtabs(_INDENT)) // _INDENT)
            if begin == start:
                cost = penalty
            elif _CLOSES.match(words):
                cost = INSIDE
            elif blank:
                cost = (BLOCK if deep else SECTION + DEEPER) + 2 * DEEPER * deep
            elif _OPENS.search(before) or _LEADS.match(before):
                cost = CLAUSE + DEEPER * deep
            else:
                cost = LINE + DEEPER * deep
            self._sentence(begin, stop, cost)
            before, blank = words, False

    def _paragraph(self, start: int, end: int, penalty: float) -> None:
        """Add the sentences of a paragraph, and its lines that begin like a list's."""
        words = self._trimmed(start, end)
        if words is None:
            return
        inside = self._expressions(start, end)
        breaks = dict.fromkeys(self._sentence_ends(start, end, inside), SENTENCE)
        first = bisect_right(self._lines, start)
        for line in self._lines[first : bisect_right(self._lines, end)]:
            if line < end and _ITEM.match(self._text, line) and not _is_inside(line, inside):
                breaks[line] = ITEM
        places = sorted(place for place in breaks if start < place < end)
        for begin, stop in pairwise([start, *places, end]):
            self._sentence(begin, stop, penalty if begin == start else breaks[begin], inside)

    def _sentence_ends(self, start: int, end: int, inside: Sequence[Span]) -> Iterator[int]:
        for found in _SENTENCE.finditer(self._text, start, end):
            if _is_inside(found.start(), inside) or _is_inside(found.end(), inside):
                continue
            if found["gap"] is not None:
                opening = _OPENING.match(self._text, found.end())
                following = self._text[opening.end() if opening else found.end()]
                if following.islower() or _ABBREVIATED.search(self._text, max(start, found.start() - 8), found.start()):
                    continue
            yield found.end()

    def _expressions(self, start: int, end: int) -> list[Span]:
        return [found.span() for found in _EXPRESSION.finditer(self._text, start, end)]

    def _sentence(self, start: int, end: int, penalty: float, inside: Sequence[Span] = ()) -> None:
        """Add a sentence or line; a longer one than a passage is halved, between clauses or words if there are any."""
        waiting = [(start, end, penalty)]
        while waiting:
            begin, stop, cost = waiting.pop()
            words = self._trimmed(begin, stop)
            if words is None:
                continue
            if words[1] - words[0] == 1 or self._fits(*words):
                self._add(*words, cost)
                continue
            place, worse = self._middle(*words, inside)
            waiting += [(place, stop, max(cost, worse)), (begin, place, cost)]

    def _middle(self, start: int, end: int, inside: Sequence[Span]) -> tuple[int, float]:
        """Return a place to halve a long sentence at, and the cost of a passage that begins there."""
        third = (end - start) // 3
        low, high, middle = start + third, end - third, (start + end) // 2
        for pattern, cost, allowed in (
            (re.compile(r"\n"), LINE, True),
            (_CLAUSE, CLAUSE, True),
            (_SPACE, CLAUSE + SENTENCE, True),
            (_SPACE, INSIDE, False),
        ):
            found = (match.end() for match in pattern.finditer(self._text, low, high))
            places = [place for place in found if start < place < end and not (allowed and _is_inside(place, inside))]
            if places:
                return min(places, key=lambda place: abs(place - middle)), cost
        return max(start + 1, middle), INSIDE

    def _fits(self, start: int, end: int) -> bool:
        """Return True if a part fits into a passage, with the headings directly above it."""
        words = self._trimmed(start, end)
        if words is None:
            return True
        above = 0
        for piece in reversed(self._found):
            if not piece.heading:
                break
            above += piece.tokens
        length = self._tokens(*words)
        return length + above <= self._most or (above > self._most // 2 and length <= self._most)

    def _tokens(self, start: int, end: int) -> int:
        if (part := (start, end)) not in self._counts:
            self._counts[part] = self._count(self._text[start:end])
        return self._counts[part]

    def _trimmed(self, start: int, end: int) -> Span | None:
        """Return a part without white space around it, but for its first line's indentation; None if it is blank."""
        text = self._text[start:end]
        stripped = text.rstrip()
        if not stripped.strip():
            return None
        begin = len(text) - len(text.lstrip())
        indent = text.rfind("\n", 0, begin) + 1
        return start + (indent if text[indent:begin].strip(" \t") == "" else begin), start + len(stripped)

    def _gap(self, end: int) -> None:
        """Add the text between the last piece and a place: a parser gives no block for definitions of links."""
        if self._done < end and self._text[self._done : end].strip():
            self._paragraph(self._done, end, BLOCK)

    def _add(self, start: int, end: int, penalty: float, *, heading: bool = False) -> None:
        words = self._trimmed(start, end)
        if words is None:
            return
        tokens = self._tokens(*words)
        if heading and tokens > self._most:
            self._sentence(*words, penalty)
            return
        if self._found and not heading and _INTRODUCES.search(self._text, *self._found[-1][:2]):
            penalty = max(penalty, INTRODUCED)
        self._found.append(Piece(*words, tokens, penalty, heading))
        self._done = words[1]


def _is_inside(place: int, spans: Sequence[Span]) -> bool:
    """Return True for a place in one of some spans, which are sorted and apart, but not at its begin or end."""
    before = bisect_left(spans, (place, 0)) - 1
    return before >= 0 and place < spans[before][1]

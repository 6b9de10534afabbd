"""Paragraphs of printed pages, whose lines, headers and footers a converter keeps as they were set.

Source: ours. A line end is soft where the next line's first word had no room on the line, as typesetters break lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, takewhile
from typing import Final, NamedTuple

_NARROWEST: Final = 40  # characters of a paragraph's longest line; shorter lines are those of addresses, tables, code
_FULL: Final = 0.85  # of the longest line: letters have different widths
_LETTERS: Final = 0.7  # of the characters of a line of prose
_WORDS: Final = 3  # of a line of prose, and of a header that counts the pages: "Exercise 3" may be a heading
_EDGE: Final = 3  # blocks at a page's head and foot among which its header and footer are
_LONGEST: Final = 100  # characters of a header
_APART: Final = 0.95  # of a page's words, which a converter that aligns columns may have joined
_IN_SENTENCES: Final = 0.3  # of the cells of a table begin with a small letter at most; of a justified text most do
_NO_WORDS: Final = re.compile(r"(?:\(cid:\d+\)|[\u2022\u25aa\u25e6\u2023\u00b7\uf0b7\s])+")  # bullets; unknown glyphs
_NUMBER: Final = re.compile(r"\d+")
_PAGE_NUMBER: Final = re.compile(
    r"[-\u2013|\s]*(?:(?:page|seite|p\.|s\.)\s*)?\d+(?:\s*(?:/|of|von|de|sur)\s*\d+)?[-\u2013|\s]*", re.IGNORECASE
)
_PAGE_WORD: Final = re.compile(r"\b(?:page|seite|p\.|s\.)\s*\Z", re.IGNORECASE)
_CODE: Final = re.compile(r"\w[_(]\w?|[=<>{}]")  # a word of code
_MOST_CODE: Final = 0.2  # of the words of a line of prose
_LONGEST_WORD: Final = 100  # characters that a hyphen divides
_WORD: Final = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_BROKEN: Final = re.compile(r"(?P<word>[^\W_]+(?:-[^\W_]+)*)(?P<hyphen>[-\u2010\u00ad])\Z")
_BEGIN: Final = re.compile(r"[\"'(\[\u201c\u2018\u00ab]{,2}\w")  # no mark of a list, no row of a table
_ITEM: Final = re.compile(r"(?:\d{1,3}|[A-Za-z])[.)]\s")
_SENTENCE_END: Final = re.compile(r"[.!?:\u2026][\"')\]\u201d\u2019\u00bb]*\Z")
_SPACELESS: Final = re.compile(r"[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f\uff00-\uff60]")  # as in Chinese
_SUSPENDING: Final = frozenset({"and", "or", "to", "und", "oder", "bis", "et", "ou"})  # after "short-" in "short- and"


class _Line(NamedTuple):
    """A line.

    Attributes:
        text: Without its end.
        page: Number of its page, from 0.
        goes_on: True if it begins a block, and is of the last sentence of the block before.
    """

    text: str
    page: int
    goes_on: bool = False


def paragraphs_of(pages: Sequence[str]) -> str:
    r"""Return the text of printed pages as paragraphs of one line each, with a form feed where each next page begins.

    Words that a hyphen divides at the end of a line are joined, unless the text has them with a hyphen elsewhere. A
    paragraph goes on over the end of a page if its rest begins with a small letter. Headers and footers that pages
    repeat are kept once, numbers of pages nowhere. Lists, tables, and lines that end early stay lines.

    Args:
        pages: Text of each page, with blank lines between its blocks.

    Examples:
        >>> paragraphs_of(["The compressors are checked each year by a certi-", "fied technician.\n\nValves"])
        'The compressors are checked each year by a certified\x0ctechnician.\n\nValves'
    """
    blocks = list(_blocks(pages))
    words = {word.lower() for block in blocks for line in block for word in _WORD.findall(line.text)}
    parts, page = list[str](), 0
    for block in _continued(_without_repeated(blocks, len(pages))):
        parts += ["\n\n" if parts else "", "\f" * (block[0].page - page), _paragraph(block, words)]
        page = block[-1].page
    return "".join(parts)


def has_tables(page: str, plain: str) -> bool:
    """Return True if the tables that a converter found are tables, and no lines of text with wide spaces.

    Args:
        page: Text of a page with its tables in Markdown.
        plain: Text of the page without tables.
    """
    rows = [line.strip("| ") for line in page.split("\n") if line.startswith("|") and line.strip("|- ")]
    cells = [cell for row in rows for cell in map(str.strip, row.split("|")) if cell]
    in_sentences = sum(cell[0].islower() for cell in cells)
    words, all_ = len(_WORD.findall(page)), len(_WORD.findall(plain))
    return words >= _APART * all_ and in_sentences <= _IN_SENTENCES * len(cells)


def _blocks(pages: Sequence[str]) -> Iterator[list[_Line]]:
    """Yield the lines between blank lines, block by block; lines of bullets alone are left out."""
    for number, page in enumerate(pages):
        for kind, lines in groupby(
            page.split("\n"), key=lambda line: line.strip()[:1] == "|" if line.strip() else None
        ):
            block = [_Line(line, number) for line in lines if kind is not None and not _NO_WORDS.fullmatch(line)]
            if block:
                yield block


def _without_repeated(blocks: Sequence[list[_Line]], pages: int) -> Iterator[list[_Line]]:
    """Yield the blocks without numbers of pages, and with the first of each header and the last of each footer.

    A header or footer is a line near the head or foot of at least half of the pages; a number in it may count them.
    """
    heads, feet, lost, first = list[int](), list[int](), set[int](), set[int]()  # of numbers of blocks
    for _, found in groupby(range(len(blocks)), key=lambda number: blocks[number][0].page):
        page = list(found)
        heads += takewhile(lambda number: _is_short(blocks[number]), page[:_EDGE])
        feet += takewhile(lambda number: _is_short(blocks[number]), page[: -_EDGE - 1 : -1])
    for edge in (heads, feet[::-1]):
        kinds = {number: set(_kinds(blocks[number][0])) for number in edge}
        counts = Counter(kind for each in kinds.values() for kind in each)
        kept = set[str]()
        for number, each in kinds.items():
            repeated = {kind for kind in each if counts[kind] >= max(2, (pages - 1) / 2)}
            if repeated & kept or (repeated and _PAGE_NUMBER.fullmatch(blocks[number][0].text)):
                lost.add(number)
            elif repeated - kept and edge is heads:
                first.add(number)
            kept |= repeated
    lost -= first  # a page of few lines has its head at its foot, too
    return (block for number, block in enumerate(blocks) if number not in lost)


def _is_short(block: Sequence[_Line]) -> bool:
    return len(block) == 1 and len(block[0].text) <= _LONGEST


def _kinds(line: _Line) -> Iterator[str]:
    """Yield a line's text, and the text with, in place of each of its numbers, that number less the page's."""
    text = " ".join(line.text.split())
    if not _PAGE_NUMBER.fullmatch(text):
        yield text
        if len(_WORD.findall(text)) < _WORDS:
            return
    for found in _NUMBER.finditer(text):
        before, after = text[: found.start()], text[found.end() :]
        if _WORD.search(before) and _WORD.search(after) and not _PAGE_WORD.search(before):
            continue  # "Week 3 of the course" may be a heading, "Page 3 of 10" is none
        yield f"{before}\0{int(found[0]) - line.page}\0{after}"


def _continued(blocks: Iterable[list[_Line]]) -> Iterator[list[_Line]]:
    """Yield the blocks, each with the next one, of the same page or the next, if that is the rest of its paragraph."""
    last = list[_Line]()
    for block in blocks:
        if last and _goes_on(last[-1], block[0]):
            last += [block[0]._replace(goes_on=True), *block[1:]]
            continue
        if last:
            yield last
        last = list(block)
    if last:
        yield last


def _goes_on(line: _Line, following: _Line) -> bool:
    """Return True if the last line of a block and the first one of the next are of one sentence."""
    begin = following.text.lstrip()
    is_begun = _is_prose(line.text) and _SENTENCE_END.search(line.text) is None
    is_full = following.page > line.page or len(line.text) >= _NARROWEST
    return is_begun and is_full and begin[:1].islower() and _ITEM.match(begin) is None


def _is_prose(line: str) -> bool:
    letters, parts = sum(map(str.isalpha, line)), line.split()
    is_code = sum(_CODE.search(part) is not None for part in parts) > _MOST_CODE * len(parts)
    return len(_WORD.findall(line)) >= _WORDS and letters >= _LETTERS * len("".join(parts)) and not is_code


def _paragraph(block: Sequence[_Line], words: set[str]) -> str:
    """Return a block, its soft line ends as spaces or, where a page begins, as form feeds."""
    lines = [" ".join(line.text.split()) for line in block]
    longest = max(map(len, lines))
    soft = [line.goes_on or _is_soft(*two, longest) for line, two in zip(block[1:], pairwise(lines), strict=True)]
    if not any(soft):
        return "\n".join(line.text for line in block)
    parts = [lines[0]]
    for line, (before, after), is_soft in zip(lines[1:], pairwise(block), soft, strict=True):
        if is_soft:
            parts[-1:] = _joined(parts[-1], line, "\f" * (after.page - before.page) or " ", words)
        else:
            parts += ["\n", after.text.rstrip()]
    return "".join(parts)


def _is_soft(line: str, following: str, longest: int) -> bool:
    """Return True if a sentence goes on in the next line of a block, whose longest line has so many characters."""
    if _BEGIN.match(following) is None or _ITEM.match(following):
        return False
    if _broken(line) is not None and following[0].islower():
        return True
    full = len(line) + 1 + len(following.split(maxsplit=1)[0]) > _FULL * longest
    return full and longest >= _NARROWEST and _is_prose(line)


def _broken(line: str) -> re.Match[str] | None:
    """Return the word that a hyphen divides at the end of a line."""
    return _BROKEN.search(line[-_LONGEST_WORD:])


def _joined(last: str, line: str, space: str, words: set[str]) -> list[str]:
    """Return parts of a text, of the last line and the next one, with `space` between, or after a divided word."""
    broken, begin = _broken(last), _WORD.match(line)
    if broken is None or begin is None or begin[0] in _SUSPENDING:
        is_spaceless = space == " " and all(map(_SPACELESS.match, (last[-1:], line[:1])))
        return [last, line] if is_spaceless or last.endswith("\f") else [last, space, line]
    left, right = broken["word"].lower(), begin[0].lower()
    is_compound = f"{left}-{right}" in words and f"{left}{right}" not in words
    if broken["hyphen"] == "\u00ad" or (left[-1].isalpha() and begin[0].islower() and not is_compound):
        last = last[:-1]
    rest, _, others = line.partition(" ")
    return [f"{last}{rest}", space, others] if others else [f"{last}{rest}{space.strip(' ')}"]

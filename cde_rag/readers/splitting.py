"""Splitting text into passages, in time that grows with its length."""

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from cde_rag.errors import require

Span = tuple[int, int]  # of characters in a text

LONGEST_LINE: Final = 8  # times the longest passage: longer lines are shown to the splitter as several
_LINE: Final = re.compile(r"[^\n]+")
_BREAKS: Final = (  # best first
    re.compile(r"[.!?\u2026\u3002\uff01\uff1f]['\")\]\u201d\u2019\u300d]*(\s)"),  # after a sentence
    re.compile(r"(\s)"),  # between words
)


def split(text: str, max_characters: int, *, markdown: bool = False) -> list[Span]:
    """Split a text at paragraphs, sentences and words into passages.

    The splitter's time grows with the square of the longest sentence, which in a file without breaks (minified code,
    base64, a log of one line) is the file. So a line of more than `LONGEST_LINE` times the longest passage is shown to
    it as several lines: cut after a sentence, else between words, else anywhere. Other texts are shown as they are.

    Args:
        text: Any text.
        max_characters: Longest passage.
        markdown: Split at the blocks of Markdown.

    Returns:
        Begin and end of each passage in the text, ascending; between them is only white space.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """
    splitters = require("semantic_text_splitter", "files")
    max_characters = min(max_characters, sys.maxsize)  # the splitter takes no longer number
    splitter: Any = (splitters.MarkdownSplitter if markdown else splitters.TextSplitter)(max_characters)
    seams = list(_seams(text, LONGEST_LINE * max_characters))
    shown = list(text)
    for seam in seams:
        shown[seam] = "\n"
    spans = [(start, start + len(passage)) for start, passage in splitter.chunk_indices("".join(shown))]
    lost = {seam for seam in seams if not text[seam].isspace()}
    return list(_restored(spans, lost, max_characters)) if lost else spans


def _seams(text: str, longest: int) -> Iterator[int]:
    """Yield positions to cut a long line at: white space, or a character that stays part of a passage."""
    for line in _LINE.finditer(text):
        start, end = line.span()
        while end - start > longest:
            window = start + longest // 2, start + longest - 1
            found = (list(wanted.finditer(text, *window)) for wanted in _BREAKS)
            best = next((places[-1].start(1) for places in found if places), window[1])
            yield best
            start = best + 1


def _restored(spans: list[Span], lost: set[int], most: int) -> Iterator[Span]:
    """Yield the passages with the characters that were replaced by line ends: at the end of one, or alone."""
    for start, end in spans:
        if end not in lost:
            yield start, end
        elif end - start < most:
            yield start, end + 1
        else:
            yield start, end
            yield end, end + 1

"""The paragraphs of a Markdown text as their sentences, whatever the lines and the markup that they are written in."""

import re
from itertools import pairwise
from typing import Any, cast

from cde_rag.errors import require

_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
_MARKUP = str.maketrans(dict.fromkeys("`*_[]<>&~\\'\"-", "”"))  # what ends a sentence may stand before it


def unmarked(markdown: str) -> str:
    """Return a text of the same length in which each paragraph is one line without markup.

    A Markdown splitter prefers to cut at ends of lines, code, links and emphasis rather than at ends of sentences. On
    this text it cuts at sentences, and its offsets are valid in the original text. Lines of code, tables, headings and
    HTML are unchanged, and so are explicit line breaks.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """
    parser: Any = require("markdown_it", "files").MarkdownIt("commonmark").enable("table").disable("inline")
    tokens: list[Any] = parser.parse(markdown)
    lines = list(_LINE.finditer(markdown))
    parts: list[str] = []
    done = 0
    for opening, inline in pairwise(tokens):
        if opening.type == "paragraph_open":
            first, last = cast("list[int]", inline.map)
            shown = lines[first].group(1).replace("\0", "\ufffd")  # as the parser does
            begin = lines[first].start() + shown.find(inline.content.split("\n", 1)[0])
            parts.append(markdown[done:begin])  # up to here, marks of lists and quotations too
            for line in lines[first : last - 1]:
                words, end = markdown[begin : line.end(1)], line.group(2)
                parts += [words.translate(_MARKUP), end if words.endswith(("  ", "\\")) else " " * len(end)]
                begin = line.end()
            done = lines[last - 1].end(1)
            parts.append(markdown[begin:done].translate(_MARKUP))
    return "".join([*parts, markdown[done:]])

"""A page: the text of a file, with its title, its headings and the numbers of its pages, slides, cells or lines."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

from cde_rag.errors import require
from cde_rag.readers.blocks import Form
from cde_rag.readers.columns import EmptyFileError, UnusableError
from cde_rag.readers.decoding import STRICT, Fallback, decoded
from cde_rag.readers.documents import Converted, convert
from cde_rag.readers.headings import Heading, Headings, TextHeadings, marked_headings, restructured_text_headings
from cde_rag.readers.markup import Stripped, noise
from cde_rag.readers.titles import (
    LONGEST,
    FrontMatter,
    asciidoc_title,
    first_line_title,
    front_matter,
    mdx_title,
    named_title,
    org_title,
    restructured_text_title,
    stated_title,
)

MARKDOWN = frozenset({".md", ".markdown"})
TEXT = frozenset({".txt", ".text", ".rst"})
MARKDOWN_LIKE = frozenset({".mdx", ".qmd", ".rmd"})
_ASCIIDOC = frozenset({".adoc", ".asciidoc"})
_ORG: Final = ".org"
NOTEBOOK: Final = ".ipynb"
PAGES = MARKDOWN_LIKE | _ASCIIDOC | {_ORG, NOTEBOOK}  # read in folders by the rules 2; where they are named, always
CODE = frozenset(
    ".bash .c .cc .cjs .cpp .cs .cxx .go .h .hpp .java .jl .js .jsx .kt .kts .lua .m .mjs .php .pl .py .pyi .r .rb .rs "
    ".scala .sh .sql .swift .ts .tsx .vue .zig".split()
)
Kind: TypeAlias = Literal["text", "markdown", "document", "page", "code"]

_TITLE_PARTS = re.compile(r"\s+[-–—|·»:]\s+")  # between a page's and its site's name
_SLIDE = re.compile(r"<!-- Slide number: \d+ -->")  # as markitdown has it
_FEEDS = re.compile(r"(?<=\S)\f+(?=\S)")  # in a paragraph that goes on over the end of a page
_LINE_END = re.compile(r"\r\n?|\n")
_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
_MARKUP = str.maketrans(dict.fromkeys("`*_[]<>&~\\'\"-", "”"))  # what ends a sentence may stand before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A file as a text that is split.

    Attributes:
        text: Text that its passages are parts of.
        title: Title of the page.
        form: Form of the text.
        headings: Its headings; None if it has none.
        repeated: Headings that the title repeats, which are no sections.
        origin: Returns where a place of the text is in the file, or in the Markdown of a document.
        numbered: Places, by where they begin: the lines of a file, the pages of a PDF, the slides of a presentation or
            the cells of a notebook.
        unit: The name of these; "" if there are none.
    """

    text: str
    title: str
    form: Form
    headings: Headings | TextHeadings | None
    repeated: list[Heading]
    origin: Callable[[int], int] = int
    unit: Literal["line", "page", "slide", "cell", ""] = ""
    numbered: list[int] = field(default_factory=list[int])

    def place(self, start: int, end: int) -> dict[str, int]:
        """Return the metadata that say where a passage is."""
        begin, last = self.origin(start), self.origin(end - 1)
        found = {"offset": begin}
        if self.unit:
            found[self.unit] = max(1, bisect_right(self.numbered, begin))
            if (until := bisect_right(self.numbered, last)) > found[self.unit]:
                found[f"last_{self.unit}"] = until
        return found


def page_of(path: Path, kind: Kind | None, rules: int, source: str, fallback: Fallback = STRICT) -> Page:
    """Read a file.

    Args:
        path: The file.
        kind: As of `kind_of`.
        rules: As of `ReadingRules`.
        source: Name of the file, of which its title is made if it has none.
        fallback: Encoding of a text that is not UTF-8.

    Raises:
        UnusableError: The file cannot be read, or holds no text.
    """
    return _page(path, kind, source, fallback) if rules > 1 else _page_as_before(path, kind, fallback)


def _page_as_before(path: Path, kind: Kind | None, fallback: Fallback) -> Page:
    """Read a file by the rules of 0.2: the title is that of HTML or front matter, the first heading, or the name."""
    source_text, named = _read(path, kind, fallback, by_page=False)
    stated, end = _front_matter(source_text, path)
    text, named = "\n" * end + source_text[end:], named or stated  # line ends, so that all else stays where it is
    if not text.strip():
        raise EmptyFileError("the file holds no text")
    headings = Headings(text) if kind != "text" else None
    all_ = headings.all if headings else []
    title = named or (all_[0].text if all_ else _text_title(text, path)) or path.stem
    said = {named, *_TITLE_PARTS.split(named)}  # of the page, and of the site
    return Page(
        text=text,
        title=title,
        form="markdown" if headings else "text",
        headings=headings,
        repeated=[one for one in all_ if one.text in said] if named else all_[:1],
        **_numbered(source_text, path, kind),
    )


def _page(path: Path, kind: Kind | None, source: str, fallback: Fallback) -> Page:
    """Read a file by the newest rules."""
    suffix = path.suffix.lower()
    cells: list[int] | None = None
    if suffix == NOTEBOOK and kind == "markdown":
        source_text, cells = _notebook(path)
        named, end = "", 0
    else:
        source_text, named = _read(path, kind, fallback, by_page=True)
        stated, end = _front_matter(source_text, path)
        named = named or stated
    numbered: _Numbered = _numbered(source_text, path, kind) if cells is None else {"unit": "cell", "numbered": cells}
    markdown = kind == "document" or suffix in MARKDOWN | MARKDOWN_LIKE or cells is not None
    like = ".md" if kind == "document" or cells is not None else suffix
    stripped = Stripped(source_text, chain([(0, end)], noise(source_text, like, end)))
    text = _FEEDS.sub(lambda feeds: " " * len(feeds[0]), stripped.text).replace("\f", "\n")
    if not text.strip():
        raise EmptyFileError("the file holds no text")
    if markdown:
        headings = Headings(text)
    elif suffix == ".rst":
        headings = TextHeadings(text, restructured_text_headings(text))
    elif suffix in _ASCIIDOC or suffix == _ORG:
        headings = TextHeadings(text, marked_headings(text, "*" if suffix == _ORG else "="))
    else:
        headings = None
    highest = [one for one in headings.all if one.level == 1] if headings and suffix != _ORG else []
    if suffix == ".pdf":
        named = stated_title(named)
    elif suffix in (".mdx", _ORG):
        named = named or (mdx_title(source_text) if suffix == ".mdx" else org_title(source_text))
    title = named or (highest[0].text if highest else "")
    if not title:
        own = first_line_title(text) if suffix == ".pdf" else ""
        title = own or (_code_title(source) if suffix in CODE else named_title(source))
    said = {title, *_TITLE_PARTS.split(named)} if named else {title}
    return Page(
        text=text,
        title=title,
        form="markdown" if markdown else "code" if suffix in CODE else "text",
        headings=headings,
        repeated=[one for one in headings.all if one.text in said] if headings else [],
        origin=stripped.origin,
        **numbered,
    )


class _Numbered(TypedDict, total=False):
    """`unit` and `numbered` of a page."""

    unit: Literal["line", "page", "slide", "cell"]
    numbered: list[int]


def _code_title(source: str) -> str:
    """Return the title of source code: its path without the outermost folder, which all files share."""
    path = source.partition("/")[2] if not source.startswith("/") and "/" in source else Path(source).name
    return path if len(path) <= LONGEST else f"…{path[1 - LONGEST :]}"


def _numbered(text: str, path: Path, kind: Kind | None) -> "_Numbered":
    """Return `unit` and `numbered` of a page."""
    suffix = path.suffix.lower()
    if kind != "document":
        return {"unit": "line", "numbered": [0, *(found.end() for found in _LINE_END.finditer(text))]}
    if suffix == ".pdf":
        return {"unit": "page", "numbered": [0, *(found.end() for found in re.finditer("\f", text))]}
    if slides := [found.start() for found in _SLIDE.finditer(text)]:
        return {"unit": "slide", "numbered": slides}
    return {}


def _notebook(path: Path) -> tuple[str, list[int]]:
    """Return the cells of a notebook as Markdown, and where each begins; outputs are left out.

    Raises:
        UnusableError: It cannot be read, or is no notebook.
    """
    try:
        notebook: Any = json.loads(decoded(path.read_bytes()))
        language: str = notebook.get("metadata", {}).get("language_info", {}).get("name", "python")
        parts, starts, length = list[str](), list[int](), 0
        for cell in notebook["cells"]:
            found: Any = cell["source"]
            text = found if isinstance(found, str) else "".join(found)
            if cell["cell_type"] == "code" and text.strip():
                fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
                text = f"{fence}{language}\n{text}\n{fence}"
            elif cell["cell_type"] != "markdown":
                text = ""
            starts.append(length)
            parts.append(f"{text}\n\n")
            length += len(parts[-1])
    except OSError as error:
        raise UnusableError(f"not readable: {error.strerror}") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(
            f"expected a Jupyter notebook of format 4, found other JSON or text ({error!r:.80})"
        ) from error
    return "".join(parts), starts


def _text_title(text: str, path: Path) -> str:
    """Return the title in a text that is not read as Markdown; "" if it has none."""
    suffix = path.suffix.lower()
    if suffix == ".rst":
        return restructured_text_title(text)
    if suffix in _ASCIIDOC:
        return asciidoc_title(text)
    return next((one.text for one in Headings(text).all), "") if suffix in MARKDOWN_LIKE else ""


def _front_matter(text: str, path: Path) -> FrontMatter:
    """Return the front matter of a file, if files of its kind have any."""
    if path.suffix.lower() in MARKDOWN | MARKDOWN_LIKE | _ASCIIDOC:
        return front_matter(text)
    return FrontMatter("", 0)


def _read(path: Path, kind: Kind | None, fallback: Fallback, *, by_page: bool) -> Converted:
    """Return the text of a file, and its title as `convert` finds it.

    Args:
        path: The file.
        kind: As of `kind_of`.
        fallback: As of `page_of`.
        by_page: Form feeds stand between the pages of every PDF.

    Raises:
        UnusableError: The file cannot be read.
    """
    try:
        if kind == "document":
            return convert(path, by_page=by_page)
        return Converted(fallback.decoded(path.read_bytes(), str(path)), "")
    except OSError as error:
        raise UnusableError(f"not readable: {error.strerror}") from error


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

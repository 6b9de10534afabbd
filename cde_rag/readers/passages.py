"""Text, Markdown and other documents: a long one is split into passages that know their file and their place in it."""

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

from cde_rag.errors import CorpusError, how_to_install, require
from cde_rag.readers import documents
from cde_rag.readers.blocks import Form
from cde_rag.readers.columns import EmptyFileError, Found, UnusableError
from cde_rag.readers.decoding import decoded
from cde_rag.readers.documents import DOCUMENTS, Converted, convert
from cde_rag.readers.headings import Heading, Headings, TextHeadings, marked_headings, restructured_text_headings
from cde_rag.readers.markup import Stripped, noise
from cde_rag.readers.reading import NEWEST, Reading
from cde_rag.readers.splitting import Span, split
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
from cde_rag.readers.token_splitting import TokenSplitter
from cde_rag.records import Record

MARKDOWN = frozenset({".md", ".markdown"})
TEXT = frozenset({".txt", ".text", ".rst"})
_MARKDOWN_LIKE = frozenset({".mdx", ".qmd", ".rmd"})
_ASCIIDOC = frozenset({".adoc", ".asciidoc"})
_ORG: Final = ".org"
_NOTEBOOK: Final = ".ipynb"
PAGES = _MARKDOWN_LIKE | _ASCIIDOC | {_ORG, _NOTEBOOK}  # read in folders by the rules 2; where they are named, always
CODE = frozenset(
    ".bash .c .cc .cjs .cpp .cs .cxx .go .h .hpp .java .jl .js .jsx .kt .kts .lua .m .mjs .php .pl .py .pyi .r .rb .rs "
    ".scala .sh .sql .swift .ts .tsx .vue .zig".split()
)
_OTHER_TEXT = frozenset(".cfg .css .ini .tex .textile .toml .xml .yaml .yml".split())  # with --as-text
_DEPENDENCIES = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages"})  # code of others
_MINIFIED = re.compile(r"\.min\.\w+$|[-.]bundle\.js$")
Kind: TypeAlias = Literal["text", "markdown", "document", "page", "code"]
PARENT_KEY = "source"  # metadata key that names a passage's file
FOLDER_KEY = "folder"  # metadata key that says where the folder of that file was
SECTION_KEY = "section"  # metadata key that says under which headings a passage begins

UNITS: Final = ("page", "slide", "cell", "line")  # metadata keys that say where in a file a passage is

_HIDDEN = (".", "~$")  # begins of names; Word keeps "~$plan.docx" next to a document that is open
_TITLE_PARTS = re.compile(r"\s+[-–—|·»:]\s+")  # between a page's and its site's name
_SLIDE = re.compile(r"<!-- Slide number: \d+ -->")  # as markitdown has it
_LINE_END = re.compile(r"\r\n?|\n")
_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
_MARKUP = str.maketrans(dict.fromkeys("`*_[]<>&~\\'\"-", "”"))  # what ends a sentence may stand before it
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_HEADING = re.compile(  # or a comment, or the mark of a list's item or of a quotation alone
    r"^(?:#{1,6}[ \t].*|\S.*\n(?:=+|-+)[ \t\r]*|<!--.*-->[ \t\r]*|[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t\r]*)+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Files below a folder; hidden ones and Office's lock files are left out.

    Attributes:
        readable: Files of texts and, with the extra `documents`, of documents.
        unread: Number of the other files, by suffix, and of links to folders and to nothing, and of pipes.
        errors: Folders that cannot be listed.
    """

    readable: list[Path]
    unread: Counter[str]
    errors: list[OSError]


def kind_of(path: Path, as_text: AbstractSet[str], reading: Reading | None = None) -> Kind | None:
    """Return how a file is read, by its suffix; None if it is not.

    Args:
        path: Path of the file.
        as_text: Suffixes of files that are read as plain text, whatever they are otherwise, such as ".xml".
        reading: Rules by which files in a folder are chosen; None for a file that is named.
    """
    suffix = path.suffix.lower()
    if suffix in as_text or suffix in TEXT:
        return "text"
    if suffix in MARKDOWN:
        return "markdown"
    if suffix in PAGES and (reading is None or reading.rules > 1):
        return "markdown" if suffix in _MARKDOWN_LIKE or suffix == _NOTEBOOK else "text"
    if suffix in CODE and (reading is None or (reading.code and _is_own_code(path))):
        return "text"
    return "document" if suffix in DOCUMENTS else None


def _is_own_code(path: Path) -> bool:
    """Return False for minified code and that of dependencies, which nobody wrote to be read."""
    return not _MINIFIED.search(path.name.lower()) and _DEPENDENCIES.isdisjoint(path.parts)


def is_mostly_code(folders: Iterable[Path], as_text: AbstractSet[str]) -> bool:
    """Return True if the most texts and documents below some folders are source code."""
    suffixes = Counter[str]()
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if not name.startswith(_HIDDEN) and name not in _DEPENDENCIES]
            paths = (Path(place, name) for name in names if not name.startswith(_HIDDEN))
            suffixes.update(path.suffix.lower() for path in paths if _is_own_code(path))
    code = sum(count for suffix, count in suffixes.items() if suffix in CODE - as_text)
    others = MARKDOWN | TEXT | PAGES | DOCUMENTS | as_text
    return code > sum(count for suffix, count in suffixes.items() if suffix in others)


def as_text_options(unread: Counter[str]) -> str:
    """Return options of `cde-rag index` that would read the commonest texts among files that are not read, or ""."""
    suffixes = [suffix for suffix, _ in unread.most_common()]
    code = ["--code"] if CODE & unread.keys() else []
    known = [suffix for some in (PAGES, _OTHER_TEXT) for suffix in suffixes if suffix in some]
    return " ".join([*code, *(f"--as-text {suffix}" for suffix in known[:3])])


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageRules:
    """Rules by which files become passages, with a model's tokens.

    Attributes:
        reading: The rules; `code` is decided.
        splitter: Counts tokens; None where characters are counted.
        as_text: As of `kind_of`.
    """

    reading: Reading
    splitter: TokenSplitter | None = None
    as_text: AbstractSet[str] = frozenset()


def folder_files(folder: Path, as_text: AbstractSet[str] = frozenset(), reading: Reading = NEWEST) -> FolderFiles:
    """List the files below a folder; links to folders are not followed. `as_text` and `reading` as in `kind_of`."""
    errors, files, unread = list[OSError](), list[Path](), Counter[str]()
    for place, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        unread["link to a folder"] += sum(Path(place, name).is_symlink() for name in folders)
        files += [Path(place, name) for name in names if not name.startswith(_HIDDEN)]
    kinds = {"text", "markdown", "document"} if documents.readable() else {"text", "markdown"}
    chosen = {path: kind_of(path.relative_to(folder), as_text, reading) in kinds for path in files}
    read = [path for path in files if chosen[path]]
    readable = [path for path in read if path.is_file()]
    others = set(read) - set(readable)
    unread.update(path.suffix.lower() or "no suffix" for path in files if not chosen[path])
    unread.update("pipe, socket or device" if path.exists() else "link to nothing" for path in others)
    return FolderFiles(sorted(readable, key=lambda path: path.relative_to(folder).parts), +unread, errors)


def source_of(path: Path, roots: Iterable[Path] = ()) -> dict[str, str]:
    """Return the metadata that name a file, of which its passages' ids are made.

    Args:
        path: Absolute path of the file.
        roots: Absolute paths of folders that are indexed. The outermost one that holds the file names it: `source` is
            that folder's name and the path in it, and `folder` is the folder. In none of them `source` is the path.
    """
    for root in sorted(roots, key=lambda root: len(root.parts)):
        if path.is_relative_to(root):
            return {PARENT_KEY: f"{root.name}/{path.relative_to(root).as_posix()}", FOLDER_KEY: str(root)}
    return {PARENT_KEY: str(path)}


def file_of(metadata: Mapping[str, Any]) -> Path | None:
    """Return the path of the file that metadata as of `source_of` name; None if they name none, as of an upload."""
    source, folder = metadata.get(PARENT_KEY), metadata.get(FOLDER_KEY)
    if not isinstance(source, str):
        return None
    path = Path(folder).parent / source if isinstance(folder, str) else Path(source)
    return path if path.is_absolute() else None


def place_in_file(metadata: Mapping[str, Any]) -> str:
    """Return where in its file a passage is, in words; "" if metadata do not say it.

    Example:
        >>> place_in_file({"page": 3}), place_in_file({"line": 12, "last_line": 34})
        ('page 3', 'lines 12–34')
    """
    for unit in UNITS:
        first, last = metadata.get(unit), metadata.get(f"last_{unit}")
        if isinstance(first, int) and not isinstance(first, bool):
            return f"{unit}s {first}–{last}" if isinstance(last, int) and last > first else f"{unit} {first}"
    return ""


def document_of(record: Record) -> str | None:
    """Return the `source` of a passage of a text document; None for any other record."""
    source, (stem, _, number) = record.metadata.get(PARENT_KEY), record.id.rpartition("#")
    return stem if source == stem and number.isascii() and number.isdigit() else None


def folder_passages(folder: Path, rules: PassageRules, roots: Iterable[Path] = ()) -> Iterator[Found]:
    """Yield the passages of all readable files below a folder, by path; hidden files are skipped.

    A file's `source` is the folder's name and its path in it, so that it does not depend on how the path to the folder
    was given; in a folder of `roots` it is the path in that, as of `source_of`. A link to a file outside the folder is
    a bad file, so that links cannot bring other files into the index. Links to folders are not followed.

    Raises:
        CorpusError: There is no such file.
    """
    whole = folder.resolve()
    files = folder_files(folder, rules.as_text, rules.reading)
    for error in files.errors:
        yield str(error.filename), UnusableError(f"not readable: {error.strerror}")
    if not files.readable:
        suffixes, extra = MARKDOWN | TEXT | rules.as_text, ""
        if documents.readable():
            suffixes |= DOCUMENTS
        else:
            extra = f" {how_to_install('documents')} for {', '.join(sorted(DOCUMENTS))}."
        if rules.reading.rules > 1:
            suffixes |= PAGES
        raise CorpusError(
            f"{folder} holds no text: expected files that end in {', '.join(sorted(suffixes))}, in it or below it."
            f"{extra} Name the suffix of other text files: {as_text_options(files.unread) or '--as-text .xml'}"
        )
    for path in files.readable:
        metadata = source_of(whole / path.relative_to(folder), (*roots, whole))
        if not (target := path.resolve()).is_relative_to(whole):
            found = f"expected a file of the folder, found a link to {target}, outside it; copy the file, or name it"
            yield str(path), UnusableError(found)
            continue
        yield from _passages(path, metadata, rules)


def file_passages(path: Path, rules: PassageRules, roots: Iterable[Path] = ()) -> Iterator[Found]:
    """Yield the passages of one file; `roots` name it, as of `source_of`."""
    metadata = source_of(path.parent.resolve() / path.name, roots)
    if FOLDER_KEY not in metadata:
        metadata = source_of(path.resolve(), roots)
    return _passages(path, metadata, rules)


def _passages(path: Path, metadata: dict[str, str], rules: PassageRules) -> Iterator[Found]:
    """Split one file at its headings, paragraphs and sentences.

    Args:
        path: The file; a text is decoded as in `decoding`, a document is read as Markdown.
        metadata: Metadata of all its passages. The ids are made of its `source`: `source#0`, `source#1` …
        rules: How titles are found, and how long passages are.

    Returns:
        Passages in order, titled with the page's title. Front matter is in no passage. `metadata["offset"]` is where
        the passage begins in the file, or in the Markdown that a document was converted to, in characters. A heading is
        kept with the beginning of its text. `metadata["section"]` has the headings under which that text stands, such
        as "Roll back > By hand", if there are any besides the title; each is cut to 200 characters. `line`, `page`,
        `slide` or `cell` say where the passage is, from 1, and `last_line` … where it ends, if elsewhere.
    """
    try:
        "".join(metadata.values()).encode("utf-8")
        page = page_of(path, kind_of(path, rules.as_text), rules.reading.rules, metadata[PARENT_KEY])
    except UnicodeEncodeError:
        yield str(path), UnusableError("its path is not UTF-8; rename it")
        return
    except UnusableError as reason:
        yield str(path), reason
        return
    title, headings = page.title, page.headings
    if rules.splitter is None:
        spans = list(_by_characters(page, rules.reading.characters or 1))
    else:
        title = rules.splitter.title(title)
        spans = rules.splitter.split(page.text, title, page.form, headings.all if headings else ())
    for number, (begin, end) in enumerate(spans):
        place: dict[str, Any] = {**metadata, **page.place(begin, end)}
        above = headings.above(begin) if headings else ()
        if below := [one.text for one in above if one not in page.repeated]:
            place[SECTION_KEY] = " > ".join(below)
        record = Record(f"{metadata[PARENT_KEY]}#{number}", page.text[begin:end], title, place)
        yield f"{path}, character {place['offset']}", record


def _by_characters(page: "Page", most: int) -> Iterable[Span]:
    """Return the passages of a page, each of at most so many characters."""
    markdown = page.form == "markdown"
    shown = unmarked(page.text) if markdown else page.text  # else the splitter prefers ends of lines to sentences
    spans = split(shown, most, markdown=markdown)
    return _with_headings(page.text, shown, spans, most) if markdown else spans


def _with_headings(text: str, shown: str, spans: list[Span], most: int) -> Iterator[Span]:
    """Yield the passages of a Markdown file, with headings that have no text joined to the next passage.

    Args:
        text: Text of the file.
        shown: The same, its paragraphs without markup.
        spans: Spans of its passages.
        most: Maximum characters of a passage. If heading and next passage exceed it, the passage is split again; a
            heading longer than half of it stays alone.
    """
    bare: Span | None = None
    left = spans[::-1]
    while left:
        start, end = left.pop()
        begin = start if bare is None else bare[0]
        room = most - (start - begin)
        if bare is not None and room < most // 2:
            yield bare
            bare, begin, room = None, start, most
        if end - start > room:
            left += [(start + begins, start + ends) for begins, ends in split(shown[start:end], room)][::-1]
        elif _is_heading_only(text[start:end]):
            bare = begin, end
        else:
            yield begin, end
            bare = None
    if bare is not None:
        yield bare


def _is_heading_only(passage: str) -> bool:
    """Return True if a passage has only headings, or one end of a code block."""
    without, fences = _FENCE.subn("", passage)
    return fences < 2 and not _HEADING.sub("", without).strip()


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


def page_of(path: Path, kind: Kind | None, rules: int, source: str) -> Page:
    """Read a file.

    Args:
        path: The file.
        kind: As of `kind_of`.
        rules: As of `Reading`.
        source: Name of the file, of which its title is made if it has none.

    Raises:
        UnusableError: The file cannot be read, or holds no text.
    """
    return _page(path, kind, source) if rules > 1 else _page_as_before(path, kind)


def _page_as_before(path: Path, kind: Kind | None) -> Page:
    """Read a file by the rules of 0.2: the title is that of HTML or front matter, the first heading, or the name."""
    source_text, named = _read(path, kind, by_page=False)
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


def _page(path: Path, kind: Kind | None, source: str) -> Page:
    """Read a file by the newest rules."""
    suffix = path.suffix.lower()
    cells: list[int] | None = None
    if suffix == _NOTEBOOK and kind == "markdown":
        source_text, cells = _notebook(path)
        named, end = "", 0
    else:
        source_text, named = _read(path, kind, by_page=True)
        stated, end = _front_matter(source_text, path)
        named = named or stated
    numbered: _Numbered = _numbered(source_text, path, kind) if cells is None else {"unit": "cell", "numbered": cells}
    markdown = kind == "document" or suffix in MARKDOWN | _MARKDOWN_LIKE or cells is not None
    like = ".md" if kind == "document" or cells is not None else suffix
    stripped = Stripped(source_text, chain([(0, end)], noise(source_text, like, end)))
    text = stripped.text.replace("\f", "\n")
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
    return next((one.text for one in Headings(text).all), "") if suffix in _MARKDOWN_LIKE else ""


def _front_matter(text: str, path: Path) -> FrontMatter:
    """Return the front matter of a file, if files of its kind have any."""
    if path.suffix.lower() in MARKDOWN | _MARKDOWN_LIKE | _ASCIIDOC:
        return front_matter(text)
    return FrontMatter("", 0)


def _read(path: Path, kind: Kind | None, *, by_page: bool) -> Converted:
    """Return the text of a file, and its title as `convert` finds it.

    Args:
        path: The file.
        kind: As of `kind_of`.
        by_page: Form feeds stand between the pages of every PDF.

    Raises:
        UnusableError: The file cannot be read.
    """
    try:
        return convert(path, by_page=by_page) if kind == "document" else Converted(decoded(path.read_bytes()), "")
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

"""Text, Markdown and other documents: a long one is split into passages that know their file and their place in it."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from cde_rag.errors import CorpusError, how_to_install, require
from cde_rag.readers import documents
from cde_rag.readers.columns import EmptyFileError, Found, UnusableError
from cde_rag.readers.decoding import decoded
from cde_rag.readers.documents import DOCUMENTS, Converted, convert
from cde_rag.readers.headings import Headings
from cde_rag.readers.splitting import Span, split
from cde_rag.readers.titles import asciidoc_title, front_matter, restructured_text_title
from cde_rag.records import Record

MARKDOWN = frozenset({".md", ".markdown"})
TEXT = frozenset({".txt", ".text", ".rst"})
_MARKDOWN_LIKE = frozenset({".mdx", ".qmd", ".rmd"})
_ASCIIDOC = frozenset({".adoc", ".asciidoc"})
_OTHER_TEXT = _MARKDOWN_LIKE | _ASCIIDOC | {".org", ".textile"}  # read only where they are named, as is source code
_SOURCE_CODE = frozenset(
    ".c .cc .cfg .cpp .cs .css .go .h .hpp .ini .java .js .jsx .kt .lua .php .pl .py .r .rb .rs .scala .sh .sql .swift "
    ".tex .toml .ts .tsx .xml .yaml .yml".split()
)
Kind: TypeAlias = Literal["text", "markdown", "document"]
PARENT_KEY = "source"  # metadata key that names a passage's file
FOLDER_KEY = "folder"  # metadata key that says where the folder of that file was
SECTION_KEY = "section"  # metadata key that says under which headings a Markdown passage begins

_HIDDEN = (".", "~$")  # begins of names; Word keeps "~$plan.docx" next to a document that is open
_TITLE_PARTS = re.compile(r"\s+[-–—|·»:]\s+")  # between a page's and its site's name
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


def kind_of(path: Path, as_text: AbstractSet[str]) -> Kind | None:
    """Return how a file is read, by its suffix; None if it is not.

    Args:
        path: Path of the file.
        as_text: Suffixes of files that are read as plain text, whatever they are otherwise, such as ".py".
    """
    suffix = path.suffix.lower()
    if suffix in as_text or suffix in TEXT:
        return "text"
    if suffix in MARKDOWN:
        return "markdown"
    return "document" if suffix in DOCUMENTS else None


def as_text_options(unread: Counter[str]) -> str:
    """Return options of `cde-rag index` that would read the commonest texts among files that are not read, or ""."""
    suffixes = [suffix for suffix, _ in unread.most_common()]
    known = [suffix for some in (_OTHER_TEXT, _SOURCE_CODE) for suffix in suffixes if suffix in some]
    return " ".join(f"--as-text {suffix}" for suffix in known[:3])


def folder_files(folder: Path, as_text: AbstractSet[str] = frozenset()) -> FolderFiles:
    """List the files below a folder; links to folders are not followed. `as_text` as in `kind_of`."""
    errors, files, unread = list[OSError](), list[Path](), Counter[str]()
    for place, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        unread["link to a folder"] += sum(Path(place, name).is_symlink() for name in folders)
        files += [Path(place, name) for name in names if not name.startswith(_HIDDEN)]
    kinds = {"text", "markdown", "document"} if documents.readable() else {"text", "markdown"}
    read = [path for path in files if kind_of(path, as_text) in kinds]
    readable = [path for path in read if path.is_file()]
    others = set(read) - set(readable)
    unread.update(path.suffix.lower() or "no suffix" for path in files if kind_of(path, as_text) not in kinds)
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


def document_of(record: Record) -> str | None:
    """Return the `source` of a passage of a text document; None for any other record."""
    source, (stem, _, number) = record.metadata.get(PARENT_KEY), record.id.rpartition("#")
    return stem if source == stem and number.isascii() and number.isdigit() else None


def folder_passages(
    folder: Path, *, max_characters: int, as_text: AbstractSet[str] = frozenset(), roots: Iterable[Path] = ()
) -> Iterator[Found]:
    """Yield the passages of all readable files below a folder, by path; hidden files are skipped.

    A file's `source` is the folder's name and its path in it, so that it does not depend on how the path to the folder
    was given; in a folder of `roots` it is the path in that, as of `source_of`. A link to a file outside the folder is
    a bad file, so that links cannot bring other files into the index. Links to folders are not followed.

    Raises:
        CorpusError: There is no such file.
    """
    whole = folder.resolve()
    files = folder_files(folder, as_text)
    for error in files.errors:
        yield str(error.filename), UnusableError(f"not readable: {error.strerror}")
    if not files.readable:
        suffixes, extra = MARKDOWN | TEXT | as_text, ""
        if documents.readable():
            suffixes |= DOCUMENTS
        else:
            extra = f" {how_to_install('documents')} for {', '.join(sorted(DOCUMENTS))}."
        raise CorpusError(
            f"{folder} holds no text: expected files that end in {', '.join(sorted(suffixes))}, in it or below it."
            f"{extra} Name the suffix of other text files: {as_text_options(files.unread) or '--as-text .py'}"
        )
    for path in files.readable:
        metadata = source_of(whole / path.relative_to(folder), (*roots, whole))
        if not (target := path.resolve()).is_relative_to(whole):
            found = f"expected a file of the folder, found a link to {target}, outside it; copy the file, or name it"
            yield str(path), UnusableError(found)
            continue
        yield from _passages(path, metadata, kind_of(path, as_text), max_characters=max_characters)


def file_passages(
    path: Path, *, max_characters: int, as_text: AbstractSet[str] = frozenset(), roots: Iterable[Path] = ()
) -> Iterator[Found]:
    """Yield the passages of one file; `roots` name it, as of `source_of`."""
    metadata = source_of(path.parent.resolve() / path.name, roots)
    if FOLDER_KEY not in metadata:
        metadata = source_of(path.resolve(), roots)
    return _passages(path, metadata, kind_of(path, as_text), max_characters=max_characters)


def _passages(path: Path, metadata: dict[str, str], kind: Kind | None, *, max_characters: int) -> Iterator[Found]:
    """Split one file at its headings, paragraphs and sentences.

    Args:
        path: The file; a text is decoded as in `decoding`, a document is read as Markdown.
        metadata: Metadata of all its passages. The ids are made of its `source`: `source#0`, `source#1` …
        kind: As in `kind_of`.
        max_characters: Longest passage.

    Returns:
        Passages in order, titled with the `<title>` of HTML or the title in the front matter, else with the first
        heading, also of reStructuredText, else with the file's name. Front matter is in no passage.
        `metadata["offset"]` is where the passage begins in the file, in characters:
        `text[offset : offset + len(passage)] == passage`. A heading is kept with the beginning of its text.
        `metadata["section"]` has the headings under which that text stands, such as "Roll back > By hand", if there are
        any besides the title; each is cut to 200 characters.
    """
    markdown = kind != "text"
    try:
        "".join(metadata.values()).encode("utf-8")
        text, named = text_of(path, kind)
    except UnicodeEncodeError:
        yield str(path), UnusableError("its path is not UTF-8; rename it")
        return
    except UnusableError as reason:
        yield str(path), reason
        return
    headings = Headings(text) if markdown else None
    all_ = headings.all if headings else []
    title = named or (all_[0].text if all_ else _text_title(text, path)) or path.stem
    said = {named, *_TITLE_PARTS.split(named)}  # of the page, and of the site
    repeated = [one for one in all_ if one.text in said] if named else all_[:1]  # by the title
    shown = unmarked(text) if markdown else text  # to the splitter, which else prefers the ends of lines to sentences
    spans = split(shown, max_characters, markdown=markdown)
    whole = _with_headings(text, shown, spans, max_characters) if markdown else spans
    for number, (offset, end) in enumerate(whole):
        place: dict[str, Any] = {**metadata, "offset": offset}
        above = headings.above(offset) if headings else ()
        if below := [one.text for one in above if one not in repeated]:
            place[SECTION_KEY] = " > ".join(below)
        record = Record(f"{metadata[PARENT_KEY]}#{number}", text[offset:end], title, place)
        yield f"{path}, character {offset}", record


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


def _text_title(text: str, path: Path) -> str:
    """Return the title in a text that is not read as Markdown; "" if it has none."""
    suffix = path.suffix.lower()
    if suffix == ".rst":
        return restructured_text_title(text)
    if suffix in _ASCIIDOC:
        return asciidoc_title(text)
    return next((one.text for one in Headings(text).all), "") if suffix in _MARKDOWN_LIKE else ""


def _without_front_matter(text: str, path: Path) -> Converted:
    """Return a page and its title; line ends take the place of its front matter, so that all else stays where it is."""
    if path.suffix.lower() not in MARKDOWN | _MARKDOWN_LIKE | _ASCIIDOC:
        return Converted(text, "")
    title, end = front_matter(text)
    return Converted("\n" * end + text[end:], title)


def text_of(path: Path, kind: Kind | None) -> Converted:
    """Return the text of a file, which its passages are parts of, and its title.

    Raises:
        UnusableError: The file cannot be read, or holds no text.
    """
    try:
        found = convert(path) if kind == "document" else _without_front_matter(decoded(path.read_bytes()), path)
    except OSError as error:
        raise UnusableError(f"not readable: {error.strerror}") from error
    if not found.markdown.strip():
        raise EmptyFileError("the file holds no text")
    return found


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

"""Text, Markdown and other documents: a long one is split into passages that know their file and their place in it."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cde_rag._files import written
from cde_rag.errors import CorpusError, how_to_install
from cde_rag.readers import documents
from cde_rag.readers.columns import Found, UnusableError
from cde_rag.readers.decoding import STRICT, Fallback
from cde_rag.readers.documents import DOCUMENTS
from cde_rag.readers.pages import CODE, MARKDOWN, MARKDOWN_LIKE, NOTEBOOK, PAGES, TEXT, Kind, Page, page_of, unmarked
from cde_rag.readers.reading_rules import NEWEST, ReadingRules
from cde_rag.readers.row_origin import row_of
from cde_rag.readers.splitting import Span, split
from cde_rag.readers.token_splitting import TokenSplitter
from cde_rag.records import Record, parent_of

_OTHER_TEXT = frozenset(".cfg .css .ini .tex .textile .toml .xml .yaml .yml".split())  # with --as-text
_DEPENDENCIES = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages"})  # code of others
_MINIFIED = re.compile(r"\.min\.\w+$|[-.]bundle\.js$")
PARENT_KEY = "source"  # metadata key that names a passage's file
FOLDER_KEY = "folder"  # metadata key that says where the folder of that file was
SECTION_KEY = "section"  # metadata key that says under which headings a passage begins
UPLOADED_KEY = "uploaded"  # metadata key that says when a passage came over HTTP: UTC, ISO 8601
UPLOADS: Final = "uploads"  # the folder that passages of uploaded files name in front of their file

_MOST_KEPT: Final = 32 << 20  # characters of kept passages, with …
_OF_RECORD: Final = 600  # … these for what each has besides its text
_SETTLED: Final = 2_000_000_000  # nanoseconds since the last change, after which a file is kept

UNITS: Final = ("page", "slide", "cell", "line")  # metadata keys that say where in a file a passage is

_HIDDEN = (".", "~$")  # begins of names; Word keeps "~$plan.docx" next to a document that is open
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_HEADING = re.compile(  # or a comment, or the mark of a list's item or of a quotation alone
    r"^(?:#{1,6}[ \t].*|\S.*\n(?:=+|-+)[ \t\r]*|<!--.*-->[ \t\r]*|[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t\r]*)+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Files below a folder; hidden ones and Office's lock files are left out.

    Attributes:
        readable: Files of texts and, with the extra `documents`, of documents.
        unread: The other files, with their suffix, and links to folders and to nothing, and pipes, with these words.
        errors: Folders that cannot be listed.
    """

    readable: list[Path]
    unread: dict[Path, str]
    errors: list[OSError]


def kind_of(path: Path, as_text: AbstractSet[str], reading: ReadingRules | None = None) -> Kind | None:
    """Return how a file is read, by its suffix; None if it is not.

    Args:
        path: Path of the file.
        as_text: Suffixes of files that are read as plain text, whatever they are otherwise: ".xml", or "" without one.
        reading: Rules by which files in a folder are chosen; None for a file that is named.
    """
    suffix = path.suffix.lower()
    if suffix in as_text or suffix in TEXT:
        return "text"
    if suffix in MARKDOWN:
        return "markdown"
    if suffix in PAGES and (reading is None or reading.rules > 1):
        return "markdown" if suffix in MARKDOWN_LIKE or suffix == NOTEBOOK else "text"
    if suffix in CODE and (reading is None or (reading.code and _is_own_code(path))):
        return "text"
    return "document" if suffix in DOCUMENTS else None


def formats_in_words(*others: str) -> str:
    """Return the formats of texts that are read, and others; those of documents need the extra `documents`."""
    of_extra = ("HTML", "PDF", "Word", "PowerPoint") if documents.readable() else ()
    *most, last = ("Markdown", "text", *of_extra, "notebooks", *others)
    return f"{', '.join(most)} or {last}"


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
        fallback: Encoding of texts that are not UTF-8.
        kept: Passages of files that were split by the same tokens before; None to split all.
    """

    reading: ReadingRules
    splitter: TokenSplitter | None = None
    as_text: AbstractSet[str] = frozenset()
    fallback: Fallback = STRICT
    kept: "KeptPassages | None" = None


class KeptPassages:
    """Passages of files for the next reading: a folder is read for its sample or its size, and again to be stored.

    Splitting takes a tenth of the time of embedding. Files are known by path, inode, size and times of change, of which
    programs that unpack or build files set one; those that changed in the last seconds are not kept, since another
    change may leave all of these as they are.
    """

    def __init__(self) -> None:
        self._files: dict[Path, tuple[object, list[Found]]] = {}
        self._room = _MOST_KEPT

    def of(self, path: Path, metadata: dict[str, str], rules: PassageRules) -> Iterator[Found]:
        """Yield the passages of a file, as `_passages`; its arguments are the same."""
        key, guessed = _key_of(path, metadata, rules), rules.fallback.guessed
        known, passages = self._files.get(path, (None, []))
        if key is None or known != key:
            self._files.pop(path, None)
            self._room += _size_of(passages)
            guesses = len(guessed or ())
            passages = list(_passages(path, metadata, rules))
            is_said_anew = guesses < len(guessed or ()) or any(isinstance(each, UnusableError) for _, each in passages)
            if key is not None and not is_said_anew and _size_of(passages) <= self._room:
                self._files[path] = key, passages
                self._room -= _size_of(passages)
        yield from passages


def _key_of(path: Path, metadata: dict[str, str], rules: PassageRules) -> object:
    """Return an object that is equal while a file's passages are the same; None if that cannot be known."""
    try:
        stat, renewed = written(path), path.stat().st_ctime_ns
    except OSError:
        return None
    if time.time_ns() - stat[-1] < _SETTLED:
        return None
    return stat, renewed, metadata, rules.reading, rules.as_text, rules.fallback.encoding


def _size_of(passages: Iterable[Found]) -> int:
    return sum(len(each.text) + _OF_RECORD for _, each in passages if isinstance(each, Record))


def is_hidden(path: Path) -> bool:
    """Return True for a path, relative to a folder, that reading the folder leaves out: hidden, or a lock of Office."""
    return any(part.startswith(_HIDDEN) for part in path.parts)


def folder_files(
    folder: Path,
    as_text: AbstractSet[str] = frozenset(),
    reading: ReadingRules = NEWEST,
    only: Iterable[Path] | None = None,
) -> FolderFiles:
    """List the files below a folder; links to folders are not followed.

    Args:
        folder: The folder.
        as_text: As in `kind_of`.
        reading: As in `kind_of`.
        only: Absolute paths of the files, and of folders with the files, to list; None for all.
    """
    errors, files, unread = list[OSError](), list[Path](), dict[Path, str]()
    starts = [folder] if only is None else list(_inside(folder, only))
    named = [] if only is None else [start for start in starts if not start.is_dir()]
    walks = (os.walk(start, onerror=errors.append) for start in starts if start not in named)
    for place, folders, names in chain.from_iterable(walks):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        links = (path for name in folders if (path := Path(place, name)).is_symlink())
        unread |= dict.fromkeys(links, "link to a folder")
        files += [Path(place, name) for name in names if not name.startswith(_HIDDEN)]
    files = list(dict.fromkeys([*files, *named]))  # a file may be named, and be in a folder that is
    kinds = {"text", "markdown", "document"} if documents.readable() else {"text", "markdown"}
    chosen = {path: kind_of(path.relative_to(folder), as_text, reading) in kinds for path in files}
    read = [path for path in files if chosen[path]]
    readable = [path for path in read if path.is_file()]
    unread |= {path: path.suffix.lower() or "no suffix" for path in files if not chosen[path]}
    others = set(read) - set(readable)
    unread |= {path: "pipe, socket or device" if path.exists() else "link to nothing" for path in others}
    return FolderFiles(sorted(readable, key=lambda path: path.relative_to(folder).parts), unread, errors)


def _inside(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield those of some absolute paths that are read with a folder, as paths below it."""
    real = folder.resolve()
    for path in paths:
        if path.is_relative_to(real) and not is_hidden(below := path.relative_to(real)):
            place = folder / below
            if place == folder or (
                place.parent.resolve() == path.parent and not (place.is_symlink() and place.is_dir())
            ):
                yield place


def beir_remedy(folder: Path) -> str:
    """Return the way to index a retrieval set in BEIR's layout, a sentence; "" for another folder."""
    if not all((folder / name).is_file() for name in ("corpus.jsonl", "queries.jsonl")):
        return ""
    return f" {folder} is a retrieval set: index its {folder / 'corpus.jsonl'}, or measure on it with cde-rag evaluate."


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


def named_file(path: Path, roots: Iterable[Path] = ()) -> dict[str, str]:
    """Return the metadata that name a file which was given by itself: by a folder of `roots`, else by its target."""
    metadata = source_of(path.parent.resolve() / path.name, roots)
    return metadata if FOLDER_KEY in metadata else source_of(path.resolve(), roots)


def file_of(metadata: Mapping[str, Any]) -> Path | None:
    """Return the path of the file that metadata as of `source_of` name; None if they name none, as of an upload."""
    source, folder = metadata.get(PARENT_KEY), metadata.get(FOLDER_KEY)
    if not isinstance(source, str):
        return None
    path = Path(folder).parent / source if isinstance(folder, str) else Path(source)
    return path if path.is_absolute() else None


def place_in_file(metadata: Mapping[str, Any]) -> str:
    """Return where in its file a passage is, in words; "" if metadata do not say it.

    Examples:
        >>> place_in_file({"page": 3}), place_in_file({"line": 12, "last_line": 34})
        ('page 3', 'lines 12–34')
        >>> place_in_file({"table": {"file": "docs/papers.csv", "row": 12}, "line": "Circle"})
        'row 12'
    """
    if (row := row_of(metadata)) is not None:
        return f"row {row}"
    for unit in UNITS:
        first, last = metadata.get(unit), metadata.get(f"last_{unit}")
        if isinstance(first, int) and not isinstance(first, bool):
            return f"{unit}s {first}–{last}" if isinstance(last, int) and last > first else f"{unit} {first}"
    return ""


def document_of(record: Record) -> str | None:
    """Return the `source` of a passage of a text document; None for any other record."""
    source, (stem, _, number) = record.metadata.get(PARENT_KEY), record.id.rpartition("#")
    return stem if source == stem and number.isascii() and number.isdigit() else None


def document_name(record: Record, parent_key: str | None) -> str:
    """Return the name of the document that a record is of: its file, else its parent, else its own id."""
    parent = document_of(record) or parent_of(record, parent_key)
    return record.id if parent is None else str(parent)


def folder_passages(
    folder: Path,
    rules: PassageRules,
    roots: Iterable[Path] = (),
    *,
    needed: bool = True,
    only: Iterable[Path] | None = None,
) -> Iterator[Found]:
    """Yield the passages of all readable files below a folder, by path; hidden files are skipped.

    A file's `source` is the folder's name and its path in it, so that it does not depend on how the path to the folder
    was given; in a folder of `roots` it is the path in that, as of `source_of`. A link to a file outside the folder is
    a bad file, so that links cannot bring other files into the index. Links to folders are not followed.

    Args:
        folder: The folder.
        rules: How files become passages.
        roots: As of `source_of`.
        needed: False if the folder has other files to read, so that none of these is needed.
        only: As of `folder_files`; then none is needed, either.

    Raises:
        CorpusError: There is no such file, and it is needed.
    """
    whole = folder.resolve()
    files = folder_files(folder, rules.as_text, rules.reading, only)
    for error in files.errors:
        yield str(error.filename), UnusableError(f"not readable: {error.strerror}")
    if not files.readable and needed and only is None:
        extra = "" if documents.readable() else f" {how_to_install('documents')} for PDF, HTML, Word and PowerPoint."
        options = as_text_options(Counter(files.unread.values())) or "--as-text .xml"
        raise CorpusError(
            f"{folder} holds no text: expected files of {formats_in_words()}, in it or below it.{extra} Name the "
            f"suffix of other text files: {options}.{beir_remedy(folder)}"
        )
    for path in files.readable:
        metadata = source_of(whole / path.relative_to(folder), (*roots, whole))
        if not (target := path.resolve()).is_relative_to(whole):
            found = f"expected a file of the folder, found a link to {target}, outside it; copy the file, or name it"
            yield str(path), UnusableError(found)
            continue
        yield from _split(path, metadata, rules)


def file_passages(path: Path, rules: PassageRules, roots: Iterable[Path] = ()) -> Iterator[Found]:
    """Yield the passages of one file; `roots` name it, as of `source_of`."""
    return _split(path, named_file(path, roots), rules)


def _split(path: Path, metadata: dict[str, str], rules: PassageRules) -> Iterator[Found]:
    return (_passages if rules.kept is None else rules.kept.of)(path, metadata, rules)


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
        page = page_of(path, kind_of(path, rules.as_text), rules.reading.rules, metadata[PARENT_KEY], rules.fallback)
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


def _by_characters(page: Page, most: int) -> Iterable[Span]:
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

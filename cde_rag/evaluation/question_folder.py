"""Corpora of pages with questions, each answered by a quote of a page.

A corpus is a folder with `questions.jsonl` (or `.gz`) and its pages: `pages.jsonl` (or `.gz`; `path` and `text` a line)
or a folder `pages/` of text files. A folder may hold several corpora, one in each of its folders, and `sites.csv` with
a line for each: `site` (the folder's name) and, as far as known, `split` ("train" by default), `form` (the kind of
text, such as "documentation"), `licence`, `source` and `commit`.

A line of `questions.jsonl` is as in `judged_questions`; its answers are pages and quotes.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from cde_rag.errors import CorpusError
from cde_rag.evaluation.judged_questions import (
    QUESTIONS,
    JudgedQuestion,
    checked_rows,
    existing,
    read_lines,
    string,
)
from cde_rag.readers.columns import Fields, UnusableError
from cde_rag.readers.tables import csv_rows, jsonl_rows, opened

PAGES, SITES = "pages.jsonl", "sites.csv"
TRAIN = "train"
_FILE_NAME = re.compile(r"\w[\w.-]*")
UNNAMED = "questions"  # form of a corpus of which none is known


@dataclass(frozen=True, slots=True)
class Site:
    """Line of `sites.csv`: the facts about a corpus.

    Attributes:
        name: Name of the corpus's folder.
        split: "train", or another one for evaluation.
        form: Kind of text; pairs of one form are one source in training.
        licence: Licence of the pages.
        source: Repository, or package with its version.
        commit: Commit of the repository.
    """

    name: str
    split: str = TRAIN
    form: str = UNNAMED
    licence: str = ""
    source: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class QuestionCorpus:
    """Pages, and questions about them.

    Attributes:
        site: Name, split, form and origin.
        pages: Text by path, in order.
        questions: At least one.
    """

    site: Site
    pages: Mapping[str, str]
    questions: tuple[JudgedQuestion, ...]


def read_corpora(folder: Path, names: Sequence[str] = ()) -> Iterator[QuestionCorpus]:
    """Read the corpora of a folder one by one, in order of name.

    Args:
        folder: A corpus, or a folder of corpora.
        names: Corpora to read; all by default.

    Raises:
        CorpusError: A file is missing or unreadable, a line is invalid (the message names file and line), a question's
            answer is on a page that the corpus lacks, `sites.csv` and the folders differ, or a name is unknown.
    """
    sites = read_sites(folder)
    if unknown := sorted(set(names) - sites.keys()):
        raise CorpusError(f"{folder}: no corpus {unknown[0]!r}. There are {', '.join(sites)}.")
    for name, site in sites.items():
        if not names or name in names:
            yield read_corpus(folder if existing(folder, QUESTIONS) else folder / name, site)


def read_sites(folder: Path) -> dict[str, Site]:
    """Return the facts of each corpus in a folder, by name.

    Raises:
        CorpusError: There is no corpus, a line of `sites.csv` is invalid, or names a folder that is missing, or a
            folder has no line.
    """
    if existing(folder, QUESTIONS):
        name = folder.resolve().name
        return {name: Site(name)}
    found = [path.name for path in folder.iterdir() if existing(path, QUESTIONS)] if folder.is_dir() else []
    if not found:
        raise CorpusError(
            f"{folder}: expected {QUESTIONS} (or {QUESTIONS}.gz), in it or in its folders, found none. A line has "
            "question and answers, each with page and quote."
        )
    path = folder / SITES
    if not path.is_file():
        return {name: Site(name) for name in sorted(found)}
    sites: dict[str, Site] = {}
    with opened(path) as file:
        for where, site in checked_rows(csv_rows(file, str(path), ",", Fields()), lambda row: site_of(row, "site")):
            if site.name in sites:
                raise CorpusError(f"{where}: the site {site.name!r} has a line already. Remove one of them.")
            if site.name not in found:
                raise CorpusError(f"{where}: no folder {folder / site.name} with {QUESTIONS}. Remove the line.")
            sites[site.name] = site
    if missing := sorted(set(found) - sites.keys()):
        raise CorpusError(f"{path}: no line for the folder {missing[0]!r}. Add one, such as: {missing[0]},train")
    return dict(sorted(sites.items()))


def read_corpus(folder: Path, site: Site) -> QuestionCorpus:
    """Read one corpus.

    Raises:
        CorpusError: As `read_corpora`.
    """
    pages = read_pages(folder)
    return QuestionCorpus(site, pages, read_questions(folder, site.name, pages))


def read_questions(folder: Path, name: str, pages: Container[str]) -> tuple[JudgedQuestion, ...]:
    """Read the questions of a corpus; one without an id gets one of the corpus's name and its place.

    Args:
        folder: Folder of the corpus.
        name: Name of the corpus.
        pages: Paths of its pages, or of the files that `unpack` wrote.

    Raises:
        CorpusError: As `read_corpora`.
    """
    questions: dict[str, JudgedQuestion] = {}
    path = existing(folder, QUESTIONS)
    if path is None:
        raise CorpusError(f"{folder}: no {QUESTIONS} in it.")
    for where, row in read_lines(path):
        question = row if row.id else replace(row, id=f"{name}-{len(questions) + 1:03d}")
        if question.id in questions:
            raise CorpusError(f"{where}: the id {question.id!r} came before. Give each question its own.")
        if not question.by_quote:
            raise CorpusError(f"{where}: expected answers with page and quote, found others. They are of a collection.")
        places = [one if one.page in pages else replace(one, page=unpacked_path(one.page)) for one in question.answers]
        if lost := next(
            (old.page for old, new in zip(question.answers, places, strict=True) if new.page not in pages), None
        ):
            raise CorpusError(f"{where}: no page {lost!r} in {folder}. Add the page, or remove the answer.")
        questions[question.id] = replace(question, answers=tuple(places))
    if not questions:
        raise CorpusError(f"{path}: no questions in it. Add some, or remove the file.")
    return tuple(questions.values())


def read_pages(folder: Path) -> dict[str, str]:
    """Read the pages of a corpus: text by path.

    Raises:
        CorpusError: There are none, a line is invalid, or a file is no text in UTF-8.
    """
    pages: dict[str, str] = {}
    if path := existing(folder, PAGES):
        with opened(path) as file:
            for where, (page, text) in checked_rows(jsonl_rows(file, str(path)), _page):
                if page in pages:
                    raise CorpusError(f"{where}: the page {page!r} came before. Remove one of them.")
                pages[page] = text
    else:
        inside = folder / "pages"
        for path in sorted(inside.rglob("*")):
            if path.is_file():
                pages[path.relative_to(inside).as_posix()] = read_page(path)
    if not pages:
        raise CorpusError(f"{folder}: expected {PAGES} (or {PAGES}.gz), or text files in pages/, found neither.")
    return pages


def page_names(folder: Path) -> frozenset[str]:
    """Return the paths of the files below a folder of pages, from there."""
    return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def unpacked_path(page: str) -> str:
    """Return the path of the file that a page is unpacked to: a section of a page ends as that page does.

    Examples:
        >>> unpacked_path("faq.md#what-is-it")
        'faq#what-is-it.md'
    """
    whole = PurePosixPath(page).suffix
    suffix, mark, _ = whole.partition("#")
    return page.removesuffix(whole) + whole.removeprefix(suffix) + suffix if mark else page


def unpack(pages: Mapping[str, str], folder: Path) -> None:
    """Write pages as files below a folder, named by `unpacked_path`; files with the same text are left as they are.

    Args:
        pages: Text by path.
        folder: Created if missing.

    Raises:
        CorpusError: A path leads out of the folder, or is no name of a file.
    """
    for page, text in pages.items():
        parts, path = PurePosixPath(page).parts, folder / unpacked_path(page)
        if not parts or ".." in parts or PurePosixPath(page).is_absolute() or "\0" in page:
            raise CorpusError(f"expected paths of pages in their folder, found {page!r:.80}. Rename the page.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != text.encode():
                path.write_bytes(text.encode())
        except OSError as error:
            raise CorpusError(f"{page!r:.80}: cannot be written as a file: {error.strerror}. Rename it.") from error


def read_page(path: Path) -> str:
    """Read one page.

    Raises:
        CorpusError: It cannot be read, or is no text in UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: not a readable text in UTF-8: {error}. Convert or remove it.") from error


def site_of(row: Mapping[str, Any], name: str) -> Site:
    """Return a site from a line's fields.

    Args:
        row: The line.
        name: Field with the site's name.

    Raises:
        UnusableError: A field is no string, or name or split, which are used in paths, could lead elsewhere.
    """
    facts = {each: string(row, each, "") for each in ("split", "form", "licence", "source", "commit")}
    site = Site(string(row, name), **{each: value for each, value in facts.items() if value})
    for field, value in ((name, site.name), ("split", site.split)):
        if not _FILE_NAME.fullmatch(value):
            raise UnusableError(f"expected letters, digits, '.', '_' and '-' in {field!r}, found {value!r}")
    return site


def _page(row: Mapping[str, Any]) -> tuple[str, str]:
    return string(row, "path"), string(row, "text", "")

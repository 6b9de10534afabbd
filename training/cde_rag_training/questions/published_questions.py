"""Published form of questions: without the texts and quotes of the pages, which have licences of their own.

A gzip file of JSON Lines, one per corpus: the facts of its site; `pages`, a digest of each page by path; `questions`,
each with `id`, `question`, `kind` and `answers`. An answer is a list: path of the page, first and last position (in
characters, the last exclusive) and number of words of the quote, digest of the quote. Digests are the first 16
hexadecimal digits of a sha256: of a page's text in UTF-8, of a quote with single spaces as white space. With a copy of
the pages the quotes are found again, also in pages that changed elsewhere.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, cast

from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import flat
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion, existing, string
from cde_rag.evaluation.question_folder import PAGES, QuestionCorpus, Site, read_page, read_pages, site_of
from cde_rag.readers.columns import UnusableError, kind
from cde_rag.readers.tables import jsonl_rows, opened
from cde_rag_training.questions.question_pairs import write_lines

DIGITS: Final = 16  # of a digest, hexadecimal
_WORD: Final = re.compile(r"\S+")


class Rebuilt(NamedTuple):
    """Corpora of a published set, with the pages at hand.

    Attributes:
        corpora: Corpora with a question left.
        changes: Pages that are missing or changed, and answers and questions that are lost by that, in words.
    """

    corpora: list[QuestionCorpus]
    changes: list[str]


def publish(corpora: Iterable[QuestionCorpus], path: Path) -> None:
    """Write corpora in the published form; equal corpora give equal bytes.

    Args:
        corpora: Each of another name.
        path: The file, such as `questions.jsonl.gz`.

    Raises:
        CorpusError: A quote is not in its page.
    """
    write_lines(path, [_published(corpus) for corpus in corpora])


def read_published(path: Path, pages: Path, names: Sequence[str] = ()) -> Rebuilt:
    """Read a published set, and find its quotes in a copy of the pages.

    Args:
        path: Written by `publish`.
        pages: Has a folder for each corpus, with `pages.jsonl.gz` or the page's files under their paths, such as a
            clone of the repository at the commit. A corpus without a folder is left out and reported.
        names: Corpora to read; all by default.

    Raises:
        CorpusError: The file is invalid (the message names the line), a corpus is unknown or no question is left.
    """
    found: list[QuestionCorpus] = []
    changes: list[str] = []
    known: list[str] = []
    with opened(path) as file:
        for where, parse in jsonl_rows(file, str(path)):
            try:
                row = parse()
                site, digests, questions = site_of(row, "name"), _digests(row), _questions(row)
            except UnusableError as error:
                raise CorpusError(f"{where}: {error}. Is it a published set of questions?") from error
            known.append(site.name)
            if names and site.name not in names:
                continue
            corpus, changed = _rebuilt(site, digests, questions, pages / site.name)
            found += [corpus] if corpus.questions else []
            changes += [f"{site.name}: {change}" for change in changed]
    if unknown := sorted(set(names) - set(known)):
        raise CorpusError(f"{path}: no corpus {unknown[0]!r}. There are {', '.join(known)}.")
    if not found:
        raise CorpusError(f"{path}: no question has its page in {pages}. Expected folders such as {pages / known[0]}.")
    return Rebuilt(found, changes)


def text_digest(text: str) -> str:
    """Return the digest of a page's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _published(corpus: QuestionCorpus) -> dict[str, Any]:
    questions = [
        {
            "id": question.id,
            "question": question.text,
            "kind": question.kind,
            "answers": [_place(corpus, question, answer) for answer in question.answers],
        }
        for question in corpus.questions
    ]
    digests = {page: text_digest(text) for page, text in corpus.pages.items()}
    return asdict(corpus.site) | {"pages": digests, "questions": questions}


def _place(corpus: QuestionCorpus, question: JudgedQuestion, answer: Answer) -> list[object]:
    words = answer.quote.split()
    found = re.search(r"\s+".join(map(re.escape, words)), corpus.pages[answer.page])
    if found is None:
        raise CorpusError(
            f"{corpus.site.name}: the quote of {question.id!r} is not in the page {answer.page!r}. Mend the quote."
        )
    return [answer.page, found.start(), found.end(), len(words), text_digest(flat(answer.quote))]


class _Place(NamedTuple):
    page: str
    start: int
    end: int
    words: int
    digest: str


class _Unquoted(NamedTuple):
    id: str
    text: str
    kind: str
    places: list[_Place]


def _digests(row: Mapping[str, Any]) -> dict[str, str]:
    pages = row.get("pages")
    if not isinstance(pages, dict):
        raise UnusableError(f"expected an object in 'pages', found {kind(pages)}")
    found = cast("dict[str, Any]", pages)
    for page in found:
        if PurePosixPath(page).is_absolute() or ".." in PurePosixPath(page).parts:
            raise UnusableError(f"expected pages inside a folder, found {page!r}")
    return {page: string(found, page) for page in found}


def _questions(row: Mapping[str, Any]) -> list[_Unquoted]:
    listed = row.get("questions")
    if not isinstance(listed, list):
        raise UnusableError(f"expected a list in 'questions', found {kind(listed)}")
    found: list[_Unquoted] = []
    for one in cast("list[object]", listed):
        if not isinstance(one, Mapping):
            raise UnusableError(f"expected an object for each question, found {kind(one)}")
        question = cast("Mapping[str, Any]", one)
        identifier = string(question, "id")
        try:
            places = [_Place(*place) for place in question["answers"]]
        except (KeyError, TypeError) as error:
            raise UnusableError(f"expected answers of {len(_Place._fields)} values in {identifier!r}") from error
        for page, start, end, words, digest in places:
            if [type(value) for value in (page, start, end, words, digest)] != [str, int, int, int, str]:
                raise UnusableError(f"expected page, first and last position, words and digest in {identifier!r}")
        found.append(_Unquoted(identifier, string(question, "question"), string(question, "kind", ""), places))
    return found


def _rebuilt(
    site: Site, digests: Mapping[str, str], questions: Sequence[_Unquoted], folder: Path
) -> tuple[QuestionCorpus, list[str]]:
    if not folder.is_dir():
        return QuestionCorpus(site, {}, ()), [f"no pages, {len(questions)} questions left out: no folder {folder}"]
    pages = _pages(folder, digests)
    changes = [f"the page {page!r} is missing" for page in digests if page not in pages]
    changes += [f"the page {page!r} changed" for page in pages if text_digest(pages[page]) != digests[page]]
    kept: list[JudgedQuestion] = []
    for question in questions:
        quotes = [(place.page, _quote(pages.get(place.page, ""), place)) for place in question.places]
        answers = tuple(Answer(page, quote) for page, quote in quotes if quote)
        if answers:
            kept.append(JudgedQuestion(question.id, question.text, question.kind, answers))
        if len(answers) < len(quotes):
            lost = "question is left out" if not answers else "question keeps its other answers"
            changes.append(f"{question.id}: a quote is not in its page any more; the {lost}")
    return QuestionCorpus(site, pages, tuple(kept)), changes


def _pages(folder: Path, digests: Mapping[str, str]) -> dict[str, str]:
    if existing(folder, PAGES) or (folder / "pages").is_dir():
        found = read_pages(folder)
        return {page: found[page] for page in digests if page in found}
    return {page: read_page(folder / page) for page in digests if (folder / page).is_file()}


def _quote(text: str, place: _Place) -> str:
    """Return the quote from its place, or from wherever it stands in the page now; empty if it is gone."""
    quote = flat(text[place.start : place.end])
    if text_digest(quote) == place.digest:
        return quote
    words = _WORD.findall(text)
    for at in range(len(words) - place.words + 1):
        quote = " ".join(words[at : at + place.words])
        if text_digest(quote) == place.digest:
            return quote
    return ""

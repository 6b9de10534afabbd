"""Passages of pages, and those that answer a question: they hold the quote of an answer, or most of its words in order.

The rule for quotes that no passage holds, for instance since the splitter cut them, is ours.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.readers import RecordReader
from cde_rag.readers.documents import DOCUMENTS
from cde_rag.readers.pages import MARKDOWN, TEXT
from cde_rag.records import Record, embedded_text

SHARE: Final = 0.6  # of a quote's words, in order, that a passage holds in a stretch of at most …
STRETCH: Final = 2  # … so many times the quote's length; in all of a long passage frequent words would suffice
MAX_CHARACTERS: Final = 600  # of a passage, as for `cde-rag index`
_AS_MARKDOWN: Final = frozenset({".mdx"})


class PagePassage(NamedTuple):
    """Passage of a page.

    Attributes:
        page: Path of the page.
        number: Its place in the page.
        title: The page's, as the reader finds it.
        text: Without the title.
        embedded: Title and text, as a collection embeds them.
    """

    page: str
    number: int
    title: str
    text: str
    embedded: str

    @property
    def id(self) -> str:
        """Page and place."""
        return f"{self.page}#{self.number}"


class Answering(NamedTuple):
    """Positions of the passages that answer a question, ascending for each answer.

    Attributes:
        best: Those that hold a quote; for an answer whose quote none holds, those that nearly hold it.
        all: Those that hold or nearly hold a quote: they count as right, and are no negatives.
    """

    best: tuple[int, ...]
    all: frozenset[int]


def page_passages(pages: Mapping[str, str], *, max_characters: int = MAX_CHARACTERS) -> list[PagePassage]:
    """Cut pages into passages as `cde-rag index` does, each with its page's title.

    MDX is read as Markdown, a suffix that the reader does not know as plain text. A page without text,
    or one that cannot be read, has no passages: no quote is found there, which the callers count.

    Args:
        pages: Text by path.
        max_characters: Maximum length of a passage.

    Raises:
        MissingExtraError: The splitter is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files: list[Path] = []
        page_of: dict[str, str] = {}
        for number, (page, text) in enumerate(pages.items()):
            if text.strip():
                file = Path(folder, str(number), _file_name(page))
                file.parent.mkdir()
                file.write_bytes(text.encode("utf-8"))
                files.append(file)
                page_of[str(file.resolve())] = page
        if not files:
            return []
        other = sorted({file.suffix.lower() for file in files} - MARKDOWN - TEXT - DOCUMENTS)
        reader = RecordReader(*files, max_characters=max_characters, as_text=other, skip_bad=True)
        passages: list[PagePassage] = []
        for record in reader:
            page = page_of[str(record.metadata["source"])]
            number = passages[-1].number + 1 if passages and passages[-1].page == page else 0
            passages.append(_passage(page, number, record))
    return passages


def _passage(page: str, number: int, record: Record) -> PagePassage:
    return PagePassage(page, number, record.title, record.text, embedded_text(record))


def _file_name(page: str) -> str:
    """Return a file name that a page is read under: its own, with a suffix that the reader can be given."""
    name = PurePosixPath(page.split("#")[0]).name.replace("\0", "") or "page"
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _AS_MARKDOWN:
        return f"{PurePosixPath(name).stem}.md"
    return name if suffix and not any(map(str.isspace, suffix)) else f"{name}.txt"


def flat(text: str) -> str:
    """Return a text with single spaces in place of white space."""
    return " ".join(text.split())


def holds(quote: str, text: str) -> bool:
    r"""Return True if the text has the quote, white space aside.

    Examples:
        >>> holds("sleep on  the wing", "Swifts sleep on\nthe wing.")
        True
    """
    return flat(quote) in flat(text)


def nearly_holds(quote: str, text: str) -> bool:
    """Return True if at least 60 % of the quote's words occur in order in a stretch at most twice as long as the quote.

    Examples:
        >>> nearly_holds("swifts can sleep on the wing", "It is known that swifts sleep high on the wing")
        True
        >>> nearly_holds("swifts can sleep on the wing", "on the wing swifts sleep")
        False
    """
    wanted, words = quote.split(), text.split()
    need, span = SHARE * len(wanted), STRETCH * len(wanted)
    present = set(words)
    if sum(word in present for word in wanted) < need:
        return False
    return any(_in_order(wanted, words[at : at + span]) >= need for at in range(max(1, len(words) - span + 1)))


def answers_question(question: JudgedQuestion, page: str, text: str) -> bool:
    """Return True if a text of a page holds, or nearly holds, the quote of an answer there."""
    return any(
        answer.page == page and (holds(answer.quote, text) or nearly_holds(answer.quote, text))
        for answer in question.answers
    )


def _in_order(wanted: Sequence[str], words: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words."""
    row = [0] * (len(words) + 1)
    for word in wanted:
        before = 0
        for place, other in enumerate(words, 1):
            kept = row[place]
            row[place] = before + 1 if word == other else max(row[place], row[place - 1])
            before = kept
    return row[-1]


class AnswerFinder:
    """Finder of the passages that answer a question.

    Args:
        passages: All passages of a corpus; a result has positions among them.
    """

    def __init__(self, passages: Sequence[PagePassage]) -> None:
        self._passages = passages
        self._of_page: dict[str, list[int]] = {}
        for position, passage in enumerate(passages):
            self._of_page.setdefault(passage.page, []).append(position)

    def find(self, question: JudgedQuestion) -> Answering:
        """Return the passages that answer the question; none if no passage holds a quote even nearly."""
        best: dict[int, None] = {}
        right = set[int]()
        for answer in question.answers:
            places = self._of_page.get(answer.page, [])
            exact = [place for place in places if holds(answer.quote, self._passages[place].text)]
            near = [place for place in places if nearly_holds(answer.quote, self._passages[place].text)]
            best |= dict.fromkeys(exact or near)
            right |= {*exact, *near}
        return Answering(tuple(best), frozenset(right))

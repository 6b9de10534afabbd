"""A user's own questions about a corpus, in all forms that are read, with the passages that answer them."""

import hashlib
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cde_rag.collection.collection import Collection
from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import AnswerFinder, PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.evaluation.beir import JudgedQueries
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion, read_judged_questions
from cde_rag.evaluation.question_folder import Site
from cde_rag.readers import PARENT_KEY
from cde_rag.records import CHUNK, Record, embedded_text, parent_of

UNKNOWN_ID: Final = "a question for an id that the corpus does not have"
UNKNOWN_TEXT: Final = "a question for a text that the corpus does not have"
UNKNOWN_PAGE: Final = "a question for a page that the corpus does not have"
NO_QUOTE: Final = "a quote that its page does not have"
_SHOWN: Final = 60  # characters of a question in messages
_READ: Final = 4 * _SHOWN  # of a question, in which blanks may be many
REPEATED: Final = "a question that stands there twice"
RUN: Final = 64  # neighbouring passages of a page that stay together in a part: their siblings are the same there
_Run: TypeAlias = tuple[str, int]  # page, and place in it


@dataclass(frozen=True)
class OwnCorpus:
    """Records of a corpus, as passages of pages.

    Attributes:
        records: The records.
        passages: The same, in order; the page is the record's parent, or its title, or else its id.
    """

    records: tuple[Record, ...]
    passages: tuple[PagePassage, ...]

    @classmethod
    def of(cls, records: Iterable[Record], *, parent_key: str | None) -> "OwnCorpus":
        """Read records; `parent_key` is the metadata field that names the page.

        Raises:
            CorpusError: There are none.
        """
        kept, passages, sizes = list[Record](), list[PagePassage](), Counter[str]()
        for record in records:
            page = parent_name(record, parent_key)
            kept.append(record)
            passages.append(PagePassage(page, sizes[page], record.title, record.text, embedded_text(record)))
            sizes[page] += 1
        if not kept:
            raise CorpusError("Expected documents with questions about them, found no documents.")
        return cls(tuple(kept), tuple(passages))


class LeftOut(Counter[str]):
    """Numbers of questions without an answer in a corpus, by reason; the first of each is kept for messages."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, str] = {}

    def add(self, reason: str, question: str) -> None:
        """Count a question."""
        self[reason] += 1
        self._first.setdefault(reason, textwrap.shorten(question[:_READ], _SHOWN, placeholder="…"))

    def in_words(self) -> list[str]:
        """Return the number of each reason with the first question, as: 1 × a question that stands there twice: "…"."""
        return [
            f'{count:,} × {reason}{":" if count == 1 else ", such as"} "{self._first[reason]}"'
            for reason, count in self.items()
        ]


class OwnQuestions(NamedTuple):
    """Questions with an answer in the corpus.

    Attributes:
        data: All passages of the corpus, and the questions.
        dropped: Number of the other questions, by reason.
    """

    data: JudgedPassages
    dropped: LeftOut

    @property
    def queries(self) -> JudgedQueries:
        """The questions as queries, with the grades of records by id."""
        questions = self.data.questions
        return JudgedQueries(
            tuple(one.id for one in questions),
            tuple(one.text for one in questions),
            tuple(one.grades for one in questions),
            0,
        )


def read_own_questions(path: Path, corpus: OwnCorpus, *, name: str) -> OwnQuestions:
    """Read questions in any of the forms, and find the passages that answer them.

    Args:
        path: A file or folder.
        corpus: What they are about. A page may be named by the end of its path, if one page has it.
        name: Name of the corpus.

    Raises:
        CorpusError: No such file, a line of none of these forms, or no question with an answer in the corpus.
    """
    return find_answers(read_judged_questions(path), corpus, source=str(path), name=name)


def find_answers(
    questions: Sequence[JudgedQuestion], corpus: OwnCorpus, *, source: str = "The questions", name: str
) -> OwnQuestions:
    """Find the passages that answer questions: of two with one text the first stays.

    Args:
        questions: About the corpus.
        corpus: What they are about. A page may be named by the end of its path, if one page has it.
        source: Where the questions are from, for messages.
        name: Name of the corpus.

    Raises:
        CorpusError: No question has an answer in the corpus.
    """
    matcher, dropped = _Matcher(corpus), LeftOut()
    kept: dict[str, JudgedQuestion] = {}
    places: list[tuple[int, ...]] = []
    for one in questions:
        found, reason = matcher.find(one)
        if not found:
            dropped.add(reason, one.text)
        elif _key(one.text) in kept:
            dropped.add(REPEATED, one.text)
        else:
            kept[_key(one.text)] = one
            places.append(tuple(sorted(found)))
    if not kept:
        why = "; ".join(dropped.in_words()) or "no lines"
        raise CorpusError(
            f"{source}: expected questions with answers in the corpus, found: {why}. Mend the file; an answer may also "
            "be the id of a passage."
        )
    passages, records = corpus.passages, corpus.records
    of_pages = [
        JudgedQuestion(
            f"question {number}",
            one.text,
            one.kind,
            tuple(Answer(passages[place].page, passages[place].text) for place in right),
            {records[place].id: one.grades.get(records[place].id, 1) for place in right},
        )
        for number, (one, right) in enumerate(zip(kept.values(), places, strict=True))
    ]
    answers = [frozenset(passages[place].id for place in right) for right in places]
    return OwnQuestions(JudgedPassages(Site(name), passages, tuple(of_pages), tuple(answers)), dropped)


def known_records(collection: Collection, questions: Sequence[JudgedQuestion]) -> OwnCorpus:
    """Return the records of a collection that can answer: those with the ids, or all if answers are quotes or texts.

    Raises:
        CorpusError: The collection has none of them.
    """
    ids = sorted({id_ for question in questions for id_ in question.grades})
    by_id = all(question.by_id for question in questions)
    records = collection.get(ids) if by_id else collection.scroll()
    if by_id and not records:
        raise CorpusError(
            f"Expected judgments of ids that the collection has, found {ids[0]!r:.80} and {len(ids) - 1} others, none "
            "of them there. cde-rag search --json prints the collection's ids."
        )
    return OwnCorpus.of(records, parent_key=collection.parent_key or PARENT_KEY)


def chosen_records(
    records: Callable[[], Iterable[Record]], questions: Sequence[JudgedQuestion], limit: int, *, parent_key: str | None
) -> Iterator[Record]:
    """Yield a part of a corpus, in its order: records that answer, and others by digest of their page.

    Runs of up to 64 neighbouring passages of a page come together. All records are read twice, and only the names of
    their pages are held.

    Args:
        records: Returns all records, each time in the same order.
        questions: As of `read_judged_questions`.
        limit: Maximum number of records; more come only if the runs with an answer have more.
        parent_key: Metadata field that names the page.
    """
    sizes, kept = Counter[_Run](), set[_Run]()
    for chunk, runs in _in_runs(records(), parent_key):
        sizes.update(runs)
        matcher = _Matcher(OwnCorpus.of(chunk, parent_key=parent_key))
        kept |= {runs[place] for question in questions for place in matcher.find(question)[0]}
    left = limit - sum(sizes[run] for run in kept)
    for run in sorted(sizes.keys() - kept, key=_order):
        if sizes[run] <= left:
            kept.add(run)
            left -= sizes[run]
    for chunk, runs in _in_runs(records(), parent_key):
        yield from (record for record, run in zip(chunk, runs, strict=True) if run in kept)


def _in_runs(records: Iterable[Record], parent_key: str | None) -> Iterator[tuple[list[Record], list[_Run]]]:
    """Yield records in chunks, each with its run."""
    counted, rest = Counter[str](), iter(records)
    while chunk := list(islice(rest, CHUNK)):
        runs: list[_Run] = []
        for page in (parent_name(record, parent_key) for record in chunk):
            runs.append((page, counted[page] // RUN))
            counted[page] += 1
        yield chunk, runs


def _order(run: _Run) -> bytes:
    return hashlib.sha256(f"{run[0]}#{run[1]}".encode()).digest()


def parent_name(record: Record, parent_key: str | None) -> str:
    """Return the name of a record's page: its parent, else its title, else its id."""
    parent = parent_of(record, parent_key)
    return str(parent) if parent is not None else record.title or record.id


class _Matcher:
    """Finder of passages by id, text, or page and quote."""

    def __init__(self, corpus: OwnCorpus) -> None:
        self._by_id = {record.id: place for place, record in enumerate(corpus.records)}
        self._by_text: dict[str, int] = {}
        for place, passage in enumerate(corpus.passages):
            self._by_text.setdefault(_key(passage.text), place)
            self._by_text.setdefault(_key(passage.embedded), place)
        self._finder = AnswerFinder(corpus.passages)
        self._pages: dict[str, list[str]] = {}  # by each end of the path
        for page in dict.fromkeys(passage.page for passage in corpus.passages):
            parts = page.split("/")
            for start in range(len(parts)):
                self._pages.setdefault("/".join(parts[start:]), []).append(page)

    def find(self, question: JudgedQuestion) -> tuple[set[int], str]:
        """Return the places of the passages that answer, and the reason if there are none."""
        answers: list[Answer] = []
        for answer in question.answers:
            pages = self._pages.get(answer.page, [])
            if page := answer.page if answer.page in pages else pages[0] if len(pages) == 1 else "":
                answers.append(Answer(page, answer.quote))
        found = {self._by_id[each] for each in question.grades if each in self._by_id}
        found |= {self._by_text[key] for key in map(_key, question.documents) if key in self._by_text}
        found |= self._finder.find(replace(question, answers=tuple(answers))).all
        if question.answers:
            return found, NO_QUOTE if answers else UNKNOWN_PAGE
        return found, UNKNOWN_TEXT if question.documents else UNKNOWN_ID


def _key(text: str) -> str:
    return " ".join(text.lower().split())

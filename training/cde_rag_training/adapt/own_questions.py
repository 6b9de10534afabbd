"""A user's own questions about a corpus, in all forms that the product writes and reads, with their passages.

- Judged on the page of `cde-rag serve`: the zip of a retrieval set, or lines with `query` and `ids`.
- A folder in the layout of BEIR.
- Lines with `query`, and the `id` of a record or its text in `document`.
- Lines with `question` and `answers`, each with `page` and `quote`, or a folder with them in `questions.jsonl`.
"""

import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import AnswerFinder, PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.evaluation.beir import read_judged_queries
from cde_rag.evaluation.question_folder import (
    QUESTIONS,
    Answer,
    Site,
    UserQuestion,
    existing,
    question_of,
)
from cde_rag.readers import tables
from cde_rag.readers.columns import UnusableError, kind
from cde_rag.records import Record, embedded_text
from cde_rag_training.adapt.sections import parent_name

UNKNOWN_ID: Final = "a question for an id that the corpus does not have"
UNKNOWN_TEXT: Final = "a question for a text that the corpus does not have"
UNKNOWN_PAGE: Final = "a question for a page that the corpus does not have"
NO_QUOTE: Final = "a quote that its page does not have"
REPEATED: Final = "a question that stands there twice"
_SPLIT = "test"
_OF_ZIP: Final = ("queries.jsonl", f"qrels/{_SPLIT}.tsv")  # what is read of it


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


class OwnQuestions(NamedTuple):
    """Questions with an answer in the corpus.

    Attributes:
        data: All passages of the corpus, and the questions.
        dropped: Number of the other questions, by reason.
    """

    data: JudgedPassages
    dropped: Counter[str]


class _Asked(NamedTuple):
    """A question, and the passages that answer it or the reason why none does."""

    text: str
    kind: str
    places: frozenset[int]
    reason: str = ""


def read_own_questions(path: Path, corpus: OwnCorpus, *, name: str) -> OwnQuestions:
    """Read questions in any of the forms, and find the passages that answer them.

    Args:
        path: A file or folder.
        corpus: What they are about. A page may be named by the end of its path, if one page has it.
        name: Name of the corpus.

    Raises:
        CorpusError: No such file, a line of none of these forms, or no question with an answer in the corpus.
    """
    matcher = _Matcher(corpus)
    if path.suffix == ".zip":
        found = list(_of_zip(path, matcher))
    elif path.is_dir() and (questions := existing(path, QUESTIONS)) is not None:
        found = list(_of_lines(questions, matcher))
    elif path.is_dir():
        found = list(_of_retrieval_set(path, matcher))
    else:
        found = list(_of_lines(path, matcher))
    return _collected(found, corpus, source=str(path), name=name)


def find_answers(questions: Sequence[UserQuestion], corpus: OwnCorpus, *, name: str) -> OwnQuestions:
    """Find the passages that hold the quotes of questions.

    Args:
        questions: With pages of the corpus.
        corpus: What they are about.
        name: Name of the corpus.

    Raises:
        CorpusError: No question has an answer in the corpus.
    """
    matcher = _Matcher(corpus)
    return _collected([matcher.by_quote(each) for each in questions], corpus, source="The questions", name=name)


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

    def by_ids(self, query: str, ids: Iterable[str]) -> _Asked:
        places = frozenset(self._by_id[each] for each in ids if each in self._by_id)
        return _Asked(query.strip(), "", places, "" if places else UNKNOWN_ID)

    def by_text(self, query: str, document: str) -> _Asked:
        place = self._by_text.get(_key(document))
        return _Asked(query.strip(), "", frozenset() if place is None else frozenset({place}), UNKNOWN_TEXT)

    def by_quote(self, question: UserQuestion) -> _Asked:
        answers: list[Answer] = []
        for answer in question.answers:
            pages = self._pages.get(answer.page, [])
            if page := answer.page if answer.page in pages else pages[0] if len(pages) == 1 else "":
                answers.append(Answer(page, answer.quote))
        found = self._finder.find(UserQuestion("", question.text, question.kind, tuple(answers)))
        return _Asked(question.text, question.kind, found.all, NO_QUOTE if answers else UNKNOWN_PAGE)


def _of_zip(path: Path, matcher: _Matcher) -> Iterator[_Asked]:
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            for name in _OF_ZIP:
                target = Path(folder, name)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(archive.read(name))
            yield from _of_retrieval_set(Path(folder), matcher)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise CorpusError(
            f"{path}: expected the zip of judged queries that the page of cde-rag serve saves: {error}."
        ) from error


def _of_retrieval_set(folder: Path, matcher: _Matcher) -> Iterator[_Asked]:
    found = read_judged_queries(folder, split=_SPLIT)
    for query, judged in zip(found.queries, found.judgments, strict=True):
        yield matcher.by_ids(query, judged)


def _of_lines(path: Path, matcher: _Matcher) -> Iterator[_Asked]:
    with tables.opened(path) as file:
        for where, parse in tables.jsonl_rows(file, str(path)):
            try:
                yield _of_row(parse(), matcher)
            except UnusableError as error:  # noqa: PERF203 (names the line)
                raise CorpusError(
                    f"{where}: {error}. A line has question and answers (each with page and quote), or query and one "
                    "of ids, id and document. Mend the line, or remove it."
                ) from error


def _of_row(row: Mapping[str, Any], matcher: _Matcher) -> _Asked:
    if "question" in row:
        return matcher.by_quote(question_of(row))
    query, given = row.get("query"), row.get("ids", row.get("id", row.get("_id")))
    if not isinstance(query, str) or not query.strip():
        raise UnusableError(f"expected a question in 'query', found {kind(query)}")
    if given is None:
        if not isinstance(text := row.get("document"), str):
            raise UnusableError(f"expected a string in 'id' or 'document', found {kind(text)}")
        return matcher.by_text(query, text)
    ids = cast("list[object]", given) if isinstance(given, list) else [given]
    if not ids or not all(isinstance(each, str | int) for each in ids):
        raise UnusableError("expected ids that are strings or whole numbers")
    return matcher.by_ids(query, map(str, ids))


def _collected(found: Sequence[_Asked], corpus: OwnCorpus, *, source: str, name: str) -> OwnQuestions:
    """Join the questions that have an answer, and count the others; the first of equal questions stays."""
    dropped = Counter[str]()
    kept: dict[str, _Asked] = {}
    for one in found:
        if not one.places:
            dropped[one.reason] += 1
        elif _key(one.text) in kept:
            dropped[REPEATED] += 1
        else:
            kept[_key(one.text)] = one
    if not kept:
        why = ", ".join(f"{count} × {reason}" for reason, count in dropped.items()) or "no lines"
        raise CorpusError(f"{source}: expected questions with answers in the corpus, found: {why}. Mend the file.")
    passages = corpus.passages
    questions = [
        UserQuestion(
            f"question {number}",
            one.text,
            one.kind,
            tuple(Answer(passages[place].page, passages[place].text) for place in sorted(one.places)),
        )
        for number, one in enumerate(kept.values())
    ]
    answers = [frozenset(passages[place].id for place in one.places) for one in kept.values()]
    return OwnQuestions(JudgedPassages(Site(name), passages, tuple(questions), tuple(answers)), dropped)


def _key(text: str) -> str:
    return " ".join(text.lower().split())

"""Judged questions: questions with their known answers, in one form for evaluation, tuning, adaptation and canaries.

A line of JSONL has `question` and `answers`. An answer is a place in a page (`page`, its path, and `quote`, words of
it, in which white space does not matter), or a record of a collection (`id` and, optionally, `grade`, a whole number
above 0). `id` and `kind` of a question, such as "keyword", are optional. Quotes stay valid if the splitter changes.

Other forms are read, too: lines with `query`, and `ids`, `id` or the text of a record in `document`; a folder in the
layout of BEIR; the zip of one, as the page of `cde-rag serve` saves it.
"""

import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from cde_rag._files import given_path
from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import read_judged_queries
from cde_rag.readers.columns import UnusableError, kind
from cde_rag.readers.tables import Rows, jsonl_rows, opened

QUESTIONS: Final = "questions.jsonl"
_ANSWER: Final = "with page and quote (or with id)"
_Converted = TypeVar("_Converted")


@dataclass(frozen=True, slots=True)
class Answer:
    """A place that answers a question.

    Attributes:
        page: Path of the page.
        quote: Words of it.
    """

    page: str
    quote: str


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A question with its known answers; others may exist that nobody noted.

    Attributes:
        id: Unique in its corpus; empty if the question has none.
        text: The question.
        kind: Such as "plain" or "keyword"; empty if unknown.
        answers: Places in pages.
        grades: Grades of records by id, above 0.
        documents: Texts of records.
    """

    id: str
    text: str
    kind: str
    answers: tuple[Answer, ...] = ()
    grades: Mapping[str, int] = field(default_factory=dict[str, int])
    documents: tuple[str, ...] = ()

    @property
    def by_quote(self) -> bool:
        """True if all answers are places in pages."""
        return not self.grades and not self.documents

    @property
    def by_id(self) -> bool:
        """True if all answers are ids of records."""
        return not self.answers and not self.documents


def read_judged_questions(path: str | Path, *, split: str = "test") -> list[JudgedQuestion]:
    """Read judged questions in any of the forms.

    Args:
        path: A file of lines, plain or as `.gz`, a folder with `questions.jsonl`, or a retrieval set (folder or zip).
        split: Name of a retrieval set's judgments.

    Raises:
        CorpusError: No such file or folder, no question in it, or a line of none of these forms (the message names it).
    """
    path = given_path(path, "A file of judged questions", CorpusError)
    questions = existing(path, QUESTIONS) if path.is_dir() else None
    if path.suffix.lower() == ".zip":
        found = _of_zip(path, split)
    elif path.is_dir() and questions is None:
        found = _of_retrieval_set(path, split)
    else:
        found = [question for _, question in read_lines(questions or path)]
    if not found:
        raise CorpusError(f"{path}: expected questions with answers, found none. Add some.")
    return found


def read_lines(path: Path) -> Iterator[tuple[str, JudgedQuestion]]:
    """Read a file of lines; yields file and line of each question, and the question.

    Raises:
        CorpusError: It cannot be read, or a line is of none of the forms.
    """
    with opened(path) as file:
        yield from checked_rows(jsonl_rows(file, str(path)), question_of)


def checked_rows(rows: Rows, convert: Callable[[Mapping[str, Any]], _Converted]) -> Iterator[tuple[str, _Converted]]:
    """Convert rows; yields file and line of each, and its question.

    Raises:
        CorpusError: A row cannot be parsed or converted.
    """
    for where, parse in rows:
        try:
            converted = convert(parse())
        except UnusableError as error:
            raise CorpusError(f"{where}: {error}. Mend the line, or remove it.") from error
        yield where, converted


def question_of(row: Mapping[str, Any]) -> JudgedQuestion:
    """Return a question from a line's fields; its id is empty if it has none.

    Raises:
        UnusableError: A field is missing, or of another form.
    """
    if "query" in row and "question" not in row:
        return _of_query(row)
    given = row.get("answers")
    if not isinstance(given, list) or not given:
        raise UnusableError(f"expected a list of answers, each {_ANSWER}, in 'answers'")
    answers: list[Answer] = []
    grades: dict[str, int] = {}
    for one in cast("list[object]", given):
        if not isinstance(one, Mapping):
            raise UnusableError(f"expected an object {_ANSWER} for each answer, found {kind(one)}")
        answer = cast("Mapping[str, Any]", one)
        if "id" in answer and "quote" not in answer:
            grades[_identifier(answer["id"])] = _grade(answer.get("grade", 1))
        else:
            answers.append(Answer(string(answer, "page"), string(answer, "quote")))
    return JudgedQuestion(
        string(row, "id", ""), string(row, "question").strip(), string(row, "kind", ""), tuple(answers), grades
    )


def string(row: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a field that is a string, not blank unless a default is given.

    Raises:
        UnusableError: It is missing without a default, or is none.
    """
    value = row.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (default is None and not value.strip()):
        found = "a blank one" if isinstance(value, str) else kind(value) if name in row else "no such field"
        raise UnusableError(f"expected a string in {name!r}, found {found}")
    return value


def existing(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, plain or as `.gz`; None if there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _of_query(row: Mapping[str, Any]) -> JudgedQuestion:
    query, given = string(row, "query").strip(), row.get("ids", row.get("id", row.get("_id")))
    if given is None:
        return JudgedQuestion("", query, "", documents=(string(row, "document"),))
    ids = cast("list[object]", given) if isinstance(given, list) else [given]
    if not ids:
        raise UnusableError("expected the id of a record in 'ids', found an empty list")
    return JudgedQuestion("", query, "", grades=dict.fromkeys(map(_identifier, ids), 1))


def _identifier(value: object) -> str:
    if type(value) not in (str, int) or value == "":
        raise UnusableError(f"expected ids that are strings or whole numbers, found {value!r:.80}")
    return str(value)


def _grade(value: object) -> int:
    if type(value) is not int or value < 1:
        raise UnusableError(f"expected a whole number above 0 in 'grade', found {value!r:.80}")
    return value


def _of_zip(path: Path, split: str) -> list[JudgedQuestion]:
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            for name in ("queries.jsonl", f"qrels/{split}.tsv"):
                target = Path(folder, name)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(archive.read(name))
            return _of_retrieval_set(Path(folder), split)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise CorpusError(
            f"{path}: expected the zip of judged queries that the page of cde-rag serve saves: {error}."
        ) from error


def _of_retrieval_set(folder: Path, split: str) -> list[JudgedQuestion]:
    found = read_judged_queries(folder, split=split)
    rows = zip(found.ids, found.queries, found.judgments, strict=True)
    return [JudgedQuestion(id_, query.strip(), "", grades=judged) for id_, query, judged in rows]

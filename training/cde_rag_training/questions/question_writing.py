"""Questions about a corpus, written by a language model: one section at a time, and each answer checked by script.

What the model is told is in `prompts/`. Shares of kinds, people, and checks are those of the project's own questions
(lab/pages/user-questions.md). All numbers ours.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from cde_rag.errors import CDEError, counted, require
from cde_rag.evaluation.answer_passages import PagePassage, holds
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion

Ask: TypeAlias = Callable[[list[dict[str, str]]], AsyncGenerator[str, None]]
"""Messages to the pieces of a complete answer, as of `remote_answers`."""

KINDS: Final = {"plain": 0.4, "named": 0.25, "paraphrase": 0.25, "keyword": 0.1}  # and their shares
PEOPLE: Final = (
    "a beginner",
    "an expert in a hurry",
    "an annoyed colleague",
    "a manager who needs a yes or no",
    "a student",
    "a non-native speaker, with small mistakes",
    "somebody terse",
    "somebody long-winded, in two sentences",
    "somebody who tells the symptom, not the cause",
    "somebody who compares two ways",
    "somebody new who took over from a colleague",
    "somebody to whom a mishap has just happened",
)
QUESTION_WORDS: Final = (2, 40)
QUOTE_WORDS: Final = (4, 45)
TRIES: Final = 6  # of one section, where the address is busy or fails
LONGEST_WAIT_S: Final = 120.0
USELESS: Final = 8  # sections in a row without a usable question, after which nothing is to be expected
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_STOP = frozenset(
    "and are can does for from how into its not our that the this use using via what when where which why with you your"
    " have has was will".split()
)


class WritingError(CDEError):
    """Failure of the language model: unreachable, or useless answers; the questions written so far are kept."""


@dataclass(frozen=True, kw_only=True)
class WritingConfig:
    """Configuration of the writing: number of questions, and sections."""

    questions: int = 300
    of_section: int = 3  # more would be of one mould
    characters: int = 2_000  # of a section: some passages in a row
    seed: int = 0  # of the order of sections, and of kinds and people

    def __post_init__(self) -> None:
        if min(self.questions, self.of_section, self.characters) < 1:
            raise ValueError(f"Expected numbers of at least 1, found {self}.")


class AskedSection(NamedTuple):
    """Passages of a page, in a row.

    Attributes:
        page: Path of the page.
        title: The page's.
        text: The passages' texts.
    """

    page: str
    title: str
    text: str

    @property
    def key(self) -> str:
        """Digest that names the section in the journal."""
        return hashlib.sha256("\0".join(self).encode()).hexdigest()[:32]


class Written(NamedTuple):
    """Questions written so far.

    Attributes:
        questions: Those that passed the checks.
        refused: Number of the others, by reason.
        sections: Sections that were asked about.
    """

    questions: list[JudgedQuestion]
    refused: Counter[str]
    sections: int


def page_sections(passages: Sequence[PagePassage], config: WritingConfig) -> list[AskedSection]:
    """Join passages to sections, in an order that takes one of each page, then a second of each, and so on.

    Args:
        passages: Those of a page in a row.
        config: Size of a section; the seed orders pages, and the sections of a page: openings come no sooner than ends.
    """
    pages: dict[str, list[list[PagePassage]]] = {}
    for passage in passages:
        rows = pages.setdefault(passage.page, [[]])
        if rows[-1] and sum(len(each.text) for each in (*rows[-1], passage)) > config.characters:
            rows.append([])
        rows[-1].append(passage)

    def order(name: str) -> bytes:
        return hashlib.sha256(f"{config.seed}:{name}".encode()).digest()

    rounds: list[list[AskedSection]] = []
    for page in sorted(pages, key=order):
        found = [AskedSection(page, row[0].title, "\n\n".join(each.text for each in row)) for row in pages[page]]
        for number, section in enumerate(sorted(found, key=lambda each: order(each.key))):
            rounds += [[]] if number == len(rounds) else []
            rounds[number].append(section)
    return [section for row in rounds for section in row]


def prompt_of(section: AskedSection, number: int, config: WritingConfig) -> list[dict[str, str]]:
    """Return the messages that request questions about a section.

    Args:
        section: The section.
        number: Its place, by which kinds and people are drawn.
        config: Number of questions, and seed.
    """
    random = np.random.default_rng([config.seed, number])
    kinds = random.choice(list(KINDS), size=config.of_section, p=list(KINDS.values()))
    people = [int(random.integers(len(PEOPLE))) for _ in kinds]
    wanted = [
        f"{place}. {kind}, by {PEOPLE[who]}" for place, (kind, who) in enumerate(zip(kinds, people, strict=True), 1)
    ]
    filled = Template(_prompt("section.md")).substitute(
        page=section.page, title=section.title, text=section.text, count=len(wanted), wanted="\n".join(wanted)
    )
    return [{"role": "system", "content": _prompt("system.md")}, {"role": "user", "content": filled}]


def checked(answer: str, section: AskedSection, known: set[str]) -> tuple[list[JudgedQuestion], Counter[str]]:
    """Return the usable questions of a model's answer, and the number of the others by reason.

    Args:
        answer: A JSON list of objects with question, kind and quote, perhaps with words around it.
        section: What they are about.
        known: Questions that were written before, in lower case; those of the answer are added.
    """
    rows = _rows_of(answer)
    if rows is None:
        return [], Counter({"an answer that is no JSON list": 1})
    found: list[JudgedQuestion] = []
    refused = Counter[str]()
    for row in rows:
        question, reason = _checked(row, section, known)
        if question is None:
            refused[reason] += 1
        else:
            known.add(question.text.lower())
            found.append(question)
    return found, refused


def write_questions(
    ask: Ask,
    sections: Sequence[AskedSection],
    journal: Path,
    config: WritingConfig,
    *,
    on_progress: Callable[[Written], None] = lambda _: None,
    wait_s: float = 2.0,
) -> Written:
    """Let a language model write questions, section by section.

    Each section's questions are in the journal before the next section is asked about. A call that was stopped
    resumes after the last one when it is repeated with the same sections and seed.

    Args:
        ask: Returns the pieces of a complete answer to some messages; see `remote_answers`.
        sections: As ordered by `page_sections`; the first that suffice are asked about.
        journal: JSON lines; created if missing, appended to otherwise.
        config: How many.
        on_progress: Called after each section, and once before the first.
        wait_s: Seconds before a section is asked about again, doubled each time, if the address gives none.

    Raises:
        WritingError: The address fails or stays busy, or answers of no use come in a row.
    """
    return asyncio.run(_write(ask, sections, journal, config, on_progress=on_progress, wait_s=wait_s))


async def _write(
    ask: Ask,
    sections: Sequence[AskedSection],
    journal: Path,
    config: WritingConfig,
    *,
    on_progress: Callable[[Written], None],
    wait_s: float,
) -> Written:
    rows = read_journal(journal)
    written, known, useless = Written([], Counter(), 0), set[str](), 0
    with journal.open("a", encoding="utf-8") as file:
        on_progress(_joined(written, rows, sections))
        for number, section in enumerate(sections):
            if len(written.questions) >= config.questions:
                break
            row = rows.get(section.key)
            if row is None:
                answer = await _answer(ask, prompt_of(section, number, config), len(written.questions), wait_s)
                found, refused = checked(answer, section, set(known))
                row = {"section": section.key, "questions": [as_row(each) for each in found], "refused": refused}
                file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
                file.flush()
            written = _joined(written, {section.key: row}, [section])
            known |= {each.text.lower() for each in written.questions}
            on_progress(written)
            useless = 0 if row["questions"] else useless + 1
            if useless == USELESS:
                reasons = ", ".join(f"{count} × {reason}" for reason, count in written.refused.most_common(3))
                raise WritingError(
                    f"The last {USELESS} answers had no usable question ({reasons}). Name a larger model by "
                    "--llm-model, in another folder."
                )
    return written._replace(questions=written.questions[: config.questions])


def read_journal(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read the journal, by section; a last line that was cut by a kill is removed from the file.

    Raises:
        WritingError: A line in front of the last one is damaged.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    try:
        rows = [json.loads(line) for line in whole.decode().splitlines()]
        return {row["section"]: row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise WritingError(f"{path} is damaged ({error}). Delete it; its questions are written again.") from error


def as_row(question: JudgedQuestion) -> dict[str, Any]:
    """Return a question as a line of `questions.jsonl`."""
    answers = [{"page": each.page, "quote": each.quote} for each in question.answers]
    return {"question": question.text, "kind": question.kind, "answers": answers}


def remote_answers(url: str, model: str | None, api_key: str | None) -> Ask:
    """Return a client of the language model at an OpenAI-compatible address.

    Raises:
        CDEError: The address is none of HTTP.
        MissingExtraError: The extra `serve` is not installed.
    """
    require("fastapi", "serve")
    from cde_rag.server.language_model import RemoteModel, Sampling, complete

    remote = RemoteModel(url, model=model, api_key=api_key)

    async def ask(messages: list[dict[str, str]]) -> AsyncGenerator[str, None]:
        async with aclosing(complete(remote.stream(messages, Sampling()))) as deltas:
            async for delta in deltas:
                yield delta.text

    return ask


async def _answer(
    ask: Ask,
    messages: list[dict[str, str]],
    kept: int,
    wait_s: float,
) -> str:
    """Return an answer; repeat the request if the address is busy or fails for a moment."""
    for attempt in range(TRIES):
        try:
            async with aclosing(ask(messages)) as pieces:
                return "".join([piece async for piece in pieces])
        except CDEError as error:  # noqa: PERF203 (each attempt has one)
            if attempt == TRIES - 1 or not _passes(error):
                raise WritingError(
                    f"{error} Kept: {counted(kept, 'question')}. Run the same command again to continue."
                ) from error
            await asyncio.sleep(_wait(error, wait_s * 2**attempt))
    raise AssertionError("the last attempt returns or raises")


def _passes(error: CDEError) -> bool:
    """Return True for a failure that may pass: a rate limit, a fault of the server, a connection; not a wrong key."""
    status = getattr(error.__cause__, "status_code", None)
    return getattr(error, "status", None) == 429 or status is None or status >= 500


def _wait(error: CDEError, otherwise: float) -> float:
    """Return the seconds of the header Retry-After, else the given ones."""
    named = cast("Mapping[str, str]", getattr(error, "headers", {})).get("Retry-After", "")
    return min(float(named) if named.isdecimal() else otherwise, LONGEST_WAIT_S)


def _joined(written: Written, rows: Mapping[str, Mapping[str, Any]], sections: Sequence[AskedSection]) -> Written:
    """Return the questions with those of further sections."""
    questions, refused, count = list(written.questions), Counter(written.refused), written.sections
    for section in sections:
        if section.key in rows:
            row = rows[section.key]
            questions += [
                JudgedQuestion("", each["question"], each["kind"], tuple(Answer(**one) for one in each["answers"]))
                for each in row["questions"]
            ]
            refused.update(row["refused"])
            count += 1
    return Written(questions, refused, count)


def _rows_of(answer: str) -> list[object] | None:
    """Return the JSON list in an answer, in a code block or among words; None if there is none."""
    text = _THOUGHT.sub("", answer)
    for start in re.finditer(r"\[\s*(?=\{)", text):  # only of objects: a thousand brackets would be tried one by one
        try:
            found = json.JSONDecoder().raw_decode(text, start.start())[0]
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list) and found and all(isinstance(each, dict) for each in cast("list[object]", found)):
            return cast("list[object]", found)
    return None


def _checked(row: object, section: AskedSection, known: set[str]) -> tuple[JudgedQuestion | None, str]:
    """Return a question, or the reason why it is refused."""
    fields = cast("Mapping[str, object]", row)
    given = [fields.get(name) for name in ("question", "kind", "quote")]
    if not all(isinstance(each, str) for each in given):
        return None, "one without question, kind or quote"
    text, kind, quote = (" ".join(str(each).split()) for each in given)
    reasons: Iterator[str] = (reason for reason, wrong in _faults(text, kind, quote, section, known) if wrong())
    reason = next(reasons, "")
    return (None, reason) if reason else (JudgedQuestion("", text, kind, (Answer(section.page, quote),)), "")


def _faults(
    text: str, kind: str, quote: str, section: AskedSection, known: set[str]
) -> list[tuple[str, Callable[[], bool]]]:
    return [
        ("of an unknown kind", lambda: kind not in KINDS),
        ("not of 2 to 40 words", lambda: not QUESTION_WORDS[0] <= len(text.split()) <= QUESTION_WORDS[1]),
        ("asked before", lambda: text.lower() in known),
        ("a quote not of 4 to 45 words", lambda: not QUOTE_WORDS[0] <= len(quote.split()) <= QUOTE_WORDS[1]),
        ("a quote that is not in the page", lambda: not holds(quote, section.text)),
        ("gives the heading away", lambda: kind in ("plain", "paraphrase") and _gives_away(text, quote, section)),
    ]


def _gives_away(text: str, quote: str, section: AskedSection) -> bool:
    """Return True if more than half of the words of the heading above the quote stand in the question."""
    flat = " ".join(section.text.split())
    place = flat.find(quote)
    headings = [
        each[1] for each in _HEADING.finditer(section.text) if flat.find(" ".join(each[0].split())) <= max(place, 0)
    ]
    heading = _words(headings[-1] if headings else section.title)
    return len(heading) >= 2 and len(heading & _words(text)) > len(heading) / 2


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 2 and word not in _STOP}


def _prompt(name: str) -> str:
    return (files("cde_rag_training.questions") / "prompts" / name).read_text(encoding="utf-8")

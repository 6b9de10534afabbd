"""Training pairs of questions and the passages that answer them, with a report, in files that `PairReader` reads."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cde_rag._files import write_durably
from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_passages import MAX_CHARACTERS, AnswerFinder, PagePassage, page_passages
from cde_rag.evaluation.judged_questions import QUESTIONS, existing
from cde_rag.evaluation.question_folder import PAGES, TRAIN, QuestionCorpus, read_corpora
from cde_rag_training.clustering.near_duplicates import DuplicateConfig
from cde_rag_training.clustering.surrogate import Surrogate
from cde_rag_training.data.duplicates import Deduplicated, EvaluationTexts, read_evaluation, without_near_duplicates
from cde_rag_training.data.pairs import Pair

PASSAGES = "passages.jsonl.gz"
REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """A question and a passage that answers it; a line of a file of pairs.

    Attributes:
        query: The question.
        document: The passage, without its title.
        title: Title of its page.
        source: Form of the corpus; batches never mix sources.
        domain: Name of the corpus.
        parent: Path of the page.
        id: The question's.
        kind: The question's.
        passage: Page and place of the passage, as in the file of passages.
        further: False for the first passage that answers the question, True for others.
    """

    query: str
    document: str
    title: str
    source: str
    domain: str
    parent: str
    id: str
    kind: str
    passage: str
    further: bool

    @property
    def pair(self) -> Pair:
        """The pair as training sees it, without hard negatives."""
        return Pair(self.query, self.document, self.source, self.domain, self.parent)


class Count(NamedTuple):
    """Questions of a corpus or kind, and those with a passage that answers them."""

    questions: int
    found: int


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """Result of looking for the answers of one corpus.

    Attributes:
        corpus: Its name.
        split: Its split.
        form: Its form.
        pages: Number of pages.
        passages: Number of passages.
        kinds: Questions, and those with an answering passage, by kind.
        pairs: Pairs of a question and a passage.
        not_found: Ids of the questions of which no passage holds a quote, even nearly.
    """

    corpus: str
    split: str
    form: str
    pages: int
    passages: int
    kinds: Mapping[str, Count]
    pairs: int
    not_found: tuple[str, ...]

    @property
    def count(self) -> Count:
        """All questions, and those with an answering passage."""
        return summed(self.kinds.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        kinds = {kind: count._asdict() for kind, count in self.kinds.items()}
        return asdict(self) | self.count._asdict() | {"kinds": kinds}


class BuiltPairs(NamedTuple):
    """Pairs of one corpus, its passages, all its questions, and the report."""

    pairs: list[QuestionPair]
    passages: list[PagePassage]
    queries: list[str]
    report: CorpusReport


def summed(counts: Iterable[Count]) -> Count:
    """Add counts up."""
    listed = list(counts)
    return Count(sum(one.questions for one in listed), sum(one.found for one in listed))


def build_pairs(corpus: QuestionCorpus, *, max_characters: int = MAX_CHARACTERS) -> BuiltPairs:
    """Cut a corpus into passages, and pair each question with the passages that answer it.

    Args:
        corpus: Pages and questions.
        max_characters: Maximum length of a passage.

    Raises:
        CorpusError: A page that cannot be read.
    """
    passages = page_passages(corpus.pages, max_characters=max_characters)
    finder = AnswerFinder(passages)
    pairs: list[QuestionPair] = []
    asked, found = Counter[str](), Counter[str]()
    not_found: list[str] = []
    for question in corpus.questions:
        places = finder.find(question).best
        asked[question.kind] += 1
        found[question.kind] += bool(places)
        not_found += [] if places else [question.id]
        for rank, place in enumerate(places):
            passage = passages[place]
            pairs.append(
                QuestionPair(
                    query=question.text,
                    document=passage.text,
                    title=passage.title,
                    source=corpus.site.form,
                    domain=corpus.site.name,
                    parent=passage.page,
                    id=question.id,
                    kind=question.kind,
                    passage=passage.id,
                    further=rank > 0,
                )
            )
    report = CorpusReport(
        corpus=corpus.site.name,
        split=corpus.site.split,
        form=corpus.site.form,
        pages=len(corpus.pages),
        passages=len(passages),
        kinds={kind: Count(count, found[kind]) for kind, count in sorted(asked.items())},
        pairs=len(pairs),
        not_found=tuple(not_found),
    )
    return BuiltPairs(pairs, passages, [question.text for question in corpus.questions], report)


@dataclass(frozen=True, slots=True)
class PairsReport:
    """Report on all corpora.

    Attributes:
        corpora: Report on each.
        files: Number of pairs by file.
        removed: Pairs for training that were removed as near-duplicates, by the set or source with the same text.
        passed_over: Folders among the evaluation sets that hold none.
    """

    corpora: tuple[CorpusReport, ...]
    files: Mapping[str, int]
    removed: Mapping[str, int]
    passed_over: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        kinds = {kind: count._asdict() for kind, count in self.kinds.items()}
        corpora = [one.to_json() for one in self.corpora]
        total = summed(one.count for one in self.corpora)._asdict()
        return total | asdict(self) | {"kinds": kinds, "corpora": corpora}

    @property
    def kinds(self) -> dict[str, Count]:
        """Questions, and those with an answering passage, by kind over all corpora."""
        names = sorted({kind for one in self.corpora for kind in one.kinds})
        return {kind: summed(one.kinds[kind] for one in self.corpora if kind in one.kinds) for kind in names}


def write_pairs(
    corpora: Iterable[QuestionCorpus],
    output: Path,
    *,
    max_characters: int = MAX_CHARACTERS,
    surrogate: Surrogate | None = None,
    against: Sequence[Path] = (),
) -> PairsReport:
    """Write `SPLIT.jsonl.gz` for each split, `passages.jsonl.gz` with all passages, and `report.json`.

    With a surrogate, pairs for training that are near-duplicates of the evaluation sets, of corpora of another split or
    of each other are removed (`without_near_duplicates`).

    Args:
        corpora: At least one, each of another name.
        output: The folder; created if missing. Equal input gives equal bytes.
        max_characters: Maximum length of a passage.
        surrogate: Texts to vectors, for near-duplicates; None: none are removed.
        against: Evaluation sets, as `read_evaluation` reads them, folders with questions, or folders of such folders.

    Raises:
        CorpusError: There is no corpus, a file cannot be read, or sets are given without a surrogate.
        MissingExtraError: faiss or datasketch is not installed.
    """
    if against and surrogate is None:
        raise CorpusError("Evaluation sets need a surrogate to be compared by. Give one, or leave the sets out.")
    built = [build_pairs(corpus, max_characters=max_characters) for corpus in corpora]
    if not built:
        raise CorpusError("No corpora to build pairs of. Give at least one.")
    splits: dict[str, list[QuestionPair]] = {}
    for one in built:
        if one.report.split == PASSAGES.split(".")[0]:
            raise CorpusError(
                f"{one.report.corpus}: the split {one.report.split!r} would overwrite {PASSAGES}. Rename it."
            )
        splits.setdefault(one.report.split, []).extend(one.pairs)
    removed, passed_over = Counter[str](), list[str]()
    if surrogate is not None and TRAIN in splits:
        sets = [_texts_of_corpus(one) for one in built if one.report.split != TRAIN]
        for path in against:
            found, others = evaluation_sets(path, max_characters=max_characters)
            sets += found
            passed_over += others
        splits[TRAIN], done = without_overlaps(splits[TRAIN], surrogate, sets)
        removed.update(removal.where for removal in done.removals)
    output.mkdir(parents=True, exist_ok=True)
    files = {f"{split}.jsonl.gz": [asdict(pair) for pair in pairs] for split, pairs in sorted(splits.items()) if pairs}
    for name, rows in files.items():
        write_lines(output / name, rows)
    write_lines(
        output / PASSAGES,
        (_line(one.report.corpus, passage) for one in built for passage in one.passages),
    )
    report = PairsReport(
        corpora=tuple(one.report for one in built),
        files={name: len(rows) for name, rows in files.items()},
        removed=dict(removed.most_common()),
        passed_over=tuple(passed_over),
    )
    write_durably(output / REPORT, json.dumps(report.to_json(), indent=1, ensure_ascii=False).encode())
    return report


def without_overlaps(
    pairs: Sequence[QuestionPair], surrogate: Surrogate, sets: Sequence[EvaluationTexts]
) -> tuple[list[QuestionPair], Deduplicated]:
    """Remove near-duplicates of evaluation sets and among the pairs themselves.

    Args:
        pairs: The first of several stays.
        surrogate: Texts to vectors.
        sets: Evaluation sets.
    """
    plain = [one.pair for one in pairs]
    done = without_near_duplicates(plain, DuplicateConfig(), surrogate=surrogate, against=sets)
    kept = {id(pair) for pair in done.pairs}
    return [one for one, pair in zip(pairs, plain, strict=True) if id(pair) in kept], done


def evaluation_sets(path: Path, *, max_characters: int = MAX_CHARACTERS) -> tuple[list[EvaluationTexts], list[str]]:
    """Read the texts of an evaluation set, or of all sets in a folder.

    Args:
        path: As `write_pairs` takes it.
        max_characters: Maximum length of a passage of pages with questions.

    Returns:
        The sets, and the folders among them that are none.

    Raises:
        CorpusError: There is no set.
    """
    if path.is_file() or _is_beir(path):
        return [read_evaluation(path)], []
    if _has_questions(path):
        return [_texts_of_corpus(build_pairs(one, max_characters=max_characters)) for one in read_corpora(path)], []
    inside = sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
    known = [each for each in inside if _is_beir(each) or _has_questions(each)]
    if not known:
        raise CorpusError(
            f"{path}: expected an evaluation set or a folder of some, in BEIR's layout or with {QUESTIONS}, or a file "
            "of pairs, found none. Check its name: pairs would be compared with nothing."
        )
    sets = [one for each in known for one in evaluation_sets(each, max_characters=max_characters)[0]]
    return sets, [each.name for each in inside if each not in known]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines as gzip, atomically; equal rows give equal bytes."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    write_durably(path, gzip.compress(text.encode(), mtime=0))


def _line(corpus: str, passage: PagePassage) -> dict[str, str]:
    return {
        "corpus": corpus,
        "id": passage.id,
        "page": passage.page,
        "title": passage.title,
        "text": passage.text,
        "embedded": passage.embedded,
    }


def _texts_of_corpus(built: BuiltPairs) -> EvaluationTexts:
    return EvaluationTexts(built.report.corpus, [passage.text for passage in built.passages], built.queries)


def _is_beir(folder: Path) -> bool:
    return any(existing(folder, name) for name in ("corpus.jsonl", "queries.jsonl"))


def _has_questions(folder: Path) -> bool:
    has_pages = existing(folder, PAGES) is not None or (folder / "pages").is_dir()
    return existing(folder, QUESTIONS) is not None and has_pages

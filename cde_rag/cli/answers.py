"""Evaluation of the command index, and of collections, on judged questions; a part of the command evaluate."""

import contextlib
import hashlib
import io
import json
import re
import shlex
import tempfile
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

import typer

from cde_rag._files import write_durably
from cde_rag.cli.collections import at, existing, open_collection
from cde_rag.cli.commands import command_line
from cde_rag.cli.output import print_json, printable, progress_bar, shown_place, updating
from cde_rag.errors import CDEError, ContextMismatchError, CorpusError, ModelError

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.evaluation import Evaluation
    from cde_rag.evaluation.answer_evaluation import AnswerEvaluation
    from cde_rag.evaluation.answer_systems import JudgedIndex
    from cde_rag.evaluation.judged_questions import JudgedQuestion
    from cde_rag.evaluation.question_folder import Site
    from cde_rag.evaluation.system_comparison import SystemComparison
    from cde_rag.stores.store import Store

DEFAULT: Final = "default"  # options of an index that has none
INDEXES: Final = (DEFAULT, "--alone", "--headers section")  # with siblings, without them, and with headings
_COUNTS: Final = re.compile(r"\d[\d,]* of \d[\d,]*")  # in warnings that differ in nothing else
MOST_PASSAGES: Final = 50_000  # of a collection that other models embed without --passages: up to an hour on a CPU


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options of an evaluation on judged questions.

    Attributes:
        systems: Systems to run.
        indexes: Options of `cde-rag index` for each index; `DEFAULT` for none.
        models: Further models, each of which makes all the indexes, too; or embeds the passages of a collection.
        split: Keep corpora of this split only; None for all.
        work: Folder for the indexes; None for a temporary one.
        shown: Whether progress is shown; None where there is a terminal.
        as_json: Print JSON.
        plot: File for a plot; None for none.
        further: Options that all indexes have.
        passages: Maximum number of passages of a collection; None for all.
    """

    systems: Sequence[str]
    indexes: Sequence[str]
    models: Sequence[str]
    split: str | None
    work: Path | None
    shown: bool | None
    as_json: bool
    plot: Path | None
    further: Sequence[str] = ()
    passages: int | None = None


def has_questions(folder: Path) -> bool:
    """Return True for a folder with judged questions about its pages, or with such folders."""
    from cde_rag.evaluation.judged_questions import QUESTIONS, existing

    return folder.is_dir() and any(existing(each, QUESTIONS) for each in (folder, *folder.iterdir()))


def is_collection(place: str) -> bool:
    """Return True for the address of a collection, or a folder that holds one."""
    return "://" in place or (Path(place).is_dir() and at(place).exists())


def evaluate_folders(folders: Sequence[Path], options: AnswerOptions) -> None:
    """Index the pages of each corpus as the command index does, evaluate, and print the result.

    Of several corpora one that cannot be read or indexed is left out, with a line that says why.

    Raises:
        CDEError: No corpus can be read and indexed; the error is that of the first.
        CorpusError: A folder without corpora, or of an invalid form.
    """
    from cde_rag.embedders.contextual import as_model

    # A wrong name is found before anything is embedded. Models are shared while they are held: each is loaded once.
    _held = [as_model(name) for name in (_first_model(options.further), *options.models)]
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cde-rag-")))
        corpora = list(corpora_of(folders, options.split))
        first = " ".join(filter(None, (shlex.join(options.further), _words_of(options)[0])))
        _print_evaluated(_indexes(corpora, work, options), work, options, index_command(folders[0] / "pages"), first)


def evaluate_collection(place: str, judged: Path, options: AnswerOptions, *, tenant: str | None) -> None:
    """Evaluate a collection on judged questions about it, and print the result.

    A model of the options that did not make the collection embeds the same passages, in a folder of its own.

    Raises:
        CorpusError: The file is of another form, or has no question with an answer in the collection; or other models
            would embed many passages, and no number is given.
        ModelError: There is no model of one of the names.
        StoreError: There is no collection.
    """
    from cde_rag.embedders.contextual import as_model
    from cde_rag.evaluation.answer_systems import JudgedIndex
    from cde_rag.evaluation.judged_questions import read_judged_questions

    questions = read_judged_questions(judged, split=options.split or "test")
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cde-rag-")))
        opened, others = _by_its_model(existing(place, tenant), options.models)
        stack.enter_context(opened)
        if others and options.passages is None and opened.count() > MOST_PASSAGES:
            raise CorpusError(
                f"{shown_place(place)}: expected at most {MOST_PASSAGES:,} passages to embed by other models, found "
                f"{opened.count():,}. Compare on a part with all answers, such as --passages 20000, or give the number."
            )
        models = {name: as_model(name) for name in others}  # a wrong name is found before anything is embedded
        name = tenant or PurePosixPath(place).stem
        if options.passages is not None and options.passages < opened.count():
            opened = stack.enter_context(_part(opened, questions, options.passages, work / name, options.shown))
        first = JudgedIndex.of_questions(opened, questions, source=str(judged), name=name)
        indexes, moved = [first], dict[str, str]()
        for model, loaded in models.items():
            words = f"--model {shlex.quote(model)}"
            with progress_bar(f"embed by {model}", "passages", shown=options.shown) as update:
                index = first.by_model(loaded, work / name, name=words, on_progress=updating(update))
            stack.enter_context(index.collection)
            indexes.append(index)
            moved[words] = _move_command(place, tenant, model, opened, index.collection)
        _print_evaluated([indexes], work, options, f"{shown_place(place)} as it is", moved=moved)


def _by_its_model(store: "Store", models: Sequence[str]) -> "tuple[Collection, list[str]]":
    """Open a collection by one of the models, if it made that, or by its stored name; return the other models, too."""
    from cde_rag import Collection

    for model in models:
        with contextlib.suppress(ContextMismatchError, ModelError):  # another model; of a wrong name loading it says so
            return Collection.open(store, model=model), [name for name in models if name != model]
    return open_collection(store, None), list(models)


def _part(
    collection: "Collection",
    questions: "Sequence[JudgedQuestion]",
    limit: int,
    folder: Path,
    shown: bool | None,
) -> "Collection":
    """Copy the part of a collection that is compared, and print its size."""
    from cde_rag.evaluation.answer_systems import copied_part

    with progress_bar("embed a part", "passages", shown=shown) as update:
        part = copied_part(collection, questions, limit, folder, on_progress=updating(update))
    counted = f"{part.count():,} of {collection.count():,} passages, with all that answer"
    typer.echo(f"{folder.name}: compared on {counted}. Among more passages answers are harder to find.", err=True)
    return part


def _move_command(place: str, tenant: str | None, model: str, own: "Collection", other: "Collection") -> str:
    """Return the command that gives a collection another model, or makes one if its vectors or parents do not fit."""
    of_tenant = "" if tenant is None else f" --tenant {shlex.quote(tenant)}"
    if (own.embedder.dim, own.parent_key) == (other.embedder.dim, other.parent_key):
        return f"cde-rag recontextualize {shown_place(place)} --to-model {shlex.quote(model)}{of_tenant}"
    return f"cde-rag index SOURCE NEW.faiss --model {shlex.quote(model)}{of_tenant}"


def print_found(found: "AnswerEvaluation | Evaluation", *, plot: Path | None, as_json: bool) -> bool:
    """Print an evaluation, after its plot is written; returns True if it was printed as JSON."""
    if plot is not None:
        from cde_rag.evaluation.interval_plot import interval_plot

        write_durably(plot, interval_plot(found.comparison).encode())
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))
    return as_json


def index_command(source: Path) -> str:
    """Return the command that indexes documents; the collection has the name of the folder (above `pages/`)."""
    place = source.resolve()
    inside = place.name.partition(".")[0] in {"pages", "corpus"}
    return f"cde-rag index {source} {(place.parent if inside else place).name}.faiss"


def print_way(
    found: "SystemComparison",
    made: str,
    first: str,
    of_kind: Mapping[str, str] = MappingProxyType({}),
    moved: Mapping[str, str] = MappingProxyType({}),
    plain: Sequence[str] = (),
) -> None:
    """Print the command or class that makes the system to take; nothing where there are too few questions.

    Args:
        found: The comparison.
        made: Command that makes an index, as of `index_command`; or the collection that is there.
        first: Options of the systems whose names have none.
        of_kind: Options by the first word of a system's name, such as "own".
        moved: Commands by the options of further indexes of a collection.
        plain: Options of the systems of plain models, whose siblings have no weight in a command's index.
    """
    from cde_rag.evaluation.parents import SIBLINGS_SHARE

    if not found.advice or not found.is_enough:
        return
    system, _, options = found.taken.partition(" ")
    kind = system.partition("_")[0]
    in_python = {
        "null": "Context.null(model) or PlainEmbedder(model)",
        "minilm": "PlainEmbedder, searched by vectors",
        "hybrid": "PlainEmbedder",
    }
    if kind in in_python:
        typer.echo(f"{found.taken}: in Python, a collection with {in_python[kind]}")
        return
    if kind == "parents" and options in plain:
        typer.echo(
            f"{found.taken}: in Python, a collection with ArithmeticEmbedder, weight={SIBLINGS_SHARE}, and a parent_key"
        )
        return
    by = {"bm25": "bm25", "index": ""}.get(system, "" if system.endswith("_hybrid") else "vectors")
    words = moved.get(options) or " ".join(filter(None, (made, of_kind.get(kind), options or first)))
    typer.echo(f"{found.taken}: {words}{f', searched --by {by}' if by else ''}")


def _print_evaluated(
    corpora: "Sequence[Sequence[JudgedIndex]] | Iterator[Sequence[JudgedIndex]]",
    work: Path | None,
    options: AnswerOptions,
    made: str,
    first: str = "",
    moved: Mapping[str, str] = MappingProxyType({}),
) -> None:
    from cde_rag.evaluation.answer_evaluation import evaluate_answers

    with progress_bar("evaluate", "systems", shown=options.shown) as update:
        found = evaluate_answers(corpora, systems=options.systems, folder=work, on_progress=updating(update))
    if print_found(found, plot=options.plot, as_json=options.as_json):
        return
    if left := [name for name in options.systems if name not in found.systems]:
        typer.echo(f"Not run, since the model has no null context: {', '.join(left)}.", err=True)
    print_way(found.comparison, made, first, moved=moved)


def corpora_of(folders: Sequence[Path], split: str | None) -> "Iterator[tuple[Path, Site]]":
    """Yield the folder and the facts of each corpus; of a folder with several, those of the split."""
    from cde_rag.evaluation.judged_questions import QUESTIONS
    from cde_rag.evaluation.judged_questions import existing as existing_file
    from cde_rag.evaluation.question_folder import SITES, read_sites

    for folder in folders:
        sites = read_sites(folder).values()
        kept = [site for site in sites if split in (None, site.split) or not (folder / SITES).is_file()]
        if not kept:
            there = ", ".join(sorted({site.split for site in sites}))
            raise CorpusError(f"{folder}: expected corpora of the split {split!r}, found the splits {there}.")
        for site in kept:
            yield (folder if existing_file(folder, QUESTIONS) else folder / site.name), site


def _indexes(
    corpora: "Sequence[tuple[Path, Site]]", work: Path, options: AnswerOptions
) -> "Iterator[list[JudgedIndex]]":
    """Yield the indexes of each corpus, which are closed when the next one is taken."""
    failed: CDEError | None = None
    none, warned = True, set[tuple[type[Warning], str]]()
    for folder, site in corpora:
        with contextlib.ExitStack() as stack:
            try:
                with _warned_once(warned, site.name if len(corpora) > 1 else ""):
                    indexes = _of_corpus(folder, site, work, options, stack)
            except CDEError as error:
                if len(corpora) == 1:
                    raise
                failed = failed or error
                typer.echo(printable(f"{site.name} is left out: {error}"), err=True)
                continue
            none = False
            yield indexes
    if none and failed is not None:
        raise failed


def _of_corpus(
    folder: Path, site: "Site", work: Path, options: AnswerOptions, stack: contextlib.ExitStack
) -> "list[JudgedIndex]":
    """Return the indexes of a corpus, whose collections a stack closes."""
    from cde_rag.cli.index_report import notes_once
    from cde_rag.evaluation.answer_systems import JudgedIndex
    from cde_rag.evaluation.question_folder import page_names, read_questions

    pages, place = pages_of(folder, work / site.name)
    questions = read_questions(folder, site.name, page_names(pages))
    indexes: list[JudgedIndex] = []
    made: dict[tuple[str, ...], Collection] = {}
    with notes_once():
        for number, words in enumerate(_words_of(options)):
            given = _that_apply(pages, place, [*options.further, *shlex.split(words)], made, stack, site.name)
            name = words if number else ""
            indexes.append(JudgedIndex.of_pages(made[given], questions, site, name=name))
    return indexes


def _that_apply(
    pages: Path,
    place: Path,
    given: Sequence[str],
    made: "dict[tuple[str, ...], Collection]",
    stack: contextlib.ExitStack,
    name: str,
) -> tuple[str, ...]:
    """Make the index of some options, and return those that apply to the pages.

    Fields that no page has change nothing in an index, which the command refuses since a user may have meant others;
    here another corpus may have them.

    Args:
        pages: Folder of the pages.
        place: Folder of the indexes.
        given: The options.
        made: Indexes that are made already, by their options; this one is added.
        stack: Closes it.
        name: Name of the corpus.
    """
    from cde_rag.cli.index_run import MissingFieldError

    options = tuple(given)
    try:
        if options not in made:
            made[options] = stack.enter_context(indexed(pages, place, options))
    except MissingFieldError as error:
        others = _without_field(options, error.option, error.field)
        if tuple(others) == options:
            raise
        found = f"{name}: no passage has the field {error.field!r} of {error.option}, which changes nothing there"
        typer.echo(printable(f"{found}: its index is that of {shlex.join(others) or 'no options'}."), err=True)
        return _that_apply(pages, place, others, made, stack, name)
    return options


def _without_field(options: Sequence[str], option: str, field: str) -> list[str]:
    """Return options of an index without a field of one of them: without parents all passages stand alone."""
    words = [part for word in options for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])]
    if option not in words:
        return list(options)
    at = words.index(option)
    left = [each for each in words[at + 1].split(",") if each.strip() != field] if option == "--headers" else []
    instead = [option, ",".join(left)] if left else ["--alone"] if option == "--parent-key" else []
    return [*words[:at], *instead, *words[at + 2 :]]


@contextlib.contextmanager
def _warned_once(seen: set[tuple[type[Warning], str]], corpus: str) -> Generator[None, None, None]:
    """Print each warning once, whatever its counts, for all indexes; the first one names its corpus, if any.

    Args:
        seen: Warnings that were printed; grows.
        corpus: Name of the corpus, or "".
    """
    shown = warnings.showwarning

    def once(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if (kind := (category, _COUNTS.sub("", str(message)))) not in seen:
            seen.add(kind)
            shown(f"{corpus}: {message}" if corpus else message, category, filename, lineno, file, line)

    warnings.showwarning = once
    try:
        yield
    finally:
        warnings.showwarning = shown


def _first_model(options: Sequence[str]) -> str:
    """Return the model that options of all indexes name, or that of new collections."""
    return options[options.index("--model") + 1] if "--model" in options else "cde-mini"


def _words_of(options: AnswerOptions) -> list[str]:
    """Return the options of each index; those of further models name the model, which replaces the first one."""
    of_models = ["", *(f"--model {shlex.quote(model)}" for model in options.models)]
    words = ["" if each == DEFAULT else each for each in options.indexes]
    return [" ".join(filter(None, (model, each))) for model in of_models for each in words]


def pages_of(folder: Path, place: Path) -> tuple[Path, Path]:
    """Return the folder with the pages of a corpus, and that for its indexes.

    Pages that are packed in one file are unpacked next to the indexes, under a digest of them all.
    """
    from cde_rag.evaluation.judged_questions import existing as existing_file
    from cde_rag.evaluation.question_folder import PAGES, read_pages, unpack

    if existing_file(folder, PAGES) is None and (folder / "pages").is_dir():
        return folder / "pages", place
    pages = read_pages(folder)
    place = place / hashlib.sha256(json.dumps(pages).encode()).hexdigest()[:16]
    unpack(pages, place / "pages")
    return place / "pages", place


def indexed(pages: Path, place: Path, options: Sequence[str]) -> "Collection":
    """Run the command index on a folder of pages, and open the collection, in a folder of its own for these options.

    The command itself is run, so that the way from files to hits is the one that users have, with any options.
    """
    from cde_rag.cli.index import index

    store = place / f"{hashlib.sha256(json.dumps(options).encode()).hexdigest()[:16]}.faiss"
    arguments = [*options, "--sync", "--yes", str(pages), str(store)]
    alone = command_line()
    alone.command()(index)
    command: Any = typer.main.get_command(alone)
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()), command.make_context("cde-rag index", arguments) as context:
        command.invoke(context)
    model = context.params["model"]
    return open_collection(at(str(store)), model)

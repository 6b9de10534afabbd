"""Every block of code on a page runs, in its order, in a folder with Markdown files, or says why not."""

import contextlib
import re
import shlex
import shutil
import sys
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from plain_model import write_transformer
from typer.main import get_command
from typer.testing import CliRunner

from cde_rag import Collection, ContextualEmbedder
from cde_rag.cli import app
from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack
from cde_rag.readers.reading_rules import READING, ReadingRules
from cde_rag.stores.faiss import FaissStore
from cde_rag_training.cli import app as training

from pages import ROOT, Block, blocks, commands, pages  # isort: skip

DOCS = ROOT / "docs"
PYTHON_ELSEWHERE = {  # pages whose Python is run by other tests
    "README.md": "tests/house/test_readme.py",
    "docs/guide/tutorials.md": "tests/docs/test_tutorials.py",
    "docs/interop.md": "tests/interop/test_documentation.py",
    **{
        f"integrations/{name}/README.md": f"integrations/{name}/tests/**/test_*readme.py"
        for name in ("haystack-cde", "langchain-cde", "llama-index-embeddings-cde", "llama-index-vector-stores-cde")
    },
}
SHOWN_ON = (3, 11)  # Python whose documentation the shown outputs are of; that of others has other passages
LONG = ("docs/guide/better-answers.md",)  # tests of evaluate and tune run its steps
BEGIN_WITH_A_COLLECTION = ("docs/drift.md", "docs/production.md")
BEGIN_WITH_FILES_OF_0_2 = ("docs/migration.md",)
PROGRAMS = {"cde-rag": app, "cde-rag-train": training}
ANSWERS = (0, 3)  # exit codes: done; a measurement says what to do


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_blocks(page: Path) -> list[Block]:
    """All but those that say why they are not run, and Python that other tests run."""
    elsewhere = ("python",) if relative(page) in PYTHON_ELSEWHERE else ()
    return [block for block in blocks(page) if not block.not_run and block.language not in elsewhere]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for page in ("recontextualize.md", "tenants.md"):
        shutil.copy(DOCS / "guide" / page, tmp_path / "docs")
    write_transformer(tmp_path / "plain", dim=384)
    return tmp_path


def make_papers() -> None:
    """The collection of pages that begin with one."""
    ids = [f"ops-{number}" for number in range(len(texts()))]
    embedder = ContextualEmbedder.from_corpus(texts(), seed=0)
    Collection.create(FaissStore("papers.faiss"), embedder).add(texts(), ids=ids)


def index_as_0_2_did() -> None:
    """The collection of files of a page for those who come from 0.2."""
    run_console("$ cde-rag index docs docs.faiss --max-characters 600\n")
    FaissStore("docs.faiss").update_settings({READING: ReadingRules(characters=600, rules=1).settings()})


def texts() -> list[str]:
    kinds = ("how to parse a date", "how to sort a list", "how to read a file", "how to rotate the logs")
    return [f"Note {number}: {kinds[number % len(kinds)]}, case {number // len(kinds)}." for number in range(80)]


def run_console(text: str) -> None:
    """Each line behind a prompt, whose output is what the page shows; a file that one shows is written."""
    for line, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        program, *arguments = shlex.split(line, comments=True)
        if program == "cat":
            Path(arguments[0]).write_text(shown, encoding="utf-8")
        else:
            done = CliRunner().invoke(PROGRAMS[program], arguments)
            assert done.exit_code in ANSWERS, f"{line}\n{done.output}"
            if shown:
                assert_answered(shown, done.stdout)


def assert_answered(shown: str, printed: str) -> None:
    """Compare what a page shows of a command's output; numbers may differ, and a line with … stands for any lines.

    Columns are as wide as their longest cell, which may be in a line that is not shown.
    """
    expected, lines = (
        re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"\d+(\.\d+)?", "#", text)).splitlines() for text in (shown, printed)
    )
    if "…" not in expected:
        assert lines == expected
        return
    left = iter(lines)
    for line in expected:
        assert line == "…" or line in left, f"{line!r} is not there, or not in this place:\n{printed}"


@pytest.mark.parametrize(
    ("shown", "is_right"),
    [("2 passages\nend\n", True), ("…\nend\n", True), ("end\n", False), ("end\n…\n3 passages\n", False)],
)
def test_shown_output_is_compared(shown: str, is_right: bool) -> None:
    with contextlib.nullcontext() if is_right else pytest.raises(AssertionError):
        assert_answered(shown, "1 passages\nend\n")


@pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning", "ignore::ResourceWarning")
@pytest.mark.usefixtures("place", "float32")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long) if relative(page) in LONG else page
        for page in pages()
        if run_blocks(page)
    ],
    ids=relative,
)
def test_the_code_of_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"texts": texts()}
    if relative(page) in BEGIN_WITH_A_COLLECTION:
        make_papers()
    if relative(page) in BEGIN_WITH_FILES_OF_0_2:
        index_as_0_2_did()
    for block in run_blocks(page):
        if '"docs/guide"' in block.text:
            unpack({name: text for name, text in demo_corpus().pages.items() if name[:6] == "guide/"}, Path("docs"))
        if block.language == "console":
            run_console(block.text)
        elif block.language == "text":
            assert_printed(block.text, capsys.readouterr().out)
        else:
            assert block.language == "python"
            capsys.readouterr()
            code = block.text.replace("sentence-transformers/all-MiniLM-L6-v2", "plain")
            exec(compile(code, str(page), "exec"), names)


def assert_printed(shown: str, printed: str) -> None:
    """Compare the output that a page shows.

    Scores differ between CPUs in their last digits, and so does the order of `texts` that are nearly equal.
    """
    shown, printed = (re.sub(r"(Note|case) \d+", r"\1 #", text) for text in (shown, printed))
    assert shown.count("\n") == printed.count("\n"), printed
    if sys.version_info[:2] == SHOWN_ON:
        number = r"-?\d+\.\d*"
        assert re.sub(number, "#", printed) == re.sub(number, "#", shown)
        scores = [[float(one) for one in re.findall(number, text)] for text in (printed, shown)]
        assert scores[0] == pytest.approx(scores[1], abs=0.02)


def test_python_that_runs_elsewhere_is_run_there() -> None:
    for page, pattern in PYTHON_ELSEWHERE.items():
        (test,) = ROOT.glob(pattern)
        assert Path(page).name in test.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", pages(), ids=relative)
def test_every_block_of_a_page_is_looked_at(page: Path) -> None:
    """Each fence is one of a block that is found: at the line's begin, of three backticks, with a language alone."""
    fences = re.findall(r"^[ \t>*-]*(?:`{3,}|~{3,}).*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), fences
    consoles = [block for block in blocks(page) if block.language == "console"]
    assert [block.text for block in consoles if not block.text.startswith("$ ")] == []


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=relative)
def test_every_entry_of_the_reference_is_in_an_example(page: Path) -> None:
    shown = "\n".join(block.text for block in blocks(page))
    entries = re.findall(r"^::: [\w.]*?(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not re.search(rf"\b{entry}\b", shown)] == []


def test_what_is_not_run_says_why() -> None:
    reasons = [block.not_run for page in pages() for block in blocks(page) if block.not_run]
    assert reasons
    assert all(len(reason) > len("not run: ") + 5 for reason in reasons)


def subcommand(program: str, arguments: list[str]) -> tuple[click.Command, list[str]]:
    command: Any = get_command(PROGRAMS[program])
    while arguments and (inner := getattr(command, "commands", {}).get(arguments[0])):
        command, arguments = inner, arguments[1:]
    return command, arguments


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    console = [(block, line) for block in blocks(page) if block.language == "console" for line in commands(block.text)]
    for block, part in [(block, part) for block, line in console for part in re.split(r"\s*(?:;|&&|\|)\s+", line)]:
        words = shlex.split(re.sub(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?", "", part))
        if words and words[0] in PROGRAMS:
            command, arguments = subcommand(words[0], words[1:])
            assert not hasattr(command, "commands"), f"no such command: {part}"
            context = click.Context(command)
            command.make_parser(context).parse_args(list(arguments))  # NoSuchOption where there is none
            missing = [one for one in command.params if one.required and isinstance(one, click.Argument)]
            assert len(arguments) >= len(missing), part
        elif words and "in commit" not in (block.not_run or ""):
            assert_is_there(*words)


def assert_is_there(program: str, *arguments: str) -> None:
    """What `make`, `python` and `pip` are given: targets, scripts, modules, folders and extras of this repository."""
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        assert set(arguments) <= targets
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1]), f"no such module: {arguments[1]}"
    elif program == "python" and arguments[0].endswith(".py"):
        assert (ROOT / arguments[0]).is_file(), f"no such script: {arguments[0]}"
    elif program == "pip":
        extras = set(metadata("cde-rag").get_all("Provides-Extra") or [])
        for folder, asked in re.findall(r"^(\.[\w./-]*)(?:\[(.+)\])?$", "\n".join(arguments), re.MULTILINE):
            assert (ROOT / folder / "pyproject.toml").is_file(), f"no package: {folder}"
            assert set(asked.split(",")) - {""} <= extras, f"no such extra: {asked}"

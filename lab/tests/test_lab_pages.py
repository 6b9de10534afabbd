"""Pages of the laboratory: links hold, commands exist, tables are those of the files, and the README names it all."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from test_code_blocks import PROGRAMS, assert_is_there, subcommand

from pages import ROOT, blocks, commands, pages  # isort: skip

LAB = ROOT / "lab"
README = LAB / "README.md"
PAGES = sorted([README, *(LAB / "pages").glob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[tuple[Path, str]]:
    """Files of the repository that a page links to, each with an anchor or nothing."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return [((page.parent / name).resolve() if name else page, place) for name, place in found if "://" not in name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_hold_in_a_clone(page: Path):
    assert [target for target, _ in links(page) if not target.exists()] == []


def test_anchors_of_these_pages_are_there():
    asked = [(page, target, place) for page in [*PAGES, *pages()] for target, place in links(page) if target in PAGES]
    assert sum(bool(place) for *_, place in asked) > 30
    assert [each for each in asked if each[2] and each[2] not in anchors(each[1])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_read_and_commands_exist(page: Path):
    fences = re.findall(r"^[ \t>*-]*(?:`{3,}|~{3,}).*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), fences
    for line in [line for block in blocks(page) if block.language == "console" for line in commands(block.text)]:
        program, *arguments = shlex.split(line)
        if program in PROGRAMS:
            command, rest = subcommand(program, arguments)
            assert not command.hidden, line
            assert not hasattr(command, "commands"), line
            command.make_parser(command.context_class(command)).parse_args(list(rest))
        else:
            assert_is_there(program, *arguments)


def test_files_that_a_command_names_are_there():
    named = {name for page in PAGES for name in re.findall(r"\blab/[\w./-]+\w", page.read_text(encoding="utf-8"))}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_tables_are_those_of_the_files():
    spec = importlib.util.spec_from_file_location("tables_hook", ROOT / "docs/hooks/tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    copied = [
        (page, name) for page in PAGES for name in re.findall(r"^<!-- (\S+\.csv) -->$", page.read_text("utf-8"), re.M)
    ]
    assert len(copied) >= 2
    for page, name in copied:
        assert f"<!-- {name} -->\n{tables.markdown(page.parent / name)}\n" in page.read_text(encoding="utf-8")


def test_the_readme_names_every_program_and_page():
    text = README.read_text(encoding="utf-8")
    programs = [path for path in (LAB / "benchmarks").glob("*.py") if path.stem != "__init__"]
    programs += [
        path
        for path in (LAB / "experiments").glob("*.py")
        if path.stem != "__main__" and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert len(programs) > 40
    assert [path.name for path in programs if not re.search(rf"\b{path.stem}\b", text)] == []
    assert [page.name for page in (LAB / "pages").glob("*.md") if f"(pages/{page.name})" not in text] == []


def test_a_page_leads_to_every_table_and_plan():
    linked = {target for page in [*PAGES, *pages()] for target, _ in links(page)}
    texts = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "docs/benchmarks.md"])
    files = [*(LAB / "tables").iterdir(), *(LAB / "plans").iterdir()]
    assert len(files) > 80
    assert [path.name for path in files if path not in linked and path.name not in texts] == []

"""The changelog's table of moved modules leads to modules that exist."""

import pkgutil
import re
from pathlib import Path

import pytest

CHANGES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`cde_rag\..*) \| (.*) \|$", CHANGES.split("### Moved")[1].split("\n### ")[0], re.MULTILINE)


def paths(cell: str) -> list[str]:
    """Names of a cell in full: `cde_rag.stores.files`, `.stemmer` stands for cde_rag.stores.stemmer."""
    found: list[str] = []
    for name in re.findall(r"`([\w.]+)`", cell):
        found.append(f"{found[-1].rpartition('.')[0]}{name}" if name.startswith(".") else name)
    return found


@pytest.mark.parametrize(("old", "new"), ROWS)
def test_a_moved_module_is_where_the_changelog_has_it(old: str, new: str) -> None:
    assert len(paths(old)) == len(paths(new))
    for path in paths(new):
        pkgutil.resolve_name(path)


def test_there_is_a_table() -> None:
    assert len(ROWS) > 20
    with pytest.raises(AttributeError):
        pkgutil.resolve_name("cde_rag.stores.stemmer")

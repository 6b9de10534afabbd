"""Python's documentation: every documented public name once, as its source has it."""

import sys
import sysconfig
from itertools import islice
from pathlib import Path

import pytest

from cde_rag.errors import CorpusError
from lab import python_docs
from lab.python_docs import documentation

SOURCE = '''\
"""A module."""

if True:
    def branch(a, *, b=1):
        """In a branch."""
else:
    def branch():
        """Another branch, the same name."""

class Thing(object):
    """A class."""

    def __init__(self, size: int = 2) -> None:
        """Not an entry."""

    @property
    def area(self) -> int:
        """A property."""

    @classmethod
    async def make(cls, /, *sizes: "int", **rest):
        """A method."""

    class Part:
        """A class in a class."""

def undocumented(): ...
def blank():
    """ """
def surrogate():
    "\\ud800"
def _private():
    """Private."""
def long(PARAMETERS):
    """Many parameters."""
'''

PARAMETERS = ", ".join(f"parameter{number}" for number in range(20))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of one module and a folder of packages."""
    files = {
        "lib/ast.py": SOURCE.replace("PARAMETERS", PARAMETERS),
        "lib/_hidden.py": '"""Private."""',
        "lib/test/inside.py": '"""A test."""',
        "lib/site-packages/other.py": '"""No module of the library."""',
        "packages/tool/__init__.py": '"""A package."""',
        "packages/tool/deep/part.py": '"""A module in it."""',
        "packages/tool/flat.py": '"""Nearer its root."""',
        "packages/tool/template.py": "not {{ python }}",
        "packages/tool/latin.py": "# no UTF-8: \xff",
        "packages/ast.py": '"""Of the same name as a module of the library."""',
        "packages/tool-1.0.dist-info/METADATA": "Name: tool\nVersion: 1.0\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    paths = {"stdlib": "lib", "purelib": "packages", "platlib": "packages"}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {name: str(tmp_path / path) for name, path in paths.items()})
    return tmp_path


def test_every_public_name_with_a_docstring_is_one_entry(library: Path) -> None:
    entries = {entry.id: entry for entry in documentation()}
    assert {entry.id: (entry.title, entry.text, entry.metadata["kind"]) for entry in entries.values()} == {
        "ast": ("ast", "A module.", "module"),
        "ast.branch": ("ast.branch(a, *, b=1)", "In a branch.", "function"),
        "ast.Thing": ("ast.Thing(size=2)", "A class.", "class"),
        "ast.Thing.area": ("ast.Thing.area", "A property.", "property"),
        "ast.Thing.make": ("ast.Thing.make(*sizes, **rest)", "A method.", "method"),
        "ast.Thing.Part": ("ast.Thing.Part", "A class in a class.", "class"),
        "ast.long": (f"ast.long({PARAMETERS[:119]}…)", "Many parameters.", "function"),
        "tool": ("tool", "A package.", "module"),
        "tool.flat": ("tool.flat", "Nearer its root.", "module"),
        "tool.deep.part": ("tool.deep.part", "A module in it.", "module"),
    }
    assert list(entries)[-3:] == ["tool", "tool.flat", "tool.deep.part"]  # the shallowest first
    assert entries["ast.branch"].metadata == {
        "module": "ast",
        "package": "ast",
        "kind": "function",
        "source": "ast.py:4",
    }
    assert entries["tool.deep.part"].metadata["source"] == "tool/deep/part.py:1"


def test_a_package_gives_its_shallowest_entries_only(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "PACKAGE_ENTRIES", 2)
    found = [entry.id for entry in documentation()]
    assert found[-2:] == ["tool", "tool.flat"]
    assert "ast.long" in found  # the standard library is taken whole


def test_a_python_without_sources_is_refused(library: Path) -> None:
    (library / "lib/ast.py").unlink()
    with pytest.raises(CorpusError, match="sources of Python's standard library"):
        list(documentation())


def test_nothing_is_imported_to_be_read() -> None:
    modules = set(sys.modules)
    found = list(islice(documentation(), 3000))
    assert len({entry.id for entry in found}) == 3000
    assert all(entry.text.strip() and entry.title.startswith(entry.id) for entry in found)
    assert set(sys.modules) == modules

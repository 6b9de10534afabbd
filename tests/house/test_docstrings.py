"""Language: examples are executed; docstrings, help texts and messages name things in the field's words."""

import ast
import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cde_rag
import cde_rag_training

MODULES = [
    found.name
    for package in (cde_rag, cde_rag_training)
    for found in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    if not found.name.endswith(".__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


ROOT = Path(__file__).parents[2]
SCOPES = ("cde_rag", "experiments", "integrations", "training/cde_rag_training")
WEAK = {"What", "Whether", "How", "Where", "Of", "As", "Which", "See", "When", "Who"}  # begin a clause, not a noun
BANNED = re.compile(
    r"\b(what|whether"  # clauses in a noun's place: "what it finds" for "results"
    r"|tells?|told|asks?|asked|asking"  # report, count; request
    r"|beside|behind"  # next to, besides; after
    r"|lives|at work"  # is stored; running
    r"|whole(?! numbers?\b))\b",  # intact, complete, all of
    re.IGNORECASE,
)
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HELP = {"help", "short_help", "epilog"}  # of typer's options, arguments and commands, and of argparse's


@pytest.mark.parametrize("scope", SCOPES)
def test_the_language_is_the_fields(scope: str) -> None:
    """First lines of docstrings, help texts and messages of raised errors (design: house.md, section 3)."""
    modules = [path for path in sorted((ROOT / scope).rglob("*.py")) if "tests" not in path.parts]
    assert modules
    found = [(path, *each) for path in modules for each in _sentences(ast.parse(path.read_text(encoding="utf-8")))]
    assert {kind for _, kind, _ in found} >= {"docstring", "message"}
    weak = [
        f"{path.relative_to(ROOT)}: {text}"
        for path, kind, text in found
        if BANNED.search(text) or (kind != "message" and text.split()[0].rstrip(",.:") in WEAK)
    ]
    assert weak == []


def _sentences(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, KINDS) and (docstring := ast.get_docstring(node)):
            yield "docstring", docstring.splitlines()[0]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield from (("message", text) for text in _texts(node.exc))
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            yield from (("help", text) for text in _texts(node.value))


def _texts(node: ast.AST) -> Iterator[str]:
    """Strings of an expression; of a formatted one, the part that is written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip():
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)

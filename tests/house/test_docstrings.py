"""Docstrings: examples are executed, and first lines name the thing or say what it does."""

import ast
import doctest
import importlib
import pkgutil
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
WEAK = {"What", "Whether", "How", "Where", "Of", "As", "Which", "See", "When", "Who"}  # begin a clause, not a noun
SCOPES = ("cde_rag", "experiments", "integrations", "training/cde_rag_training")


@pytest.mark.parametrize("scope", SCOPES)
def test_first_lines_begin_with_a_verb_or_a_noun(scope: str) -> None:
    assert (ROOT / scope).is_dir()
    modules = [path for path in sorted((ROOT / scope).rglob("*.py")) if "tests" not in path.parts]
    assert [found for path in modules for found in _weak(path)] == []


def _weak(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and text.split()[0].rstrip(",.:") in WEAK:
            yield f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"

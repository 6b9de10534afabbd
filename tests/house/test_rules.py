"""Rules of the house that no linter knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*(ROOT / "cde_rag").rglob("*.py"), *(ROOT / "training").rglob("*.py")]
NAMED_FOR_NOTHING = {"common", "helper", "helpers", "lib", "misc", "util", "utils"}

each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


@each_source
def test_a_module_fits_the_eye(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 300


@each_source
def test_a_module_is_named_for_what_it_does(path: Path) -> None:
    assert not NAMED_FOR_NOTHING & set(path.relative_to(ROOT).with_suffix("").parts)


@each_source
def test_public_functions_name_all_their_arguments(path: Path) -> None:
    assert [function.name for function in public_functions(ast.parse(path.read_text())) if function.args.kwarg] == []

"""Rules of the house that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cde_rag", "training/cde_rag_training", "lab/distil", "lab/experiments", "lab/mteb", "lab/mutants")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
ADAPTERS = sorted(path for path in (ROOT / "integrations").rglob("*.py") if "tests" not in path.parts)
NAMED_FOR_NOTHING = {"common", "helper", "helpers", "lib", "misc", "util", "utils"}


@pytest.mark.parametrize("folder", [*FOLDERS, "integrations"])
def test_there_are_files(folder: str) -> None:
    """The rules below hold of an empty tree."""
    assert [path for path in [*SOURCES, *ADAPTERS] if (ROOT / folder) in path.parents]


def test_a_long_module_says_why() -> None:
    """A module holds one noun of the field; over 500 lines its docstring gives a reason ("Long because …")."""
    texts = {path: path.read_text(encoding="utf-8") for path in [*SOURCES, *ADAPTERS]}
    long = {path: ast.get_docstring(ast.parse(text)) or "" for path, text in texts.items() if text.count("\n") > 500}
    assert [path for path, docstring in long.items() if "Long because" not in docstring] == []


def test_a_module_is_named_for_what_it_does() -> None:
    assert [
        path
        for path in [*SOURCES, *ADAPTERS]
        if NAMED_FOR_NOTHING & set(re.split(r"[/_]", path.relative_to(ROOT).with_suffix("").as_posix()))
    ] == []


def test_public_functions_name_all_their_arguments() -> None:
    offenders = [
        f"{path}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.args.kwarg
        and (node.name[0] != "_" or node.name in ("__init__", "__call__"))
    ]
    assert offenders == []


def test_a_function_of_the_command_has_a_name_of_its_own() -> None:
    """Two of one name answer two questions, and a reader of the call does not know which."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES if path.parent == ROOT / "cde_rag/cli"]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [name for name in names if name[0] != "_"]
    assert sorted(public) == sorted(set(public))


def test_kinds_of_stores_add_calls_and_change_none() -> None:
    """Rules of the store are written once, in `StoreCalls` and `Store`; a kind of store is an engine below them."""
    classes = [
        node
        for path in [*SOURCES, ROOT / "tests/stores/sqlite_store.py"]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    calls = {
        each.name
        for node in classes
        if node.name in ("StoreCalls", "Store")
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name != "__init__"
    }
    kinds = {node.name: node for node in classes if "Store" in map(ast.unparse, node.bases)}
    assert len(calls) > 20
    assert {"FaissStore", "SqliteStore"} <= kinds.keys()
    changed = {
        name: calls & {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        for name, node in kinds.items()
        if name != "BruteForceStore"  # the obvious store of the tests, which has no engine
    }
    assert {name: found for name, found in changed.items() if found} == {}


def test_the_core_imports_a_name_from_where_it_lives() -> None:
    """Through the lazy names of `cde_rag` a module could import one downstream, and import-linter would not see it."""
    offenders = [
        f"{path}:{node.lineno}"
        for path in SOURCES
        if ROOT / "cde_rag/cli" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and node.module == "cde_rag" and node.level == 0)
        or (isinstance(node, ast.Import) and "cde_rag" in {alias.name for alias in node.names})
    ]
    assert offenders == []

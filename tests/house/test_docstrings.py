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
SCOPES = (
    "cde_rag",
    "integrations",
    "lab/distil",
    "lab/experiments",
    "lab/mteb",
    "lab/mutants",
    "training/cde_rag_training",
)
WEAK = {"What", "Whether", "How", "Where", "Of", "As", "Which", "See", "When", "Who"}  # begin a clause, not a noun
BANNED = re.compile(
    r"\b(what|whether"  # clauses in a noun's place: "what it finds" for "results"
    r"|tells?|told|asks?|asked|asking"  # report, count; request
    r"|beside|behind"  # next to, besides; after
    r"|lives|at work"  # is stored; running
    r"|whole(?! numbers?\b))\b",  # intact, complete, all of
    re.IGNORECASE,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
KINDS = (ast.Module, ast.ClassDef, *FUNCTIONS)
HELP = {"help", "short_help", "epilog"}  # of typer's options, arguments and commands, and of argparse's
PRINTED = {"echo", "warn_user", "BadParameter"}  # calls whose strings users read, in addition to those of errors


@pytest.mark.parametrize("scope", SCOPES)
def test_the_language_is_the_fields(scope: str) -> None:
    """First lines of docstrings, help texts, and messages of errors and warnings (design: house.md, section 3).

    The complete docstring of a function in a package `cli` counts, since typer prints it as the help of a command.
    """
    found = [(path, *each) for path, tree in _modules(scope) for each in _sentences(tree, complete="cli" in path.parts)]
    assert {kind for _, kind, _ in found} >= {"docstring", "message"}
    weak = [
        f"{path.relative_to(ROOT)}: {text}"
        for path, kind, text in found
        if BANNED.search(text) or (kind != "message" and text.split()[0].rstrip(",.:") in WEAK)
    ]
    assert weak == []


@pytest.mark.parametrize("scope", SCOPES)
def test_docstrings_name_the_parameters_and_attributes_of_the_code(scope: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {sorted(names)}"
        for path, tree in _modules(scope)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (names := _unlike(node, ast.get_docstring(node) or ""))
    ]
    assert wrong == []


def _modules(scope: str) -> list[tuple[Path, ast.Module]]:
    paths = [path for path in sorted((ROOT / scope).rglob("*.py")) if "tests" not in path.parts]
    assert paths
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def _unlike(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, docstring: str) -> set[str]:
    """Return parameters that only one of docstring and signature has, and documented attributes that are nowhere."""
    wrong, function = set[str](), node
    if isinstance(node, ast.ClassDef):
        inner = list(ast.walk(node))
        wrong = set(_named(docstring, "Attributes")) - {
            *(each.attr for each in inner if isinstance(each, ast.Attribute)),
            *(each.id for each in inner if isinstance(each, ast.Name)),
            *(each.name for each in inner if isinstance(each, FUNCTIONS)),
        }
        function = next((each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"), None)
    documented = set(_named(docstring, "Args"))
    if documented and isinstance(function, FUNCTIONS):
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        given += [each for each in (function.args.vararg, function.args.kwarg) if each is not None]
        wrong |= documented ^ ({each.arg for each in given if each.arg[0] != "_"} - {"self", "cls"})
    return wrong


def _named(docstring: str, section: str) -> list[str]:
    found = re.search(rf"^{section}:\n((?: {{4}}.*\n|\n)*)", f"{docstring}\n", re.MULTILINE)
    return re.findall(r"^ {4}\*{0,2}(\w+):", found[1], re.MULTILINE) if found else []


def _sentences(tree: ast.Module, *, complete: bool) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, KINDS) and (docstring := ast.get_docstring(node)):
            is_help = complete and isinstance(node, FUNCTIONS) and node.name[0] != "_"
            yield "docstring", re.split(r"\n\n(?:\x08|Args:)", docstring)[0] if is_help else docstring.splitlines()[0]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield from (("message", text) for text in _texts(node.exc))
        elif isinstance(node, ast.Call) and (_callee(node) in PRINTED or _callee(node).endswith(("Error", "Warning"))):
            yield from (("message", text) for text in _texts(node))
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            yield from (("help", text) for text in _texts(node.value))


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _texts(node: ast.AST) -> Iterator[str]:
    """Strings of an expression; of a formatted one, the part that is written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip():
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)

"""A seeded sample of mutants of a checkout's packages, made by the operators of mutmut."""

import ast
import difflib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

PACKAGES = ("cde_rag/stores", "cde_rag/indexing", "cde_rag/context", "cde_rag/embedders")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one line of one function."""

    file: str  # relative to the checkout
    function: str  # its qualified name
    statement: tuple[int, int]  # first and last line of the innermost statement around it, in the unchanged file
    source: str  # of the changed file

    def difference(self, root: Path) -> str:
        """Lines of a diff without context."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        changed = difflib.unified_diff(before, self.source.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in changed if not line.startswith(("---", "+++")))


def statements(source: str) -> dict[int, tuple[int, int]]:
    """The innermost statement around each line, as its own first and last line."""
    found: dict[int, tuple[int, int]] = {}
    every = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    for node in sorted(every, key=lambda each: (each.lineno, -(each.end_lineno or 0))):
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        header = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else last)
        found |= dict.fromkeys(range(node.lineno, last + 1), header)
    return found


def is_prose(node: cst.CSTNode) -> bool:
    """True for a text of several words: messages, whose wording no test should repeat, and SQL."""
    return isinstance(node, cst.SimpleString) and " " in node.value


def mutants(root: Path, file: str) -> Iterator[Callable[[], Mutant]]:
    """All mutants of the bodies of a file's functions, to be made when called; mutmut leaves out decorated ones."""
    source = (root / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = wrapper.visit(visitor)
    places, names, around = wrapper.resolve(PositionProvider), qualified(module), statements(source)
    for mutation in visitor.mutations:
        function, place = mutation.contained_by_top_level_function, places.get(mutation.original_node)
        if not isinstance(function, cst.FunctionDef) or place is None or is_prose(mutation.original_node):
            continue
        if place.start.line >= places[function.body].start.line:  # not a default, which is evaluated at import
            yield partial(mutant, file, names[function], around[place.start.line], module, mutation)


def mutant(file: str, function: str, statement: tuple[int, int], module: cst.Module, mutation: Mutation) -> Mutant:
    """Make one mutant."""
    changed = module.deep_replace(mutation.original_node, mutation.mutated_node)
    assert isinstance(changed, cst.Module)
    return Mutant(file=file, function=function, statement=statement, source=changed.code)


def qualified(module: cst.Module) -> dict[cst.FunctionDef, str]:
    """Qualified names of a module's functions and of the methods of its classes."""
    named: dict[cst.FunctionDef, str] = {}
    for top in module.body:
        if isinstance(top, cst.FunctionDef):
            named[top] = top.name.value
        elif isinstance(top, cst.ClassDef):
            named |= {
                each: f"{top.name.value}.{each.name.value}"
                for each in top.body.body
                if isinstance(each, cst.FunctionDef)
            }
    return named


def sample(root: Path, *, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of all packages, each with the same chance, in an order of which any beginning is a sample too."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    every = [make for path in files for make in mutants(root, path.relative_to(root).as_posix())]
    random.Random(seed).shuffle(every)
    return [make() for make in every[:count]]

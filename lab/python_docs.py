"""Thousands of texts for benchmarks: docstrings of the running Python's standard library and of its packages.

Sources are parsed, never imported. Private names, dunder methods and tests are left out.
"""

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from cde_rag.errors import CorpusError
from cde_rag.records import Record

PACKAGE_ENTRIES = 5  # of an installed package; what it is for stands near its root
MAX_PARAMETERS = 120  # characters of a title
_SKIPPED = frozenset({"distutils", "idlelib", "lib2to3", "test", "tests", "tkinter", "turtle", "turtledemo"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.Try, ast.ExceptHandler)  # definitions for one platform or another

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documentation() -> Iterator[Record]:
    """Yield a record for every documented public module, class, function, method and property, each once.

    Of an installed package these are the first entries only.

    Returns:
        Records whose id is the dotted name as the source defines it, whose title is that name with its parameters, and
        whose text is the docstring. Metadata: `module`, `package` (its first part), `kind`, `source` (file and line).

    Raises:
        CorpusError: This Python came without the sources of its standard library.
    """
    stdlib, packages = _roots()
    if not (stdlib / "ast.py").is_file():
        raise CorpusError(
            f"Expected the sources of Python's standard library in {stdlib}; found none. Use another Python."
        )
    entries = [_entries(top, stdlib) for top in _tops(stdlib)]
    entries += [islice(_entries(top, root), PACKAGE_ENTRIES) for root in packages for top in _tops(root)]
    seen = set[str]()
    for record in chain.from_iterable(entries):
        if record.id not in seen:
            seen.add(record.id)
            yield record


def _roots() -> tuple[Path, list[Path]]:
    """Return the folder of the standard library and those of installed packages."""
    paths = sysconfig.get_paths()
    return Path(paths["stdlib"]), [Path(root) for root in sorted({paths["purelib"], paths["platlib"]})]


def _tops(root: Path) -> list[Path]:
    """Return top-level modules and packages."""
    return sorted(path for path in root.iterdir() if _is_public(path.stem) and (path.is_dir() or path.suffix == ".py"))


def _is_public(module: str) -> bool:
    return module.isidentifier() and not module.startswith("_") and module not in _SKIPPED


def _entries(top: Path, root: Path) -> Iterator[Record]:
    """Yield the documented names of one top-level module or package, those of the shallowest modules first."""
    for path in _sources(top):
        place = path.relative_to(root)
        module = ".".join(part for part in place.with_suffix("").parts if part != "__init__")
        for name, kind, node in _definitions(path, module):
            text = ast.get_docstring(node)
            if text and text.strip() and not _SURROGATE.search(text):
                line = 1 if isinstance(node, ast.Module) else node.lineno
                metadata = {"module": module, "package": top.stem, "kind": kind, "source": f"{place.as_posix()}:{line}"}
                yield Record(name, text, name + _parameters(node, kind), metadata)


def _sources(top: Path) -> list[Path]:
    if top.is_file():
        return [top]
    files: list[Path] = []
    for folder, folders, names in os.walk(top):
        folders[:] = filter(_is_public, folders)
        modules = [name for name in names if name == "__init__.py" or (name.endswith(".py") and _is_public(name[:-3]))]
        files += (Path(folder, name) for name in modules)
    return sorted(files, key=lambda path: (len(path.parts), path.name != "__init__.py", path))


def _definitions(path: Path, module: str) -> Iterator[tuple[str, str, _Documented]]:
    """Yield dotted name, kind and syntax tree of a module and of all its definitions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # a template, or for another Python
        return
    yield module, "module", tree
    yield from _members(tree, module, function="function")


def _members(parent: ast.AST, name: str, *, function: str) -> Iterator[tuple[str, str, _Documented]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _BRANCHES):
            yield from _members(node, name, function=function)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"{name}.{node.name}", "class", node
            yield from _members(node, f"{name}.{node.name}", function="method")
        elif isinstance(node, _FUNCTIONS) and not node.name.startswith("_"):
            is_property = any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
            yield f"{name}.{node.name}", "property" if is_property else function, node


def _parameters(node: _Documented, kind: str) -> str:
    """Return the parameters of a function, or of a class's `__init__`, without types and `self`."""
    if isinstance(node, ast.ClassDef):
        node = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), node)
    if not isinstance(node, _FUNCTIONS) or kind == "property":
        return ""
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    positional = node.args.posonlyargs or node.args.args
    if positional and positional[0].arg in ("self", "cls"):
        del positional[0]
    parameters = ast.unparse(node.args)
    return f"({parameters})" if len(parameters) <= MAX_PARAMETERS else f"({parameters[: MAX_PARAMETERS - 1]}…)"

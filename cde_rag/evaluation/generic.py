"""Foreign corpus available on every machine: the default source of another corpus's context."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import Corpus


def standard_library() -> Corpus:
    """Return the docstrings of the running Python's standard library, some thousands; read, never imported.

    Raises:
        CorpusError: This Python has no readable sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    documents = dict(found for path in sorted(folder.glob("*.py")) for found in _docstrings(path))
    if not documents:
        raise CorpusError(f"{folder}: expected the standard library's sources, found none. Name a foreign corpus.")
    return Corpus("python_stdlib", tuple(documents), tuple(documents.values()))


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = (ast.get_docstring(node) or "").encode(errors="ignore").decode()  # without lone surrogates
            if text.strip():
                yield f"{path.stem}:{getattr(node, 'lineno', 0)}", text

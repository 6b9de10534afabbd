"""Functions, types and classes of Python, Rust, Go and JavaScript with their documentation comments."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LINES: Final = 80  # of an item, at most
ITEM: Final = {
    "rust": re.compile(
        r"(?:pub(?:\([^)]*\))? |default |const |unsafe |async )*"
        r"(?:fn|struct|enum|trait|type|union|mod|static|macro_rules!)\s+(\w+)"
    ),
    "go": re.compile(r"(?:func\s+(?:\([^)]*\)\s*)?|type\s+)(\w+)"),
    "javascript": re.compile(
        r"(?:export\s+|default\s+|declare\s+|async\s+|static\s+|public\s+|private\s+|protected\s+|readonly\s+|abstract\s+)*"
        r"(?:function\s*\*?\s*|class\s+|interface\s+|const\s+|let\s+|var\s+|type\s+|enum\s+)?([A-Za-z_$][\w$.]*)"
    ),
}


@dataclass(frozen=True, slots=True)
class Commented:
    """Name of an item, its comment without markers, its code without the comment, and a flag for functions."""

    name: str
    comment: str
    code: str
    function: bool = True


def commented(text: str, language: str) -> Iterator[Commented]:
    """Yield a file's items that have a documentation comment, in their order.

    Args:
        text: A file's content.
        language: `python`, `rust`, `go` or `javascript`.
    """
    if language == "python":
        yield from _python(text)
        return
    lines = text.splitlines()
    find = _block_comment if language == "javascript" else _line_comment
    marker = "///" if language == "rust" else "//"
    at = 0
    while at < len(lines):
        comment, after = find(lines, at, marker)
        at = max(after, at + 1)
        if comment is None:
            continue
        while after < len(lines) and lines[after].lstrip().startswith(("#[", "@")):
            after += 1
        match = ITEM[language].match(lines[after].strip()) if after < len(lines) else None
        if match:
            yield Commented(match[1], comment, _block(lines, after))


def _python(text: str) -> Iterator[Commented]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines()
    nodes: list[tuple[ast.AST, str]] = [(tree, "")]
    while nodes:
        parent, outer = nodes.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            name = f"{outer}.{node.name}" if outer else node.name
            nodes.append((node, name))
            if docstring := ast.get_docstring(node):
                first = node.body[0]
                code = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
                bodiless = len(node.body) == 1 or first.lineno == node.lineno
                text_of_code = "" if bodiless else textwrap.dedent("\n".join(code[:LINES]))
                yield Commented(name, docstring, text_of_code, not isinstance(node, ast.ClassDef))


def _line_comment(lines: list[str], at: int, marker: str) -> tuple[str | None, int]:
    found: list[str] = []
    while at < len(lines) and lines[at].lstrip().startswith(marker):
        found.append(lines[at].lstrip().removeprefix(marker).removeprefix(" "))
        at += 1
    return ("\n".join(found) if found else None), at


def _block_comment(lines: list[str], at: int, _: str) -> tuple[str | None, int]:
    if not lines[at].lstrip().startswith("/**"):
        return None, at
    found: list[str] = []
    while at < len(lines):
        line, at = lines[at].strip(), at + 1
        found.append(re.sub(r"^(/\*\*|\*(?!/)) ?", "", line).split("*/")[0])
        if "*/" in line:
            break
    return "\n".join(found).strip(), at


def _block(lines: list[str], at: int) -> str:
    """Return the lines from `at` until all brackets are closed."""
    margin = len(lines[at]) - len(lines[at].lstrip())
    taken: list[str] = []
    depth = 0
    for line in lines[at : at + LINES]:
        taken.append(line[min(margin, len(line) - len(line.lstrip())) :].rstrip())
        depth += sum(line.count(mark) for mark in "{([") - sum(line.count(mark) for mark in "})]")
        if depth <= 0 and line.rstrip().endswith(("}", ";", ",", "})", ")")):
            break
    return "\n".join(taken)

"""Rooms of the house: few at the top of the package, and no class of one name in two of them."""

import ast
from collections import Counter
from pathlib import Path

CORE = Path(__file__).resolve().parents[2] / "cde_rag"
MODULES, PACKAGES = 7, 13


def test_few_rooms_at_the_top() -> None:
    assert len([path for path in CORE.glob("*.py") if path.stem != "__init__"]) <= MODULES
    assert len(list(CORE.glob("*/__init__.py"))) <= PACKAGES


def test_a_name_is_one_class() -> None:
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []

"""Layout of the packages: few modules at the top, and one name for one class or module."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE, TRAINING, EXPERIMENTS = ROOT / "cde_rag", ROOT / "training" / "cde_rag_training", ROOT / "experiments"
SHARED_NAMES = {"__init__", "__main__", "app", "base", "config", "store"}  # of modules; a command has its subject's
MODULES, PACKAGES = 7, 13


def test_few_rooms_at_the_top() -> None:
    assert len([path for path in CORE.glob("*.py") if path.stem != "__init__"]) <= MODULES
    assert len(list(CORE.glob("*/__init__.py"))) <= PACKAGES


def modules() -> list[Path]:
    return [path for folder in (CORE, TRAINING, EXPERIMENTS) for path in folder.rglob("*.py")]


def test_a_name_is_one_class() -> None:
    names = Counter(
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_name_is_one_module() -> None:
    names = Counter(path.stem for path in modules() if path.parent.name != "cli")
    assert [name for name, count in names.items() if count > 1 and name not in SHARED_NAMES] == []

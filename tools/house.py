"""Figures of the house: how large the code is, and how well a stranger finds his way in it.

Run with: python tools/house.py [FOLDER…] [--json], where each FOLDER is a checkout of this project (this one by
default); with several, the figures stand next to each other.
"""

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
WEAK: Final = ("What", "Whether", "How", "Where", "Of", "As", "Which", "See")  # first words that name no noun
COMMON: Final = {
    "__init__",
    "base",
    "store",
    "config",
    "demo",
    "drift",
}  # names in several packages; a command has the name of its subject


UNDERSTOOD: Final = ("context", "records.py", "embedders", "stores/*.py", "indexing", "search", "collection")
SMALL: Final = 60  # lines; a file with fewer and one caller belongs into the caller
KINDS: Final = ("Embedder", "Model")  # ends of the names of classes that are embedders or models
CHECKED: Final = ("cde_rag.stores.checks", "cde_rag.stores.manifests", "cde_rag._validation")  # modules of checks


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [figures(folder.resolve()) for folder in options.folders]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    names = [folder.resolve().name for folder in options.folders]
    print("| figure | " + " | ".join(names) + " |\n| --- |" + " --- |" * len(names))
    for figure in found[0]:
        print(f"| {figure} | " + " | ".join(str(each[figure]) for each in found) + " |")


def figures(root: Path) -> dict[str, Any]:
    """All figures of a checkout, by name."""
    core, laboratory = root / "cde_rag", [root / name for name in ("lab", "experiments", "benchmarks")]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(core.rglob("*.py"))}
    methods = _collection_methods(trees)
    return {
        "modules at the top of cde_rag": len([path for path in core.glob("*.py") if path.stem != "__init__"]),
        "packages at the top of cde_rag": len(list(core.glob("*/__init__.py"))),
        "files in cde_rag": len(trees),
        "lines in cde_rag": sum(_lines(path) for path in trees),
        "lines in training": sum(_lines(path) for path in (root / "training").rglob("*.py")),
        "lines in the laboratory": sum(
            _lines(path) for folder in laboratory for path in folder.rglob("*.py") if "tests" not in path.parts
        ),
        "files and lines to read to understand all": _understood(core),
        f"files of less than {SMALL} lines with one caller": _names(lonely_files(root)),
        "isinstance of embedders and models": _asked_kinds(trees),
        "calls of checks in stores": _checks({path: tree for path, tree in trees.items() if "stores" in path.parts}),
        "names of the root package": len(_exported(trees[core / "__init__.py"])),
        "imports of the root package from inside": sum(_imports_of_root(tree) for tree in trees.values()),
        "imports up the layers of the contract": sum(_imports_up(root, trees)),
        "layers of the import contract": len(_layers(root)),
        "class names used twice or more": _names(_doubled(_classes(trees))),
        "module names used twice or more": _names(_doubled(path.stem for path in trees) - COMMON),
        "abstract classes with one subclass": _names(_lonely(trees)),
        "public definitions in cde_rag": sum(_public(tree) for tree in trees.values()),
        "public methods of Collection": methods,
        **_docstrings(trees),
        **documentation(root),
        "words of the README": len(
            re.sub(r"```.*?```", "", (root / "README.md").read_text("utf-8"), flags=re.S).split()
        ),
    }


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _understood(core: Path) -> str:
    """What one reads to understand the whole; of stores the common part, of the others all files."""
    patterns = [name if name.endswith(".py") else f"{name}/**/*.py" for name in UNDERSTOOD]
    paths = [path for pattern in patterns for path in core.glob(pattern)]
    return f"{len(paths)}, {sum(map(_lines, paths))}"


def lonely_files(root: Path) -> set[str]:
    """Small modules that one other module of the same distribution imports; a command's subcommands aside."""
    places = {"cde_rag": root / "cde_rag", "cde_rag_training": root / "training" / "cde_rag_training"}
    modules = {
        ".".join([name, *path.relative_to(place).with_suffix("").parts]).removesuffix(".__init__"): path
        for name, place in places.items()
        for path in place.rglob("*.py")
    }
    callers = Counter(
        name
        for caller, path in modules.items()
        for name in _imported(ast.parse(path.read_text("utf-8"))) & set(modules)
        if name != caller
    )
    small = {name for name, path in modules.items() if _lines(path) < SMALL and path.stem[:2] != "__"}
    return {name for name in small if callers[name] == 1 and ".cli." not in name}


def _imported(tree: ast.Module) -> set[str]:
    """Names that a module imports, and the modules that it imports them from."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {str(node.module) for node in found} | {f"{node.module}.{one.name}" for node in found for one in node.names}


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def _asked_kinds(trees: dict[Path, ast.Module]) -> str:
    files = Counter(
        path
        for path, tree in trees.items()
        for name, call in _calls(tree)
        if name == "isinstance" and re.search(rf"({'|'.join(KINDS)})\b", ast.unparse(call.args[1]))
    )
    return f"{files.total()} in {len(files)} files"


def _checks(trees: dict[Path, ast.Module]) -> str:
    """Calls of functions named check_… that are imported from modules of checks."""
    files = Counter(
        path
        for path, tree in trees.items()
        for name, _ in _calls(tree)
        if name.startswith("check_") and _imported(tree) & {f"{module}.{name}" for module in CHECKED}
    )
    return f"{files.total()}, at most {max(files.values(), default=0)} in one file"


def _exported(root: ast.Module) -> list[str]:
    (names,) = [
        node.value for node in root.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return ast.literal_eval(names)


def _imports_of_root(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.ImportFrom) and node.module == "cde_rag" and not node.level for node in tree.body)


def _layers(root: Path) -> list[list[str]]:
    """Layers of the core's import contract, the highest first; each is a list of modules and packages."""
    contract = (root / "pyproject.toml").read_text("utf-8").split('id = "layers"')[1].split("[[")[0]
    lines = re.findall(r'^    "(.*)"', contract.split("layers = [")[1].split("\n]")[0], re.MULTILINE)
    return [re.findall(r"\w+", line) for line in lines]


def _imports_up(root: Path, trees: dict[Path, ast.Module]) -> Iterator[bool]:
    """For each import between parts of the core: True if the imported part is in a higher layer."""
    height = {name: -number for number, layer in enumerate(_layers(root)) for name in layer}
    for path, tree in trees.items():
        own = path.relative_to(root / "cde_rag").with_suffix("").parts[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                package, *names = node.module.split(".")
                for name in names[:1] or [alias.name for alias in node.names]:
                    if package == "cde_rag" and own in height and name in height:
                        yield height[name] > height[own]


def _classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    for tree in trees.values():
        yield from (node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")


def _doubled(names: Iterator[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _lonely(trees: dict[Path, ast.Module]) -> set[str]:
    """Abstract classes that one class is derived from."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = Counter(ast.unparse(base).split("[")[0] for node in classes for base in node.bases)
    return {node.name for node in classes if "ABC" in map(ast.unparse, node.bases) and bases[node.name] == 1}


def _names(found: set[str]) -> str:
    return f"{len(found)}" + (f" ({', '.join(sorted(found))})" if 0 < len(found) <= 6 else "")


def _public(tree: ast.Module) -> int:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(isinstance(node, kinds) and not node.name.startswith("_") for node in tree.body)


def _collection_methods(trees: dict[Path, ast.Module]) -> int:
    """Public methods and properties of Collection, those that it inherits too."""
    classes = {node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)}

    def of(name: str) -> set[str]:
        if name not in classes:
            return set()
        own = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        return own.union(*(of(ast.unparse(base)) for base in classes[name].bases))

    return len([name for name in of("Collection") if not name.startswith("_")])


def _docstrings(trees: dict[Path, ast.Module]) -> dict[str, int]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, kinds)]
    first = Counter(text.split()[0].rstrip(",.:") for node in nodes if (text := ast.get_docstring(node)))
    return {
        "docstrings": first.total(),
        f"docstrings that begin with {', '.join(WEAK)}": sum(first[word] for word in WEAK),
    }


def documentation(root: Path) -> dict[str, int]:
    """Count pages and words under docs/: those for users, and decisions. Pages of experiments are the laboratory's."""
    docs = root / "docs"
    decisions = list((docs / "decisions").glob("*.md"))
    experiments = list((docs / "experiments").rglob("*.md"))
    users = sorted(set(docs.rglob("*.md")) - {*decisions, *experiments})
    return {
        "pages for users": len(users),
        "words on pages for users": sum(len(page.read_text("utf-8").split()) for page in users),
        "pages of decisions": len(decisions),
        "words on pages of decisions": sum(len(page.read_text("utf-8").split()) for page in decisions),
    }


if __name__ == "__main__":
    main()

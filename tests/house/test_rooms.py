"""Layout of the packages: few modules at the top, and one name for one class or module."""

import ast
import importlib.util
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE, TRAINING = ROOT / "cde_rag", ROOT / "training" / "cde_rag_training"
LAB = [ROOT / "lab" / name for name in ("distil", "experiments", "mteb", "mutants")]
SHARED_NAMES = {  # of modules and packages: why two may have it
    "__main__": "Python's",
    "app": "both commands have one",
    "cli": "both distributions have a command",
    "collection": "the package is named for its class, as in `cde_rag.collection.collection.Collection`",
    "context": "the package is named for its class",
    "files": "of stores; of models, a package",
    "model": "the port of all families; in mteb the class that MTEB calls its model",
    "models": "the package of their families; in experiments those that are compared",
    "pgvector_table": "in readers the names of 0.2, which are deprecated",
    "postgres": "a kind of store, and a kind of source that is adopted",
    "qdrant": "a kind of store, and a kind of source that is adopted",
    "search": "of a collection; in qdrant_base the requests that it makes",
}
SHARED_CLASSES = {  # why two may have it
    "CDERetriever": "Haystack's and LangChain's name for ours, each in a distribution of its own",
    "CDEVectorStore": "LangChain's and LlamaIndex's name for ours, each in a distribution of its own",
}
MODULES, PACKAGES = 9, 14
FAMILY = ("config", "network", "graph", "checkpoint")
ENGINE = ("engine", "tables", "search", "index", "verify", "store")
WINGS = {  # one floor plan: files that each wing has, under the same names; who knows one wing knows all
    CORE / "models": (("one_way", "pair", "two_way", "plain", "cross_encoder"), FAMILY),
    CORE / "stores": (("faiss", "postgres", "qdrant", "qdrant_edge"), ENGINE),
}
SHARED_ROOMS = {  # packages next to wings, which are none: what two wings or more have in common
    CORE / "models": {"files", "runtimes"},
    CORE / "stores": {"qdrant_base"},
}

SMALL = {  # modules of less than 60 lines with one caller: why they are no part of it
    "cde_rag.adoption.name_counts": "its caller would have more than 500 lines",
    "cde_rag.embedders.openai_api": "the name by which users import openai_embedder",
    "cde_rag.embedders.plain_vectors": "the name by which users import PlainVectors",
    "cde_rag.evaluation.demo_corpus": "the name by which notebooks and tests import demo_corpus",
    "cde_rag.indexing.partial_records": "its caller would have more than 500 lines",
    "cde_rag.models.cross_encoder.network": "a room of the floor plan",
    "cde_rag.stores.postgres.verify": "a room of the floor plan",
    "cde_rag.stores.qdrant.verify": "a room of the floor plan",
    "cde_rag_training.loop.averaging": "the laboratory averages weights, too",
}


def test_few_rooms_at_the_top() -> None:
    """A folder of modules without `__init__` counts as a package, and no tool would see it otherwise."""
    assert len([path for path in CORE.glob("*.py") if path.stem not in ("__init__", "__main__")]) <= MODULES
    assert len({path.relative_to(CORE).parts[0] for path in CORE.glob("*/**/*.py")}) <= PACKAGES
    folders = {path.parent for folder in (CORE, TRAINING, *LAB) for path in folder.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def modules() -> list[Path]:
    found = {folder: list(folder.rglob("*.py")) for folder in (CORE, TRAINING, *LAB)}
    assert all(found.values()), "no modules: has a folder moved?"
    return [path for paths in found.values() for path in paths]


def classes(paths: Iterable[Path]) -> list[ast.ClassDef]:
    return [node for path in paths for node in classes_of(path)]


@cache
def classes_of(path: Path) -> list[ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_a_name_is_one_class() -> None:
    others = {
        folder: list((ROOT / folder).rglob("*.py"))
        for folder in ("integrations", "lab/benchmarks", "tools", "examples")
    }
    assert all(others.values()), "no modules: has a folder moved?"
    paths = [path for found in others.values() for path in found if "tests" not in path.relative_to(ROOT).parts]
    names = Counter(node.name for node in classes([*modules(), *paths]))
    assert {name for name, count in names.items() if count > 1} == set(SHARED_CLASSES)


def test_an_abstract_class_has_several_subclasses() -> None:
    """An abstract class with one subclass is a class cut in two."""
    subclasses = Counter(
        ast.unparse(base).split("[")[0].split(".")[-1] for node in classes(modules()) for base in node.bases
    )
    abstract = {node.name for node in classes(modules()) if "abstractmethod" in decorators(node)}
    assert abstract
    assert {name for name in abstract if subclasses[name] == 1} == set()


def decorators(node: ast.ClassDef) -> set[str]:
    """Names of the decorators of a class's methods, without their modules."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {ast.unparse(each).split(".")[-1] for method in methods for each in method.decorator_list}


def wings(place: Path) -> set[str]:
    """Packages of a folder that have a floor plan."""
    return {path.parent.name for path in place.glob("*/__init__.py")} - SHARED_ROOMS[place]


def lacking(place: Path, wings: Iterable[str], rooms: Iterable[str]) -> list[str]:
    """Files of the floor plan that wings do not have."""
    rooms = list(rooms)
    return [f"{wing}/{room}" for wing in wings for room in rooms if not (place / wing / f"{room}.py").is_file()]


@pytest.mark.parametrize("place", WINGS, ids=lambda place: place.name)
def test_each_wing_has_the_same_rooms(place: Path) -> None:
    """A new family is one folder of models and one row in families.py; a new engine one folder of stores."""
    expected, rooms = WINGS[place]
    assert wings(place) == set(expected)
    assert lacking(place, expected, rooms) == []


@pytest.mark.parametrize("room", ENGINE)
def test_an_engine_without_a_room_is_noticed(tmp_path: Path, room: str) -> None:
    for other in ENGINE:
        for wing in ("whole", "part"):
            (tmp_path / wing).mkdir(exist_ok=True)
            (tmp_path / wing / f"{other}.py").touch()
    (tmp_path / "part" / f"{room}.py").unlink()
    assert lacking(tmp_path, ("whole", "part"), ENGINE) == [f"part/{room}"]


def test_a_small_module_has_several_callers() -> None:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.lonely_files(ROOT) == set(SMALL)


def test_a_name_is_one_module() -> None:
    """A package counts under its own name; in a command a module is named for its subject, in a wing for its role."""
    planned = {place / wing for place, (names, _) in WINGS.items() for wing in names}
    names = Counter(
        path.parent.name if path.stem == "__init__" else path.stem
        for path in modules()
        if (path.parent.name != "cli" or path.stem in ("__init__", "app"))
        and (path.parent not in planned or path.stem == "__init__")
    )
    doubled = {name for name, count in names.items() if count > 1}
    assert doubled - set(SHARED_NAMES) == set()
    assert set(SHARED_NAMES) - doubled - {"__main__"} == set(), "allowed, and not used"

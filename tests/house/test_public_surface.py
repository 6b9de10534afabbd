"""The names that a user may import. Changing the list below is a decision about the API."""

import importlib
import inspect

import pytest

import cde_rag
from cde_rag import errors

PUBLIC = [
    "AsyncCollection",
    "CDEError",
    "CDEModel",
    "CDEWarning",
    "Canary",
    "Collection",
    "Context",
    "ContextualEmbedder",
    "EmbedderOptions",
    "FunctionEmbedder",
    "Hit",
    "PlainEmbedder",
    "ProcessPool",
    "Record",
    "Tenants",
    "evaluate",
]
METHODS = [
    "add",
    "add_records",
    "audit",
    "backup",
    "calibrate",
    "close",
    "count",
    "create",
    "delete",
    "drift",
    "embed_pending",
    "export",
    "from_files",
    "from_texts",
    "get",
    "import_",
    "inspect",
    "keep_fields",
    "open",
    "plan",  # of 0.2, deprecated
    "prepare_reader",
    "recontextualize",
    "reranked",
    "restore",
    "rollback",
    "scroll",
    "search",
    "search_batch",
    "search_diverse",
    "search_groups",
    "search_parents",
    "searcher",
    "verify",
]
OLD = sorted(cde_rag._OLD_HOMES)  # pyright: ignore[reportPrivateUsage]


def test_public_surface() -> None:
    assert len(PUBLIC) <= 16
    assert cde_rag.__all__ == PUBLIC
    assert dir(cde_rag) == PUBLIC
    assert set(cde_rag._HOMES) <= set(PUBLIC)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_there_and_says_where_it_is_now(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"from cde_rag[.a-z_]+ import {name}$") as warned:
        found = getattr(cde_rag, name)
    (said,) = warned
    assert said.filename == __file__
    with pytest.warns(DeprecationWarning, match=name) as imported:
        exec(f"from cde_rag import {name}")
    assert {one.filename for one in imported} == {"<string>"}  # both times that the import asks for it
    scope: dict[str, object] = {}
    exec(str(said.message).partition("Write: ")[2], scope)
    assert scope[name] is found


def test_recontextualize_is_a_method() -> None:
    with pytest.warns(DeprecationWarning, match=r"collection\.recontextualize\(\)$"):
        found = cde_rag.recontextualize  # pyright: ignore[reportAttributeAccessIssue]
    assert found is cde_rag.Collection.recontextualize


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_under_its_own_name(name: str) -> None:
    assert getattr(cde_rag, name).__name__ == name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'recontextualise'"):
        _ = cde_rag.recontextualise  # pyright: ignore[reportAttributeAccessIssue]


def test_every_error_has_the_one_root_and_is_drawn() -> None:
    own = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert set(own) >= {name for name in (*PUBLIC, *OLD) if name.endswith(("Error", "Warning"))}
    assert all(issubclass(kind, errors.CDEError | errors.CDEWarning) for kind in own.values())
    drawn = importlib.import_module("cde_rag.errors").__doc__ or ""
    assert all(name in drawn for name in own)


def test_the_methods_of_a_collection() -> None:
    """A limit on their number moved halves of verbs into modules where nobody found them; the list is the decision."""
    public = [name for name in dir(cde_rag.Collection) if not name.startswith("_")]
    assert [name for name in public if callable(getattr(cde_rag.Collection, name))] == METHODS

"""The names that a user may import. Changing the list below is a decision about the API."""

import importlib
import inspect

import pytest

import cde_rag
from cde_rag import errors

PUBLIC = [
    "AddReport",
    "ArithmeticEmbedder",
    "CDEError",
    "CDEModel",
    "CDEWarning",
    "Canary",
    "CanaryError",
    "Collection",
    "Context",
    "ContextError",
    "ContextFormatError",
    "ContextMismatchError",
    "ContextMissingError",
    "ContextReusedWarning",
    "ContextualEmbedder",
    "CorpusError",
    "Damage",
    "Drift",
    "EmbedderOptions",
    "FilterError",
    "FunctionEmbedder",
    "Group",
    "Hit",
    "Inspection",
    "MissingExtraError",
    "ModelError",
    "ParentHit",
    "PartialContextWarning",
    "PlainEmbedder",
    "PoolError",
    "ProcessPool",
    "Progress",
    "Recontextualization",
    "Record",
    "ResumeError",
    "Searcher",
    "SmallContextWarning",
    "StoreError",
    "StoreFormatError",
    "TenantError",
    "Tenants",
    "TruncationWarning",
    "UnknownFieldWarning",
    "evaluate",
    "recontextualize",
]


def test_public_surface() -> None:
    assert cde_rag.__all__ == PUBLIC
    assert dir(cde_rag) == PUBLIC
    assert set(cde_rag._HOMES) <= set(PUBLIC)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_under_its_own_name(name: str) -> None:
    assert getattr(cde_rag, name).__name__ == name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'recontextualise'"):
        _ = cde_rag.recontextualise  # pyright: ignore[reportAttributeAccessIssue]


def test_every_error_is_public_and_has_the_one_root() -> None:
    own = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert set(own) == {name for name in PUBLIC if name.endswith(("Error", "Warning"))}
    assert all(issubclass(kind, errors.CDEError | errors.CDEWarning) for kind in own.values())
    drawn = importlib.import_module("cde_rag.errors").__doc__ or ""
    assert all(name in drawn for name in own)


def test_a_collection_has_at_most_24_methods():
    public = [name for name in dir(cde_rag.Collection) if not name.startswith("_")]
    assert sum(callable(getattr(cde_rag.Collection, name)) for name in public) <= 24

"""Examples in docstrings are executed."""

import doctest
import importlib
import pkgutil

import pytest

import cde_rag
import cde_rag_training

MODULES = [
    found.name
    for package in (cde_rag, cde_rag_training)
    for found in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    if not found.name.endswith(".__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0

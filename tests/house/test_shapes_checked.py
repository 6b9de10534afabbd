"""In tests every signature is checked at run time: a wrong shape or type cannot pass unnoticed."""

import importlib
from dataclasses import asdict

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from cde_rag.context.context import Context, ModelIdentity
from cde_rag.records import Record

IDENTITY = ModelIdentity(
    name="two-dims",
    weights_sha256="0" * 64,
    tokenizer_sha256="1" * 64,
    attention="one_way",
    semantics="cde-mini",
    roles="vector",
    prefixes={"query": "", "document": ""},
    max_length=8,
    pooling="mean",
    normalisation="unit",
    dim=2,
)


def context(embeddings: np.ndarray) -> Context:
    return Context.create(IDENTITY, ["a", "b"], embeddings, sampling="random", seed=0, documents_seen=2)


def test_the_right_shape_passes() -> None:
    assert context(np.eye(2, dtype=np.float32)).size == 2


@pytest.mark.parametrize(
    "embeddings",
    [np.zeros(2, np.float32), np.zeros((2, 2), np.float64), np.zeros((2, 2, 1), np.float32)],
    ids=["axes", "dtype", "one axis more"],
)
def test_a_wrong_shape_is_rejected(embeddings: np.ndarray) -> None:
    with pytest.raises(TypeCheckError, match="context_embeddings"):
        context(embeddings)


def test_a_wrong_type_is_rejected() -> None:
    with pytest.raises(TypeCheckError, match="text"):
        Record(**asdict(Record("1", "a")) | {"text": 1})


@pytest.mark.parametrize(
    "name", ["cde_rag.context.context", "cde_rag.embedders.contextual", "cde_rag.model.second_stage"]
)
def test_modules_are_loaded_through_the_checker(name: str) -> None:
    assert type(importlib.import_module(name).__loader__).__module__.startswith("jaxtyping")

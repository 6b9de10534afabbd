"""In tests every signature is checked at run time: a wrong shape or type cannot pass unnoticed."""

import importlib
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
from jaxtyping import Float32, TypeCheckError
from signature_checks import checked

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
    "name", ["cde_rag.context.context", "cde_rag.embedders.contextual", "cde_rag.models.one_way.network"]
)
def test_modules_are_loaded_through_the_checker(name: str) -> None:
    assert type(importlib.import_module(name).__loader__).__module__.startswith("jaxtyping")


def both(some: Float32[np.ndarray, "texts dim"], others: Float32[np.ndarray, "texts dim"]) -> None: ...


def split(some: Float32[np.ndarray, "texts"], parts: int) -> Float32[np.ndarray, "{parts} part"]:
    return some.reshape(2, -1)


def each(some: Float32[np.ndarray, "texts"]) -> Iterator[float]:
    yield from some


def test_an_axis_has_one_length_in_a_call() -> None:
    some = np.zeros((2, 3), np.float32)
    checked(both, typechecker=None)(some, some)
    with pytest.raises(TypeCheckError, match="others"):
        checked(both, typechecker=None)(some, some.T)
    halves = checked(split, typechecker=None)
    assert halves(some[0, :2], 2).shape == (2, 1)
    with pytest.raises(TypeCheckError, match="return"):
        halves(some[0, :2], 1)


def test_a_generator_has_axes_of_its_own() -> None:
    def two(texts: Float32[np.ndarray, "texts"]) -> list[float]:
        return [float(value) for value in checked(each, typechecker=None)(texts[1:])]

    assert checked(two, typechecker=None)(np.ones(3, np.float32)) == [1.0, 1.0]


def test_users_types_are_not_checked_where_they_are_tested(unchecked: None) -> None:
    assert Record(**asdict(Record("1", "a")) | {"text": "b"}).text == "b"
    checked(both, typechecker=None)(1, None)

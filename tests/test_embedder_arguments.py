"""Arguments of embedders of plain models that are refused, and what pickle and copy make of them."""

from copy import copy, deepcopy
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_model import write_transformer
from tiny import WORDS

from cde_rag import ContextualEmbedder, EmbedderOptions, FunctionEmbedder, PlainEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.embedders.plain_vectors import PlainVectors
from cde_rag.embedders.pool import EmbedderSpec
from cde_rag.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
TEXTS = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:5]]


def vowels(texts: list[str]) -> list[list[float]]:
    return [[1.0 + text.count(vowel) for vowel in "aeiou"] for text in texts]


@pytest.fixture
def plain() -> ContextualEmbedder:
    return FunctionEmbedder(vowels, name="vowels", mini_batch_size=4)


@pytest.mark.parametrize("wrong", [{"strategy": "nonsense"}, {"context_size": 0}, {"strategy": "strata"}])
@pytest.mark.parametrize("corpus", [True, False])
@pytest.mark.usefixtures("unchecked")
def test_a_sample_that_is_not_taken_has_valid_arguments_too(
    plain: ContextualEmbedder, wrong: dict[str, Any], *, corpus: bool
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, corpus=corpus, **wrong)


@pytest.mark.parametrize("given", [np.ones(3, np.float32), np.ones((2, 4), np.float32), [[1.0]], np.zeros((2, 5))])
@pytest.mark.usefixtures("unchecked")
def test_vectors_to_keep_of_another_shape_are_refused(plain: ContextualEmbedder, tmp_path: Path, given: Any) -> None:
    kept = plain.with_plain_vectors(PlainVectors(tmp_path / "kept.sqlite"))
    with pytest.raises(ModelError, match=r"Expected vectors of shape \(2, \d+\) that are not zero, found"):
        kept.keep(TEXTS[:2], given)


def test_an_embedder_of_a_function_is_pickled_with_the_function() -> None:
    made = ArithmeticEmbedder.from_corpus(
        TEXTS, model=FunctionEmbedder(vowels, name="vowels", mini_batch_size=3), weight=0.3
    )
    again = ForkingPickler.loads(ForkingPickler.dumps(made))
    assert (again.fingerprint, again.mini_batch_size, again.max_siblings) == (made.fingerprint, 3, made.max_siblings)
    np.testing.assert_array_equal(again.embed_documents(TEXTS), made.embed_documents(TEXTS))


def test_a_worker_has_the_attention_that_was_asked_for() -> None:
    """Else one with flash-attn would take it where "sdpa" was given."""
    options = EmbedderOptions(device="cpu", attn_implementation="sdpa")
    made = ContextualEmbedder.from_corpus(TEXTS, model="cde-mini-1", options=options)
    again = ForkingPickler.loads(ForkingPickler.dumps(made))
    assert (made.model.given_attention, again.model.given_attention) == ("sdpa", "sdpa")
    usual = ContextualEmbedder.from_corpus(TEXTS, model="cde-mini-1")
    assert ContextualEmbedder.from_spec(EmbedderSpec.of(usual)).model.given_attention == "auto"


def test_an_embedder_that_no_other_process_can_make_is_not_pickled(tmp_path: Path) -> None:
    local = FunctionEmbedder(lambda texts: vowels(texts), name="vowels")
    folder = PlainEmbedder(write_transformer(tmp_path / "model"), options=EmbedderOptions(device="cpu"))
    with pytest.raises(Exception, match="lambda"):
        ForkingPickler.dumps(local)
    with pytest.raises(ModelError, match="Make the embedder in the process that uses it"):
        ForkingPickler.dumps(folder)
    for one in (local, folder):
        again = copy(one)
        assert again is not one
        assert (again.model, again.context, deepcopy(one)) == (one.model, one.context, one)

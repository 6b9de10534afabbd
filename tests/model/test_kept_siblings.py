"""First-stage vectors of siblings, which are kept for the next passages of the same page."""

import copy
from collections.abc import Sequence

import numpy as np
import pytest

from cde_rag import Context, ContextualEmbedder
from cde_rag.models import CDEModel, token_batches


@pytest.fixture
def read(tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that the first stage reads."""
    texts, first_stage = list[str](), tiny_model.first_stage

    def noted(some: Sequence[str], **options: int):
        texts.extend(some)
        return first_stage(some, **options)

    monkeypatch.setattr(tiny_model, "first_stage", noted)
    monkeypatch.setattr(tiny_model, "kept_siblings", token_batches.KeptVectors())
    return texts


def test_the_next_passages_of_a_page_read_no_sibling_again(tiny_model: CDEModel, read: list[str]):
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    siblings = ["the river", "a bank", "the mill"]
    first = embedder.embed_passages(["a boat"], [siblings]).vectors
    again = embedder.embed_passages(["a boat", "the sea"], [siblings, [*siblings, "a mill"]]).vectors
    assert read == [*siblings, "a mill"]
    np.testing.assert_allclose(again[:1], first, atol=1e-6)
    other = ContextualEmbedder(CDEModel(tiny_model.stages, tiny_model.tokenizer, "0" * 64), embedder.context)
    fresh = other.embed_passages(["the sea"], [[*siblings, "a mill"]]).vectors
    np.testing.assert_allclose(again[1:], fresh, atol=1e-6)


def test_copies_of_a_model_keep_none_of_its_vectors(tiny_model: CDEModel):
    context, siblings = Context.null(tiny_model), [["the river", "a bank"]]
    first = ContextualEmbedder(tiny_model, context).embed_passages(["a boat"], siblings).vectors
    other, changed = copy.deepcopy(tiny_model), copy.deepcopy(tiny_model)
    again = ContextualEmbedder(other, context).embed_passages(["a boat"], siblings).vectors
    np.testing.assert_allclose(again, first, atol=1e-6)  # siblings that are kept were read in another batch
    for weight in changed.network.first_stage.parameters():
        weight.data.mul_(-1.5)
    own = ContextualEmbedder(changed, context).embed_passages(["a boat"], siblings).vectors
    assert np.abs(own - first).max() > 1e-4


def test_the_last_ones_are_kept(tiny_model: CDEModel, read: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_batches, "KEPT", 2)
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    for siblings in (["the river", "a bank", "the mill"], ["the mill", "a bank"], ["the river"]):
        embedder.embed_passages(["a boat"], [siblings])
    assert read == ["the river", "a bank", "the mill", "the river"]

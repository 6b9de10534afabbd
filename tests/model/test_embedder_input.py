"""Bad input to the embedder: a clear error, or a warning with the number of texts it is about."""

import numpy as np
import pytest
from tiny import tiny_cde_model, tiny_network, tiny_tokenizer

from cde_rag import Context, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, TruncationWarning
from cde_rag.models import CDEModel
from cde_rag.models.tokenizer import TextTokenizer


@pytest.fixture
def embedder(tiny_model):
    return ContextualEmbedder(tiny_model, Context.null(tiny_model))


@pytest.mark.parametrize("call", ["embed_documents", "embed_queries"])
def test_one_text_where_a_list_is_due(embedder, call):
    with pytest.raises(TypeError, match=rf"{call} takes a list of texts .* pass \["):
        getattr(embedder, call)("river")


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_blank_text_is_named_by_its_position(embedder, blank):
    with pytest.raises(CorpusError, match="Text 1 is empty or blank"):
        embedder.embed_documents(["river", blank])


def test_position_counts_from_the_start_of_the_call(embedder):
    with pytest.raises(CorpusError, match="Text 1030 is empty"):
        embedder.embed_documents(["river"] * 1030 + [""])


def test_lone_surrogate_is_refused(embedder):
    with pytest.raises(CorpusError, match="Text 0 is not valid Unicode"):
        embedder.embed_queries(["bank \ud800 loan"])


def test_nul_is_a_character(embedder):
    assert np.isfinite(embedder.embed_documents(["bank\0loan", "\0 a"])).all()


def test_no_texts_are_no_vectors(embedder):
    assert embedder.embed_documents([]).shape == (0, 16)


def test_long_texts_are_cut_and_counted(embedder):
    long = "river " * 200_000  # more than a megabyte
    with pytest.warns(TruncationWarning, match="1 of 2 texts exceed the limit of 32 tokens"):
        vectors = embedder.embed_documents([long, "bank"])
    with pytest.warns(TruncationWarning):
        np.testing.assert_allclose(embedder.embed_documents([long + "bank"])[0], vectors[0], atol=1e-6)


def test_as_many_parents_as_texts(embedder):
    with pytest.raises(CorpusError, match=r"one parent .* per text: 2, found 1"):
        embedder.embed_documents(["river", "bank"], parents=["p"])


def test_context_of_other_weights_is_refused(tiny_model):
    other = tiny_cde_model(seed=1)
    with pytest.raises(ContextMismatchError, match="made by 'tiny': load that model, or fit a new context"):
        ContextualEmbedder(other, Context.null(tiny_model))


def test_context_of_another_tokenizer_is_refused(tiny_model):
    words = TextTokenizer(tiny_tokenizer().replace('"lowercase":true', '"lowercase":false'))
    other = CDEModel(tiny_network(), words, "0" * 64, device="cpu", dtype="float32")
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(other, Context.null(tiny_model))


@pytest.mark.usefixtures("unchecked")
def test_unknown_strategy_and_stray_strata(tiny_model):
    with pytest.raises(ValueError, match="found 'best'"):
        ContextualEmbedder.from_corpus(["river"], model=tiny_model, strategy="best")
    with pytest.raises(ValueError, match="come together"):
        ContextualEmbedder.from_corpus(["river"], model=tiny_model, strata=["a"])
    with pytest.raises(ValueError, match="come together"):
        ContextualEmbedder.from_corpus(["river"], model=tiny_model, strategy="strata")


def test_empty_corpus(tiny_model):
    with pytest.raises(CorpusError):
        ContextualEmbedder.from_corpus([], model=tiny_model)


@pytest.mark.usefixtures("unchecked")
def test_dtype_is_chosen_where_the_model_is_loaded(tiny_model):
    with pytest.raises(TypeError, match=r"CDEModel\.from_pretrained"):
        ContextualEmbedder(tiny_model, Context.null(tiny_model), options=EmbedderOptions(dtype="float32"))
    with pytest.raises(ModelError, match="found 'int4'"):
        CDEModel(tiny_network(), TextTokenizer(tiny_tokenizer()), "0" * 64, dtype="int4")


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)])
def test_a_batch_of_no_texts_is_refused_before_a_model_is_loaded(tiny_model, size, error):
    """With -1, vectors were what had been in memory before."""
    with pytest.raises(error, match="mini_batch_size"):
        ContextualEmbedder("no-such-model", Context.null(tiny_model), options=EmbedderOptions(mini_batch_size=size))
    with pytest.raises(error, match="mini_batch_size"):
        ContextualEmbedder.from_corpus(
            ["a river"], model="no-such-model", options=EmbedderOptions(mini_batch_size=size)
        )
    with pytest.raises(error, match="mini_batch_size"):
        PlainEmbedder("no-such-model", options=EmbedderOptions(mini_batch_size=size))
    with pytest.raises(error, match="mini_batch_size"):
        tiny_model.first_stage(["a river", "a bank"], mini_batch_size=size)

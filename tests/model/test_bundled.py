"""The model in the wheel, on real texts: it loads offline, is small, its context acts, and bf16 is the same space."""

import itertools

import numpy as np
import pytest

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.demo.corpus import documentation
from cde_rag.model import checkpoints

TEXTS = 1000


@pytest.fixture(scope="module")
def texts():
    return [record.text for record in itertools.islice(documentation(), TEXTS)]


@pytest.fixture(scope="module", params=["cde-mini-0", "cde-mini-1"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def single(name):
    return CDEModel.from_pretrained(name, device="cpu", dtype="float32")


def embed(model, context, texts):
    return ContextualEmbedder(model, context).embed_passages(texts, [[]] * len(texts)).vectors


def test_files_are_complete_and_small(name):
    folder = checkpoints.find(name)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 35e6


def test_name_is_exact(single, name):
    assert single.identity.name == checkpoints.find(name).name == single.config.name == name
    assert single.identity.dim == 384


@pytest.mark.slow
def test_bf16_is_the_same_space(single, name, texts):
    half = CDEModel.from_pretrained(name, device="cpu", dtype="bfloat16")
    context = ContextualEmbedder.from_corpus(texts, model=single).context
    cosines = (embed(single, context, texts) * embed(half, context, texts)).sum(axis=1)
    assert half.identity == single.identity
    assert np.percentile(cosines, 1) >= 0.999


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cde_rag.TruncationWarning")
def test_context_and_siblings_act(single, texts):
    own = ContextualEmbedder.from_corpus(texts, model=single)
    few = texts[:200]
    lone = own.embed_passages(few, [[]] * 200).vectors
    assert (lone * embed(single, Context.null(single), few)).sum(axis=1).mean() <= 0.99
    with_siblings = own.embed_documents(few, parents=[str(number // 8) for number in range(200)])
    assert (lone * with_siblings).sum(axis=1).mean() <= 0.995

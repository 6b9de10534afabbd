"""What must not change a vector, and what must.

Contract: a text's vector depends on the text, its role, the context as a set, the first of its siblings, and the others
as a set. Not on the order of the context, on what else is in the batch, on padding, or on when the context was prepared
(1e-5 in float32). All of it is tested on a model whose gates are open, since with closed gates everything is equal to
everything.
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import Context, ContextualEmbedder, EmbedderOptions
from cde_rag.context.sampling import Sample
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.errors import SmallContextWarning
from cde_rag.models import CDEModel
from cde_rag.models.one_way.attention import attention
from cde_rag.models.one_way.context_path import sibling_weight
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.tokenizer import TextTokenizer

TOLERANCE = 1e-5
texts_of_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=25).map(" ".join)


def corpus(size: int, *, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    words = WORDS[:10] if seed % 2 else WORDS[10:]
    return [f"{' '.join(random.choice(words, size=8))} {'abcdefghij'[number % 10]}{number}" for number in range(size)]


def context_of(model, documents, **changes):
    return fit(model, Sample(documents=documents, documents_seen=len(documents)), strategy="random", seed=0)


@pytest.fixture(scope="module")
def embedder(tiny_model):
    return ContextualEmbedder(tiny_model, context_of(tiny_model, corpus(40, seed=1)))


@pytest.fixture(scope="module")
def texts():
    return ["river", "the bank of the river", "interest " * 12, "a loan", "water and fish in the delta " * 3]


def moved(first, second):
    return float(np.abs(first - second).max())


def test_another_context_moves_every_vector(tiny_model, embedder, texts):
    other = ContextualEmbedder(tiny_model, context_of(tiny_model, corpus(40, seed=2)))
    null = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    own = embedder.embed_documents(texts)
    for foreign in (other, null):
        assert np.abs(own - foreign.embed_documents(texts)).max(axis=1).min() > 1e-2
        assert foreign.fingerprint != embedder.fingerprint


def test_role_moves_vectors(embedder, texts):
    assert moved(embedder.embed_documents(texts), embedder.embed_queries(texts)) > 1e-2


def test_vectors_are_float32_of_unit_norm_in_the_order_of_the_texts(embedder, texts):
    vectors = embedder.embed_documents(texts)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(texts), 16))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(embedder.embed_documents(texts[::-1]), vectors[::-1], atol=TOLERANCE)


@settings(max_examples=25)
@given(st.lists(texts_of_words, min_size=1, max_size=9), st.integers(1, 9))
def test_batched_equals_single(tiny_model, batch, size):
    context = context_of(tiny_model, corpus(20, seed=1))
    alone = ContextualEmbedder(tiny_model, context, options=EmbedderOptions(mini_batch_size=1))
    together = ContextualEmbedder(tiny_model, context, options=EmbedderOptions(mini_batch_size=size))
    one_by_one = np.concatenate([alone.embed_documents([text]) for text in batch])
    np.testing.assert_allclose(together.embed_documents(batch), one_by_one, atol=TOLERANCE)


def test_cached_context_equals_fresh_one(tiny_model, embedder, texts):
    for text in texts:
        fresh = ContextualEmbedder(tiny_model, embedder.context).embed_queries([text])
        np.testing.assert_allclose(embedder.embed_queries([text]), fresh, atol=TOLERANCE)


@pytest.mark.parametrize("size", [1, 7, 511, 512, 600])
def test_context_is_a_set_of_any_size(tiny_model, texts, size):
    documents = corpus(size, seed=1)
    forward = ContextualEmbedder(tiny_model, context_of(tiny_model, documents))
    backward = ContextualEmbedder(tiny_model, context_of(tiny_model, documents[::-1]))
    assert forward.context.size == size
    assert forward.fingerprint == backward.fingerprint
    np.testing.assert_allclose(forward.embed_documents(texts), backward.embed_documents(texts), atol=TOLERANCE)


def test_a_repeated_document_counts_as_often(tiny_model, texts):
    once = corpus(6, seed=1)
    doubled = ContextualEmbedder(tiny_model, context_of(tiny_model, once * 2))
    tilted = ContextualEmbedder(tiny_model, context_of(tiny_model, once + once[:1] * 9))
    plain = ContextualEmbedder(tiny_model, context_of(tiny_model, once))
    np.testing.assert_allclose(doubled.embed_documents(texts), plain.embed_documents(texts), atol=TOLERANCE)
    assert moved(tilted.embed_documents(texts), plain.embed_documents(texts)) > 1e-3
    assert len({embedder.fingerprint for embedder in (doubled, tilted, plain)}) == 3


def test_siblings_move_a_document_and_no_query(embedder, texts):
    lone = embedder.embed_documents(texts)
    together = embedder.embed_documents(texts, parents=["p"] * len(texts))
    assert np.abs(lone - together).max(axis=1).min() > 1e-2


def test_siblings_are_a_set_but_for_the_first(embedder):
    first, *others = siblings = ["the river", "a boat in water", "flood risk"]
    forward = embedder.embed_passages(["delta"], [siblings]).vectors
    turned = embedder.embed_passages(["delta"], [[first, *others[::-1]]]).vectors
    np.testing.assert_allclose(turned, forward, atol=TOLERANCE)
    assert moved(embedder.embed_passages(["delta"], [siblings[::-1]]).vectors, forward) > 1e-3
    assert moved(embedder.embed_passages(["delta"], [siblings[:2]]).vectors, forward) > 1e-3


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_first_sibling_has_its_share_of_the_output(share):
    network = tiny_network()
    second = network.second_stage
    second.gates.zero_()  # the output alone tells of siblings
    second.lead_share = share
    model = CDEModel(network, TextTokenizer(tiny_tokenizer()), "0" * 64, device="cpu", dtype="float32")
    embedder = ContextualEmbedder(model, context_of(model, corpus(40, seed=1)))
    siblings = ["the river", "a boat in water", "flood risk"]
    found, turned, other = (
        embedder.embed_passages(["delta"], [group]).vectors
        for group in (siblings, siblings[::-1], [siblings[0], "a loan", "interest"])
    )
    assert (moved(found, turned) < TOLERANCE) == (share == 0)
    assert (moved(found, other) < TOLERANCE) == (share == 1)


vectors = arrays(np.float32, st.tuples(st.integers(2, 12), st.just(4)), elements=st.floats(-1, 1, width=32))


@given(vectors, st.floats(0.05, 1), st.data())
def test_siblings_weigh_by_the_mean_cosine_of_different_documents(rows, full, data):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.where(norms < 1e-3, np.eye(4, dtype=np.float32)[0], rows / np.maximum(norms, 1e-3))
    counts = np.array(data.draw(st.lists(st.integers(1, 5), min_size=len(rows), max_size=len(rows))))
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    cosines = [float(rows[i] @ rows[j]) for i, j in pairs]
    likeness = np.average(cosines, weights=[counts[i] * counts[j] for i, j in pairs])
    found = sibling_weight(torch.from_numpy(rows), torch.from_numpy(counts), full)
    assert float(found) == pytest.approx(min(max(likeness / full, 0), 1), abs=1e-4)
    assert float(sibling_weight(torch.from_numpy(rows), torch.from_numpy(counts), 0.0)) == 1


def test_siblings_weigh_by_how_often_a_document_stands_there():
    random = torch.Generator().manual_seed(0)
    rows, counts = F.normalize(torch.randn(3, 16, generator=random) + 1, dim=1), torch.tensor([1, 5, 2])
    cosines, pairs = rows @ rows.T, (counts[:, None] * counts).fill_diagonal_(0)
    found = tiny_network().prepare(rows.clone().requires_grad_(), counts).sibling_weight
    assert float(found) == pytest.approx(float((cosines * pairs).sum() / pairs.sum() / 0.9), abs=1e-5)
    assert 0 < float(found) < 1
    assert not found.requires_grad


def test_a_context_of_one_text_many_times_is_measured_by_the_others():
    rows, counts = F.normalize(torch.tensor([[1.0, 0.3], [0.3, 1.0]]), dim=1), torch.tensor([10**8, 1])
    assert float(sibling_weight(rows, counts, 1.0)) == pytest.approx(float(rows[0] @ rows[1]), abs=1e-4)


def test_siblings_have_half_their_weight_where_no_two_documents_can_be_compared():
    for rows in (torch.zeros(0, 4), torch.eye(4)[:1]):
        assert float(sibling_weight(rows, torch.full((len(rows),), 7), 0.25)) == 0.5


def test_a_corpus_of_unlike_documents_leaves_siblings_out_of_the_output():
    network = tiny_network()
    network.second_stage.gates.zero_()
    given = network.prepare(torch.eye(16)[:8], torch.ones(8, dtype=torch.long))
    ids, mask = pad([[1, 5, 6, 2]])
    siblings, there = torch.eye(16)[None, 9:12], torch.ones(1, 3, dtype=torch.bool)
    text = (network.embeddings, ids, mask, DOCUMENT)
    lone = network.second_stage(*text, given)
    torch.testing.assert_close(network.second_stage(*text, given, siblings, there), lone)
    like = network.second_stage(*text, replace(given, sibling_weight=torch.ones(())), siblings, there)
    assert moved(like.numpy(), lone.numpy()) > 1e-3


def test_batch_of_mixed_families_equals_single(tiny_model, embedder, texts):
    siblings = [["the river", "fish"], [], ["a loan"], [], ["flood", "risk", "delta", "boat"]]
    together = embedder.embed_passages(texts, siblings).vectors
    for row, (text, group) in enumerate(zip(texts, siblings, strict=True)):
        np.testing.assert_allclose(embedder.embed_passages([text], [group]).vectors[0], together[row], atol=TOLERANCE)
    np.testing.assert_allclose(together[1], embedder.embed_documents([texts[1]])[0], atol=TOLERANCE)


def test_parents_are_siblings_in_order(embedder, texts):
    parents = ["p", None, "p", "q", "p"]
    by_parent = embedder.embed_documents(texts, parents=parents)
    siblings = [[texts[2], texts[4]], [], [texts[0], texts[4]], [], [texts[0], texts[2]]]
    np.testing.assert_allclose(by_parent, embedder.embed_passages(texts, siblings).vectors, atol=TOLERANCE)


def test_order_of_the_corpus_changes_nothing(tiny_model, texts):
    documents = corpus(200, seed=1)
    shuffled = np.random.default_rng(3).permutation(documents).tolist()
    first = ContextualEmbedder.from_corpus(documents, model=tiny_model, context_size=64)
    second = ContextualEmbedder.from_corpus(iter(shuffled), model=tiny_model, context_size=64)
    assert first.fingerprint == second.fingerprint
    assert first.context.size == 64
    np.testing.assert_allclose(first.embed_documents(texts), second.embed_documents(texts), atol=TOLERANCE)


def test_a_small_corpus_is_its_own_context(tiny_model):
    with pytest.warns(SmallContextWarning, match="only 5 different documents"):
        embedder = ContextualEmbedder.from_corpus(corpus(5, seed=1), model=tiny_model)
    assert embedder.context.size == 5


@pytest.mark.parametrize("masked", [True, False])
def test_plain_attention_of_training_is_torchs_with_all_gradients(masked):
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 2, count, 4, dtype=torch.float64, requires_grad=True) for count in (5, 7, 7))
    mask = torch.arange(7)[None, None, None, :] < torch.tensor([7, 3, 1])[:, None, None, None] if masked else None
    weights = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    found, expected = (
        (answer, *torch.autograd.grad((answer * weights).sum(), (query, key, value)))
        for answer in (attention(query, key, value, mask), F.scaled_dot_product_attention(query, key, value, mask))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_training_reads_a_text_as_embedding_does(tiny_model):
    network = tiny_model.network
    ids, mask = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]]), torch.tensor([[True] * 4, [True] * 3 + [False]])
    prepared = network.prepare(torch.eye(network.config.dim)[:3], torch.ones(3, dtype=torch.long))
    embedded = network.second_stage(network.embeddings, ids, mask, 1, prepared)
    network.train()
    trained = network.second_stage(network.embeddings, ids, mask, 1, prepared)
    network.eval()
    torch.testing.assert_close(trained, embedded, rtol=0, atol=TOLERANCE)


def test_a_lower_layer_without_context_is_one_whose_gates_are_closed(tiny_model, texts):
    """A model whose context enters in the topmost layer only, beside one that lets nothing in below it."""
    closed, topmost = (deepcopy(tiny_model.network) for _ in range(2))
    with torch.no_grad():
        closed.second_stage.gates[0] = 0.0
    topmost.config = replace(topmost.config, context_layers=1)
    topmost.second_stage.given = topmost.second_stage.given[1:]
    topmost.second_stage.gates = torch.nn.Parameter(topmost.second_stage.gates[1:])
    assert {name: value.shape for name, value in topmost.state_dict().items()} == {
        name: value.shape for name, value in TwoStage(topmost.config).state_dict().items()
    }
    embedded = []
    for network in (closed, topmost):
        model = CDEModel(network, tiny_model.tokenizer, "0" * 64, device="cpu", dtype="float32")
        found = ContextualEmbedder(model, context_of(model, corpus(40, seed=1)))
        siblings = [["a river", "the bank"]] * len(texts)
        embedded.append((found.embed_queries(texts), found.embed_passages(texts, siblings).vectors))
    for first, second in zip(*embedded, strict=True):
        assert moved(first, second) < TOLERANCE
    own = ContextualEmbedder(tiny_model, context_of(tiny_model, corpus(40, seed=1)))
    assert moved(own.embed_queries(texts), embedded[1][0]) > 1e-2

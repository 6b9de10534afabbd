"""The cached approximation of a two-way model: what it is exactly, and that it never passes for the exact model.

Contract: text states are those of the native backbone under a mask that keeps context and soft tokens from seeing the
text; so with no text to see, nothing is approximated. Its vectors have a fingerprint of their own.
"""

import numpy as np
import pytest
import torch
from golden import V1, V2, golden, tiny_two_way, write_folder

from cde_rag import CDEModel, ContextualEmbedder, EmbedderOptions
from cde_rag.errors import ContextMismatchError, ModelError

WINDOW = 4  # tokens that a local layer of the golden ModernBERT sees each way


@pytest.fixture(params=[V1, V2])
def network(request, monkeypatch):
    return tiny_two_way(monkeypatch, request.param, "train")


def read(network):
    """A golden's documents, and the tokens before them."""
    name = V1 if network.config.family == "nomic_bert" else V2
    inputs, outputs = golden(name, "inputs"), golden(name, "outputs")
    context = outputs["train.first_stage.context_embeddings"]
    tokens = network.second_stage.prepare(context[None]).tokens
    return inputs["doc_input_ids"], inputs["doc_attention_mask"].bool(), tokens


def test_layers_one_by_one_are_the_native_ones(network):
    ids, mask, tokens = read(network)
    backbone = network.second_stage.backbone
    given = tokens.expand(len(ids), -1, -1)
    whole = torch.cat([mask.new_ones(given.shape[:2]), mask], dim=1)
    sequence = torch.cat([backbone.layers.embed_given(given), backbone.layers.embed_text(ids)], dim=1)
    states = backbone.layers.run(sequence, whole)[0]
    torch.testing.assert_close(
        states * whole[..., None], backbone.read_after(given, ids, whole) * whole[..., None], atol=1e-4, rtol=1e-4
    )


def test_cached_is_the_native_backbone_with_a_mask(network):
    ids, mask, tokens = read(network)
    backbone, count = network.second_stage.backbone, tokens.shape[1]
    given = tokens.expand(len(ids), -1, -1)
    whole = torch.cat([mask.new_ones(given.shape[:2]), mask], dim=1)
    places = torch.arange(whole.shape[1])
    seen = whole[:, None, None, :] & ~((places[:, None] < count) & (places >= count))
    near = (places[:, None] - places).abs() <= WINDOW
    native_mask = {"full_attention": seen, "sliding_attention": seen & near}
    if network.config.family == "nomic_bert":
        kind = backbone.native.embeddings.token_type_embeddings.weight[0]
        sequence = torch.cat([given - kind, backbone.native.embeddings.word_embeddings(ids)], dim=1)
        positions = torch.where(places < network.config.trained_context_size, 0, places)[None]
        expected = backbone.native(inputs_embeds=sequence, attention_mask=seen, position_ids=positions)
    else:
        sequence = torch.cat([given, backbone.native.embeddings(input_ids=ids)], dim=1)
        expected = backbone.native(inputs_embeds=sequence, attention_mask=native_mask)
    found = backbone.read_after_prepared(backbone.prepare(tokens), ids, mask)
    torch.testing.assert_close(
        found * mask[..., None], expected.last_hidden_state[:, count:] * mask[..., None], atol=1e-4, rtol=1e-4
    )


@pytest.fixture(params=[(V1, "train"), (V1, "hf_model_py"), (V2, "train"), (V2, "hub")], ids="-".join)
def pair(request, tmp_path, tiny_backbones):
    """The same model, exact and cached."""
    name, semantics = request.param
    folder = write_folder(tmp_path / "model", name)
    options = {"device": "cpu", "dtype": "float32", "semantics": semantics}
    return CDEModel.from_pretrained(folder, **options), CDEModel.from_pretrained(
        folder, attention="two_way_cached", **options
    )


@pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")
def test_a_space_of_its_own(pair):
    corpus, texts = (
        [f"the {word} of {word}" for word in "river bank money fish boat risk credit loan".split()],
        ["river", "the bank of money " * 3],
    )
    exact, cached = (ContextualEmbedder.from_corpus(corpus, model=model) for model in pair)
    assert exact.fingerprint != cached.fingerprint
    assert (exact.context.identity.attention, cached.context.identity.attention) == ("two_way", "two_way_cached")
    assert CDEModel.from_pretrained(cached.context.identity.name).identity == cached.context.identity
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(pair[0], cached.context)
    assert np.abs(exact.embed_documents(texts) - cached.embed_documents(texts)).max() > 1e-3  # an approximation
    alone = ContextualEmbedder(pair[1], cached.context, options=EmbedderOptions(mini_batch_size=1))
    np.testing.assert_allclose(alone.embed_queries(texts), cached.embed_queries(texts), atol=1e-5)


def test_other_kinds_of_attention_are_refused(pair):
    with pytest.raises(ModelError, match="Expected attention 'two_way' or"):
        CDEModel.from_pretrained(pair[0].identity.name, attention="sideways")

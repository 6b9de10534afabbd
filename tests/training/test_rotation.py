from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import Context, ContextualEmbedder
from cde_rag.context.sampling import Sample
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.errors import CorpusError, ModelError
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.networks.rotation import rotate_model, shared_axes
from cde_rag_training.presets import preset


def corpus(size, *, seed):
    random = np.random.default_rng(seed)
    return [f"{' '.join(random.choice(WORDS, size=8))} {'abcdefghij'[number % 10]}{number}" for number in range(size)]


def embedder_of(network, documents):
    model = CDEModel(network, TextTokenizer(tiny_tokenizer()), "0" * 64, device="cpu", dtype="float32")
    if not documents:
        return ContextualEmbedder(model, Context.null(model))
    sample = Sample(documents=documents, documents_seen=len(documents))
    return ContextualEmbedder(model, fit(model, sample, strategy="random", seed=0))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_stub(tmp_path_factory.mktemp("data") / "prepared")


def test_axes_are_orthogonal_and_what_pairs_share_comes_first():
    """Long directions in which a query says nothing of its document come after short ones in which it does."""
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4)).Q
    shared = torch.randn(20_000, 4) * torch.tensor([0.5, 1.0, 0.0, 0.7])
    noise = torch.tensor([0.1, 0.1, 3.0, 0.1])
    queries, documents = ((shared + torch.randn(20_000, 4) * noise) @ turn for _ in range(2))
    axes = shared_axes(queries, documents)
    torch.testing.assert_close(axes.T @ axes, torch.eye(4), rtol=0, atol=1e-5)
    agreement = ((queries @ axes) * (documents @ axes)).mean(dim=0)
    torch.testing.assert_close(agreement, torch.tensor([1.0, 0.49, 0.25, 0.0]), rtol=0.1, atol=0.1)


def test_a_rotation_changes_no_score_under_any_context():
    plain = tiny_network()
    turned = deepcopy(plain)
    turned.config = replace(plain.config, rotated=True)
    torch.manual_seed(1)
    turned.rotation = torch.linalg.qr(torch.randn(plain.config.dim, plain.config.dim)).Q
    texts = corpus(12, seed=3)
    siblings = [[other] for other in reversed(texts)]
    for seed in (None, 4, 5):
        vectors = []
        for network in (plain, turned):
            embedder = embedder_of(network, [] if seed is None else corpus(40, seed=seed))
            vectors.append((embedder.embed_queries(texts), embedder.embed_passages(texts, siblings).vectors))
        (queries, documents), (turned_queries, turned_documents) = vectors
        np.testing.assert_allclose(turned_queries @ turned_documents.T, queries @ documents.T, atol=1e-5)
        assert np.abs(turned_documents - documents).max() > 0.1


@pytest.fixture
def trained(tmp_path):
    checkpoints.write(tmp_path / "trained", tiny_network(), tiny_tokenizer())
    return tmp_path / "trained"


@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_a_rotated_model_finds_the_same_and_its_first_dimensions_tell_most(trained, prepared, tmp_path):
    folder = rotate_model(trained, prepared, tmp_path / "turned")
    before, after = CDEModel.from_pretrained(trained), CDEModel.from_pretrained(folder)
    assert Context.null(after).fingerprint != Context.null(before).fingerprint  # never mixed with what it was made of
    asked, held = ([prepared.text(row) for row in rows] for rows in (prepared.queries, prepared.documents))
    vectors = []
    for model in (before, after):
        embedder = ContextualEmbedder(model, Context.null(model))
        vectors.append((embedder.embed_queries(asked), embedder.embed_documents(held)))
    (queries, documents), (turned_queries, turned_documents) = vectors
    np.testing.assert_allclose(turned_queries @ turned_documents.T, queries @ documents.T, atol=0.03)  # stored in int8
    agreement = (turned_queries * turned_documents).mean(axis=0)
    assert agreement[:8].sum() > (queries * documents).mean(axis=0)[:8].sum()
    assert agreement[:4].min() > agreement[-4:].max()


def test_a_model_that_is_turned_twice_is_turned_by_both(trained, prepared, tmp_path, monkeypatch):
    torch.manual_seed(2)
    first, second = (torch.linalg.qr(torch.randn(16, 16)).Q.contiguous() for _ in range(2))
    folders = [trained]
    for name, axes in (("once", first), ("again", second)):
        monkeypatch.setattr("cde_rag_training.networks.rotation.shared_axes", lambda *_, axes=axes: axes)
        folders.append(rotate_model(folders[-1], prepared, tmp_path / name))
    plain, once, again = (checkpoints.read(folder)[0] for folder in folders)
    rounding = {"rtol": 0, "atol": 0.02}  # rotations too are stored in int8
    torch.testing.assert_close(once.rotation, first, **rounding)
    torch.testing.assert_close(again.rotation, first @ second, **rounding)
    texts = corpus(30, seed=2)
    vectors, turned = (embedder_of(network, []).embed_documents(texts) for network in (plain, again))
    np.testing.assert_allclose(turned @ turned.T, vectors @ vectors.T, atol=0.05)


def test_what_cannot_be_turned_is_refused(trained, prepared, tmp_path):
    with pytest.raises(ModelError, match="found one that exists"):
        rotate_model(trained, prepared, trained)
    with pytest.raises(ModelError, match="Expected a bundled model"):
        rotate_model(tmp_path / "none", prepared, tmp_path / "turned")
    with pytest.raises(CorpusError, match="Expected 16 pairs or more"):
        rotate_model(trained, prepared, tmp_path / "turned", pairs=15)
    with pytest.raises(CorpusError, match="with the tokenizer of"):
        rotate_model(trained, replace(prepared, tokenizer_sha256="0" * 64), tmp_path / "turned")
    assert not (tmp_path / "turned").exists()


@pytest.mark.parametrize("name", ["cde-mini-1", "cde-mini-2"])
def test_the_bundled_models_that_are_turned(name):
    """Context in three layers, first dimensions that tell most, and what belongs together found."""
    model = CDEModel.from_pretrained(name)
    config, start = model.network.config, preset("cde-mini").start
    assert (config.context_layers, config.rotated) == (start.context_layers, True)
    assert (config.lead_share, config.full_likeness) == (start.lead_share, start.full_likeness) == (0.67, 0.25)
    texts = ["strptime reads a date from a string", "sorted makes a new list", "a river bank floods", "boats for hire"]
    embedder = ContextualEmbedder(model, Context.null(model))
    documents, queries = embedder.embed_documents(texts), embedder.embed_queries(["parse a date", "sort numbers"])
    assert (queries @ documents.T).argmax(axis=1).tolist() == [0, 1]
    assert np.square(documents[:, :128]).sum(axis=1).min() > 0.5

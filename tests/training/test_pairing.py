"""A pair made of two encoders: both halves' scores on one scale, turned, and read again from its folder."""

import numpy as np
import pytest
import torch
from tiny import WORDS, tiny_network, tiny_tokenizer
from tiny_e5 import PIECES, write_e5

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import CorpusError, ModelError
from cde_rag.model import checkpoints, model_files
from cde_rag_training.data.pairs import Pair
from cde_rag_training.networks.e5_file import E5File
from cde_rag_training.networks.pairing import make_pair, second_share

FIRST, SECOND = 16, 96


def drawn_pairs(count, *, seed=0):
    random = np.random.default_rng(seed)

    def text(size):
        return " ".join(random.choice(WORDS, size=size))

    return [Pair(text(4), text(9), f"source {number % 2}", "d") for number in range(count)]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    sizes = {"dim": SECOND, "layers": 1, "intermediate": 1536, "positions": 512}
    return E5File.read(write_e5(tmp_path_factory.mktemp("wheel"), **sizes))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundled")
    checkpoints.write(root / "tiny", tiny_network(), tiny_tokenizer())
    return root


@pytest.fixture(autouse=True)
def packaged(package, monkeypatch):
    monkeypatch.setattr(model_files, "BUNDLED", package)


@pytest.fixture
def made(file, tmp_path):
    pairs = drawn_pairs(FIRST + SECOND + 8)
    return make_pair(file, pairs, np.arange(len(PIECES) - 1), tmp_path / "made", first="tiny"), pairs


def test_both_halves_scores_have_one_spread(made):
    folder, pairs = made
    model = CDEModel.from_pretrained(folder, device="cpu", dtype="float32")
    network = model.network
    plain = ContextualEmbedder(model, Context.null(model))
    asked, told = (
        vectors @ network.rotation.numpy().T
        for vectors in (
            plain.embed_queries([pair.query for pair in pairs]),
            plain.embed_documents([pair.document for pair in pairs]),
        )
    )
    sources = np.array([pair.source for pair in pairs])
    compared = (sources[:, None] == sources[None, :]) & ~np.eye(len(pairs), dtype=bool)
    spreads = [(asked[:, half] @ told[:, half].T)[compared].std() for half in (slice(FIRST), slice(FIRST, None))]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.02)
    share = network.config.second_share
    np.testing.assert_allclose(np.square(asked[:, FIRST:]).sum(1), share, atol=1e-4)
    assert 0 < share < 1


def test_the_rotation_is_one_and_brings_what_pairs_share_to_the_front(made):
    folder, pairs = made
    model = CDEModel.from_pretrained(folder, device="cpu", dtype="float32")
    rotation = model.network.rotation
    torch.testing.assert_close(rotation.T @ rotation, torch.eye(FIRST + SECOND), atol=1e-4, rtol=0)
    plain = ContextualEmbedder(model, Context.null(model))
    asked = plain.embed_queries([pair.query for pair in pairs])
    told = plain.embed_documents([pair.document for pair in pairs])
    agreement = (asked * told).mean(axis=0)
    assert (np.diff(agreement) < 1e-4).all()
    assert agreement[:20].sum() > 0.9 * agreement.sum()


def test_names_sizes_and_digests_are_those_of_the_halves(made, package):
    folder, _ = made
    config = CDEModel.from_pretrained(folder, device="cpu").config
    *_, digest = checkpoints.read(package / "tiny")
    assert (config.name, config.first, config.first_sha256) == ("made", "tiny", digest)
    assert (config.dim, config.second_dim, config.layers, config.vocab_size) == (112, 96, 1, len(PIECES) - 1)


def test_too_few_pairs_and_an_existing_folder_are_refused(file, tmp_path):
    kept = np.arange(len(PIECES))
    with pytest.raises(CorpusError, match="Expected 112 pairs or more, one for each axis, found 111"):
        make_pair(file, drawn_pairs(111), kept, tmp_path / "few", first="tiny")
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError, match="found one that exists"):
        make_pair(file, drawn_pairs(120), kept, tmp_path / "there", first="tiny")
    with pytest.raises(ModelError, match="Expected a bundled model"):
        make_pair(file, drawn_pairs(120), kept, tmp_path / "new", first="nobody")


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_share_makes_up_for_a_half_that_spreads_more(factor):
    random = np.random.default_rng(0)
    half = [random.normal(size=(40, 5)).astype("f4") for _ in range(2)]
    queries, documents = (np.concatenate([each, np.float32(factor) * each], axis=1) for each in half)
    share = second_share(queries, documents, ["a"] * 40, 5)
    assert share == pytest.approx(1 / (1 + factor**2), rel=1e-4)


def test_only_other_documents_of_the_same_source_are_compared():
    random = np.random.default_rng(1)
    queries, documents = (random.normal(size=(30, 8)).astype("f4") for _ in range(2))
    sources = ["a"] * 15 + ["b"] * 15
    share = second_share(queries, documents, sources, 4)
    spread = []
    for half in (slice(0, 4), slice(4, 8)):
        scores = queries[:, half] @ documents[:, half].T
        rows = [scores[i, j] for i in range(30) for j in range(30) if i != j and sources[i] == sources[j]]
        spread.append(np.std(rows))
    assert share == pytest.approx(spread[0] / (spread[0] + spread[1]), rel=1e-5)

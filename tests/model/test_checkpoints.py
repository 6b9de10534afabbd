"""Weights on disk: what is written comes back, and nothing that is not quite right is loaded."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save
from tiny import tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.model import checkpoints
from cde_rag.model.config import ModelConfig
from cde_rag.model.stored_tensors import float_state
from cde_rag.model.two_stage import TwoStage

TEXTS = ["the river", "a loan of the bank", "water and fish"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written, tmp_path / "copy")


def null_vectors(model):
    return ContextualEmbedder(model, Context.null(model)).embed_documents(TEXTS)


def test_what_is_written_comes_back(written, tiny_model):
    loaded = CDEModel.from_pretrained(written, device="cpu", dtype="float32")
    assert (null_vectors(loaded) * null_vectors(tiny_model)).sum(axis=1).min() > 0.999  # int8
    again = CDEModel.from_pretrained(str(written), device="cpu", dtype="float32")
    np.testing.assert_array_equal(null_vectors(again), null_vectors(loaded))
    assert again.identity == loaded.identity


def test_writing_twice_gives_the_same_bytes(written, tmp_path):
    checkpoints.write(tmp_path, tiny_network(), tiny_tokenizer())
    for name in (checkpoints.CONFIG, checkpoints.WEIGHTS, checkpoints.TOKENIZER):
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


@settings(max_examples=30)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 5), st.sampled_from([3, 64, 128])), elements=st.floats(-9, 9, width=32))
)
def test_int8_moves_no_entry_by_more_than_promised(matrix):
    value = torch.from_numpy(matrix)
    back = torch.from_numpy(float_state(save(checkpoints.quantise({"weight": value})))["weight"])
    width = 64 if matrix.shape[1] % 64 == 0 else matrix.shape[1]
    largest = value.abs().reshape(len(value), -1, width).amax(dim=2, keepdim=True)
    error = (back - value).abs().reshape(len(value), -1, width)
    assert (error <= largest * (1 / 254 + 2**-10) + 1e-5).all()


def test_name_of_the_model_is_no_part_of_its_digest(written):
    config = json.loads((written / "config.json").read_text())
    first = ModelConfig(name="a", dim=16, heads=4)
    assert checkpoints.digest(first, "x") == checkpoints.digest(ModelConfig(name="b", dim=16, heads=4), "x")
    assert checkpoints.digest(first, "x") != checkpoints.digest(ModelConfig(name="a", dim=16, heads=2), "x")
    assert config["name"] == "tiny"


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.TOKENIZER])
def test_a_flipped_bit_is_found(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name}: config.json expects sha256 .* damaged"):
        CDEModel.from_pretrained(copy)


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.TOKENIZER])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(ModelError, match=f"Expected .*{name}"):
        CDEModel.from_pretrained(copy)


def change(folder, **fields):
    path = folder / checkpoints.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_newer_format_is_refused(copy):
    change(copy, format=2)
    with pytest.raises(ModelError, match=r"format 1, found .* format 2. Update cde-rag"):
        CDEModel.from_pretrained(copy)


def test_unknown_fields_are_refused(copy):
    change(copy, colour="red")
    with pytest.raises(ModelError, match="colour"):
        CDEModel.from_pretrained(copy)


@pytest.mark.parametrize("layers", ["2", -1, None, 2.0, True, 10**9])
def test_sizes_are_checked_before_anything_is_built(copy, layers):
    change(copy, layers=layers)
    with pytest.raises(ModelError, match="The config's layers has to be"):
        CDEModel.from_pretrained(copy)


def test_name_is_a_string(copy):
    change(copy, name=None)
    with pytest.raises(ModelError, match="The config's name has to be"):
        CDEModel.from_pretrained(copy)


def test_tensors_have_to_be_those_of_the_config(copy):
    change(copy, layers=3)
    with pytest.raises(ModelError, match="does not hold the tensors"):
        CDEModel.from_pretrained(copy)


def test_config_that_is_no_json(copy):
    (copy / checkpoints.CONFIG).write_text("layers: 2")
    with pytest.raises(ModelError, match=r"Expected a JSON object at .*config\.json"):
        CDEModel.from_pretrained(copy)


def test_a_model_whose_lower_layers_read_no_context(tmp_path):
    config = replace(tiny_network().config, context_layers=1)
    network = TwoStage(config)
    checkpoints.write(tmp_path / "one", network, tiny_tokenizer())
    read, *_ = checkpoints.read(tmp_path / "one")
    assert read.config == config
    assert len(read.second_stage.given) == 1
    for wrong in (0, 3):
        with pytest.raises(ModelError, match="context_layers must be in 1 … layers"):
            replace(config, context_layers=wrong)


def test_how_siblings_weigh_is_kept_where_it_says_something(tmp_path):
    config = tiny_network().config
    checkpoints.write(tmp_path / "weighed", tiny_network(), tiny_tokenizer())
    assert checkpoints.read(tmp_path / "weighed")[0].config == config
    plain = replace(config, lead_share=0.0, full_likeness=0.0)
    assert not {"lead_share", "full_likeness"} & plain.to_json().keys()
    assert ModelConfig.from_json(plain.to_json()) == plain
    for wrong in ({"lead_share": 1.5}, {"full_likeness": -0.1}, {"full_likeness": float("nan")}):
        with pytest.raises(ModelError, match="lead_share and full_likeness must be in 0 … 1"):
            replace(config, **wrong)


def test_contexts_made_with_an_earlier_version_stay_valid():
    """What they are bound to; another digest would lose every collection made with that model."""
    *_, digest = checkpoints.read(checkpoints.find("cde-mini-0"))
    assert digest == "345e2771922a362d060bf4fed04c4e8fb16703588fd2eec1a315ca2833d3caa7"


def test_how_siblings_weigh_is_part_of_a_model_s_identity(tmp_path):
    digests = set[str]()
    for place, weights in enumerate(({}, {"lead_share": 0.5}, {"full_likeness": 0.5})):
        network = tiny_network()
        network.config = replace(network.config, **weights)
        checkpoints.write(tmp_path / str(place), network, tiny_tokenizer())
        digests.add(checkpoints.read(tmp_path / str(place))[-1])
    assert len(digests) == 3


def test_unknown_name_lists_the_known(tmp_path):
    with pytest.raises(ModelError, match=r"cde-mini, cde-mini-0, cde-mini-1.*found .*nothing"):
        CDEModel.from_pretrained(tmp_path / "nothing")


def test_alias_names_a_bundled_model():
    assert checkpoints.find("cde-mini") == checkpoints.find(checkpoints.ALIASES["cde-mini"])

"""The published layout: names, shapes and counts of tensors, configs, and files that are not what they should be."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden import V1, V2, golden, golden_config, tokenizer_json, write_folder
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import MissingExtraError, ModelError
from cde_rag.models.files import weights
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.two_way import checkpoint
from cde_rag.models.two_way import files as published
from cde_rag.models.two_way.network import TwoWay

FULL = {  # sizes of the published configs; tensors and parameters, from cde_reference.md
    "nomic-ai/nomic-bert-2048": (236, 281_140_992),
    "answerdotai/ModernBERT-base": (280, 305_706_240),
}
PICKLE = b"\x80\x04}\x94."  # an empty dict
CONFIG = {"transductive_corpus_size": 512, "max_seq_length": 512}


def full_config(backbone, **fields):
    return published.read_config({"embedder": backbone, **CONFIG, **fields}, ModelName(base="full"))


@pytest.mark.parametrize("backbone", FULL)
def test_counts_of_the_published_models(backbone):
    layout = published.layout(full_config(backbone))
    parameters = sum(torch.Size(shape).numel() for shape in layout.values())
    assert (len(layout), parameters) == FULL[backbone]
    null = published.layout(full_config(backbone, transductive_sequence_dropout_prob=0.005))
    assert null.keys() - layout.keys() == {"second_stage_model.sequence_dropout_null_embedding"}


@pytest.mark.slow
@pytest.mark.parametrize("backbone", FULL)
def test_every_tensor_of_a_full_size_state_has_its_place(backbone):
    config = full_config(backbone)
    with torch.device("meta"):
        state = {name: torch.empty(shape) for name, shape in published.layout(config).items()}
        network = TwoWay(config, prefix_end=0)
    own = checkpoint.own_state(state, config)
    network.load_state_dict(own, strict=True, assign=True)
    assert sum(parameter.numel() for parameter in network.parameters()) == FULL[backbone][1]
    network.restore_tables()
    assert not any(buffer.is_meta for buffer in network.buffers())


@pytest.mark.parametrize("name", [V1, V2])
def test_layout_is_that_of_the_goldens(tiny_backbones, name):
    config = published.read_config(golden_config(name)["cde_config"], ModelName(base=name))
    assert published.layout(config) == {key: tuple(value.shape) for key, value in golden(name, "model").items()}


@pytest.fixture(params=[V1, V2])
def folder(request, tmp_path, tiny_backbones):
    return write_folder(tmp_path / "model", request.param)


def load(folder):
    return CDEModel.from_pretrained(folder, device="cpu", dtype="float32")


def rewrite(folder, change):
    """Let `change` edit the tensors of a folder."""
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def test_stray_norm_of_old_checkpoints_is_tolerated(folder):
    before = load(folder)
    stray = {f"second_stage_model.input_ln.{part}": torch.ones(64) for part in ("weight", "bias")}
    rewrite(folder, lambda state: state.update(stray))
    np.testing.assert_allclose(load(folder).first_stage(["river"]), before.first_stage(["river"]), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("first_stage_model.mlp.0.bias"),
            r"missing: first_stage_model\.mlp\.0\.bias; unknown: none",
        ),
        (lambda state: state.update(stray=torch.ones(2)), "missing: none; unknown: stray"),
        (
            lambda state: state.update({"first_stage_model.mlp.0.bias": torch.ones(2)}),
            r"mlp\.0\.bias \(2,\).* instead of",
        ),
        (
            lambda state: state.update({"first_stage_model.mlp.0.bias": torch.ones(64).int()}),
            r"torch\.int32 instead of",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")  # beartype looks at one tensor of all
def test_tensors_are_those_of_the_config(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_are_finite(folder, value):
    state = load_file(folder / "model.safetensors")
    name = sorted(state)[3]
    state[name].view(-1)[-1] = value
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelError, match="NaN or infinity"):
        CDEModel.from_pretrained(folder)


def test_weights_of_the_other_family(tmp_path, tiny_backbones):
    folder, other = (write_folder(tmp_path / name, name) for name in (V1, V2))
    (other / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"missing: .* and \d+ more; unknown: .* and \d+ more\. Is it the right config"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("embedder", "gpt2"),
        ("embedder", ["gpt2"]),
        ("dataset_backbone", "bert-base-uncased"),
        ("limit_layers", 3),
        ("pooling_strategy", "cls"),
        ("transductive_tokens_per_document", 0),
        ("transductive_tokens_per_document", 10**6),
        ("transductive_corpus_size", "8"),
        ("max_seq_length", 0),
        ("max_seq_length", 10**6),
        ("pool_ignore_contextual_tokens", None),
        ("pool_ignore_instruction_tokens", "false"),
        ("transductive_sequence_dropout_prob", None),
    ],
)
def test_configs_that_mean_another_model(folder, field, value):
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"[Ee]xpected|has to be|more than"):
        load(folder)


@given(st.dictionaries(st.sampled_from(sorted({*published.FIXED, "embedder", *CONFIG})), st.integers() | st.text()))
def test_any_config_is_read_or_refused(fields):
    try:
        full_config(**{"backbone": "answerdotai/ModernBERT-base", **fields})
    except ModelError:
        return
    assert all(fields.get(field, value) == value for field, value in published.FIXED.items())


@pytest.mark.parametrize("share", [0, 7, 100, 5000, 0.99])
def test_truncated_weights(folder, share):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(
        content[: share if share >= 1 or share == 0 else int(share * len(content))]
    )
    with pytest.raises(ModelError, match=r"expected safetensors, found: .*Download it again"):
        load(folder)


def test_files_that_are_written_later_do_not_change_a_model(folder):
    """Safetensors are mapped: what is not copied is the file."""
    model = load(folder)
    embedder = ContextualEmbedder(model, Context.generic(model))
    before = embedder.embed_queries(["river"]), model.first_stage(["river"])
    path = folder / "model.safetensors"
    other = save({name: torch.ones_like(tensor) for name, tensor in load_file(path).items()})
    assert path.stat().st_size == len(other)
    with path.open("r+b") as file:
        file.write(other)
    np.testing.assert_array_equal(embedder.embed_queries(["river"]), before[0])
    np.testing.assert_array_equal(model.first_stage(["river"]), before[1])
    assert load(folder).identity.weights_sha256 != model.identity.weights_sha256


def test_pickle_is_refused_with_the_reason(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLE)
    with pytest.raises(ModelError, match=r"found only pytorch_model\.bin\. Pickle files can run code"):
        load(folder)


def test_pickle_under_another_name(folder):
    (folder / "model.safetensors").write_bytes(PICKLE)
    with pytest.raises(ModelError, match="expected safetensors"):
        load(folder)


@pytest.fixture
def parts(tmp_path, tiny_backbones):
    return write_folder(tmp_path / "parts", V2, shards=3)


def test_shards_are_one_model(parts, tmp_path, tiny_backbones):
    whole = write_folder(tmp_path / "whole", V2)
    np.testing.assert_allclose(load(parts).first_stage(["river"]), load(whole).first_stage(["river"]), atol=1e-5)


def test_a_missing_shard_is_named(parts):
    (parts / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"missing: model-00002-of-00003\.safetensors"):
        load(parts)


def test_a_truncated_shard_is_named(parts):
    path = parts / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="model-00002-of-00003"):
        load(parts)


def test_shards_hold_what_the_index_says(parts):
    first, second = (parts / f"model-0000{number}-of-00003.safetensors" for number in (1, 2))
    save_file(load_file(first) | load_file(second), first)
    with pytest.raises(ModelError, match="does not hold the tensors"):
        load(parts)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "weights.bin", 3])
def test_an_index_cannot_lead_outside(parts, shard):
    index = parts / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"]["first_stage_model.mlp.0.bias"] = shard
    index.write_text(json.dumps(value))
    with pytest.raises(ModelError, match="expected a weight_map"):
        load(parts)


def test_code_of_a_tokenizer_config_is_never_read(folder):
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Tokenizer", null]}}')
    (folder / "evil.py").write_text("raise SystemExit('remote code')")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    load(folder)
    assert "evil" not in sys.modules


def test_a_tokenizer_of_another_model(folder):
    value = json.loads(tokenizer_json())
    value["model"]["vocab"]["zebra"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"tokenizer\.json: expected a tokenizer of at most"):
        load(folder)


def test_a_special_token_beyond_the_vocabulary(folder):
    value = json.loads(tokenizer_json())
    value["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [10**6]
    (folder / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"at most \d+ word pieces .*found 1000001"):
        load(folder)


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ".*"}, "content": ""}},
        {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}},
    ],
)
def test_a_tokenizer_that_knows_no_colon(folder, part):
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer_json()) | part))
    with pytest.raises(ModelError, match="a token for ': '"):
        load(folder)


def test_a_tokenizer_without_special_tokens(folder):
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer_json()) | {"post_processor": None}))
    with pytest.raises(ModelError, match="adds 2 special tokens"):
        load(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Pickle"}}', "\xff"])
def test_what_is_no_tokenizer(folder, content):
    (folder / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match="tokenizer"):
        load(folder)


def test_too_old_transformers(folder, monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "__version__", "5.4.0")
    with pytest.raises(MissingExtraError, match=r"transformers 5\.5 or newer is needed here, found 5\.4\.0"):
        load(folder)


@pytest.mark.parametrize("shards", [1, 3])
def test_converted_folder(tmp_path, tiny_backbones, shards):
    source = write_folder(tmp_path / "source", V2, shards=shards)
    target = tmp_path / "made" / "offline"
    ModelSource.find(ModelName(base=str(source))).convert(target)
    made, origin = load(target), load(source)
    assert made.identity.weights_sha256 == origin.identity.weights_sha256
    assert made.identity.name == str(target)
    assert not list(target.parent.glob(".*"))
    with pytest.raises(ModelError, match="exists already"):
        ModelSource.find(ModelName(base=str(source))).convert(target)
    file = next(iter(sorted(target.glob("model*.safetensors"))))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"expects sha256 .*damaged"):
        load(target)


@pytest.mark.parametrize("field", ["format", "files"])
def test_a_converted_folder_is_as_it_was_written(parts, tmp_path, field):
    ModelSource.find(ModelName(base=str(parts))).convert(tmp_path / "made")
    if field == "format":
        value = json.loads((tmp_path / "made" / "config.json").read_text())
        value["cde_rag"]["format"] = 2
        (tmp_path / "made" / "config.json").write_text(json.dumps(value))
    else:
        save_file(golden(V2, "model"), tmp_path / "made" / "model.safetensors")  # would be read instead of the shards
    with pytest.raises(ModelError, match=r"expected .* of format 1, found 2|expects .*, found model\.safetensors"):
        load(tmp_path / "made")


def test_sizes_are_bounded(parts, monkeypatch):
    largest = max(path.stat().st_size for path in parts.glob("*.safetensors"))
    with monkeypatch.context() as patch:
        patch.setitem(weights.MAX_BYTES, "model.safetensors", largest)  # each shard fits, all together do not
        with pytest.raises(ModelError, match=f"expected at most {largest} bytes"):
            load(parts)
    monkeypatch.setitem(weights.MAX_BYTES, "tokenizer.json", 10)
    with pytest.raises(ModelError, match=r"tokenizer\.json: expected at most 10 bytes"):
        load(parts)


def test_converting_a_damaged_model_writes_nothing(folder, tmp_path):
    rewrite(folder, lambda state: state.update(stray=torch.ones(2)))
    with pytest.raises(ModelError, match="unknown: stray"):
        ModelSource.find(ModelName(base=str(folder))).convert(tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_bundled_model_needs_no_conversion(tmp_path):
    with pytest.raises(ModelError, match="works without network as it is"):
        ModelSource.find(ModelName(base="cde-mini")).convert(tmp_path / "target")
    with pytest.raises(ModelError, match="read in one way only"):
        CDEModel.from_pretrained("cde-mini", semantics="train")


@given(
    st.builds(
        ModelName,
        base=st.just("a/b"),
        revision=st.none() | st.text("abc0123./", min_size=1),
        semantics=st.none() | st.text("abc &=?"),
        query_prefix=st.none() | st.text("abc &=?:"),
        context_size=st.none() | st.integers(1, 999),
    )
)
def test_a_name_finds_itself_again(name):
    assert ModelName.parse(str(name)) == name


@pytest.mark.parametrize("name", [V1, V2])
def test_what_is_written_is_read_again(tmp_path, tiny_backbones, name):
    model = load(write_folder(tmp_path / "given", name))
    checkpoint.write(tmp_path / "written", model.network, model.tokenizer.serialised)
    again, written = load(tmp_path / "written"), load_file(tmp_path / "written" / "model.safetensors")
    assert written.keys() == golden(name, "model").keys()
    for key, value in golden(name, "model").items():
        assert torch.equal(written[key], value), key
    for key, value in model.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[key], value), key
    assert again.tokenizer.sha256 == model.tokenizer.sha256
    assert again.config.sizes() == model.config.sizes()


def test_other_semantics_are_not_written():
    config = full_config("nomic-ai/nomic-bert-2048")
    assert published.published_config(config)["embedder"] == "nomic-ai/nomic-bert-2048"
    assert published.published_config(replace(config, layers=3))["embedder"] == "nomic_bert"
    with pytest.raises(ModelError, match="cannot be written"):
        published.published_config(replace(config, semantics="hf_model_py"))

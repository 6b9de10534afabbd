"""Any backbone starts a two-way model, at any depth; a setting that a start does not have is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub, stub_pairs
from test_start import bert_folder
from tiny import tiny_tokenizer
from tiny_run import CORPORA, MACHINE, config, phase, rows, start_folder
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel, NomicBertConfig, NomicBertModel

from cde_rag import CDEModel
from cde_rag.errors import ModelError
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.config import DistillationConfig, EvaluationConfig, RatesConfig, ScheduleConfig, StartConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.loop.optimiser import place_of
from cde_rag_training.loop.training import train
from cde_rag_training.networks.backbone import backbone_sizes
from cde_rag_training.networks.interpolation import interpolate_models
from cde_rag_training.networks.start import load_start
from cde_rag_training.recipe import RecipeError

SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
SIZES |= {"num_hidden_layers": 3, "max_position_embeddings": 64, "pad_token_id": 0}
NATIVE = {
    "nomic_bert": lambda: NomicBertModel(NomicBertConfig(**SIZES, rope_parameters=rope(500.0))),
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(**SIZES, **IDS, local_attention=8, global_attn_every_n_layers=2, norm_eps=1e-4)
    ),
    "bert": lambda: BertModel(BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
}
IDS = {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")}


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def backbone(folder: Path, family: str) -> Path:
    """A backbone with random weights, as transformers saves one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        native = NATIVE[family]().eval()
    native.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    return folder


@pytest.fixture(params=list(NATIVE))
def family(request):
    return request.param


def start_of(folder, **changes):
    fields = {"name": "new", "attention": "two_way", "context_size": 4, "max_length": 32}
    return StartConfig(model=str(folder), **fields | changes)


@pytest.mark.parametrize("limit", [None, 2])
def test_both_stages_read_as_the_backbone_does(tmp_path, family, limit):
    """transformers' own class, cut to as many layers, says what a text by itself is; the stages have own depths."""
    folder = backbone(tmp_path / "b", family)
    start = start_of(folder, limit_layers=limit, first_stage_layers=1, soft_tokens=5)
    network = load_start(start, seed=0).network
    assert isinstance(network, TwoWay)
    ids, mask = pad([[2, 7, 9, 3], [2, 8, 30, 31, 32, 12, 3]])
    native = {"bert": BertModel, "nomic_bert": NomicBertModel, "modernbert": ModernBertModel}[family]
    for stage, layers in ((network.first_stage, 1), (network.second_stage, limit or 3)):
        whole = native.from_pretrained(folder).eval()
        holder = whole.encoder if family == "bert" else whole
        name = "layer" if family == "bert" else "layers"
        setattr(holder, name, getattr(holder, name)[:layers])
        with torch.no_grad():
            expected, found = (
                whole(input_ids=ids, attention_mask=mask).last_hidden_state,
                stage.backbone.read(ids, mask),
            )
        torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)
    config = network.config
    assert (config.layers, config.of_first_stage.layers, config.soft_tokens) == (limit or 3, 1, 5)
    assert (config.context_size, config.max_length, config.vocab_size) == (4, 32, 64)
    assert len(network.second_stage.soft(torch.ones(1, 16))[0]) == 5 * 16


def test_a_run_from_any_backbone(tmp_path, family):
    """Trained, resumed, written, read in another runtime, and interpolated with its start."""
    start = start_of(backbone(tmp_path / "b", family), limit_layers=2, first_stage_layers=1, soft_tokens=2)
    prepared = prepared_stub(tmp_path / "prepared", stub_pairs(60))
    shown = phase(
        schedule=ScheduleConfig(updates=0, epochs=2, warmup_updates=3),
        corpora=replace(CORPORA, context=ContextConfig(smallest=8, largest=8, null_share=0.0)),
        rates=RatesConfig(encoder=2e-3, embeddings=2e-3, first_stage=2e-3, context=2e-3, layer_decay=0.5),
        average=0.0,
    )
    evaluation = EvaluationConfig(every=0, probe_every=2)
    run = replace(config(tmp_path, shown, machine=MACHINE, evaluation=evaluation), start=start)
    output = train(prepared, run, tmp_path / "run")
    assert len(rows(tmp_path / "run")) == 14  # two epochs: of 20 and 40 pairs in batches of 8
    assert {row["context"] for row in rows(tmp_path / "run")} == {"4"}  # of 8 that are drawn, four are read
    recipe = json.loads((output / "README.md").read_text().split("```json\n")[1].split("```")[0])
    assert recipe["start"] == {
        "model": start.model,
        "name": "new",
        "attention": "two_way",
        "limit_layers": 2,
        "first_stage_layers": 1,
        "context_size": 4,
        "soft_tokens": 2,
        "tokens_per_document": 1,
        "context_positions": family == "modernbert",  # the contexts of the others never have an order
        "max_length": 32,
    }
    model = CDEModel.from_pretrained(output, runtime="torch", dtype="float32")
    begun = load_start(start, seed=0).network.state_dict()
    still = {name for name, value in model.network.state_dict().items() if torch.equal(value, begun[name])}
    assert still <= {"second_stage.null_embedding"}
    places = {place_of(name, 2) for name in begun if ".layers." in name or ".layer." in name}
    assert {place.height for place in places if place.part == "encoder"} == {0, 1}
    between = interpolate_models(start.model, output, tmp_path / "between", share=0.5)
    mixed = CDEModel.from_pretrained(between, runtime="torch", dtype="float32").network.state_dict()
    name = next(name for name in begun if name.startswith("second_stage.backbone.native.") and "word_emb" not in name)
    torch.testing.assert_close(mixed[name], torch.lerp(begun[name], model.network.state_dict()[name], 0.5))


def test_a_config_of_either_code_says_the_same():
    """nomic-ai's code names sizes as GPT-2 does; older ModernBERTs count global layers, newer ones list them."""
    ours = backbone_sizes({"model_type": "nomic_bert", **SIZES, "layer_norm_eps": 1e-6}, where="here")
    names = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_attention_heads": "n_head"}
    names |= {"num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
    old = {names.get(name, name): size for name, size in SIZES.items()} | {"activation_function": "swiglu"}
    nomic = {"model_type": "nomic_bert", **old, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 1000}
    assert backbone_sizes(nomic, where="here") == ours
    assert ours["eps"] == 1e-6
    assert "theta" not in ours
    modern = {"model_type": "modernbert", **SIZES, "local_attention": 16}
    listed = ["full_attention", "sliding_attention", "full_attention"]
    every = {"global_attn_every_n_layers": 2, "local_rope_theta": 160000.0}
    newer = {"layer_types": listed, "rope_parameters": {"sliding_attention": rope(160000.0)}}
    assert backbone_sizes(modern | every, where="here") == backbone_sizes(modern | newer, where="here")
    assert backbone_sizes(modern | newer, where="here")["local_theta"] == 160000.0
    with pytest.raises(ModelError, match="every so manieth layer"):
        backbone_sizes(modern | {"layer_types": [*listed, "full_attention"]}, where="here")


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("nomic_bert", {"rotary_emb_fraction": 0.5}, "expected rotary_emb_fraction 1.0, found 0.5"),
        ("nomic_bert", {"qkv_proj_bias": True}, "expected qkv_proj_bias False, found True"),
        ("modernbert", {"norm_bias": True}, "expected norm_bias False"),
        ("bert", {"hidden_act": "relu"}, "expected hidden_act 'gelu', found 'relu'"),
        ("bert", {"hidden_size": None}, "found no number hidden_size"),
    ],
)
def test_what_our_layers_do_not_compute_is_refused(tmp_path, family, change, message):
    folder = backbone(tmp_path / "b", family)
    value = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(value))
    with pytest.raises(ModelError, match=message):
        load_start(start_of(folder), seed=0)


def test_depths_and_lengths_that_a_backbone_lacks(tmp_path):
    folder = backbone(tmp_path / "b", "bert")
    for change in ({"limit_layers": 4}, {"first_stage_layers": 4}, {"first_stage_layers": 0}):
        with pytest.raises(ModelError, match="in 1 … 3, the layers of the backbone"):
            load_start(start_of(folder, **change), seed=0)
    with pytest.raises(ModelError, match="longer than the 64 positions"):
        load_start(start_of(folder, max_length=65), seed=0)
    shutil.copy(folder / "config.json", tmp_path / "config.json")
    other = backbone(tmp_path / "n", "nomic_bert")
    shutil.copy(tmp_path / "config.json", other / "config.json")
    with pytest.raises(ModelError, match=r"found no .*Is it the right config"):
        load_start(start_of(other), seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 31}, r"has max_length \d+, found start.max_length 31"),
        ({"context_layers": 1}, r"has context_layers 2, found start.context_layers 1"),
        ({"lead_share": 0.5}, r"has lead_share 0.4, found start.lead_share 0.5"),
        ({"limit_layers": 1}, r"has limit_layers 2, found"),
        ({"attention": "two_way"}, r"has attention 'one_way', found start.attention 'two_way'"),
        ({"context_size": 64}, r"has one_way attention, which has no context_size, found start.context_size 64"),
        ({"distillation": DistillationConfig(updates=9)}, "has a first stage already"),
    ],
)
def test_what_a_finished_model_fixes(tmp_path, change, message):
    start = StartConfig(model=str(start_folder(tmp_path / "start")))
    found = load_start(start, seed=0).network.config
    with pytest.raises(RecipeError, match=message):
        load_start(replace(start, **change), seed=0)
    load_start(replace(start, max_length=found.max_length, context_layers=2, limit_layers=2), seed=0)


def test_what_a_new_model_has_not(tmp_path):
    """A setting of the other kind of attention is refused too, and so is one that a BERT cannot follow."""
    bert = str(bert_folder(tmp_path / "bert"))
    with pytest.raises(RecipeError, match="one_way attention, which has no soft_tokens"):
        load_start(StartConfig(model=bert, max_length=32, soft_tokens=2), seed=0)
    with pytest.raises(RecipeError, match="two_way attention, which has no lead_share"):
        load_start(StartConfig(model=bert, max_length=32, attention="two_way", lead_share=0.1), seed=0)
    nomic = str(backbone(tmp_path / "n", "nomic_bert"))
    with pytest.raises(RecipeError, match=r"has attention 'two_way', found start.attention 'one_way'"):
        load_start(start_of(nomic, attention="one_way"), seed=0)
    assert np.isclose(
        load_start(StartConfig(model=bert, max_length=32, limit_layers=1), seed=0).network.config.layers, 1
    )

"""Two-way models of either backbone go through the same trainer; adapters become a part of the weights."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub, stub_pairs
from safetensors.torch import load_file, save_file
from tiny import tiny_network, tiny_tokenizer
from tiny_run import CORPORA, MACHINE, config, phase, rows, start_folder

sys.path.append(str(Path(__file__).parents[1] / "model"))
from golden import V1, V2, golden, golden_config, sizes, write_folder

from cde_rag import CDEModel, Context
from cde_rag.context.sampling import Sample
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.errors import ModelError
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import checkpoint as two_way_checkpoint
from cde_rag.models.two_way import files as published
from cde_rag_training.adapt.own_recipe import of_network
from cde_rag_training.config import AdaptersConfig, EvaluationConfig, LossConfig, RatesConfig, StartConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import Corpora
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.loop.gradients import Gradients
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.loop.optimiser import groups_of
from cde_rag_training.loop.training import Adapters, train
from cde_rag_training.losses.loss import contrastive_loss
from cde_rag_training.losses.objective import Objective
from cde_rag_training.networks.stages import TextBatch, stages_of
from cde_rag_training.networks.start import load_start
from cde_rag_training.recipe import RecipeError

OUTPUT = "second_stage_model.output_projection.2.bias"
FAMILIES = {V1: "nomic_bert", V2: "modernbert"}


@pytest.fixture(autouse=True)
def tiny_backbones(monkeypatch):
    for name in (V1, V2):
        monkeypatch.setitem(published.BACKBONES, golden_config(name)["cde_config"]["embedder"], sizes(name))


def prepared_with(folder, tokenizer):
    """The stub's pairs under another tokenizer, which knows all tokens of the stub's."""
    kept, prepared = TextTokenizer(tokenizer), prepared_stub(folder, stub_pairs(60))
    object.__setattr__(prepared, "tokenizer_sha256", kept.sha256)
    return prepared


def two_way_run(folder, *, updates=40):
    context = ContextConfig(smallest=4, largest=8, null_share=0.0)
    rates = RatesConfig(encoder=2e-3, embeddings=2e-3, first_stage=2e-3, context=2e-3, layer_decay=1.0)
    shown = phase(
        updates,
        corpora=replace(CORPORA, context=context),
        rates=rates,
        context_dropout=0.0,
        average=0.0,
    )
    machine = replace(MACHINE, save_every=100)
    evaluation = EvaluationConfig(every=0, probe_every=5)
    return config(folder, shown, machine=machine, evaluation=evaluation)


def test_gates_are_refused_in_a_two_way_model(tmp_path):
    """It has none, so that a rate of them, as of a preset for one-way models, would say nothing."""
    folder = write_folder(tmp_path / "start", V1)
    run = two_way_run(folder, updates=1)
    first = replace(run.phases[0], rates=replace(run.phases[0].rates, gates=1e-3))
    prepared = prepared_with(tmp_path / "prepared", (folder / "tokenizer.json").read_text())
    with pytest.raises(RecipeError, match=r"no rates\.gates, since .* is a two-way model"):
        train(prepared, with_gates := replace(run, phases=(first,)), tmp_path / "run")
    train(
        prepared, of_network(with_gates, load_start(with_gates.start, seed=0).network), tmp_path / "run"
    )  # as `adapt`
    assert of_network(with_gates, tiny_network()) == with_gates


@pytest.mark.parametrize("name", [V1, V2])
def test_a_published_model_goes_on(tmp_path, name):
    """Every parameter moves, the loss falls, and the model that is written is the one that was trained."""
    folder = write_folder(tmp_path / "start", name)
    prepared = prepared_with(tmp_path / "prepared", (folder / "tokenizer.json").read_text())
    train(prepared, two_way_run(folder), tmp_path / "run")
    losses = [float(row["loss"]) for row in rows(tmp_path / "run")]
    assert np.mean(losses[-8:]) < 0.9 * np.mean(losses[:8])
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert before.keys() - moved <= {"second_stage_model.sequence_dropout_null_embedding"}
    model = CDEModel.from_pretrained(tmp_path / "run" / "model", dtype="float32")
    state = load_file(tmp_path / "run" / "state.safetensors")
    for key, value in model.network.state_dict().items():
        assert torch.equal(value, state[f"weights:{key}"]), key


def test_stages_are_those_of_the_finished_model(tmp_path):
    """Prefixes, lengths, the order and number of context documents: what training reads is what users read."""
    folder = write_folder(tmp_path / "start", V2)
    model = CDEModel.from_pretrained(folder, dtype="float32")
    stages = stages_of(model.network, model.tokenizer, device="cpu", precision="float32")
    texts = ["the river bank", "money and interest of the credit risk", "fish", "loan"]
    ids = [tokens.ids for tokens in model.tokenizer(texts, 64)]
    vectors = stages.read([stages.first_ids(each) for each in ids], mini_batch_size=2)
    np.testing.assert_allclose(vectors.numpy(), model.first_stage(texts), atol=1e-5)
    context = fit(model, Sample(texts, len(texts)), strategy="random", seed=0)
    with torch.no_grad():
        own = torch.tensor(context.context_embeddings)
        given = stages.prepare(own, range(len(own)), [False] * len(own))
        for role in (QUERY, DOCUMENT):
            shown = [stages.second_ids(each, role) for each in ids]
            found = stages.second(TextBatch(shown, role, [[] for _ in shown]), given)
            rows_ = [tokens.ids for tokens in model.tokenize(texts, role=role)]
            assert shown == rows_
            np.testing.assert_allclose(
                found.numpy(), model.stages.embed(rows_, role, model.prepare(context), None, None), atol=1e-5
            )
    too_many = stages.prepare(torch.cat([own, own]), range(2 * len(own)), [False] * 2 * len(own))
    size = model.context_size + 8
    assert too_many[0].shape[1] == given[0].shape[1] == size


def test_dropped_context_embeddings_become_null(tmp_path):
    folder = write_folder(tmp_path / "start", V1)
    model = CDEModel.from_pretrained(folder, dtype="float32")
    stages = stages_of(model.network, model.tokenizer, device="cpu", precision="float32")
    assert stages.knows_null
    null = model.network.second_stage.null_embedding
    with torch.no_grad():
        null.normal_()
        vectors = torch.randn(model.context_size, model.dim)
        dropped = [place == 1 for place in range(len(vectors))]
        (tokens,) = stages.prepare(vectors, range(len(vectors)), dropped)
        assert torch.equal(tokens[0, 1], null)
        assert torch.equal(tokens[0, 0], vectors[0])
        all_out = stages.prepare(vectors, range(len(vectors)), [True] * len(vectors))
        (none,) = stages.prepare(vectors, [], [])
        assert torch.equal(all_out[0], none)


@pytest.mark.parametrize("name", [V1, V2])
@pytest.mark.parametrize("caching", [True, False])
def test_dropout_by_text_is_drawn_for_each_text(tmp_path, name, caching):
    """Gradients are those of texts that are embedded one by one, each under its own context with null embeddings."""
    folder = write_folder(tmp_path / "start", name, transductive_sequence_dropout_prob=0.005)
    if name == V2:
        state = load_file(folder / "model.safetensors")
        state["second_stage_model.sequence_dropout_null_embedding"] = torch.randn(len(state[OUTPUT]))
        save_file(state, folder / "model.safetensors")
    prepared = prepared_with(tmp_path / "prepared", (folder / "tokenizer.json").read_text())
    model = CDEModel.from_pretrained(folder, runtime="torch", dtype="float32")
    network = model.network.requires_grad_()
    stages = stages_of(network, model.tokenizer, device="cpu", precision="float32")
    batch = Corpora(
        prepared, replace(CORPORA, context=ContextConfig(smallest=4, largest=6, null_share=0.0)), seed=0
    ).batch(0)
    config, rule, size = LossConfig(temperature=0.3), FilterConfig(rule="none"), len(batch.pairs)
    found = []
    for mini_batch_size in (3, 50):
        network.zero_grad()
        objective = Objective(config, rule, prepared, device=stages.device)
        Gradients(
            stages,
            Cutter(prepared, stages, mini_batch_size=mini_batch_size),
            objective,
            vectors=None,
            context_dropout=0.4,
            dropout_by_text=True,
            caching=caching,
            mini_batch_size=mini_batch_size,
            seed=[7],
        ).add(batch, 5)
        found.append({key: value.grad.clone() for key, value in network.named_parameters() if value.grad is not None})
    network.zero_grad()
    drawn = np.random.default_rng([7, 5])
    drawn.random(len(batch.context))  # of the batch's own draw, which is not used
    dropped = torch.from_numpy(drawn.random((2 * size, model.context_size)) < 0.4)
    context = network.read(*pad([stages.first_ids(prepared.texts[row]) for row in batch.context.tolist()]))
    places = torch.arange(model.context_size) % len(context)
    texts = [(row, QUERY) for row in batch.queries.tolist()] + [(row, DOCUMENT) for row in batch.documents.tolist()]
    vectors = []
    for number, (row, role) in enumerate(texts):
        own = torch.where(dropped[number][:, None], network.second_stage.null_embedding, context[places])
        ids, mask = pad([stages.second_ids(prepared.texts[row], role)])
        vectors.append(network(ids, mask, role, network.second_stage.prepare(own[None])))
    loss = contrastive_loss(*torch.cat(vectors).split(size), objective.mask(batch), 0.3)
    loss.backward()
    for gradients in found:
        for key, value in network.named_parameters():
            if value.grad is not None:
                torch.testing.assert_close(gradients[key], value.grad, atol=2e-5, rtol=1e-3, msg=key)


def test_a_one_way_model_drops_by_batch(tmp_path):
    prepared = prepared_stub(tmp_path / "prepared")
    run = config(start_folder(tmp_path / "start"), phase(2, context_dropout_by="text"))
    with pytest.raises(RecipeError, match="expected context_dropout_by"):
        train(prepared, run, tmp_path / "run")


def test_without_a_null_embedding_there_is_always_a_context(tmp_path):
    folder = write_folder(tmp_path / "start", V2, transductive_sequence_dropout_prob=0.0)
    prepared = prepared_with(tmp_path / "prepared", (folder / "tokenizer.json").read_text())
    run = two_way_run(folder)
    for changed in (
        replace(run.phases[0], context_dropout=0.1),
        replace(run.phases[0], corpora=replace(CORPORA, context=ContextConfig(null_share=0.1))),
    ):
        with pytest.raises(RecipeError, match="has no null embedding"):
            train(prepared, replace(run, phases=(changed,)), tmp_path / "run")
    model = CDEModel.from_pretrained(folder)
    stages = stages_of(model.network, model.tokenizer, device="cpu", precision="float32")
    with pytest.raises(ModelError, match="no null embedding"):
        stages.prepare(torch.zeros(2, model.dim), [0, 1], [True, False])


def backbone_config(name):
    """The golden backbone's config as it would stand beside its weights: that of nomic-ai's code, or transformers'."""
    return golden_config(name)["backbone_config"] | {"model_type": FAMILIES[name]}


@pytest.mark.parametrize("name", [V1, V2])
def test_a_new_model_starts_from_a_backbone(tmp_path, name):
    """Both stages hold the backbone's weights; what joins them is random, and the same for the same seed."""
    tensors = {
        f"{'bert.' if name == V1 else 'model.'}{key.removeprefix('second_stage_model.backbone.')}": value
        for key, value in golden(name, "model").items()
        if key.startswith("second_stage_model.backbone.")
    }
    (tmp_path / "backbone").mkdir()
    save_file(tensors | {"head.dense.weight": torch.zeros(2)}, tmp_path / "backbone" / "model.safetensors")
    (tmp_path / "backbone" / "config.json").write_text(json.dumps(backbone_config(name)))
    (tmp_path / "backbone" / "tokenizer.json").write_text(tiny_tokenizer())
    chosen = StartConfig(model=str(tmp_path / "backbone"), name="new", context_size=8, max_length=32)
    network, _, new_first_stage = load_start(chosen, seed=0)
    state = two_way_checkpoint.published_state(network.state_dict(), network.config)
    assert not new_first_stage
    for key, value in tensors.items():
        inner = key.split(".", 1)[1]
        for place in ("first_stage_model.embedder.", "second_stage_model.backbone."):
            assert torch.equal(state[place + inner], value)
    again, other = (load_start(chosen, seed=seed).network.state_dict() for seed in (0, 1))
    assert all(torch.equal(value, again[key]) for key, value in network.state_dict().items())
    assert not torch.equal(other["second_stage.soft.0.weight"], again["second_stage.soft.0.weight"])
    prepared = prepared_with(tmp_path / "prepared", tiny_tokenizer())
    output = train(prepared, replace(two_way_run(tmp_path, updates=3), start=chosen), tmp_path / "run")
    model = CDEModel.from_pretrained(output)
    assert model.context_size == 8
    model.prepare(Context.null(model))
    save_file({"model.some.weight": torch.zeros(2)}, tmp_path / "backbone" / "model.safetensors")
    with pytest.raises(ModelError, match=r"expected the tensors of a .* layers, found no"):
        load_start(chosen, seed=0)


def one_way_stages(network):
    return stages_of(network, TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32")


def adapted_stages():
    network = tiny_network().requires_grad_()
    adapters = Adapters(network, 2, AdaptersConfig(rank=2), seed=0)
    return one_way_stages(network), adapters


def embedded(stages):
    ids = [[2, 5, 6, 7, 3], [2, 8, 3]]
    with torch.no_grad():
        vectors = stages.network.read(*pad(ids))
        return stages.second(TextBatch(ids, DOCUMENT, [[0], []]), stages.prepare(vectors, [0, 1], [False, False]))


def test_merged_adapters_are_the_adapted_model():
    pytest.importorskip("peft")
    stages, adapters = adapted_stages()
    plain = tiny_network()
    torch.testing.assert_close(embedded(stages), embedded(one_way_stages(plain)))
    for name, value in stages.network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value.data)
    adapted = embedded(stages)
    adapters.merge()
    assert stages.network.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(embedded(stages), adapted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(
        adapted,
        embedded(one_way_stages(plain)),
        atol=1e-2,
    )


def test_adapters_are_trained_in_the_encoders_place(tmp_path):
    pytest.importorskip("peft")
    stages, _ = adapted_stages()
    groups = groups_of(stages.network, 2, RatesConfig(), AdaptersConfig(rank=2))
    encoder = {name for group in groups if group.part == "encoder" for name in group.parameters}
    assert len(encoder) == 2 * 4 * 2  # layers, linear layers, two matrices of each
    assert all("lora_" in name for name in encoder)
    assert {group.part for group in groups} == {"encoder", "context", "gates"}
    prepared_stub(tmp_path / "prepared")
    run = config(start_folder(tmp_path / "start"), phase(8), adapters=AdaptersConfig(rank=2, rate=1e-2))
    train(tmp_path / "prepared", run, tmp_path / "run")
    again = train(tmp_path / "prepared", run, tmp_path / "run")
    found, before = CDEModel.from_pretrained(again), CDEModel.from_pretrained(tmp_path / "start")
    for name, value in before.network.state_dict().items():
        changed = name.startswith("second_stage.layers.") and name.endswith("weight") and "norm" not in name
        if name.startswith("second_stage.layers."):
            assert torch.allclose(found.network.state_dict()[name], value, atol=1e-3) != changed, name

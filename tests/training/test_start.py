"""Training starts exactly at all-MiniLM-L6-v2, or another BERT, under every context."""

import gzip
import itertools
import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub
from safetensors.torch import load_file, save_file
from tiny import tiny_network, tiny_tokenizer
from tiny_run import config

from cde_rag import Context, ContextualEmbedder
from cde_rag.context.sampling import Sample
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.errors import ModelError
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.clustering.surrogate import minilm_folder
from cde_rag_training.config import DistillationConfig, StartConfig
from cde_rag_training.loop.training import train
from cde_rag_training.networks.interpolation import interpolate_models
from cde_rag_training.networks.start import BERT_LAYER, bert_tokenizer, from_bert, load_start, start_tokenizer


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of sentence-transformers
def test_start_is_minilm(shared_data):
    import sentence_transformers

    with gzip.open(shared_data / "eval" / "cisi" / "corpus.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 60)]
    network = from_bert(minilm_folder(), ModelConfig(name="start"), seed=0)
    model = CDEModel(network, TextTokenizer(bert_tokenizer(minilm_folder())), "0" * 64, device="cpu", dtype="float32")
    theirs = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)
    theirs.max_seq_length = 256
    expected = theirs.encode(texts, normalize_embeddings=True)
    for context in (Context.null(model), fit(model, Sample(texts[:40], 40), strategy="random", seed=0)):
        vectors = ContextualEmbedder(model, context).embed_passages(texts, [[]] * len(texts)).vectors
        assert (vectors * expected).sum(axis=1).min() > 0.9999
    cosines = (model.first_stage(texts) * np.asarray(expected)).sum(axis=1)
    assert cosines.max() < 0.9  # the first stage is another, smaller network, which has to be taught


def bert_folder(folder):
    """The tiny model's second stage as a BERT checkpoint under Hugging Face's keys."""
    folder.mkdir()
    network = tiny_network()
    ours, config = network.state_dict(), network.config
    state = {
        "embeddings.word_embeddings.weight": ours["embeddings.word.weight"],
        "embeddings.position_embeddings.weight": ours["embeddings.position.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(2, config.dim),
        "embeddings.LayerNorm.weight": ours["embeddings.norm.weight"],
        "embeddings.LayerNorm.bias": ours["embeddings.norm.bias"],
    }
    for number in range(config.layers):
        for kind in ("weight", "bias"):
            layer = f"second_stage.layers.{number}."
            for theirs, mine in BERT_LAYER.items():
                state[f"encoder.layer.{number}.{theirs}.{kind}"] = ours[f"{layer}{mine}.{kind}"]
            parts = ours[f"{layer}query_key_value.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                state[f"encoder.layer.{number}.attention.self.{name}.{kind}"] = part.clone()
    save_file(state, folder / "model.safetensors")
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    return folder


def test_a_bert_becomes_a_model(tmp_path):
    """Its first stage is taught the surrogate's vectors before anything else; an interrupted run knows that it was."""
    start = StartConfig(model=str(bert_folder(tmp_path / "bert")), name="made", max_length=32)
    run = replace(config(tmp_path), start=replace(start, distillation=DistillationConfig(updates=80, rate=1e-2)))
    loaded = load_start(run.start, seed=0)
    assert loaded.new_first_stage
    assert (loaded.network.config.name, loaded.network.config.max_length) == ("made", 32)
    for name, value in tiny_network().state_dict().items():
        if name.startswith("second_stage.layers."):
            assert torch.equal(loaded.network.state_dict()[name], value), name
    prepared = prepared_stub(tmp_path / "prepared")
    model = CDEModel.from_pretrained(train(prepared, run, tmp_path / "run"), dtype="float32")
    texts = [prepared.text(row).replace("[CLS] ", "").replace(" [SEP]", "") for row in prepared.documents.tolist()]
    cosines = (model.first_stage(texts) * prepared.document_vectors).sum(axis=1)
    untaught = CDEModel(loaded.network, loaded.tokenizer, "0" * 64, device="cpu", dtype="float32")
    assert cosines.mean() > (untaught.first_stage(texts) * prepared.document_vectors).sum(axis=1).mean() + 0.1
    taught = (tmp_path / "run" / "distillation.safetensors").read_bytes()
    train(prepared, run, tmp_path / "run")
    assert (tmp_path / "run" / "distillation.safetensors").read_bytes() == taught


def test_a_bert_without_its_sizes_is_named(tmp_path):
    folder = bert_folder(tmp_path / "bert")
    (folder / "config.json").write_text('{"model_type": "bert", "vocab_size": 64}')
    with pytest.raises(ModelError, match=r"expected the sizes of a bert, found no number hidden_size"):
        load_start(StartConfig(model=str(folder)), seed=0)


def test_tensors_have_the_names_and_dtypes_of_other_files_too(tmp_path):
    """Those of bert-base-uncased are inside another model, and its norms have the names of TensorFlow."""
    expected = load_start(StartConfig(model=str(bert_folder(tmp_path / "bert")), max_length=32), seed=0).network
    tensors = load_file(tmp_path / "bert" / "model.safetensors")
    older = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensors[name] for name in tensors
    }
    save_file({f"bert.{name}": value.half() for name, value in older.items()}, tmp_path / "bert" / "model.safetensors")
    for attention in ("one_way", "two_way"):
        start = StartConfig(model=str(tmp_path / "bert"), attention=attention, max_length=32)
        found = load_start(start, seed=0).network.state_dict()
        assert {value.dtype for value in found.values() if value.is_floating_point()} == {torch.float32}
    loaded = load_start(replace(start, attention=None), seed=0).network.state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(loaded[name], value, atol=1e-3, rtol=1e-3, msg=name)
    del older["embeddings.LayerNorm.beta"]
    save_file(older, tmp_path / "bert" / "model.safetensors")
    with pytest.raises(ModelError, match=r"found no embeddings\.LayerNorm\.bias of shape \(16,\)"):
        load_start(replace(start, attention=None), seed=0)


def test_a_bert_that_a_one_way_model_does_not_equal_is_refused(tmp_path):
    folder = bert_folder(tmp_path / "bert")
    start = StartConfig(model=str(folder), max_length=32)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(json.loads(config) | {"hidden_act": "relu"}))
    with pytest.raises(ModelError, match="expected hidden_act 'gelu', found 'relu'"):
        load_start(start, seed=0)
    (folder / "config.json").write_text(json.dumps(json.loads(config) | {"layer_norm_eps": 1e-5}))
    assert load_start(start, seed=0).network.config.norm_eps == 1e-5
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    for mode in ("mean", "cls"):
        pooling = {"embedding_dimension": 16, "pooling_mode": mode}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        with nullcontext() if mode == "mean" else pytest.raises(ModelError, match=r"pools by the mean.*found .*'cls'"):
            load_start(start, seed=0)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"expected tokenizer\.json, found"):
        load_start(start, seed=0)


def test_a_tokenizer_needs_no_sizes(tmp_path):
    """`prepare` takes that of a start whose positions are too few for the default lengths."""
    folder = str(bert_folder(tmp_path / "bert"))
    with pytest.raises(ModelError, match="longer than max_positions 64"):
        load_start(StartConfig(model=folder), seed=0)
    assert (
        start_tokenizer(folder).sha256 == load_start(StartConfig(model=folder, max_length=32), seed=0).tokenizer.sha256
    )


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_a_first_stage_of_any_size(tmp_path, layers):
    """Of all layers of the encoder it is the embedder itself before it is taught anything; of none it still reads."""
    start = StartConfig(model=str(bert_folder(tmp_path / "bert")), max_length=32, first_stage_layers=layers)
    loaded = load_start(start, seed=0)
    assert len(loaded.network.first_stage.layers) == layers
    checkpoints.write(tmp_path / "made", loaded.network, loaded.tokenizer.serialised)
    model = CDEModel.from_pretrained(tmp_path / "made", dtype="float32")
    texts = ["".join(words) for words in itertools.permutations(("the ", "cat ", "sat "))]
    plain = ContextualEmbedder(model, Context.null(model)).embed_documents(texts)
    np.testing.assert_allclose(np.linalg.norm(model.first_stage(texts), axis=1), 1, atol=1e-5)
    assert np.allclose(model.first_stage(texts), plain, atol=1e-5) == (layers == 2)
    between = interpolate_models(start.model, tmp_path / "made", tmp_path / "between", share=0.5)
    assert len(checkpoints.read(between)[0].first_stage.layers) == layers


def test_how_siblings_weigh_is_the_start_s_to_say(tmp_path):
    folder = str(bert_folder(tmp_path / "bert"))
    made = load_start(StartConfig(model=folder, max_length=32, lead_share=0.3, full_likeness=0.4), seed=0).network
    assert (made.config.lead_share, made.config.full_likeness) == (0.3, 0.4)
    assert made.second_stage.lead_share == 0.3


def test_a_first_stage_larger_than_its_encoder(tmp_path):
    start = StartConfig(model=str(bert_folder(tmp_path / "bert")), max_length=32, first_stage_layers=3)
    with pytest.raises(ModelError, match=r"first_stage_layers must be in 0 … layers \(2\), found 3"):
        load_start(start, seed=0)


def test_trainings_are_averaged_before_they_are_taken_back_to_the_start(tmp_path):
    start = StartConfig(model=str(bert_folder(tmp_path / "bert")), max_length=32, first_stage_layers=1)
    loaded = load_start(start, seed=0)
    begun = {name: value.clone() for name, value in loaded.network.state_dict().items()}
    for number, name in enumerate(("one", "two")):
        for weight in loaded.network.parameters():
            torch.nn.init.constant_(weight, float(number))
        loaded.network.config = replace(loaded.network.config, name=name)
        checkpoints.write(tmp_path / name, loaded.network, loaded.tokenizer.serialised)
    others = [tmp_path / "two", tmp_path / "two"]
    mean = interpolate_models(start.model, tmp_path / "one", tmp_path / "mean", share=0.25, others=others)
    for name, value in checkpoints.read(mean)[0].state_dict().items():
        share = 0.25 if name.startswith("second_stage.layers.") else 1
        expected = begun[name] + share * (2 / 3 - begun[name])
        np.testing.assert_allclose(value.float(), expected, atol=0.01, err_msg=name)


def test_what_differs_cannot_be_averaged(tmp_path):
    start = StartConfig(model=str(bert_folder(tmp_path / "bert")), max_length=32, first_stage_layers=1)
    loaded = load_start(start, seed=0)
    checkpoints.write(tmp_path / "one", loaded.network, loaded.tokenizer.serialised)
    checkpoints.write(tmp_path / "tokenizer", loaded.network, loaded.tokenizer.serialised + "\n")
    shorter = load_start(replace(start, max_length=31, first_stage_layers=2), seed=0)
    checkpoints.write(tmp_path / "max_length", shorter.network, shorter.tokenizer.serialised)
    for wrong in ("max_length", "tokenizer"):
        with pytest.raises(ModelError, match=rf"found another {wrong}\. Average models"):
            interpolate_models(start.model, tmp_path / "one", tmp_path / "new", share=1.0, others=[tmp_path / wrong])
    with pytest.raises(ModelError, match=r"found no config\.json"):
        interpolate_models(start.model, tmp_path / "one", tmp_path / "new", share=1.0, others=[tmp_path / "gone"])
    assert not (tmp_path / "new").exists()


def test_models_that_were_turned_otherwise_cannot_be_averaged(tmp_path):
    for number, name in enumerate(("one", "other")):
        network = tiny_network()
        network.config = replace(network.config, rotated=True)
        network.rotation = torch.roll(torch.eye(network.config.dim), number, dims=0)
        checkpoints.write(tmp_path / name, network, tiny_tokenizer())
    one, other = str(tmp_path / "one"), tmp_path / "other"
    with pytest.raises(ModelError, match="found another rotation"):
        interpolate_models(one, tmp_path / "one", tmp_path / "new", share=1.0, others=[other])
    same = interpolate_models(one, tmp_path / "one", tmp_path / "same", share=1.0, others=[tmp_path / "one"])
    np.testing.assert_allclose(checkpoints.read(same)[0].rotation, np.eye(16), atol=1e-3)

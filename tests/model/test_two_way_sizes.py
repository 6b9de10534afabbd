"""Two-way models of any size: each family, each depth, each number of soft tokens, in every runtime; and as NumPy says.

The published sizes have golden numbers (test_two_way.py); a BERT's are computed here, by arrays alone.
"""

import json
from dataclasses import replace
from math import erf

import numpy as np
import pytest
import torch
from golden import V1, V2, golden, golden_config, sizes, tokenizer_json, write_folder
from safetensors.torch import load_file, save_file
from tiny import WORDS

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.two_way import checkpoint, files
from cde_rag.models.two_way.config import ADDED, TwoWayConfig
from cde_rag.models.two_way.network import TwoWay

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")
CORPUS = [f"the {one} of the {other}" for one in WORDS[2:6] for other in WORDS[8:11]]
FAMILIES = {
    "bert": {"max_positions": 24, "eps": 1e-5},
    "nomic_bert": {"max_positions": 64, "theta": 50.0},
    "modernbert": {"max_positions": 64, "window": 6, "global_every": 2, "theta": 90.0, "local_theta": 20.0},
}


def tiny_config(family: str, **changes) -> TwoWayConfig:
    fields = {"vocab_size": 96, "dim": 16, "layers": 3, "heads": 2, "intermediate": 24, "max_length": 20}
    fields |= {"trained_context_size": 5, "context_size": 5, "first_stage_layers": 1, "soft_tokens": 3}
    pooling = "text_after_prefix" if family == "modernbert" else "text"
    return TwoWayConfig(
        name="tiny",
        family=family,
        pooling=pooling,
        null_embedding=True,
        **{**fields, **FAMILIES[family], **changes},
    )


def tiny_model(config: TwoWayConfig, seed: int = 0) -> TwoWay:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = TwoWay(config, prefix_end=3)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, 1.0 if weight.ndim == 1 else 0.0, 0.3)
    return network.eval().requires_grad_(requires_grad=False)


def written(folder, config, seed=0):
    checkpoint.write(folder, tiny_model(config, seed), tokenizer_json())
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"first_stage_layers": None, "soft_tokens": 8, "layers": 1}], ids=["own", "8"])
def test_what_is_written_is_read_again(tmp_path, family, changes):
    config = tiny_config(family, **changes)
    model = CDEModel.from_pretrained(written(tmp_path / "m", config), runtime="torch", dtype="float32")
    assert replace(model.config, name="tiny") == config
    assert model.config.sizes() == config.sizes()
    for name, value in tiny_model(config).state_dict().items():
        assert torch.equal(model.network.state_dict()[name], value), name
    stages = model.network.first_stage.backbone, model.network.second_stage.backbone
    assert [len(list(stage.layers.blocks)) for stage in stages] == [config.of_first_stage.layers, config.layers]


@pytest.mark.parametrize("runtime", ["openvino", "onnx"])
@pytest.mark.parametrize("attention", ["two_way", "two_way_cached"])
@pytest.mark.parametrize("family", [*FAMILIES, "modernbert without context positions"])
def test_every_runtime_reads_them_alike(tmp_path, monkeypatch, family, attention, runtime):
    """With three context embeddings of a document where the backbone is cached, and one where it is not."""
    pytest.importorskip("onnx")
    pytest.importorskip("openvino" if runtime == "openvino" else "onnxruntime")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokens = 3 if attention == "two_way_cached" else 1
    changes = {"context_positions": False} if "without" in family else {}
    folder = written(tmp_path / "m", tiny_config(family.split()[0], tokens_per_document=tokens, **changes))
    options = {"dtype": "float32", "attention": attention, "device": "cpu"}
    reference = CDEModel.from_pretrained(folder, runtime="torch", **options)
    model = CDEModel.from_pretrained(folder, runtime=runtime, **options)
    assert model.identity == reference.identity
    first = reference.first_stage(CORPUS)
    np.testing.assert_allclose(model.first_stage(CORPUS), first, atol=5e-5 * np.abs(first).max())
    context = ContextualEmbedder.from_corpus(CORPUS, model=reference).context
    texts = [*CORPUS[:3], "river", " ".join(WORDS[:18])]
    for space in (context, Context.null(reference)):
        own, expected = ContextualEmbedder(model, space), ContextualEmbedder(reference, space)
        np.testing.assert_allclose(own.embed_documents(texts), expected.embed_documents(texts), atol=1e-4)
        np.testing.assert_allclose(own.embed_queries(texts), expected.embed_queries(texts), atol=1e-4)
    under = [ContextualEmbedder(reference, each).embed_queries(texts) for each in (context, Context.null(reference))]
    assert np.abs(under[0] - under[1]).max() > 1e-3  # the context acts


def normed(x, weight, bias, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def bert(state, config, x):
    """All layers over one sequence of embedded tokens, (tokens, dim): Devlin et al. 2019, in float64."""
    gelu = np.vectorize(lambda value: 0.5 * value * (1 + erf(value / 2**0.5)))
    for number in range(config.layers):
        part = {name.removeprefix(f"encoder.layer.{number}."): value for name, value in state.items()}

        def linear(name, value, part=part):
            return value @ part[f"{name}.weight"].T + part[f"{name}.bias"]

        query, key, value = (
            linear(f"attention.self.{name}", x).reshape(len(x), config.heads, -1) for name in ("query", "key", "value")
        )
        scores = np.einsum("ihd,jhd->hij", query, key) / config.head_dim**0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        answer = np.einsum("hij,jhd->ihd", weights, value).reshape(len(x), -1)
        names = "attention.output.LayerNorm", "output.LayerNorm"
        first, second = ([part[f"{name}.weight"], part[f"{name}.bias"], config.norm_eps] for name in names)
        x = normed(x + linear("attention.output.dense", answer), *first)
        x = normed(x + linear("output.dense", gelu(linear("intermediate.dense", x))), *second)
    return x


def embedded(state, config, ids):
    rows = state["embeddings.word_embeddings.weight"][ids] + state["embeddings.token_type_embeddings.weight"][0]
    x = rows + state["embeddings.position_embeddings.weight"][: len(ids)]
    return normed(x, *(state[f"embeddings.LayerNorm.{each}"] for each in ("weight", "bias")), config.norm_eps)


def segments(states, count):
    """Means of a text's states in so many equal parts, rounded up; an empty part has the text's mean. Paper's code."""
    size = -(-len(states) // count)
    parts = [states[start : start + size] for start in range(0, count * size, size)]
    return np.array([(part if len(part) else states).mean(axis=0) for part in parts])


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_bert_is_what_numpy_computes(tmp_path, tokens):
    """Both stages, from the written file: [context | soft tokens | text], of which the text alone is averaged."""
    config = tiny_config("bert", tokens_per_document=tokens)
    state = load_file(written(tmp_path / "m", config) / "model.safetensors")
    arrays = {name: value.double().numpy() for name, value in state.items()}

    def part(prefix):
        return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

    def two(stage, x, between):
        hidden = between(x @ stage["0.weight"].T + stage["0.bias"])
        return hidden @ stage["2.weight"].T + stage["2.bias"]

    def relu(x):
        return np.maximum(x, 0)

    gelu = np.vectorize(lambda value: 0.5 * value * (1 + erf(value / 2**0.5)))
    random = np.random.default_rng(0)
    documents = [random.integers(5, 90, size=length).tolist() for length in (4, 9, 20, 2, 7)]
    texts = [random.integers(5, 90, size=length).tolist() for length in (3, 20, 11)]
    first, second = part("first_stage_model."), part("second_stage_model.")
    backbone = {name.removeprefix("embedder."): value for name, value in first.items()}
    mlp = {name.removeprefix("mlp."): value for name, value in first.items()}
    states = [bert(backbone, config.of_first_stage, embedded(backbone, config, ids)) for ids in documents]
    vectors = np.array([two(mlp, segments(each, tokens), gelu).ravel() for each in states])
    network = tiny_model(config)
    found = network.read(*pad(documents))
    np.testing.assert_allclose(found.numpy(), vectors, atol=1e-4 * np.abs(vectors).max())
    backbone = {name.removeprefix("backbone."): value for name, value in second.items()}
    names = {"prompt_projection.": "soft", "output_projection.": "output"}
    heads = {short: {name.removeprefix(long): value for name, value in second.items()} for long, short in names.items()}
    soft = two(heads["soft"], np.ones(config.dim), relu).reshape(config.soft_tokens, config.dim)
    norm = [backbone[f"embeddings.LayerNorm.{each}"] for each in ("weight", "bias")]
    given = normed(np.concatenate([vectors.reshape(-1, config.dim), soft]), *norm, config.norm_eps)
    expected = []
    for ids in texts:
        states = bert(backbone, config, np.concatenate([given, embedded(backbone, config, ids)]))
        vector = two(heads["output"], states[len(given) :].mean(axis=0), relu)
        expected.append(vector / np.linalg.norm(vector))
    prepared = network.prepare(found, torch.ones(5, dtype=torch.long))
    np.testing.assert_allclose(network(*pad(texts), 0, prepared).numpy(), expected, atol=1e-4)
    turned = network.prepare(found.flip(0), torch.ones(5, dtype=torch.long))
    torch.testing.assert_close(network(*pad(texts), 0, turned), network(*pad(texts), 0, prepared), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", [True, False])
def test_the_order_of_a_context_matters_to_a_modernbert_unless_it_has_no_positions(positions):
    network = tiny_model(tiny_config("modernbert", context_positions=positions))
    ids, mask = pad([[5, 7, 3, 9, 11], [6, 3, 8]])
    vectors, counts = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), torch.ones(5, dtype=torch.long)
    found, turned = (network(ids, mask, 0, network.prepare(each, counts)) for each in (vectors, vectors.flip(0)))
    assert torch.allclose(found, turned, atol=1e-5) != positions
    network.second_stage.backbone.layers.unplaced = 0  # layer by layer, with positions, it is the native class
    if positions:
        layers, given = network.second_stage.backbone.layers, network.prepare(vectors, counts).tokens.expand(2, -1, -1)
        sequence = torch.cat([layers.embed_given(given), layers.embed_text(ids)], dim=1)
        whole = torch.cat([mask.new_ones(given.shape[:2]), mask], dim=1)
        expected = network.second_stage.backbone.read_after(given, ids, whole)
        torch.testing.assert_close(layers.run(sequence, whole)[0][whole], expected[whole], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [V1, V2])
def test_a_published_config_may_have_several_tokens_per_document(tmp_path, tiny_backbones, name):
    """The Context has a row for each document, with all its embeddings, and comes back from a file, like the name."""
    folder = write_folder(tmp_path / "m", name, transductive_corpus_size=4, transductive_tokens_per_document=2)
    model = CDEModel.from_pretrained(folder, runtime="torch", dtype="float32")
    assert (model.config.given, model.identity.tokens_per_document) == (4 * 2 + 8, 2)
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=model)
    context = embedder.context
    assert context.context_embeddings.shape == (4, 2 * model.dim)
    context.save(tmp_path / "c.context.safetensors")
    again = Context.load(tmp_path / "c.context.safetensors")
    assert again.identity == model.identity
    assert again.fingerprint == context.fingerprint
    texts = ["river", "the bank of money"]
    np.testing.assert_array_equal(ContextualEmbedder(model, again).embed_queries(texts), embedder.embed_queries(texts))
    single = CDEModel.from_pretrained(
        write_folder(tmp_path / "one", name, transductive_corpus_size=8), runtime="torch", dtype="float32"
    )
    assert single.identity.to_json()["semantics"] == "train"
    assert model.identity.to_json()["semantics"] == "train; 2 tokens per document"
    whole = single.first_stage(["river", "the bank of money"])
    assert not np.allclose(model.first_stage(texts)[:, : model.dim], whole)
    assert np.isfinite(ContextualEmbedder(model, Context.generic(model)).embed_queries(texts)).all()
    assert files.read_config(files.published_config(model.config), ModelName(base="m")).tokens_per_document == 2


@pytest.mark.parametrize("name", [V1, V2])
def test_a_published_config_may_have_fewer_layers(tmp_path, monkeypatch, name):
    """As the paper's code cuts a backbone: the lowest layers stay; the first stage has a limit of its own."""
    backbone = golden_config(name)["cde_config"]["embedder"]
    full = sizes(name)
    monkeypatch.setitem(files.BACKBONES, backbone, full | {"layers": full["layers"] + 1})
    folder = write_folder(tmp_path / "m", name, limit_layers=1, limit_layers_first_stage=full["layers"])
    place = "encoder.layers." if name == V1 else "layers."
    kept = {
        key: value
        for key, value in golden(name, "model").items()
        if f"second_stage_model.backbone.{place}" not in key or f"{place}0." in key
    }
    save_file(kept, folder / "model.safetensors")
    config = CDEModel.from_pretrained(folder, runtime="torch").config
    assert (config.layers, config.first_stage_layers) == (1, full["layers"])
    assert files.published_config(config)["embedder"] == config.family
    write_folder(tmp_path / "more", name, limit_layers=full["layers"] + 2)
    with pytest.raises(ModelError, match="at most the"):
        CDEModel.from_pretrained(tmp_path / "more")


def test_digests_of_older_models_stay():
    """A field that is as it always was is no part of the digest."""
    config = tiny_config("modernbert", first_stage_layers=None, soft_tokens=8, theta=None, local_theta=None)
    assert not set(ADDED) & config.sizes().keys()
    others = {"first_stage_layers": 2, "soft_tokens": 4, "theta": 3.0, "local_theta": 2.0, "eps": 0.1}
    for name, other in (others | {"tokens_per_document": 2, "context_positions": False}).items():
        assert replace(config, **{name: other}).sizes() == config.sizes() | {name: other}


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"dim": "16"}, "wrong or unknown: dim"),
        ({"depth": 2}, "wrong or unknown: depth"),
        ({"eps": float("nan")}, "wrong or unknown: eps"),
        ({"heads": 0}, "wrong or unknown: heads"),
        ({"dim": None}, "missing: dim"),
        ({"context_positions": 0}, "wrong or unknown: context_positions"),
    ],
)
def test_sizes_that_are_none(tmp_path, backbone, message):
    folder = written(tmp_path / "m", tiny_config("bert"))
    value = json.loads((folder / "config.json").read_text())
    value["backbone"] = {name: size for name, size in (value["backbone"] | backbone).items() if size is not None}
    with pytest.raises(ModelError, match=message):
        files.read_config(value, ModelName(base="m"))


def test_texts_are_no_longer_than_the_positions():
    with pytest.raises(ModelError, match="longer than the 24 positions"):
        tiny_config("bert", max_length=25)
    tiny_config("bert", context_size=5, trained_context_size=500)  # its context takes no positions
    with pytest.raises(ModelError, match="more than the 64 positions"):
        tiny_config("nomic_bert", max_length=60)
    with pytest.raises(ModelError, match="0 and 3 layers"):
        tiny_config("bert", first_stage_layers=0)

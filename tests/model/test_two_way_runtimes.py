"""Two-way models without torch: their vectors are torch's and the paper's code's, for every reading, context, role and
length; contexts do not mix; files are checked; and a process that cannot import torch searches a collection.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from compiled_graphs import recording
from golden import PREFIX_END, V1, V2, golden, golden_config, sizes, write_folder
from safetensors.torch import load_file, save_file
from tiny import WORDS

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions
from cde_rag.errors import ContextError, ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.engines import CompiledGraphs
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import files as published
from cde_rag.models.two_way import files as published_files
from cde_rag.models.two_way.files import PublishedFiles
from cde_rag.models.two_way.graph_runner import TwoWayGraphRunner
from cde_rag.stores.faiss import FaissStore

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")
RUNTIMES = ("openvino", "onnx")
CORPUS = [f"the {one} of the {other}" for one in WORDS[2:8] for other in WORDS[8:13]]
READINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # model, changes of its config, options
    "v1": (V1, {}, {}),
    "v1 of its remote code": (V1, {}, {"semantics": "hf_model_py"}),
    "v1 cached": (V1, {}, {"attention": "two_way_cached"}),
    "v1 of its remote code, cached": (V1, {}, {"semantics": "hf_model_py", "attention": "two_way_cached"}),
    "v1 whose text begins unrotated": (V1, {"transductive_corpus_size": 24}, {"context_size": 5}),
    "v1 over the sequence": (V1, {"pool_ignore_contextual_tokens": False}, {}),
    "v2": (V2, {}, {}),
    "v2 of its remote code": (V2, {}, {"semantics": "hub"}),
    "v2 cached": (V2, {}, {"attention": "two_way_cached"}),
    "v2 over the prefix, too": (V2, {"pool_ignore_instruction_tokens": False}, {"context_size": 3}),
    "v2 over the sequence": (V2, {"pool_ignore_contextual_tokens": False}, {}),
}


def some_texts(seed: int) -> list[str]:
    """Texts of every length up to beyond the limit of 32 tokens."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, length)) for length in range(1, 45, 2)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache folder of this module's own; the published configs name backbones of the goldens' sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in (V1, V2):
            patch.setitem(published.BACKBONES, golden_config(name)["cde_config"]["embedder"], sizes(name))
        yield Path(os.environ["XDG_CACHE_HOME"]) / "cde-rag"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        reading: write_folder(root / str(number), name, **changes)
        for number, (reading, (name, changes, _)) in enumerate(READINGS.items())
    }


@pytest.fixture(scope="module")
def load(folders):
    """Loads a reading in a runtime, once."""
    found: dict[tuple[str, str], CDEModel] = {}

    def loaded(reading: str, runtime: str) -> CDEModel:
        if (reading, runtime) not in found:
            options = READINGS[reading][2]
            found[reading, runtime] = CDEModel.from_pretrained(
                folders[reading], device="cpu", dtype="float32", runtime=runtime, **options
            )
        return found[reading, runtime]

    return loaded


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    assert (found * expected).sum(axis=1).min() >= 0.999999
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_a_query_has_a_graph_of_one_thread_and_a_batch_those_of_the_process(folders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cde_rag.models.two_way.graph_runner.batch_threads", lambda: 7)
    model = CDEModel.from_pretrained(folders["v1"], device="cpu", dtype="float32", runtime="onnx")
    embedder, asked = ContextualEmbedder.from_corpus(CORPUS[:2], model=model), list[tuple[str, int]]()
    monkeypatch.setattr(CompiledGraphs, "get", recording(asked))
    embedder.embed_queries(["river"])
    embedder.embed_queries(["river", "bank"])
    embedder.embed_documents(["river"])
    assert asked == [("second", 1), ("second", 7), ("second", 7)]
    assert model.threads == 7


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("reading", READINGS)
def test_vectors_are_those_of_torch(load, reading: str, runtime: str):
    reference, model = load(reading, "torch"), load(reading, runtime)
    assert (model.runtime, model.identity) == (runtime, reference.identity)
    first = reference.first_stage(CORPUS)
    np.testing.assert_allclose(model.first_stage(CORPUS), first, atol=5e-5 * np.abs(first).max())
    contexts = [ContextualEmbedder.from_corpus(part, model=reference).context for part in (CORPUS, CORPUS[:2])]
    contexts += [Context.generic(reference), *([Context.null(reference)] if READINGS[reading][0] == V1 else [])]
    for seed, context in enumerate(contexts):
        texts = some_texts(seed)
        own, expected = ContextualEmbedder(model, context), ContextualEmbedder(reference, context)
        documents, queries = own.embed_documents(texts), own.embed_queries(texts)
        close(documents, expected.embed_documents(texts))
        close(queries, expected.embed_queries(texts))
        close(np.concatenate([own.embed_queries([text]) for text in texts]), queries)  # batched equals single
        assert np.abs(queries - documents).max() > 1e-2  # prefixes act


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("name", "semantics"), [(V1, "train"), (V1, "hf_model_py"), (V2, "train"), (V2, "hub")])
def test_vectors_are_those_of_the_papers_code(folders, monkeypatch, name: str, semantics: str, runtime: str):
    monkeypatch.setattr(TextTokenizer, "first_id", lambda *_: PREFIX_END)
    files = PublishedFiles.find(folders["v1" if name == V1 else "v2"], ModelName(base=name, semantics=semantics))
    runner = TwoWayGraphRunner(files, runtime, "float32")
    inputs, outputs = golden(name, "inputs"), golden(name, "outputs")

    def rows(what: str) -> list[list[int]]:
        pairs = zip(inputs[f"{what}_input_ids"], inputs[f"{what}_attention_mask"].bool(), strict=True)
        return [ids[mask].tolist() for ids, mask in pairs]

    own = outputs[f"{semantics}.first_stage.context_embeddings"].numpy()
    np.testing.assert_allclose(runner.read(rows("context")), own, atol=1e-4)
    contexts = {
        "full_context": (own, np.ones(8, dtype=np.int64)),
        "reversed_context": (own[::-1].copy(), np.ones(8, dtype=np.int64)),
        "cycled_context": (own[:5], np.array([2, 2, 2, 1, 1])),
    }
    if name == V1:
        contexts["null_context"] = (own[:0], np.zeros(0, dtype=np.int64))
    for variant, context in contexts.items():
        prepared = runner.prepare(*context)
        for role in ("query", "doc", "noprefix"):
            expected = torch.nn.functional.normalize(outputs[f"{semantics}.second_stage.{role}.{variant}"]).numpy()
            found = runner.embed(rows(role), 1, prepared, None, None)
            np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("reading", ["v1", "v2 cached"])
def test_contexts_of_one_process_do_not_mix(load, reading: str):
    texts = some_texts(0)
    for runtime in RUNTIMES:
        model = load(reading, runtime)
        embedders = [ContextualEmbedder.from_corpus(part, model=model) for part in (CORPUS[:15], CORPUS[15:])]
        expected = [[embedder.embed_queries([text]) for embedder in embedders] for text in texts]
        assert all(np.abs(one - other).max() > 1e-3 for one, other in expected)

        def both(text: str, embedders: list[ContextualEmbedder] = embedders) -> list[np.ndarray]:
            return [embedder.embed_queries([text]) for embedder in embedders]

        with ThreadPoolExecutor(4) as pool:
            np.testing.assert_allclose(list(pool.map(both, texts)), expected, atol=1e-6)


def test_bfloat16_of_openvino_is_near(folders, load):
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=load("v1", "torch"))
    model = CDEModel.from_pretrained(folders["v1"], runtime="openvino", dtype="bfloat16")
    found = ContextualEmbedder(model, embedder.context).embed_documents(some_texts(0))
    assert (embedder.embed_documents(some_texts(0)) * found).sum(axis=1).min() > 0.99


def test_half_floats_are_read_as_by_torch(tmp_path):
    folder = write_folder(tmp_path / "half", V2)
    state = load_file(folder / "model.safetensors")
    dtypes = (torch.bfloat16, torch.float16)
    halves = {name: value.to(dtypes[place % 2]) for place, (name, value) in enumerate(sorted(state.items()))}
    save_file(halves, folder / "model.safetensors")
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=CDEModel.from_pretrained(folder, dtype="float32"))
    model = CDEModel.from_pretrained(folder, runtime="onnx")
    close(ContextualEmbedder(model, embedder.context).embed_queries(CORPUS), embedder.embed_queries(CORPUS))


def test_what_cannot_be(folders, load, tmp_path):
    for runtime in RUNTIMES:
        model = load("v2", runtime)
        with pytest.raises(ContextError, match=r"no null embedding.*Context\.generic\(model\)"):
            ContextualEmbedder(model, Context.null(model))
        vectors = model.first_stage(CORPUS[:5])
        context = Context.create(model.identity, CORPUS[:5], vectors, sampling="random", seed=0, documents_seen=20)
        with pytest.raises(ContextError, match=r"expects a context of 8 documents, found 5\."):
            ContextualEmbedder(model, context)
        prepared = model.prepare(Context.generic(model))
        siblings = np.zeros((1, 1, 64), np.float32), np.ones((1, 1), np.bool_)
        with pytest.raises(ModelError, match="reads no siblings"):
            model.stages.embed([[1, 2]], 0, prepared, *siblings)
        other = load("v2", "torch").prepare(Context.generic(load("v2", "torch")))
        with pytest.raises(TypeError, match="not prepared by this model"):
            model.stages.embed([[1, 2]], 0, other, None, None)
        with pytest.raises(TypeError, match="not prepared by this model"):
            load("v2", "torch").stages.embed([[1, 2]], 0, prepared, None, None)
        with pytest.raises(ModelError, match="runtime='torch'"):
            _ = model.network
    with pytest.raises(ModelError, match="float32"):
        CDEModel.from_pretrained(folders["v2"], runtime="onnx", dtype="bfloat16")
    with pytest.raises(ModelError, match="CPU"):
        CDEModel.from_pretrained(folders["v2"], runtime="openvino", device="cuda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("second_stage_model.output_projection.0.bias"), r"missing: .*projection\.0\.bias"),
        (lambda state: state.update({"second_stage_model.stray": torch.ones(2)}), "unknown: second_stage_model.stray"),
        (lambda state: state["second_stage_model.output_projection.2.bias"].fill_(float("nan")), "NaN or infinity"),
        (
            lambda state: state.update({"second_stage_model.output_projection.0.bias": torch.ones(2)}),
            r"output_projection\.0\.bias \(2,\) instead of \(64,\)",
        ),
    ],
)
def test_tensors_are_those_of_the_config(tmp_path, change: Any, message: str):
    folder = write_folder(tmp_path / "model", V1)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        CDEModel.from_pretrained(folder, runtime="onnx")


def test_the_choice_is_measured_once_for_each_reading(folders, cache, monkeypatch):
    monkeypatch.delenv(runtime_choice.VARIABLE)
    monkeypatch.setattr(runtime_choice, "STEADY", float("inf"))  # however busy this machine is
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.01)
    models = [
        CDEModel.from_pretrained(folders["v2"], device="cpu", attention=attention)
        for attention in (None, "two_way_cached", None)
    ]
    assert len(list((cache / "runtimes").iterdir())) == 2
    for model in models:
        rows = ModelSource.of(folders["v2"], ModelName.parse(model.identity.name)).timings()
        assert {row.runtime for row in rows} == {"torch", *RUNTIMES}
        assert all(row.cosine > 0.9999 for row in rows if row.dtype == "float32")
        best = runtime_choice.fastest(rows)
        assert best is not None
        assert (model.runtime, model.dtype) == (best.runtime, best.dtype)
    assert CDEModel.from_pretrained(folders["v2"], device="cpu", dtype="float16").runtime == "torch"
    monkeypatch.setenv(runtime_choice.VARIABLE, "openvino")
    named = CDEModel.from_pretrained(folders["v2"])
    assert (named.runtime, named.dtype, named.given_runtime) == ("openvino", "float32", None)
    monkeypatch.delenv(runtime_choice.VARIABLE)
    monkeypatch.setattr(runtime_choice, "installed", lambda: {"torch": {"torch": "2"}})
    assert CDEModel.from_pretrained(folders["v2"], device="cpu").runtime == "torch"


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_a_load_hashes_the_weights_once(folders, monkeypatch, runtime: str):
    """They have 1.1 GB; a choice by measured times and the runtime that it chooses read the same files."""
    monkeypatch.delenv(runtime_choice.VARIABLE)
    fastest = runtime_choice.Timing(runtime, "float32", 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr(runtime_choice, "timings", lambda *_, **__: [fastest])
    with mock.patch.object(published_files, "file_sha256", wraps=published_files.file_sha256) as hashed:
        assert CDEModel.from_pretrained(folders["v2"], device="cpu").runtime == runtime
    assert [call.args[0].name for call in hashed.call_args_list] == ["model.safetensors", "tokenizer.json"]


def test_slow_calls_are_made_twice(monkeypatch):
    """A published model takes seconds for a call, so that the first one counts."""
    now, calls = [0.0], [0]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0])
    monkeypatch.setattr(runtime_choice, "time", clocks)
    monkeypatch.setattr(runtime_choice, "candidates", lambda: [("torch", "float32")])

    def work() -> np.ndarray:
        calls[0] += 1
        now[0] += 2.0 + calls[0] % 2
        return np.eye(2, dtype=np.float32)

    (row,) = runtime_choice.measure(lambda runtime, dtype: runtime_choice.Trial(runtime, dtype, work, work))
    assert calls == [4]
    assert (row.document_ms, row.query_ms, row.spread) == pytest.approx((1000.0, 2000.0, 1.25))


WITHOUT_TORCH = """
import sys, warnings
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is not here", name=name)
sys.meta_path.insert(0, Forbidden())
warnings.simplefilter("ignore")
from cde_rag import Collection, ContextualEmbedder, EmbedderOptions
from cde_rag.models.two_way import files as published
runtime, model, folder, backbone, sizes, attention = sys.argv[1:]
published.BACKBONES[backbone] = eval(sizes)
from cde_rag import CDEModel
loaded = CDEModel.from_pretrained(model, runtime=runtime, attention=attention)
texts = [f"the river {number} of the bank" for number in range(12)]
with Collection.create(folder, ContextualEmbedder.from_corpus(texts, model=loaded)) as papers:
    papers.add(texts)
with Collection.open(folder, options=EmbedderOptions(runtime=runtime)) as papers:
    papers.add(["money and water"])
    assert papers.recontextualize(seed=1).embedded == 13
    print(len(papers.search("money", k=3)), papers.embedder.model.runtime)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "transformers")))
"""


@pytest.mark.parametrize(("name", "attention"), [(V1, "two_way_cached"), (V2, "two_way")])
def test_a_process_without_torch_makes_fills_and_searches_a_collection(tmp_path, name: str, attention: str):
    model = write_folder(tmp_path / "model", name)
    backbone = golden_config(name)["cde_config"]["embedder"]
    command = [sys.executable, "-c", WITHOUT_TORCH, "openvino", str(model), str(tmp_path / "papers.faiss"), backbone]
    result = subprocess.run([*command, repr(sizes(name)), attention], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["3 openvino", "[]"]


def test_a_collection_of_torch_is_searched_without(load, folders, tmp_path):
    with Collection.create(
        FaissStore(tmp_path / "papers"), ContextualEmbedder.from_corpus(CORPUS, model=load("v2", "torch"))
    ) as papers:
        papers.add(CORPUS)
        expected = [hit.id for hit in papers.search(CORPUS[3], k=5)]
    for runtime in RUNTIMES:
        options = EmbedderOptions(device="cpu", dtype="float32", runtime=runtime)
        with Collection.open(tmp_path / "papers", model=folders["v2"], options=options) as papers:
            assert [hit.id for hit in papers.search(CORPUS[3], k=5)] == expected

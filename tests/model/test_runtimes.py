"""Runtimes without torch: their vectors are torch's, for every model, context, sibling, role and length; their files
are checked; and a collection is made, searched and changed in a process that cannot import torch.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from compiled_graphs import recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from tiny import WORDS, tiny_network, tiny_tokenizer
from tiny_pair import tiny_pair
from torch_state import torch_state

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions
from cde_rag.context.sampling import Sample
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.errors import MissingExtraError, ModelError
from cde_rag.models.files import model_files
from cde_rag.models.files.model_files import find
from cde_rag.models.files.stored_tensors import float_state
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.graph_runner import StoredModel
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.pair import checkpoint as pair_checkpoint
from cde_rag.models.pair.checkpoint import pack
from cde_rag.models.runtimes import graph_cache, runtime_choice
from cde_rag.models.runtimes.engines import CompiledGraphs
from cde_rag.models.runtimes.runtime_choice import Timing
from cde_rag.models.runtimes.torch_runner import TorchRunner
from cde_rag.stores.faiss import FaissStore

pytest.importorskip("onnx")
pytestmark = [
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),
]
RUNTIMES = ("openvino", "onnx")
TOLERANCE = 2e-5
DOCUMENTS = [f"{' '.join(np.random.default_rng(i).choice(WORDS, 3 + i % 9))}" for i in range(40)]
SIZES = {  # of networks that differ in every branch of the graphs
    "whole": {},
    "rotated": {"rotated": True, "lead_share": 0.0, "full_likeness": 0.0},
    "topmost": {"context_layers": 1, "first_stage_layers": 0},
    "deep": {"first_stage_layers": 2, "lead_share": 1.0},
}


def write_model(folder: Path, name: str) -> Path:
    """A model whose weights are random, none of them 0 or 1, and whose gates are open."""
    config = replace(tiny_network().config, name=name, **SIZES[name])
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        network = TwoStage(config)
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        network.second_stage.gates.data.normal_()
        network.output_map.exponent.data.fill_(0.5)
        if config.rotated:
            network.rotation = torch.linalg.qr(torch.randn(16, 16))[0].contiguous()
    checkpoints.write(folder, network, tiny_tokenizer())
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache folder of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["XDG_CACHE_HOME"]) / "cde-rag"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of all models, a pair among them."""
    root = tmp_path_factory.mktemp("models")
    found = {name: write_model(root / name, name) for name in SIZES}
    checkpoints.write(root / "bundled" / "tiny", tiny_network(), tiny_tokenizer())
    *_, digest = checkpoints.read(root / "bundled" / "tiny")
    pair_checkpoint.write(root / "pair", *tiny_pair("tiny", digest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "BUNDLED", root / "bundled")
        yield found | {"pair": root / "pair"}


def load(folder: Path, runtime: str, dtype: str = "float32") -> CDEModel:
    return CDEModel.from_pretrained(folder, device="cpu", dtype=dtype, runtime=runtime)


@pytest.fixture(scope="module")
def loaded(folders):
    """Each model in each runtime."""
    return {(name, runtime): load(folders[name], runtime) for name in folders for runtime in ("torch", *RUNTIMES)}


def context_of(model: CDEModel, documents: list[str]) -> Context:
    return fit(model, Sample(documents=documents, documents_seen=len(documents)), strategy="random", seed=0)


texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join), min_size=1, max_size=5)
groups = st.lists(st.sampled_from(DOCUMENTS), max_size=4, unique=True)


@pytest.mark.parametrize("name", [*SIZES, "pair"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_vectors_are_those_of_torch(loaded, name: str, data: st.DataObject):
    documents, batch = data.draw(st.lists(st.sampled_from(DOCUMENTS), max_size=30)), data.draw(texts)
    siblings = data.draw(st.none() | st.lists(groups, min_size=len(batch), max_size=len(batch)))
    reference = loaded[name, "torch"]
    context = context_of(reference, documents) if documents else Context.null(reference)
    expected = ContextualEmbedder(reference, context)
    for runtime in RUNTIMES:
        embedder = ContextualEmbedder(loaded[name, runtime], context, options=EmbedderOptions(mini_batch_size=2))
        for found, vectors in (
            (embedder.embed_queries(batch), expected.embed_queries(batch)),
            (embedder.embed_queries(batch[:1]), expected.embed_queries(batch[:1])),
            (embedder.embed_passages(batch, siblings).vectors, expected.embed_passages(batch, siblings).vectors),
            (embedder.model.first_stage(batch), reference.first_stage(batch)),
        ):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, vectors, atol=TOLERANCE)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_late_chunking_is_torch_s(folders, tmp_path, runtime):
    """A model in another runtime loads the network for it, from the files that it was loaded from."""
    folder = Path(shutil.copytree(folders["rotated"], tmp_path / "model"))
    model, reference = load(folder, runtime), load(folder, "torch")
    context = context_of(reference, DOCUMENTS)
    documents = [DOCUMENTS[:5], DOCUMENTS[7:8]]
    found, expected = (ContextualEmbedder(each, context).embed_chunks(documents) for each in (model, reference))
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=TOLERANCE)
    prepared = model.prepare(context)
    with mock.patch.object(TwoStage, "chunks", side_effect=StopIteration) as chunks, pytest.raises(StopIteration):
        model.embed_chunks(documents, prepared, 1, mini_batch_size=8)
    used = next(each for each in chunks.call_args.args if isinstance(each, PreparedContext))
    assert all(getattr(used, name).data_ptr() == value.ctypes.data for name, value in vars(prepared).items())  # no copy
    again = load(folder, runtime)
    shutil.rmtree(folder)
    shutil.copytree(folders["deep"], folder)
    with pytest.raises(ModelError, match=r"was written since the model was loaded\. Load it again"):
        ContextualEmbedder(again, context).embed_chunks(documents)


def test_context_role_and_siblings_reach_the_graphs(loaded):
    """Otherwise the test above would hold for graphs that leave them out of a model in which they do nothing."""
    for runtime in RUNTIMES:
        model = loaded["whole", runtime]
        own, other = (ContextualEmbedder(model, context_of(model, part)) for part in (DOCUMENTS[:20], DOCUMENTS[20:]))
        batch = DOCUMENTS[:4]
        plain = own.embed_documents(batch)
        for moved in (
            other.embed_documents(batch),
            own.embed_queries(batch),
            own.embed_passages(batch, [DOCUMENTS[5:8]] * 4).vectors,
        ):
            assert np.abs(moved - plain).max(axis=1).min() > 1e-3


def test_a_model_of_another_runtime_has_the_same_space(folders, loaded, tmp_path):
    made = ContextualEmbedder.from_corpus(DOCUMENTS, model=loaded["whole", "onnx"])
    again = ContextualEmbedder.from_corpus(DOCUMENTS, model=loaded["whole", "torch"])
    assert made.model.identity == again.model.identity
    with Collection.create(FaissStore(tmp_path / "papers"), made) as papers:
        papers.add(DOCUMENTS, ids=map(str, range(40)))
    for runtime in ("torch", *RUNTIMES):
        options = EmbedderOptions(device="cpu", dtype="float32", runtime=runtime, mini_batch_size=32)
        with Collection.open(tmp_path / "papers", model=folders["whole"], options=options) as papers:
            assert papers.embedder.model.runtime == runtime  # type: ignore[attr-defined]
            assert papers.embedder.options == options
            hits = papers.search(DOCUMENTS[3], k=3)
            assert hits[0].text == DOCUMENTS[3] or hits[0].score > 0.5
            assert papers.recontextualize(seed=len(runtime), context_size=20).embedded >= 0
            assert papers.embedder.options == options


def test_many_threads_get_the_vectors_of_one(loaded):
    for runtime in RUNTIMES:
        embedder = ContextualEmbedder(loaded["pair", runtime], Context.null(loaded["pair", runtime]))
        expected = [embedder.embed_queries([text]) for text in DOCUMENTS]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: embedder.embed_queries([text]), DOCUMENTS))  # noqa: B023
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["whole", "pair"])
def test_a_query_has_a_graph_of_one_thread_and_a_batch_those_of_the_process(folders, monkeypatch, name: str):
    monkeypatch.setattr("cde_rag.models.one_way.graph_runner.batch_threads", lambda: 7)
    model = load(folders[name], "onnx")
    embedder, asked = ContextualEmbedder(model, Context.null(model)), list[tuple[str, int]]()
    monkeypatch.setattr(CompiledGraphs, "get", recording(asked))
    embedder.embed_queries(["river"])
    embedder.embed_queries(["river", "bank"])
    embedder.embed_documents(["river"])
    model.first_stage(["river"])
    assert asked == [("second", 1), ("second", 7), ("second", 7), ("first", 7)]
    assert model.threads == 7


def test_bfloat16_of_openvino_is_near(folders, loaded):
    context = context_of(loaded["whole", "torch"], DOCUMENTS)
    exact = ContextualEmbedder(loaded["whole", "torch"], context).embed_documents(DOCUMENTS)
    model = load(folders["whole"], "openvino", "bfloat16")
    found = ContextualEmbedder(model, context).embed_documents(DOCUMENTS)
    assert (model.runtime, model.dtype) == ("openvino", "bfloat16")
    assert (exact * found).sum(axis=1).min() > 0.99
    expected = loaded["whole", "openvino"].first_stage(DOCUMENTS)  # contexts and siblings are in float32 in any case
    np.testing.assert_allclose(model.first_stage(DOCUMENTS), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["cde-mini-0", "cde-mini-1", "cde-mini-2"])
def test_stored_weights_are_those_of_torch_bit_by_bit(name: str):
    folder = model_files.installed(name) or Path(model_files.__file__).parents[1] / "bundled" / name
    content = (folder / "model.safetensors").read_bytes()
    state, expected = float_state(content), torch_state(load_tensors(content))
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(state[key], value.numpy()), key


def test_four_bit_codes_and_half_floats_are_those_of_torch_bit_by_bit():
    from safetensors.torch import save

    codes, scales = pack(torch.randn(7, 64))
    stored = {"a": codes, "a.scale": scales, "b": torch.randn(3, 2)}
    stored |= {"c": torch.randn(5).bfloat16(), "d": torch.randn(5).half()}
    expected, found = torch_state(stored), float_state(save(stored))
    for name, value in expected.items():
        assert np.array_equal(found[name], value.numpy())
    assert found.keys() == {"a", "b", "c", "d"}
    assert {value.dtype for value in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": torch.ones(2, 2, dtype=torch.float64)},
        {"a": torch.tensor([float("nan")])},
        {"a": torch.ones(2, 64, dtype=torch.int8)},
        {"a": torch.ones(2, 64, dtype=torch.uint8), "a.scale": torch.ones(2, 3, dtype=torch.float16)},
        {"a": torch.ones(2, 64, dtype=torch.int8), "a.scale": torch.ones(1, 2, dtype=torch.float16)},
    ],
)
def test_stored_weights_that_are_none(tensors: dict[str, torch.Tensor]):
    from safetensors.torch import save

    with pytest.raises(ModelError):
        float_state(save(tensors))
    with pytest.raises(ModelError, match="safetensors"):
        float_state(b"none")


def test_a_graph_is_built_once_and_again_if_it_is_damaged(folders, cache, monkeypatch):
    load(folders["deep"], "onnx")
    digest = StoredModel.read(folders["deep"]).digest
    (path,) = (cache / "graphs").glob(f"{digest[:32]}-second-*.onnx")
    intact = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("cde_rag.models.one_way.graph.second_stage_graph", None)  # whoever builds it fails
        load(folders["deep"], "onnx")
    (weights,) = (cache / "graphs").glob(f"{digest[:32]}-second-*.weights")
    intact_weights = weights.read_bytes()
    assert len(intact) < len(intact_weights)
    expected = ContextualEmbedder(load(folders["deep"], "torch"), Context.null(load(folders["deep"], "torch")))
    for damage in (
        lambda: path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1])),
        lambda: weights.write_bytes(intact_weights[:-1] + bytes([intact_weights[-1] ^ 1])),
        weights.unlink,
    ):
        damage()
        found = ContextualEmbedder(load(folders["deep"], "onnx"), expected.context).embed_documents(DOCUMENTS)
        np.testing.assert_allclose(found, expected.embed_documents(DOCUMENTS), atol=TOLERANCE)
        assert path.read_bytes() == intact
        assert weights.read_bytes() == intact_weights
    assert {each.suffix for each in path.parent.iterdir()} == {".onnx", ".weights"}


def test_graphs_of_earlier_formats_are_removed(folders, cache):
    digest = StoredModel.read(folders["deep"]).digest
    old = cache / "graphs" / f"{digest[:32]}-second-1.{'0' * 64}.onnx"
    other = cache / "graphs" / f"{'0' * 32}-second-1.{'0' * 64}.onnx"
    for path in (old, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"graph")
    for path in (cache / "graphs").glob(f"{digest[:32]}-second-{graph_cache.FORMAT}.*"):
        path.unlink()
    load(folders["deep"], "onnx")
    assert not old.exists()
    assert other.exists()


def test_files_of_killed_writers_are_removed(folders, cache):
    """As large as the weights; a process that memory runs out in is started again and again."""
    digest = StoredModel.read(folders["deep"]).digest
    for path in (cache / "graphs").glob(f"{digest[:32]}-second-*"):
        path.unlink()
    killed, written = (cache / "graphs" / f".{digest[:32]}-second-3.{each}.weights.0123.tmp" for each in "ab")
    for path in (killed, written):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half of the weights")
    os.utime(killed, (0, 0))
    load(folders["deep"], "onnx")
    assert not killed.exists()
    assert written.exists()
    written.unlink()


def test_a_model_that_is_written_anew_changes_no_running_process(tmp_path):
    """Its word embeddings are mapped into memory."""
    folder = write_model(tmp_path / "model", "whole")
    model = load(folder, "onnx")
    embedder = ContextualEmbedder(model, Context.null(model))
    before = embedder.embed_documents(DOCUMENTS)
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    np.testing.assert_array_equal(embedder.embed_documents(DOCUMENTS), before)
    assert load(folder, "onnx").identity != model.identity


def test_a_runtime_works_without_a_cache(folders, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made in it
    model = load(folders["whole"], "onnx")
    assert ContextualEmbedder(model, Context.null(model)).embed_queries(["river"]).shape == (1, 16)
    assert isinstance(graph_cache.kept_graph("0" * 64, "second", lambda: b"graph"), bytes)


def test_damaged_models_are_refused(folders, tmp_path):
    import shutil

    for name in ("model.safetensors", "tokenizer.json"):
        copy = shutil.copytree(folders["whole"], tmp_path / name)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        with pytest.raises(ModelError, match="damaged"):
            load(copy, "onnx")


@pytest.mark.usefixtures("unchecked")
def test_runtimes_that_cannot_be(folders, monkeypatch):
    with pytest.raises(ModelError, match="torch, openvino, onnx"):
        load(folders["whole"], "tensorflow")
    with pytest.raises(ModelError, match="float32"):
        load(folders["whole"], "onnx", "bfloat16")
    with pytest.raises(ModelError, match="float16"):
        load(folders["whole"], "openvino", "float16")
    with pytest.raises(ModelError, match="CPU"):
        CDEModel.from_pretrained(folders["whole"], device="cuda", runtime="openvino")
    with pytest.raises(ModelError, match="runtime='torch'"):
        _ = load(folders["whole"], "onnx").network
    monkeypatch.setattr(runtime_choice, "installed", dict)
    monkeypatch.delenv(runtime_choice.VARIABLE)
    with pytest.raises(MissingExtraError, match="torch"):
        CDEModel.from_pretrained(folders["whole"])


def test_a_prepared_context_of_another_runtime_is_refused(loaded):
    other = loaded["whole", "torch"].prepare(Context.null(loaded["whole", "torch"]))
    with pytest.raises(TypeError, match="not prepared by this model"):
        loaded["whole", "onnx"].stages.embed([[1, 2]], 0, other, None, None)


def test_the_fastest_runtime_that_shares_the_space_is_chosen():
    rows = [
        Timing("torch", "float32", 10.0, 10.0, 1.0, 1.0),
        Timing("openvino", "float32", 5.0, 10.0, 0.99991, 1.0),
        Timing("onnx", "float32", 4.0, 20.0, 1.0, 1.0),  # the fastest for documents
        Timing("openvino", "bfloat16", 1.0, 1.0, 0.99989, 1.0),
    ]
    quickest = Timing("torch", "bfloat16", 40.0, 2.0, 1.0, 1.0)  # for queries
    assert runtime_choice.fastest([*rows, quickest]) == rows[1]
    assert runtime_choice.fastest(rows) == rows[1]
    assert runtime_choice.fastest(rows, runtime="onnx") == rows[2]
    assert runtime_choice.fastest(rows[3:]) is None
    assert runtime_choice.fastest(rows, dtype="bfloat16") is None


@pytest.mark.parametrize("native", [True, False])
def test_what_is_chosen_without_measuring(monkeypatch, native: bool):
    def never() -> list[Timing]:
        raise AssertionError("Runtimes are measured.")

    monkeypatch.setattr(runtime_choice, "native_bfloat16", lambda: native)
    monkeypatch.setattr(runtime_choice, "installed", lambda: {"torch": {"torch": "2"}, "onnx": {"onnxruntime": "1"}})
    monkeypatch.setattr(runtime_choice, "_gpu", lambda: True)
    chosen = [
        runtime_choice.choose(runtime, never, device=device, dtype=dtype)
        for runtime, device, dtype in (
            ("openvino", None, None),
            ("onnx", "cpu", None),
            ("openvino", None, "float32"),
            ("torch", None, None),
            (None, "cpu", "float16"),
            (None, "cuda", None),
            (None, None, None),  # on the GPU
        )
    ]
    best = "bfloat16" if native else "float32"
    assert chosen == [
        ("openvino", best),
        ("onnx", "float32"),
        ("openvino", "float32"),
        ("torch", None),
        ("torch", "float16"),
        ("torch", None),
        ("torch", None),
    ]
    row = Timing("onnx", "float32", 1.0, 1.0, 1.0, 1.0)
    assert runtime_choice.choose(None, lambda: [row], device="cpu", dtype=None) == ("onnx", "float32")
    monkeypatch.setattr(runtime_choice, "_gpu", lambda: False)
    assert runtime_choice.choose(None, lambda: [row], device=None, dtype=None) == ("onnx", "float32")


def test_times_of_a_busy_machine_are_measured_again_without_a_word(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs: list[list[Timing]] = []
    caplog.set_level("INFO")

    def times() -> list[tuple[float, float]]:
        return [(row.document_ms, row.spread) for row in runtime_choice.timings("0" * 64, "tiny", _never_loaded)]

    monkeypatch.setattr(runtime_choice, "measure", lambda _: runs.pop(0))
    wide = runtime_choice.STEADY + 1
    runs += [[Timing("torch", "float32", 9.0, 9.0, 1.0, wide), Timing("onnx", "float32", 4.0, 4.0, 1.0, 1.1)]]
    assert times() == [(9.0, wide), (4.0, 1.1)]
    runs += [[Timing("torch", "float32", 3.0, 9.0, 1.0, 1.2), Timing("onnx", "float32", 8.0, 8.0, 1.0, wide)]]
    assert times() == [(3.0, 1.2), (4.0, 1.1)]  # the smaller ones of both
    assert times() == [(3.0, 1.2), (4.0, 1.1)]  # settled: nothing is left to measure
    (kept,) = runtime_choice.kept()
    assert (kept.name, kept.tries) == ("tiny", 2)
    assert len(caplog.messages) == 1
    for _ in range(runtime_choice.TRIES):  # a machine that is never quiet
        runs += [[Timing("torch", "float32", 5.0, 5.0, 1.0, wide)]]
    runtime_choice.timings("0" * 64, "tiny", _never_loaded, again=True)
    for _ in range(5):
        times()
    assert not runs
    assert runtime_choice.kept()[0].tries == runtime_choice.TRIES


def _never_loaded(runtime: str, dtype: str) -> runtime_choice.Trial:
    raise AssertionError(f"{runtime} {dtype} is loaded, though nothing is measured.")


def test_the_spread_is_that_of_the_calls(monkeypatch):
    """Two of three calls take ten times as long, or all wait, as if another process had the core."""
    now, pauses = [0.0], cycle((0.01, 0.1, 0.1))
    share = 1.0  # of the core
    clocks = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: share * now[0])
    monkeypatch.setattr(runtime_choice, "time", clocks)
    monkeypatch.setattr(runtime_choice, "candidates", lambda: [("torch", "float32")])

    def work() -> np.ndarray:
        now[0] += next(pauses)
        return np.eye(2, dtype=np.float32)

    (row,) = runtime_choice.measure(lambda runtime, dtype: runtime_choice.Trial(runtime, dtype, work, work))
    assert (row.document_ms, row.query_ms, row.spread) == pytest.approx((5.0, 10.0, 10.0))
    assert not row.is_steady
    pauses = repeat(0.01)
    (row,) = runtime_choice.measure(lambda runtime, dtype: runtime_choice.Trial(runtime, dtype, work, work))
    assert row.spread == pytest.approx(1.0)
    assert row.is_steady
    share = 0.5
    (row,) = runtime_choice.measure(lambda runtime, dtype: runtime_choice.Trial(runtime, dtype, work, work))
    assert row.spread == pytest.approx(2.0)
    assert not row.is_steady


def test_the_choice_is_measured_once_and_kept(folders, cache, monkeypatch, caplog):
    monkeypatch.delenv(runtime_choice.VARIABLE)
    monkeypatch.setattr(runtime_choice, "STEADY", float("inf"))  # however busy this machine is
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.01)
    caplog.set_level("INFO", "cde_rag")
    model = CDEModel.from_pretrained(folders["rotated"], device="cpu")
    rows = ModelSource.of(folders["rotated"]).timings()
    assert {row.runtime for row in rows} == {"torch", *RUNTIMES}
    assert rows[0].runtime == "torch"
    assert all(row.cosine > 0.9999 for row in rows if row.dtype == "float32")
    best = runtime_choice.fastest(rows)
    assert best is not None
    assert (model.runtime, model.dtype, model.given_runtime) == (best.runtime, best.dtype, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"Measuring which runtime is fastest for {model.identity.name} on this machine; the result is kept."
    ]
    (path,) = (cache / "runtimes").iterdir()
    value = json.loads(path.read_text())
    value["timings"] = [{**row, "document_ms": 1e-9 if row["runtime"] == "onnx" else 1.0} for row in value["timings"]]
    path.write_text(json.dumps(value))
    assert CDEModel.from_pretrained(folders["rotated"], device="cpu").runtime == "onnx"
    assert CDEModel.from_pretrained(folders["rotated"], device="cpu", dtype="float16").runtime == "torch"
    path.write_text("damaged")
    assert len(ModelSource.of(folders["rotated"]).timings()) == len(rows)
    assert json.loads(path.read_text())["key"] == value["key"]


def test_a_choice_of_one_is_not_measured(monkeypatch):
    monkeypatch.setattr(runtime_choice, "installed", lambda: {"onnx": {}})
    chosen = runtime_choice.choose(None, lambda: pytest.fail("measured"), device=None, dtype=None)
    assert chosen == ("onnx", "float32")


def trial_of(vectors: np.ndarray):
    """A trial of any runtime whose documents have these vectors."""
    return lambda runtime, dtype: runtime_choice.Trial(runtime, dtype, lambda: vectors, lambda: None)


def test_the_cosine_is_that_of_the_worst_text_to_the_reference(monkeypatch):
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.0)
    monkeypatch.setattr(runtime_choice, "candidates", lambda: [("torch", "float32"), ("onnx", "float32")])
    exact = np.eye(3, dtype=np.float32)
    moved = exact.copy()
    moved[2, 0] = 0.02  # and a norm that is not 1
    loads = {"torch": trial_of(exact), "onnx": trial_of(moved)}
    reference, other = runtime_choice.measure(lambda runtime, dtype: loads[runtime](runtime, dtype))
    assert (reference.cosine, other.cosine) == pytest.approx((1.0, 1 / np.sqrt(1.0004)))
    assert (reference.shares_space, other.shares_space) == (True, False)


def test_a_runtime_that_compiles_no_graph_is_left_out(folders, monkeypatch, tmp_path):
    """As an old ONNX Runtime, whose errors are bare Exceptions, in an environment that has it for something else."""
    import onnxruntime

    def refuse(*_: object, **__: object) -> None:
        raise Exception("Unsupported model IR version: 10, max supported IR version: 8")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(runtime_choice.VARIABLE)
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.0)
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    assert CDEModel.from_pretrained(folders["rotated"], device="cpu").runtime != "onnx"
    assert {row.runtime for row in ModelSource.of(folders["rotated"]).timings()} == {"torch", "openvino"}
    with pytest.raises(MissingExtraError, match=r"'onnx' .*IR version: 10.* pip install 'cde-rag\[onnx\]'"):
        load(folders["rotated"], "onnx")
    monkeypatch.setattr(runtime_choice, "installed", lambda: {"onnx": {"onnxruntime": "1.15"}})
    with pytest.raises(MissingExtraError, match=r"No runtime works here: .*IR version: 10"):
        ModelSource.of(folders["rotated"]).timings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_flags", ["avx"]),
        ("cpu_name", "another"),
        ("installed", {"torch": {"torch": "0.1"}}),
        ("__version__", "0.0.1"),
    ],
)
def test_a_choice_of_another_machine_or_other_versions_is_not_taken(monkeypatch, tmp_path, name: str, value: object):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = Timing("torch", "float32", 2.0, 2.0, 1.0, 1.0)
    monkeypatch.setattr(runtime_choice, "measure", lambda _: [row])
    runtime_choice.timings("0" * 64, "tiny", _never_loaded)
    assert len(runtime_choice.kept()) == 1
    monkeypatch.setattr(runtime_choice, name, value if name == "__version__" else lambda: value)
    assert runtime_choice.kept() == []
    monkeypatch.setattr(runtime_choice, "measure", lambda _: [replace(row, document_ms=1.0)])
    assert [each.document_ms for each in runtime_choice.timings("0" * 64, "tiny", _never_loaded)] == [1.0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.update(timings=[]),
        lambda value: value.update(tries=None),
        lambda value: value["timings"][0].update(document_ms="1"),
        lambda value: value["timings"][0].update(cosine=None),
        lambda value: value["timings"][0].update(runtime="tensorflow"),
        lambda value: value["timings"][0].update(dtype=[]),
        lambda value: value["timings"][0].update(more=1.0),
        lambda value: value.pop("key"),
    ],
)
def test_damaged_times_are_measured_again(monkeypatch, tmp_path, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = Timing("torch", "float32", 2.0, 2.0, 1.0, 1.0)
    monkeypatch.setattr(runtime_choice, "measure", lambda _: [row])
    runtime_choice.timings("0" * 64, "tiny", _never_loaded)
    (path,) = (tmp_path / "cde-rag/runtimes").iterdir()
    value = json.loads(path.read_text())
    damage(value)
    for content in (json.dumps(value), "[" * 100_000):
        path.write_text(content)
        assert runtime_choice.kept() == []
        assert runtime_choice.timings("0" * 64, "tiny", _never_loaded) == [row]
        assert [each.timings for each in runtime_choice.kept()] == [[row]]


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_the_bundled_pair_is_measured_too(monkeypatch):
    """The query that is timed has tokens of both encoders."""
    monkeypatch.setattr(model_files, "BUNDLED", Path(model_files.__file__).parents[1] / "bundled")
    monkeypatch.setattr(runtime_choice, "SECONDS", 0.01)
    rows = ModelSource.of(model_files.find("cde-base-1")).timings()
    assert {row.runtime for row in rows} == {"torch", *RUNTIMES}
    assert all(row.cosine > 0.999 for row in rows)


def test_the_environment_names_the_runtime(folders, monkeypatch):
    monkeypatch.setenv(runtime_choice.VARIABLE, "onnx")
    model = CDEModel.from_pretrained(folders["whole"])
    assert (model.runtime, model.given_runtime) == ("onnx", None)
    assert load(folders["whole"], "torch").runtime == "torch"


WITHOUT_TORCH = """
import sys, warnings
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not here", name="torch")
sys.meta_path.insert(0, Forbidden())
warnings.simplefilter("ignore")
from cde_rag import CDEModel, Collection, ContextualEmbedder, EmbedderOptions
from cde_rag.errors import MissingExtraError
runtime, folder = sys.argv[1:]
texts = [f"Chapter {number} of the river and the bank." for number in range(12)]
embedder = ContextualEmbedder.from_corpus(texts, model="cde-mini", options=EmbedderOptions(runtime=runtime))
with Collection.create(folder, embedder, parent_key="page") as papers:
    papers.add(texts, metadata=[{"page": number // 4} for number in range(12)])
with Collection.open(folder, options=EmbedderOptions(runtime=runtime)) as papers:
    papers.add(["Bread is made of flour and water."])
    assert papers.recontextualize(seed=1).embedded == 13
    print(papers.search("How is bread made?", k=1)[0].text, papers.embedder.model.runtime)
try:
    CDEModel.from_pretrained("cde-mini-1", runtime="torch")
except MissingExtraError as error:
    print(error)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "openvino_telemetry")))
import importlib.util
print(importlib.util.find_spec("openvino_telemetry") is not None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_process_without_torch_makes_fills_and_searches_a_collection(runtime: str, tmp_path: Path, cache: Path):
    command = [sys.executable, "-c", WITHOUT_TORCH, runtime, str(tmp_path / "papers.faiss")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found, missing, modules, can_be_imported = result.stdout.splitlines()
    assert found == f"Bread is made of flour and water. {runtime}"
    assert "pip install 'cde-rag[torch]'" in missing
    assert modules == "[]"
    assert can_be_imported == "True"


EMBED = """
import sys
from cde_rag import CDEModel, Context, ContextualEmbedder
model = CDEModel.from_pretrained(sys.argv[1], runtime=sys.argv[2])
print(ContextualEmbedder(model, Context.null(model)).embed_queries(["a river"]).shape)
import openvino_telemetry  # later imports of it are not in the way
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_leaves_no_id_for_its_maker(folders, runtime: str, tmp_path: Path):
    command = [sys.executable, "-c", EMBED, str(folders["whole"]), runtime]
    found = subprocess.run(command, capture_output=True, text=True, env={"HOME": str(tmp_path)})
    assert (found.stdout, found.stderr) == ("(1, 16)\n", "")
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parts[:2] for path in files} == {(".cache", "cde-rag")}


def test_the_bundled_model_has_the_vectors_of_torch(cache: Path):
    folder = Path(model_files.__file__).parents[1] / "bundled" / "cde-mini-2"
    reference = load(folder, "torch")
    context = context_of(reference, [f"Page {number}: {text}" for number, text in enumerate(DOCUMENTS)])
    expected = ContextualEmbedder(reference, context)
    batch = ["How is bread made?", "A short text.", "A long text. " * 200]
    for runtime in RUNTIMES:
        embedder = ContextualEmbedder(load(folder, runtime), context)
        with pytest.warns(match="exceed the limit"):
            found, vectors = embedder.embed_documents(batch), expected.embed_documents(batch)
        np.testing.assert_allclose(found, vectors, atol=TOLERANCE)
    assert isinstance(reference.stages, TorchRunner)
    assert find(folder) == folder


def test_a_home_that_may_not_be_entered_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", refused)
    assert graph_cache.kept_graph("0" * 64, "second", lambda: b"graph") == b"graph"

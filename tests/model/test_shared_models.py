"""A process maps the files of a model once, and embedders that are given its name share it; freed with the last one."""

import errno
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch
from safetensors.torch import save
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import CorpusError, ModelError, StoreError
from cde_rag.models.files.mapped_tensors import MappedTensors
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.shared import Shared

pytestmark = [
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),
]
DESCRIPTORS = Path("/proc/self/fd")
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 7)) for i in range(40)]
of_linux = pytest.mark.skipif(not DESCRIPTORS.exists(), reason="the descriptors of a process are seen on Linux only")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Folder of a model with more tensors than descriptors that a collection may take."""
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    return tmp_path / "model"


def mapped(folder: Path) -> int:
    """How often files of a folder are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(line.endswith(f"{folder}/model.safetensors") for line in lines)


@of_linux
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("runtime", ["torch", "openvino", "onnx"])
def test_collections_share_their_model(model: Path, tmp_path: Path, runtime: str) -> None:
    pytest.importorskip({"openvino": "openvino", "onnx": "onnxruntime"}.get(runtime, "torch"))
    options = EmbedderOptions(device="cpu", runtime=runtime)
    Collection.from_texts(TEXTS, store=tmp_path / "docs.faiss", model=str(model)).close()
    first = Collection.open(tmp_path / "docs.faiss", model=str(model), options=options)
    expected = [hit.id for hit in first.search("river bank", k=5)]
    before = len(list(DESCRIPTORS.iterdir()))
    others = [Collection.open(tmp_path / "docs.faiss", model=str(model), options=options) for _ in range(10)]
    assert [[hit.id for hit in other.search("river bank", k=5)] for other in others] == [expected] * 10
    added = len(list(DESCRIPTORS.iterdir())) - before
    assert added <= 3 * len(others), "SQLite's file, its log and its shared memory; no more"
    assert mapped(model) == (0 if runtime == "torch" else 1)
    models = {id(each.embedder.model) for each in (first, *others)}  # pyright: ignore[reportAttributeAccessIssue]
    assert len(models) == 1
    left = weakref.ref(first.embedder.model)  # pyright: ignore[reportAttributeAccessIssue]
    [each.close() for each in (first, *others)]
    del first, others
    gc.collect()
    assert left() is None, "freed with the last collection"
    assert mapped(model) == 0


@of_linux
@pytest.mark.usefixtures("cache")
def test_models_that_are_loaded_by_themselves_share_the_mapping(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    before = len(list(DESCRIPTORS.iterdir()))
    models = [CDEModel.from_pretrained(model, runtime="onnx") for _ in range(3)]
    assert len({id(each.stages) for each in models}) == 3
    assert mapped(model) == 1
    assert len(list(DESCRIPTORS.iterdir())) - before <= 1


def test_a_model_is_shared_only_with_those_that_ask_for_the_same(model: Path) -> None:
    def shared(**options: str) -> CDEModel:
        return CDEModel.shared(model, device="cpu", **options)

    one, same = shared(), shared()
    assert one is same
    assert shared(dtype="bfloat16") is not one
    assert shared(runtime="torch") is not one  # the runtime that was given is kept
    assert CDEModel.from_pretrained(model, device="cpu") is not one
    checkpoints.write(model, tiny_network(), tiny_tokenizer())  # the same bytes, in new files
    assert shared() is not one


@pytest.mark.usefixtures("cache")
def test_plain_embedders_share_their_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from plain_model import write_transformer

    folder = write_transformer(tmp_path / "plain")
    for runtime in ("onnx", "torch"):
        one, same = (PlainEmbedder(folder, options=EmbedderOptions(runtime=runtime, device="cpu")) for _ in range(2))
        assert one.model._model is same.model._model  # pyright: ignore[reportPrivateUsage]
        shorter = PlainEmbedder(folder, max_length=7, options=EmbedderOptions(runtime=runtime, device="cpu"))
        assert shorter.model._model is not one.model._model  # pyright: ignore[reportPrivateUsage]
        np.testing.assert_array_equal(one.embed_documents(TEXTS), same.embed_documents(TEXTS))


def test_an_object_is_loaded_once_by_many_threads_and_again_by_a_fork() -> None:
    class Loaded:
        pass

    shared, made = Shared[Loaded](), list[int]()

    def load() -> Loaded:
        made.append(os.getpid())
        return Loaded()

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: shared.get("key", load), range(64)))
    assert len({id(each) for each in found}) == len(made) == 1
    if hasattr(os, "fork") and sys.platform != "darwin":
        if (child := os.fork()) == 0:
            os._exit(0 if shared.get("key", load) is not found[0] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del found
    gc.collect()
    shared.get("key", load)
    assert len(made) == 2


@pytest.mark.usefixtures("cache")
def test_weights_that_are_written_to_while_they_are_mapped(model: Path) -> None:
    """Replaced or removed: the process keeps what it has. Written into: an error, instead of vectors of other words."""
    pytest.importorskip("onnxruntime")
    embedder = ContextualEmbedder(
        loaded := CDEModel.from_pretrained(model, runtime="onnx"), context=Context.null(loaded)
    )
    expected = embedder.embed_documents(TEXTS)
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    shutil.copyfile(weights, model / "other")
    (model / "other").replace(weights)
    np.testing.assert_array_equal(embedder.embed_documents(TEXTS), expected)
    weights.unlink()
    np.testing.assert_array_equal(embedder.embed_documents(TEXTS), expected)
    weights.write_bytes(content)
    again = ContextualEmbedder(CDEModel.from_pretrained(model, runtime="onnx"), context=embedder.context)
    with weights.open("r+b") as file:
        file.seek(len(content) // 2)
        file.write(bytes(16))
    with pytest.raises(ModelError, match="was written to while this process used it"):
        again.embed_documents(TEXTS)
    with pytest.raises(ModelError, match="The file is damaged or of another model"):
        CDEModel.from_pretrained(model, runtime="onnx")
    np.testing.assert_array_equal(embedder.embed_documents(TEXTS), expected)


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = save({"a": torch.zeros(40)})
    headers = [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]", (2**60).to_bytes(8, "little") + b"{}", whole[:-9]]
    for content in (*headers, (200_000).to_bytes(8, "little") + b"[" * 200_000):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="Expected safetensors at"):
            MappedTensors([path], lambda _: True)


WITHOUT = """
import resource, sys
from pathlib import Path
from cde_rag import CDEError, CDEModel, Collection, Context, EmbedderOptions
from cde_rag.models.files.mapped_tensors import MappedTensors

folder = Path(sys.argv[1])
model, store, context = folder / "model", folder / "docs.faiss", folder / "a.context.safetensors"
with Collection.open(store, model=model) as opened:
    opened.search("river")
    opened.embedder.context.save(context)
    calls = {
        "a model": lambda: CDEModel.from_pretrained(model, device="cpu"),
        "a store": lambda: Collection.open(store, model=model),
        "a context": lambda: Context.load(context),
        "a new store": lambda: Collection.create(folder / "new.faiss", opened.embedder),
        "tensors": lambda: MappedTensors([model / "model.safetensors"], lambda _: True),
    }
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))  # no further file can be opened
    for name, call in calls.items():
        try:
            call()
        except CDEError as error:
            print(f"{name}: {error}")
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
"""


@of_linux
def test_too_many_open_files_name_the_limit_wherever_a_file_is_opened(model: Path, tmp_path: Path) -> None:
    Collection.from_texts(TEXTS, store=tmp_path / "docs.faiss", model=str(model)).close()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    found = done.stdout.splitlines()
    assert len(found) == 5, done.stdout + done.stderr
    assert [line for line in found if "as many files open as it may (3, its limit by ulimit -n)" not in line] == []
    assert not any(wrong in line for line in found for wrong in ("Make or download", "disk full"))


def test_only_an_error_for_lack_of_descriptors_names_the_limit() -> None:
    def raised(cause: BaseException | None) -> str:
        try:
            try:
                if cause is not None:
                    raise cause
            except BaseException as error:
                raise StoreError("its own message") from error
            raise StoreError("its own message")
        except StoreError as error:
            return str(error)

    message_of = FunctionType(raised.__code__, {**globals(), "__name__": "cde_rag.stores"})
    own = [None, OSError(errno.ENOSPC, "full"), sqlite3.OperationalError("locked"), CorpusError("bad"), ValueError("x")]
    assert {message_of(each) for each in own} == {"its own message"}
    inner = ModelError("inner")
    inner.__cause__ = OSError(errno.EMFILE, "Too many open files")
    for cause in (OSError(errno.EMFILE, "Too many open files"), inner):
        assert "its limit by ulimit -n" in message_of(cause)
    assert "fs.file-max" in message_of(OSError(errno.ENFILE, "Too many open files in system"))
    # A program that closes files, say, in its own `except`, is told what is wrong with the call that it makes there.
    assert raised(OSError(errno.EMFILE, "Too many open files")) == "its own message"

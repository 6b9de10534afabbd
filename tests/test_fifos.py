"""A FIFO or a socket where a file is expected, in any folder of ours: an error or a new file, and nothing waits."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from plain_model import write_transformer
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import CDEError, CDEModel, Collection, Context, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag._files import read_file
from cde_rag.context.cache import cache_context, cached_context, cached_path
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.runtimes import runtime_choice

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
]
SECONDS = 60  # after which a call waits for a writer of the FIFO
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 7)) for i in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and an alarm for a call that waits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def waits(*_: object) -> None:
        raise AssertionError("it waits for a writer of the FIFO")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(SECONDS)
    yield tmp_path / "cache/cde-rag"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    return tmp_path / "model"


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def refused(call: Callable[[], object]) -> None:
    """A call ends with an error of ours."""
    with pytest.raises(CDEError):
        call()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket"):
            with pytest.raises(OSError, match=r"Not a regular file|No such device"):
                read_file(tmp_path / name)
    with pytest.raises(OSError, match="Not a regular file"):
        read_file(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_a_fifo_in_the_cache(model: Path, cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    loaded = CDEModel.from_pretrained(model, runtime="onnx")
    context = Context.create(
        loaded.identity, TEXTS, loaded.first_stage(TEXTS), sampling="random", seed=0, documents_seen=len(TEXTS)
    )
    expected = ContextualEmbedder(loaded, context).embed_documents(TEXTS)
    graphs = sorted((cache / "graphs").iterdir())
    assert len(graphs) >= 4
    for path in graphs:
        to_fifo(path)
    again = ContextualEmbedder(CDEModel.from_pretrained(model, runtime="onnx"), context)
    np.testing.assert_array_equal(again.embed_documents(TEXTS), expected)
    cache_context(context)
    to_fifo(cached_path(context.fingerprint))
    refused(lambda: cached_context(context.fingerprint))
    (cache / "runtimes").mkdir()
    os.mkfifo(cache / "runtimes/any.json")
    assert runtime_choice.kept() == []


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_fifo_in_a_model(model: Path, name: str, runtime: str) -> None:
    pytest.importorskip("onnxruntime")
    to_fifo(model / name)
    refused(lambda: CDEModel.from_pretrained(model, runtime=runtime, device="cpu"))
    refused(lambda: ContextualEmbedder(model, Context.null(CDEModel.from_pretrained("cde-mini", device="cpu"))))


def test_a_fifo_in_a_plain_model(tmp_path: Path) -> None:
    whole = write_transformer(tmp_path / "plain")
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.suffix in (".json", ".safetensors")]
    for number, name in enumerate(names):
        folder = shutil.copytree(whole, tmp_path / f"copy {number}")
        to_fifo(folder / name)
        refused(lambda folder=folder: PlainEmbedder(folder, options=EmbedderOptions(device="cpu")))


@pytest.mark.parametrize("kind", ["faiss", "qdrant"])
def test_a_fifo_in_a_store(model: Path, tmp_path: Path, kind: str) -> None:
    if kind == "qdrant":
        pytest.importorskip("qdrant_edge")
    place = tmp_path / f"docs.{kind}"
    Collection.from_texts(TEXTS, store=place, model=str(model)).close()
    for number, path in enumerate(sorted(place.iterdir())):
        if not path.is_file():
            continue
        copy = shutil.copytree(place, tmp_path / f"{number}.{kind}")
        to_fifo(copy / path.name)
        with suppress(CDEError), Collection.open(copy, model=str(model)) as opened:  # not all is needed to search
            opened.search("river")
            opened.verify()
    context = tmp_path / "a.context.safetensors"
    os.mkfifo(context)
    refused(lambda: Context.load(context))

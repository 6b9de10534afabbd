"""A tiny model in a folder."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from llama_index.core import Settings
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.cde import CDEEmbedding
from tiny import tiny_network, tiny_tokenizer

from cde_rag.models.one_way import checkpoint as checkpoints

SHARED = Path(__file__).resolve().parents[4] / "shared"
os.environ["CDE_RAG_RUNTIME"] = "torch"  # nothing is measured, and no cache is written


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return str(folder)


@pytest.fixture
def fresh(tiny_folder: str) -> Callable[..., CDEEmbedding]:
    """Makes embeddings of the tiny model."""

    def make(**fields: object) -> CDEEmbedding:
        return CDEEmbedding(model_name=tiny_folder, **fields)  # pyright: ignore[reportArgumentType]

    return make


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Short passages, and nothing left behind in LlamaIndex's global settings."""
    Settings.transformations = [SentenceSplitter(chunk_size=60, chunk_overlap=0)]
    yield
    Settings._transformations = None
    Settings._embed_model = None


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty at the start of each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def own_loop() -> Iterator[None]:
    """An event loop that is closed again, for builds with `use_async=True`: LlamaIndex leaves the one it makes open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real evaluation data, which exists on the project's own machines only (and always there)."""
    data = SHARED / "data"
    if not data.is_dir():
        if SHARED.exists() or os.environ.get("CI") == "true":
            pytest.fail(f"expected the evaluation data in {data}")
        pytest.skip("the evaluation data is on the project's own machines only")
    return data

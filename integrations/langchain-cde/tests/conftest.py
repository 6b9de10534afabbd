"""What the tests of langchain-cde share. The tiny model is that of the core's tests (`tests/tiny.py`)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from tiny import WORDS, tiny_cde_model

from cde_rag import CDEModel
from langchain_cde import CDEEmbeddings, keepers

SHARED = Path(__file__).resolve().parents[4] / "shared"  # beside the repository
os.environ["CDE_RAG_RUNTIME"] = "torch"  # nothing is measured, and no cache is written


def texts_of(topic: str) -> list[str]:
    """A hundred different texts about one thing."""
    return [f"the {topic} of {WORDS[n % 17]} in {WORDS[n % 13]} and {WORDS[n % 11]} {n}" for n in range(100)]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody needs to be told once more that InMemoryVectorStore keeps no stamp."""
    monkeypatch.setattr(keepers, "_WARNED", {InMemoryVectorStore})


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of contexts of their own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real evaluation data, which exists on the project's own machines only (and always there)."""
    data = SHARED / "data"
    if not data.is_dir():
        if SHARED.exists() or os.environ.get("CI") == "true":
            pytest.fail(f"expected the evaluation data in {data}")
        pytest.skip("the evaluation data is on the project's own machines only")
    return data


@pytest.fixture(scope="session")
def tiny_model() -> CDEModel:
    """Two layers of sixteen dimensions in float32."""
    return tiny_cde_model()


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return texts_of("river")


@pytest.fixture(scope="session")
def embeddings(tiny_model: CDEModel, texts: list[str]) -> CDEEmbeddings:
    """In the context of `texts`."""
    return CDEEmbeddings.from_texts(texts, model=tiny_model)


@pytest.fixture(scope="session")
def others(tiny_model: CDEModel) -> CDEEmbeddings:
    """In the context of another corpus."""
    return CDEEmbeddings.from_texts(texts_of("money"), model=tiny_model)

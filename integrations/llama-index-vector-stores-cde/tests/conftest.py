"""A tiny model, corpora made of its words, and collections over them."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core import Document, Settings
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.vector_stores.cde import CDEVectorStore
from tiny import WORDS, tiny_cde_model

from cde_rag import CDEModel
from cde_rag.stores.faiss import FaissStore

SHARED = Path(__file__).resolve().parents[4] / "shared"
os.environ["CDE_RAG_RUNTIME"] = "torch"  # nothing is measured, and no cache is written


@pytest.fixture(scope="session")
def model() -> CDEModel:
    return tiny_cde_model()


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Short passages, and nothing left behind in LlamaIndex's global settings."""
    Settings.transformations = [TokenTextSplitter(chunk_size=12, chunk_overlap=0)]
    yield
    Settings._transformations = None
    Settings._embed_model = None


@pytest.fixture
def documents() -> list[Document]:
    """Twenty essays of five passages each."""
    words = random.Random(0)
    return [
        Document(
            text=" ".join(words.choices(WORDS, k=55)),
            id_=f"essay {number}",
            metadata={"year": 2000 + number, "topics": ["banks", "rivers"][: number % 3]},
            excluded_embed_metadata_keys=["year", "topics"],
            excluded_llm_metadata_keys=["year", "topics"],
        )
        for number in range(20)
    ]


@pytest.fixture
def vector_store(documents: list[Document], model: CDEModel, tmp_path: Path) -> Iterator[CDEVectorStore]:
    store = CDEVectorStore.from_documents(documents, FaissStore(tmp_path / "essays.faiss"), model=model)
    yield store
    store.collection.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real evaluation data, which exists on the project's own machines only (and always there)."""
    data = SHARED / "data"
    if not data.is_dir():
        if SHARED.exists() or os.environ.get("CI") == "true":
            pytest.fail(f"expected the evaluation data in {data}")
        pytest.skip("the evaluation data is on the project's own machines only")
    return data

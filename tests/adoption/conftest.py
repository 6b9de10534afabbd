from collections.abc import Iterator
from pathlib import Path

import pytest
import qdrant_rest
from applications import (
    APPLICATIONS,
    Application,
    ChromaApplication,
    LangChainApplication,
    PostgresApplication,
    QdrantApplication,
    stub,
)
from chromadb.api.shared_system_client import SharedSystemClient
from plain_model import write_transformer
from tiny import tiny_network, tiny_tokenizer

from cde_rag import ContextualEmbedder, PlainEmbedder
from cde_rag.models.one_way import checkpoint as checkpoints


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    """Close the clients of Chroma that applications leave open, as the end of their process would."""
    yield
    for name, system in list(SharedSystemClient._identifier_to_system.items()):
        if system.settings.is_persistent:  # a server's client has a connection that nothing closes
            system.stop()
            del SharedSystemClient._identifier_to_system[name]
            del SharedSystemClient._identifier_to_refcount[name]


@pytest.fixture(scope="session")
def old() -> ContextualEmbedder:
    """A model of 16 dimensions that an API serves."""
    return stub("old-1", 16)


@pytest.fixture(scope="session")
def new() -> ContextualEmbedder:
    """A model of 24 dimensions that an API serves."""
    return stub("new-1", 24)


@pytest.fixture(scope="session")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> ContextualEmbedder:
    """A plain model in a folder, with prefixes, of 24 dimensions."""
    return PlainEmbedder(write_transformer(tmp_path_factory.mktemp("prefixed") / "model", dim=24))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A contextual model in a folder, of 16 dimensions."""
    folder = tmp_path_factory.mktemp("contextual") / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture(scope="session")
def qdrant_url() -> Iterator[str]:
    """Address of Qdrant's API on this machine."""
    with qdrant_rest.serving() as url:
        yield url


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest, tmp_path: Path, old: ContextualEmbedder) -> Application:
    if request.param in ("qdrant", "postgres"):
        return request.getfixturevalue(request.param + "_app")
    made = APPLICATIONS[request.param](tmp_path / "data")
    made.build(old)
    return made


@pytest.fixture
def qdrant_app(
    qdrant_url: str, tmp_path: Path, old: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
) -> QdrantApplication:
    (tmp_path / "address").write_text(qdrant_url)
    monkeypatch.chdir(tmp_path)  # where the journal is
    made = QdrantApplication(tmp_path / "data")
    made.build(old)
    return made


@pytest.fixture
def postgres_app(
    postgres: str, tmp_path: Path, old: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
) -> PostgresApplication:
    (tmp_path / "address").write_text(postgres)
    monkeypatch.chdir(tmp_path)
    made = PostgresApplication(tmp_path / "data")
    made.build(old)
    return made


@pytest.fixture
def chroma(tmp_path: Path, old: ContextualEmbedder) -> ChromaApplication:
    made = ChromaApplication(tmp_path / "data")
    made.build(old)
    return made


@pytest.fixture
def langchain(tmp_path: Path, old: ContextualEmbedder) -> LangChainApplication:
    made = LangChainApplication(tmp_path / "data")
    made.build(old)
    return made

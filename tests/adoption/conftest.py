from pathlib import Path

import pytest
from applications import APPLICATIONS, Application, ChromaApplication, LangChainApplication, stub
from plain_model import write_transformer

from cde_rag import ContextualEmbedder, PlainEmbedder


@pytest.fixture(scope="session")
def old() -> ContextualEmbedder:
    """A model of 16 dimensions that an API serves."""
    return stub("old-1", 16)


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> ContextualEmbedder:
    """A plain model in a folder, with prefixes, of 24 dimensions."""
    return PlainEmbedder(write_transformer(tmp_path_factory.mktemp("new") / "new", dim=24))


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest, tmp_path: Path, old: ContextualEmbedder) -> Application:
    made = APPLICATIONS[request.param](tmp_path / "data")
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

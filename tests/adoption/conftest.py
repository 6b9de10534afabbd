from collections.abc import Callable
from pathlib import Path

import pytest
from applications import APPLICATIONS, Application
from plain_model import write_static, write_transformer

from cde_rag import PlainEmbedder
from cde_rag.embedders.protocol import Embedder


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A plain model of 16 dimensions."""
    return PlainEmbedder(write_static(tmp_path_factory.mktemp("old") / "old"))


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """Another plain model, with prefixes, of 24 dimensions."""
    return PlainEmbedder(write_transformer(tmp_path_factory.mktemp("new") / "new", dim=24))


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest, tmp_path: Path, old: Embedder) -> Application:
    make: Callable[[Path], Application] = APPLICATIONS[request.param]
    made = make(tmp_path / "data")
    made.build(old)
    return made

"""A server for every test, and one of a module for those that change nothing."""

from collections.abc import Generator
from pathlib import Path

import pytest
from served import Running, make, running


@pytest.fixture
def server(tmp_path: Path) -> Generator[Running, None, None]:
    service, embedder = make(tmp_path)
    with running(service) as url:
        yield Running(url, service, embedder)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running, None, None]:
    """One server for a module's tests of what is refused: they leave nothing behind."""
    service, embedder = make(tmp_path_factory.mktemp("unchanged"))
    with running(service) as url:
        yield Running(url, service, embedder)

"""A server for every test."""

from collections.abc import Generator
from pathlib import Path

import pytest
from served import Running, make, running


@pytest.fixture
def server(tmp_path: Path) -> Generator[Running, None, None]:
    service, embedder = make(tmp_path)
    with running(service) as url:
        yield Running(url, service, embedder)

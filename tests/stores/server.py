"""A server of Qdrant, where QDRANT_URL names one."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qdrant_client import QdrantClient

URL = os.environ.get("QDRANT_URL")


@contextmanager
def collections_on(url: str | None) -> Iterator[tuple[QdrantClient, Callable[[], str]]]:
    """A client, and what gives out names of new collections, which are removed in the end."""
    client = QdrantClient(url=url, api_key=os.environ.get("QDRANT_API_KEY"))
    names: list[str] = []

    def new_name() -> str:
        names.append(f"cde_test_{uuid.uuid4()}")
        return names[-1]

    try:
        yield client, new_name
    finally:
        for name in names:
            client.delete_collection(name)
            client.delete_collection(f"{name}__cde_contexts")
        client.close()

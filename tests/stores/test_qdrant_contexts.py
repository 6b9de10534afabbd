"""Contexts beside a Qdrant collection: what was written comes back, or an error says that it does not."""

import base64
import itertools

import pytest
from qdrant_client import QdrantClient, models

from cde_rag.errors import ContextFormatError, ContextMissingError
from cde_rag.stores.qdrant import contexts as module
from cde_rag.stores.qdrant import read_context, vector_name, write_context

ONE, OTHER = "a1" * 32, "b2" * 32
BESIDE = "papers__cde_contexts"


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


def chunks(client: QdrantClient) -> list[models.Record]:
    return [point for point in client.scroll(BESIDE, limit=100)[0] if "data" in (point.payload or {})]


def test_a_vector_is_named_after_its_space() -> None:
    assert vector_name(ONE) == "cde_" + ONE


@pytest.mark.parametrize("size", [0, 1, 2**19 - 1, 2**19, 2**19 + 1, 2**21 + 17])
def test_bytes_of_any_size_come_back(client: QdrantClient, size: int) -> None:
    context = bytes(itertools.islice(itertools.cycle(range(251)), size))
    write_context(client, "papers", context, fingerprint=ONE)
    assert read_context(client, "papers") == context
    assert len(chunks(client)) == -(-size // 2**19)


def test_contexts_lie_side_by_side(client: QdrantClient) -> None:
    write_context(client, "papers", b"same", fingerprint=ONE)
    write_context(client, "papers", b"same", fingerprint=OTHER)
    write_context(client, "papers", b"new", fingerprint=OTHER)
    assert read_context(client, "papers", ONE) == b"same"
    assert read_context(client, "papers", OTHER) == b"new"
    assert len(chunks(client)) == 2, "the replaced one is gone"
    with pytest.raises(ContextMissingError, match=ONE):
        read_context(client, "papers")
    module.delete_context(client, "papers", OTHER)
    assert read_context(client, "papers") == b"same"


def test_the_collections_metadata_names_its_context(client: QdrantClient) -> None:
    client.create_collection("papers", vectors_config={}, metadata={"cde": {"fingerprint": OTHER}, "mine": 1})
    write_context(client, "papers", b"one", fingerprint=ONE)
    with pytest.raises(ContextMissingError, match=OTHER[:16]):
        read_context(client, "papers")
    write_context(client, "papers", b"other", fingerprint=OTHER)
    assert read_context(client, "papers") == b"other"


def test_an_alias_stands_for_its_collection(client: QdrantClient) -> None:
    for name in ("papers", "newer"):
        client.create_collection(name, vectors_config={})
    create = models.CreateAlias(collection_name="papers", alias_name="live")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    write_context(client, "live", b"one", fingerprint=ONE)
    assert read_context(client, "papers") == read_context(client, "live") == b"one"
    switch = models.CreateAlias(collection_name="newer", alias_name="live")
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=switch)])
    with pytest.raises(ContextMissingError, match="newer"):
        read_context(client, "live")


@pytest.mark.parametrize("fingerprint", [None, ONE])
def test_what_is_not_there_is_missing(client: QdrantClient, fingerprint: str | None) -> None:
    with pytest.raises(ContextMissingError, match="write_context"):
        read_context(client, "papers", fingerprint)
    write_context(client, "papers", b"other", fingerprint=OTHER)
    module.delete_context(client, "papers", OTHER)
    with pytest.raises(ContextMissingError, match="write_context"):
        read_context(client, "papers", fingerprint)


@pytest.mark.parametrize(
    "data", [None, 7, "", "!", base64.b64encode(b"x" * 2**19).decode(), base64.b64encode(b"y").decode()]
)
def test_damage_is_found(client: QdrantClient, data: object) -> None:
    write_context(client, "papers", b"y" * 2**20, fingerprint=ONE)
    client.set_payload(BESIDE, {"data": data}, [chunks(client)[0].id])
    with pytest.raises(ContextFormatError, match=BESIDE):
        read_context(client, "papers")


@pytest.mark.parametrize("payload", [{"head": "0" * 64}, {"bytes": 3}, {"chunks": 10**9}, {"chunks": "2"}])
def test_damage_of_the_head_is_found(client: QdrantClient, payload: dict[str, object]) -> None:
    write_context(client, "papers", b"y" * 2**20, fingerprint=ONE)
    heads = models.Filter(must_not=[models.IsEmptyCondition(is_empty=models.PayloadField(key="head"))])
    client.set_payload(BESIDE, payload, heads)
    with pytest.raises(ContextFormatError, match=BESIDE):
        read_context(client, "papers")


def test_a_lost_chunk_is_found(client: QdrantClient) -> None:
    write_context(client, "papers", b"y" * 2**20, fingerprint=ONE)
    client.delete(BESIDE, [chunks(client)[0].id])
    with pytest.raises(ContextFormatError, match=BESIDE):
        read_context(client, "papers")


def test_a_writer_that_was_killed_leaves_the_old_one(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    write_context(client, "papers", b"old" * 2**19, fingerprint=ONE)
    real, calls = client.upsert, itertools.count()

    def dies(*args: object, **asked: object) -> object:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **asked)

    monkeypatch.setattr(client, "upsert", dies)
    with pytest.raises(KeyboardInterrupt):
        write_context(client, "papers", b"new" * 2**19, fingerprint=ONE)
    assert read_context(client, "papers") == b"old" * 2**19
    write_context(client, "papers", b"new" * 2**19, fingerprint=ONE)
    assert read_context(client, "papers") == b"new" * 2**19
    assert len(chunks(client)) == 3

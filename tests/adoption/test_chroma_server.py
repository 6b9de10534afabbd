"""A collection on Chroma's server, which starts from its wheel, is moved while another client reads it."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import chroma_server
import chromadb
import pytest
from applications import COUNT, TEXTS, stub

from cde_rag import ContextualEmbedder
from cde_rag.adoption.chroma_function import CDEFunction
from cde_rag.adoption.reembedding import reembedding
from cde_rag.errors import ContextMissingError, StoreError
from cde_rag.indexing.audit import audit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the client's connections
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with chroma_server.serving(tmp_path / "db") as port:
        yield port


def test_a_collection_of_a_server_is_moved_and_goes_back(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: ContextualEmbedder
):
    monkeypatch.chdir(tmp_path)  # where the journal is
    target, new = f"chroma:http://127.0.0.1:{port}#papers", stub("new-1", 24)
    client: Any = chromadb.HttpClient("127.0.0.1", port)
    made = client.create_collection("papers", embedding_function=None, configuration={"hnsw": {"space": "cosine"}})
    made.add(ids=TEXTS, documents=TEXTS, embeddings=old.embed_passages(TEXTS, None).vectors)
    ended, seen, missed = Event(), list[int](), 0

    def read() -> None:
        nonlocal missed
        own: Any = chromadb.HttpClient("127.0.0.1", port)
        while not ended.is_set():
            try:
                found = own.get_collection("papers", embedding_function=None).get(limit=1, include=["embeddings"])
                seen.append(len(found["embeddings"][0]))
            except chromadb.errors.NotFoundError:  # noqa: PERF203
                missed += 1

    reader = Thread(target=read)
    reader.start()
    with reembedding(target) as move:
        assert move.copy(new).rows == COUNT
        assert move.switch(new).gap_s > 0
        assert move.source.sample(5)[0].vector.shape == (24,)
        assert audit(move.source, new).share == 1.0
        move.rollback()
    ended.set()
    reader.join()
    assert set(seen) == {16, 24}
    found = client.get_collection("papers", embedding_function=None)
    assert found.query(query_embeddings=old.embed_queries([TEXTS[7]]), n_results=1)["documents"] == [[TEXTS[7]]]
    with reembedding(target) as move:
        move.release()
    assert [each.name for each in client.list_collections()] == ["papers"]
    assert not (tmp_path / "papers.cde-move").exists()


def test_a_collection_with_chromas_default_function_gets_ours_on_a_server(
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: ContextualEmbedder,
    prefixed: ContextualEmbedder,
):
    monkeypatch.chdir(tmp_path)
    target = f"chroma:http://127.0.0.1:{port}#papers"
    client: Any = chromadb.HttpClient("127.0.0.1", port)
    made = client.create_collection("papers")
    made.add(ids=TEXTS, documents=TEXTS, embeddings=old.embed_passages(TEXTS, None).vectors)
    before = made.configuration_json
    with reembedding(target) as move:
        move.switch(prefixed)
        function = CDEFunction.load(move.journal.context_file(prefixed.fingerprint))
    for opened in (client.get_collection, client.get_or_create_collection):
        found = opened("papers", embedding_function=function).query(query_texts=[TEXTS[7]], n_results=1)
        scores = prefixed.embed_passages(TEXTS, None).vectors @ prefixed.embed_queries([TEXTS[7]])[0]
        assert scores[TEXTS.index(found["documents"][0][0])] > scores.max() - 1e-5
        with pytest.raises(ContextMissingError, match=r"CDEFunction\.load"):
            opened("papers").query(query_texts=[TEXTS[7]])
    with reembedding(target) as move:
        move.rollback()
    assert client.get_collection("papers").configuration_json == before


def test_a_server_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for place in (f"http://127.0.0.1:{chroma_server.free_port()}", "ftp://x", "http://"):
        with pytest.raises(StoreError, match="chroma:"), reembedding(f"chroma:{place}#papers"):
            pass

"""Indexes of other applications are searched through a copy in the user's cache; nothing is written to them."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from applications import (
    COUNT,
    TEXTS,
    Application,
    ChromaApplication,
    FaissApplication,
    ForLlamaIndex,
    LangChainApplication,
    QdrantFolderApplication,
    SimpleApplication,
    stub,
)
from langchain_core.documents import Document
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore
from plain_model import write_transformer
from typer.testing import CliRunner

from cde_rag import ContextualEmbedder, PlainEmbedder
from cde_rag._files import file_sha256
from cde_rag.adoption import foreign_search
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.folder_rows import FolderRows
from cde_rag.adoption.foreign_search import foreign_collection
from cde_rag.adoption.langchain_faiss import LangChainFaiss
from cde_rag.cli import app
from cde_rag.cli.serve import opened
from cde_rag.collection.collection import Collection
from cde_rag.errors import CDEError, StoreError
from cde_rag.server.mcp_tools import CollectionTools


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/cde-rag/foreign"


def found(application: Application, embedder: ContextualEmbedder, query: str) -> list[str]:
    with source_of(application.target) as source:
        collection = foreign_collection(source, embedder, application.target)
    hits = collection.search(query, 5)
    collection.close()
    return [hit.id for hit in hits]


def files(folder: Path) -> dict[str, str]:
    return {str(path): file_sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_an_index_is_searched_and_stays_as_it_is(application: Application, old: ContextualEmbedder, cache: Path):
    before, rows = files(application.folder), application.rows()
    query = application.embedded()[7]  # the stub's vector of it is that of the row
    expected = rows[7].id
    assert found(application, old, query)[0] == expected
    assert found(application, old, query)[0] == expected
    assert application.rows() == rows
    if not isinstance(application, ChromaApplication):  # whose client writes files of its own
        assert files(application.folder) == before
    assert len(list(cache.glob("*.faiss"))) == 1
    assert cache.stat().st_mode & 0o077 == 0
    with pytest.raises(StoreError, match=r"0 of 40 sampled vectors.*did not make"):
        found(application, stub("another-1", 16), TEXTS[7])


def test_later_writes_are_found(tmp_path: Path, old: ContextualEmbedder):
    chroma = ChromaApplication(tmp_path / "data")
    chroma.build(old)
    assert "d7" in found(chroma, old, TEXTS[7])
    chroma.opened().delete(ids=["d7"])
    made = old.embed_passages(["a heron"], None).vectors
    chroma.opened().add(ids=["new"], documents=["a heron"], embeddings=made, metadatas=[{"n": 99}])
    chroma.opened().add(ids=["none"], documents=[None], embeddings=made)
    assert "d7" not in found(chroma, old, TEXTS[7])
    assert found(chroma, old, "a heron")[0] == "new"
    langchain = LangChainApplication(tmp_path / "faiss")
    langchain.build(old)
    assert found(langchain, old, TEXTS[7])[0] == "d7"
    store = langchain.opened(old)
    odd = {1: "x", "nan": float("nan"), "deep": [[1]], "of": "herons"}  # no filter can read the first three
    store.add_documents([Document(page_content="a heron", metadata=odd)], ids=["new"])
    store.save_local(str(langchain.folder))
    assert found(langchain, old, "a heron")[0] == "new"
    with source_of(langchain.target) as source, foreign_collection(source, old, langchain.target) as copy:
        (hit,) = copy.search("a heron", 5, where={"of": "herons"})
    assert (hit.id, hit.metadata) == ("new", {"of": "herons"})


def test_an_index_is_audited_where_it_changed_or_an_api_serves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: ContextualEmbedder
):
    audited: list[str] = []

    def audit(source: Any, embedder: ContextualEmbedder) -> Any:
        audited.append(embedder.context.identity.name)
        return real(source, embedder)

    real = foreign_search.audit
    monkeypatch.setattr(foreign_search, "audit", audit)
    app, local = LangChainApplication(tmp_path / "data"), PlainEmbedder(write_transformer(tmp_path / "model", dim=16))
    app.build(local)
    assert [len(found(app, local, TEXTS[7])) for _ in range(3)] == [5, 5, 5]
    assert len(audited) == 1
    app.insert_later("later", "one more", local)
    assert "later" in found(app, local, "one more")
    assert len(audited) == 2
    app.insert_later("other", "another", old)
    with pytest.raises(StoreError, match="Nothing is searched"):
        found(app, local, "another")
    served = LangChainApplication(tmp_path / "served")
    served.build(old)
    assert [len(found(served, old, TEXTS[7])) for _ in range(2)] == [5, 5]
    assert audited[3:] == ["old-1", "old-1"]


def test_two_processes_that_refresh_a_copy_do_not_mark_what_one_of_them_made_stale(
    tmp_path: Path, old: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """One reads, the application saves, and another one reads: the first one writes last, but for its mark."""
    langchain, passages = LangChainApplication(tmp_path / "faiss"), LangChainFaiss.passages
    langchain.build(old)
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def first(self: LangChainFaiss, *, own: bool) -> Iterator[Any]:
        pages = list(passages(self, own=own))
        begun.set()
        go.wait(3)
        yield from pages

    def second(self: LangChainFaiss, *, own: bool) -> Iterator[Any]:
        yield from passages(self, own=own)
        go.set()
        ended.wait(3)

    def refresh() -> None:
        found(langchain, old, TEXTS[7])
        ended.set()

    monkeypatch.setattr(LangChainFaiss, "passages", first)
    thread = threading.Thread(target=refresh)
    thread.start()
    assert begun.wait(60)
    monkeypatch.setattr(LangChainFaiss, "passages", second)
    store = langchain.opened(old)
    store.delete(["d7"])
    store.add_documents([Document(page_content="a heron")], ids=["d7"])
    store.save_local(str(langchain.folder))
    assert found(langchain, old, "a heron")[0] == "d7"
    thread.join()
    assert found(langchain, old, "a heron")[0] == "d7"


def test_the_command_searches_an_index(tmp_path: Path):
    folder = write_transformer(tmp_path / "model", dim=24)
    for application in (ChromaApplication(tmp_path / "chroma"), LangChainApplication(tmp_path / "faiss")):
        application.build(PlainEmbedder(folder))
        arguments = ["search", application.target, TEXTS[7], "--where", '{"n": {"lte": 7}}', "-k", "3", "--json"]
        result = CliRunner().invoke(app, [*arguments, "--model", str(folder)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        hits = json.loads(result.stdout)["hits"]
        assert (hits[0]["id"], len(hits)) == ("d7", 3)
        assert "--model" in CliRunner().invoke(app, arguments).stderr
    assert len(application.rows()) == COUNT


def test_the_command_searches_the_column_that_is_named(tmp_path: Path):
    lancedb, pa = pytest.importorskip("lancedb"), pytest.importorskip("pyarrow")
    folder = write_transformer(tmp_path / "model", dim=24)
    texts = {"body": TEXTS, "summary": TEXTS[::-1]}
    embedder, floats = PlainEmbedder(folder), pa.list_(pa.float32(), 24)
    vectors = {
        f"of_{name}": pa.array(list(embedder.embed_passages(each, None).vectors), floats)
        for name, each in texts.items()
    }
    table = pa.table({"id": [f"d{n}" for n in range(COUNT)], **texts, **vectors})
    lancedb.connect(str(tmp_path / "lance")).create_table("papers", table)
    target = f"lancedb:{tmp_path / 'lance'}#papers"
    arguments = ["search", target, TEXTS[7], "--model", str(folder), "-k", "1", "--json"]
    for name, expected in (("body", "d7"), ("summary", f"d{COUNT - 8}")):  # each has a copy of its own
        chosen = ["--text", name, "--vector", f"of_{name}"]
        result = CliRunner().invoke(app, [*arguments, *chosen], catch_exceptions=False)
        assert json.loads(result.stdout)["hits"][0]["id"] == expected
    refused = CliRunner().invoke(app, ["search", "papers.faiss", TEXTS[7], "--vector", "of_body"])
    assert refused.exit_code == 2
    assert "--vector: it needs an index of another application" in " ".join(refused.stderr.split())


def test_an_index_is_served_to_agents_and_not_to_writers(tmp_path: Path):
    folder = write_transformer(tmp_path / "model", dim=24)
    application = ChromaApplication(tmp_path / "chroma")
    application.build(PlainEmbedder(folder))
    collections, contexts = opened([application.target, f"mine={application.target}"], str(folder))
    assert (collections.keys(), contexts) == ({"papers", "mine"}, {})
    tools = CollectionTools(collections)
    assert tools.search(TEXTS[7], "papers", by="vectors", where={"n": {"lte": 7}})[0]["text"] == TEXTS[7]
    assert tools.list_collections()[1]["documents"] == COUNT
    for collection in collections.values():
        collection.close()
    refused = CliRunner().invoke(app, ["serve", application.target])
    assert "found chroma, an index of another application" in refused.stderr


def test_tables_of_one_name_in_two_databases_have_a_copy_each(tmp_path: Path, old: ContextualEmbedder, cache: Path):
    """Messages hide the addresses, which may have passwords: `target` is the same text for both."""
    opened = []
    for name in ("one", "two"):
        application = ChromaApplication(tmp_path / name)
        application.build(old)
        made = old.embed_passages([f"a heron of {name}"], None).vectors
        application.opened().add(ids=[name], documents=[f"a heron of {name}"], embeddings=made)
        with source_of(application.target) as source:
            source.target, source.home = "pgvector:…#papers", Path("papers.cde-move")  # type: ignore[misc]
            address = f"pgvector:postgresql://me:secret@{name}/app#papers"
            opened.append(foreign_collection(source, old, address))
    one, two = opened
    assert ([each.id for each in one.get(["one", "two"])], [each.id for each in two.get(["one", "two"])]) == (
        ["one"],
        ["two"],
    )
    for collection in opened:
        collection.close()
    assert len(list(cache.glob("*.faiss"))) == 2
    assert not [path for path in cache.rglob("*") if "secret" in path.name]


def by_length(pairs: Sequence[tuple[str, str]]) -> list[int]:
    return [len(text) for _, text in pairs]


def test_agents_rerank_an_index_by_the_servers_rerankers(tmp_path: Path):
    folder = write_transformer(tmp_path / "model", dim=24)
    for application in (ChromaApplication(tmp_path / "chroma"), LangChainApplication(tmp_path / "faiss")):
        application.build(PlainEmbedder(folder))
        rows = application.rows()
        collections, _ = opened([f"mine={application.target}"], str(folder))
        tools = CollectionTools(collections, {"length": by_length})
        hits = tools.search(TEXTS[7], k=9, rerank="length", rerank_top=9)
        assert {hit["id"] for hit in hits} == {hit["id"] for hit in tools.search(TEXTS[7], k=9)}
        assert [hit["score"] for hit in hits] == sorted((len(hit["text"]) for hit in hits), reverse=True)
        with pytest.raises(CDEError, match="one of the rerankers of this server, length, found"):
            tools.search(TEXTS[7], rerank=str(folder))
        collections["mine"].close()
        assert application.rows() == rows


LLAMA_INDEXES = [SimpleApplication, FaissApplication]


@pytest.mark.parametrize("kind", LLAMA_INDEXES)
def test_nodes_have_their_metadata_and_own_texts(kind: type[SimpleApplication], tmp_path: Path):
    folder = write_transformer(tmp_path / "model", dim=24)
    application = kind(tmp_path / "data")
    application.build(PlainEmbedder(folder))
    arguments = ["search", application.target, TEXTS[7], "--model", str(folder), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--where", '{"file": "7.md"}'], catch_exceptions=False)
    (hit,) = json.loads(result.stdout)["hits"]
    assert (hit["id"], hit["text"], hit["metadata"]) == ("d7", TEXTS[7], {"file": "7.md", "secret": "x"})
    result = CliRunner().invoke(app, [*arguments, "--group-by", "file"], catch_exceptions=False)
    assert json.loads(result.stdout)["groups"][0]["value"] == "7.md"


@pytest.mark.parametrize("kind", LLAMA_INDEXES)
def test_a_hit_has_the_name_of_its_file(kind: type[SimpleApplication], tmp_path: Path, old: ContextualEmbedder):
    application = kind(tmp_path / "data")
    nodes = [
        TextNode(text="a heron", id_="named", metadata={"file_name": "birds.md", "tags": ["a", "b"], "of": {"b": 1}}),
        TextNode(text="a swift", id_="titled", metadata={"file_name": " ", "title": "Swifts"}),
        TextNode(text="an owl", id_="none"),
    ]
    storage = application.new_storage(old.dim)
    VectorStoreIndex(nodes, embed_model=ForLlamaIndex(embedder=old), storage_context=storage)
    storage.persist(str(application.folder))
    with source_of(application.target) as source:
        collection = foreign_collection(source, old, application.target)
    hits = {hit.id: (hit.title, hit.text) for hit in collection.search("a heron")}
    assert hits == {"named": ("birds.md", "a heron"), "titled": ("Swifts", "a swift"), "none": ("", "an owl")}
    assert [hit.id for hit in collection.search("a bird", where={"tags": "b"})] == ["named"]
    collection.close()


def test_a_copy_of_an_earlier_format_is_made_anew(
    tmp_path: Path, old: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    application = SimpleApplication(tmp_path / "data")
    application.build(old)
    with monkeypatch.context() as patch:
        patch.setattr(foreign_search, "_FORMAT", 1)
        patch.setattr(FolderRows, "own", lambda *_: None)
        patch.setattr(FolderRows, "metadata", lambda *_: {})
        found(application, old, TEXTS[7])
    with source_of(application.target) as source:
        collection = foreign_collection(source, old, application.target)
    (record,) = collection.get(["d7"])
    assert (record.text, record.metadata["file"]) == (TEXTS[7], "7.md")
    collection.close()


def chroma_store(folder: Path) -> Any:
    collection = ChromaApplication(folder).client.create_collection("papers", embedding_function=None)
    return ChromaVectorStore(chroma_collection=collection)


def qdrant_store(folder: Path) -> Any:
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    return QdrantVectorStore("papers", client=QdrantFolderApplication(folder).client)


def lance_store(folder: Path) -> Any:
    pytest.importorskip("lancedb")
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    return LanceDBVectorStore(uri=str(folder), table_name="papers")


@pytest.mark.filterwarnings("ignore:table_names:DeprecationWarning", "ignore:Payload indexes:UserWarning")  # theirs
@pytest.mark.parametrize(
    ("kind", "store_of"), [("chroma", chroma_store), ("qdrant", qdrant_store), ("lancedb", lance_store)]
)
def test_nodes_in_a_database_are_read_without_bookkeeping(
    kind: str, store_of: Callable[[Path], Any], tmp_path: Path, old: ContextualEmbedder
):
    nodes = [TextNode(text="a heron", id_=str(uuid.UUID(int=7)), metadata={"file_name": "birds.md"})]
    store = store_of(tmp_path / "data")
    storage = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex(nodes, embed_model=ForLlamaIndex(embedder=old), storage_context=storage)
    if kind == "qdrant":
        store.client.close()  # another client is to open the folder
    target = f"{kind}:{tmp_path / 'data'}#papers"
    with source_of(target) as source:
        copy = foreign_collection(source, old, target)
    (hit,) = copy.search("a heron", where={"file_name": "birds.md"})
    assert (hit.title, hit.text) == ("birds.md", "a heron")
    assert not [key for key in hit.metadata if key.startswith("_node")]
    copy.close()


def test_a_copy_of_64_rows_is_calibrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_transformer(tmp_path / "model", dim=24)
    embedder = PlainEmbedder(folder)
    chroma = ChromaApplication(tmp_path / "data")
    chroma.build(embedder)
    arguments = ["search", chroma.target, TEXTS[7], "--model", str(folder)]
    assert "fewer than 64 passages" in CliRunner().invoke(app, arguments, catch_exceptions=False).stderr
    more = [f"{text} again" for text in TEXTS]
    vectors = embedder.embed_passages(more, None).vectors
    chroma.opened().add(ids=[f"m{number}" for number in range(COUNT)], documents=more, embeddings=vectors)
    for _ in range(2):
        assert "0 to 1" in CliRunner().invoke(app, arguments, catch_exceptions=False).stderr
        monkeypatch.setattr(Collection, "calibrate", lambda _: pytest.fail("calibrated again"))

"""Open WebUI's data folder, made by Chroma with the calls of Open WebUI's own client; its package is too large here."""

import json
from pathlib import Path
from typing import Any

import chromadb
import pytest
from applications import TEXTS
from tiny import tiny_cde_model
from typer.testing import CliRunner

from cde_rag import ContextualEmbedder
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.chroma_collection import ChromaCollection
from cde_rag.adoption.foreign_search import foreign_collection
from cde_rag.adoption.move_plan import plan_move
from cde_rag.adoption.reembedding import reembedding
from cde_rag.cli import app
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit

KNOWLEDGE = "3f0c6a2e-8a50-4a2a-9a35-0d5c2f1b7e11"
NAMES = (KNOWLEDGE, "file-one", "user-memory-me", "web-search-" + "0" * 52)


class OpenWebUI:
    """The calls of `ChromaClient`, and those of its routers that embed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, f"open-webui:{folder}"

    @property
    def client(self) -> Any:
        return chromadb.PersistentClient(path=str(self.folder / "vector_db"))

    def insert(self, name: str, texts: list[str], model: ContextualEmbedder) -> None:
        collection = self.client.get_or_create_collection(name=name, metadata={"hnsw:space": "cosine"})
        lines = texts if name.startswith("user-memory-") else [text.replace("\n", " ") for text in texts]
        collection.upsert(
            ids=[f"{len(text)}-{text[:20]}" for text in texts],
            documents=texts,
            embeddings=model.embed_passages(lines, None).vectors.tolist(),
            metadatas=[{"source": f"{name}.md", "start_index": place} for place in range(len(texts))],
        )

    def search(self, name: str, query: str, model: ContextualEmbedder) -> str:
        found = self.client.get_collection(name=name).query(
            query_embeddings=model.embed_queries([query]).tolist(), n_results=1
        )
        return found["documents"][0][0]

    def all(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in self.client.list_collections():
            rows = self.client.get_collection(each.name).get(include=["documents", "metadatas", "embeddings"])
            found[each.name] = [
                rows["ids"],
                rows["documents"],
                rows["metadatas"],
                [row.tolist() for row in rows["embeddings"]],
            ]
        return found


@pytest.fixture
def webui(tmp_path: Path, old: ContextualEmbedder) -> OpenWebUI:
    made = OpenWebUI(tmp_path / "data")
    made.folder.mkdir()
    for place, name in enumerate(NAMES):
        made.insert(name, [text.replace(" ", "\n", 1) for text in TEXTS[10 * place : 10 * place + 10]], old)
    made.client.get_or_create_collection(name="file-empty", metadata={"hnsw:space": "cosine"})
    return made


def without_vectors(found: dict[str, Any]) -> dict[str, Any]:
    return {name: rows[:3] for name, rows in found.items()}


def test_all_collections_are_moved_together_and_go_back(
    webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder
):
    before, text = webui.all(), TEXTS[21].replace(" ", "\n", 1)
    assert webui.search("user-memory-me", text, old) == text
    with source_of(webui.target) as source:
        assert audit(source, old).share == 1.0
        plan = plan_move(source, new, old)
        assert (plan.rows, plan.dim) == (40, (16, 24))
    with reembedding(webui.target) as move:
        assert move.copy(new).rows == 40
        assert "Embedding Model new-1 (RAG_EMBEDDING_MODEL)" in move.line(new)
        move.switch(new)
        assert audit(move.source, new).share == 1.0
    assert without_vectors({name: webui.all()[name] for name in before}) == without_vectors(before)
    assert webui.search("user-memory-me", text, new) == text
    webui.insert("file-one", ["a later bank"], new)  # by the default function of Chroma's configuration, as before
    with reembedding(webui.target) as move:
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        assert move.rollback(old).carried.written == 1
        assert audit(move.source, old).share == 1.0
        webui.client.get_collection("file-one").delete(where={"source": "none"})
        move.switch(new)
        move.release()
    assert sorted(webui.all()) == sorted(before)
    assert webui.search("file-one", "a later bank", new) == "a later bank"


def test_files_that_come_and_go_during_a_move(webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder):
    with reembedding(webui.target) as move:
        move.copy(new)
        webui.client.delete_collection("file-one")
        webui.insert("file-two", ["a bank", "a boat"], old)  # not seen before the switch
        move.switch(new)
        webui.client.delete_collection(NAMES[3])
        webui.insert("file-three", ["a heron"], new)
        move.catch_up(new)
        move.release()
    assert sorted(webui.all()) == sorted([KNOWLEDGE, "user-memory-me", "file-two", "file-three", "file-empty"])
    with reembedding(webui.target) as move:
        copied = move.copy(new)
        assert (copied.rows, copied.embedded) == (2, 2)  # of the others the vectors are those of the model
        move.switch(new)
        move.release()
    assert webui.search("file-two", "a boat", new) == "a boat"
    with source_of(webui.target) as source:
        assert audit(source, new).share == 1.0


def test_a_switch_that_is_cut_between_two_collections_goes_on(
    webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    before, switch, calls = webui.all(), ChromaCollection.switch, 0

    def cut(self: ChromaCollection, notes: dict[str, str]) -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return switch(self, notes)

    with monkeypatch.context() as patch, reembedding(webui.target) as move:
        patch.setattr(ChromaCollection, "switch", cut)
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    with reembedding(webui.target) as move:
        move.switch(new)
        assert audit(move.source, new).share == 1.0
        move.rollback()
        move.release()
    assert webui.all() == before


def test_a_model_with_a_context_is_refused(webui: OpenWebUI):
    made = ContextualEmbedder.from_corpus(TEXTS, model=tiny_cde_model(), context_size=16)
    with reembedding(webui.target) as move, pytest.raises(StoreError, match="Take a plain model"):
        move.copy(made)


def test_all_collections_are_searched(
    webui: OpenWebUI, old: ContextualEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with source_of(webui.target) as source, foreign_collection(source, old, webui.target) as collection:
        (hit,) = collection.search(TEXTS[7], 1)
        assert hit.metadata["collection"] == KNOWLEDGE
        assert not collection.search(TEXTS[7], 1, where={"collection": "file-two"})


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_command_names_the_setting(webui: OpenWebUI, tmp_path: Path):
    from plain_model import write_static

    folder = write_static(tmp_path / "static")
    arguments = ["reembed", webui.target, "--model", str(folder), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Admin Panel, Settings, Documents" in json.loads(result.stdout)["line"]
    result = CliRunner().invoke(app, ["release", webui.target], catch_exceptions=False)
    assert "Released" in result.stdout

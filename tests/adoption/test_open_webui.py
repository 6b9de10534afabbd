"""Open WebUI's data folder, made by Chroma as version 0.12.4 does; lab/benchmarks/open_webui.py runs that itself."""

import json
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import chromadb
import pytest
from applications import TEXTS
from plain_model import write_static, write_transformer
from tiny import tiny_cde_model
from typer.testing import CliRunner

from cde_rag import ContextualEmbedder, PlainEmbedder
from cde_rag.adoption.application_lines import plain_name
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.chroma_collection import ChromaCollection
from cde_rag.adoption.foreign_search import foreign_collection
from cde_rag.adoption.move_plan import plan_move
from cde_rag.adoption.open_webui_setting import EmbeddingSetting
from cde_rag.adoption.reembedding import reembedding
from cde_rag.cli import app
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit


def uuid(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


USER, KNOWLEDGE = uuid("user"), uuid("knowledge")
FILE, MEMORY, BASES = f"file-{uuid('file')}", f"user-memory-{USER}", "knowledge-bases"
SEARCH = f"web-search-{USER}-{sha256(b'boats').hexdigest()}"[:63]
NOTE = sha256(b"a note").hexdigest()  # a text that was given to a chat
NAMES = (KNOWLEDGE, FILE, MEMORY, BASES, SEARCH, NOTE)
EACH = 6  # texts
SETTING = {"rag.embedding_engine": "", "rag.embedding_model": "old-1", "rag.embedding_batch_size": 1}


class OpenWebUI:
    """The calls of `ChromaClient`, and those of its routers that embed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, f"open-webui:{folder}"

    @property
    def client(self) -> Any:
        return chromadb.PersistentClient(path=str(self.folder / "vector_db"))

    def insert(self, name: str, texts: list[str], model: ContextualEmbedder) -> None:
        """`save_docs_to_vector_db` and `insert`; or of memories and knowledge bases `upsert`."""
        own = name.startswith(("user-memory-", "knowledge-bases"))
        function = {} if name == SEARCH else {"embedding_function": None}  # none since 0.7: the default of Chroma
        collection = self.client.get_or_create_collection(name=name, metadata={"hnsw:space": "cosine"}, **function)
        lines = texts if own else [text.replace("\n", " ") for text in texts]
        write = collection.upsert if own else collection.add
        write(
            ids=[uuid(f"{'' if own else name} {text}") for text in texts],
            documents=texts,
            embeddings=model.embed_passages(lines, None).vectors.tolist(),
            metadatas=[self.metadata(name, place, model) for place in range(len(texts))],
        )

    def metadata(self, name: str, place: int, model: ContextualEmbedder) -> dict[str, Any]:
        if name == BASES:
            return {"knowledge_base_id": KNOWLEDGE}
        if name == MEMORY:
            return {"type": "context", "created_at": 1796008734 + place, "updated_at": 1796008734 + place}
        hashed = sha256(name.encode()).hexdigest()
        return {
            "name": f"{name}.md",
            "source": f"{name}.md",
            "content_type": "text/markdown",
            "created_by": USER,
            "file_id": uuid(name),
            "hash": hashed,
            "file_hash": hashed,
            "size": 186,
            "start_index": place,
            "embedding_config": str({"engine": "", "model": model.context.identity.name}),
        }

    def search(self, name: str, query: str, model: ContextualEmbedder) -> str:
        found = self.client.get_collection(name=name, embedding_function=None).query(
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

    def configure(self, setting: dict[str, Any]) -> None:
        """`Config.upsert`."""
        with closing(sqlite3.connect(self.folder / "webui.db")) as database, database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS config (key TEXT PRIMARY KEY, value JSON NOT NULL, updated_at BIGINT)"
            )
            rows = [(key, json.dumps(value)) for key, value in setting.items()]
            database.executemany("INSERT OR REPLACE INTO config (key, value) VALUES (?, ?)", rows)


@pytest.fixture
def webui(tmp_path: Path, old: ContextualEmbedder) -> OpenWebUI:
    made = OpenWebUI(tmp_path / "data")
    made.folder.mkdir()
    for place, name in enumerate(NAMES):
        made.insert(name, [text.replace(" ", "\n", 1) for text in TEXTS[EACH * place : EACH * (place + 1)]], old)
    made.client.get_or_create_collection(name="file-empty", metadata={"hnsw:space": "cosine"})
    made.configure(SETTING)
    return made


def without_vectors(found: dict[str, Any]) -> dict[str, Any]:
    return {name: rows[:3] for name, rows in found.items()}


def test_all_collections_are_moved_together_and_go_back(
    webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder
):
    before, text = webui.all(), TEXTS[2 * EACH].replace(" ", "\n", 1)
    assert webui.search(MEMORY, text, old) == text
    with source_of(webui.target) as source:
        assert audit(source, old).share == 1.0
        plan = plan_move(source, new, old)
        assert (plan.rows, plan.dim, plan.configured) == (EACH * len(NAMES), (16, 24), "old-1")
    with reembedding(webui.target) as move:
        assert move.copy(new).rows == EACH * len(NAMES)
        assert move.line(new) == (
            "Admin Panel, Settings, Documents: Embedding Model Engine OpenAI, or the one that serves it, with its "
            "address; Embedding Model new-1 (now old-1). No reindexing."
        )
        move.switch(new)
        assert audit(move.source, new).share == 1.0
        assert move.line(new).endswith("No reindexing.")
    assert without_vectors({name: webui.all()[name] for name in before}) == without_vectors(before)
    assert webui.search(MEMORY, text, new) == text
    webui.insert(FILE, ["a later bank"], new)
    with reembedding(webui.target) as move:
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        assert move.rollback(old).carried.written == 1
        assert audit(move.source, old).share == 1.0
        webui.client.get_collection(FILE).delete(where={"source": "none"})
        move.switch(new)
        move.release()
    assert sorted(webui.all()) == sorted(before)
    assert webui.search(FILE, "a later bank", new) == "a later bank"


def test_collections_that_come_and_go_before_the_switch_join_the_move(
    webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder
):
    memories = webui.all()[MEMORY][1]
    with reembedding(webui.target) as move:
        move.copy(new)
        webui.client.delete_collection(FILE)
        webui.insert("file-two", ["a bank", "a boat"], old)
        webui.client.delete_collection(MEMORY)  # as "Reindex" does, with the ids of before
        webui.insert(MEMORY, memories, old)
        webui.insert(MEMORY, ["I like herons"], old)
        webui.client.delete_collection(NOTE)
        webui.insert(NOTE, ["another"], old)
    with reembedding(webui.target) as move:
        move.switch(new)
        assert move.line(new).endswith("No reindexing.")
        assert audit(move.source, new, sample=100).share == 1.0
    found = webui.all()
    with reembedding(webui.target) as move:
        move.rollback()
        move.switch(new)
        move.release()
    assert webui.all() == {name: rows for name, rows in found.items() if not name.endswith("-cde-old")}
    assert sorted(webui.all()) == sorted([*(set(NAMES) - {FILE}), "file-two", "file-empty"])
    for name, text in ((MEMORY, "I like herons"), (MEMORY, memories[0]), ("file-two", "a boat"), (NOTE, "another")):
        assert webui.search(name, text, new) == text


def test_collections_that_come_after_the_switch_are_named_and_moved_next(
    webui: OpenWebUI, old: ContextualEmbedder, new: ContextualEmbedder
):
    with reembedding(webui.target) as move:
        move.switch(new)
        webui.insert("file-two", ["a bank", "a boat"], old)  # before the setting was changed
        webui.client.delete_collection(MEMORY)  # it reindexes those that refuse a vector
        webui.insert(MEMORY, ["I like herons"], old)
        webui.client.delete_collection(SEARCH)
        webui.insert("file-three", ["a heron"], new)
        move.catch_up(new)
        assert "Made meanwhile with other vectors: 2 collections, such as file-two" in move.line(new)
        move.release()
    assert sorted(webui.all()) == sorted([*(set(NAMES) - {SEARCH}), "file-two", "file-three", "file-empty"])
    with reembedding(webui.target) as move:
        copied = move.copy(new)
        assert (copied.rows, copied.embedded) == (3, 3)  # of the others the vectors are those of the model
        move.switch(new)
        assert move.line(new).endswith("No reindexing.")
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


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_models_that_open_webui_cannot_have_are_refused(webui: OpenWebUI, tmp_path: Path):
    folder = write_transformer(tmp_path / "model")
    plain = PlainEmbedder(folder)
    for made in (
        ContextualEmbedder.from_corpus(TEXTS, model=tiny_cde_model(), context_size=16),
        ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=0.3),
        PlainEmbedder(folder, windows=True),
    ):
        with reembedding(webui.target) as move, pytest.raises(StoreError, match="Take a plain model"):
            move.copy(made)


def test_all_collections_are_searched(
    webui: OpenWebUI, old: ContextualEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with source_of(webui.target) as source, foreign_collection(source, old, webui.target) as collection:
        (hit,) = collection.search(TEXTS[5], 1)
        assert hit.metadata["collection"] == KNOWLEDGE
        assert not collection.search(TEXTS[5], 1, where={"collection": "file-two"})


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_command_names_the_call_that_takes_a_folder(webui: OpenWebUI, tmp_path: Path):
    folder = write_transformer(tmp_path / "prefixed")
    arguments = ["reembed", webui.target, "--model", str(folder), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout)["line"]
    assert line.startswith("POST /api/v1/retrieval/embedding/update")
    given, _ = json.JSONDecoder().raw_decode(line[line.index("{") :])
    assert given == {"RAG_EMBEDDING_ENGINE": "", "RAG_EMBEDDING_MODEL": str(folder)}
    assert "RAG_EMBEDDING_QUERY_PREFIX='bank: ' RAG_EMBEDDING_CONTENT_PREFIX='river: '" in line
    result = CliRunner().invoke(app, ["release", webui.target], catch_exceptions=False)
    assert "Released" in result.stdout


def test_a_model_of_the_hub_has_the_name_that_applications_load(
    webui: OpenWebUI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "models--somebody--static"
    commit = "0123456789" * 4
    (cached / "snapshots").mkdir(parents=True)
    write_static(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    embedder = PlainEmbedder("somebody/static")
    assert embedder.context.identity.name == f"somebody/static@{commit}"
    assert plain_name(embedder) == "somebody/static"
    with source_of(webui.target) as source:
        assert "Engine Default; Embedding Model somebody/static (now old-1). No" in source.line(embedder, tmp_path)


def test_the_setting_is_read_in_each_form_that_it_has_had(webui: OpenWebUI):
    assert EmbeddingSetting.read(webui.folder) == ("", "old-1")
    webui.configure({**SETTING, "rag.embedding_engine": "openai"})
    assert str(EmbeddingSetting.read(webui.folder)) == "openai: old-1"
    file = webui.folder / "webui.db"
    with closing(sqlite3.connect(file)) as database, database:  # before 0.10
        database.execute("DROP TABLE config")
        database.execute("CREATE TABLE config (id INTEGER PRIMARY KEY, data JSON NOT NULL, version INTEGER NOT NULL)")
    assert EmbeddingSetting.read(webui.folder) is None
    with closing(sqlite3.connect(file)) as database, database:
        data = json.dumps({"rag": {"embedding_model": "older", "chunk_size": 1000}})
        database.execute("INSERT INTO config VALUES (1, ?, 0)", [data])
    assert EmbeddingSetting.read(webui.folder) == ("", "older")
    for rest in webui.folder.glob("webui.db*"):
        rest.unlink()
    file.write_bytes(b"encrypted" * 1000)
    assert EmbeddingSetting.read(webui.folder) is None
    file.unlink()  # in PostgreSQL
    with source_of(webui.target) as source:
        assert source.found().model is None


def test_a_folder_of_an_older_chroma_is_not_opened(webui: OpenWebUI, tmp_path: Path):
    made = tmp_path / "older" / "vector_db"
    chromadb.PersistentClient(path=str(made)).close()
    file = made / "chroma.sqlite3"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("ALTER TABLE collections DROP COLUMN schema_str")  # the last step of this version
        database.execute("DELETE FROM migrations WHERE dir = 'sysdb' AND version = 10")
    before = file.read_bytes()
    for target in (f"open-webui:{made.parent}", f"chroma:{made}#papers"):
        with pytest.raises(StoreError, match="found one of an older version"), source_of(target):
            pass
    done = CliRunner().invoke(app, ["search", f"chroma:{made}#papers", "a bank", "--model", "cde-mini"])
    assert done.exit_code == 1
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {"chroma.sqlite3": before}
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="expected Chroma's database"), source_of(f"chroma:{made}#papers"):
        pass

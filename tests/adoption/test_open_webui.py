"""Open WebUI's data folder, made by Chroma with the calls of Open WebUI's own client; its package is too large here."""

import json
from pathlib import Path
from typing import Any

import pytest
from applications import TEXTS, OpenWebUIApplication, Row
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

NAMES = OpenWebUIApplication.parts


@pytest.fixture
def webui(tmp_path: Path, old: ContextualEmbedder) -> OpenWebUIApplication:
    made = OpenWebUIApplication(tmp_path / "data")
    made.build(old)
    return made


def all_of(webui: OpenWebUIApplication) -> dict[str, list[Row]]:
    return {name: webui.part(name) for name in webui.places()}


def without_vectors(found: dict[str, list[Row]]) -> dict[str, list[Any]]:
    return {name: [row[:3] for row in rows] for name, rows in found.items()}


def test_all_collections_are_moved_together_and_go_back(
    webui: OpenWebUIApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    before, text = all_of(webui), TEXTS[21].replace(" ", "\n", 1)
    assert webui.found_in("user-memory-me", text, old) == text
    with source_of(webui.target) as source:
        assert audit(source, old).share == 1.0
        plan = plan_move(source, new, old)
        assert (plan.rows, plan.dim) == (40, (16, 24))
    with reembedding(webui.target) as move:
        assert move.copy(new).rows == 40
        assert "Embedding Model new-1 (RAG_EMBEDDING_MODEL)" in move.line(new)
        move.switch(new)
        assert audit(move.source, new).share == 1.0
    after = all_of(webui)
    assert without_vectors({name: after[name] for name in before}) == without_vectors(before)
    assert webui.found_in("user-memory-me", text, new) == text
    webui.insert("file-one", ["a later bank"], new)  # by the default function of Chroma's configuration, as before
    with reembedding(webui.target) as move:
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        assert move.rollback(old).carried.written == 1
        assert audit(move.source, old).share == 1.0
        webui.client.get_collection("file-one").delete(where={"source": "none"})
        move.switch(new)
        move.release()
    assert sorted(all_of(webui)) == sorted(before)
    assert webui.found_in("file-one", "a later bank", new) == "a later bank"


def test_files_that_come_and_go_during_a_move(
    webui: OpenWebUIApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    with reembedding(webui.target) as move:
        move.copy(new)
        webui.client.delete_collection("file-one")
        webui.insert("file-two", ["a bank", "a boat"], old)  # not seen before the switch
        move.switch(new)
        webui.client.delete_collection(NAMES[3])
        webui.insert("file-three", ["a heron"], new)
        move.catch_up(new)
        move.release()
    assert sorted(all_of(webui)) == sorted([NAMES[0], "user-memory-me", "file-two", "file-three", "file-empty"])
    with reembedding(webui.target) as move:
        copied = move.copy(new)
        assert (copied.rows, copied.embedded) == (2, 2)  # of the others the vectors are those of the model
        move.switch(new)
        move.release()
    assert webui.found_in("file-two", "a boat", new) == "a boat"
    with source_of(webui.target) as source:
        assert audit(source, new).share == 1.0


def test_a_switch_that_is_cut_between_two_collections_goes_on(
    webui: OpenWebUIApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    before, switch, calls = all_of(webui), ChromaCollection.switch, 0

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
    assert all_of(webui) == before


def test_a_model_with_a_context_is_refused(webui: OpenWebUIApplication):
    made = ContextualEmbedder.from_corpus(TEXTS, model=tiny_cde_model(), context_size=16)
    with reembedding(webui.target) as move, pytest.raises(StoreError, match="Take a plain model"):
        move.copy(made)


def test_all_collections_are_searched(
    webui: OpenWebUIApplication, old: ContextualEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with source_of(webui.target) as source, foreign_collection(source, old, webui.target) as collection:
        (hit,) = collection.search(TEXTS[7], 1)
        assert hit.metadata["collection"] == NAMES[0]
        assert not collection.search(TEXTS[7], 1, where={"collection": "file-two"})


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_command_names_the_setting(webui: OpenWebUIApplication, tmp_path: Path):
    from plain_model import write_static

    folder = write_static(tmp_path / "static")
    arguments = ["reembed", webui.target, "--model", str(folder), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Admin Panel, Settings, Documents" in json.loads(result.stdout)["line"]
    result = CliRunner().invoke(app, ["release", webui.target], catch_exceptions=False)
    assert "Released" in result.stdout

"""Moves that are killed in their narrow places, with an application that writes meanwhile; and hostile files."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from applications import (
    COUNT,
    TEXTS,
    ChromaApplication,
    FaissApplication,
    LangChainApplication,
    SimpleApplication,
    second_rename_cut,
    stub,
    switched,
)
from langchain_core.documents import Document

from cde_rag import ContextualEmbedder
from cde_rag.adoption import carrying, chroma_collection
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.chroma_collection import ChromaCollection
from cde_rag.adoption.index_files import IndexFolder
from cde_rag.adoption.movable import SourceRow
from cde_rag.adoption.reembedding import Reembedding, reembedding
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def save_more(application: LangChainApplication, model: ContextualEmbedder) -> None:
    store = application.opened(model)
    store.add_documents([Document(page_content="a new bank")], ids=["more"])
    store.save_local(str(application.folder))


def test_a_journal_is_a_folder_of_its_own(langchain: LangChainApplication, new: ContextualEmbedder, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/thesis.txt").write_text("mine")
    for folder in (tmp_path / "notes", langchain.folder):
        with pytest.raises(StoreError, match="for the journal alone"), reembedding(langchain.target, journal=folder):
            pass
    assert (tmp_path / "notes/thesis.txt").read_text() == "mine"


def test_a_journal_is_of_one_store_however_that_is_spelled(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder, tmp_path: Path, monkeypatch: Any
):
    other = ChromaApplication(tmp_path / "other")
    other.build(old)
    with reembedding(chroma.target, journal=tmp_path / "j") as move:
        move.switch(new)
    for call in ("release", "rollback"):
        with reembedding(other.target, journal=tmp_path / "j") as move, pytest.raises(StoreError, match="another jour"):
            getattr(move, call)()
    monkeypatch.chdir(tmp_path)
    with reembedding("chroma:data#papers", journal="j") as move:
        move.release()
    assert [each.name for each in chroma.client.list_collections()] == ["papers"]


def test_a_switch_that_was_cut_goes_on_after_the_application_saved(
    langchain: LangChainApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch, reembedding(langchain.target) as move:
        patch.setattr(IndexFolder, "_exchange", killed)
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    save_more(langchain, old)
    switched(langchain.target, new)
    assert len(langchain.rows()) == COUNT + 1
    assert {len(row.vector) for row in langchain.rows()} == {new.dim}


def test_a_switch_whose_note_was_cut_keeps_the_old_vectors(
    langchain: LangChainApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    exchange = IndexFolder._exchange

    def cut(self: IndexFolder, *arguments: Any) -> None:
        exchange(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, reembedding(langchain.target) as move:
        patch.setattr(IndexFolder, "_exchange", cut)
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    before = (langchain.folder.with_name("data.cde-move") / "index/old/index.faiss").read_bytes()
    save_more(langchain, new)
    with reembedding(langchain.target) as move:
        assert move.switch(new).gap_s == 0
        assert move.state is not None
        assert move.state.step == "switched"
    assert (langchain.folder.with_name("data.cde-move") / "index/old/index.faiss").read_bytes() == before


def test_a_rollback_that_was_cut_can_be_ended(
    langchain: LangChainApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    switched(langchain.target, new)
    with monkeypatch.context() as patch, reembedding(langchain.target) as move:
        patch.setattr(IndexFolder, "_exchange", killed)
        with pytest.raises(KeyboardInterrupt):
            move.rollback()
    save_more(langchain, new)
    with reembedding(langchain.target) as move:
        with pytest.raises(StoreError, match="saved meanwhile"):
            move.rollback()
        move.release()
    assert len(langchain.rows()) == COUNT + 1


def test_a_row_whose_copy_was_cut_is_brought_again(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    from chromadb import Collection

    held = chroma.opened()
    switched(chroma.target, new)
    held.delete(ids=["d5"])
    held.add(ids=["d5"], embeddings=old.embed_queries(["a picture"]), metadatas=[{"of": "a bank"}])
    with monkeypatch.context() as patch, reembedding(chroma.target) as move:
        patch.setattr(Collection, "upsert", killed)  # the row loses its document, so that it was deleted before
        with pytest.raises(KeyboardInterrupt):
            move.catch_up(new)
    assert "d5" not in {row.id for row in chroma.rows()}
    with reembedding(chroma.target) as move:
        assert move.catch_up(new).kept == 0
    assert {row.id: row.metadata for row in chroma.rows()}["d5"] == {"of": "a bank"}


def test_readers_never_miss_a_row_that_is_brought(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """Chroma merges metadata of what it has, but a deletion before would be seen, and stay after a kill."""
    from chromadb import Collection

    held = chroma.opened()
    switched(chroma.target, new)
    vectors = old.embed_queries(["a", "b", "c"])
    held.update(ids=["d4", "d5"], documents=["a", "b"], embeddings=vectors[:2], metadatas=[{"n": None, "m": 1.5}, None])
    held.update(ids=["d7"], documents=["c"], embeddings=vectors[2:], metadatas=[{"n": None, "tags": None}])
    monkeypatch.setattr(Collection, "delete", killed)
    with reembedding(chroma.target) as move:
        assert move.catch_up(new).written == 3
    rows = {row.id: row for row in chroma.rows()}
    assert (rows["d4"].text, rows["d4"].metadata) == ("a", {"tags": ["a", "b"], "m": 1.5})
    assert (rows["d5"].text, rows["d5"].metadata) == ("b", {"n": 5, "tags": ["a", "b"]})
    assert (rows["d7"].text, rows["d7"].metadata) == ("c", {})
    assert rows["d7"].vector == pytest.approx(new.embed_passages(["c"], None).vectors[0].tolist(), abs=1e-5)


def test_rows_that_pages_pass_over_are_not_deleted(
    chroma: ChromaApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    held, rows, deleted = chroma.opened(), ChromaCollection.rows, False
    switched(chroma.target, new)

    def beside(self: ChromaCollection, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        nonlocal deleted
        for page in rows(self, notes, old=old):
            yield page
            if not deleted:
                held.delete(ids=["d1"])  # of the first page, so that the second begins one row later
                deleted = True

    monkeypatch.setattr(chroma_collection, "PAGE", 10)
    monkeypatch.setattr(chroma_collection, "IDS", 10)
    monkeypatch.setattr(ChromaCollection, "rows", beside)
    with reembedding(chroma.target) as move:
        move.catch_up(new)
        assert "d10" in {row.id for row in chroma.rows()}
        move.catch_up(new)
    assert {f"d{n}" for n in range(COUNT)} - {row.id for row in chroma.rows()} == {"d1"}


def test_a_release_does_not_lose_what_old_handles_wrote(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    held = chroma.opened()
    switched(chroma.target, new)
    held.add(ids=["late"], documents=["a boat"], embeddings=old.embed_queries(["a boat"]))
    with reembedding(chroma.target) as move:
        with pytest.raises(StoreError, match="A release would lose them"):
            move.release()
        move.catch_up(new)
        late = chroma.opened()
        move.rollback(old)
        late.add(ids=["later"], documents=["a bank"], embeddings=new.embed_queries(["a bank"]))
        for call in (move.release, lambda: move.copy(new)):
            with pytest.raises(StoreError, match="rollback --from"):
                call()
        assert move.rollback(old).carried.written == 1
        move.release()
    assert {"late", "later"} <= {row.id for row in chroma.rows()}


def test_a_rollback_of_an_interrupted_switch_keeps_rows(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    switch = ChromaCollection.switch

    def cut(self: ChromaCollection, notes: Mapping[str, str]) -> None:
        switch(self, notes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, reembedding(chroma.target) as move:
        patch.setattr(ChromaCollection, "switch", cut)
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    chroma.opened().add(ids=["since"], documents=["a bank"], embeddings=new.embed_queries(["a bank"]))
    with reembedding(chroma.target) as move:
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        with pytest.raises(StoreError, match="0 of 40 sampled"):  # the vectors are as long
            move.rollback(stub("another-1", 16))
        assert move.rollback(old).carried.written == 1
    assert "since" in {row.id for row in chroma.rows()}


def test_a_link_stays_and_a_journal_may_be_on_another_disk(
    langchain: LangChainApplication, new: ContextualEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, replace = langchain.folder / "index.faiss", Path.replace
    file.rename(tmp_path / "real.faiss")
    file.symlink_to(tmp_path / "real.faiss")

    def one_disk_each(self: Path, target: Path) -> Path:
        if self.parent != target.parent:
            raise OSError(18, "Invalid cross-device link")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", one_disk_each)
    switched(langchain.target, new)
    assert file.is_symlink()
    assert len(langchain.rows()[0].vector) == new.dim


def test_ids_may_be_any_text(chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder):
    chroma.opened().add(ids=["a\0b"], documents=["a boat"], embeddings=old.embed_queries(["a boat"]))
    switched(chroma.target, new)
    assert "a\0b" in {row.id for row in chroma.rows()}


def of_node(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda found: change(next(iter(found["docstore/data"].values()))["__data__"])


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("docstore.json", of_node(lambda node: node["metadata"].update(a="\ud800"))),
        ("docstore.json", of_node(lambda node: node.update(metadata=[1]))),
        ("docstore.json", of_node(lambda node: node.update(excluded_embed_metadata_keys=3))),
        ("docstore.json", of_node(lambda node: node.update(text_template="{content}" * 9))),
        ("default__vector_store.json", lambda found: found["embedding_dict"].update({"\ud800": [1.0] * 16})),
    ],
)
def test_odd_nodes_are_rows_without_a_text(
    tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder, file: str, change: Callable[[Any], None]
):
    app = SimpleApplication(tmp_path / "data")
    app.build(old)
    found = json.loads((app.folder / file).read_text())
    change(found)
    (app.folder / file).write_text(json.dumps(found))
    with reembedding(app.target) as move:
        assert move.copy(new).without_text_count == 1
        move.switch(new)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("docstore.json", '{"docstore/data": [1]}'),
        ("index_store.json", '{"index_store/data": {"a": 3}}'),
        ("index_store.json", '{"index_store/data": {"a": {"__type__": "vector_store", "__data__": "x"}}}'),
        ("index_store.json", '{"index_store/data": {"a": {"__type__": "vector_store", "__data__": "{}"}}}'),
        ("default__vector_store.json", '{"embedding_dict": {"d0": 3}}'),
        ("default__vector_store.json", '{"embedding_dict": {"d0": ["a", [2]]}}'),
        ("docstore.json", None),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, old: ContextualEmbedder, file: str, text: str | None):
    app = FaissApplication(tmp_path / "data")
    app.build(old)
    (app.folder / file).unlink()
    (app.folder / file).write_text(text) if text else os.mkfifo(app.folder / file)
    with pytest.raises(StoreError, match="expected"), source_of(app.target) as source:
        audit(source, old)


def test_an_index_without_places_is_refused_by_an_audit(langchain: LangChainApplication, old: ContextualEmbedder):
    import faiss

    index, vectors = faiss.index_factory(16, "IVF1,Flat"), old.embed_passages(TEXTS, None).vectors
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(langchain.folder / "index.faiss"))
    with pytest.raises(StoreError, match="found IndexIVFFlat"), source_of(langchain.target) as source:
        audit(source, old)


@pytest.mark.parametrize("call", ["switch", "rollback"])
def test_the_next_run_does_the_rename_that_was_cut(
    chroma: ChromaApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch, call: str
):
    """No program makes a collection of the name meanwhile: there is none, as after every such kill."""
    before = chroma.rows()
    if call == "rollback":
        switched(chroma.target, new)
    with reembedding(chroma.target) as move, second_rename_cut(monkeypatch):
        move.switch(new) if call == "switch" else move.rollback()
    assert [each.name for each in chroma.client.list_collections() if each.name == "papers"] == []
    with reembedding(chroma.target) as move:
        assert "new-1" in move.line(new) or "CDEEmbeddings" in move.line(new)  # which the command prints before
        move.switch(new) if call == "switch" else move.rollback()
    assert len(chroma.rows()[0].vector) == (new.dim if call == "switch" else len(before[0].vector))
    assert [row[:3] for row in chroma.rows()] == [row[:3] for row in before]


def test_a_move_whose_collection_the_application_deleted_can_be_ended(
    chroma: ChromaApplication, new: ContextualEmbedder
):
    with reembedding(chroma.target) as move:
        move.copy(new)
    chroma.client.delete_collection("papers")
    with reembedding(chroma.target) as move:
        with pytest.raises(StoreError, match="end its move by cde-rag release"):
            move.copy(new)
        move.release()
    assert chroma.client.list_collections() == []
    with pytest.raises(StoreError, match="found none of the name 'papers'"), source_of(chroma.target) as source:
        source.count()


def test_a_begin_that_was_cut_goes_on_with_another_context(
    chroma: ChromaApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """A contextual model samples again, and the application may have written since: the Context is another one."""
    with monkeypatch.context() as patch, reembedding(chroma.target) as move:
        patch.setattr(move.journal, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            move.copy(stub("another-1", 24))
    switched(chroma.target, new)
    assert len(chroma.rows()) == COUNT


def test_a_release_keeps_the_context_of_a_collection_that_the_application_made_anew(
    chroma: ChromaApplication, new: ContextualEmbedder
):
    """Its line names the file, without which these vectors are never searched again."""
    switched(chroma.target, new)
    chroma.client.delete_collection("papers")
    chroma.build(new)
    with reembedding(chroma.target) as move:
        with pytest.raises(StoreError, match="found others"):
            move.catch_up(new)
        file = move.journal.context_file(new.fingerprint)
        move.release()
    assert file.exists()
    assert len(chroma.rows()) == COUNT


def test_rows_without_a_text_come_along_with_a_rollback(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    """They cannot be embedded, but are the application's: a release would delete the only copy."""
    switched(chroma.target, new)
    chroma.opened().add(ids=["picture"], embeddings=new.embed_queries(["x"]), metadatas=[{"of": "a bank"}])
    chroma.opened().update(ids=["d3"], documents=[""], embeddings=new.embed_queries(["y"]))
    with reembedding(chroma.target) as move:
        carried = move.rollback(old).carried
        assert (carried.written, carried.kept) == (2, 0)
        move.release()
    rows = {row.id: row for row in chroma.rows()}
    assert (rows["picture"].metadata, rows["d3"].text) == ({"of": "a bank"}, "")
    assert len(rows["picture"].vector) == len(rows["d1"].vector)
    assert chroma.search(TEXTS[7], old, COUNT + 1)[0] == TEXTS[7]


def test_what_the_application_writes_while_rows_are_brought_stays(
    chroma: ChromaApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    held = chroma.opened()
    switched(chroma.target, new)
    held.update(ids=["d5", "d6"], documents=["theirs", "theirs too"], embeddings=old.embed_queries(["a", "b"]))

    def slow(*arguments: Any) -> Any:
        chroma.opened().update(ids=["d5"], documents=["ours"], embeddings=new.embed_queries(["ours"]))
        return vectors_of(*arguments)

    vectors_of = carrying.vectors_of
    monkeypatch.setattr(carrying, "vectors_of", slow)
    with reembedding(chroma.target) as move:
        carried = move.catch_up(new)
    assert (carried.written, carried.kept) == (1, 1)
    rows = {row.id: row for row in chroma.rows()}
    assert (rows["d5"].text, rows["d6"].text) == ("ours", "theirs too")
    for id_ in ("d5", "d6"):
        made = new.embed_passages([rows[id_].text or ""], None).vectors[0]
        assert rows[id_].vector == pytest.approx(made.tolist(), abs=1e-5)


def test_nodes_that_are_saved_before_the_copy_is_compared_are_told(
    tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    app = SimpleApplication(tmp_path / "data")
    app.build(old)
    checked = Reembedding._checked

    def late(self: Reembedding, *arguments: Any) -> Any:
        for name, part in (("default__vector_store.json", "embedding_dict"), ("docstore.json", "docstore/data")):
            found = json.loads((app.folder / name).read_text())
            found[part]["late"] = found[part]["d0"]
            (app.folder / name).write_text(json.dumps(found))
        return checked(self, *arguments)

    with monkeypatch.context() as patch, reembedding(app.target) as move:
        patch.setattr(Reembedding, "_checked", late)
        with pytest.raises(StoreError, match="again"):
            move.copy(new)
    switched(app.target, new)


def test_a_folder_that_was_saved_once_more_goes_back(
    langchain: LangChainApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    """Its file of documents has other bytes then, but the same texts in the same order."""
    before = langchain.rows()
    switched(langchain.target, new)
    store: Any = langchain.opened(new)
    store.docstore.search("d3").metadata["read"] = True
    store.save_local(str(langchain.folder))
    with reembedding(langchain.target) as move:
        move.rollback()
    rows = langchain.rows()
    assert [(row.id, row.text, row.vector) for row in rows] == [(row.id, row.text, row.vector) for row in before]
    assert rows[3].metadata["read"]
    assert langchain.finds_best(TEXTS[7], old)

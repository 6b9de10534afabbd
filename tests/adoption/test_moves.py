"""Vectors of other applications are moved to another model, searched by the application's code, and moved back."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from applications import (
    APPLICATIONS,
    COUNT,
    TEXTS,
    Application,
    ChromaApplication,
    ForLangChain,
    LangChainApplication,
    long_nodes,
    second_rename_cut,
    stub,
    switched,
)
from chromadb.utils.embedding_functions import known_embedding_functions
from langchain_core.documents import Document
from plain_model import write_static
from tiny import tiny_cde_model

from cde_rag import Context, ContextualEmbedder, FunctionEmbedder, PlainEmbedder
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.chroma_function import CDEFunction
from cde_rag.adoption.move_plan import plan_move, unread_in
from cde_rag.adoption.reembedding import reembedding
from cde_rag.errors import ContextMismatchError, ContextMissingError, CorpusError, StoreError
from cde_rag.evaluation.judged_questions import JudgedQuestion
from cde_rag.indexing.audit import audit
from cde_rag.indexing.upsert import Progress
from cde_rag.models.files.vector_cache import PlainVectors

pytestmark = [
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),
]


def test_a_move_and_the_way_back(application: Application, old: ContextualEmbedder, prefixed: ContextualEmbedder):
    before = application.rows()
    assert application.finds_best(TEXTS[7], old)
    with source_of(application.target) as source:
        assert audit(source, old).share == 1.0
    with reembedding(application.target) as move:
        copied = move.copy(prefixed)
        assert (copied.rows, copied.embedded, copied.without_text_count) == (COUNT, COUNT, 0)
        assert copied.audit.share == 1.0
        assert application.rows() == before  # the application reads the old vectors
        assert application.finds_best(TEXTS[7], old)
        assert move.copy(prefixed).embedded == 0
        move.switch(prefixed)
    after = application.rows()
    assert [row[:3] for row in after] == [row[:3] for row in before]
    assert application.finds_best(TEXTS[7], prefixed)
    assert len(after[0].vector) == prefixed.dim
    with source_of(application.target) as source:
        assert audit(source, prefixed).share == 1.0
    with reembedding(application.target) as move:
        move.rollback()
    assert application.rows() == before
    assert application.finds_best(TEXTS[7], old)
    with reembedding(application.target) as move:
        assert move.embedder().fingerprint == prefixed.fingerprint
        move.switch(move.embedder())
        assert [row[:3] for row in application.rows()] == [row[:3] for row in before]
        assert application.rows()[3].vector == pytest.approx(after[3].vector)
        move.release()
        assert move.state is None
    assert application.finds_best(TEXTS[7], prefixed)
    left = application.journals.rglob("*.*")
    assert [path.name for path in left] == [f"{prefixed.fingerprint[:16]}.context.safetensors"]


def test_a_contextual_model_keeps_its_context_for_the_application(application: Application):
    made = ContextualEmbedder.from_corpus(TEXTS * 2, model=tiny_cde_model(), context_size=16)
    with reembedding(application.target) as move:
        move.switch(made)
        file = move.journal.context_file(made.fingerprint)
        assert str(file) in move.line(made)
    assert Context.load(file).fingerprint == made.fingerprint
    assert application.finds_best(TEXTS[7], made)
    with reembedding(application.target) as move:
        move.release()
    assert Context.load(file).fingerprint == made.fingerprint  # the application's line names the file


def test_a_plan_compares_both_models_and_writes_nothing(
    application: Application, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    before = application.rows()
    with source_of(application.target) as source:
        plan = plan_move(source, prefixed, old)
        assert (plan.rows, plan.dim, plan.without_text) == (COUNT, (16, 24), ())
        assert plan.audit is not None
        assert plan.audit.share == 1.0
        assert plan.before is not None
        assert plan.tokens > COUNT
        with pytest.raises(StoreError, match="0 of 40 sampled vectors"):
            plan_move(source, prefixed, stub("another-1", 16))
    with reembedding(application.target) as move:
        assert move.state is None
    assert application.rows() == before
    assert not application.journals.exists()


def test_chunks_that_the_new_model_does_not_read_are_named(
    tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    """LlamaIndex' chunks have 1,024 tokens by default; the model reads 12, with a prefix of two."""
    app = long_nodes(tmp_path / "data", old)
    with source_of(app.target) as source:
        found = plan_move(source, prefixed)
        assert (found.unread.limit, found.unread.texts, found.unread.of) == (12, 3, 3)
        assert found.unread == unread_in(source, prefixed)
        assert 0.95 < found.unread.share < 1.0
        assert found.advises_against
        assert not found.loses
        assert "3 of 3 sampled texts are longer than the 12 tokens" in found.advice
        reads_all = plan_move(source, stub("new-1", 24))  # whose length nobody knows
        assert (reads_all.unread.texts, reads_all.advises_against) == (0, False)
        windowed = PlainEmbedder(prefixed.context.identity.name, windows=True)
        assert unread_in(source, windowed).texts == 0
    with reembedding(app.target) as move:
        assert move.copy(prefixed).truncated == 3
    with source_of(long_nodes(tmp_path / "cut", prefixed).target) as source:  # by the old model, too
        as_before = plan_move(source, prefixed, prefixed)
        assert not as_before.advises_against
        assert "unread, so nothing is lost by the move." in as_before.advice
    short = LangChainApplication(tmp_path / "short")
    short.build(old)
    with source_of(short.target) as source:
        reading = plan_move(source, ContextualEmbedder.from_corpus(TEXTS * 2, model=tiny_cde_model(), context_size=16))
        assert (reading.unread.limit, reading.unread.texts, reading.unread.share) == (32, 0, 0.0)
        assert "longer" not in reading.advice


def test_a_model_that_loses_is_advised_against(tmp_path: Path):
    def words(texts: list[str]) -> np.ndarray:
        return np.stack(
            [sum(np.random.default_rng(len(w) * 7 + ord(w[0])).normal(size=64) for w in t.split()) for t in texts]
        )

    good = FunctionEmbedder(words, name="words-1")
    other = LangChainApplication(tmp_path / "other")
    other.build(good)
    with source_of(other.target) as source:
        assert plan_move(source, stub("noise-1", 8), good).loses
        assert not plan_move(source, good, good).loses


def test_judged_queries_decide_whether_a_model_loses(
    application: Application, old: ContextualEmbedder, new: ContextualEmbedder
):
    """The stubs find a text by itself alone, so that each question is the text of its answer."""
    embedded = application.embedded()
    with source_of(application.target) as source:
        names = {record.text: record.id for page in source.passages() for record, _ in page}
        right = [JudgedQuestion("", text, "", grades={names[text]: 1}) for text in embedded[:12]]
        plan = plan_move(source, new, old, sample=8, judged=right)
        assert (plan.before, plan.after, plan.judged, plan.sample) == (1.0, 1.0, 12, 20)
        assert "No difference is sure" in plan.advice
        noise = FunctionEmbedder(lambda texts: np.ones((len(texts), 4)), name="ones-1")
        lost = plan_move(source, noise, old, judged=right)
        assert lost.loses
        assert lost.advice.endswith("do not move.")
        with pytest.raises(CorpusError, match="none of them there"):
            plan_move(source, new, old, judged=[replace(right[0], grades={"nowhere": 1})])
        by_text = [JudgedQuestion("", embedded[n], "", documents=(embedded[n],)) for n in range(3)]
        assert plan_move(source, new, old, judged=by_text).before == 1.0


def test_another_model_than_that_of_the_first_run_is_refused(application: Application, prefixed: ContextualEmbedder):
    with reembedding(application.target) as move:
        move.copy(prefixed)
    with reembedding(application.target) as move, pytest.raises(ContextMismatchError, match="was begun"):
        move.embedder(stub("third-1", 16))
    with reembedding(application.target) as move:
        with pytest.raises(ContextMismatchError):
            move.copy(stub("third-1", 16))
        move.release()
    switched(application.target, stub("third-1", 16))
    assert len(application.rows()[0].vector) == 16


def test_two_runs_at_once_are_refused(langchain: LangChainApplication):
    with reembedding(langchain.target):
        for _ in range(2):  # the first one that is refused leaves the lock alone
            with pytest.raises(StoreError, match="another run"), reembedding(langchain.target):
                pass


def test_rows_without_a_text_stay_and_come_last(tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder):
    app = ChromaApplication(tmp_path / "data")
    app.build(old)
    app.opened().add(ids=["none", "blank"], documents=[None, "  "], embeddings=old.embed_queries(["a", "b"]))
    with source_of(app.target) as source:
        assert plan_move(source, prefixed).without_text == ("none", "blank")
    with reembedding(app.target) as move:
        assert move.copy(prefixed).without_text == ("none", "blank")
        move.switch(prefixed)
    assert {row.id: row.text for row in app.rows()} | {"none": None, "blank": "  "} == {
        row.id: row.text for row in app.rows()
    }
    assert set(app.search("a bank", prefixed, COUNT + 2)[-2:]) == {None, "  "}


def test_a_store_without_any_text_is_refused(tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder):
    app = LangChainApplication(tmp_path / "data")
    app.build(old)
    store = app.opened(old)
    for document in store.docstore._dict.values():  # type: ignore[attr-defined]
        document.page_content = ""
    store.save_local(str(app.folder))
    with reembedding(app.target) as move, pytest.raises(CorpusError, match="expected texts"):
        move.copy(prefixed)


def test_what_chromas_old_handles_write_is_brought_to_the_new_vectors(
    chroma: ChromaApplication, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    held, writes = chroma.opened(), 0

    def write(_: Progress) -> None:
        nonlocal writes
        writes += 1
        if writes == 1:
            held.add(ids=["during"], documents=["a bank"], embeddings=old.embed_queries(["a bank"]))
            held.delete(ids=["d3"])

    with reembedding(chroma.target) as move:
        move.copy(prefixed, on_progress=write)
        move.switch(prefixed)
        assert {"during"} <= {row.id for row in chroma.rows()}
        assert "d3" not in {row.id for row in chroma.rows()}
        held.add(ids=["after", "both"], documents=["a boat", "theirs"], embeddings=old.embed_queries(["a", "b"]))
        held.update(ids=["d5", "d6"], documents=["changed", "changed"], embeddings=old.embed_queries(["c", "d"]))
        held.delete(ids=["d4"])
        chroma.opened().add(ids=["both"], documents=["ours"], embeddings=prefixed.embed_queries(["ours"]))
        chroma.opened().update(ids=["d6"], documents=["newer"], embeddings=prefixed.embed_queries(["newer"]))
        carried = move.catch_up(prefixed)
        assert (carried.written, carried.removed, carried.kept) == (2, 1, 2)
        assert move.catch_up(prefixed).written == 0
    rows = {row.id: row for row in chroma.rows()}
    assert (rows["after"].text, rows["both"].text, rows["d5"].text, rows["d6"].text) == (
        "a boat",
        "ours",
        "changed",
        "newer",
    )
    assert rows["d5"].metadata == {"n": 5, "tags": ["a", "b"]}
    assert "d4" not in rows
    made = prefixed.embed_passages(["changed"], None).vectors[0]
    assert rows["d5"].vector == pytest.approx(made.tolist(), abs=1e-5)


def test_a_rollback_takes_chromas_writes_along_or_is_refused(
    chroma: ChromaApplication, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    switched(chroma.target, prefixed)
    chroma.opened().add(ids=["since"], documents=["a bank"], embeddings=prefixed.embed_queries(["a bank"]))
    chroma.opened().delete(ids=["d1"])
    with reembedding(chroma.target) as move:
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        assert len(chroma.rows()[0].vector) == prefixed.dim
        carried = move.rollback(old).carried
    assert (carried.written, carried.removed) == (1, 1)
    rows = {row.id: row for row in chroma.rows()}
    assert rows["since"].vector == pytest.approx(old.embed_passages(["a bank"], None).vectors[0].tolist(), abs=1e-5)
    assert "d1" not in rows


def test_a_switch_that_is_cut_between_chromas_renames_goes_on(
    chroma: ChromaApplication, prefixed: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    with reembedding(chroma.target) as move:
        with second_rename_cut(monkeypatch):
            move.switch(prefixed)
        assert move.state is not None
        assert move.state.step == "switching"
    chroma.client.get_or_create_collection("papers", embedding_function=None)  # a program in the gap
    switched(chroma.target, prefixed)
    assert len(chroma.rows()) == COUNT
    assert sorted(each.name for each in chroma.client.list_collections()) == ["papers", "papers-cde-old"]
    with reembedding(chroma.target) as move:
        move.release()
    assert [each.name for each in chroma.client.list_collections()] == ["papers"]


def test_chromas_own_embedding_function_is_written(tmp_path: Path, old: ContextualEmbedder):
    app = ChromaApplication(tmp_path / "data")
    app.client.create_collection("papers", configuration={"hnsw": {"space": "ip"}})  # its default function
    app.opened().add(ids=TEXTS, documents=TEXTS, embeddings=old.embed_passages(TEXTS, None).vectors)
    static = PlainEmbedder(write_static(tmp_path / "static"))
    with reembedding(app.target) as move:
        assert move.source.found().model == "default {}"
        assert move.source.found().distance == "ip"
        assert move.line(static).startswith("No line")
        move.switch(static)
    configured = app.client.get_collection("papers")
    assert configured.configuration_json["hnsw"]["space"] == "ip"
    assert configured.configuration_json["embedding_function"]["config"]["model_name"] == str(tmp_path / "static")
    found = configured.query(query_texts=[TEXTS[7]], n_results=1)  # the application's line, unchanged
    assert found["documents"] == [[TEXTS[7]]]


@pytest.mark.parametrize("kind", ["prefixed", "contextual"])
def test_a_model_that_chroma_has_no_function_for_gets_ours(
    kind: str, tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder, model_folder: Path
):
    """A collection with Chroma's default function, as its tutorial makes it; programs have to name ours then."""
    app = ChromaApplication(tmp_path / "data")
    for name in [name for name in known_embedding_functions if name.startswith("cde_rag")]:
        del known_embedding_functions[name]  # of another test
    app.client.get_or_create_collection("papers", configuration={"hnsw": {"space": "cosine"}})
    app.opened().add(ids=TEXTS, documents=TEXTS, embeddings=old.embed_passages(TEXTS, None).vectors)
    before, rows = app.opened().configuration_json, app.rows()
    contextual = ContextualEmbedder.from_corpus(TEXTS * 2, model=model_folder, context_size=16)
    new = prefixed if kind == "prefixed" else contextual
    with reembedding(app.target) as move:
        move.switch(new)
        line, (loaded,) = move.line(new), re.findall(r"CDEFunction\.load\(\"(.+)\"\)", move.line(new))
        assert "from cde_rag.adoption.chroma_function" in line
    named = f"cde_rag-{new.fingerprint[:16]}"
    assert named not in known_embedding_functions  # until a program makes one
    with pytest.raises(ValueError, match=f"Embedding function {named} not found"):
        app.client.get_or_create_collection("papers").query(query_texts=["a bank"])
    function = CDEFunction.load(loaded, model=None if kind == "prefixed" else model_folder)  # whose name is no place
    for opened in (
        app.client.get_collection("papers", embedding_function=function),
        app.client.get_or_create_collection("papers", embedding_function=function),
    ):
        best = opened.query(query_texts=["a river bank"], n_results=1)["documents"][0][0]
        scores = new.embed_passages(TEXTS, None).vectors @ new.embed_queries(["a river bank"])[0]
        assert scores[TEXTS.index(best)] > scores.max() - 1e-5
    opened.add(ids=["later"], documents=["a bank and a boat"])
    made = opened.get(ids=["later"], include=["embeddings"])["embeddings"][0]
    np.testing.assert_allclose(made, new.embed_passages(["a bank and a boat"], None).vectors[0], atol=1e-5)
    opened.delete(ids=["later"])
    for forgetful in (app.client.get_collection("papers"), app.client.get_or_create_collection("papers")):
        with pytest.raises(ContextMissingError, match=r"CDEFunction\.load"):
            forgetful.query(query_texts=["a bank"])
    elsewhere = ContextualEmbedder.from_corpus(TEXTS[::-1], model=model_folder, context_size=8)
    for other in (CDEFunction(elsewhere), CDEFunction(old), Other()):  # the first is of the same model, perhaps
        with pytest.raises(ValueError, match=f"conflict: new: {other.name()} vs persisted: {named}"):
            app.client.get_collection("papers", embedding_function=other)
    with source_of(app.target) as source:
        assert audit(source, new).share == 1.0
        assert plan_move(source, old).dim == (new.dim, 16)  # the next move
    with reembedding(app.target) as move:
        move.rollback()
    assert app.opened().configuration_json == before
    assert app.rows() == rows


class Other(CDEFunction):
    """A function of another name."""

    def __init__(self) -> None:
        super().__init__(None)

    @staticmethod
    def name() -> str:
        return "other"


def test_llamaindex_nodes_in_chroma_keep_the_configured_function(
    tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    """LlamaIndex' tutorial makes a collection with Chroma's default function, and gives all vectors itself."""
    app = ChromaApplication(tmp_path / "data")
    made = app.client.create_collection("papers")
    metadata = [{"_node_content": '{"metadata": {}}', "_node_type": "TextNode"}] * COUNT
    made.add(ids=TEXTS, documents=TEXTS, metadatas=metadata, embeddings=old.embed_passages(TEXTS, None).vectors)
    before = made.configuration_json["embedding_function"]
    with reembedding(app.target) as move:
        move.switch(prefixed)
        assert move.line(prefixed).startswith("Settings.embed_model = CDEEmbedding.load(")
    assert app.opened().configuration_json["embedding_function"] == before
    assert app.finds_best(TEXTS[7], prefixed)


def test_what_langchain_saves_during_the_copy_is_in_it(
    langchain: LangChainApplication, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    saved = False

    def save(_: Progress) -> None:
        nonlocal saved
        if not saved:
            saved = True
            store = langchain.opened(old)
            store.add_documents([Document(page_content="a new bank")], ids=["during"])
            store.save_local(str(langchain.folder))

    with reembedding(langchain.target) as move:
        move.copy(prefixed, on_progress=save)
        move.switch(prefixed)
    assert langchain.rows()[-1][:2] == ("during", "a new bank")
    assert langchain.search("a new bank", prefixed, COUNT + 1)
    store = langchain.opened(prefixed)  # and goes on with the new model
    store.add_documents([Document(page_content="later")], ids=["later"])
    store.save_local(str(langchain.folder))
    with reembedding(langchain.target) as move:
        move.catch_up(prefixed)
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback(old)


def test_a_file_of_new_vectors_is_written_again_only_where_it_is_another(
    langchain: LangChainApplication, prefixed: ContextualEmbedder
):
    with reembedding(langchain.target) as move:
        move.copy(prefixed)
        (made,) = (move.journal.folder / "new").iterdir()
        content, file = made.read_bytes(), made.stat().st_ino
        kept = made.with_name("kept")
        kept.hardlink_to(made)  # so that no other file gets its number
        move.copy(prefixed)
        assert made.stat().st_ino == file
        made.unlink()
        made.write_bytes(content[:-1])
        move.copy(prefixed)
        assert made.read_bytes() == content


def test_old_vectors_that_a_program_saves_after_the_switch_are_noticed(
    langchain: LangChainApplication, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    store = langchain.opened(old)
    switched(langchain.target, prefixed)
    store.save_local(str(langchain.folder))
    with reembedding(langchain.target) as move:
        with pytest.raises(StoreError, match="has saved them since"):
            move.catch_up(prefixed)
        move.switch(prefixed)
    assert len(langchain.rows()[0].vector) == prefixed.dim


@pytest.mark.parametrize("kind", ["chroma", "lancedb", "langchain", "llamaindex-simple", "llamaindex-faiss"])
def test_what_a_program_writes_by_the_old_model_after_the_switch_is_noticed(
    kind: str, tmp_path: Path, old: ContextualEmbedder
):
    app, new = APPLICATIONS[kind](tmp_path / "data"), stub("new-of-the-same-length", old.dim)
    app.build(old)
    switched(app.target, new)
    app.insert_later("before", "a restarted program", new)
    switched(app.target, new)
    app.insert_later("after", "one that was not", old)
    with reembedding(app.target) as move:
        with pytest.raises(StoreError, match=r"others in 1 of 2 rows that were written since, such as 'after'"):
            move.switch(new)
        move.release()
    switched(app.target, new)
    assert app.search("one that was not", new, 1) == ["one that was not"]


def test_a_full_disk_is_told_and_the_move_goes_on(
    langchain: LangChainApplication, prefixed: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch, reembedding(langchain.target) as move:
        patch.setattr(PlainVectors, "put", lambda *_: None)  # which warns alone
        with pytest.raises(StoreError, match="Make room"):
            move.copy(prefixed)
    switched(langchain.target, prefixed)
    assert len(langchain.rows()[0].vector) == prefixed.dim


def test_an_index_that_needs_training_is_refused_by_name(
    tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    import faiss

    app = LangChainApplication(tmp_path / "data")
    app.build(old)
    index = faiss.index_factory(16, "IVF2,Flat")
    vectors = old.embed_passages(TEXTS, None).vectors
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(app.folder / "index.faiss"))
    with reembedding(app.target) as move, pytest.raises(StoreError, match="found IndexIVFFlat"):
        move.copy(prefixed)


def test_a_docstore_with_a_stamp_is_refused(tmp_path: Path, old: ContextualEmbedder, prefixed: ContextualEmbedder):
    from cde_rag.stamps import KEY, stamp

    app = LangChainApplication(tmp_path / "data")
    app.build(old)
    store = app.opened(old)
    store.docstore.add({KEY: Document(page_content="x", metadata=stamp(old.fingerprint))})  # type: ignore[attr-defined]
    store.save_local(str(app.folder))
    with reembedding(app.target) as move, pytest.raises(StoreError, match="found one of CDEEmbeddings"):
        move.copy(prefixed)
    with source_of(app.target) as source:
        assert audit(source, old).stamp == old.fingerprint


def test_langchains_model_may_be_given_as_embeddings(langchain: LangChainApplication, old: ContextualEmbedder):
    """The application's own class makes the same vectors, so that a move by its function is possible, too."""
    model = ForLangChain(stub("served-2", 8))
    served = FunctionEmbedder(model.embed_documents, name="served-2")
    switched(langchain.target, served)
    assert langchain.finds_best(TEXTS[7], served)


def test_readers_are_served_all_the_time(
    application: Application, old: ContextualEmbedder, prefixed: ContextualEmbedder
):
    """A program that opens the store again and again; only Chroma has a gap, which `gap_s` covers."""
    from threading import Event, Thread

    ended, seen, missed, errors = Event(), list[int](), list[float](), list[Exception]()

    def read() -> None:
        while not ended.is_set():
            try:
                (dim,) = {len(row.vector) for row in application.rows()}
                seen.append(dim)
            except Exception as error:  # noqa: BLE001, PERF203
                (missed.append(0) if type(error).__name__ == "NotFoundError" else errors.append(error))

    reader = Thread(target=read)
    reader.start()
    with reembedding(application.target) as move:
        gap = move.switch(prefixed).gap_s
        gap = max(gap, move.rollback().gap_s)
        gap = max(gap, move.switch(prefixed).gap_s)
    ended.set()
    reader.join()
    assert errors == []
    assert set(seen) <= {16, 24}
    assert isinstance(application, ChromaApplication) == (gap > 0)
    assert isinstance(application, ChromaApplication) or missed == []

"""Tables of LanceDB as programs of its tutorials write them: open handles, indexes, functions, own `optimize`."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from applications import COUNT, TEXTS, ForLlamaIndex, LanceApplication, nodes, switched
from plain_model import write_static

from cde_rag import ContextualEmbedder, PlainEmbedder
from cde_rag.adoption import lance_table
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.foreign_search import foreign_collection
from cde_rag.adoption.lance_table import LanceTable
from cde_rag.adoption.move_plan import plan_move
from cde_rag.adoption.reembedding import reembedding
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit
from cde_rag.indexing.upsert import Progress

lancedb: Any = pytest.importorskip("lancedb")
pa: Any = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:optimize:UserWarning")


@pytest.fixture
def lance(tmp_path: Path, old: ContextualEmbedder) -> LanceApplication:
    made = LanceApplication(tmp_path / "data")
    made.build(old)
    return made


def row(application: LanceApplication, id_: str, text: str, model: ContextualEmbedder) -> list[dict[str, Any]]:
    return [application.data(model, [text])[0] | {"id": id_}]


def test_open_handles_stay_at_the_old_version_and_cannot_write_to_it(
    lance: LanceApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    held, query = lance.opened(), old.embed_queries([TEXTS[7]])[0]
    following = lancedb.connect(str(lance.folder), read_consistency_interval=timedelta(0)).open_table("papers")
    switched(lance.target, new)
    assert held.search(query).limit(1).to_list()[0]["text"] == TEXTS[7]
    with pytest.raises(RuntimeError, match="Incompatible transaction"):
        held.add(row(lance, "late", "a boat", old))
    with pytest.raises(RuntimeError, match="Incompatible transaction"):
        held.delete("id = 'd3'")
    for table in (following, held):
        if table is held:
            held.checkout_latest()
        assert table.search(new.embed_queries([TEXTS[7]])[0]).limit(1).to_list()[0]["text"] == TEXTS[7]
        with pytest.raises(ValueError, match="vector"):
            table.search(query).limit(1).to_list()
    held.add(row(lance, "late", "a boat", new))
    assert len(lance.rows()) == COUNT + 1


def test_what_is_written_meanwhile_is_in_the_new_version(
    lance: LanceApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    written = LanceTable._written

    def write(_: Progress) -> None:
        if lance.opened().count_rows("id = 'during'") == 0:
            lance.opened().add(row(lance, "during", "a bank", old))
            lance.opened().delete("id = 'd3'")
            lance.opened().update("id = 'd5'", {"text": "changed"})

    def late(self: LanceTable, folder: Path, *rest: Any) -> Any:
        if folder == lance.folder and lance.opened().count_rows("id = 'late'") == 0:  # just before the overwrite
            lance.opened().add(row(lance, "late", "a boat", old))
        return written(self, folder, *rest)

    monkeypatch.setattr(LanceTable, "_written", late)
    with reembedding(lance.target) as move:
        move.switch(new, on_progress=write)
    rows = {each.id: each for each in lance.rows()}
    assert rows.keys() == {f"d{n}" for n in range(COUNT) if n != 3} | {"during", "late"}
    assert rows["d5"].text == "changed"
    for each in rows.values():
        assert each.vector == pytest.approx(new.embed_passages([each.text], None).vectors[0].tolist(), abs=1e-6)
    lance.opened().add(row(lance, "since", "a bank", new))
    with reembedding(lance.target) as move, pytest.raises(StoreError, match="A rollback would lose them"):
        move.rollback(old)
    assert len(lance.rows()) == COUNT + 2


@pytest.mark.parametrize("cut", ["_link", "_written", "_index"])
def test_a_switch_and_a_rollback_that_are_cut_go_on(
    lance: LanceApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch, cut: str
):
    before, indexes = lance.rows(), names(lance)
    owner: Any = lance_table if cut == "_link" else LanceTable
    whole = getattr(owner, cut)

    def killed(*arguments: Any) -> None:
        whole(*arguments)
        if cut != "_written" or arguments[1] == lance.folder:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, reembedding(lance.target) as move:
        move.copy(new)
        patch.setattr(owner, cut, killed)
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    switched(lance.target, new)
    assert (len(lance.rows()[0].vector), names(lance)) == (24, indexes)
    with monkeypatch.context() as patch, reembedding(lance.target) as move:
        patch.setattr(move.journal, "write", lambda state: None if state.step == "returning" else killed_now())
        with pytest.raises(KeyboardInterrupt):
            move.rollback()
    with reembedding(lance.target) as move:
        move.rollback()
    assert (lance.rows(), names(lance)) == (before, indexes)


def killed_now() -> None:
    raise KeyboardInterrupt


def names(application: LanceApplication) -> list[str]:
    return sorted(f"{index.name} {index.index_type}" for index in application.opened().list_indices())


def test_a_rollback_outlives_the_applications_optimize(lance: LanceApplication, new: ContextualEmbedder):
    before, schema, indexes = lance.rows(), lance.opened().schema, names(lance)
    switched(lance.target, new)
    lance.opened().optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    assert len(lance.opened().list_versions()) == 1
    with reembedding(lance.target) as move:
        move.rollback()
    assert lance.rows() == before
    assert lance.opened().schema.equals(schema, check_metadata=True)
    assert names(lance) == indexes
    assert lance.opened().search("bank", query_type="fts").limit(1).to_list()
    with reembedding(lance.target) as move:
        move.release()
    assert lance.rows() == before


def test_blocks_of_rows_are_all_rows_in_their_order(
    lance: LanceApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """The table has several fragments, deleted rows, and two rows of one id."""
    monkeypatch.setattr(lance_table, "_AHEAD", 3)
    lance.opened().delete("n IN (0, 1, 2, 17, 39)")
    lance.opened().add(row(lance, "d7", "a boat", old))
    lance.opened().add(row(lance, "late", "a boat", old))
    before = lance.opened().to_arrow()
    with source_of(lance.target) as source:
        found = [each.id for page in source.rows({}, old=True) for each in page]
    assert found == ["d7 (2)" if n == len(found) - 2 else id_ for n, id_ in enumerate(before["id"].to_pylist())]
    switched(lance.target, new)
    after = lance.opened().to_arrow()
    assert after.drop_columns("vector").equals(before.drop_columns("vector"))
    vectors = new.embed_passages(before["text"].to_pylist(), None).vectors
    assert np.allclose(np.stack(after["vector"].to_pylist()), vectors)


def test_columns_and_indexes_are_as_before(tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder):
    """Half floats, metadata of schema and fields, no ids, the same row twice, and a vector index of 300 rows."""
    from lancedb.index import IvfFlat

    texts = [f"{text} {n}" for n in range(10) for text in TEXTS] + [TEXTS[0]] * 2
    half = pa.list_(pa.float16(), 16)
    fields = [pa.field("of", half, metadata={"a": "b"}), pa.field("body", pa.large_string(), nullable=False)]
    schema = pa.schema([*fields, pa.field("when", pa.timestamp("ms", "UTC"))], metadata={"mine": "x"})
    vectors = old.embed_passages(texts, None).vectors.astype(np.float16)
    columns = [
        pa.array(list(vectors), half),
        pa.array(texts, pa.large_string()),
        pa.array([7] * len(texts), pa.int64()),
    ]
    table = pa.Table.from_arrays([*columns[:2], columns[2].cast(schema.field("when").type)], schema=schema)
    made = lancedb.connect(str(tmp_path / "data")).create_table("papers", table)
    made.create_index("of", config=IvfFlat(distance_type="cosine", num_partitions=2))
    target = f"lancedb:{tmp_path / 'data'}#papers"
    with reembedding(target) as move, pytest.raises(StoreError, match="Give --text COLUMN"):
        move.copy(new)
    with reembedding(target, text="body") as move:
        assert move.source.found()[:2] == (16, "cosine")
        assert move.copy(new).rows == len(texts)
        move.switch(new)
    live = lancedb.connect(str(tmp_path / "data")).open_table("papers")
    after = live.to_arrow()
    assert after.drop_columns("of").equals(table.drop_columns("of"))
    assert after.schema.metadata == {b"mine": b"x"}
    assert after.schema.field("of").type == pa.list_(pa.float16(), 24)
    assert after.schema.field("of").metadata[b"a"] == b"b"
    assert [(index.name, index.index_type) for index in live.list_indices()] == [("of_idx", "IvfFlat")]
    assert live.index_stats("of_idx").distance_type == "cosine"
    live.delete(f"body = '{TEXTS[1]} 1'")
    with reembedding(target) as move:  # knows its columns
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        live.restore(live.version - 1)
        move.rollback()
    assert lancedb.connect(str(tmp_path / "data")).open_table("papers").to_arrow().equals(table)


def test_rows_without_a_text_or_a_vector_stay(
    lance: LanceApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    template = lance.data(old, ["a"])[0]
    odd = [{"id": "none", "text": None}, {"id": "blank", "text": " "}, {"id": None, "text": None}]
    lance.opened().add([template | each for each in odd])
    schema = lance.opened().schema
    waiting = pa.Table.from_pylist([template | {"id": "waiting", "text": "later", "vector": None}], schema=schema)
    lance.opened().add(waiting, on_bad_vectors="null")
    lance.opened().add(row(lance, "d1", "a second row of that id", old))
    before = lance.rows()
    with source_of(lance.target) as source:
        assert plan_move(source, new).without_text == ("none", "blank", f"row {COUNT + 2}")
    with reembedding(lance.target) as move:
        assert move.copy(new).without_text_count == 3
        move.switch(new)
    assert [each[:3] for each in lance.rows()] == [each[:3] for each in before]
    there = [each for each in lance.rows() if each.text is not None and each.text.strip() and each.vector is not None]
    away = -np.mean([each.vector for each in there], axis=0)
    parked = [each.vector for each in lance.rows() if each.text is None or not each.text.strip()]
    assert np.allclose(parked, [away / np.linalg.norm(away)] * 3, atol=1e-6)
    assert [each.id for each in lance.rows() if each.vector is None] == ["waiting"]
    with reembedding(lance.target) as move:
        move.rollback()
    assert lance.rows() == before


def test_an_embedding_function_is_written_anew_or_refused(tmp_path: Path, old: ContextualEmbedder):
    from lancedb.embeddings import get_registry
    from lancedb.pydantic import LanceModel, Vector

    function = get_registry().get("sentence-transformers").create(name=str(write_static(tmp_path / "first")))

    class Words(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()  # type: ignore[valid-type]

    client, target = lancedb.connect(str(tmp_path / "data")), f"lancedb:{tmp_path / 'data'}#words"
    client.create_table("words", schema=Words).add([{"text": text} for text in TEXTS])
    second = PlainEmbedder(write_static(tmp_path / "second"))
    with reembedding(target) as move:
        assert "first" in str(move.source.found().model)
        with pytest.raises(StoreError, match="Take the functions out") as refused:
            move.copy(old)
        move.switch(second)
        assert "No model" in move.line(second)
    live = client.open_table("words")
    assert live.embedding_functions["vector"].function.name == str(tmp_path / "second")
    assert live.search(TEXTS[7]).limit(1).to_list()[0]["text"] == TEXTS[7]
    live.add([{"text": "a bank"}])  # by the new function
    with source_of(target) as source:
        assert audit(source, second).share == 1.0
    with reembedding(target) as move:
        move.release()
    line = str(refused.value).split("yourself: ")[1].split("; then")[0]
    eval(line, {"db": client})
    switched(target, old)
    assert client.open_table("words").embedding_functions == {}


@pytest.mark.filterwarnings("ignore:table_names:DeprecationWarning")  # of LlamaIndex
def test_llamaindex_texts_have_their_metadata(tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder):
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    def store() -> Any:
        return LanceDBVectorStore(uri=str(tmp_path / "data"), table_name="papers", mode="append")

    client = lancedb.connect(str(tmp_path / "data"))
    storage = StorageContext.from_defaults(vector_store=LanceDBVectorStore(connection=client, table_name="papers"))
    VectorStoreIndex(nodes(), embed_model=ForLlamaIndex(embedder=old), storage_context=storage)
    target = f"lancedb:{tmp_path / 'data'}#papers"
    with source_of(target) as source:
        assert audit(source, old).share == 1.0
    switched(target, new)
    index = VectorStoreIndex.from_vector_store(store(), embed_model=ForLlamaIndex(embedder=new))
    query = f"file: 7.md\n\n{TEXTS[7]}"
    found = index.as_retriever(similarity_top_k=1).retrieve(query)
    assert found[0].node.node_id == "d7"


def test_an_index_that_cannot_be_made_again_is_told_and_the_move_goes_back(
    lance: LanceApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no tokenizer")

    before = lance.rows()
    with reembedding(lance.target) as move:
        with monkeypatch.context() as patch:
            patch.setattr(lancedb.table.LanceTable, "create_index", fails)
            with pytest.raises(StoreError, match=r"no tokenizer.*table\.drop_index\('words'\)"):
                move.switch(new)
        move.rollback()
    assert lance.rows() == before


def blobs(application: LanceApplication) -> str:
    kinds = [pa.field("text", pa.string()), pa.field("vector", pa.list_(pa.float32(), 16))]
    blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    application.client.create_table("odd", schema=pa.schema([*kinds, blob]))
    return "found blobs in 'image'"


def bits(application: LanceApplication) -> str:
    kinds = [pa.field("text", pa.string()), pa.field("vector", pa.list_(pa.uint8(), 16))]
    application.client.create_table("odd", schema=pa.schema(kinds))
    return "found uint8"


def unnamed_options(application: LanceApplication) -> str:
    application.client.create_table("odd", application.opened().to_arrow())
    from lancedb.index import FTS

    application.client.open_table("odd").create_index("text", config=FTS())
    return r"table\.drop_index\('text_idx'\)"


@pytest.mark.parametrize("make", [blobs, bits, unnamed_options])
def test_what_cannot_be_made_again_is_refused(
    lance: LanceApplication,
    new: ContextualEmbedder,
    make: Callable[[LanceApplication], str],
    monkeypatch: pytest.MonkeyPatch,
):
    message = make(lance)
    monkeypatch.setattr(lance_table, "_FULL_TEXT", {"stem": "of_a_newer_lancedb"})
    with source_of(lance.target.replace("papers", "odd")) as source, pytest.raises(StoreError, match=message):
        source.check(new)


def test_a_table_that_was_dropped_and_made_again_is_not_overwritten_with_the_old_one(
    lance: LanceApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    """A nightly build does it: versions count from 1 again, so that both tables have the same number and rows."""
    with reembedding(lance.target) as move:
        move.copy(new)
    number = lance.opened().version
    lance.client.drop_table("papers")
    lance.build(old, [f"{text} anew" for text in TEXTS])
    assert lance.opened().version == number
    before = lance.rows()
    switched(lance.target, new)
    assert [row[:3] for row in lance.rows()] == [row[:3] for row in before]
    assert audit_of(lance.target, new) == 1.0
    with reembedding(lance.target) as move:
        move.rollback()
    assert lance.rows() == before


def audit_of(target: str, model: ContextualEmbedder) -> float:
    with source_of(target) as source:
        return audit(source, model).share


def test_a_table_that_was_dropped_and_made_again_is_searched_anew(
    lance: LanceApplication, old: ContextualEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for texts in (TEXTS, [f"{text} anew" for text in TEXTS]):
        lance.client.drop_table("papers", ignore_missing=True)
        lance.build(old, texts)
        with source_of(lance.target) as source, foreign_collection(source, old, lance.target) as found:
            assert found.get(["d7"])[0].text == texts[7]

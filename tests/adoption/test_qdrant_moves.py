"""Collections of Qdrant: named directly, with several vectors, in a folder, with old programs that go on writing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from applications import COUNT, TEXTS, QdrantApplication, point_id, stub, switched
from qdrant_client import QdrantClient, models
from tiny import tiny_cde_model

from cde_rag import Collection, ContextualEmbedder
from cde_rag.adoption import qdrant_source
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.qdrant_source import QdrantSource
from cde_rag.adoption.reembedding import reembedding
from cde_rag.errors import StoreError
from cde_rag.indexing.audit import audit
from cde_rag.indexing.upsert import Progress
from cde_rag.stores.qdrant import QdrantStore


def point(number: int, text: str, model: ContextualEmbedder) -> models.PointStruct:
    payload = {"page_content": text, "metadata": {"n": number}}
    return models.PointStruct(
        id=point_id(number), payload=payload, vector=model.embed_passages([text], None).vectors[0].tolist()
    )


def texts(application: QdrantApplication, name: str = "papers") -> dict[str, str | None]:
    return {row.id: row.text for row in application.rows(name)}


def test_what_old_programs_write_is_brought_to_the_new_collection(
    qdrant_app: QdrantApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    client, writes = qdrant_app.client, 0

    def write(_: Progress) -> None:
        nonlocal writes
        writes += 1
        if writes == 1:
            client.upsert("papers", [point(100, "a bank", old)])
            client.delete("papers", [point_id(3)])

    with reembedding(qdrant_app.target) as move:
        move.switch(new, on_progress=write)
        client.upsert("papers-v1", [point(101, "a boat", old), point(5, "changed", old), point(6, "theirs", old)])
        client.upsert("papers", [point(6, "ours", new), point(102, "a newer boat", new)])
        client.delete("papers-v1", [point_id(4)])
        carried = move.catch_up(new)
        assert (carried.written, carried.removed, carried.kept) == (2, 1, 1)
        found = texts(qdrant_app)
        assert found.keys() == {point_id(n) for n in (*range(COUNT), 100, 101, 102) if n not in (3, 4)}
        assert (found[point_id(5)], found[point_id(6)]) == ("changed", "ours")
        assert audit(move.source, new).share == 1.0
        with pytest.raises(StoreError, match="A rollback would lose them"):
            move.rollback()
        assert move.rollback(old).carried.written == 2
        assert texts(qdrant_app) == found
        assert audit(move.source, old).share == 1.0


def test_a_collection_that_is_named_directly_gets_an_alias_next_to_it(
    qdrant_app: QdrantApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    before, target = qdrant_app.rows(), qdrant_app.target.replace("#papers", "#papers-v1")
    with reembedding(target) as move:
        move.copy(new)
        assert 'collection_name="papers-v1-cde" in place of "papers-v1"' in move.line(new)
        assert "papers-v1-cde" not in [each.alias_name for each in qdrant_app.client.get_aliases().aliases]
        move.switch(new)
        assert qdrant_app.rows("papers-v1") == before  # for programs with the old line
        assert [row[:3] for row in qdrant_app.rows("papers-v1-cde")] == [row[:3] for row in before]
        move.rollback()
        assert qdrant_app.client.collection_exists("papers-v1-cde") is False
        move.switch(new)
        with pytest.raises(StoreError, match="its alias 'papers'"):
            move.release()
        qdrant_app.client.update_collection_aliases(
            [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="papers"))]
        )
        move.release()
    assert not qdrant_app.client.collection_exists("papers-v1")
    third = stub("third-1", 16)
    moved = target + "-cde"
    switched(moved, third)
    with source_of(moved) as source:
        assert audit(source, third).share == 1.0
        assert source.count() == COUNT
    with reembedding(moved) as move:
        move.release()
    names = [each.name for each in qdrant_app.client.get_collections().collections]
    assert names == [f"papers-v1-cde-{third.fingerprint[:8]}"]


def several(client: QdrantClient, model: ContextualEmbedder) -> None:
    """Points with three vectors, some of which lack one; numbers as ids."""
    client.create_collection(
        "several",
        vectors_config={
            "text": models.VectorParams(size=16, distance=models.Distance.DOT, on_disk=True),
            "image": models.VectorParams(size=4, distance=models.Distance.COSINE),
        },
        sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    made = model.embed_passages(TEXTS, None).vectors
    points = [
        models.PointStruct(
            id=n,
            payload={"content": text, "nested": {"a": [n, None]}, "of": "a" if n % 2 else 3},
            vector={
                "text": made[n].tolist(),
                "words": models.SparseVector(indices=[n, 50], values=[0.5, 1.25]),
                **({"image": [0.3, 0.1 * n, 1.7, -n]} if n % 3 else {}),
            },
        )
        for n, text in enumerate(TEXTS)
    ]
    points[7].vector.pop("text")  # type: ignore[union-attr, arg-type]
    points[8].payload = None
    client.upsert("several", points)


def all_of(client: QdrantClient, name: str) -> dict[Any, Any]:
    points, _ = client.scroll(name, limit=10 * COUNT, with_vectors=True)
    return {each.id: (each.payload or {}, each.vector) for each in points}


def test_ids_payloads_and_other_vectors_stay(
    qdrant_app: QdrantApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    client = qdrant_app.client
    several(client, old)
    target, before = qdrant_app.target.replace("#papers", "#several"), all_of(client, "several")
    with pytest.raises(StoreError, match="Give --vector NAME"), reembedding(target):
        pass
    with reembedding(target, vector="text") as move:
        copied = move.copy(new)
        assert copied.without_text == ("8",)
        client.update_vectors("several", [models.PointVectors(id=2, vector={"image": [1.0, 0, 0, 0]})])
        move.switch(new)
    after = all_of(client, "several-cde")
    assert after.keys() == before.keys()
    assert after[2][1]["image"] == [1.0, 0.0, 0.0, 0.0]
    for id_, (payload, vectors) in before.items():
        assert after[id_][0] == payload
        assert after[id_][1].keys() == vectors.keys()
        assert after[id_][1]["words"] == vectors["words"]
        assert id_ == 2 or after[id_][1].get("image") == pytest.approx(vectors.get("image"), abs=1e-6)
    assert "text" not in after[7][1]
    assert len(after[9][1]["text"]) == new.dim
    params = client.get_collection("several-cde").config.params
    assert (params.vectors["text"].on_disk, params.vectors["text"].distance) == (True, models.Distance.DOT)  # type: ignore[index]
    assert params.sparse_vectors["words"].modifier == models.Modifier.IDF  # type: ignore[index]
    with (
        reembedding(target, vector="image", text="content") as move,
        pytest.raises(StoreError, match="--vector 'text'"),
    ):
        move.rollback()
    with reembedding(target, vector="text") as move:
        move.rollback()
        move.release()
    assert all_of(client, "several").keys() == before.keys()


def killed_after(name: str) -> Callable[..., None]:
    done = getattr(QdrantSource, name)

    def killed(*arguments: Any, **named: Any) -> None:
        done(*arguments, **named)
        raise KeyboardInterrupt

    return killed


@pytest.mark.parametrize("cut", ["_create", "put", "_point"])
def test_a_move_that_is_cut_goes_on(
    qdrant_app: QdrantApplication, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch, cut: str
):
    before = qdrant_app.rows()
    with monkeypatch.context() as patch, reembedding(qdrant_app.target) as move:
        patch.setattr(QdrantSource, cut, killed_after(cut))
        with pytest.raises(KeyboardInterrupt):
            move.switch(new)
    switched(qdrant_app.target, new)
    assert [row[:3] for row in qdrant_app.rows()] == [row[:3] for row in before]
    assert {len(row.vector) for row in qdrant_app.rows()} == {new.dim}
    with reembedding(qdrant_app.target) as move:
        with monkeypatch.context() as patch:
            patch.setattr(QdrantSource, "_point", killed_after("_point"))
            with pytest.raises(KeyboardInterrupt):
                move.rollback()
        assert move.rollback().gap_s == 0
        move.release()
    assert qdrant_app.rows() == before


def test_an_application_that_writes_all_the_time_does_not_hold_up_a_move(
    qdrant_app: QdrantApplication, old: ContextualEmbedder, new: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(qdrant_source, "PAGE", 10)
    client, number = qdrant_app.client, 100

    def write(_: Progress) -> None:
        nonlocal number
        number += 1
        client.upsert("papers-v1", [point(number, f"a bank {number}", old)])

    with reembedding(qdrant_app.target) as move:
        move.switch(new, on_progress=write)
        assert texts(qdrant_app).keys() >= {point_id(n) for n in range(101, number + 1)}
        assert audit(move.source, new).share == 1.0


def test_a_folder_of_the_client_is_moved(tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder):
    folder, target = tmp_path / "data", f"qdrant:{tmp_path / 'data'}#papers"
    client = QdrantClient(path=str(folder))
    params = models.VectorParams(size=16, distance=models.Distance.COSINE)
    client.create_collection("papers", vectors_config=params)
    client.upsert("papers", [point(n, text, old) for n, text in enumerate(TEXTS)])
    client.close()  # local mode is of one program at a time
    switched(target, new)
    with source_of(f"{target}-cde") as source:
        assert audit(source, new).share == 1.0
    with reembedding(target) as move:
        assert move.journal.folder == folder.with_name("data.cde-move") / "papers"
        move.release()
    with pytest.raises(StoreError, match=r"found none.*the name .papers-cde"), source_of(target):
        pass


def test_what_a_copy_would_not_have_is_refused(
    qdrant_app: QdrantApplication, old: ContextualEmbedder, new: ContextualEmbedder
):
    client = qdrant_app.client
    many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client.create_collection(
        "many", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT, multivector_config=many)
    )
    eighths = models.VectorParams(size=2, distance=models.Distance.DOT, datatype=models.Datatype.UINT8)
    client.create_collection("bytes", vectors_config=eighths)
    client.create_collection("bytes-cde", vectors_config=eighths)
    for name, message in {"many": "found several vectors", "bytes": "found whole numbers of 8 bits"}.items():
        target = qdrant_app.target.replace("#papers", f"#{name}")
        with source_of(target) as source, pytest.raises(StoreError, match=message):
            source.check(new)
    with source_of(qdrant_app.target.replace("#papers", "#papers-v1")) as source:
        client.create_collection("papers-v1-cde", vectors_config=eighths)
        with pytest.raises(StoreError, match="'papers-v1-cde' to be free"):
            source.check(new)


def test_a_collection_of_this_library_is_told(tmp_path: Path, new: ContextualEmbedder):
    client = QdrantClient(path=str(tmp_path / "data"))
    model = tiny_cde_model()
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=model, context_size=16)
    Collection.create(QdrantStore(client, "papers"), embedder).add(TEXTS)
    client.close()
    target = f"qdrant:{tmp_path / 'data'}#papers"
    with reembedding(target) as move, pytest.raises(StoreError, match="cde-rag recontextualize"):
        move.copy(new)


def test_a_second_move_to_the_same_model_does_not_call_the_collection_in_use_a_rest(
    qdrant_app: QdrantApplication, new: ContextualEmbedder
):
    """Both have the same name, and a user who deleted that one would lose everything."""
    switched(qdrant_app.target, new)
    with reembedding(qdrant_app.target) as move:
        move.release()
    before = qdrant_app.rows()
    with (
        reembedding(qdrant_app.target) as move,
        pytest.raises(StoreError, match=r"expected vectors of another model.*cde-rag audit"),
    ):
        move.copy(new)
    assert qdrant_app.rows() == before
    assert not (qdrant_app.journals / "move.json").exists()

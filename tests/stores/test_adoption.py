"""A foreign collection of Qdrant becomes ours as well: its application goes on as before, and nothing of it is lost."""

import itertools
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intact import damages
from mortal import Killed, Mortal
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from tiny import WORDS
from word_scores import best, point_scores

from cde_rag.adoption import QdrantCollection, adopt, catch_up, release
from cde_rag.adoption.qdrant import foreign_records
from cde_rag.adoption.qdrant_points import only_here
from cde_rag.collection.collection import Collection
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, FunctionEmbedder
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError, StoreError
from cde_rag.indexing.upsert import Progress
from cde_rag.models import CDEModel
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.model import CHECKED
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant.tables import is_native, native
from cde_rag.stores.text_analysis import NEWEST

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

SIZE = 8  # context documents
DIM = 5  # of the application's vectors


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


def sentence(number: int) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, 6))


def their_vector(text: str) -> list[float]:
    """Of the application's model."""
    draw = np.random.default_rng(list(text.encode()))
    vector = draw.normal(size=DIM).astype(np.float32)
    return (vector / np.linalg.norm(vector)).tolist()


def uuid_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class Application:
    """Writes and reads a collection in its own way; its payload uses our names, too."""

    def __init__(self, client: QdrantClient, vector: str | None = None) -> None:
        self.client = client
        self.vector = vector
        params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
        config = params if vector is None else {vector: params}
        client.create_collection("theirs", vectors_config=config, metadata={"team": "x"})

    def write(self, id_: int | str, text: str | None, **more: Any) -> None:
        vector = their_vector(text or "none")
        payload = more if text is None else {"text": text, "title": "theirs", "metadata": 7, **more}
        named = {self.vector or "": vector}  # as libraries send it; local mode refuses a list beside named vectors
        point = models.PointStruct(id=id_, vector=named, payload=payload)
        self.client.upsert("theirs", [point], wait=True)

    def fill(self, count: int) -> None:
        for number in range(count):
            self.write(number if number % 2 else uuid_of(number), sentence(number), page=number // 3)

    def search(self, text: str, limit: int = 5) -> list[tuple[object, str]]:
        found = self.client.query_points("theirs", their_vector(text), using=self.vector, limit=limit).points
        return [(point.id, (point.payload or {})["text"]) for point in found]

    def state(self) -> list[tuple[object, Mapping[str, Any], list[float]]]:
        """Its points: id, payload without keys of ours, and its own vector."""
        found, _ = self.client.scroll("theirs", limit=1000, with_vectors=True)
        return [
            (
                point.id,
                {key: value for key, value in (point.payload or {}).items() if not key.startswith("cde_")},
                self._own(point.vector),
            )
            for point in found
        ]

    def _own(self, vector: Any) -> list[float]:
        own = vector.get(self.vector or "", []) if isinstance(vector, dict) else vector
        return np.round(own, 4).tolist()


@pytest.fixture(params=[None, "dense"])
def application(request: pytest.FixtureRequest, client: QdrantClient) -> Application:
    made = Application(client, request.param)
    made.fill(20)
    return made


def adopted(client: QdrantClient, model: CDEModel, **more: Any) -> Collection:
    return adopt(QdrantCollection(client, "theirs", texts="text"), model=model, context_size=SIZE, **more)


def texts_of(collection: Collection) -> dict[str, str]:
    return {record.id: record.text for record in collection.scroll()}


def assert_as_if_built(collection: Collection, place: Any) -> None:
    """All vectors and digests are those of a collection that was built in its context from its records."""
    records = list(collection.scroll())
    fresh = Collection.create(FaissStore(place), collection.embedder, parent_key=collection.parent_key)
    fresh.add_records(records)
    ids = [record.id for record in records]
    np.testing.assert_allclose(
        collection.store.vectors(ids, fingerprint=collection.embedder.fingerprint),
        fresh.store.vectors(ids, fingerprint=fresh.embedder.fingerprint),
        atol=1e-5,
    )
    assert [row.digest for row in collection.store.get(ids)] == [row.digest for row in fresh.store.get(ids)]
    assert damages(collection) == []


# What is there afterwards


@pytest.mark.parametrize("parent_key", [None, "page"])
def test_it_is_a_collection_beside_what_it_was(
    application: Application, client: QdrantClient, tiny_model: CDEModel, tmp_path: Any, parent_key: str | None
) -> None:
    before, found = application.state(), application.search(sentence(3))
    papers = adopted(client, tiny_model, parent_key=parent_key)
    assert application.state() == before
    assert application.search(sentence(3)) == found
    ids = {str(number) if number % 2 else uuid_of(number): sentence(number) for number in range(20)}
    assert texts_of(papers) == ids
    assert papers.get(["3"]) == [Record("3", sentence(3), metadata={"title": "theirs", "metadata": 7, "page": 1})]
    assert papers.count({"page": 1}) == 3
    assert_as_if_built(papers, tmp_path / "fresh")
    again = Collection.open(QdrantStore(client, "theirs"), model=tiny_model)
    assert again.search("river bank") == papers.search("river bank")
    assert again.inspect().parent_key == parent_key


def test_it_moves_to_another_context_and_back(
    application: Application, client: QdrantClient, tiny_model: CDEModel, tmp_path: Any
) -> None:
    before = application.state()
    papers = adopted(client, tiny_model)
    first = papers.embedder.fingerprint
    papers.recontextualize(seed=1, context_size=SIZE)
    application.write(3, "flood of risk")
    assert catch_up(papers).added == 1
    assert_as_if_built(papers, tmp_path / "moved")
    papers.rollback()
    assert papers.embedder.fingerprint == first
    assert texts_of(papers)["3"] == "flood of risk"
    assert_as_if_built(papers, tmp_path / "back")
    assert [point for point in application.state() if point[0] != 3] == [point for point in before if point[0] != 3]


def test_release_leaves_what_was_there(application: Application, client: QdrantClient, tiny_model: CDEModel) -> None:
    before = application.state()
    papers = adopted(client, tiny_model)
    papers.recontextualize(seed=1, context_size=SIZE)
    release(QdrantCollection(client, "theirs", "text"))
    assert application.state() == before
    found, _ = client.scroll("theirs", limit=99)
    assert not any(key.startswith("cde_") for point in found for key in point.payload or {})
    info = client.get_collection("theirs").config
    assert set(info.params.vectors if isinstance(info.params.vectors, dict) else {""}) == {application.vector or ""}
    assert not info.params.sparse_vectors
    assert info.metadata == {"team": "x"}
    assert [one.name for one in client.get_collections().collections] == ["theirs"]
    with pytest.raises(StoreError, match="adopted"):
        release(QdrantCollection(client, "theirs", "text"))
    assert texts_of(adopted(client, tiny_model)) == {str(id_): payload["text"] for id_, payload, _ in before}


def test_adopted_points_are_found_by_their_words(
    application: Application, client: QdrantClient, tiny_model: CDEModel
) -> None:
    papers = adopted(client, tiny_model)
    papers.add(["the estuary of rivers"], ids=["ours"])
    application.write(3, "an estuary of floods", page=1)
    assert [hit.id for hit in papers.searcher("words").search("estuaries")] == ["ours"]
    catch_up(papers)
    assert {hit.id for hit in papers.searcher("words").search("estuaries")} == {"ours", "3"}
    records = [row.record for row in papers.store.scroll()]
    (hits,) = papers.store.search_text(["river boat"], 5)
    scores = point_scores(records, "river boat", NEWEST)
    assert [hit.score for hit in hits] == pytest.approx([scores[place] for place in best(scores, 5)], rel=1e-5)
    assert damages(papers) == []


# Two who write


def test_what_the_application_writes_is_caught_up(
    application: Application, client: QdrantClient, tiny_model: CDEModel, tmp_path: Any
) -> None:
    papers = adopted(client, tiny_model, parent_key="page")
    application.write(3, "flood of risk", page=1)
    application.write(99, "credit and interest", page=1)
    application.client.delete("theirs", [5])
    assert "99" not in texts_of(papers)
    assert papers.get(["3", "99"]) == []
    report = catch_up(papers)
    assert (report.added, report.skipped, report.documents) == (2, 0, 20)
    texts = texts_of(papers)
    assert (texts["3"], texts["99"]) == ("flood of risk", "credit and interest")
    assert "5" not in texts
    assert catch_up(papers).added == 0
    assert damages(papers) == []


def test_what_is_written_between_reading_and_writing_is_not_overwritten(
    application: Application, client: QdrantClient, tiny_model: CDEModel, tmp_path: Any
) -> None:
    """The texts are read by a function, which writes others while it is at it."""
    changes = {3: "flood of risk", 7: sentence(7)}  # another text, and the very same
    adopting = False

    def read(payload: Mapping[str, Any]) -> Record:
        text = payload["text"]
        if adopting and text == sentence(9):
            while changes:
                application.write(*changes.popitem(), page=1)
            client.delete("theirs", [11])
        return Record("", text, metadata={"page": payload["page"]})

    embedder = ContextualEmbedder.from_corpus(map(sentence, range(20)), model=tiny_model, context_size=SIZE)
    adopting = True
    papers = adopt(QdrantCollection(client, "theirs", texts=read), embedder=embedder)
    assert not changes
    assert texts_of(papers)["3"] == "flood of risk"
    assert texts_of(papers) == {str(id_): payload["text"] for id_, payload, _ in application.state()}
    assert_as_if_built(papers, tmp_path / "fresh")
    with pytest.raises(StoreError, match=r"catch_up\(collection, source\)"):
        catch_up(papers)
    application.write(12, "late risk", page=1)
    assert catch_up(papers, QdrantCollection(client, "theirs", read)).added == 1


def test_what_is_written_at_the_last_moment_is_not_overwritten(
    application: Application, client: QdrantClient, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all was read and compared, and before it is written; a point can also go then."""
    write, changes = client.batch_update_points, [lambda: application.write(3, "flood of risk")]
    changes += [lambda: application.write(7, sentence(7)), lambda: client.delete("theirs", [11])]

    def batch(*args: Any, **asked: Any) -> Any:
        if changes:
            changes.pop(0)()
        return write(*args, **asked)

    monkeypatch.setattr(client, "batch_update_points", batch)
    papers = adopted(client, tiny_model)
    while changes:
        catch_up(papers)
        application.write(50 + len(changes), "credit")
    catch_up(papers)
    assert texts_of(papers) == {str(id_): payload["text"] for id_, payload, _ in application.state()}
    assert texts_of(papers)["3"] == "flood of risk"
    assert damages(papers) == []


def test_it_goes_on_with_the_model_that_it_was_begun_with(
    application: Application, client: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `cde-mini` has come to mean another one."""
    with monkeypatch.context() as before:
        before.setitem(checkpoints.ALIASES, "cde-mini", "cde-mini-0")
        begun = adopt(QdrantCollection(client, "theirs", texts="text"), context_size=SIZE)
    application.write(30, "flood of risk")
    again = adopt(QdrantCollection(client, "theirs", texts="text"), context_size=SIZE)
    assert again.embedder.fingerprint == begun.embedder.fingerprint
    assert "cde-mini-0" == again.embedder.context.identity.name != checkpoints.ALIASES["cde-mini"]
    assert texts_of(again)["30"] == "flood of risk"


@pytest.mark.parametrize("gone", [False, True])
def test_of_two_who_replace_a_point_at_once_the_application_wins(
    application: Application, client: QdrantClient, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    papers = adopted(client, tiny_model)
    upsert = client.upsert

    def late(name: str, points: Any, **asked: Any) -> Any:
        monkeypatch.setattr(client, "upsert", upsert)
        client.delete("theirs", [3]) if gone else application.write(3, "flood of risk")
        return upsert(name, points, **asked)

    monkeypatch.setattr(client, "upsert", late)
    papers.add(["money loan", "river"], ids=["3", "5"])
    assert papers.get(["3"]) == []
    assert papers.get(["5"])[0].text == "river"
    assert [payload["text"] for id_, payload, _ in application.state() if id_ == 3] == ["flood of risk"][gone:]
    catch_up(papers)
    assert [record.text for record in papers.get(["3"])] == ["flood of risk"][gone:]
    assert damages(papers) == []


def test_what_is_added_here_is_no_point_that_old_readers_find(
    application: Application, client: QdrantClient, tiny_model: CDEModel
) -> None:
    papers = adopted(client, tiny_model)
    found, before = application.search("money loan", 50), application.state()
    papers.add(["money loan", "river boat", "changed"], ids=["new", "500", "3"], metadata=[{}, {"a": 1}, {}])
    assert application.search("money loan", 50) == found
    assert [point for point in application.state() if point[1]] == before  # also what they have at 3
    assert papers.search("money loan", 1)[0].id == "new"
    assert [record.text for record in papers.get(["3", "500", "new"])] == ["changed", "river boat", "money loan"]
    assert sorted(only_here(client, "theirs")) == ["500", "new"]
    with pytest.raises(StoreError, match="found 2 that were added"):
        release(QdrantCollection(client, "theirs", "text"))
    application.write(500, "written by both")
    assert catch_up(papers).added == 1  # in place of ours
    assert papers.get(["500"])[0].text == "written by both"
    assert papers.delete(["new"]) == 1
    client.delete("theirs", [500])
    release(QdrantCollection(client, "theirs", "text"))
    assert application.state() == before


def test_a_point_that_is_not_caught_up_is_no_record(
    application: Application, client: QdrantClient, tiny_model: CDEModel
) -> None:
    papers = adopted(client, tiny_model)
    application.write(99, "credit")
    assert papers.delete(["99"]) == 0
    with pytest.raises(KeyError):
        papers.store.vectors(["99"], fingerprint=papers.embedder.fingerprint)
    papers.add(["of ours"], ids=["99"])
    assert papers.get(["99"])[0].text == "of ours"
    assert ("credit", 99) in [(payload.get("text"), id_) for id_, payload, _ in application.state()]
    assert damages(papers) == []


# What cannot be adopted


def test_points_without_text_are_left_alone(client: QdrantClient, tiny_model: CDEModel) -> None:
    application = Application(client)
    application.fill(8)
    for id_, text in ((100, None), (101, "  "), (102, "")):
        application.write(id_, text)
    application.write(103, "river", page=[1])  # no parent
    papers = adopted(client, tiny_model, parent_key="page")
    assert papers.count() == 8
    report = catch_up(papers)
    assert (report.added, report.skipped, report.documents) == (0, 4, 8)
    assert damages(papers) == []
    assert len(application.state()) == 12


def test_refusals(application: Application, client: QdrantClient, tiny_model: CDEModel) -> None:
    with pytest.raises(StoreError, match="none of this name"):
        adopt(
            QdrantCollection(client, "nowhere", texts="text"),
            embedder=ContextualEmbedder.from_corpus([*"ab"], model=tiny_model),
        )
    with pytest.raises(StoreError, match=r"^their: expected .* none of this name\. There are: theirs\.$"):
        adopt(QdrantCollection(client, "their", texts="text"), model=tiny_model)
    with pytest.raises(StoreError, match=r"There are: theirs\.$"):
        next(foreign_records(client, "their", texts="text"))
    with pytest.raises(CorpusError, match=r"texts='page_content' was given; payloads have .*text"):
        adopt(QdrantCollection(client, "theirs", texts="page_content"), model=tiny_model)
    papers = adopted(client, tiny_model)
    with pytest.raises(StoreError, match="begun"):
        adopt(QdrantCollection(client, "theirs", texts="langchain"), model=tiny_model)
    other = ContextualEmbedder.from_corpus([*"ab"], model=tiny_model)
    with pytest.raises(ContextMismatchError):
        adopt(QdrantCollection(client, "theirs", texts="text"), embedder=other)
    with papers.store.lease(), pytest.raises(StoreError, match="another"):
        catch_up(papers)
    own = Collection.create(QdrantStore(client, "own"), other)
    with pytest.raises(StoreError, match="not"):
        catch_up(own)
    with pytest.raises(StoreError, match="not"):
        release(QdrantCollection(client, "own", "text"))
    with pytest.raises(StoreError, match="not"):
        adopt(QdrantCollection(client, "own", texts="text"), model=tiny_model)


@pytest.mark.parametrize("wrong", [{"texts": "page_content"}, {"texts": "text", "parent_key": "tags"}])
def test_a_refused_call_leaves_nothing_that_refuses_the_right_one(
    client: QdrantClient, tiny_model: CDEModel, wrong: dict[str, Any]
) -> None:
    """An embedder is given, so that no text is read for a sample."""
    application = Application(client)
    for number in range(3):
        application.write(number, sentence(number), tags=["a", "b"])
    before, embedder = application.state(), ContextualEmbedder.from_corpus([*"ab"], model=tiny_model)
    with pytest.raises(CorpusError, match=r"none of 3 points can be a record: .*payloads have .*text"):
        adopt(QdrantCollection(client, "theirs", wrong["texts"]), embedder=embedder, parent_key=wrong.get("parent_key"))
    assert application.state() == before
    assert not QdrantStore(client, "theirs").exists()
    assert adopt(QdrantCollection(client, "theirs", texts="text"), embedder=embedder).count() == 3


def test_it_asks_once_whether_the_collection_is_there(
    application: Application, client: QdrantClient, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, scroll, get = list[str](), client.scroll, client.get_collection

    def counted(name: str, call: Any) -> Any:
        return lambda *args, **given: asked.append(name) or call(*args, **given)

    monkeypatch.setattr(client, "scroll", counted("scroll", scroll))
    monkeypatch.setattr(client, "get_collection", counted("get_collection", get))
    adopted(client, tiny_model)
    assert asked[:2] == ["get_collection", "scroll"]  # its texts are read next


def test_an_older_server_is_told_what_to_do(
    application: Application, client: QdrantClient, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def unknown(*args: Any, **asked: Any) -> Any:
        raise UnexpectedResponse(404, "Not Found", b"", httpx.Headers())

    monkeypatch.setattr(client, "create_vector_name", unknown)
    with pytest.raises(StoreError, match=r"1\.18.*foreign_records"):
        adopted(client, tiny_model)
    records = list(foreign_records(client, "theirs", texts="text"))
    embedder = ContextualEmbedder.from_corpus((one.text for one in records), model=tiny_model, context_size=SIZE)
    assert Collection.create(FaissStore(tmp_path / "copy"), embedder).add_records(records).added == 20


# Kills


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_request_of_adoption_is_completed_by_the_same_call(tiny_model: CDEModel, after: bool) -> None:
    for number in itertools.count(1):
        client = QdrantClient(":memory:")
        application = Application(client)
        application.fill(8)
        before, mortal = application.state(), Mortal(client, after=after)
        mortal.left = number
        try:
            adopted(client, tiny_model)
        except Killed:
            mortal.left = 0
        else:
            assert number > 5
            return
        assert application.state() == before
        papers = adopted(client, tiny_model)
        assert application.state() == before
        assert texts_of(papers) == {str(id_): payload["text"] for id_, payload, _ in before}
        assert damages(papers) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_request_of_release_is_completed_by_the_same_call(tiny_model: CDEModel, after: bool) -> None:
    for number in itertools.count(1):
        client = QdrantClient(":memory:")
        application = Application(client)
        application.fill(6)
        before = application.state()
        adopted(client, tiny_model)
        mortal = Mortal(client, after=after)
        mortal.left = number
        try:
            release(QdrantCollection(client, "theirs", "text"))
        except Killed:
            mortal.left = 0
        else:
            assert number > 5
            return
        assert application.state() == before
        if "cde" in client.get_collection("theirs").config.metadata:
            release(QdrantCollection(client, "theirs", "text"))
        assert application.state() == before
        assert client.get_collection("theirs").config.metadata == {"team": "x"}
        assert [one.name for one in client.get_collections().collections] == ["theirs"]


# Other people's libraries


@pytest.mark.parametrize("parent_key", [None, "source"])
def test_langchain(client: QdrantClient, tiny_model: CDEModel, parent_key: str | None, tmp_path: Any) -> None:
    embeddings = pytest.importorskip("langchain_core.embeddings")
    library = pytest.importorskip("langchain_qdrant", reason="langchain-qdrant is not installed")
    model = embeddings.DeterministicFakeEmbedding(size=DIM)
    client.create_collection("theirs", vectors_config=models.VectorParams(size=DIM, distance=models.Distance.COSINE))
    old = library.QdrantVectorStore(client, "theirs", model)
    old.add_texts([sentence(number) for number in range(20)], [{"source": f"p{number % 4}"} for number in range(20)])
    found = old.similarity_search("river bank", 5)
    papers = adopt(
        QdrantCollection(client, "theirs", texts="langchain"),
        model=tiny_model,
        context_size=SIZE,
        parent_key=parent_key,
    )
    assert papers.count({"source": "p1"}) == 5
    assert_as_if_built(papers, tmp_path / "fresh")
    for reader in (old, library.QdrantVectorStore(client, "theirs", model)):
        assert reader.similarity_search("river bank", 5) == found
    (late,) = old.add_texts(["flood of risk"], [{"source": "p1"}])
    assert catch_up(papers).added == 1
    assert papers.get([str(uuid.UUID(late))])[0].text == "flood of risk"
    assert old.delete([late])
    assert papers.count() == 20


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
def test_llama_index(client: QdrantClient, tiny_model: CDEModel, tmp_path: Any) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    queries = pytest.importorskip("llama_index.core.vector_stores")
    library = pytest.importorskip("llama_index.vector_stores.qdrant", reason="its store for Qdrant is not installed")

    def node(number: int, text: str) -> Any:
        source = schema.RelatedNodeInfo(node_id=f"doc {number % 4}")
        relationships = {schema.NodeRelationship.SOURCE: source} if number % 5 else {}
        return schema.TextNode(
            text=text, metadata={"n": number}, embedding=their_vector(text), relationships=relationships
        )

    old = library.QdrantVectorStore(collection_name="theirs", client=client)
    old.add([node(number, sentence(number)) for number in range(20)])
    question = queries.VectorStoreQuery(query_embedding=their_vector("river bank"), similarity_top_k=5)
    found = old.query(question).ids
    papers = adopt(
        QdrantCollection(client, "theirs", texts="llamaindex"),
        model=tiny_model,
        context_size=SIZE,
        parent_key="ref_doc_id",
    )
    assert papers.count({"ref_doc_id": "doc 1"}) == 4
    assert papers.count({"n": {"lt": 7}}) == 7
    assert_as_if_built(papers, tmp_path / "fresh")
    for reader in (old, library.QdrantVectorStore(collection_name="theirs", client=client)):
        assert reader.query(question).ids == found
    old.add([node(21, "flood of risk")])
    assert catch_up(papers).added == 1
    assert [record.text for record in papers.scroll({"n": 21, "ref_doc_id": "doc 1"})] == ["flood of risk"]
    old.delete("doc 1")
    assert papers.count() == 16


# Ids


@given(st.one_of(st.integers(0, 2**64 - 1).map(str), st.uuids().map(str)))
def test_an_id_of_qdrants_is_kept(id_: str) -> None:
    assert is_native(id_)
    assert str(native(id_)) == id_


def test_other_ids_are_not() -> None:
    for id_ in (
        "",
        "01",
        "-1",
        "+1",
        "1_0",
        " 1",
        "１",
        f"{2**64}",
        "9" * 5000,
        "A" * 32,
        f"{{{uuid_of(1)}}}",
        "\ud800",
    ):
        assert not is_native(id_)


def test_catching_up_ends_while_the_application_writes_all_the_time(
    application: Application, client: QdrantClient, tiny_model: CDEModel
) -> None:
    papers = adopted(client, tiny_model)
    written, passes = itertools.count(1000), itertools.count(2)

    def write_more(_: Progress) -> None:
        for _ in range(next(passes)):
            application.write(next(written), "another flood")

    application.write(next(written), "a flood")
    assert catch_up(papers, on_progress=write_more).added == sum(range(1, 9))  # in eight passes
    assert catch_up(papers).added == 9


# By arithmetic


class Counting:
    """The application's model behind an API, which counts what it is given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return [their_vector(text) for text in texts]


@pytest.mark.parametrize("vector", [None, "dense"])
def test_vectors_of_the_application_become_contextual_ones_without_its_model(
    client: QdrantClient, tmp_path: Path, vector: str | None
):
    application, service = Application(client, vector), Counting()
    application.fill(40)
    plain, keep = FunctionEmbedder(service, name="theirs-1"), PlainVectors(tmp_path / "theirs.sqlite")
    texts = [sentence(number) for number in range(40)]
    before = len(service.texts)
    papers = adopt(
        QdrantCollection(client, "theirs", "text", own_vectors=vector or "", plain_vectors=keep), model=plain
    )
    assert papers.count() == 40
    assert len(service.texts) - before <= CHECKED + 1  # those that are compared, and the fixed text
    expected = ArithmeticEmbedder.from_corpus(texts, model=plain)
    assert papers.embedder.fingerprint == expected.fingerprint
    ids = [record.id for record in papers.scroll()]
    stored = papers.store.vectors(ids, fingerprint=papers.embedder.fingerprint)
    np.testing.assert_allclose(stored, expected.embed_documents([record.text for record in papers.get(ids)]), atol=1e-5)
    assert application.search(sentence(7))[0][1] == sentence(7)  # its own vectors are as they were

    before = len(service.texts)
    report = papers.recontextualize(seed=1, context_size=20)
    assert report.embedded == 40
    assert len(service.texts) == before  # a new Context by arithmetic alone


def test_vectors_of_another_model_are_refused(client: QdrantClient, tmp_path: Path):
    Application(client).fill(12)
    other = FunctionEmbedder(lambda texts: [their_vector(f"{text}!") for text in texts], name="other-1")
    keep = PlainVectors(tmp_path / "theirs.sqlite")
    with pytest.raises(ContextMismatchError, match=r"Were the vectors made by this model"):
        adopt(QdrantCollection(client, "theirs", "text", own_vectors="", plain_vectors=keep), model=other)
    with pytest.raises(TypeError, match="own_vectors needs the plain embedder"):
        adopt(QdrantCollection(client, "theirs", "text", own_vectors=""))
    with pytest.raises(StoreError, match="vectors named 'absent'"):
        adopt(QdrantCollection(client, "theirs", "text", own_vectors="absent", plain_vectors=keep), model=other)
    assert not keep.path.exists()
    assert not QdrantStore(client, "theirs").exists()


def test_a_plain_embedder_adopts_without_their_vectors_too(client: QdrantClient):
    Application(client).fill(12)
    service = Counting()
    plain = FunctionEmbedder(service, name="theirs-1")
    papers = adopt(QdrantCollection(client, "theirs", texts="text"), model=plain)
    assert isinstance(papers.embedder, ContextualEmbedder)
    assert set(service.texts) >= {sentence(number) for number in range(12)}
    assert papers.search(sentence(3), k=1)[0].text == sentence(3)


@pytest.mark.parametrize("kept", [False, True])
def test_a_plain_embedder_keeps_its_batch_size_and_its_place(client: QdrantClient, tmp_path: Path, kept: bool) -> None:
    """An API has a limit of texts per call."""
    Application(client).fill(12)
    sizes: list[int] = []

    def limited(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return [their_vector(text) for text in texts]

    plain, place = FunctionEmbedder(limited, name="theirs-1", mini_batch_size=4), PlainVectors(tmp_path / "kept.sqlite")
    sizes.clear()  # of the fixed texts
    if kept:
        papers = adopt(QdrantCollection(client, "theirs", texts="text"), model=plain.with_plain_vectors(place))
    else:
        papers = adopt(QdrantCollection(client, "theirs", texts="text", plain_vectors=place), model=plain)
    assert max(sizes) <= 4
    assert place.path.exists()
    assert papers.embedder.options.mini_batch_size == 4
    sizes.clear()
    papers.recontextualize(seed=1, context_size=5)
    assert sizes == []


@pytest.mark.usefixtures("unchecked")
def test_other_sources_are_refused_by_name(client: QdrantClient) -> None:
    wrong: Any
    for wrong in (client, "theirs", None, QdrantStore(client, "theirs")):
        for call in (adopt, release):
            with pytest.raises(TypeError, match=r"Expected a .*, found .*\. "):
                call(wrong)


def test_a_function_of_0_2_catches_up(application: Application, client: QdrantClient, tiny_model: CDEModel) -> None:
    """By the name of 0.2, which had `texts`."""

    def read(payload: Mapping[str, Any]) -> Record | None:
        return Record("", payload["text"])

    papers = adopt(QdrantCollection(client, "theirs", texts=read), model=tiny_model, context_size=SIZE)
    application.write(1000, "a flood")
    with pytest.warns(DeprecationWarning, match=r"cde_rag\.adoption\.catch_up\(collection"):
        from cde_rag.collection.adopt_qdrant import catch_up as before
    assert before(papers, texts=read).added == 1
    application.write(1001, "another flood")
    assert catch_up(papers, QdrantCollection(client, "theirs", texts=read)).added == 1


def test_keeping_needs_a_place_and_whole_vectors(tmp_path: Path):
    bare = ArithmeticEmbedder.from_corpus([], model=FunctionEmbedder(Counting(), name="theirs-1"), corpus=False)
    vectors = np.array([their_vector("a river")], np.float32)
    with pytest.raises(ModelError, match="no place to keep"):
        bare.keep(["a river"], vectors)
    there = bare.with_plain_vectors(PlainVectors(tmp_path / "kept.sqlite"))
    for wrong in (vectors[:, :3], 0 * vectors, np.repeat(vectors, 2, axis=0)):
        with pytest.raises(ModelError, match="Expected vectors of shape"):
            there.keep(["a river"], wrong)
    there.keep(["a river"], 7 * vectors)  # brought to unit length
    np.testing.assert_allclose(there.embed_documents(["a river"]), vectors, atol=1e-6)

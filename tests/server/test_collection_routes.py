"""Collections over HTTP: searches are those of the library, writes are on disk when the answer comes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import openai
import pytest
from intact import damages
from served import Running, make, records, running, texts

from cde_rag import Collection
from cde_rag.collection.first_context import AT_ONCE, create_without_documents
from cde_rag.errors import StoreError
from cde_rag.field_names import field_name
from cde_rag.indexing import made_vectors
from cde_rag.server.mcp_tools import CollectionTools
from cde_rag.server.registry import ServedCollection
from cde_rag.server.text_limits import QUERY_CHARACTERS, TEXT_CHARACTERS
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.store_calls import StoreCalls


@pytest.fixture
def papers(server: Running) -> Collection:
    return server.service.registry.collection("papers").collection


def same(found: list[Any], expected: list[Any]) -> None:
    assert [hit["id"] for hit in found] == [hit.id for hit in expected]
    assert [hit["score"] for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert [hit["text"] for hit in found] == [hit.text for hit in expected]


@pytest.mark.parametrize("by", ["vectors", "bm25", "words", "hybrid"])
def test_search_is_the_librarys(server: Running, papers: Collection, by: str) -> None:
    where = {"year": {"gte": 2010}}
    for asked in ({}, {"where": where}, {"k": 3, "offset": 2}, {"score_threshold": 0.4}):
        answer = server.post("/v1/collections/papers/search", {"query": "river bank", "by": by, **asked})
        same(answer["hits"], papers.searcher(by).search("river bank", **asked))
        named = "bm25" if by == "words" else by
        assert (answer["by"], answer["fingerprint"]) == (named, server.embedder.fingerprint)
    body = {"query": "river bank", "by": by, "group_by": "book", "group_size": 2, "k": 3}
    groups = server.post("/v1/collections/papers/search", body)["groups"]
    expected = papers.searcher(by).search_groups("river bank", 3, group_by="book", group_size=2)
    assert [group["value"] for group in groups] == [group.value for group in expected]
    for group, one in zip(groups, expected, strict=True):
        same(group["hits"], one.hits)


def test_parents_come_complete(server: Running, papers: Collection) -> None:
    parents = server.post("/v1/collections/papers/search", {"query": "river", "parents": True, "k": 2})["parents"]
    expected = papers.searcher("hybrid").search_parents("river", 2)
    assert [parent["parent"] for parent in parents] == [parent.parent for parent in expected]
    assert [len(parent["passages"]) for parent in parents] == [4, 4]
    body = {"query": "river", "parents": True}
    assert server.post("/v1/collections/notes/search", body, 400)["error"]["param"] == "parents"


@pytest.mark.parametrize("more", [{}, {"group_by": "book"}, {"parents": True}])
def test_a_field_that_no_record_has_is_warned_of_each_time(server: Running, more: dict[str, Any]) -> None:
    path = "/v1/collections/papers/search"
    for _ in range(2):
        where = {"or": [{"yaer": 2003}, {"year": 1}, {"yaer": 2004}]}
        (told,) = server.post(path, {"query": "river", "where": where, **more})["warnings"]
        assert told.startswith("No record has the field 'yaer' of the filter. The commonest fields: 'book', ")
    for known in (1, {"gt": 1}):
        assert server.post(path, {"query": "river", "where": {"year": known}, **more})["warnings"] == []


def test_a_field_is_looked_for_once_in_a_search(server: Running, papers: Collection) -> None:
    body = {"query": "river", "by": "words", "where": {"yaer": 2003}}
    with mock.patch.object(papers.store, "scroll", wraps=papers.store.scroll) as scroll:
        assert len(server.post("/v1/collections/papers/search", body)["warnings"]) == 1
    assert [call.kwargs for call in scroll.call_args_list] == [{"where": {"yaer": {"exists": True}}}, {}]


def test_parallel_searches_are_those_of_the_library(server: Running, papers: Collection) -> None:
    queries = texts(50)
    expected = {query: papers.searcher("hybrid").search(query) for query in queries}

    def search(query: str) -> None:
        same(server.post("/v1/collections/papers/search", {"query": query})["hits"], expected[query])

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(search, queries))


def test_records_are_added_read_and_deleted(server: Running) -> None:
    given = [asdict(record) for record in records(8)]
    assert server.post("/v1/collections/notes/records", {"records": given})["added"] == 8
    again = server.post("/v1/collections/notes/records", {"records": given})
    assert (again["added"], again["unchanged"]) == (0, 8)
    unnamed = server.post("/v1/collections/notes/records", {"records": [{"text": "a boat on a river"}]})["ids"]
    found = server.get("/v1/collections/notes/records", params={"id": [*unnamed, "r3", "nobody"]})["records"]
    assert found[0]["text"] == "a boat on a river"
    assert found[1:] == given[3:4]
    with server.client() as client:
        assert client.delete("/v1/collections/notes/records", params={"id": ["r3", "nobody"]}).json() == {"deleted": 1}
    body = {"where": {"year": {"lt": 2002}}}
    assert server.post("/v1/collections/notes/records/delete", body) == {"deleted": 2}
    assert server.get("/v1/collections/notes")["documents"] == 6
    assert server.post("/v1/collections/notes/records/delete", {}, 400)["error"]["code"] == "invalid_value"


def test_fields_that_are_not_sent_stay_as_they_are_stored(server: Running) -> None:
    given = {"id": "kept", "text": "a boat", "title": "Boats", "metadata": {"year": 2001}}
    changes = [{}, {"title": ""}, {"metadata": {}}]
    expected = [given, {**given, "title": ""}, {**given, "title": "", "metadata": {}}]
    server.post("/v1/collections/notes/records", {"records": [given]})
    for change, found in zip(changes, expected, strict=True):
        sent = {"id": "kept", "text": "a boat", **change}
        server.post("/v1/collections/notes/records", {"records": [sent]})
        assert server.get("/v1/collections/notes/records", params={"id": "kept"})["records"] == [found]
    server.post("/v1/collections/notes/records/delete", {"ids": ["kept"]})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"text": " "}, "empty or blank"),
        ({"text": "river", "id": ""}, "id is empty"),
        ({"text": "river", "id": "r0"}, "same id"),
        ({"text": "river", "metadata": {"x": "\ud800"}}, "Unicode"),
        ({"text": "river", "metadatas": {}}, "metadatas"),
        ({"text": 3}, "text"),
        ({"text": "x" * (TEXT_CHARACTERS + 1)}, "records.1.text: expected at most 200,000 characters, found 200,001"),
        ({"text": "river", "title": "x" * (TEXT_CHARACTERS + 1)}, "expected at most"),
    ],
)
def test_a_bad_record_is_named_and_nothing_of_its_request_is_written(server: Running, bad: Any, message: str) -> None:
    good = {"text": "boat", "id": "r0"}
    error = server.post("/v1/collections/notes/records", {"records": [good, bad]}, 400)["error"]
    assert message in error["message"]
    assert server.get("/v1/collections/notes")["documents"] == 0


def test_records_that_the_queue_has_no_room_for_are_not_written(tmp_path: Path) -> None:
    """Neither those of the first part, nor metadata: of one request all is embedded before anything is written."""
    service, embedder = make(tmp_path, pending_tokens=1_000)
    with running(service) as url:
        server = Running(url, service, embedder)
        server.post("/v1/collections/notes/records", {"records": [{"id": "old", "text": "river"}]})
        changed = {"id": "old", "text": "river", "metadata": {"year": 2001}}
        given = [changed, *({"id": f"n{i}", "text": text} for i, text in enumerate(texts(511)))]
        error = server.post("/v1/collections/notes/records", {"records": given}, 413)["error"]
        assert "tokens" in error["message"]
        with service.registry.batcher.reserved(900):  # others wait
            assert server.post("/v1/collections/notes/records", {"records": given[:100]}, 429)["error"]["code"]
        found = server.get("/v1/collections/notes/records?id=old")["records"]
        assert (found[0]["metadata"], server.get("/v1/collections/notes")["documents"]) == ({}, 1)
        assert server.post("/v1/collections/notes/records", {"records": given[:100]})["added"] == 99


@pytest.mark.parametrize("secret", ["postgresql://me@10.0.0.3:5432/app/papers", "/srv/customers/papers.faiss"])
def test_an_error_of_the_store_names_no_place(server: Running, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message of ours without one is the answer; that of a driver is only logged, as is each with an address."""
    body, of_driver = {"query": "river", "by": "vectors"}, StoreError("Expected an answer, found: 10.0.0.3 is down.")
    of_driver.__cause__ = OSError("no route to 10.0.0.3")
    for failing in (StoreError(f"{secret}: expected an answer, found none."), of_driver):
        with mock.patch.object(StoreCalls, "search", side_effect=failing):
            error = server.post("/v1/collections/papers/search", body, 503)["error"]
        assert error["code"] == "store_error"
        assert error["message"] == "The store gave no answer; the server's log has the reason. Try again later."
    assert secret in caplog.text
    assert "no route to 10.0.0.3" in caplog.text
    with mock.patch.object(StoreCalls, "search", side_effect=StoreError("Another process was quicker. Search again.")):
        error = server.post("/v1/collections/papers/search", body, 503)["error"]
    assert error["message"] == "Another process was quicker. Search again."


@pytest.mark.parametrize("failing", [1, 2])
def test_a_request_is_one_write(server: Running, papers: Collection, failing: int) -> None:
    """Texts with their siblings' vectors, more than fit into one call of the store: the records are in the last."""
    many = [{"id": f"p{i}", "text": text, "metadata": {"book": "long"}} for i, text in enumerate(texts(24))]
    server.post("/v1/collections/papers/records", {"records": many})
    calls, add = list[list[str]](), StoreCalls.add

    def failing_add(state: StoreCalls, rows: Any, vectors: Any, **options: Any) -> None:
        calls.append([row.record.id for row in rows])
        if len(calls) == failing:
            raise StoreError("The disk is full.")
        add(state, rows, vectors, **options)

    new = [{"id": f"q{i}", "text": text, "metadata": {"book": "long"}} for i, text in enumerate(texts(20, start=24))]
    before = papers.count()
    with mock.patch.object(made_vectors, "LARGEST_WRITE", 30), mock.patch.object(StoreCalls, "add", failing_add):
        error = server.post("/v1/collections/papers/records", {"records": new}, 503)["error"]
    assert (error["code"], papers.count()) == ("store_error", before)
    assert server.post("/v1/collections/papers/records", {"records": new})["added"] == 20
    assert damages(papers) == []


def test_neighbours_are_of_the_same_parent(server: Running) -> None:
    for around, ids in ((0, ["r5"]), (1, ["r4", "r5", "r6"]), (9, ["r4", "r5", "r6", "r7"])):
        params = {"id": "r5", "around": around}
        found = server.get("/v1/collections/papers/neighbours", params=params)["records"]
        assert [record["id"] for record in found] == ids
    assert server.get("/v1/collections/papers/neighbours", 404, params={"id": "x"})["error"]["param"] == "id"


def test_a_search_says_that_passages_may_be_missing(tmp_path: Path) -> None:
    """Also the list of the MCP server, whose agents would take no hit for an answer."""
    service, embedder = make(tmp_path)
    store = FaissStore(tmp_path / "docs.faiss")
    half = Collection(store, create_without_documents(store, embedder.model, None, at=AT_ONCE))
    half.add(texts(70), embed="later")
    served = {"docs": ServedCollection("docs", half, has_bm25=True)}
    service.registry.collections = service.registry.collections | served
    tools = CollectionTools({"docs": half})

    def said() -> list[tuple[bool, bool]]:
        found = [server.post(f"/v1/collections/{name}/search", {"query": "river"}) for name in ("papers", "docs")]
        return [(each["unfinished"], each["pending"] > 0) for each in (*found, *tools.list_collections())]

    with running(service) as url:
        server = Running(url, service, embedder)
        assert said() == [(False, False), (True, True), (True, True)]
        half.embed_pending()  # moves it to a context of its own
        assert said() == [(False, False)] * 3


def test_another_space_is_refused(server: Running) -> None:
    body = {"query": "river", "fingerprint": "f" * 64}
    with server.client() as client:
        response = client.post("/v1/collections/papers/search", json=body)
    assert (response.status_code, response.headers["x-should-retry"]) == (409, "false")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": " "}, "blank"),
        ({"query": 3}, "query"),
        ({"k": 0}, "k"),
        ({"k": True}, "k"),
        ({"where": {"year": {"near": 3}}}, "near"),
        ({"where": [1]}, "where"),
        ({"by": "magic"}, "by"),
        ({"group_by": ""}, "group_by"),
        ({"group_by": "and"}, "'.and'"),
        ({"rerank": True}, "rerank"),
        ({"query": "x" * (QUERY_CHARACTERS + 1)}, "query: expected at most 32,000 characters, found 32,001"),
    ],
)
def test_bad_fields_of_a_search_are_named(unchanged: Running, change: Any, message: str) -> None:
    error = unchanged.post("/v1/collections/papers/search", {"query": "river"} | change, 400)["error"]
    assert message in error["message"]


def test_unknown_collections_and_routes_are_404(server: Running) -> None:
    error = server.post("/v1/collections/other/search", {"query": "river"}, 404)["error"]
    assert "notes, papers" in error["message"]
    error = server.get("/v1/nothing", 404)["error"]
    assert (error["type"], "/openapi.json" in error["message"]) == ("invalid_request_error", True)
    assert server.get("/v1/embeddings", 405)["error"]["type"] == "invalid_request_error"


def test_openais_vector_stores(server: Running, papers: Collection) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert {store.id for store in client.vector_stores.list()} == {"papers", "notes"}
        store = client.vector_stores.retrieve("papers")
        assert (store.status, store.file_counts.completed) == ("completed", 40)
        where = {"and": [{"year": {"gte": 2004}}, {"or": [{"book": {"in": ["b1", "b2"]}}, {"book": {"eq": "b7"}}]}]}
        inner = [{"type": "in", "key": "book", "value": ["b1", "b2"]}, {"type": "eq", "key": "book", "value": "b7"}]
        filters: Any = {
            "type": "and",
            "filters": [{"type": "gte", "key": "year", "value": 2004}, {"type": "or", "filters": inner}],
        }
        page = client.vector_stores.search("papers", query="river bank", max_num_results=5, filters=filters)
        expected = papers.searcher("hybrid").search("river bank", 5, where=where)
        assert [one.file_id for one in page.data] == [hit.id for hit in expected]
        assert [one.content[0].text for one in page.data] == [hit.text for hit in expected]
        assert page.data[0].attributes == dict(expected[0].metadata)
        assert page.model_dump()["warnings"] == []
        nothing = client.vector_stores.search(
            "papers", query="river", filters={"type": "eq", "key": "yaer", "value": 2003}
        )
        assert "No record has the field 'yaer'" in nothing.model_dump()["warnings"][0]
        with pytest.raises(openai.NotFoundError):
            client.vector_stores.search("other", query="river")
        with pytest.raises(openai.BadRequestError, match="filters"):
            client.vector_stores.search("papers", query="river", filters={"type": "near", "key": "a", "value": 1})  # pyright: ignore[reportArgumentType]
        with pytest.raises(openai.BadRequestError, match="expected at most 32,000 characters"):
            client.vector_stores.search("papers", query=["x" * (QUERY_CHARACTERS + 1)])
        with pytest.raises(openai.BadRequestError, match="rewrite_query"):
            client.vector_stores.search("papers", query="river", rewrite_query=True)


@pytest.mark.parametrize("key", ["author.name", "and", "not", "", "$in", "eq"])
def test_any_key_can_be_asked_for(server: Running, papers: Collection, key: str) -> None:
    papers.add(["a river by the keys"], ids=["keyed"], metadata=[{key: "Ann"}])
    try:
        name = field_name(key)
        asked = {"query": "river", "where": {name: "Ann"}}
        assert [hit["id"] for hit in server.post("/v1/collections/papers/search", asked)["hits"]] == ["keyed"]
        filters = {"type": "eq", "key": key, "value": "Ann"}
        (found,) = server.post("/v1/vector_stores/papers/search", {"query": "river", "filters": filters})["data"]
        assert found["attributes"] == {key: "Ann"}
        if key:
            (group,) = server.post("/v1/collections/papers/search", {**asked, "group_by": name})["groups"]
            assert group["value"] == "Ann"
    finally:
        papers.delete(["keyed"])


def test_no_answer_has_the_folder_that_was_indexed(server: Running, papers: Collection) -> None:
    """It is a path of the server's machine."""
    papers.add(["a river by the folder"], ids=["indexed"], metadata=[{"folder": "/home/me/docs", "book": "new"}])
    try:
        by_words = {"query": "folder", "by": "words"}
        answers = [
            server.post("/v1/collections/papers/search", by_words)["hits"][0],
            server.post("/v1/collections/papers/search", {**by_words, "group_by": "book"})["groups"][0]["hits"][0],
            server.post("/v1/collections/papers/compare", {"query": "folder"})["columns"][2]["hits"][0],
            server.get("/v1/collections/papers/records?id=indexed")["records"][0],
        ]
        for answer in answers:
            assert (answer["id"], answer["metadata"]) == ("indexed", {"book": "new"})
    finally:
        papers.delete(["indexed"])

"""Documents of a collection over HTTP: counts and values are those of its records, files are read again only from
folders that the server was started with, and judgments choose the weight of hybrid search as `cde-rag tune` does."""

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from intact import damages
from served import Running, make, running, texts
from test_uploads import ended, upload

from cde_rag import Collection, Record
from cde_rag.collection.contents import Contents
from cde_rag.readers import RecordReader
from cde_rag.server.access import ApiKeys

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
GUIDE = "# Rivers and banks\n\nA river has a bank.\n\n## Boats on a river\n\nA boat stays at the bank of a river.\n"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "guide.md").write_text(GUIDE)
    (folder / ".hidden.md").write_text("# Money\n\nA loan.\n")
    return folder


@pytest.fixture
def reading(tmp_path: Path, docs: Path) -> Generator[Running, None, None]:
    """A server that may read the folder docs again."""
    service, embedder = make(tmp_path, files=(docs.resolve(),))
    with running(service) as url:
        yield Running(url, service, embedder)


def notes(server: Running) -> Collection:
    return server.service.registry.collection("notes").collection


def test_the_overview_counts_all_records(server: Running) -> None:
    found = server.get("/v1/collections/papers/overview")
    papers = server.service.registry.collection("papers").collection
    records = list(papers.scroll())
    assert (found["passages"], found["documents"], found["complete"]) == (40, 10, True)
    fields = {field["name"]: field for field in found["fields"]}
    assert {"book", "year"} == fields.keys()
    counts = Counter(record.metadata["book"] for record in records)
    assert {one["value"]: one["passages"] for one in fields["book"]["values"]} == counts
    assert (fields["year"]["values"], fields["year"]["least"], fields["year"]["most"]) == (None, 2000, 2039)
    assert {".md", ".jsonl", ".csv"} <= set(found["suffixes"])


def test_values_of_every_kind_are_counted(server: Running) -> None:
    """Lists by element; places in files, objects, empty values and values that all records share are left out."""
    metadata: list[dict[str, Any]] = [
        {
            "tags": ["a", "b", "b"],
            "draft": True,
            "size": 1,
            "same": 1,
            "and": "x",
            "line": 3,
            "author": {"name": "Ann"},
        },
        {"tags": ["b"], "draft": False, "size": 2.5, "same": 1, "and": "", "line": 9, "author": None},
        {"tags": [], "size": "large", "same": 1},
    ]
    notes(server).add_records([Record(f"n{i}", text, "", metadata[i]) for i, text in enumerate(texts(3))])
    found = server.get("/v1/collections/notes/overview")
    fields = {field["name"]: field for field in found["fields"]}
    assert fields.keys() == {"tags", "draft", "size", ".and"}
    assert fields["tags"]["values"] == [{"value": "b", "passages": 2}, {"value": "a", "passages": 1}]
    assert {one["value"] for one in fields["draft"]["values"]} == {True, False}
    assert (fields["size"]["least"], fields["size"]["most"]) == (None, None)
    assert found["documents"] == 3
    for field in fields.values():
        for one in field["values"]:
            assert notes(server).count({field["name"]: one["value"]}) == one["passages"]
    limited = Contents.of(notes(server), most=2)
    assert (len(limited.documents), limited.complete) == (2, False)
    assert Contents.of(notes(server), most=3).complete


def test_values_that_are_numbers_ascend(server: Running) -> None:
    sizes = [10, 9, 100, 9, 2.5, -1]
    notes(server).add_records([Record(f"n{i}", text, "", {"size": sizes[i]}) for i, text in enumerate(texts(6))])
    (field,) = server.get("/v1/collections/notes/overview")["fields"]
    assert [one["value"] for one in field["values"]] == sorted(set(sizes))


def test_documents_are_listed_found_and_deleted(server: Running, docs: Path) -> None:
    notes(server).add_records(RecordReader(docs))
    notes(server).add_records([Record("alone", "river bank")])
    upload_notes = server.client()
    with upload_notes as client:
        sent = client.post("/v1/collections/notes/files", params={"filename": "more.txt"}, content=b"A river.")
    ended(server, sent.json())
    found = server.get("/v1/collections/notes/documents")
    assert [one["name"] for one in found["data"]] == ["alone", "docs/guide.md", "uploads/more.txt"]
    assert found["total"] == 3
    alone, guide, more = found["data"]
    passages = notes(server).count({"source": "docs/guide.md"})
    assert (guide["passages"], guide["title"], guide["where"]) == (
        passages,
        "Rivers and banks",
        {"source": "docs/guide.md"},
    )
    assert (guide["can_reindex"], guide["modified"], guide["uploaded"]) == (False, None, None)
    assert (alone["where"], alone["passages"]) == (None, 1)
    assert more["uploaded"].startswith("20")
    assert [one["name"] for one in server.get("/v1/collections/notes/documents?q=RIVERS")["data"]] == ["docs/guide.md"]
    assert [one["name"] for one in server.get("/v1/collections/notes/documents?limit=1&offset=1")["data"]] == [
        "docs/guide.md"
    ]
    server.post("/v1/collections/notes/records/delete", {"where": guide["where"]})
    assert notes(server).count() == 2
    assert str(docs.parent) not in str(found)  # no path of the machine


def test_rows_are_listed_by_their_place_with_title_or_words(server: Running, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("title,text\n" + "".join(f"{'Part' * (n % 2)},a boat {n}\n" for n in range(12)))
    reader = RecordReader(tmp_path / "rows.csv")
    notes(server).add_records(reader)
    found = server.get("/v1/collections/notes/documents")["data"]
    assert [one["place"].rpartition("rows.csv, ")[2] for one in found] == [f"row {n}" for n in range(2, 14)]
    assert [one["label"] for one in found[:2]] == ["a boat 0", "Part"]
    assert all(one["has_digest"] for one in found)
    (one,) = server.get("/v1/collections/notes/documents?q=ROW 13")["data"]
    assert notes(server).get([one["name"]])[0].text == "a boat 11"


def test_examples_are_headings_that_read_like_queries(server: Running, docs: Path) -> None:
    assert server.get("/v1/collections/notes/overview")["examples"] == []
    notes(server).add_records(RecordReader(docs))
    examples = server.get("/v1/collections/notes/overview")["examples"]
    assert examples
    assert set(examples) <= {"Rivers and banks", "Boats on a river"}


def test_a_document_is_read_again(reading: Running, docs: Path) -> None:
    notes(reading).add_records(RecordReader(docs))
    (docs / "guide.md").write_text("# Rivers and banks\n\nA delta.\n")
    document = reading.get("/v1/collections/notes/documents")["data"][0]
    assert document["can_reindex"]
    assert document["modified"].startswith("20")
    path = "/v1/collections/notes/documents/reindex"
    job = ended(reading, reading.post(path, {"document": "docs/guide.md"}, 202))
    assert (job["status"], job["subject"], job["kind"]) == ("succeeded", "docs/guide.md", "reindex")
    assert job["result"]["source"] == "docs/guide.md"
    assert ["A delta." in record.text for record in notes(reading).scroll()] == [True]
    assert job["ended"] >= job["started"]
    (docs / "guide.md").write_text("")
    job = ended(reading, reading.post(path, {"document": "docs/guide.md"}, 202))
    assert (job["status"], "holds no text" in job["error"]) == ("failed", True)
    assert notes(reading).count() == 1
    (docs / "guide.md").unlink()
    assert reading.post(path, {"document": "docs/guide.md"}, 400)["error"]["code"] == "not_readable"
    assert reading.post(path, {"document": "nobody"}, 404)["error"]["code"] == "document_not_found"
    assert damages(notes(reading)) == []


@pytest.mark.parametrize("place", ["secret.md", "docs/.hidden.md", "docs/../secret.md", "docs/link.md"])
def test_a_client_cannot_make_the_server_read_other_files(
    reading: Running, docs: Path, tmp_path: Path, place: str
) -> None:
    """Metadata name any path that a client likes; hidden files and links to elsewhere are no files of the folder."""
    (tmp_path / "secret.md").write_text("# Secret\n\nmoney\n")
    (docs / "link.md").symlink_to(tmp_path / "secret.md")
    source = str(tmp_path / place)
    record = {"id": f"{source}#0", "text": "river", "metadata": {"source": source}}
    reading.post("/v1/collections/notes/records", {"records": [record]})
    document = reading.get("/v1/collections/notes/documents")["data"][0]
    assert (document["can_reindex"], document["modified"]) == (False, None)
    error = reading.post("/v1/collections/notes/documents/reindex", {"document": source}, 400)["error"]
    assert error["code"] == "not_readable"
    assert "money" not in str([record.text for record in notes(reading).scroll()])


def test_neighbours_are_of_the_same_document_in_its_order(server: Running, docs: Path) -> None:
    """Also in a collection without parents, and if a passage was written again."""
    reader = RecordReader(docs, max_characters=40)
    notes(server).add_records(reader)
    (first, second, *_) = notes(server).scroll()
    notes(server).delete([second.id])
    notes(server).add_records([second])
    found = server.get("/v1/collections/notes/neighbours", params={"id": first.id, "around": 1})["records"]
    assert [record["id"] for record in found] == [first.id, second.id]


def test_without_folders_no_file_is_read_again(server: Running, docs: Path) -> None:
    notes(server).add_records(RecordReader(docs))
    error = server.post("/v1/collections/notes/documents/reindex", {"document": "docs/guide.md"}, 400)["error"]
    assert "--files" in error["message"]


def test_documents_need_the_key(tmp_path: Path) -> None:
    service, embedder = make(tmp_path, keys=ApiKeys(["secret"]))
    with running(service) as url:
        server = Running(url, service, embedder)
        for path in ("overview", "documents"):
            server.get(f"/v1/collections/papers/{path}", 401)
        server.post("/v1/collections/papers/documents/reindex", {"document": "b0"}, 401)
        server.post("/v1/collections/papers/tune", {"judgments": [{"query": "river"}]}, 401)


def test_a_file_that_is_indexed_after_its_upload_is_one_document(server: Running, docs: Path) -> None:
    """Also if it was edited since; another file of the same name leaves the upload alone."""
    papers = server.service.registry.collection("papers").collection
    upload(server, "guide.md", GUIDE.encode())
    (docs / "other").mkdir()
    (docs / "guide.md").rename(docs / "other/guide.md")
    (docs / "guide.md").write_text("# Money\n\nA loan of money.\n")
    (docs / "other/guide.md").write_text(GUIDE + "\n## Fish\n\nA fish in the delta.\n")
    papers.add_records(RecordReader(docs / "guide.md"))
    assert papers.count({"source": "uploads/guide.md"}) > 0
    papers.add_records(RecordReader(docs))
    sources = {record.metadata["source"] for record in papers.scroll({"source": {"exists": True}})}
    assert sources == {"docs/guide.md", "docs/other/guide.md"}
    assert damages(papers) == []


def test_judgments_choose_the_weight_as_the_command_does(server: Running) -> None:
    """A weight whose gain is sure is stored, and this server's searches have it at once."""
    served = server.service.registry.collection("papers")
    served.collection.store.update_settings({"hybrid_weight": 0.0})
    server.service.registry.reopen("papers")
    by_words = [{"query": "river bank", "right": ["r0"]}]  # of which twenty are needed
    few = ended(server, server.post("/v1/collections/papers/tune", {"judgments": by_words * 30}, 202))
    assert "at least 20" in few["error"]
    unknown = ended(
        server, server.post("/v1/collections/papers/tune", {"judgments": [{"query": "x", "right": ["y"]}]}, 202)
    )
    assert "found 'y'" in unknown["error"]
    best = [
        {"query": f"{text} {number}", "right": [served.collection.search(f"{text} {number}", 1, by="vectors")[0].id]}
        for number, text in enumerate(texts(30, start=200))
    ]
    job = ended(server, server.post("/v1/collections/papers/tune", {"judgments": best}, 202))
    assert job["status"] == "succeeded", job
    found = job["result"]
    assert (found["queries"], found["current_weight"]) == (30, 0.0)
    assert found["written"] == (found["gain"]["low"] > 0)
    assert found["written"], found
    collection = server.service.registry.collection("papers").collection
    assert collection.inspect().hybrid_weight == found["weight"] > 0
    for query in ("river money", "fish"):
        hits = server.post("/v1/collections/papers/search", {"query": query})["hits"]
        expected = collection.searcher("hybrid", weight=found["weight"]).search(query)
        assert [hit["id"] for hit in hits] == [hit.id for hit in expected]


def test_hits_have_the_words_that_match(server: Running, docs: Path) -> None:
    """Whatever their endings, and without those of the question itself; other searches are refused the field."""
    notes(server).add_records(RecordReader(docs))
    body = {"query": "How do I get boats to the banks?", "matches": True}
    hits = server.post("/v1/collections/notes/search", body)["hits"]
    found = {word.lower() for hit in hits for word in hit["matches"]}
    assert {"boat", "boats", "bank", "banks"} & found
    assert found <= {"boat", "boats", "bank", "banks"}
    assert all({"section", "place"} <= hit.keys() for hit in hits)
    assert "matches" not in server.post("/v1/collections/notes/search", {"query": "boats"})["hits"][0]
    error = server.post("/v1/collections/notes/search", {**body, "group_by": "source"}, 400)["error"]
    assert "matches" in error["message"]


@pytest.mark.parametrize(
    ("name", "content", "counts"),
    [
        ("rows.jsonl", b'{"id": "a", "text": "river", "book": "b1"}\n{"id": "b", "text": ""}\n', (1, 1)),
        ("rows.csv", b"id,text,book\na,river,b1\nb,bank,b2\n", (2, 0)),
        ("code.py", b"def river():\n    return 'bank'\n", (1, None)),
        ("page.org", b"* River\n\nA bank.\n", (1, None)),
    ],
)
def test_every_format_of_the_command_can_be_sent(
    server: Running, name: str, content: bytes, counts: tuple[int, int | None]
) -> None:
    job = upload(server, name, content)
    assert job["status"] == "succeeded", job
    assert (job["result"]["added"], job["result"].get("skipped")) == counts
    assert upload(server, name, content)["result"]["unchanged"] == counts[0]


def test_rows_say_where_they_stand_and_name_no_folder_of_the_server(server: Running, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/own.csv").write_text("id,text\nown,river\n")
    server.service.registry.collection("papers").collection.add_records(RecordReader(tmp_path / "docs"))
    assert upload(server, "sent.jsonl", b'\n{"id": "sent", "text": "river bank"}\n')["status"] == "succeeded"
    body = {"query": "river", "by": "bm25", "where": {"table.row": 2}, "matches": True}
    hits = server.post("/v1/collections/papers/search", body)["hits"]
    fields = {one["name"]: one["values"] for one in server.get("/v1/collections/papers/overview")["fields"]}
    files = ("docs/own.csv", "uploads/sent.jsonl")  # to filter by, since rows have no source
    assert fields["table.file"] == [{"value": name, "passages": 1} for name in files]
    assert {hit["id"]: (hit["metadata"]["table"], hit["place"]) for hit in hits} == {
        "own": ({"file": "docs/own.csv", "row": 2}, "row 2"),
        "sent": ({"file": "uploads/sent.jsonl", "row": 2}, "row 2"),
    }


def test_a_table_without_rows_is_named_as_the_client_does(server: Running) -> None:
    for content in (b"", b"[1]", b'{"id": 1}\n'):
        error = upload(server, "rows.jsonl", content)["error"]
        assert "rows.jsonl" in error
        assert "/" not in error.split("(found")[0]


def test_a_path_that_no_file_system_has_hides_no_document(reading: Running, docs: Path) -> None:
    """One record with a NUL in its source, of any client, would take the list of documents from all."""
    (docs / "loop.md").symlink_to("loop.md")
    sources = ["/a\0b", f"{docs}/{'x' * 300}.md", f"{docs}/loop.md"]
    records = [{"id": f"{source}#0", "text": "river", "metadata": {"source": source}} for source in sources]
    reading.post("/v1/collections/notes/records", {"records": records})
    found = reading.get("/v1/collections/notes/documents")["data"]
    assert {one["name"]: one["can_reindex"] for one in found} == dict.fromkeys(sources, False)
    error = reading.post("/v1/collections/notes/documents/reindex", {"document": sources[1]}, 400)["error"]
    assert error["code"] == "not_readable"


def test_a_boolean_is_another_value_than_its_number(server: Running) -> None:
    flags: list[Any] = [True, 1, 1, False, 0, "1"]
    notes(server).add_records([Record(f"n{i}", text, "", {"flag": flags[i]}) for i, text in enumerate(texts(6))])
    (field,) = server.get("/v1/collections/notes/overview")["fields"]
    found = [(type(one["value"]), one["value"], one["passages"]) for one in field["values"]]
    assert sorted(found, key=str) == sorted(
        [(bool, True, 1), (int, 1, 2), (bool, False, 1), (int, 0, 1), (str, "1", 1)], key=str
    )
    for one in field["values"]:
        assert notes(server).count({"flag": one["value"]}) == one["passages"]

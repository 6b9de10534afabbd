"""Files that are sent to a collection, judgments as a retrieval set, and drift: what they write is the library's."""

import io
import json
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intact import damages
from served import Running

from cde_rag import Collection, FunctionEmbedder, Record
from cde_rag.errors import CorpusError, ModelError
from cde_rag.evaluation.beir import read_beir
from cde_rag.readers import Fields, RecordReader, conversion, parquet_check
from cde_rag.server.token_batcher import BatchedEmbedder, TokenBatcher
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
GUIDE = "# Rivers\n\nA river has a bank on each side.\n\n## Boats\n\nA boat stays at the bank of a river.\n"


def ended(server: Running, job: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (found := server.get(f"/v1/jobs/{job['id']}"))["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def upload(
    server: Running, name: str, content: bytes, code: int = 202, *, fields: Sequence[str] = ()
) -> dict[str, Any]:
    with server.client() as client:
        params: Any = {"filename": name, "fields": list(fields)}
        response = client.post("/v1/collections/papers/files", params=params, content=content)
    assert response.status_code == code, response.text
    return ended(server, response.json()) if code == 202 else response.json()["error"]


def test_a_file_is_split_added_and_replaced(server: Running) -> None:
    papers = server.service.registry.collection("papers").collection
    job = upload(server, "guide.md", GUIDE.encode())
    found = list(papers.scroll({"source": "uploads/guide.md"}))
    assert job["status"] == "succeeded", job
    assert job["result"]["added"] == len(found) >= 1
    assert {record.metadata["book"] for record in found} == {"uploads/guide.md"}
    assert all(record.title == "Rivers" and "folder" not in record.metadata for record in found)
    assert "".join(record.text for record in found).replace("\n", "") in GUIDE.replace("\n", "")
    longer = GUIDE + "\n\n".join(f"## Part {i}\n\n" + "A loan from a bank. " * 30 for i in range(4))
    more = upload(server, "guide.md", longer.encode())["result"]
    assert more["added"] > 0
    fewer = upload(server, "guide.md", GUIDE.encode())["result"]
    assert fewer["deleted"] == more["added"]
    assert list(papers.scroll({"source": "uploads/guide.md"})) == found
    assert damages(papers) == []


def test_an_upload_is_read_by_the_fields_that_the_collection_keeps(server: Running, tmp_path: Path) -> None:
    papers = server.service.registry.collection("papers").collection
    (tmp_path / "tickets.csv").write_text("subject,body\nBoats,a boat\n")
    papers.add_records(RecordReader(tmp_path / "tickets.csv", fields=Fields(text="body", title="subject")))
    report = upload(server, "more.csv", b"subject,body\nBanks,a bank\n")["result"]
    assert report["added"] == 1
    stored = papers.scroll({"table.file": {"contains": "more.csv"}})
    assert [(record.title, record.text) for record in stored] == [("Banks", "a bank")]


def test_an_upload_replaces_the_one_document_of_its_name(server: Running, tmp_path: Path) -> None:
    """Whichever way it was indexed; an upload of a name that several have is another one, and they are named."""
    papers = server.service.registry.collection("papers").collection
    for name, text in (("docs/guide.md", GUIDE * 9), ("docs/my-guide.md", GUIDE), ("more/guide.md", GUIDE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    papers.add_records(RecordReader(tmp_path / "docs"))
    report = upload(server, "guide.md", GUIDE.encode())["result"]
    assert (report["source"], report["doubles"], report["added"]) == ("docs/guide.md", [], 0)
    assert report["deleted"] > 0
    replaced = list(papers.scroll({"source": {"contains": "/guide.md"}}))
    assert [record.id for record in replaced] == [f"docs/guide.md#{number}" for number in range(len(replaced))]
    assert "".join(record.text for record in replaced).replace("\n", "") == GUIDE.replace("\n", "")
    folders = {record.metadata["folder"] for record in replaced}
    assert folders == {str(tmp_path / "docs")}  # so that the folder is known when it is read again
    papers.add_records(RecordReader(tmp_path / "more/guide.md"))
    report = upload(server, "guide.md", GUIDE.encode())["result"]
    assert (report["source"], report["deleted"]) == ("uploads/guide.md", 0)
    assert report["doubles"] == sorted(["docs/guide.md", str(tmp_path / "more/guide.md")])
    assert damages(papers) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../x.md", b"river", "without folders"),
        ("a/b.md", b"river", "without folders"),
        (".md", b"river", "Markdown, text, HTML, PDF, Word, PowerPoint, notebooks, source code, JSON, JSONL, CSV, TSV"),
        ("x.exe", b"river", "GET /v1/collections/NAME/overview lists their suffixes"),
        ("x.xlsx", b"river", "as CSV"),
        ("x\n.md", b"river", "without folders"),
        ("🌊" * 60 + ".md", b"river", "at most 200 bytes"),
    ],
)
def test_names_that_are_no_file_are_refused(unchanged: Running, name: str, content: bytes, message: str) -> None:
    assert message in upload(unchanged, name, content, 400)["message"]


ROWS = [
    {"ticket": "T-1", "subject": "Flood", "body": "The river, and its bank, are under water."},
    {"ticket": "T-2", "body": "A boat has no loan.", "minutes": 20},
]


def table(suffix: str) -> bytes:
    """Return ROWS as a file; in the CSV the second row's subject, and the first one's minutes, are empty cells."""
    if suffix == ".csv":
        head = "ticket;subject;body;minutes"
        lines = (";".join(str(row.get(name, "")) for name in head.split(";")) for row in ROWS)
        return "\n".join([head, *lines]).encode()
    if suffix == ".jsonl":
        return "\n".join(map(json.dumps, ROWS)).encode()
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    written = io.BytesIO()
    parquet.write_table(
        pa.Table.from_pylist(
            ROWS,
            pa.schema([(n, pa.string()) for n in ("ticket", "subject", "body")]).append(
                pa.field("minutes", pa.int64())
            ),
        ),
        written,
    )
    return written.getvalue()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_without_a_column_text_is_added_by_the_columns_that_it_has(server: Running, suffix: str) -> None:
    """The job that failed lists them, and the same file with names among them is added."""
    papers = server.service.registry.collection("papers").collection
    job = upload(server, f"tickets{suffix}", table(suffix))
    assert job["status"] == "failed"
    assert "expected texts in a column 'text', found the columns 'ticket'" in job["error"]
    columns = {one["name"]: one["example"] for one in job["result"]["columns"]}
    assert columns == {"ticket": "T-1", "subject": "Flood", "body": ROWS[0]["body"], "minutes": "20"}
    fields = ["id=ticket", "text=body", "title=subject"]
    added = upload(server, f"tickets{suffix}", table(suffix), fields=fields)["result"]
    assert (added["added"], added["skipped"]) == (2, 0)
    first, second = papers.get(["T-1", "T-2"])
    assert (first.title, first.text, second.title, second.text) == ("Flood", ROWS[0]["body"], "", ROWS[1]["body"])
    assert (first.metadata["table"]["row"], second.metadata["minutes"]) == (2 if suffix == ".csv" else 1, 20)
    later = upload(server, f"tickets{suffix}", table(suffix))["result"]
    assert (later["unchanged"], later["skipped"]) == (2, 0), "the collection keeps the fields"
    again = upload(server, f"tickets{suffix}", table(suffix), fields=["text=subject", "id=ticket"])["result"]
    assert (again["replaced"], again["skipped"]) == (1, 1)  # the second row has no subject
    assert papers.get(["T-1"])[0].text == "Flood"
    assert damages(papers) == []


def test_an_array_of_objects_is_read_as_rows(server: Running) -> None:
    rows = [{"id": "x1", "text": "A river."}, {"id": "x2", "text": "A bank.", "year": 2020}]
    job = upload(server, "rows.json", json.dumps([*rows, 7], indent=2).encode())
    assert (job["result"]["added"], job["result"]["skipped"]) == (2, 1), job
    assert job["result"]["reasons"] == ["rows.json, row 3: expected objects in the array, found a number"]
    found = server.service.registry.collection("papers").collection.get(["x1", "x2"])
    assert [record.text for record in found] == ["A river.", "A bank."]
    assert found[1].metadata["table"] == {"file": "uploads/rows.json", "row": 2}
    assert "not JSON: Expecting value" in upload(server, "rows.json", b'[{"text": "x"},]')["error"]
    named = upload(server, "named.json", b'[{"body": "A flood."}]', fields=["text=body"])
    assert named["result"]["added"] == 1


def test_a_file_that_is_not_utf_8_is_read_as_the_command_reads_it(server: Running) -> None:
    """CSV as a spreadsheet program saves it by default; the result names it."""
    papers = server.service.registry.collection("papers").collection
    rows = upload(server, "cafe.csv", "id;text\n1;Café\n".encode("cp1252"))["result"]
    text = upload(server, "cafe.txt", "A café at the river.".encode("cp1252"))["result"]
    plain = upload(server, "plain.txt", "A café at the bank.".encode())["result"]
    assert [one["guessed"] for one in (rows, text, plain)] == [["cafe.csv"], ["cafe.txt"], []]
    assert papers.get(["1"])[0].text == "Café"
    assert [record.text for record in papers.scroll({"source": "uploads/cafe.txt"})] == ["A café at the river."]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("a.csv", ["body"], "found 'body'"),
        ("a.csv", ["text="], "found 'text='"),
        ("a.csv", ["parent=book"], "found 'parent=book'"),
        ("a.csv", ["text=a", "text=b"], "found 'text=b'"),
        ("a.csv", ["text=a", "title=a"], "found 'title=a'"),
        ("a.md", ["text=a"], "expected a table, found a.md"),
    ],
)
def test_columns_that_no_table_can_have_are_refused(
    unchanged: Running, name: str, fields: Sequence[str], message: str
) -> None:
    refused = upload(unchanged, name, b"a,b\nx,y\n", 400, fields=fields)
    assert message in refused["message"]
    assert refused["param"] == "fields"


@pytest.mark.parametrize("content", [b"\xff\xfe\xfa", b"", b" \n"])
def test_a_file_without_text_fails_and_changes_nothing(server: Running, content: bytes) -> None:
    """The passages of the file before stay, and the reason names the file as the client does."""
    upload(server, "x.md", GUIDE.encode())
    before = server.get("/v1/collections/papers")["documents"]
    assert before > 40
    job = upload(server, "x.md", content)
    assert job["status"] == "failed"
    assert job["error"].startswith("x.md")
    assert server.get("/v1/collections/papers")["documents"] == before


@pytest.mark.parametrize("field", ["query", "right", "wrong"])
def test_judgments_that_no_file_can_hold_are_refused(server: Running, field: str) -> None:
    judged = {"query": "river", "right": ["r1"], "wrong": ["r2"]}
    judged[field] = "\ud800" if field == "query" else ["\ud800"]
    found = server.post("/v1/collections/papers/judgments", {"judgments": [judged]}, 400)
    assert "surrogate" in found["error"]["message"]


def test_judgments_are_a_set_that_evaluate_reads(server: Running, tmp_path: Path) -> None:
    judged = [
        {"query": "river\tbank", "right": ["r1", "r2"], "wrong": ["r3"]},
        {"query": "loan", "wrong": ["r4"]},
        {"query": "boat", "right": ["r5"]},
    ]
    with server.client() as client:
        response = client.post("/v1/collections/papers/judgments", json={"judgments": judged})
    assert response.status_code == 200, response.text
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        archive.extractall(tmp_path / "judged")
    found = read_beir(tmp_path / "judged")
    assert found.queries == ("river\tbank", "boat")
    assert [dict(one) for one in found.judgments] == [{"r1": 1, "r2": 1}, {"r5": 1}]
    assert len(found.corpus.ids) == 40
    assert found.corpus.parents is not None
    assert set(found.corpus.parents) == {f"b{i}" for i in range(10)}
    error = server.post("/v1/collections/papers/judgments", {"judgments": judged[1:2]}, 400)["error"]
    assert "Mark one first" in error["message"]


def test_vectors_that_passages_wait_for_are_made_by_a_job(server: Running) -> None:
    """Those of an interrupted `cde-rag index`; the job makes the vectors that `add` makes at once."""
    papers = server.service.registry.collection("papers").collection
    nothing = ended(server, server.post("/v1/collections/papers/embed-pending", {}, 202))
    assert nothing["result"] == {"embedded": 0, "truncated": 0, "pending": 0}
    more = [Record(f"more{number}", f"river bank {'boat ' * number}", "", {"book": "more"}) for number in range(6)]
    papers.add_records(more, embed="later")
    assert server.get("/ready")["pending"] == 6
    job = ended(server, server.post("/v1/collections/papers/embed-pending", {}, 202))
    assert (job["status"], job["result"]) == ("succeeded", {"embedded": 6, "truncated": 0, "pending": 0})
    assert (job["done"], job["total"]) == (46, 46)
    assert server.get("/ready")["pending"] == 0
    assert damages(papers) == []


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_drift_is_the_librarys(server: Running, tmp_path: Path) -> None:
    papers = server.service.registry.collection("papers").collection
    found = ended(server, server.post("/v1/collections/papers/drift", {}, 202))
    assert found["status"] == "succeeded", found
    expected = Collection(papers.store, server.embedder).drift()
    assert found["result"]["gain"] == pytest.approx(expected.gain, abs=1e-3)
    assert found["result"]["pays"] == expected.pays()


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_a_served_collection_measures_drift_and_moves_as_any_other(server: Running) -> None:
    """The collection itself, whose embedder goes through the server's batcher, not the copy that jobs make."""
    papers = server.service.registry.collection("papers").collection
    plain = Collection(papers.store, server.embedder)
    found, expected = papers.drift(context_size=16), plain.drift(context_size=16)
    assert found.candidate.fingerprint == expected.candidate.fingerprint
    assert (found.gain, found.neighbours_kept) == pytest.approx((expected.gain, expected.neighbours_kept), abs=1e-3)
    assert found.probes == 40
    papers.recontextualize(context_size=16)
    assert papers.embedder.fingerprint == found.candidate.fingerprint
    assert isinstance(papers.embedder, BatchedEmbedder)  # later searches still share batches
    papers.rollback()
    assert papers.embedder.fingerprint == server.embedder.fingerprint
    assert isinstance(papers.embedder, BatchedEmbedder)
    assert damages(papers) == []


def test_drift_of_a_served_plain_model_is_refused_with_its_name(tmp_path: Path) -> None:
    plain = FunctionEmbedder(lambda texts: np.tile(np.eye(4, dtype="f4")[0], (len(texts), 1)), name="same-1")
    notes = Collection.create(FaissStore(tmp_path / "notes.faiss"), plain)
    notes.add(["river", "bank"])
    batcher = TokenBatcher()
    notes.embedder = BatchedEmbedder(plain, batcher)
    with pytest.raises(ModelError, match="same-1 is a plain model"):
        notes.drift()
    batcher.close()


def test_the_bytes_of_a_folder_are_told(server: Running, tmp_path: Path) -> None:
    described = server.get("/v1/collections/papers")
    assert described["disk_bytes"] is None  # its folder was not told
    assert described["has_bm25"] is described["has_words"] is True
    served = replace(server.service.registry.collection("papers"), folder=tmp_path / "papers.faiss")
    files = [path for path in (tmp_path / "papers.faiss").rglob("*") if path.is_file()]
    assert served.disk_bytes == sum(path.stat().st_size for path in files) > 0


def test_a_parquet_file_that_would_fill_the_memory_is_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text that all rows refer to: some kilobytes for sixteen million characters."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")

    def file(texts: list[str]) -> bytes:
        written = io.BytesIO()
        parquet.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), written)
        return written.getvalue()

    full = file(["a river " * 1000] * 2000)
    assert len(full) < 50_000
    with monkeypatch.context() as patch:
        patch.setattr(parquet_check, "CHARACTERS", 2**20)
        job = upload(server, "rows.parquet", full)
        assert (job["status"], "rows.parquet takes more than 1,048,576 characters" in job["error"]) == ("failed", True)
    assert upload(server, "rows.parquet", file(["a river", "a bank"]))["result"]["added"] == 2
    assert "not a readable Parquet file" in upload(server, "rows.parquet", b"PAR1")["error"]


def test_a_parquet_file_is_read_within_a_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet_check, "MEMORY", 2**27)
    parquet.write_table(pa.table({"text": ["a river " * 2**15] * 1024}), tmp_path / "rows.parquet")
    if conversion.taken():  # Linux alone has such limits
        with pytest.raises(CorpusError, match="128 MiB of memory"):
            parquet_check.check_parquet(tmp_path / "rows.parquet")

"""A text document that is read again replaces its passages: in the end the collection is the one of a fresh index."""

import json
import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from intact import damages
from qdrant_client import QdrantClient
from test_writing import Embedder
from tiny import WORDS, tiny_cde_model

from cde_rag import Collection, ContextualEmbedder, Record
from cde_rag.errors import CorpusError, StoreError
from cde_rag.indexing.replacement import missing_documents, unread_passages
from cde_rag.indexing.upsert import AddReport
from cde_rag.readers import Fields, RecordReader, documents
from cde_rag.records import Row
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreCalls

pytestmark = pytest.mark.filterwarnings(
    "ignore::cde_rag.errors.TruncationWarning", "ignore::cde_rag.errors.SmallContextWarning"
)


@pytest.fixture(scope="module")
def bound() -> ContextualEmbedder:
    texts = [" ".join(random.Random(number).choices(WORDS, k=6)) for number in range(64)]
    return ContextualEmbedder.from_corpus(texts, model=tiny_cde_model(), context_size=64)


@pytest.fixture
def embedder(bound: ContextualEmbedder) -> Embedder:
    found = Embedder(bound.model, bound.context)
    found.embedded = []
    return found


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    for name, parts in (("a.md", 9), ("guide/b.md", 4), ("guide/c.txt", 3)):
        write(tmp_path / "docs" / name, parts)
    return tmp_path / "docs"


def write(path: Path, parts: int, seed: int = 0) -> None:
    """Write a document of so many passages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dice = random.Random(f"{path.name} {seed}")
    texts = [f"{path.stem} {number} {' '.join(dice.choices(WORDS, k=20)):.40}." for number in range(parts)]
    path.write_text("\n\n".join(texts))


def reader(*sources: Path, skip_bad: bool = False) -> RecordReader:
    return RecordReader(*sources, max_characters=60, skip_bad=skip_bad)


def created(store: Store, embedder: ContextualEmbedder, parent_key: str | None = "source") -> Collection:
    return Collection.create(store, embedder, parent_key=parent_key)


def contents(collection: Collection) -> tuple[dict[str, Row], np.ndarray]:
    rows = {row.record.id: row for row in collection.store.scroll()}
    return rows, collection.store.vectors(sorted(rows), fingerprint=collection.embedder.fingerprint)


def check_is_fresh(collection: Collection, *sources: Path) -> None:
    """The collection has the ids, texts, metadata, digests and vectors of a new one in the same context."""
    check_holds(collection, fresh_contents(collection, *sources))


def fresh_contents(collection: Collection, *sources: Path) -> tuple[dict[str, Row], np.ndarray]:
    store = FaissStore(sources[0].parent / "fresh.faiss")
    with created(store, collection.embedder, collection.parent_key) as fresh:  # type: ignore[arg-type]
        fresh.add_records(reader(*sources))
        made = contents(fresh)
    shutil.rmtree(sources[0].parent / "fresh.faiss")
    return made


def check_holds(collection: Collection, made: tuple[dict[str, Row], np.ndarray]) -> None:
    (found, vectors), (expected, theirs) = contents(collection), made
    assert found == expected
    np.testing.assert_allclose(vectors, theirs, atol=1e-5)
    assert damages(collection) == []


def test_a_shortened_document_loses_its_old_passages_and_is_embedded_once(
    docs: Path, tmp_path: Path, embedder: Embedder
):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        assert papers.add_records(reader(docs)) == AddReport(added=16)
        write(docs / "a.md", 3, seed=1)
        planned = papers.add_records(reader(docs), dry_run=True)
        embedder.embedded.clear()
        assert papers.add_records(reader(docs)) == AddReport(replaced=3, unchanged=7, deleted=6)
        assert len(embedder.embedded) == planned.embedded == 3  # with the siblings of now, once
        assert planned.deleted == 6
        check_is_fresh(papers, docs)
        embedder.embedded.clear()
        assert papers.add_records(reader(docs)) == AddReport(unchanged=10)
        assert embedder.embedded == []


def test_an_unchanged_folder_is_compared_without_reading_rows_twice(docs: Path, tmp_path: Path, embedder: Embedder):
    """What was written by this call or is unchanged is counted, not read: as many rows as for plain records."""
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        read: list[int] = []
        for records in (list(reader(docs)), reader(docs)):
            with mock.patch.object(StoreCalls, "scroll", autospec=True, side_effect=StoreCalls.scroll) as scroll:
                papers.add_records(records)
            asked = [call.kwargs["where"] for call in scroll.call_args_list]
            read.append(sum(papers.count(where) for where in asked if "folder" not in where))
        assert read == [16, 16]


@pytest.mark.parametrize("parent_key", ["source", None])
@pytest.mark.parametrize(("kind", "seed"), [("faiss", 0), ("faiss", 1), ("faiss", 2), ("qdrant", 3)])
def test_after_any_edits_a_collection_is_that_of_a_fresh_index(
    docs: Path, tmp_path: Path, embedder: Embedder, kind: str, parent_key: str | None, seed: int
):
    dice = random.Random(seed)
    store = FaissStore(tmp_path / "p") if kind == "faiss" else QdrantStore(QdrantClient(":memory:"), "p")
    names = ["a.md", "guide/b.md", "guide/c.txt", "d.md", "guide/deep/e.md"]
    with created(store, embedder, parent_key) as papers:
        papers.add_records([Record("row", "the river", metadata={"source": "docs/a.md"})])  # is no passage of it
        for _ in range(8):
            for name in dice.sample(names, 2):
                if dice.random() < 0.2 and (docs / name).exists() and name != "guide/b.md":
                    (docs / name).unlink()
                else:
                    write(docs / name, dice.randint(1, 8), dice.randint(0, 1))
            some = [docs, docs / "guide", *(path for path in docs.rglob("*.*") if path.is_file())]
            papers.add_records(reader(*dice.sample(some, dice.randint(1, 2))))
        papers.add_records(reader(docs))
        gone = unread_passages(papers.store, reader(docs))
        assert missing_documents(papers.store, reader(docs)) == sorted(
            {source for source in gone.values() if source != "row"}, key=list(gone.values()).index
        )
        assert gone["row"] == "row"
        papers.delete(list(gone))
        check_is_fresh(papers, docs)


def test_ids_of_version_0_2_are_replaced(
    docs: Path, tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
):
    """It gave a file one id by itself, another in its folder, and others in each folder around it."""
    by_path = [f"{docs}/a.md#{number}" for number in range(12)]
    by_inner_folder = [f"guide/b.md#{number}" for number in range(6)]
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add(
            [f"river {id_}" for id_ in by_path + by_inner_folder],
            ids=by_path + by_inner_folder,
            metadata=[{"source": f"{docs}/a.md"}] * 12 + [{"source": "guide/b.md", "folder": f"{docs}/guide"}] * 6,
        )
        assert papers.add_records(reader(docs)) == AddReport(added=16, deleted=18)
        check_is_fresh(papers, docs)
        for again in (docs / "a.md", docs / "guide", docs / "guide/b.md", docs):
            embedder.embedded.clear()
            report = papers.add_records(reader(again))
            assert (report, embedder.embedded) == (AddReport(unchanged=report.unchanged), []), again
        write(docs / "a.md", 2)
        monkeypatch.chdir(docs)
        assert papers.add_records(reader(Path("a.md"))).deleted == 7  # by its path, as of the folder
        write(docs / "new.md", 2)
        papers.add_records(reader(docs / "new.md"))
        check_is_fresh(papers, docs)


def test_a_file_by_itself_keeps_its_absolute_path(docs: Path, tmp_path: Path, embedder: Embedder):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs / "a.md"))
        write(docs / "a.md", 4)
        assert papers.add_records(reader(docs / "a.md")) == AddReport(unchanged=4, deleted=5)
        check_is_fresh(papers, docs / "a.md")
        assert {record.metadata["source"] for record in papers.scroll()} == {str(docs / "a.md")}


def test_a_folder_and_a_file_in_it_are_one_document(docs: Path):
    records = list(reader(docs, docs / "a.md", docs / "guide"))
    assert len({record.id for record in records}) == 16
    assert {record.metadata["folder"] for record in records} == {str(docs)}


@pytest.mark.parametrize("content", [b"\xff\xfa river", b"", b" \n"])
def test_a_document_without_readable_text_keeps_its_passages(
    docs: Path, tmp_path: Path, embedder: Embedder, content: bytes
):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        before = papers.count()
        (docs / "a.md").write_bytes(content)
        write(docs / "guide/b.md", 1)
        assert papers.add_records(reader(docs, skip_bad=True)) == AddReport(unchanged=4, deleted=3)
        assert papers.count({"source": "docs/a.md"}) == 9
        assert papers.count() == before - 3
        assert missing_documents(papers.store, reader(docs, skip_bad=True)) == []


def test_a_document_that_left_is_named_and_kept(docs: Path, tmp_path: Path, embedder: Embedder):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        (docs / "guide/b.md").unlink()
        again = reader(docs)
        assert papers.add_records(again) == AddReport(unchanged=12)
        assert missing_documents(papers.store, again) == ["docs/guide/b.md"]
        guide = reader(docs / "guide")
        assert papers.add_records(guide) == AddReport(unchanged=3)
        assert missing_documents(papers.store, guide) == ["docs/guide/b.md"]
        (docs / "inner").mkdir()
        write(docs / "inner/f.md", 1)
        inner = reader(docs / "inner")
        papers.add_records(inner)
        assert missing_documents(papers.store, inner) == []  # it never was in that folder
        assert list(unread_passages(papers.store, reader(docs))) == [f"docs/guide/b.md#{number}" for number in range(4)]


def test_documents_that_cannot_be_read_for_lack_of_their_extra_are_kept(
    docs: Path, tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
):
    pages = [docs / "page.html", docs / "left.html"]
    for page in pages:
        page.write_text(f"<title>A page</title><p>{WORDS[0]} {page.stem}</p>")
    with Collection.create(FaissStore(tmp_path / "docs.faiss"), embedder, parent_key="source") as collection:
        collection.add_records(RecordReader(docs))
        monkeypatch.setattr(documents, "readable", lambda: False)
        assert unread_passages(collection.store, RecordReader(docs)) == {}
        pages[1].unlink()
        assert list(unread_passages(collection.store, RecordReader(docs))) == ["docs/left.html#0"]


def test_files_that_cannot_be_read_are_kept_and_files_that_are_gone_are_not(
    docs: Path, tmp_path: Path, embedder: Embedder
):
    link = tmp_path / "link.md"
    write(tmp_path / "target.md", 1)
    link.symlink_to(tmp_path / "target.md")
    with created(FaissStore(tmp_path / "docs.faiss"), embedder) as papers:
        papers.add_records(reader(docs, link))
        for bad in (docs / "a.md", tmp_path / "target.md"):
            bad.write_bytes(b"\xff\xfa river")
        (docs / "guide/c.txt").write_text("")
        (docs / "guide/b.md").unlink()
        again = reader(docs, link, skip_bad=True)
        gone = set(unread_passages(papers.store, again).values())
        assert gone == {"docs/guide/b.md", "docs/guide/c.txt"}  # as --sync says of files without text
        assert (again.bad_files, again.bad_rows) == ([docs / "a.md", link], 0)


def test_rows_are_upserted_by_id(tmp_path: Path, embedder: Embedder):
    path = tmp_path / "rows.csv"
    path.write_text("id,text,source\nx#0,the river,x\nx#1,the bank,x\n")
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(RecordReader(path))
        path.write_text("id,text,source\nx#0,the river,x\n")
        assert papers.add_records(RecordReader(path)) == AddReport(unchanged=1)
        assert papers.count() == 2


def test_rows_with_the_name_of_a_document_of_the_same_call(tmp_path: Path, embedder: Embedder):
    write(tmp_path / "docs/a.md", 1)
    rows = [{"id": f"docs/a.md#{number}", "text": f"row {number}", "source": "docs/a.md"} for number in (5, 6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        assert papers.add_records(reader(tmp_path / "docs", tmp_path / "rows.jsonl")) == AddReport(added=3)
        assert [record.id for record in papers.scroll()] == ["docs/a.md#0", "docs/a.md#5", "docs/a.md#6"]


def test_records_of_a_part_of_a_reader_are_upserted(docs: Path, tmp_path: Path, embedder: Embedder):
    """Only a reader itself has whole documents."""
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        papers.add_records(record for record in reader(docs) if record.id.endswith("#0"))
        assert papers.count() == 16


def test_passages_of_many_documents_under_another_parent(docs: Path, tmp_path: Path, embedder: Embedder):
    """All passages of the folder are siblings, also of the old copy that leaves."""
    with created(FaissStore(tmp_path / "p"), embedder, "folder") as papers:
        papers.add_records(RecordReader(docs, max_characters=60, fields=Fields(parent="folder")))
        write(docs / "guide/c.txt", 1)
        embedder.embedded.clear()
        papers.add_records(RecordReader(docs, max_characters=60, fields=Fields(parent="folder")))
        assert len(embedder.embedded) == 14
        check_is_fresh(papers, docs)


def test_a_document_longer_than_a_chunk(tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch):
    """Nothing of it is deleted before its last passage is written."""
    monkeypatch.setattr("cde_rag.records.CHUNK", 4)
    monkeypatch.setattr("cde_rag.records.LONGEST_CHUNK", 6)
    write(tmp_path / "docs/a.md", 23)
    with created(FaissStore(tmp_path / "p"), embedder, None) as papers:
        papers.add_records(reader(tmp_path / "docs"))
        write(tmp_path / "docs/a.md", 11, seed=1)
        counts: list[int] = []
        report = papers.add_records(reader(tmp_path / "docs"), on_progress=lambda _: counts.append(papers.count()))
        assert report == AddReport(replaced=11, deleted=12)
        assert counts[:-1] == [23] * (len(counts) - 1)
        check_is_fresh(papers, tmp_path / "docs")


def test_another_folder_of_the_same_name_is_refused(docs: Path, tmp_path: Path, embedder: Embedder):
    write(tmp_path / "other/docs/a.md", 2)
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        with pytest.raises(StoreError, match="passages of another folder 'docs'"):
            papers.add_records(reader(tmp_path / "other/docs"))
        assert papers.count() == 16


@pytest.mark.parametrize("name", ["other/docs", "handbook"])
def test_a_folder_that_was_moved_or_renamed_is_not_stored_twice(
    docs: Path, tmp_path: Path, embedder: Embedder, name: str
):
    for number in range(3):  # whose folder is gone, and that are elsewhere
        write(tmp_path / f"gone/{number}.md", 1)
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs, tmp_path / "gone"))
        shutil.rmtree(tmp_path / "gone")
        new = tmp_path / name
        new.parent.mkdir(exist_ok=True)
        docs.rename(new)
        write(new / "a.md", 2)
        write(new / "0.md", 1)
        others = unread_passages(papers.store, reader(new))
        assert set(others.values()) == {f"gone/{number}.md" for number in range(3)}
        planned = papers.add_records(reader(new), dry_run=True)
        report = papers.add_records(reader(new))
        assert (planned.added, planned.deleted) == (report.added, report.deleted)
        assert report.deleted == (7 if new.name == "docs" else 16)  # only what is gone, or all under the old name
        for _ in range(2):
            assert papers.count({"folder": str(tmp_path / "gone")}) == 3
            assert papers.count() == 3 + 10
            assert papers.add_records(reader(new)) == AddReport(unchanged=10)
        papers.delete(where={"folder": str(tmp_path / "gone")})
        check_is_fresh(papers, new)


def test_a_copy_of_a_folder_that_is_there_is_stored_beside_it(docs: Path, tmp_path: Path, embedder: Embedder):
    shutil.copytree(docs, tmp_path / "copy")
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        assert papers.add_records(reader(tmp_path / "copy")) == AddReport(added=16)
        assert papers.count({"folder": str(docs)}) == 16


def test_a_folder_that_is_gone_and_had_other_documents_stays(docs: Path, tmp_path: Path, embedder: Embedder):
    """Such as that of a disk that is not mounted."""
    for name in ("other/docs", "notes"):
        write(tmp_path / name / "a.md", 2)
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        shutil.rmtree(docs)
        with pytest.raises(StoreError, match=f"{tmp_path}/p holds passages of another folder 'docs'"):
            papers.add_records(reader(tmp_path / "other/docs"))
        assert papers.add_records(reader(tmp_path / "notes")) == AddReport(added=2)
        assert papers.count() == 18


@pytest.mark.parametrize("name", ["other/docs", "notes"])
def test_a_folder_that_is_gone_and_had_other_documents_of_the_same_names_stays(
    docs: Path, tmp_path: Path, embedder: Embedder, name: str
):
    """Such as the clone of another project, which has a README.md as well, and whose licence is the same."""
    for folder, seed in ((docs, 0), (tmp_path / name, 1)):
        write(folder / "README.md", 2, seed)
        write(folder / "LICENSE.md", 1)
        for path in ("a.md", "guide/b.md", "guide/c.txt"):
            write(folder / path, 2, seed)
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        before = contents(papers)[0]
        shutil.rmtree(docs)
        if name == "notes":
            assert papers.add_records(reader(tmp_path / name)).deleted == 0
        else:
            with pytest.raises(StoreError, match=f"{tmp_path}/p holds passages of another folder 'docs'"):
                papers.add_records(reader(tmp_path / name))
        assert before.items() <= contents(papers)[0].items()


@pytest.mark.parametrize("folder", [None, 5, ["docs"], {"a": 1}, True])
def test_rows_with_another_kind_of_folder_are_of_no_folder(
    docs: Path, tmp_path: Path, embedder: Embedder, folder: object
):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records([Record("row", "A row.", "", {"source": "docs/row", "folder": folder})])
        assert papers.add_records(reader(docs)) == AddReport(added=16)


def test_a_link_to_a_new_release_does_not_store_its_documents_beside_the_old_ones(
    docs: Path, tmp_path: Path, embedder: Embedder
):
    link, releases = tmp_path / "current", [tmp_path / f"release-{number}" for number in (42, 43)]
    docs.rename(releases[0])
    shutil.copytree(releases[0], releases[1])
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        link.symlink_to(releases[0])
        assert papers.add_records(reader(link)) == AddReport(added=16)
        assert papers.add_records(reader(link)) == AddReport(unchanged=16)
        link.unlink()
        link.symlink_to(releases[1])
        with pytest.raises(StoreError, match=f"{link} is a link to {releases[1]}.*'folder': '{releases[0]}'"):
            papers.add_records(reader(link))
        assert papers.count() == 16
        shutil.rmtree(releases[0])
        assert papers.add_records(reader(link)) == AddReport(added=16, deleted=16)
        check_is_fresh(papers, releases[1])


def test_what_fails_before_the_old_passages_are_deleted_costs_nothing_again(
    docs: Path, tmp_path: Path, embedder: Embedder
):
    with created(FaissStore(tmp_path / "p"), embedder) as papers:
        papers.add_records(reader(docs))
        write(docs / "a.md", 3, seed=1)
        with mock.patch.object(StoreCalls, "delete", side_effect=StoreError("no")), pytest.raises(StoreError):
            papers.add_records(reader(docs))
        assert papers.count() == 16  # the new passages are written, and the old ones stay
        embedder.embedded.clear()
        assert papers.add_records(reader(docs)) == AddReport(unchanged=10, deleted=6)
        assert embedder.embedded == []
        check_is_fresh(papers, docs)


def _index(place: Path, docs: Path, bound: ContextualEmbedder, at: int) -> None:
    """Index, and be killed after a write, by its number: so the next one finds the disk as well."""
    writes = 0

    def mortal(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal writes
            writes += 1
            number = writes
            found = write(*arguments, **named)
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    for owner, name in ((StoreCalls, "add"), (Store, "write")):  # inside a transaction, and around it
        setattr(owner, name, mortal(getattr(owner, name)))
    with Collection(FaissStore(place), bound) as papers:
        papers.add_records(reader(docs))


def test_killed_at_any_write_while_documents_are_replaced(
    docs: Path, tmp_path: Path, bound: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch
):
    """Every document has all passages of the old file or all of the new one, and the next run ends it."""
    monkeypatch.setattr("cde_rag.indexing.made_vectors.LARGEST_WRITE", 3)
    for name, size in (("FIRST_PART", 2), ("SMALLEST_PART", 2), ("PART_S", 0.0)):
        monkeypatch.setattr(f"cde_rag.indexing.upsert.{name}", size)
    monkeypatch.setattr("cde_rag.records.CHUNK", 4)
    with created(FaissStore(tmp_path / "old"), bound) as papers:
        papers.add_records(reader(docs))
    names = ("a.md", "guide/b.md", "guide/c.txt")
    old = {name: set((docs / name).read_text().split("\n\n")) for name in names}
    for name, parts in zip(names, (4, 6, 1), strict=True):
        write(docs / name, parts, seed=1)
    new = {name: set((docs / name).read_text().split("\n\n")) for name in names}
    fork, kills = multiprocessing.get_context("fork"), 0
    with Collection(FaissStore(tmp_path / "old"), bound) as papers:
        expected = fresh_contents(papers, docs)
    for kills in range(45):
        shutil.copytree(tmp_path / "old", tmp_path / "p")
        process = fork.Process(target=_index, args=(tmp_path / "p", docs, bound, 1 + kills))
        process.start()
        process.join()
        with Collection(FaissStore(tmp_path / "p"), bound) as papers:
            for name in names:
                found = {record.text for record in papers.scroll({"source": f"docs/{name}"})}
                assert found >= old[name] or found >= new[name], (name, kills)
            papers.add_records(reader(docs))
            check_holds(papers, expected)
        shutil.rmtree(tmp_path / "p")
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert 5 <= kills < 44


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(CorpusError, match="A source is an empty path"):
        RecordReader("")

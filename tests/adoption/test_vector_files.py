"""Files of vectors are written page by page as their libraries write them, and read as they do."""

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from applications import ForLangChain, switched
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS

from cde_rag import ContextualEmbedder
from cde_rag.adoption.folder_rows import FolderDocument, FolderRows
from cde_rag.adoption.movable import PAGE, SourceRow
from cde_rag.adoption.vector_files import FaissFile, FlatFile, JsonFile, VectorPages
from cde_rag.errors import StoreError

OLD = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
NEW = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
KINDS = {
    "l2": lambda dim: faiss.IndexFlatL2(dim),
    "ip": lambda dim: faiss.IndexFlatIP(dim),
    "3": lambda dim: faiss.IndexFlat(dim, faiss.METRIC_Linf),
}


def paged(vectors: np.ndarray, size: int) -> VectorPages:
    for start in range(0, len(vectors), size):
        page = vectors[start : start + size]
        yield [f"d{number}" for number in range(start, start + len(page))], page


@pytest.mark.parametrize("distance", KINDS)
@pytest.mark.parametrize("count", [0, 9])
def test_flat_files_are_as_faiss_writes_them(tmp_path: Path, distance: str, count: int):
    index, expected = KINDS[distance](5), KINDS[distance](3)
    index.add(OLD)
    expected.add(NEW[:count])
    for each, name in ((index, "old"), (expected, "expected")):
        faiss.write_index(each, str(tmp_path / name))
    found = FaissFile.read(tmp_path / "old", "here")
    assert isinstance(found, FlatFile)
    assert (len(found), found.dim, found.distance) == (7, 5, distance)
    assert np.array_equal(np.stack([found.get(place, "") for place in range(7)]), OLD)
    found.empty_like(3).write(tmp_path / "new", paged(NEW[:count], 4))
    assert (tmp_path / "new").read_bytes() == (tmp_path / "expected").read_bytes()


def test_flat_files_that_are_cut_are_refused(tmp_path: Path):
    index = faiss.IndexFlatL2(5)
    index.add(OLD)
    faiss.write_index(index, str(tmp_path / "whole"))
    data = (tmp_path / "whole").read_bytes()
    for size in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(StoreError, match="expected an index of FAISS"):
            FaissFile.read(tmp_path / "cut", "here")
    found = FaissFile.read(tmp_path / "whole", "here")
    (tmp_path / "whole").write_bytes(data[:-1])  # by its application, which saves
    with pytest.raises(StoreError, match="again"):
        found.get(6, "")


@pytest.mark.parametrize("count", [0, 9])
def test_json_files_are_as_llamaindex_writes_them(tmp_path: Path, count: int):
    content = {"embedding_dict": {"a": [1.0, 2.0]}, "text_id_to_ref_doc_id": {"a": "ä"}, "metadata_dict": {"a": {}}}
    (tmp_path / "old").write_text(json.dumps(content))
    found = JsonFile.read(tmp_path / "old", "here")
    assert (found.ids, found.dim, found.get(0, "a").tolist()) == (["a"], 2, [1.0, 2.0])
    made = found.empty_like(3)
    made.mark("f")
    made.write(tmp_path / "new", paged(NEW[:count], 4))
    content["embedding_dict"] = {f"d{number}": vector.tolist() for number, vector in enumerate(NEW[:count])}
    content["metadata_dict"]["cde_context"] = {"fingerprint": "f", "moved": True}
    assert (tmp_path / "new").read_text() == json.dumps(content)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="The device is Linux'.")
def test_a_full_disk_is_named_in_each_kind_of_file(tmp_path: Path):
    faiss.write_index(faiss.IndexFlatIP(3), str(tmp_path / "flat"))
    (tmp_path / "json").write_text('{"embedding_dict": {}}')
    for found in (FaissFile.read(tmp_path / "flat", "here"), JsonFile.read(tmp_path / "json", "here")):
        with pytest.raises(StoreError, match=r"here: cannot write full .*Make room"):
            found.empty_like(3).write(Path("/dev/full"), paged(NEW, 4))


def test_an_hnsw_index_is_made_again(tmp_path: Path, old: ContextualEmbedder, new: ContextualEmbedder):
    texts = [f"text {number}" for number in range(2 * PAGE + 3)]
    store = FAISS(ForLangChain(old), faiss.IndexHNSWFlat(old.dim, 8), InMemoryDocstore(), {})
    store.index.hnsw.efSearch = 99
    store.add_texts(texts, ids=texts)
    store.save_local(str(tmp_path / "data"))
    switched(f"langchain-faiss:{tmp_path / 'data'}", new)
    made = FAISS.load_local(str(tmp_path / "data"), ForLangChain(new), allow_dangerous_deserialization=True)
    index: Any = made.index
    assert (type(index).__name__, index.ntotal, index.d) == ("IndexHNSWFlat", len(texts), new.dim)
    assert (index.hnsw.efSearch, index.hnsw.nb_neighbors(1)) == (99, 8)
    for text in texts[:: PAGE // 3]:
        assert made.similarity_search(text, k=1)[0].page_content == text


def test_rows_are_as_they_were_kept():
    ids = [f"{number}\0\ud800" for number in range(2 * PAGE + 1)]
    rows = FolderRows()
    rows.keep(
        FolderDocument(id_, "\ud800" if number % 3 else f"a{number}", {"n": number, 1: 2, "l": [1], "deep": [[1]]})
        for number, id_ in enumerate(ids)
    )
    rows.keep([FolderDocument("other", "x", {}), FolderDocument(ids[0], "changed", {"f": 0.5}, "its own")])
    rows.name((place, id_) for place, id_ in enumerate(reversed(ids)))
    expected = [SourceRow(id_, None if number % 3 else f"a{number}") for number, id_ in enumerate(ids)][::-1]
    expected[-1] = SourceRow(ids[0], "changed")
    found = list(rows.pages())
    assert [row for page in found for row in page] == expected
    assert [len(page) for page in found] == [PAGE, PAGE, 1]
    assert rows.at([3, 1]) == [expected[3], expected[1]]
    kept = [rows.metadata(id_) for id_ in (ids[0], ids[1], "none")]
    assert kept == [{"f": 0.5}, {"n": 1, "l": [1]}, None]
    assert [rows.own(id_) for id_ in (ids[0], ids[1], "none")] == ["its own", None, None]
    assert (rows.is_numbered(), rows.repeated(), rows.lost()) == (True, None, None)
    rows.name([(len(ids) + 1, ids[0])])
    assert (rows.is_numbered(), rows.repeated(), rows.lost()) == (False, ids[0], None)
    rows.name([(0, "gone")])
    assert rows.lost() == "gone"

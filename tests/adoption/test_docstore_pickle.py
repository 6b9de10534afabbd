"""LangChain's pickle is read without being unpickled: real ones completely, others are refused by what they name."""

import datetime as dt
import uuid
from pathlib import Path

import pytest
from applications import TEXTS, ForLangChain, stub
from langchain_community.vectorstores import FAISS

from cde_rag.adoption.docstore_pickle import read_docstore
from cde_rag.adoption.movable import SourceRow
from cde_rag.errors import StoreFormatError


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


DOCSTORE = b"clangchain_community.docstore.in_memory\nInMemoryDocstore\n"
DOCUMENT = b"clangchain_core.documents.base\nDocument\n"


def written(metadata: bytes = b"}", content: bytes = text("one"), places: bytes = b"K\0" + text("a")) -> bytes:
    """A pickle of one document, of protocol 2."""
    fields = b"}(" + text("page_content") + content + text("metadata") + metadata + b"u"
    document = DOCUMENT + b")\x81}" + text("__dict__") + fields + b"sb"
    store = DOCSTORE + b")\x81}" + text("_dict") + b"}" + text("a") + document + b"ssb"
    return b"\x80\x02" + store + b"}(" + places + b"u\x86."


def test_a_pickle_by_hand_is_as_langchain_writes_it(tmp_path: Path):
    path = tmp_path / "index.pkl"
    path.write_bytes(written())
    found = read_docstore(path)
    assert (list(found.pages()), found.metadata("a")) == ([[SourceRow("a", "one")]], {})


def test_a_docstore_is_read_as_langchain_loads_it(tmp_path: Path):
    metadata = [
        {"n": 1, "f": 2.5, "none": None, "yes": True, "of": {"l": ["ä", [1, (2, 3)], {"s": {1, 2}}]}, "big": 2**70},
        {"when": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), "id": uuid.UUID(int=5)},
        {"path": Path("a/b"), "bytes": b"x" * 300, "day": dt.date(2026, 1, 2), "delta": dt.timedelta(1)},
    ]
    texts = ["one", "two\n" * 10_000, "\U0001f600"]
    FAISS.from_texts(texts, ForLangChain(stub("a-1", 4)), metadatas=metadata).save_local(str(tmp_path))
    found = read_docstore(tmp_path / "index.pkl")
    loaded = FAISS.load_local(str(tmp_path), ForLangChain(stub("a-1", 4)), allow_dangerous_deserialization=True)
    (rows,) = found.pages()
    assert [row.id for row in rows] == list(loaded.index_to_docstore_id.values())
    assert [row.text for row in rows] == texts
    assert found.metadata(rows[0].id) == {"n": 1, "f": 2.5, "none": None, "yes": True, "big": 2**70}
    assert found.metadata("nobody") is None


HOSTILE = {
    "posix.system": b"\x80\x02cposix\nsystem\n" + text("touch hacked") + b"\x85R.",
    "os.system": b"\x80\x04" + text("os") + text("system") + b"\x93" + text("touch hacked") + b"\x85R.",
    "builtins.eval": written(metadata=b"}" + text("x") + b"cbuiltins\neval\n" + text("1") + b"\x85Rs"),
    "builtins.getattr": written(metadata=b"}" + text("x") + b"cbuiltins\ngetattr\ns"),
    "operator.attrgetter": written(content=b"coperator\nattrgetter\n)\x81"),
    "langchain_core.load.load.loads": b"\x80\x02clangchain_core.load.load\nloads\n.",
    "the opcode INST": b"\x80\x02(" + text("touch hacked") + b"ios\nsystem\n.",
    "the opcode STRING": b"S'x'\n.",
    "the opcode EXT1": b"\x80\x02\x82\x01.",
    "the opcode BINPERSID": b"\x80\x02" + text("x") + b"Q.",
    "the opcode OBJ": b"\x80\x02(" + DOCUMENT + b"o.",
    "the opcode NEWOBJ_EX": b"\x80\x04" + DOCUMENT + b")}\x92.",
    "a call": b"\x80\x02" + DOCUMENT + b")R.",
    "an object that is made of arguments": b"\x80\x02" + DOCUMENT + text("x") + b"\x85\x81.",
    "no _dict": b"\x80\x02" + DOCSTORE + b")\x81}b}\x86.",
    "no page_content": written(content=b"K\1"),
    "no metadata": written(metadata=b"]"),
    "numbered from 0": written(places=b"K\1" + text("a")),
    "an id that is no text": written(places=b"K\0K\1"),
    "without a document": written(places=b"K\0" + text("b")),
    "two vectors of one id": written(places=b"K\0" + text("a") + b"K\1" + text("a")),
    "whose keys are no texts": written(metadata=b"})K\1s"),
    "more than one value": written() + b"cos\nsystem\n.",
    "a damaged file": b"",
    "something else": b"\x80\x02}.",
    "a value that is changed once it is complete": written(
        metadata=b"}q\1", places=b"K\0" + text("a") + text("x") + b"h\1" + text("y") + text("z") + b"s"
    ),
    "a length beyond the end|a damaged file": b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"x",
    "items of a str": b"\x80\x02" + text("x") + b"K\1a.",
}


@pytest.mark.parametrize("found", HOSTILE)
def test_anything_else_is_refused_by_name(tmp_path: Path, found: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "index.pkl"
    path.write_bytes(HOSTILE[found])
    with pytest.raises(StoreFormatError, match=f"found .*{found}"):
        read_docstore(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_cut_or_changed_file_is_refused_or_read_as_text(tmp_path: Path):
    """Whatever stands in the file: texts and numbers come out, or a refusal."""
    FAISS.from_texts(TEXTS[:3], ForLangChain(stub("a-1", 4)), metadatas=[{"n": n} for n in range(3)]).save_local(
        str(tmp_path)
    )
    path = tmp_path / "index.pkl"
    data = path.read_bytes()
    for place in range(len(data)):
        for changed in (data[:place], data[:place] + bytes([data[place] ^ 0x11]) + data[place + 1 :]):
            path.write_bytes(changed)
            try:
                found = read_docstore(path)
            except StoreFormatError:
                continue
            assert all(isinstance(row.text, str | None) for page in found.pages() for row in page)


def test_nested_tuples_cost_no_time(tmp_path: Path):
    """A tuple of the tuple before, forty times: hashing or writing it would take for ever."""
    nested = b")q\1" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(1, 60))
    path = tmp_path / "index.pkl"
    path.write_bytes(written(metadata=b"}" + text("x") + b"\x8f(" + nested + b"\x90s"))
    assert len(read_docstore(path)) == 1

"""PDF, HTML, Word and PowerPoint files, and folders in which not every file is read."""

import os
import subprocess
import sys
import threading
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import pytest

from cde_rag.errors import CorpusError, MissingExtraError
from cde_rag.readers import RecordReader, conversion, documents

HTML = """<html><body><script>alert(1)</script><h1>Install</h1><p>First.</p><h2>Linux</h2><p>Run <b>it</b>.</p>
<p>{}</p></body></html>"""
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj
4 0 obj<</Length 59>>stream
BT /F1 18 Tf 20 100 Td (Swifts sleep on the wing.) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R>>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs"


def test_documents_are_read_with_their_headings(folder: Path):
    pptx = pytest.importorskip("pptx")
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[0])
    slide.shapes.title.text = "Slides on swifts"
    slides.save(str(folder / "c.pptx"))
    (folder / "a.html").write_text(HTML.format("More words. " * 80))
    (folder / "b.pdf").write_bytes(PDF)
    (folder / "d.md").write_text("# A page\n\nWith words.")
    records = {record.id: record for record in RecordReader(folder)}
    assert "alert" not in "".join(record.text for record in records.values())
    assert records["docs/a.html#0"].title == "Install"
    assert any(record.metadata.get("section") == "Linux" for record in records.values())
    assert "Swifts sleep on the wing." in records["docs/b.pdf#0"].text
    assert records["docs/c.pptx#0"].title == "Slides on swifts"
    assert records["docs/d.md#0"].title == "A page"
    assert next(iter(RecordReader(folder / "b.pdf"))).text == records["docs/b.pdf#0"].text


def test_a_converted_file_leaves_nothing_in_the_home_folder(folder: Path, tmp_path: Path):
    pytest.importorskip("markitdown")
    (folder / "a.html").write_text(HTML.format("Words."))
    code = "import sys, pathlib, cde_rag.readers.documents as it; it.convert(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, folder / "a.html"], env={"HOME": str(tmp_path)}, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_a_page_of_html_is_titled_by_itself_and_not_by_its_first_heading(folder: Path):
    menu = "<h2>Keyboard shortcuts</h2><p>Press s.</p><h1>The book</h1><h2>Swifts</h2><p>They sleep on the wing.</p>"
    (folder / "a.html").write_text(f"<html><head><title> Swifts -\n The book</title></head><body>{menu}</body></html>")
    (folder / "b.html").write_text(f"<html><head><title> </title></head><body>{menu}</body></html>")
    (folder / "c.html").write_text(f"<html><head><title>Keyboard shortcuts</title></head><body>{menu}</body></html>")
    titled, untitled, same = RecordReader(folder)
    assert (titled.title, titled.metadata["section"]) == ("Swifts - The book", "Keyboard shortcuts")
    (folder / "a.html").write_text(
        f"<title>Swifts - The book</title><h1>The book</h1><h2>Swifts</h2><p>{'They sleep. ' * 40}</p><h3>Nests</h3>"
        f"<p>{'They build. ' * 40}</p>"
    )
    sections = [record.metadata.get("section") for record in RecordReader(folder / "a.html")]
    assert (sections[0], sections[-1]) == (None, "Nests")  # the title says the others
    assert (untitled.title, untitled.metadata["section"]) == (
        "The book",
        "Keyboard shortcuts",
    )  # its heading of level 1
    assert (same.title, same.metadata.get("section")) == ("Keyboard shortcuts", None)


def test_a_damaged_document_is_reported_without_names_of_classes(folder: Path):
    (folder / "a.pdf").write_bytes(b"%PDF-1.4 rubbish")
    (folder / "b.docx").write_bytes(b"PK rubbish")
    with pytest.raises(CorpusError) as error:
        list(RecordReader(folder))
    assert "a.pdf: not readable as .pdf: No /Root object" in str(error.value)
    assert "b.docx: not readable as .docx: File is not a zip file" in str(error.value)


def test_without_the_extra_documents_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "readable", lambda: False)
    (folder / "a.html").write_text(HTML)
    with pytest.raises(CorpusError, match=r"pip install 'cde-rag\[documents\]'.* for PDF, HTML, Word and PowerPoint"):
        list(RecordReader(folder))
    for name in ("d.md", "photo.jpg", "b.pdf", "c.pdf", "Makefile"):
        (folder / name).write_text("words")
    reader = RecordReader(folder)
    assert [record.id for record in reader] == ["docs/d.md#0"]
    assert reader.unread().kinds == Counter({".pdf": 2, ".html": 1, ".jpg": 1, "no suffix": 1})


def test_a_document_named_by_itself_needs_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "b.pdf").write_bytes(PDF)
    monkeypatch.setitem(__import__("sys").modules, "markitdown", None)
    with pytest.raises(MissingExtraError, match="documents"):
        list(RecordReader(folder / "b.pdf"))


def test_all_bad_files_are_named_at_once(folder: Path):
    for name in ("b.md", "c.txt"):
        (folder / name).write_bytes(b"\xff\x00")
    (folder / "a.md").write_text("good")
    (folder / "d.docx").write_bytes(b"PK\x03\x04 no archive")
    reader = RecordReader(folder)
    with pytest.raises(
        CorpusError, match=r"b\.md: not UTF-8.*; .*c\.txt: not UTF-8.*; .*d\.docx: not readable.*skip-bad"
    ):
        list(reader)
    patient = RecordReader(folder, skip_bad=True)
    assert [record.text for record in patient] == ["good"]
    assert patient.skipped == 3


def test_empty_files_are_passed_over_and_counted(folder: Path):
    (folder / "a.md").write_text("good")
    (folder / "b.md").write_text(" \n")
    (folder / "c.txt").touch()
    reader = RecordReader(folder)
    assert [record.text for record in reader] == ["good"]
    assert (len(reader.empty_files), reader.skipped) == (2, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (f"<p>{'Größe '}</p>".encode("utf-16"), "Größe"),
        ("<p>Größe</p>".encode("utf-8-sig"), "Größe"),
        ('<meta charset="iso-8859-1"><p>“Größe”</p>'.encode("cp1252"), "“Größe”"),  # as browsers read it
        ('<meta http-equiv=x content="text/html; charset=Shift_JIS"><p>日本</p>'.encode("cp932"), "日本"),
        ('<?xml version="1.0" encoding="koi8-r"?><body><p>Стриж</p></body>'.encode("koi8-r"), "Стриж"),
        ('<meta charset="utf-16"><p>Größe</p>'.encode(), "Größe"),
        (
            '<meta charset="iso-8859-1"><p>Größe für Bäume</p>'.encode(),
            "Größe für Bäume",
        ),  # as the server's header says
        ('<meta charset="gbk"><p>联通</p>'.encode("gbk"), "联通"),  # valid UTF-8 by chance
        ('<meta charset="iso-2022-jp"><p>日本</p>'.encode("iso-2022-jp"), "日本"),
        ("<p>Größe</p>".encode("latin-1"), "Größe"),  # as for browsers, if nothing is declared
        ("<p>“Déjà vu…”\xa0— à Åland</p>".encode("cp1252"), "“Déjà vu…”\xa0— à Åland"),
        ("<p>C’est déjà l’été à côté</p>".encode("cp1252"), "C’est déjà l’été à côté"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_has(folder: Path, data: bytes, text: str):
    (folder / "a.html").write_bytes(data)
    assert [record.text for record in RecordReader(folder)] == [text]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("<p>Größe\0</p>".encode("latin-1"), "not UTF-8: byte 0xf6 at byte 5; save it as UTF-8"),
        ("<p>Да, стриж</p>".encode("cp1251"), "not UTF-8: byte 0xc4"),  # no word of another script as noise
        ("<p>中</p>".encode("gbk"), "not UTF-8: byte 0xd6"),
        ("<p>Größe für Übung".encode() + b"\xc3</p>", "not UTF-8: byte 0xc3"),  # UTF-8, cut within a letter
        ("<p>“Café” — crème".encode() + b"\xa0</p>", "not UTF-8: byte 0xa0"),
        ("<p>Größe</p>".encode("utf-16-le"), "not UTF-8: byte 0xf6"),
        ("<p>日本</p>".encode("cp932"), "not UTF-8: byte 0x93"),
        ('<meta charset="utf-8"><p>Größe</p>'.encode("latin-1"), "not UTF-8: byte 0xf6"),
        (b'<meta charset="x-mine"><p>x</p>', "its declared encoding 'x-mine' is not known; save it as UTF-8"),
        (b'<meta charset="hex"><p>x</p>', "its declared encoding 'hex' is not known"),
        ("<p>A page.</p>".encode("utf-16-le"), "more than 10% control characters"),
    ],
)
def test_a_page_in_an_unknown_encoding_is_refused(folder: Path, data: bytes, reason: str):
    (folder / "a.html").write_bytes(data)
    with pytest.raises(CorpusError, match=f"a.html: {reason}"):
        list(RecordReader(folder))


def test_lock_files_of_office_are_no_documents(folder: Path):
    (folder / "a.md").write_text("A page.")
    (folder / "~$plan.docx").write_bytes(b"\x05owner" + bytes(100))
    reader = RecordReader(folder)
    assert [record.text for record in reader] == ["A page."]
    assert reader.unread().kinds == Counter()


TYPES = "http://schemas.openxmlformats.org/"
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def docx(path: Path, body: str, *, before: str = "", compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        override = f'<Override PartName="/word/document.xml" ContentType="{WORD}"/>'
        archive.writestr("[Content_Types].xml", f'<Types xmlns="{TYPES}package/2006/content-types">{override}</Types>')
        kind = f"{TYPES}officeDocument/2006/relationships/officeDocument"
        link = f'<Relationship Id="r1" Type="{kind}" Target="word/document.xml"/>'
        archive.writestr(
            "_rels/.rels", f'<Relationships xmlns="{TYPES}package/2006/relationships">{link}</Relationships>'
        )
        names = f'xmlns:w="{TYPES}wordprocessingml/2006/main"'
        archive.writestr("word/document.xml", f"{before}<w:document {names}><w:body>{body}</w:body></w:document>")
    return path


PARAGRAPH = "<w:p><w:r><w:t>Swifts sleep.</w:t></w:r></w:p>"
ENTITY = '<!-- x --><!DOCTYPE x [<!ENTITY a "b">]>'


def test_an_archive_that_unpacks_without_end_is_refused_and_the_others_are_read(folder: Path):
    docx(folder / "a.docx", "<w:p/>" * 2_000_000)
    docx(folder / "b.docx", PARAGRAPH)
    docx(folder / "c.docx", PARAGRAPH, before=ENTITY)
    (folder / "d.md").write_text("A page.")
    reader = RecordReader(folder, skip_bad=True)
    assert [record.text for record in reader] == ["Swifts sleep.", "A page."]
    first, second = reader.reports
    assert first.startswith(f"{folder}/a.docx: 'word/document.xml' unpacks to ")
    assert second.startswith(f"{folder}/c.docx: 'word/document.xml' declares a document type")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("suffix", [".docx", ".pptx"])
def test_entities_are_refused_in_every_part_and_encoding(tmp_path: Path, suffix: str, encoding: str):
    path = tmp_path / f"a{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ppt/slides/slide1.xml", f"{ENTITY}<a>&a;</a>".encode(encoding))
    with pytest.raises(ValueError, match=r"'ppt/slides/slide1\.xml' declares a document type"):
        conversion.converted(path)


def test_what_an_archive_declares_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversion, "UNPACKED", 2**20)
    path = docx(tmp_path / "a.docx", PARAGRAPH)
    assert conversion.converted(path) == ("Swifts sleep.", "")
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(3):
            archive.writestr(f"word/media/{number}.png", bytes(2**19))
    with pytest.raises(ValueError, match="expected at most 1 MiB once unpacked, found 1 MiB; split it"):
        conversion.converted(path)
    monkeypatch.setattr(conversion, "CHARACTERS", 4)
    with pytest.raises(ValueError, match="expected at most 4 characters of text in a document, found 13; split it"):
        conversion.converted(docx(path, PARAGRAPH))


def test_a_document_that_takes_too_long_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch):
    slow = docx(folder / "a.docx", PARAGRAPH * 100_000, compression=zipfile.ZIP_STORED)
    docx(folder / "b.docx", PARAGRAPH)
    monkeypatch.setattr(documents, "SECONDS", 3 / (1 + slow.stat().st_size / 2**20))
    reader = RecordReader(slow, skip_bad=True)
    assert list(reader) == []
    assert "a.docx: not converted in 3 s; split it" in reader.reports[0]
    monkeypatch.undo()
    assert [record.text for record in RecordReader(folder / "b.docx")] == ["Swifts sleep."]


def test_a_document_that_takes_too_much_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    if sys.platform != "linux":
        pytest.skip("only Linux limits a process's memory")
    monkeypatch.setattr(documents, "MEMORY", 64 * 2**20)
    monkeypatch.setattr(documents, "_idle", [])
    packer, parts = zlib.compressobj(9), list[bytes]()
    for _ in range(300):
        parts.append(packer.compress(b" " * 2**20))
    bomb = zlib.compress(b"".join([*parts, packer.flush()]), 9)
    content = PDF.partition(b"4 0 obj")[0], PDF.partition(b"endstream")[2]
    stream = b"4 0 obj<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%s\nendstream" % (len(bomb), bomb)
    (folder / "a.pdf").write_bytes(stream.join(content))
    assert (folder / "a.pdf").stat().st_size < 10_000
    with pytest.raises(CorpusError, match=r"a\.pdf: it needs more than 64 MiB of memory; split it"):
        list(RecordReader(folder / "a.pdf"))


def test_documents_share_a_process_which_takes_no_module_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("markitdown")
    monkeypatch.setattr(documents, "_idle", [])
    (folder / "zipfile.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(folder)
    for name in "abc":
        docx(folder / f"{name}.docx", PARAGRAPH)
    assert len(list(RecordReader("."))) == 3
    (worker,) = documents._idle
    assert len(list(RecordReader("."))) == 3
    assert documents._idle == [worker]
    threads = [threading.Thread(target=documents.convert, args=(folder / f"{name}.docx",)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(documents._idle) == 1


def test_documents_are_converted_where_the_working_folder_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    monkeypatch.setattr(documents, "_idle", [])
    (folder / "page.html").write_text("<title>A page</title><p>A river.</p>")
    assert documents.convert(folder / "page.html").title == "A page"


def test_a_process_that_ends_is_replaced(folder: Path):
    pytest.importorskip("markitdown")
    path = docx(folder / "a.docx", PARAGRAPH)
    documents.convert(path)
    documents._idle[0]._process.kill()
    documents._idle[0]._process.wait()
    assert documents.convert(path).markdown == "Swifts sleep."
    threading.Timer(0.5, documents._idle[0]._process.kill).start()
    with pytest.raises(ValueError, match=r"the process that converts it ended \(-9\), mostly for lack of memory"):
        documents.convert(docx(folder / "b.docx", PARAGRAPH * 100_000, compression=zipfile.ZIP_STORED))
    assert documents.convert(path).markdown == "Swifts sleep."


def test_a_forked_process_starts_a_process_of_its_own(folder: Path):
    pytest.importorskip("markitdown")
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    path = docx(folder / "a.docx", PARAGRAPH)
    documents.convert(path)
    code = (
        "import os, sys, pathlib; from cde_rag.readers import documents; path = pathlib.Path(sys.argv[1])\n"
        "documents.convert(path); child = os.fork(); found = documents.convert(path).markdown\n"
        "sys.exit(found != 'Swifts sleep.' or (child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)

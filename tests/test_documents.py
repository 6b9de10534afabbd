"""PDF, HTML, Word and PowerPoint files, and folders in which not every file is read."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cde_rag.errors import CorpusError, MissingExtraError
from cde_rag.readers import RecordReader, documents

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
    for found in (untitled, same):
        assert (found.title, found.metadata.get("section")) == ("Keyboard shortcuts", None)


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
    with pytest.raises(CorpusError, match=r"pip install 'cde-rag\[documents\]'.* for .docx, .htm"):
        list(RecordReader(folder))
    for name in ("d.md", "photo.jpg", "b.pdf", "c.pdf", "Makefile"):
        (folder / name).write_text("words")
    reader = RecordReader(folder)
    assert [record.id for record in reader] == ["docs/d.md#0"]
    assert reader.unread() == Counter({".pdf": 2, ".html": 1, ".jpg": 1, "no suffix": 1})


def test_a_document_named_by_itself_needs_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "b.pdf").write_bytes(PDF)
    documents._converter.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "markitdown", None)
    with pytest.raises(MissingExtraError, match="documents"):
        list(RecordReader(folder / "b.pdf"))


def test_all_bad_files_are_named_at_once(folder: Path):
    for name in ("b.md", "c.txt"):
        (folder / name).write_bytes(b"\xff\xfe\x00")
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

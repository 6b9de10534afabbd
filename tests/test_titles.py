"""Titles that pages give themselves, in every way to write them; front matter is no text."""

from pathlib import Path

import pytest

from cde_rag.evaluation.markdown_set import sections
from cde_rag.readers import RecordReader
from cde_rag.readers.titles import FrontMatter, asciidoc_title, front_matter, restructured_text_title

FRONT = {
    "---\ntitle: Host on Netlify\n---\n": "Host on Netlify",
    "\ufeff---\r\ntitle: Host on Netlify\r\n---\r\n": "Host on Netlify",
    "\n---\ndraft: true\nTitle: 'It''s done' # soon\n...\n": "It's done",
    '---\n"title": "A \\"quoted\\" one: \\u00fc"\n---\n': 'A "quoted" one: ü',
    "---\ntitle: >-\n  Over\n  two lines\ntags:\n- a\n- b\n---\n": "Over two lines",
    "---\ntitle: C++: a guide  # for us\n---\n": "C++: a guide",
    "---\ntitle: Over\n  two lines\nmenu: {main: 1}\n---\n": "Over two lines",
    "---\ntitle:\n---\n": "",
    "---\ntitle: null\nname: x\n---\n": "",
    "---\ntitle: [a, b]\n---\n": "",
    "---\ntitle: {{ page }}\n---\n": "",
    "---\nmenu:\n  title: Of the menu\n---\n": "",
    '---\ntitle: "\\ud800"\n---\n': "",
    "---\n---\n": "",
    '+++\ndate = 2024-01-01\ntitle = "Host on \\"Netlify\\""\n[menu]\ntitle = "x"\n+++\n': 'Host on "Netlify"',
    "+++\r\ntitle = 'C:\\temp'\r\n+++\r\n": "C:\\temp",
    "+++\n[menu]\ntitle = 'Of the menu'\n+++\n": "",
    '{\n  "title": "Host on\\nNetlify", "draft": {}\n}\n': "Host on Netlify",
}
NO_FRONT = [
    "---\n\nA rule above.\n\n---\n",
    "---\nA paragraph between rules.\n---\n",
    "---\nkey: value\nand a sentence.\n---\n",
    "+++\nadded\n+++\n",
    '{"note": "no title"}\n',
    '{"title": "a list follows"} [1]\n',
    "{{ template }}\n",
    "Text.\n---\ntitle: x\n---\n",
    "---\ntitle: never closed\n",
]


@pytest.mark.parametrize(("front", "title"), FRONT.items())
def test_a_title_in_front_matter_is_the_pages(tmp_path: Path, front: str, title: str) -> None:
    body = "Use these steps.\n\n## Prerequisites\n\nAn account.\n"
    path = tmp_path / "page.md"
    path.write_bytes((front + body).encode())
    text = (front + body).removeprefix("\ufeff")
    assert front_matter(text) == FrontMatter(title, len(text) - len(body))
    first, second = RecordReader(path, max_characters=35)
    assert (first.title, first.text, first.id) == (title or "Prerequisites", "Use these steps.", f"{path}#0")
    assert second.metadata.get("section") == ("Prerequisites" if title else None)
    for record in (first, second):
        assert text[record.metadata["offset"] :].startswith(record.text)


@pytest.mark.parametrize("text", NO_FRONT)
def test_what_is_no_front_matter_stays_text(tmp_path: Path, text: str) -> None:
    assert front_matter(text) == FrontMatter("", 0)
    (tmp_path / "page.md").write_text(text)
    words = "".join(record.text for record in RecordReader(tmp_path / "page.md"))
    assert "".join(words.split()) == "".join(text.split())


def test_a_heading_that_repeats_the_title_is_no_section(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: Hosting - The handbook\n---\n# Hosting\n\nWords.\n")
    (record,) = RecordReader(tmp_path / "a.md")
    assert (record.title, record.metadata.get("section")) == ("Hosting - The handbook", None)


def test_a_page_of_front_matter_alone_holds_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: Functions\n---\n")
    (tmp_path / "b.md").write_text("A page.")
    reader = RecordReader(tmp_path)
    assert [record.text for record in reader] == ["A page."]
    assert reader.empty_files == [str(tmp_path / "a.md")]


@pytest.mark.parametrize("name", ["page.mdx", "page.qmd", "page.adoc"])
def test_files_that_are_named_as_text_have_their_titles_too(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("---\ntitle: Functions\n---\n\nAll of them.\n")
    (record,) = RecordReader(tmp_path / name, as_text=[Path(name).suffix])
    assert (record.title, record.text) == ("Functions", "All of them.")
    (tmp_path / name).write_text("= Functions" if name.endswith("adoc") else "import x from 'y'\n\n# Functions\n\nAll.")
    (record,) = RecordReader(tmp_path / name, as_text=[Path(name).suffix])
    assert record.title == "Functions"


def test_a_file_of_data_that_is_read_as_text_keeps_what_looks_like_front_matter(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("---\ntitle: Functions\n---\nname: x\n")
    (record,) = RecordReader(tmp_path / "a.yml", as_text=[".yml"])
    assert (record.title, record.text) == ("a", "---\ntitle: Functions\n---\nname: x")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Host on Netlify\n===============\n\nUse these steps.\n", "Host on Netlify"),
        (".. _host:\n\n:orphan:\n\n*****\n Host\n*****\n\nPart\n====\n", "Host"),
        ("First, a paragraph\nof two lines\n=====\n\nPart\n----\n", "Part"),
        (":mod:`email` and `its parts <x>`_\n---------------------------------\n", "email and its parts"),
        ("``*args`` of *one* call\r\n~~~~~~~~~~~~~~~~~~~~~~~\r\n", "args of one call"),
        ("Long title\n---\n\nOther\n=====\n", "Other"),
        ("=====  =====\nA      B\n=====  =====\n1      2\n=====  =====\n", ""),
        ("-----\n\nA transition above.\n", ""),
        ("Code::\n\n   Heading\n   =======\n", ""),
        ("Words.\n", ""),
        ("", ""),
    ],
)
def test_the_first_title_of_restructured_text(tmp_path: Path, text: str, title: str) -> None:
    assert restructured_text_title(text) == title
    (tmp_path / "page.rst").write_bytes(f"{text}\nMore.".encode())
    assert next(iter(RecordReader(tmp_path / "page.rst"))).title == (title or "page")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("// note\n:toc:\n\n= Host on Netlify \n\nUse.\n\n== Part\n", "Host on Netlify"),
        ("== Part\n\n= No\n", ""),
        ("", ""),
    ],
)
def test_the_title_of_asciidoc(text: str, title: str) -> None:
    assert asciidoc_title(text) == title


def test_a_set_of_markdown_has_the_titles_that_an_index_has() -> None:
    found = sections("---\ntitle: Host\n---\nUse these.\n\n## Before you begin\n\nAn account.\n", "page")
    assert found == [("Host", "", "Use these."), ("Host", "", "An account.")]


@pytest.mark.parametrize("line", ["a" + " " * 200_000, "`" * 200_000, "key: " * 50_000, "-" * 200_000])
def test_titles_take_linear_time(line: str) -> None:
    for text in (f"---\n{line}\n---\n", f"+++\n{line}\n+++\n", f"{line}\n===\n", f"= {line}\n", "{" + line):
        for read in (front_matter, restructured_text_title, asciidoc_title):
            read(text)

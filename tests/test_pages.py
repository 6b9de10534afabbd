"""Pages: their own titles, the formats that are read, what is noise, and where a passage is."""

import json
from pathlib import Path

import pytest

from cde_rag import Collection, ContextualEmbedder
from cde_rag.errors import StoreFormatError
from cde_rag.readers import ReadingRules, RecordReader
from cde_rag.readers.passages import UNITS, place_in_file
from cde_rag.readers.reading_rules import NEWEST, OLD, reading_of
from cde_rag.readers.titles import first_line_title, named_title, stated_title
from cde_rag.records import Record

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Swifts\n", "\n", "How they sleep."]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": "hidden"}]},
        {"cell_type": "raw", "source": "raw"},
        {"cell_type": "markdown", "source": "## Food\n\nInsects."},
    ],
    "metadata": {"language_info": {"name": "python"}},
}


def read(folder: Path, name: str, text: str, reading: ReadingRules | None = None) -> list[Record]:
    path = folder / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")
    return list(RecordReader(folder / "docs", reading=reading))


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("a.md", "---\ntitle: Ours\n---\n# Other\n\nWords.", "Ours"),
        ("a.md", "Words.\n\n## Part\n\nMore.\n\n# The page\n\nMore.", "The page"),
        ("02-getting_started.md", "## Part\n\nWords.", "getting started"),
        ("install/README.md", "### Part\n\nWords.", "install"),
        ("a.mdx", "export const meta = {\n  title: 'Ours',\n}\n\nWords.", "Ours"),
        ("a.qmd", "---\ntitle: Ours\n---\n\nWords.", "Ours"),
        ("a.org", "#+TITLE: Ours\n* Part\nWords.", "Ours"),
        ("a.adoc", "= Ours\n:toc:\n\n== Part\n\nWords.", "Ours"),
        ("a.rst", "====\nOurs\n====\n\nPart\n----\n\nWords.", "Ours"),
        ("the-plan.txt", "Words.", "the plan"),
        ("a.ipynb", json.dumps(NOTEBOOK), "Swifts"),
        ("a.ipynb", json.dumps({"cells": [NOTEBOOK["cells"][3]]}), "a"),
    ],
)
def test_a_page_has_its_own_title(tmp_path: Path, name: str, text: str, title: str) -> None:
    records = read(tmp_path, name, text)
    assert {record.title for record in records} == {title}


def test_titles_in_metadata_and_of_files() -> None:
    assert stated_title("Microsoft Word - report.docx") == stated_title("untitled") == stated_title("Slide 1") == ""
    assert stated_title("A report") == "A report"
    assert first_line_title("\n\nThe plan\n\nWe do it.") == "The plan"
    assert first_line_title("We do it now.\nAnd") == first_line_title("12.3.2024\n") == ""
    assert named_title("2024-01-05-news.md") == "2024 01 05 news"


def test_sections_of_all_formats(tmp_path: Path) -> None:
    for name, text in {
        "a.adoc": "= Ours\n\n== Part\n\n----\n== code\n----\n\nWords.",
        "b.org": "#+TITLE: Ours\n* TODO Part :tag:\n#+begin_src sh\n* code\n#+end_src\nWords.",
        "c.rst": "Ours\n====\n\nPart\n----\n\nWords.",
        "d.md": "# Ours\n\n## Part\n\nWords.",
    }.items():
        records = read(tmp_path / name, name, text, ReadingRules(tokens=8))
        assert records[-1].metadata["section"] == "Part", name
        assert records[-1].text.endswith("Words."), name


def test_noise_is_no_text(tmp_path: Path) -> None:
    page = """import Tabs from '@theme/Tabs';

# Swifts {/* later */}

<!-- of birds -->
<Card title="Sleep" onClick={() => go("x > y")}>{{< ref "a" >}}On the wing.</Card>

```jsx
<Card /> <!-- kept -->
```
"""
    (record,) = read(tmp_path, "a.mdx", page)
    assert "".join(record.text.split()) == "#SwiftsSleepOnthewing.```jsx<Card/><!--kept-->```"
    assert (record.metadata["line"], record.metadata["last_line"]) == (3, 10)
    (old,) = read(tmp_path / "old", "a.md", page, OLD)
    assert old.text == page.strip()


def test_notebooks_have_cells_and_no_outputs(tmp_path: Path) -> None:
    records = read(tmp_path, "a.ipynb", json.dumps(NOTEBOOK), ReadingRules(tokens=14))
    assert [(record.text, place_in_file(record.metadata)) for record in records] == [
        ("# Swifts\n\nHow they sleep.", "cell 1"),
        ("```python\nprint(1)\n```", "cell 2"),
        ("## Food\n\nInsects.", "cell 4"),
    ]
    (tmp_path / "docs" / "bad.ipynb").write_text('{"cells": 1}')
    reader = RecordReader(tmp_path / "docs", skip_bad=True)
    assert len(list(reader)) > 0
    assert "expected a Jupyter notebook" in reader.reports[0]


@pytest.mark.parametrize("reading", [OLD, NEWEST, ReadingRules(tokens=12)])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_lines_are_those_of_the_file(tmp_path: Path, reading: ReadingRules, line_end: str) -> None:
    text = "---\ntitle: x\n---\n\n# One\n\nWords of one. And more of it.\n\n<!-- a\nb -->\n\nWords of two.\n"
    for record in read(tmp_path, "a.md", text.replace("\n", line_end), reading):
        lines = text.splitlines()[
            record.metadata["line"] - 1 : record.metadata.get("last_line", record.metadata["line"])
        ]
        assert lines[0].startswith(record.text.splitlines()[0])
        assert lines[-1].endswith(record.text.splitlines()[-1])


def test_code_is_read_where_most_texts_are_code_or_where_it_is_asked_for(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "node_modules").mkdir(parents=True)
    for name in ("a.py", "b.min.js", "node_modules/c.js", "read.md", "more.md"):
        (docs / name).write_text("a = 1\n")

    def names(reading: ReadingRules | None = None) -> list[str]:
        return sorted(record.metadata["source"] for record in RecordReader(docs, reading=reading))

    assert names() == ["docs/more.md", "docs/read.md"]
    assert names(ReadingRules(tokens=160, code=True)) == ["docs/a.py", "docs/more.md", "docs/read.md"]
    assert RecordReader(docs).unread().kinds[".py"] == 1
    for number in range(3):
        (docs / f"{number}.py").write_text("a = 1\n")
    assert "docs/a.py" in names()
    assert names(OLD) == ["docs/more.md", "docs/read.md"]


def test_rules_that_do_not_go_together_are_refused() -> None:
    for wrong in (
        {},
        {"tokens": 1, "characters": 1},
        {"tokens": 0},
        {"tokens": 10, "overlap": 6},
        {"characters": 9, "overlap": 1},
    ):
        with pytest.raises(ValueError, match=r"passage|overlap"):
            ReadingRules(**wrong)
    assert NEWEST.with_changes({"characters": 300, "code": None}) == ReadingRules(characters=300)
    assert NEWEST.with_changes({"characters": None, "tokens": None}) == NEWEST
    assert OLD.with_changes({"tokens": 9}) == ReadingRules(tokens=9, rules=1, code=False)
    assert reading_of({}) == OLD
    assert reading_of({"reading": NEWEST.settings()}) == NEWEST
    for newer in ({"tokens": 9, "rules": 3}, {"tokens": 9, "pictures": True}):
        with pytest.raises(StoreFormatError, match="Update cde-rag"):
            reading_of({"reading": newer})


def test_a_collection_keeps_its_rules(tmp_path: Path) -> None:
    """A later run without the option does not undo it; a collection of 0.2 stays as it is."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("\n\n".join(f"## Part {number}\n\n{'Swifts sleep. ' * 12}" for number in range(6)))
    embedder = ContextualEmbedder.from_corpus(f"Swift {number} sleeps." for number in range(64))
    with Collection.create(tmp_path / "c.faiss", embedder, parent_key="source") as papers:
        papers.add_records(RecordReader(docs, reading=ReadingRules(tokens=20)))
        short = papers.count()
        assert papers.inspect().reading == ReadingRules(tokens=20, code=False)
        assert papers.inspect().newer_defaults == ()
        fingerprint = papers.inspect().fingerprint
    with Collection.open(tmp_path / "c.faiss") as papers:
        again = papers.add_records(RecordReader(docs))
        assert (again.unchanged, papers.count()) == (short, short)
        settings = {key: value for key, value in papers.store.manifest().settings.items() if key != "reading"}
        assert papers.inspect().fingerprint == fingerprint
    with Collection.create(tmp_path / "old.faiss", embedder, parent_key="source") as old:
        old.store.update_settings({"reading": OLD.settings()})
        assert settings.keys() == old.store.manifest().settings.keys() - {"reading"}
    with Collection.open(tmp_path / "old.faiss") as old:
        old.add_records(RecordReader(docs))
        assert old.scroll().__next__().title == "Part 0"
        assert old.inspect().reading == OLD
        assert len(old.inspect().newer_defaults) == 2
        where = old.search("Swifts sleep", k=1)[0].metadata
        assert where["line"] >= 1
        assert set(where) <= {"source", "folder", "offset", "section", *UNITS, "last_line"}

"""Sections of installed packages' READMEs, and the queries that name them."""

from pathlib import Path

import pytest

from cde_rag.evaluation.readme_sections import readme_sections, readme_versions
from cde_rag.readers.splitting import split

README = """Logo

# Boats

Boats is a package about boats, written by those who row them to work each day of the year.

## Install

Take the package from the registry and put it near the water, where the others are already.

## Short

Too short.

## Notes

The first notes are about oars, of which each boat has two, unless somebody has lost one.

## Notes

The second notes are about ropes, which are long enough to reach from here to the other side.
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three packages: one with a README in Markdown, one in another format, one without."""
    for name, kind, text in (("boats", "text/markdown", README), ("oars", "text/x-rst", README), ("ropes", None, "")):
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
        header += f"Description-Content-Type: {kind}\n" if kind else ""
        (folder / "METADATA").write_text(f"{header}\n{text}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_section_is_found_by_its_package_and_heading():
    records, queries = readme_sections(["boats", "oars", "ropes", "no-such-package"])
    assert {record.title for record in records} == {"Boats"}
    assert {record.metadata["module"] for record in records} == {"boats"}
    texts = {record.id: record.text for record in records}
    assert [query.text for query in queries] == ["boats Install"]  # not the short one, nor one that is there twice
    (answer,) = queries[0].answers
    assert texts[answer].startswith("Take the package")
    assert "Install" not in texts[answer]
    assert sum("notes" in text for text in texts.values()) == 2


def test_long_sections_are_passages_of_one_answer(tmp_path: Path):
    long = " ".join(f"Sentence {number} of a long section about rivers." for number in range(60))
    path = tmp_path / "boats-1.2.dist-info" / "METADATA"
    path.write_text(path.read_text(encoding="utf-8") + f"\n## Rivers\n\n{long}\n", encoding="utf-8")
    records, queries = readme_sections(["boats"])
    passages = [record for record in records if record.metadata["section"] == "Rivers"]
    assert [record.text for record in passages] == [long[a:b] for a, b in split(long, 600, markdown=True)]
    assert next(query for query in queries if query.text == "boats Rivers").answers == {one.id for one in passages}


def test_versions_are_those_of_packages_that_are_read():
    assert readme_versions(["boats", "oars", "ropes", "no-such-package"]) == {"boats": "1.2"}

"""Folders of Markdown as retrieval sets."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.errors import CorpusError
from cde_rag.evaluation.markdown_set import is_markdown, read_markdown

WORDS = "Words that say something about it, one after the other, until the section is long enough to stand for itself. "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text(
        f"# Birds of passage\n\n{WORDS}\n\n## Where swifts sleep\n\nOn the wing. {WORDS}\n\n## Food\n\n{WORDS}\n\n"
        f"```sh\n# no heading\n```\n{WORDS}\n\n## See also\n\n{WORDS}\n"
    )
    (tmp_path / "docs" / "sub" / "b.md").write_text(
        f"# Trams\n\n## See also\n\n{WORDS}\n\nTrams that run\n---\n\n{WORDS * 12}"
    )
    return tmp_path / "docs"


def test_headings_ask_for_their_sections_which_do_not_contain_them(folder: Path):
    data = read_markdown(folder)
    asked = dict(zip(data.queries, data.judgments, strict=True))
    assert asked == {"Where swifts sleep": {"a.md#2": 1}, "Trams that run": {"sub/b.md#3": 1}}  # not what stands twice
    texts = dict(zip(data.corpus.ids, data.corpus.texts, strict=True))
    assert texts["a.md#2"] == f"Birds of passage On the wing. {WORDS}".strip()
    assert "# no heading" in texts["a.md#3"]
    assert not any(query in text for query in data.queries for text in data.corpus.texts)
    assert data.corpus.ids.count("sub/b.md#3") > 1  # a long one is split
    assert set(data.corpus.parents or ()) == {"a.md", "sub/b.md"}


@pytest.mark.parametrize("line", ["---", "=" * 20, "-" * 20])
def test_the_line_under_a_heading_is_no_text_of_its_section(tmp_path: Path, line: str):
    (tmp_path / "a.md").write_text(f"# Birds\n\nWhere swifts sleep\n{line}\n\nOn the wing. {WORDS}")
    assert read_markdown(tmp_path).corpus.texts[-1].startswith("Birds On the wing.")


def test_a_set_in_beirs_layout_is_none(folder: Path):
    assert is_markdown(folder)
    (folder / "corpus.jsonl").touch()
    assert not is_markdown(folder)
    assert not is_markdown(folder / "sub" / "missing")


def test_a_folder_without_such_headings_is_refused(tmp_path: Path):
    (tmp_path / "a.md").write_text(f"# Title\n\n{WORDS}")
    with pytest.raises(CorpusError, match="headings of two words or more"):
        read_markdown(tmp_path)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_command_says_what_it_asked_and_what_to_take(folder: Path):
    ran = CliRunner().invoke(app, ["evaluate", str(folder), "--system", "own_hybrid", "--system", "bm25"])
    assert ran.exit_code == 0, ran.output
    assert "queries: 2 headings; documents: 6 sections of Markdown." in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("2 questions are too few to choose by, 20 are the fewest: so far ")
    rows = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines()[3:5])
    assert float(rows["own_hybrid"].split()[0]) > 10  # one of two queries is in its page, under its words

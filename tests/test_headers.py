"""Headers: titles and headings in front of passages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, Record
from cde_rag.cli import app
from cde_rag.errors import CorpusError
from cde_rag.indexing.headers import with_headers

MODEL = CDEModel.from_pretrained("cde-mini-0", dtype="float32")
EMBEDDER = ContextualEmbedder(MODEL, Context.null(MODEL))
PAGE = [
    Record("a", "Run the installer.", "Install", {"section": "Linux > Debian", "page": "p"}),
    Record("b", "Run the other installer.", "", {"section": "Windows", "page": "p"}),
    Record("c", "There is no heading.", "Install", {"page": "p"}),
]


def made(path: Path, **settings: object) -> Collection:
    return Collection.create(path / "papers.faiss", EMBEDDER, headers=["section"], **settings)  # type: ignore[arg-type]


def test_a_headed_passage_is_embedded_as_its_composed_text(tmp_path: Path):
    with made(tmp_path) as papers:
        papers.add_records(PAGE)
        assert [row.record.title for row in papers.store.scroll()] == ["Install > Linux > Debian", "Windows", "Install"]
        assert [row.record.text for row in papers.store.scroll()] == [record.text for record in PAGE]
        composed = ["Install > Linux > Debian Run the installer.", "Windows Run the other installer."]
        found = papers.store.vectors(["a", "b"], fingerprint=papers.embedder.fingerprint)
        np.testing.assert_allclose(found, EMBEDDER.embed_documents(composed), atol=1e-5)
        assert [hit.id for hit in papers.search("debian", by="words")] == ["a"]


def test_headers_are_of_any_field(tmp_path: Path):
    with Collection.create(tmp_path / "papers.faiss", EMBEDDER, headers=["in.section"]) as papers:
        metadata = [{"in.section": "Linux"}, {"in": {"section": "Linux"}}, {"in": "Linux"}]
        papers.add(["a b", "c d", "e f"], metadata=metadata)
        assert [record.title for record in papers.scroll()] == ["Linux", "Linux", ""]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_texts_begin_with_headers_where_they_are_made_a_collection(tmp_path: Path):
    given: Any = {"titles": ["Page"], "metadata": [{"section": "Install > Linux"}], "headers": ["section"]}
    with Collection.from_texts(["text"], ids=["a"], store=tmp_path / "papers.faiss", model=MODEL, **given) as papers:
        assert papers.get(["a"])[0].title == "Page > Install > Linux"
        assert papers.inspect().headers == ("section",)


def test_headers_are_siblings_headers_too(tmp_path: Path):
    with made(tmp_path, parent_key="page") as papers:
        papers.add_records(PAGE)
        composed = ["Install > Linux > Debian Run the installer.", "Windows Run the other installer."]
        expected = EMBEDDER.embed_documents([*composed, "Install There is no heading."], parents=["p"] * 3)
        found = papers.store.vectors(["a", "b", "c"], fingerprint=papers.embedder.fingerprint)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_adding_again_changes_nothing_and_a_new_heading_embeds_anew(tmp_path: Path):
    with made(tmp_path) as papers:
        papers.add_records(PAGE)
        assert papers.add_records(PAGE).unchanged == 3
        assert papers.add_records([row.record for row in papers.store.scroll()]).unchanged == 3  # as they are stored
        moved = Record("b", "Run the other installer.", "", {"section": "macOS", "page": "p"})
        assert papers.add_records([moved], dry_run=True).embedded == 1
        assert papers.add_records([moved]).replaced == 1
        assert papers.search("macos", 1, by="words")[0].id == "b"


def test_headers_stay_with_the_collection(tmp_path: Path):
    with made(tmp_path) as papers:
        papers.add_records(PAGE[:2])
        papers.backup(tmp_path / "backup")
        papers.export(tmp_path / "papers.parquet")
    for command in (["restore", "backup", "restored.faiss"], ["import", "papers.parquet", "imported.faiss"]):
        ran = CliRunner().invoke(app, [command[0], *(str(tmp_path / name) for name in command[1:])])
        assert ran.exit_code == 0, ran.output
        with Collection.open(tmp_path / command[2]) as again:
            again.add_records([Record("d", "Unpack it.", "Install", {"section": "Source"})])
            assert again.search("source", 1, by="words")[0].title == "Install > Source"


def test_a_header_takes_at_most_a_quarter_of_the_window():
    limit = MODEL.identity.max_length // 4
    long = " > ".join(f"chapter {number} about something" for number in range(40))
    (one,) = with_headers([Record("a", "text", "Page", {"section": long})], {"headers": ["section"]}, EMBEDDER)
    assert one.title.startswith("Page > ")
    assert one.title.endswith("chapter 39 about something")  # the nearest heading stays
    assert limit * 0.7 < EMBEDDER.count_tokens([one.title]) <= limit
    (two,) = with_headers([Record("a", "text", "Page", {"section": "word " * 500})], {"headers": ["section"]}, EMBEDDER)
    assert two.title == "Page"


@pytest.mark.parametrize(
    ("headers", "error"),
    [("section", TypeError), (["and"], ValueError), ([""], ValueError), (["a", "a"], ValueError)],
)
def test_senseless_headers_are_refused(tmp_path: Path, headers: object, error: type[Exception]):
    with pytest.raises(error, match="headers"):
        Collection.create(tmp_path / "papers.faiss", EMBEDDER, headers=headers)  # type: ignore[arg-type]
    assert not (tmp_path / "papers.faiss").exists()


def test_unusable_records_are_refused_as_ever(tmp_path: Path):
    with made(tmp_path) as papers, pytest.raises(CorpusError, match="Record 0"):
        papers.add_records([Record("a", " ", "", {"page": "p"})])


def test_index_keeps_the_headers_of_a_collection(tmp_path: Path):
    def run(*arguments: str) -> tuple[int, str, dict]:
        ran = CliRunner().invoke(app, ["index", str(folder), str(tmp_path / "docs.faiss"), *arguments, "--json"])
        return ran.exit_code, ran.stderr, json.loads(ran.stdout) if ran.stdout else {}

    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Install\n\nFirst words.\n\n## Linux\n\nRun it.\n" + "More of it. " * 80)
    assert run("--headers", "heading")[0] == 2  # no such field
    assert run("--headers", "section")[2]["added"] >= 2
    with Collection.open(tmp_path / "docs.faiss") as docs:
        assert {row.record.title for row in docs.store.scroll()} >= {"Install > Linux"}
    assert run()[2]["added"] == 0
    code, told, _ = run("--headers", "page")
    assert (code, "was made with the headers section, not page" in told) == (1, True)
    assert run("--headers", "section", "--tenant", "acme")[0] == 2


def test_what_is_not_given_stays(tmp_path: Path):
    """A new text under its old title and headings, new headings under the old title; nothing of either is doubled."""
    with made(tmp_path, parent_key="page") as papers:
        papers.add_records(PAGE)
        papers.add(["Run it twice."], ids=["a"])
        assert papers.get(["a"]) == [Record("a", "Run it twice.", "Install > Linux > Debian", PAGE[0].metadata)]
        papers.add(["Run it twice."], ids=["a"], metadata=[{"section": "macOS", "page": "p"}])
        assert [record.title for record in papers.get(["a"])] == ["Install > macOS"]
        papers.add(["Run it twice."], ids=["a"], titles=["Set up"])
        assert [record.title for record in papers.get(["a"])] == ["Set up > macOS"]
        papers.add(["Run it twice."], ids=["a"], titles=[""], metadata=[{"page": "p"}])
        assert papers.get(["a"]) == [Record("a", "Run it twice.", "", {"page": "p"})]


def test_a_new_text_keeps_a_title_that_headings_were_left_out_of(tmp_path: Path):
    """The stored title has the last headings only; given a new text, neither those nor others are doubled."""
    long = " > ".join(f"chapter {number} about something" for number in range(40))
    with made(tmp_path) as papers:
        papers.add_records([Record("a", "Run it.", "Page", {"section": long})])
        (before,) = papers.get(["a"])
        assert "chapter 0 about" not in before.title
        papers.add(["Run it twice."], ids=["a"])
        assert [record.title for record in papers.get(["a"])] == [before.title]
        papers.add(["Run it twice."], ids=["a"], metadata=[{"section": "macOS"}])
        assert [record.title for record in papers.get(["a"])] == ["Page > macOS"]

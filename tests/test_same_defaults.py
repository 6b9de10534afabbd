"""One question has one answer: in Python, by the command, over HTTP and for agents."""

import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import AsyncCollection, Collection
from cde_rag.cli import app, collections
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError, UnreadFilesWarning
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.readers import Fields
from cde_rag.server.chat_routes import ChatRequest
from cde_rag.server.collection_routes import SearchRequest, found
from cde_rag.server.mcp_tools import RERANKING, CollectionTools
from cde_rag.server.registry import ServedCollection

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
QUERY = "river bank"


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_model")
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("defaults") / "papers.faiss"
    texts = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:5]]
    Collection.from_texts(texts, store=folder, model=tiny_folder).close()
    return folder


@pytest.fixture
def papers(folder: Path, tiny_folder: Path) -> Iterator[Collection]:
    with Collection.open(folder, model=tiny_folder) as opened:
        yield opened


def by_command(papers: Collection, folder: Path, model: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["search", str(folder), QUERY, "--json", "--model", str(model)])
    return json.loads(result.stdout)["hits"]


def over_http(papers: Collection, folder: Path, model: Path) -> list[dict[str, Any]]:
    return found(ServedCollection("papers", papers, has_bm25=True), SearchRequest(query=QUERY))["hits"]


def for_agents(papers: Collection, folder: Path, model: Path) -> list[dict[str, Any]]:
    return CollectionTools({"papers": papers}).search(QUERY, k=10)


@pytest.mark.parametrize("asked", [by_command, over_http, for_agents])
def test_a_question_without_options_has_one_answer(
    papers: Collection, folder: Path, tiny_folder: Path, asked: Callable[..., list[dict[str, Any]]]
) -> None:
    expected = papers.search(QUERY)
    assert expected == papers.search(QUERY, by="hybrid") != papers.search(QUERY, by="vectors")
    hits = asked(papers, folder, tiny_folder)
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)


@pytest.mark.usefixtures("float32")
def test_a_folder_becomes_one_collection_in_python_and_by_command(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "docs/deep").mkdir(parents=True)
    for number, word in enumerate(WORDS[:9]):
        text = f"# {word}\n\n" + "\n\n".join(f"## {other}\n\n{word} {other} {number}" for other in WORDS[:8])
        (tmp_path / "docs" / ("deep" if number % 2 else "") / f"{word}.md").write_text(text)
    by_command = ["index", str(tmp_path / "docs"), str(tmp_path / "by_command"), "--model", str(tiny_folder)]
    result = CliRunner().invoke(app, by_command)
    assert result.exit_code == 0, result.output
    made = Collection.from_files(tmp_path / "docs", store=tmp_path / "in_python", model=tiny_folder)
    opened = Collection.open(tmp_path / "by_command", model=tiny_folder)
    with made, opened:
        records = list(made.scroll())
        assert records == list(opened.scroll())
        assert len(records) > 30
        assert made.parent_key == opened.parent_key == "source"
        ids, fingerprint = [record.id for record in records], made.embedder.fingerprint
        vectors = [each.store.vectors(ids, fingerprint=fingerprint) for each in (made, opened)]
        np.testing.assert_allclose(*vectors, atol=1e-6)  # batches are others
        settings = [dict(each.store.manifest().settings) for each in (made, opened)]
        assert settings[1].pop("moves_at") is None  # it has its context, which it got after its first words
        assert settings[0] == settings[1]


def test_a_bad_file_of_a_folder_is_left_out_as_by_the_command(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.md").write_text("The river rises.")
    (tmp_path / "docs" / "western.md").write_bytes("Un été à la rivière, déjà fini.".encode("cp1252"))
    (tmp_path / "docs" / "bad.md").write_bytes(bytes(range(256)))
    command = ["index", str(tmp_path / "docs"), str(tmp_path / "by_command"), "--model", str(tiny_folder)]
    assert CliRunner().invoke(app, command).exit_code == 0
    with pytest.warns(UnreadFilesWarning) as warned:
        made = Collection.from_files(tmp_path / "docs", store=tmp_path / "in_python", model=tiny_folder)
    messages = " ".join(str(one.message) for one in warned)
    assert "bad.md" in messages
    assert "western.md" in messages
    with made, Collection.open(tmp_path / "by_command", model=tiny_folder) as opened:
        records = list(made.scroll())
        assert records == list(opened.scroll())
        assert {record.metadata["source"] for record in records} == {"docs/good.md", "docs/western.md"}
    with pytest.raises(CorpusError, match=r"bad\.md"):
        Collection.from_files(tmp_path / "docs" / "bad.md", store=tmp_path / "named", model=tiny_folder)
    assert not (tmp_path / "named").exists()


def test_a_file_of_rows_is_read_by_its_fields_or_named(tmp_path: Path, tiny_folder: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("The river rises.")
    (docs / "tickets.csv").write_text("subject,body\nBoats,a boat\nBanks,a bank\n")
    with (
        pytest.warns(UnreadFilesWarning, match=r"without a field 'text'.*tickets\.csv \(found: 'subject', 'body'\)"),
        Collection.from_files(docs, store=tmp_path / "without", model=tiny_folder) as made,
    ):
        assert [record.text for record in made.scroll()] == ["The river rises."]
    fields = Fields(text="body", title="subject")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadFilesWarning)
        made = Collection.from_files(docs, fields=fields, store=tmp_path / "with", model=tiny_folder)
    with made:
        assert [(record.title, record.text) for record in made.scroll()][1:] == [
            ("Boats", "a boat"),
            ("Banks", "a bank"),
        ]
        assert made.parent_key == "source"


def test_files_make_a_collection_or_none_and_bring_it_up_to_date(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "a.md").write_text("A boat.")
    with pytest.raises(TypeError, match="model"):
        Collection.from_files(tmp_path / "a.md", modell=tiny_folder)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="Expected files or folders, found none"):
        Collection.from_files(store=tmp_path / "notes", model=tiny_folder)
    with pytest.raises(CorpusError, match=r"missing\.md"):
        Collection.from_files(tmp_path / "missing.md", store=tmp_path / "notes", model=tiny_folder)
    assert not (tmp_path / "notes").exists()
    with Collection.from_files(tmp_path / "a.md", store=tmp_path / "notes", model=tiny_folder) as made:
        fingerprint = made.embedder.fingerprint
    (tmp_path / "a.md").write_text("A bank.")
    (tmp_path / "rows.csv").write_text("body\na river\n")
    both, fields = (tmp_path / "a.md", tmp_path / "rows.csv"), Fields(text="body")
    with Collection.from_files(*both, fields=fields, store=tmp_path / "notes", model=tiny_folder) as made:
        assert [record.text for record in made.scroll()] == ["A bank.", "a river"]
        assert made.embedder.fingerprint == fingerprint
    with Collection.from_files(*both, store=tmp_path / "notes", model=tiny_folder) as made:
        assert made.count() == 2
        (tmp_path / "a.md").write_text("A boat again.")
        (tmp_path / "rows.csv").write_text('body\na river\n""\n')
        with pytest.raises(CorpusError, match=r"rows\.csv, line 3"):
            Collection.from_files(*both, store=tmp_path / "notes", model=tiny_folder)
        assert [record.text for record in made.scroll()] == ["A bank.", "a river"]
    with pytest.raises(ContextMismatchError):
        Collection.from_files(tmp_path / "a.md", store=tmp_path / "notes", model="cde-mini")
    with pytest.raises(StoreError, match=r"Expected no collection, found one.*\.add\(texts\)"):
        Collection.from_texts(["A boat."], store=tmp_path / "notes", model=tiny_folder)


def test_the_default_is_written_in_every_signature() -> None:
    calls = ("search", "search_batch", "search_groups", "search_parents", "searcher")
    defaults = [inspect.signature(getattr(Collection, name)).parameters["by"].default for name in calls]
    defaults += [inspect.signature(CollectionTools.search).parameters["by"].default]
    defaults += [body.model_fields["by"].default for body in (SearchRequest, ChatRequest)]
    assert set(defaults) == {"hybrid"}


def test_reranking_has_the_same_arguments_everywhere() -> None:
    calls = (Collection.search, AsyncCollection.search, collections.search, CollectionTools.search)
    for names in (*(inspect.signature(call).parameters for call in calls), SearchRequest.model_fields):
        assert set(RERANKING) <= set(names)

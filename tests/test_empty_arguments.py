"""An empty argument is refused where it would be taken as the present folder, the default, or everything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient
from typer.testing import CliRunner

from cde_rag import Collection, Context
from cde_rag.cli import app
from cde_rag.embedders.active import loaded
from cde_rag.errors import ContextError, CorpusError, FilterError, ModelError, StoreError
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.harness import evaluate
from cde_rag.models import CDEModel
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.readers import Fields, RecordReader
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.kinds import store_at, tenants_at
from cde_rag.stores.qdrant import QdrantStore
from cde_rag.stores.qdrant_edge import QdrantEdgeStore
from cde_rag.stores.tenant_stores import FolderTenants
from cde_rag.transfer.backup import restore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: CDEModel) -> Collection:
    """A collection of two records; the present folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Collection.from_texts(["the river", "the bank"], store=tmp_path / "papers.faiss", model=tiny_model)


PATHS: list[Callable[[Collection], Any]] = [
    lambda papers: Collection.create("", papers.embedder),
    lambda papers: Collection.open(""),
    lambda papers: Collection.from_texts(["a"], store=""),
    lambda papers: store_at(""),
    lambda papers: tenants_at(""),
    lambda papers: FaissStore(""),
    lambda papers: QdrantEdgeStore(""),
    lambda papers: FolderTenants("", FaissStore),
    lambda papers: papers.backup(""),
    lambda papers: restore("", papers.store),
    lambda papers: RecordReader(""),
    lambda papers: RecordReader("x.txt", ""),
    lambda papers: read_beir(""),
    lambda papers: evaluate([""]),
    lambda papers: papers.export(""),
    lambda papers: Collection.import_("", papers.store),
    lambda papers: papers.embedder.context.save(""),
    lambda papers: Context.load(""),
    lambda papers: PlainVectors(""),
    lambda papers: Collection.create(" ", papers.embedder),  # "$A $B" of two unset variables
    lambda papers: RecordReader("x.txt", "\t"),
    lambda papers: papers.export(" "),
]


@pytest.mark.parametrize("call", PATHS)
def test_an_empty_path_is_not_the_present_folder(call: Callable[[Collection], Any], papers: Collection):
    Path("x.txt").write_text("the river")
    with pytest.raises((StoreError, CorpusError, ContextError), match="is an empty path"):
        call(papers)
    assert [path.name for path in Path().iterdir()] == ["x.txt"]


def test_a_qdrant_collection_without_a_name():
    with pytest.raises(StoreError, match="name of the Qdrant collection is empty"):
        QdrantStore(QdrantClient(":memory:"), "")


def test_an_empty_name_is_not_the_default(papers: Collection):
    with pytest.raises(ModelError):
        loaded(papers.embedder.context, model="")
    Path("rows.jsonl").write_text('{"id": "a", "text": "the river"}\n')
    with pytest.raises(CorpusError, match="no field ''"):
        list(RecordReader("rows.jsonl", fields=Fields(id="")))


@pytest.mark.parametrize(
    "where",
    [
        {"and": []},
        {"or": [{}, {"year": 1}]},
        {"not": {"or": []}},
        {"source": {"contains": ""}},
        {"source": {"gte": ""}},
        {"year": 1, "and": [{"not": {"source": {"gt": ""}}}]},
    ],
)
def test_an_empty_part_of_a_filter_deletes_nothing(where: dict[str, Any], papers: Collection):
    with pytest.raises(FilterError, match="has an empty part, which matches every record"):
        papers.delete(where=where)
    assert papers.count() == 2


def test_filters_of_deletions_that_are_meant(papers: Collection):
    assert papers.delete(where={"source": ""}) == 0
    assert papers.delete(where={"or": []}) == 0
    assert papers.delete(where={"source": {"contains": "a"}}) == 0
    assert papers.delete([]) == 0
    assert papers.delete(where={}) == 2


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["index", "", "c.faiss", "--sync"], "index"),
        (["index", "x.txt", ""], "x.txt"),
        (["index", "x.txt", "c.faiss", "--tenant", ""], "--tenant"),
        (["index", "x.txt", "c.faiss", "--model="], "--model"),
        (["index", "x.txt", "c.faiss", "--id-field", ""], "--id-field"),
        (["search", "../papers.faiss", "river", "--group-by", ""], "--group-by"),
        (["count", "../papers.faiss", "--where", ""], "--where"),
        (["backup", "../papers.faiss", ""], "../papers.faiss"),
        (["restore", "", "c.faiss"], "restore"),
        (["serve", "../papers.faiss", "--host", ""], "--host"),
        (["serve", "../papers.faiss", "--contexts", ""], "--contexts"),
        (["convert", "cde-mini", ""], "cde-mini"),
        (["demo", "--path="], "--path"),
    ],
)
def test_an_empty_argument_of_a_command_is_refused(command: list[str], option: str, papers: Collection):
    Path("x.txt").write_text("the river")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"the argument after {option} is empty. Is a variable unset?" in " ".join(result.stderr.split())
    assert [path.name for path in Path().iterdir()] == ["x.txt"]
    assert papers.count() == 2


def test_options_for_which_nothing_has_a_meaning(papers: Collection):
    Path("x.txt").write_text("the river")
    assert CliRunner().invoke(app, ["index", "x.txt", "c.faiss", "--headers", ""]).exit_code == 0

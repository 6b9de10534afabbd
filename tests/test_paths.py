"""Paths of users: `~` is the home folder everywhere, and files that they hand over may begin with a byte order mark."""

import json
from pathlib import Path

import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, Tenants
from cde_rag._files import user_path
from cde_rag.errors import CorpusError
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.harness import evaluate
from cde_rag.evaluation.markdown_set import read_markdown
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.readers import RecordReader
from cde_rag.stores.kinds import store_at, tenants_at
from cde_rag.transfer.backup import restore
from cde_rag.transfer.parquet import import_collection


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and another working folder, in which nothing may appear."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def written(folder: Path, encoding: str = "utf-8") -> Path:
    """Write a retrieval set."""
    (folder / "qrels").mkdir(parents=True)
    for name, text in {
        "corpus.jsonl": "\n".join(json.dumps({"_id": word, "text": f"the {word}"}) for word in WORDS),
        "queries.jsonl": '{"_id": "q", "text": "river"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\triver\t1\n",
    }.items():
        (folder / name).write_text(text, encoding=encoding)
    return folder


def test_a_path_at_home_is_one(home: Path) -> None:
    assert user_path("~/a b") == home / "a b"
    assert user_path(Path("~")) == home
    for other in ("a/~", "a~", "~$plan.docx", "~no-such-user/a", "./a", "postgresql://host/~"):
        assert user_path(other) == Path(other)


@pytest.mark.parametrize("kind", ["faiss", pytest.param("qdrant", marks=pytest.mark.long)])
def test_home_is_home_in_every_place_that_takes_a_path(home: Path, kind: str) -> None:
    checkpoints.write(home / "model", tiny_network(), tiny_tokenizer())
    model = CDEModel.from_pretrained("~/model", runtime="torch")
    embedder = ContextualEmbedder.from_corpus([f"the {word}" for word in WORDS], model=model, context_size=4)
    embedder.context.save("~/a.context.safetensors")
    assert Context.load("~/a.context.safetensors").fingerprint == embedder.context.fingerprint
    place = f"~/papers.{kind}"
    with Collection.create(place, embedder) as papers:
        (home / "docs").mkdir()
        (home / "docs" / "a.md").write_text("the river bank")
        papers.add_records(RecordReader("~/docs", "~/docs/a.md"))
        papers.export("~/papers.parquet")
        papers.backup("~/backup")
    restore("~/backup", store_at(f"~/restored.{kind}"))
    import_collection("~/papers.parquet", store_at(f"~/imported.{kind}"))
    with Collection.open(place, model="~/model") as papers:
        assert papers.count() == 1  # the file in its folder
    written(home / "set")
    (found,) = evaluate(["~/set"], model=model, context_size=4, systems=["own"]).sets
    assert found.mean("own") > 0
    alone = ContextualEmbedder(model, Context.null(model))
    Tenants.create(tenants_at(f"~/tenants.{kind}"), alone, parent_key="source").close()
    assert {path.name for path in home.iterdir()} == {
        "model", "a.context.safetensors", "docs", "papers.parquet", "backup", "set",
        *(f"{name}.{kind}" for name in ("papers", "restored", "imported", "tenants")),
    }  # fmt: skip
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_a_set_may_begin_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    found = read_beir(written(tmp_path / "set", encoding))
    assert (found.query_ids, found.judgments) == (("q",), ({"river": 1},))


def test_a_set_in_another_encoding_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "set")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "Größe"}', encoding="latin-1")
    with pytest.raises(CorpusError, match=r"queries\.jsonl, line 1: expected UTF-8"):
        read_beir(folder)
    (tmp_path / "page.md").write_text("# A page of it\n\nGröße", encoding="latin-1")
    with pytest.raises(CorpusError, match=r"page\.md: not UTF-8"):
        read_markdown(tmp_path)


def test_a_source_whose_name_is_too_long_is_one_sentence() -> None:
    with pytest.raises(CorpusError, match="not readable: File name too long"):
        RecordReader("n" * 300 + ".jsonl")

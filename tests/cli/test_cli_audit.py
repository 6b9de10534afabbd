"""The command audit."""

import json
from collections.abc import Callable
from pathlib import Path

import chromadb
import pytest
from embeddings_server import running
from plain_model import write_transformer
from typer.testing import CliRunner, Result

from cde_rag import Collection, ContextualEmbedder, PlainEmbedder
from cde_rag.cli import app
from cde_rag.embedders.openai_api import openai_embedder
from cde_rag.indexing.stamp_reader import KEY, canonical, digest_of
from cde_rag.stores.faiss import FaissStore

Run = Callable[..., Result]
pytestmark = [
    pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning"),
    pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning"),
]
TEXTS = [f"the river of the money {number}" for number in range(20)]


@pytest.fixture
def embedder(model_folder: Path) -> ContextualEmbedder:
    return ContextualEmbedder.from_corpus(TEXTS, model=model_folder, context_size=8)


@pytest.fixture
def target(tmp_path: Path, embedder: ContextualEmbedder) -> str:
    collection = chromadb.PersistentClient(path=str(tmp_path / "db")).create_collection("papers")
    collection.add(ids=TEXTS, documents=TEXTS, embeddings=embedder.embed_documents(TEXTS))  # type: ignore[arg-type]
    return f"chroma:{tmp_path / 'db'}#papers"


def test_vectors_are_told_from_those_of_another_context(
    run: Run, tmp_path: Path, embedder: ContextualEmbedder, target: str
):
    ours, theirs = tmp_path / "ours.context.safetensors", tmp_path / "theirs.context.safetensors"
    embedder.context.save(ours)
    ContextualEmbedder.from_corpus(["a bank", "it is a fish"], model=embedder.model).context.save(theirs)
    found = json.loads(run("audit", target, "--context", ours, "--json").stdout)
    assert (found["reproduced"], found["share"], found["others"]) == (20, 1.0, [])
    assert "0 of 20 sampled vectors" in run("audit", target, "--context", theirs, code=1).stdout


def test_a_contextual_model_needs_its_context(run: Run, target: str):
    assert "Give --context FILE" in run("audit", target, code=1).stderr


def test_a_context_has_the_prefixes_of_its_model(run: Run, tmp_path: Path, embedder: ContextualEmbedder, target: str):
    embedder.context.save(tmp_path / "a.safetensors")
    arguments = ("audit", target, "--context", tmp_path / "a.safetensors", "--query-prefix", "query: ")
    assert "--document-prefix" in run(*arguments, code=2).stderr


def test_a_collection_knows_its_model_and_context(run: Run, tmp_path: Path, embedder: ContextualEmbedder):
    with Collection.create(FaissStore(tmp_path / "papers"), embedder) as papers:
        papers.add(TEXTS)
    assert "20 of 20 sampled vectors" in run("audit", tmp_path / "papers").stdout


def test_a_stamped_store_names_its_model(run: Run, tmp_path: Path, embedder: ContextualEmbedder, target: str):
    context = tmp_path / "ours.context.safetensors"
    embedder.context.save(context)
    assert "makes the vectors of its canaries" in run("stamp", target, "--context", context).stdout
    found = json.loads(run("audit", target, "--context", context, "--json").stdout)
    assert found["stamp"] == embedder.fingerprint
    assert found["stamp_check"]["cosine"] > 0.9998
    theirs = tmp_path / "theirs.context.safetensors"
    ContextualEmbedder.from_corpus(["a bank", "it is a fish"], model=embedder.model).context.save(theirs)
    assert "No stamp is written" in run("stamp", target, "--context", theirs, code=1).stderr
    assert "does not make the vectors" in run("audit", target, "--context", theirs, code=1).stdout


def test_a_plain_model_is_loaded_by_its_stamp(tmp_path: Path):
    model = write_transformer(tmp_path / "plain")
    plain = PlainEmbedder(model, prefixes={"document": "river: ", "query": "bank: "})
    client = chromadb.PersistentClient(path=str(tmp_path / "db"))
    collection = client.create_collection("papers")
    collection.add(ids=TEXTS, documents=TEXTS, embeddings=plain.embed_documents(TEXTS))  # type: ignore[arg-type]
    target = f"chroma:{tmp_path / 'db'}#papers"
    invoke = CliRunner().invoke
    assert invoke(app, ["audit", target]).exit_code == 2  # without a stamp, and no model named
    prefixes = ["--document-prefix", "river: ", "--query-prefix", "bank: "]
    done = invoke(app, ["stamp", target, "--model", str(model), *prefixes])
    assert done.exit_code == 0, done.output
    found = invoke(app, ["audit", target])
    assert found.exit_code == 0, found.output
    assert "20 of 20 sampled vectors" in found.stdout
    content = json.loads(client.get_collection("papers").metadata[KEY])
    content["model"]["name"] = "http://example.com/v1#model"  # as whoever wrote the store may have it
    content["digest"] = digest_of({name: value for name, value in content.items() if name != "digest"})
    collection.modify(metadata={KEY: canonical(content).decode()})
    refused = invoke(app, ["audit", target])
    assert refused.exit_code == 1
    assert "Nothing is sent to a stored address" in refused.stderr
    collection.modify(metadata={KEY: "{}"})
    damaged = invoke(app, ["audit", target])
    assert damaged.exit_code == 1
    assert "its stamp cannot be read" in damaged.stderr


def test_a_model_of_an_api_is_named_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    client = chromadb.PersistentClient(path=str(tmp_path / "db"))
    target = f"chroma:{tmp_path / 'db'}#papers"
    invoke = CliRunner().invoke
    with running() as server:
        made = openai_embedder("small", base_url=server.url, prefixes={"document": "passage: ", "query": ""})
        collection = client.create_collection("papers")
        collection.add(ids=TEXTS, documents=TEXTS, embeddings=made.embed_documents(TEXTS))  # type: ignore[arg-type]
        named = ["--model", f"{server.url}#small", "--document-prefix", "passage: "]
        for command in ("stamp", "audit"):
            done = invoke(app, [command, target, *named])
            assert done.exit_code == 0, done.output
            assert "20 of 20 sampled vectors" in done.stdout
        assert invoke(app, ["audit", target, *named[:2]]).exit_code == 1  # without the prefix
        calls = len(server.calls)
        refused = invoke(app, ["audit", target])
        assert refused.exit_code == 1
        assert "Give --model openai:small" in refused.stderr
        assert len(server.calls) == calls

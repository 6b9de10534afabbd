"""The command audit."""

import json
from collections.abc import Callable
from pathlib import Path

import chromadb
import pytest
from typer.testing import Result

from cde_rag import Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore

Run = Callable[..., Result]
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
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

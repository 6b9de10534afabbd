"""Another process finds the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDEVectorStore

TESTS = Path(__file__).resolve().parents[4] / "tests"

READER = """
import json
from tiny import tiny_cde_model
from cde_rag import Collection
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDEVectorStore

embeddings = CDEEmbeddings.load("a.context.safetensors", model=tiny_cde_model())
store = CDEVectorStore(Collection.open(FaissStore("store"), model=tiny_cde_model()))
added = store.add_texts(["the delta in another process"], ids=["new"])
print(json.dumps({
    "fingerprints": [embeddings.fingerprint, store.embeddings.fingerprint],
    "documents": embeddings.embed_documents(["a fish", "a bank"]),
    "query": embeddings.embed_query("a fish"),
    "found": [[document.id, score] for document, score in store.similarity_search_with_score("a fish", 5)],
}))
"""


def test_a_fresh_process_gets_identical_vectors(embeddings: CDEEmbeddings, texts: list[str], tmp_path: Path) -> None:
    embeddings.save(tmp_path / "a.context.safetensors")
    store = CDEVectorStore.from_texts(
        texts, embeddings, [{"source": text[-1]} for text in texts], store=FaissStore(tmp_path / "store")
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["fingerprints"] == [embeddings.fingerprint] * 2
    assert there["documents"] == embeddings.embed_documents(["a fish", "a bank"])
    assert there["query"] == embeddings.embed_query("a fish")
    here = store.similarity_search_with_score("a fish", 5)
    assert there["found"] == [[document.id, pytest.approx(score)] for document, score in here]
    assert store.get_by_ids(["new"])


USER = """
import sys
from langchain_chroma import Chroma
from langchain_community.vectorstores import FAISS
from langchain_cde import CDEEmbeddings

texts = [f"Rule {n} of a game of dice." for n in range(70)]
if sys.argv[1] == "build":
    embeddings = CDEEmbeddings.from_texts(texts)
    FAISS.from_texts(texts, embeddings).save_local("faiss")
    Chroma.from_texts(texts, embeddings, persist_directory="chroma")
faiss = FAISS.load_local("faiss", CDEEmbeddings(), allow_dangerous_deserialization=True)
for store in (faiss, Chroma(persist_directory="chroma", embedding_function=CDEEmbeddings())):
    print([(found.page_content, round(score, 4)) for found, score in store.similarity_search_with_score("rule 7", k=3)])
"""


@pytest.mark.slow
def test_a_fresh_process_that_says_of_no_context_finds_the_same(tmp_path: Path) -> None:
    built, opened = (
        subprocess.run(
            [sys.executable, "-c", USER, step], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for step in ("build", "open")
    )
    assert built == opened
    assert built.count("Rule") == 6

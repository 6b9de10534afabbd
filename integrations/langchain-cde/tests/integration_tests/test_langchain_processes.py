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

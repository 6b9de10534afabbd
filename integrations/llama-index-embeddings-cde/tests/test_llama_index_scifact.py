"""On real texts LlamaIndex's retrievers return what the core returns."""

import gzip
import json
from pathlib import Path

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.cde import CDEEmbedding

from cde_rag import Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore

CORPUS = "eval/scifact/corpus.jsonl.gz"
PAPERS, CLAIMS = 80, 25


def beginning(text: str) -> str:
    """As much as the model reads: adapters divide or refuse what is longer."""
    return " ".join(text.split()[:90])


def rows(path: Path, count: int) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line, _ in zip(file, range(count), strict=False)]


@pytest.mark.long
def test_the_same_top_ten(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # in bfloat16 texts that are nearly as near change places with the batches that they are embedded in
    monkeypatch.setattr("cde_rag.models.cde_model.native_dtype", lambda device: "float32")
    papers = [paper | {"text": beginning(paper["text"])} for paper in rows(shared_data / CORPUS, PAPERS)]
    claims = [row["text"] for row in rows(shared_data / "eval/scifact/queries.jsonl.gz", CLAIMS)]
    texts = [f"{paper['title']} {paper['text']}" for paper in papers]
    ids = [paper["_id"] for paper in papers]
    core = Collection.create(FaissStore(tmp_path / "core"), ContextualEmbedder.from_corpus(texts))
    core.add(texts, ids=ids)
    embedding = CDEEmbedding()
    nodes = [TextNode(text=text, id_=each) for text, each in zip(texts, ids, strict=True)]
    retriever = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=10)
    assert embedding.fingerprint == core.embedder.fingerprint
    assert embedding.model_name == core.embedder.context.identity.name != "cde-mini"
    for claim in claims:
        expected = [hit.id for hit in core.search(claim, 10, by="vectors")]
        assert len(set(expected)) == 10
        assert [hit.node_id for hit in retriever.retrieve(claim)] == expected
    core.close()

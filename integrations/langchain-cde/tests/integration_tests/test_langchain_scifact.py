"""On real texts LangChain's retrievers return what the core returns."""

import gzip
import json
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_qdrant import QdrantVectorStore

from cde_rag import Collection, ContextualEmbedder
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDERetriever, CDEVectorStore

CORPUS = "eval/scifact/corpus.jsonl.gz"
PAPERS, CLAIMS = 80, 15


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

    core = Collection.create(FaissStore(tmp_path / "core"), ContextualEmbedder.from_corpus(texts))
    core.add(
        [paper["text"] for paper in papers],
        ids=[paper["_id"] for paper in papers],
        titles=[paper["title"] for paper in papers],
    )
    documents = [
        Document(id=paper["_id"], page_content=text, metadata={"paper": paper["_id"]})
        for paper, text in zip(papers, texts, strict=True)
    ]
    embeddings = CDEEmbeddings.from_documents(documents)
    store = CDEVectorStore.from_documents(documents, embeddings, store=FaissStore(tmp_path / "langchain"))
    name = embeddings.vector_name
    numbers = list(range(PAPERS))  # Qdrant takes no other ids
    qdrant = QdrantVectorStore.from_documents(documents, embeddings, ids=numbers, location=":memory:", vector_name=name)

    expected = [[hit.id for hit in core.search(claim, 10, by="vectors")] for claim in claims]
    assert all(len(set(ten)) == 10 for ten in expected)
    for retriever in (
        CDERetriever(collection=store.collection, k=10, search_type="similarity"),
        CDERetriever(collection=core, k=10, search_type="similarity"),
        store.as_retriever(search_type="similarity", search_kwargs={"k": 10}),
    ):
        assert [[document.id for document in retriever.invoke(claim)] for claim in claims] == expected
    by_qdrant = [qdrant.similarity_search(claim, 10) for claim in claims]
    assert [[document.metadata["paper"] for document in ten] for ten in by_qdrant] == expected

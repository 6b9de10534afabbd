"""A user's own Embeddings with context: in a CDEVectorStore a document has its siblings' mean, and the class is asked
for documents and queries in its own two ways."""

from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from cde_rag import Collection
from cde_rag.embedders.arithmetic import ArithmeticEmbedder
from cde_rag.errors import ContextMismatchError, ModelError
from cde_rag.stores.faiss import FaissStore
from langchain_cde import CDEEmbeddings, CDEVectorStore
from langchain_cde.contexts import function_of

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

DOCUMENTS = [Document(f"rule {n} of game {n // 4}", metadata={"source": f"game {n // 4}"}) for n in range(12)]


class Letters(Embeddings):
    """How often each letter comes; queries count double letters once."""

    model = "letters-1"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [
            [1.0 + text.count(chr(97 + letter)) + text.count(chr(48 + letter)) for letter in range(26)]
            for text in texts
        ]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents(["".join(dict.fromkeys(text))])[0]


class Changed(Letters):
    """Another model behind the same name."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [vector[::-1] for vector in super().embed_documents(texts)]


Changed.__name__ = "Letters"


def test_a_document_has_its_siblings_mean(tmp_path: Path) -> None:
    own = ArithmeticEmbedder.from_corpus([], model=function_of(Letters()), weight=0.3, corpus=False)
    embeddings = CDEEmbeddings(own)
    store = CDEVectorStore.from_documents(DOCUMENTS, embeddings, store=FaissStore(tmp_path / "games"))
    hits = store.similarity_search_with_score("game 2", k=12)
    p = np.array(Letters().embed_documents([one.page_content for one in DOCUMENTS]))
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    mixed = np.stack([p[n] + 0.1 * sum(p[m] for m in range(n // 4 * 4, n // 4 * 4 + 4) if m != n) for n in range(12)])
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    query = np.array(Letters().embed_query("game 2"))
    scores = mixed @ (query / np.linalg.norm(query))
    found = {document.page_content: score for document, score in hits}
    expected = {one.page_content: score for one, score in zip(DOCUMENTS, scores, strict=True)}
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_class_comes_with_the_collection(tmp_path: Path) -> None:
    embeddings = CDEEmbeddings.from_documents(DOCUMENTS, model=Letters())
    CDEVectorStore.from_documents(DOCUMENTS, embeddings, store=FaissStore(tmp_path / "games"))  # reads no siblings
    again = CDEVectorStore(Collection.open(FaissStore(tmp_path / "games"), model=function_of(Letters())))
    assert again.embeddings.fingerprint == embeddings.fingerprint
    with pytest.raises(ContextMismatchError, match="has changed"):
        Collection.open(FaissStore(tmp_path / "games"), model=function_of(Changed()))


def test_a_saved_context_is_loaded_with_the_class(tmp_path: Path) -> None:
    embeddings = CDEEmbeddings.from_texts(["one", "two"], model=Letters())
    embeddings.save(tmp_path / "games.context.safetensors")
    again = CDEEmbeddings.load(tmp_path / "games.context.safetensors", model=Letters())
    assert again.fingerprint == embeddings.fingerprint
    assert again.embed_query("which rule") == embeddings.embed_query("which rule")
    with pytest.raises(ModelError, match=r"by the Embeddings 'Letters\(letters-1\)', found model=None\. Give them"):
        CDEEmbeddings.load(tmp_path / "games.context.safetensors")
    with pytest.raises(TypeError, match=r"ArithmeticEmbedder\.from_corpus"):
        CDEEmbeddings.from_texts(["one"], model=Letters(), seed=1)

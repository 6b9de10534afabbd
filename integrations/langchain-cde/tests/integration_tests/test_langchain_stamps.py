"""FAISS and Chroma are stamped with the context of what is added, and refused to embeddings of another one."""

import importlib
from collections.abc import Callable
from pathlib import Path

import chromadb
import pytest
from langchain_chroma import Chroma
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.errors import ContextError, ContextMismatchError, ContextMissingError
from cde_rag.stamps import KEY
from langchain_cde import CDEEmbeddings, contexts, keepers

TEXTS = [f"a boat {n} on the river" for n in range(7)]
ANYTHING = "a boat"
Reopen = Callable[[CDEEmbeddings], VectorStore]
Make = Callable[[Path, CDEEmbeddings], Reopen]


def faiss(folder: Path, embeddings: CDEEmbeddings) -> Reopen:
    FAISS.from_texts(TEXTS, embeddings).save_local(str(folder))
    return lambda each: FAISS.load_local(str(folder), each, allow_dangerous_deserialization=True)


def chroma(folder: Path, embeddings: CDEEmbeddings) -> Reopen:
    reopen = lambda each: Chroma("boats", each, persist_directory=str(folder))  # noqa: E731
    reopen(embeddings).add_texts(TEXTS)
    return reopen


@pytest.fixture(params=[faiss, chroma])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def test_the_same_context_finds_what_it_added(make: Make, tmp_path: Path, embeddings: CDEEmbeddings) -> None:
    store = make(tmp_path, embeddings)(embeddings)
    store.add_texts(["a bank"])
    found = store.similarity_search("a bank", k=20)
    assert sorted(document.page_content for document in found) == sorted([*TEXTS, "a bank"])  # and no mark
    assert not any(KEY in document.metadata for document in found)


def test_without_a_context_a_store_is_searched_and_filled_in_its_own(
    make: Make, tmp_path: Path, embeddings: CDEEmbeddings, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_bound", lambda context, _: ContextualEmbedder(tiny_model, context))
    reopen = make(tmp_path, embeddings)
    store, bare = reopen(embeddings), reopen(CDEEmbeddings())
    assert bare.similarity_search_with_score(ANYTHING) == store.similarity_search_with_score(ANYTHING)
    bare.add_texts(["a bank"])
    assert bare.similarity_search("a bank", k=1)[0].page_content == "a bank"
    assert reopen(CDEEmbeddings()).add_texts(["a bank"])  # a writer that never searched


async def test_without_a_context_async(
    make: Make, tmp_path: Path, embeddings: CDEEmbeddings, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_bound", lambda context, _: ContextualEmbedder(tiny_model, context))
    assert await make(tmp_path, embeddings)(CDEEmbeddings()).asimilarity_search(ANYTHING)


def test_a_context_that_is_not_cached_is_named_with_the_way_to_bring_it(
    make: Make, tmp_path: Path, embeddings: CDEEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen = make(tmp_path / "store", embeddings)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    way = rf"in the context {embeddings.fingerprint[:16]}….*save\(path\) there, CDEEmbeddings\.load\(path\) here"
    with pytest.raises(ContextMissingError, match=way):
        reopen(CDEEmbeddings()).similarity_search(ANYTHING)


def test_another_context_neither_reads_nor_writes(
    make: Make, tmp_path: Path, embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    reopen = make(tmp_path, embeddings)
    store = reopen(others)
    for call in (
        lambda: store.similarity_search(ANYTHING),
        lambda: store.similarity_search_with_score(ANYTHING),
        lambda: store.max_marginal_relevance_search(ANYTHING),
        lambda: store.as_retriever().invoke(ANYTHING),
        lambda: store.add_texts(["a bank"]),
    ):
        with pytest.raises(ContextMismatchError) as error:
            call()
        assert error.value.expected == embeddings.fingerprint
        assert error.value.found == others.fingerprint
    assert len(reopen(embeddings).similarity_search(ANYTHING, k=20)) == len(TEXTS)


async def test_async(make: Make, tmp_path: Path, embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    reopen = make(tmp_path, embeddings)
    assert await reopen(embeddings).asimilarity_search(ANYTHING)
    with pytest.raises(ContextMismatchError):
        await reopen(others).asimilarity_search(ANYTHING)
    with pytest.raises(ContextMismatchError):
        await reopen(others).aadd_texts(["a bank"])


async def test_faiss_that_is_made_async(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    store = await FAISS.afrom_texts(TEXTS, embeddings)
    assert store.similarity_search(ANYTHING)
    store.embedding_function = others
    with pytest.raises(ContextMismatchError):
        store.similarity_search(ANYTHING)


def unstamped_faiss(_: Path, embeddings: CDEEmbeddings) -> VectorStore:
    vectors = embeddings.embed_documents(TEXTS)
    return FAISS.from_embeddings(list(zip(TEXTS, vectors, strict=True)), embeddings)


def unstamped_chroma(folder: Path, embeddings: CDEEmbeddings) -> VectorStore:
    store = Chroma("boats", embeddings, persist_directory=str(folder), collection_metadata={"hnsw:space": "cosine"})
    store._collection.add(ids=["1"], documents=TEXTS[:1], embeddings=embeddings.embed_documents(TEXTS[:1]))  # type: ignore[arg-type]
    return store


@pytest.mark.parametrize("unstamped", [unstamped_faiss, unstamped_chroma])
def test_what_has_no_stamp_is_refused_until_it_is_stamped(
    unstamped: Callable[[Path, CDEEmbeddings], VectorStore],
    tmp_path: Path,
    embeddings: CDEEmbeddings,
    others: CDEEmbeddings,
) -> None:
    store = unstamped(tmp_path, embeddings)
    for call in (lambda: store.similarity_search(ANYTHING), lambda: store.add_texts(["a bank"])):
        with pytest.raises(ContextMissingError, match=r"embeddings\.stamp\(store\)"):
            call()
    embeddings.stamp(store)
    embeddings.stamp(store)
    assert store.similarity_search(ANYTHING, k=1)
    with pytest.raises(ContextMismatchError, match="replace=True"):
        others.stamp(store)
    assert store.similarity_search(ANYTHING, k=1)
    others.stamp(store, replace=True)
    with pytest.raises(ContextMismatchError):
        store.similarity_search(ANYTHING)


def test_an_empty_store_takes_any_context_once(
    tmp_path: Path, embeddings: CDEEmbeddings, others: CDEEmbeddings
) -> None:
    metadata = {"topic": "boats", "hnsw:space": "cosine"}
    store = Chroma("boats", embeddings, persist_directory=str(tmp_path), collection_metadata=metadata)
    assert store.similarity_search(ANYTHING) == []  # which stamps nothing
    other = Chroma("boats", others, persist_directory=str(tmp_path))
    other.add_texts(["a bank"])
    found = other._client.get_collection("boats").metadata
    assert (found["topic"], found[KEY]) == ("boats", others.fingerprint)
    with pytest.raises(ContextMismatchError):  # though it opened the collection when it was empty
        store.add_texts(["a boat"])
    other.delete(other.get()["ids"])
    with pytest.raises(ContextMismatchError, match="One that was emptied"):  # somebody may be filling it now
        store.add_texts(["a boat"])
    embeddings.stamp(store, replace=True)
    store.add_texts(["a boat"])


def test_two_that_fill_an_empty_store_at_once_do_not_mix(
    tmp_path: Path, embeddings: CDEEmbeddings, others: CDEEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Chroma("boats", each, persist_directory=str(tmp_path)) for each in (embeddings, others))
    embed = type(embeddings.embedder).embed_documents

    def meanwhile(embedder: object, texts: list[str]) -> object:
        if embedder is embeddings.embedder:
            with pytest.raises(ContextMismatchError):
                second.add_texts(TEXTS)
        return embed(embedder, texts)  # type: ignore[arg-type]

    monkeypatch.setattr(type(embeddings.embedder), "embed_documents", meanwhile)
    first.add_texts(TEXTS)
    assert len(first.similarity_search(ANYTHING, k=20)) == len(TEXTS)


def test_a_collection_that_was_renamed_is_opened_again(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    client = chromadb.EphemeralClient()
    Chroma("blue", embeddings, client=client).add_texts(TEXTS)
    Chroma("green", others, client=client).add_texts(TEXTS)
    reader = Chroma("blue", others, client=client)
    client.get_collection("blue").modify(name="old")
    client.get_collection("green").modify(name="blue")
    for call in (lambda: reader.similarity_search(ANYTHING), lambda: reader.add_texts(["a bank"])):
        with pytest.raises(ContextError, match="Open it again"):
            call()


def test_a_docstore_of_another_context_is_refused(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    shared = FAISS.from_texts(TEXTS, embeddings)
    with pytest.raises(ContextMismatchError):
        FAISS.from_texts(TEXTS, others, docstore=shared.docstore)


def test_another_process_sees_the_stamp(tmp_path: Path, embeddings: CDEEmbeddings) -> None:
    first, second = (Chroma("boats", embeddings, persist_directory=str(tmp_path)) for _ in range(2))
    first.add_texts(TEXTS)
    assert second.similarity_search(ANYTHING)


def test_faiss_keeps_the_docstore_that_it_is_given(embeddings: CDEEmbeddings) -> None:
    docstore = importlib.import_module("langchain_community.docstore.in_memory").InMemoryDocstore()
    store = FAISS.from_texts(TEXTS, embeddings, docstore=docstore)
    assert store.docstore is docstore
    assert isinstance(docstore.search(KEY), Document)


def test_only_stores_that_keep_a_stamp_are_stamped(embeddings: CDEEmbeddings) -> None:
    with pytest.raises(TypeError, match="InMemoryVectorStore"):
        embeddings.stamp(InMemoryVectorStore(embeddings))


def test_a_store_that_keeps_nothing_is_told_of_once(
    embeddings: CDEEmbeddings, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(keepers, "_WARNED", set())
    for _ in range(2):
        InMemoryVectorStore.from_texts(TEXTS, embeddings).similarity_search(ANYTHING)
    (warning,) = [found for found in recwarn if issubclass(found.category, keepers.UnstampedStoreWarning)]
    assert "InMemoryVectorStore keeps nothing" in str(warning.message)
    assert warning.filename == __file__  # the user's line


def test_the_error_is_one_of_ours(tmp_path: Path, embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    with pytest.raises(ContextError, match="Use this FAISS index with the embeddings that filled it"):
        faiss(tmp_path, embeddings)(others).similarity_search(ANYTHING)

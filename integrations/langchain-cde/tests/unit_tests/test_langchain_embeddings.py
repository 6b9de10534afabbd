"""CDEEmbeddings: LangChain's shape around the core's vectors, one context that is never made by accident."""

import asyncio
import copy
import json
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from tiny import tiny_cde_model

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.errors import (
    ContextError,
    ContextFormatError,
    ContextMismatchError,
    ContextMissingError,
    CorpusError,
    ModelError,
    SmallContextWarning,
    TruncationError,
    TruncationWarning,
)
from langchain_cde import CDEEmbeddings
from langchain_cde.space import SpaceVector


def test_vectors_are_the_cores(embeddings: CDEEmbeddings, texts: list[str], tiny_model: CDEModel) -> None:
    core = ContextualEmbedder.from_corpus(texts, model=tiny_model)
    assert embeddings.fingerprint == core.fingerprint
    assert embeddings.embed_documents(texts) == core.embed_documents(texts).tolist()
    assert embeddings.embed_query("the bank") == core.embed_queries(["the bank"])[0].tolist()


def test_a_query_is_not_a_document(embeddings: CDEEmbeddings) -> None:
    assert np.abs(np.subtract(embeddings.embed_query("a fish"), embeddings.embed_documents(["a fish"])[0])).max() > 1e-2


def test_another_context_makes_other_vectors(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    """All tests of mixed contexts stand on this."""
    assert embeddings.fingerprint != others.fingerprint
    moved = np.subtract(embeddings.embed_documents(["a fish"]), others.embed_documents(["a fish"]))
    assert np.abs(moved).max() > 1e-2


def test_how_texts_are_sliced_changes_nothing(embeddings: CDEEmbeddings, texts: list[str]) -> None:
    """LangChain's stores ask in slices of 64, 100 or 1, and for "dummy_text" before."""
    embeddings.embed_documents(["dummy_text"])
    sliced = [vector for start in range(0, 100, 7) for vector in embeddings.embed_documents(texts[start : start + 7])]
    np.testing.assert_allclose(sliced, embeddings.embed_documents(texts), atol=1e-6)


@pytest.mark.long
def test_a_process_of_ones_own_embeds_alike(texts: list[str]) -> None:
    bundled = CDEEmbeddings.from_texts(texts)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
        vector = own.submit(bundled.embed_query, "the bank").result()
    assert (vector, vector.fingerprint) == (bundled.embed_query("the bank"), bundled.fingerprint)


def test_no_texts_no_vectors(embeddings: CDEEmbeddings) -> None:
    assert embeddings.embed_documents([]) == []


def test_documents_in_any_order_make_one_context(texts: list[str], tiny_model: CDEModel) -> None:
    documents = [Document(page_content=text, metadata={"source": "a"}) for text in texts]
    there = CDEEmbeddings.from_documents(documents, model=tiny_model, context_size=70, seed=3)
    back = CDEEmbeddings.from_documents(iter(documents[::-1]), model=tiny_model, context_size=70, seed=3)
    by_text = CDEEmbeddings.from_texts(texts, model=tiny_model, context_size=70, seed=3)
    other_seed = CDEEmbeddings.from_texts(texts, model=tiny_model, context_size=70, seed=4)
    assert there.fingerprint == back.fingerprint == by_text.fingerprint != other_seed.fingerprint
    assert there.embedder.context.manifest.documents_seen == 100
    assert there.embedder.context.manifest.source == "all"


def test_the_context_has_as_many_documents_as_the_model_expects(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_cde_model()
    monkeypatch.setattr(model, "context_size", 70)
    for embeddings in (
        CDEEmbeddings.from_texts(texts, model=model),
        CDEEmbeddings.from_documents([Document(page_content=text) for text in texts], model=model),
    ):
        assert embeddings.embedder.context.counts.sum() == 70
    with pytest.raises(ContextError, match="expects 70 context documents, found context_size=512"):
        CDEEmbeddings.from_texts(texts, model=model, context_size=512)


def test_texts_in_place_of_documents_are_answered_with_from_texts(texts: list[str]) -> None:
    with pytest.raises(TypeError, match=r"found str in them. .*CDEEmbeddings\.from_texts\(texts\)"):
        CDEEmbeddings.from_documents(texts)  # type: ignore[arg-type]


def test_few_documents_work_with_a_warning(tiny_model: CDEModel) -> None:
    with pytest.warns(SmallContextWarning, match="only 2 different documents"):
        assert len(CDEEmbeddings.from_texts(["a", "b"], model=tiny_model).embed_query("a")) == 16


@pytest.mark.parametrize("method", ["embed_documents", "embed_query", "aembed_documents", "aembed_query"])
async def test_without_a_context_every_call_says_how_to_get_one(method: str) -> None:
    unfitted = CDEEmbeddings()
    texts = ["dummy_text"] if method.endswith("documents") else "dummy_text"
    for _ in ("the first call", "and the next: it did not take the dummy for its corpus"):
        with pytest.raises(ContextMissingError, match=r"from_documents.*from_texts.*load.*from_qdrant"):
            await getattr(unfitted, method)(texts)


@pytest.mark.parametrize("use", [lambda e: e.fingerprint, lambda e: e.cache_namespace(), lambda e: e.save("x")])
def test_without_a_context_there_is_no_name_and_nothing_to_save(use: object) -> None:
    with pytest.raises(ContextMissingError):
        use(CDEEmbeddings())  # type: ignore[operator]


@pytest.fixture
def tiny_default(tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model in place of the default, in contexts that are made without naming one."""
    make = CDEEmbeddings.from_texts
    monkeypatch.setattr(
        CDEEmbeddings, "from_texts", lambda texts, **named: make(texts, **{"model": tiny_model} | named)
    )


@pytest.mark.usefixtures("tiny_default")
async def test_a_store_that_shows_all_documents_makes_the_context(texts: list[str], tiny_model: CDEModel) -> None:
    expected = CDEEmbeddings.from_texts(texts, model=tiny_model)
    documents = [Document(page_content=text) for text in texts]
    for make in (InMemoryVectorStore.afrom_documents, FAISS.afrom_documents):
        made = CDEEmbeddings()
        await make(documents, made)
        assert made.fingerprint == expected.fingerprint
    made = CDEEmbeddings()
    store = InMemoryVectorStore.from_documents(documents, made)
    assert made.fingerprint == expected.fingerprint
    assert len(store.similarity_search(texts[0], k=3)) == 3
    for later in (
        lambda: InMemoryVectorStore(CDEEmbeddings()).add_documents(documents),
        CDEEmbeddings().embed_documents,
    ):
        with pytest.raises(ContextMissingError):
            later(*([texts] if later.__name__ == "embed_documents" else []))


def test_save_and_load(embeddings: CDEEmbeddings, tiny_model: CDEModel, tmp_path: Path) -> None:
    path = tmp_path / "a.context.safetensors"
    embeddings.save(path)
    loaded = CDEEmbeddings.load(path, model=tiny_model)
    assert loaded.fingerprint == embeddings.fingerprint
    assert loaded.embed_documents(["a boat"]) == embeddings.embed_documents(["a boat"])


def test_load_finds_a_bundled_model_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.context.safetensors"
    with pytest.warns(SmallContextWarning):
        made = CDEEmbeddings.from_texts(["one", "two"])
    made.save(path)
    assert CDEEmbeddings.load(path).embed_query("three") == made.embed_query("three")


def test_load_refuses_what_would_make_other_vectors(
    embeddings: CDEEmbeddings, tiny_model: CDEModel, tmp_path: Path
) -> None:
    path = tmp_path / "a.context.safetensors"
    with pytest.raises(ContextMissingError, match=r"there is no such file.*with embeddings\.save\(path\)"):
        CDEEmbeddings.load(path)
    embeddings.save(path)
    with pytest.raises(ContextMismatchError, match="made by 'tiny': load that model"):
        CDEEmbeddings.load(path, model=tiny_cde_model(seed=1))
    with pytest.raises(ModelError, match=r"made by the model 'tiny'.*model=…"):
        CDEEmbeddings.load(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ContextFormatError):
        CDEEmbeddings.load(path, model=tiny_model)


def test_blank_texts_are_refused_with_their_place(embeddings: CDEEmbeddings) -> None:
    with pytest.raises(CorpusError, match="1"):
        embeddings.embed_documents(["a", " "])
    with pytest.raises(TypeError):
        embeddings.embed_documents("a")  # type: ignore[arg-type]


async def test_async_gives_the_same_also_all_at_once(embeddings: CDEEmbeddings, texts: list[str]) -> None:
    found = await asyncio.gather(*(embeddings.aembed_documents([text]) for text in texts[:30]))
    np.testing.assert_allclose([one for (one,) in found], embeddings.embed_documents(texts[:30]), atol=1e-6)
    assert await embeddings.aembed_query("a") == embeddings.embed_query("a")


def test_threads_give_the_same(embeddings: CDEEmbeddings, others: CDEEmbeddings, texts: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: (embeddings, others)[n % 2].embed_query(texts[n]), range(100)))
    assert found == [(embeddings, others)[n % 2].embed_query(texts[n]) for n in range(100)]


def test_a_vector_is_a_list_that_knows_its_space(embeddings: CDEEmbeddings) -> None:
    for vector in (embeddings.embed_query("a"), *embeddings.embed_documents(["a"])):
        assert isinstance(vector, SpaceVector)
        for same in (vector.copy(), copy.copy(vector), copy.deepcopy(vector)):
            assert same == vector
            assert same.fingerprint == embeddings.fingerprint
        assert json.loads(json.dumps(vector)) == vector


def test_names_tell_context_and_role(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    names = [
        name
        for each in (embeddings, others)
        for name in (each.cache_namespace(), each.cache_namespace("query"), each.record_namespace("papers"))
    ]
    assert len(set(names)) == 6
    assert all(embeddings.fingerprint in name for name in names[:3])


def test_a_record_managers_namespace_moves_to_a_new_context(embeddings: CDEEmbeddings, others: CDEEmbeddings) -> None:
    for name in ("papers", "", "cde/papers", "shelf/cde/papers"):
        right = embeddings.record_namespace(name)
        assert right == f"cde/{embeddings.fingerprint}/{name}"
        assert embeddings.record_namespace(right) == right
        assert embeddings.record_namespace(others.record_namespace(name)) == right


def test_long_texts_are_read_in_windows_where_asked_for(texts: list[str], tiny_model: CDEModel, tmp_path: Path) -> None:
    """The vectors are the core's, whether asked for of texts or documents, and after `load`; off unless asked for."""
    long, whole = " ".join(texts[:20]), texts[0]
    cut = CDEEmbeddings.from_texts(texts, model=tiny_model)
    read = CDEEmbeddings.from_documents([Document(page_content=text) for text in texts], model=tiny_model, windows=True)
    core = ContextualEmbedder.from_corpus(texts, model=tiny_model, windows=True)
    assert read.fingerprint == core.fingerprint != cut.fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        vectors = read.embed_documents([long, whole])
    np.testing.assert_array_equal(vectors, core.embed_documents([long, whole]))
    np.testing.assert_allclose(vectors[1], cut.embed_documents([whole])[0], atol=1e-6)
    with pytest.raises(TruncationError, match=r"1 of which \d\d% would not be read.*chunk_size=.*windows=True"):
        cut.embed_documents([long])
    read.save(tmp_path / "long.context.safetensors")
    again = CDEEmbeddings.load(tmp_path / "long.context.safetensors", model=tiny_model)
    np.testing.assert_allclose(again.embed_documents([long]), vectors[:1], atol=1e-6)

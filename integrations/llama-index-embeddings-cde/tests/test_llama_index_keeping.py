"""A context goes with its embedding: into files, dictionaries, caches, events and worker processes."""

import copy
import json
import pickle  # noqa: TID251 - what LlamaIndex does with transformations for its worker processes
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import Settings, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent, EmbeddingStartEvent
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.cde import CDEEmbedding
from llama_index_corpora import corpus, sentences
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.event_handlers import BaseEventHandler

from cde_rag import ContextualEmbedder
from cde_rag.errors import (
    ContextError,
    ContextFormatError,
    ContextMismatchError,
    ContextMissingError,
    ContextReusedWarning,
    TruncationWarning,
)

Fresh = Callable[..., CDEEmbedding]

QUERY = """
import json, sys
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.embeddings.cde import CDEEmbedding

folder, model, query = sys.argv[1:]
embedding = CDEEmbedding.from_persist_dir(folder, model_name=model)
index = load_index_from_storage(StorageContext.from_defaults(persist_dir=folder), embed_model=embedding)
hits = index.as_retriever(similarity_top_k=5).retrieve(query)
print(json.dumps([embedding.get_query_embedding(query), [[hit.node_id, hit.score] for hit in hits]]))
"""


@pytest.mark.slow
def test_a_fresh_process_finds_the_same(fresh: Fresh, tiny_folder: str, tmp_path: Path) -> None:
    embedding = fresh()
    index = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    index.storage_context.persist(tmp_path)
    embedding.persist(tmp_path)
    query = "interest of the loan"
    hits = index.as_retriever(similarity_top_k=5).retrieve(query)
    answer = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path), tiny_folder, query], capture_output=True, text=True, check=True
    )
    vector, found = json.loads(answer.stdout)
    assert vector == embedding.get_query_embedding(query)
    assert found == [[hit.node_id, hit.score] for hit in hits]


def test_a_path_is_written_in_the_first_build_and_read_after_that(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "docs.context.safetensors"
    first = fresh(context_path=path)
    waiting, later = fresh(context_path=path), fresh(context_path=path)  # made before there was a file
    VectorStoreIndex.from_documents(corpus(), embed_model=first)
    assert later.get_text_embedding("money") == first.get_text_embedding("money")
    for other in (fresh(context_path=str(path)), waiting, CDEEmbedding.load(path, model_name=first.model_name)):
        assert other.get_query_embedding("money") == first.get_query_embedding("money")
        assert other.get_text_embedding_batch(["money"]) == first.get_text_embedding_batch(["money"])  # no build
        assert other.fingerprint == first.fingerprint


def test_a_query_never_makes_a_file(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "docs.context.safetensors"
    with pytest.raises(ContextMissingError, match=r"docs\.context\.safetensors"):
        fresh(context_path=path).get_query_embedding("money")
    assert not path.exists()


def test_a_context_that_cannot_be_written_is_not_used(fresh: Fresh, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    embedding = fresh(context_path=tmp_path / "file" / "docs.context.safetensors")
    for _ in range(2):  # the second build is no better than the first
        with pytest.raises(ContextError, match="not written"):
            VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    assert embedding.fingerprint is None


def test_another_context_is_not_overwritten(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "docs.context.safetensors"
    one, other = fresh(), fresh()
    one.fit(sentences(70))
    other.fit(sentences(70, seed=1))
    one.save(path)
    one.save(path)
    with pytest.raises(ContextMismatchError, match="choose another place"):
        other.save(path)


def test_a_context_is_never_replaced(fresh: Fresh) -> None:
    embedding = fresh()
    embedding.fit(sentences(70))
    embedding.fit(sentences(70))
    with pytest.raises(ContextMismatchError, match="another CDEEmbedding"):
        embedding.fit(sentences(70, seed=1))


def test_a_damaged_file_is_refused(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "docs.context.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ContextFormatError):
        fresh(context_path=path)


def test_there_is_nothing_to_save_or_load(fresh: Fresh, tmp_path: Path) -> None:
    with pytest.raises(ContextMissingError):
        fresh().save(tmp_path / "docs.context.safetensors")
    with pytest.raises(ContextMissingError, match=r"embedding\.persist\(persist_dir\)"):
        CDEEmbedding.from_persist_dir(tmp_path)


def test_an_unknown_field_is_refused(fresh: Fresh, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^CDEEmbedding has no argument 'contxt_path': write context_path=… for it\.$"):
        fresh(contxt_path=tmp_path / "docs.context.safetensors")
    with pytest.raises(TypeError, match=r"'context_file': write context_path=… for it\.$"):
        fresh(context_file="docs.context.safetensors")
    with pytest.raises(TypeError, match=r"^CDEEmbedding: embed_batch_size has to be greater than 0, found 0\.$"):
        fresh(embed_batch_size=0)
    with pytest.raises(TypeError, match=r"^model is your own embedding, .* or any model by its name: model_name=…\.$"):
        fresh(model="text-embedding-3-small")
    embedding = fresh(seed=3)
    assert CDEEmbedding.from_dict(embedding.to_dict()).seed == 3
    assert CDEEmbedding.model_validate(embedding.model_dump()).seed == 3  # which has LlamaIndex's class_name


def test_an_embedder_of_the_core_can_be_taken_over(tiny_folder: str) -> None:
    core = ContextualEmbedder.from_corpus(sentences(70), model=tiny_folder, strategy="clusters", context_size=10)
    embedding = CDEEmbedding.from_embedder(core)
    assert embedding.get_query_embedding("money") == core.embed_queries(["money"])[0].tolist()
    VectorStoreIndex([TextNode(text=text) for text in sentences(70)], embed_model=embedding)
    assert embedding.fingerprint == core.fingerprint


def test_dictionaries_round_trip(fresh: Fresh, tmp_path: Path) -> None:
    embedding = fresh(context_path=tmp_path / "docs.context.safetensors", seed=3, context_size=40)
    embedding.get_text_embedding_batch(sentences(70))
    again = CDEEmbedding.from_json(embedding.to_json())
    assert again.to_dict() == embedding.to_dict()
    assert again.get_query_embedding("money") == embedding.get_query_embedding("money")


def test_a_dictionary_finds_its_context_in_the_cache(fresh: Fresh) -> None:
    embedding = fresh()
    embedding.fit(sentences(70))
    again = CDEEmbedding.from_dict(embedding.to_dict())
    assert again.get_query_embedding("money") == embedding.get_query_embedding("money")


def test_a_dictionary_without_a_file_is_refused_until_there_is_one(
    fresh: Fresh, tmp_path: Path, cache_folder: Path
) -> None:
    embedding = fresh()
    embedding.fit(sentences(70))
    shutil.rmtree(cache_folder)
    again = CDEEmbedding.from_dict(embedding.to_dict())
    assert again.fingerprint == embedding.fingerprint
    for call in (again.get_query_embedding, again.get_text_embedding, again.get_text_embedding_batch):
        with pytest.raises(ContextMissingError, match=str(embedding.fingerprint)[:16]):
            call(sentences(70) if call == again.get_text_embedding_batch else "money")
    embedding.save(tmp_path / "docs.context.safetensors")
    again = CDEEmbedding.from_dict(embedding.to_dict())
    assert again.get_query_embedding("money") == embedding.get_query_embedding("money")


def test_a_dictionary_with_another_file_is_refused(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "docs.context.safetensors"
    embedding, other = fresh(), fresh()
    embedding.fit(sentences(70))
    other.fit(sentences(70, seed=1))
    other.save(path)
    with pytest.raises(ContextMismatchError):
        CDEEmbedding.from_dict(embedding.to_dict(), context_path=str(path))


def test_copies_keep_the_context(fresh: Fresh) -> None:
    embedding = fresh()
    embedding.fit(sentences(70))
    for made in (copy.copy(embedding), copy.deepcopy(embedding), embedding.model_copy(deep=True)):
        assert made.get_query_embedding("money") == embedding.get_query_embedding("money")


def test_a_pickled_copy_has_the_same_context(fresh: Fresh, cache_folder: Path) -> None:
    embedding = fresh()
    embedding.fit(sentences(70))
    shutil.rmtree(cache_folder)  # as in a worker on another machine
    again = pickle.loads(pickle.dumps(embedding))
    assert again.get_query_embedding("money") == embedding.get_query_embedding("money")


def test_a_pickled_copy_never_makes_a_context(fresh: Fresh) -> None:
    again = pickle.loads(pickle.dumps(fresh()))
    with pytest.raises(ContextMissingError, match="worker process"):
        again.get_text_embedding_batch(sentences(70))
    with pytest.raises(ContextMissingError):
        again([TextNode(text=text) for text in sentences(70)])


@pytest.mark.long
def test_workers_have_the_same_context_or_raise(fresh: Fresh) -> None:
    texts = sentences(70)
    embedding = fresh()
    embedding.fit(texts)
    documents = corpus(70)
    nodes = IngestionPipeline(transformations=[embedding]).run(documents=documents, num_workers=2)
    np.testing.assert_allclose([node.embedding for node in nodes], embedding.get_text_embedding_batch(texts), atol=1e-5)
    with pytest.raises(ContextMissingError, match="worker process"):
        IngestionPipeline(transformations=[fresh()]).run(documents=corpus(70), num_workers=2)


def test_cached_embeddings_are_of_one_space_and_role(fresh: Fresh) -> None:
    cache = SimpleKVStore()
    cache.put("money", {"LlamaIndex": [0.0] * 16}, collection="embeddings")  # by the bare text, of any model
    one, other, plain = fresh(embeddings_cache=cache), fresh(embeddings_cache=cache), fresh()
    one.fit(sentences(70))
    plain.fit(sentences(70))
    other.fit(sentences(70, seed=1))
    for _ in range(2):
        for embedding in (one, plain):
            assert embedding.get_query_embedding("money") == plain.get_query_embedding("money")
            assert embedding.get_text_embedding("money") == plain.get_text_embedding("money")
            batches = [each.get_text_embedding_batch(["money", "river", "money"]) for each in (embedding, plain)]
            np.testing.assert_allclose(*batches, atol=1e-6)  # what is cached may have been embedded by itself
        assert other.get_query_embedding("money") != one.get_query_embedding("money")
        assert other.get_text_embedding("money") != one.get_text_embedding("money")
    assert len(cache.get_all(collection="embeddings")) == 1 + 2 * 2 + 1


def test_cached_embeddings_are_used(fresh: Fresh) -> None:
    embedding = fresh(embeddings_cache=SimpleKVStore())
    embedding.fit(sentences(70))
    first = embedding.get_text_embedding_batch(sentences(70))
    embedding._embedder.embed_passages = None  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    assert embedding.get_text_embedding_batch(sentences(70)) == first


def test_what_depends_on_siblings_is_not_cached(fresh: Fresh) -> None:
    from test_llama_index_parents import passages

    cache = SimpleKVStore()
    embedding, nodes = fresh(embeddings_cache=cache), passages()
    embedding(nodes)
    assert cache.get_all(collection="embeddings") == {}


def test_a_pipelines_cache_gives_no_vectors_to_an_embedding_without_context(fresh: Fresh) -> None:
    """Else run 1's vectors would meet those of a context that the second embedding makes later."""
    cache = IngestionCache()
    first, second = fresh(), fresh()
    IngestionPipeline(transformations=[first], cache=cache).run(documents=corpus())
    IngestionPipeline(transformations=[second], cache=cache).run(documents=corpus())
    assert second.fingerprint is not None


def test_a_pipelines_cache_is_used_within_one_space(fresh: Fresh) -> None:
    cache = IngestionCache()
    for seed, embedded in ((0, 80), (0, 0), (1, 80)):
        embedding = fresh()
        embedding.fit(sentences(70, seed=seed))
        with nullcontext() if seed == 0 else pytest.warns(ContextReusedWarning):
            nodes = IngestionPipeline(transformations=[embedding], cache=cache).run(documents=corpus())
        assert embedding.inspect().texts_without_parent == embedded
        assert nodes[0].embedding == pytest.approx(embedding.get_text_embedding(nodes[0].get_content()), abs=1e-5)


class Events(BaseEventHandler):
    """Keeps what it is told."""

    told: list[Any] = []  # noqa: RUF012 - a pydantic field

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.told.append(event)


def test_events_name_the_space_and_tell_no_texts(fresh: Fresh) -> None:
    events, debug = Events(), LlamaDebugHandler(print_trace_on_end=False)
    root = get_dispatcher()
    root.add_event_handler(events)
    try:
        embedding = fresh(callback_manager=CallbackManager([debug]))
        embedding.get_text_embedding_batch(sentences(70))
        embedding.get_query_embedding("the secret money")
        embedding.get_text_embedding("the secret money")
        embedding([TextNode(text="the secret money")])
    finally:
        root.event_handlers.remove(events)
    starts = [event for event in events.told if isinstance(event, EmbeddingStartEvent)]
    ends = [event for event in events.told if isinstance(event, EmbeddingEndEvent)]
    assert [event.model_dict["fingerprint"] for event in starts] == [embedding.fingerprint] * 4
    assert [(event.chunks, event.embeddings) for event in ends] == [([], [])] * 4
    pairs = debug.get_event_pairs(CBEventType.EMBEDDING)
    assert len(pairs) == 4
    assert not any("money" in str(event.payload) for pair in pairs for event in pair)


def test_an_index_replaces_the_callback_manager_and_nothing_else(fresh: Fresh) -> None:
    manager = CallbackManager([])
    embedding = fresh(callback_manager=manager)
    VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    assert embedding.callback_manager is not manager
    fingerprint = embedding.fingerprint
    index = VectorStoreIndex([], embed_model=embedding)
    assert (embedding.fingerprint, index.index_struct.nodes_dict) == (fingerprint, {})


def test_a_reloaded_index_keeps_its_context(fresh: Fresh, tmp_path: Path) -> None:
    embedding = fresh()
    index = VectorStoreIndex.from_documents(corpus(), embed_model=embedding)
    index.storage_context.persist(tmp_path)
    embedding.persist(tmp_path)
    Settings.embed_model = CDEEmbedding.from_persist_dir(tmp_path, model_name=embedding.model_name)
    again = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(tmp_path)))
    again.insert_nodes([TextNode(text="a loan for the boat", id_="new")])
    (hit,) = again.as_retriever(similarity_top_k=1).retrieve("a loan for the boat")
    assert hit.score is not None
    assert again.vector_store.get("new") == embedding.get_text_embedding("a loan for the boat")


def test_the_alias_of_the_newest_model_becomes_its_exact_name() -> None:
    embedding = CDEEmbedding()
    embedding.fit(sentences(70))
    assert embedding.model_name == embedding._bound().context.identity.name != "cde-mini"


def test_long_texts_are_read_in_windows_where_asked_for(fresh: Fresh, tiny_folder: str, tmp_path: Path) -> None:
    """The vectors are the core's, and a context that was made with windows is read with them wherever it goes."""
    texts, path = sentences(80), tmp_path / "long.context.safetensors"
    long = " ".join(texts[:20])
    embedding = fresh(windows=True).fit(texts)
    core = ContextualEmbedder.from_corpus(texts, model=tiny_folder, windows=True)
    assert embedding.fingerprint == core.fingerprint != fresh().fit(texts).fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        vectors = embedding.get_text_embedding_batch([long, texts[0]])
    np.testing.assert_allclose(vectors, core.embed_documents([long, texts[0]]), atol=1e-6)
    embedding.save(path)
    copies = (
        fresh(context_path=path),
        CDEEmbedding.from_dict(embedding.to_dict()),
        pickle.loads(pickle.dumps(embedding)),
    )
    for again in copies:
        assert again.windows
        np.testing.assert_allclose(again.get_text_embedding(long), vectors[0], atol=1e-6)
    nodes = [TextNode(text=text) for text in texts]
    assert CDEEmbedding.from_nodes(nodes, model_name=tiny_folder, windows=True).fingerprint == core.fingerprint


def test_windows_that_the_context_has_not_are_refused(fresh: Fresh, tmp_path: Path) -> None:
    path = tmp_path / "cut.context.safetensors"
    fresh(context_path=path).fit(sentences(80))
    with pytest.raises(ContextMismatchError, match="leave windows out"):
        fresh(context_path=path, windows=True)
    assert not fresh(context_path=path).windows

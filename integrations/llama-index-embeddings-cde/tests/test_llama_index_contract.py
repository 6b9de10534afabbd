"""What LlamaIndex expects of every embedding."""

from collections.abc import Callable

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings.utils import resolve_embed_model
from llama_index.core.postprocessor import SentenceEmbeddingOptimizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.cde import CDEEmbedding
from llama_index_corpora import sentences

from cde_rag.errors import TruncationError, TruncationWarning

Fresh = Callable[..., CDEEmbedding]


@pytest.fixture
def embedding(fresh: Fresh) -> CDEEmbedding:
    made = fresh()
    made.fit(sentences(70))
    return made


def test_it_is_an_embedding() -> None:
    assert BaseEmbedding in CDEEmbedding.__mro__
    assert CDEEmbedding.class_name() == "CDEEmbedding"


def test_it_is_resolved_as_it_is(embedding: CDEEmbedding) -> None:
    assert resolve_embed_model(embedding) is embedding


def test_its_answers_are_lists_of_floats_of_unit_norm(embedding: CDEEmbedding) -> None:
    for vector in (
        embedding.get_query_embedding("money"),
        embedding.get_text_embedding("money"),
        *embedding.get_text_embedding_batch(["money", "river"]),
    ):
        assert {type(value) for value in vector} == {float}
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


async def test_sync_and_async_agree(embedding: CDEEmbedding) -> None:
    texts = sentences(20)
    assert await embedding.aget_query_embedding("money") == embedding.get_query_embedding("money")
    assert await embedding.aget_text_embedding("money") == embedding.get_text_embedding("money")
    assert await embedding.aget_text_embedding_batch(texts) == embedding.get_text_embedding_batch(texts)


async def test_queries_can_be_averaged(embedding: CDEEmbedding) -> None:
    both = [embedding.get_query_embedding(query) for query in ("money", "river")]
    expected = pytest.approx(np.mean(both, axis=0).tolist())
    assert embedding.get_agg_embedding_from_queries(["money", "river"]) == expected
    assert await embedding.aget_agg_embedding_from_queries(["money", "river"]) == expected


def test_a_query_is_no_document(embedding: CDEEmbedding) -> None:
    assert embedding.get_query_embedding("money") != embedding.get_text_embedding("money")


def test_a_transformation_gives_back_its_nodes(embedding: CDEEmbedding) -> None:
    nodes = [TextNode(text=text) for text in sentences(3)]
    assert embedding(nodes) is nodes
    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    assert [node.embedding for node in nodes] == embedding.get_text_embedding_batch(texts)


def test_other_parts_of_the_framework_can_use_it(embedding: CDEEmbedding) -> None:
    optimizer = SentenceEmbeddingOptimizer(
        embed_model=embedding, percentile_cutoff=0.5, tokenizer_fn=lambda text: text.split(". ")
    )
    node = NodeWithScore(node=TextNode(text="the river bank. the loan of money. a fish. a boat"))
    (left,) = optimizer.postprocess_nodes([node], query_bundle=QueryBundle("money"))
    assert 0 < len(left.node.get_content()) < 49


def test_the_payload_has_no_more_than_names(embedding: CDEEmbedding) -> None:
    assert embedding.to_payload() == {
        "class_name": "CDEEmbedding",
        "model_name": embedding.model_name,
        "embed_batch_size": 32,
        "fingerprint": embedding.fingerprint,
    }


SETTING = r"SentenceSplitter\(chunk_size=\d+, chunk_overlap=\d+\)"


def test_long_texts_without_nodes_are_refused(embedding: CDEEmbedding, fresh: Fresh) -> None:
    """Nothing is embedded and no context is made of what the model would not read; a few tokens more are warned of."""
    with pytest.raises(TruncationError, match=rf"1 of which \d\d% would not be read.*{SETTING}.*windows=True"):
        embedding.get_text_embedding("money " * 100)
    unfitted = fresh()
    with pytest.raises(TruncationError, match="70 of which"):
        unfitted.get_text_embedding_batch(["money " * 100, *sentences(69)])
    assert unfitted.fingerprint is None
    with pytest.warns(TruncationWarning, match=rf"1 of 70 texts .*{SETTING}"):
        embedding.get_text_embedding_batch(["money " * 35, *sentences(69)])


@pytest.mark.parametrize("wrong", [["a"], "a", [TextNode(text="a"), None]])
def test_what_is_no_node_is_refused(wrong: list[TextNode]) -> None:
    for make in (CDEEmbedding.from_documents, CDEEmbedding.from_nodes):
        with pytest.raises(TypeError, match=rf"{make.__name__} expects .* found (str|NoneType) .*Document\(text="):
            make(wrong)

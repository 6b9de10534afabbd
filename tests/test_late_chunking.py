"""Late chunking: one chunk equals a plain text, chunks of one window see each other, and windows keep to the limit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import WORDS, tiny_cde_model

from cde_rag import ContextualEmbedder
from cde_rag.embedders.late_chunking import chunk_windows
from cde_rag.errors import CorpusError

NEAR = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="module")
def embedder() -> ContextualEmbedder:
    width = len(WORDS)
    corpus = [f"{WORDS[i % width]} {WORDS[(i // width + i) % width]}" for i in range(100)]
    return ContextualEmbedder.from_corpus(corpus, model=tiny_cde_model(), context_size=64)


chunks = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=25)
@given(texts=st.lists(chunks, min_size=1, max_size=6))
def test_a_document_of_one_chunk_is_a_plain_text(embedder: ContextualEmbedder, texts: list[str]) -> None:
    found = embedder.embed_chunks([[text] for text in texts])
    np.testing.assert_allclose(np.concatenate(found), embedder.embed_documents(texts), **NEAR)


@settings(max_examples=25)
@given(documents=st.lists(st.lists(chunks, min_size=1, max_size=12), min_size=1, max_size=4))
def test_documents_do_not_see_each_other(embedder: ContextualEmbedder, documents: list[list[str]]) -> None:
    together = embedder.embed_chunks(documents)
    assert [len(part) for part in together] == [len(document) for document in documents]
    for document, found in zip(documents, together, strict=True):
        np.testing.assert_allclose(found, embedder.embed_chunks([document])[0], **NEAR)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, **NEAR)


def test_chunks_in_windows_of_their_own_are_passages_with_siblings(embedder: ContextualEmbedder) -> None:
    """Late chunking equals siblings if no two chunks fit into one window."""
    document = [" ".join([word] * 20) for word in WORDS[:5]]
    expected = embedder.embed_documents(document, parents=["d"] * 5)
    np.testing.assert_allclose(embedder.embed_chunks([document])[0], expected, **NEAR)


def test_the_order_of_chunks_counts_and_so_does_the_window(embedder: ContextualEmbedder) -> None:
    document = [WORDS[0], WORDS[1], WORDS[2]]
    found = embedder.embed_chunks([document])[0]
    turned = embedder.embed_chunks([document[::-1]])[0][::-1]
    apart = embedder.embed_documents(document, parents=["d"] * 3)
    assert np.abs(found - turned).max() > 1e-3
    assert np.abs(found - apart).max() > 1e-3


@given(
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=30),
    most=st.integers(8, 64),
)
def test_windows_hold_every_token_once(lengths: list[tuple[int, int]], most: int) -> None:
    parents = [str(parent) for parent, _ in sorted(lengths)]
    tokens = [[-1, *range(place * 100, place * 100 + length), -2] for place, (_, length) in enumerate(sorted(lengths))]
    windows = list(chunk_windows(tokens, parents, most))
    assert [place for window in windows for place in window.chunks] == list(range(len(tokens)))
    for window in windows:
        assert len({parents[place] for place in window.chunks}) == 1
        assert len(window.ids) <= most or len(window.chunks) == 1
        assert (window.ids[0], window.ids[-1]) == (-1, -2)
        for number, place in enumerate(window.chunks):
            assert window.ids[window.starts[number] : window.starts[number + 1]] == tokens[place][1:-1]
    for one, other in pairwise(windows):  # greedy: the next chunk did not fit
        if parents[one.chunks[-1]] == parents[other.chunks[0]]:
            assert len(one.ids) + len(tokens[other.chunks[0]]) - 2 > most


def test_bad_documents_are_named(embedder: ContextualEmbedder) -> None:
    with pytest.raises(CorpusError, match="Document 1 has no chunk"):
        embedder.embed_chunks([["river"], []])
    with pytest.raises(CorpusError, match="Text 1"):
        embedder.embed_chunks([["river", " "]])
    with pytest.raises(TypeError):
        embedder.embed_chunks(["river"])
    assert embedder.embed_chunks([]) == []

"""Windows: all of a long text is read, nothing twice; a text of one window is what it was; the option is part of the
vector space, and goes with the collection."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import WORDS, tiny_cde_model, tiny_network, tiny_tokenizer

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.errors import ContextMismatchError, TruncationWarning
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.windows import cut_into_windows, pool_windows
from cde_rag.stores.faiss import FaissStore

CORPUS = [f"the river bank {word} and a delta of {other}" for word in WORDS for other in WORDS[:4]]
LIMIT = 32  # tokens of the tiny model


def long_text(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


@pytest.fixture(scope="module")
def model() -> CDEModel:
    return tiny_cde_model()


@pytest.fixture(scope="module")
def cutting(model: CDEModel) -> ContextualEmbedder:
    return ContextualEmbedder.from_corpus(CORPUS, model=model, context_size=64)


@pytest.fixture(scope="module")
def windowed(model: CDEModel) -> ContextualEmbedder:
    return ContextualEmbedder.from_corpus(CORPUS, model=model, context_size=64, windows=True)


@given(text=st.text("ab .\n é漢", max_size=400), limit=st.integers(1, 20))
def test_windows_are_all_of_the_text_but_white_space(text: str, limit: int):
    found = cut_into_windows(text, lambda part: min(limit, len(part)), 1)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(0 < len(window) <= limit and window.strip() for window in found)
    place = 0
    for window in found:  # in order, and none overlaps another
        place = text.index(window, place) + len(window)


def test_windows_end_between_words_where_there_are_any():
    words = "river bank money loan water flood".split()
    found = cut_into_windows(" ".join(words), lambda part: min(13, len(part)), 2)
    assert found == ["river bank", "money loan", "water flood"]
    assert cut_into_windows("abcdefgh", lambda part: min(3, len(part)), 1) == ["abc", "def", "gh"]


def test_every_window_is_read_completely_and_is_as_long_as_it_may_be(model: CDEModel):
    text = long_text(300)
    for role in (DOCUMENT, QUERY):
        rows = model.tokenize_windows(text, role=role)
        assert not any(row.truncated for row in rows)
        assert all(len(row.ids) == LIMIT for row in rows[:-1])  # each word is one token
        inner = [token for row in rows for token in row.ids[1:-1]]
        assert inner == TextTokenizer(tiny_tokenizer())([text], 10_000)[0].ids[1:-1]


@pytest.mark.parametrize("text", ["bcd" * 2_000, "漢" * 500, "a" + " " * 9_000 + "b", "river\n" * 400])
def test_text_without_words_has_windows_too(model: CDEModel, text: str):
    rows = model.tokenize_windows(text)
    assert rows
    assert all(len(row.ids) <= LIMIT for row in rows)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6), roles=st.booleans())
def test_the_vector_is_the_weighted_mean_of_the_windows(
    windowed: ContextualEmbedder, cutting: ContextualEmbedder, lengths: list[int], roles: bool
):
    """Slow reference: each window embedded by itself by the embedder that cuts, which has nothing to cut."""
    texts = [long_text(length, seed) for seed, length in enumerate(lengths)]
    embed, alone = (
        (windowed.embed_queries, cutting.embed_queries)
        if roles
        else (windowed.embed_documents, cutting.embed_documents)
    )
    found = embed(texts)
    for text, vector in zip(texts, found, strict=True):
        words = text.split()
        parts = [words[start : start + LIMIT - 2] for start in range(0, len(words), LIMIT - 2)]
        vectors = alone([" ".join(part) for part in parts])
        expected = sum((len(part) + 2) * each for part, each in zip(parts, vectors, strict=True))
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=2e-6)


def test_texts_of_one_window_are_to_the_bit_what_they_were(windowed: ContextualEmbedder, cutting: ContextualEmbedder):
    texts = [long_text(length, length) for length in range(1, LIMIT - 1)]
    np.testing.assert_array_equal(windowed.embed_documents(texts), cutting.embed_documents(texts))
    np.testing.assert_array_equal(windowed.embed_queries(texts), cutting.embed_queries(texts))


def test_order_and_batches_change_nothing(windowed: ContextualEmbedder, monkeypatch: pytest.MonkeyPatch):
    texts = [long_text(length, length) for length in (3, 200, 40, 1, 95, 31, 30, 500)]
    expected = windowed.embed_documents(texts)
    np.testing.assert_allclose(windowed.embed_documents(texts[::-1])[::-1], expected, atol=2e-6)
    for text, vector in zip(texts, expected, strict=True):
        np.testing.assert_allclose(windowed.embed_documents([text])[0], vector, atol=2e-6)
    monkeypatch.setattr("cde_rag.models.token_batches.TOKENIZED_AT_ONCE", 3)
    monkeypatch.setattr(windowed, "mini_batch_size", 2)
    np.testing.assert_allclose(windowed.embed_documents(texts), expected, atol=2e-6)


def test_each_window_is_given_the_siblings_of_its_text(windowed: ContextualEmbedder, cutting: ContextualEmbedder):
    text, siblings = long_text(55), [CORPUS[3], CORPUS[50]]
    words = text.split()
    first, second = " ".join(words[: LIMIT - 2]), " ".join(words[LIMIT - 2 :])
    both = cutting.embed_passages([first, second], [siblings, siblings]).vectors
    expected = LIMIT * both[0] + (len(words) - LIMIT + 4) * both[1]
    found = windowed.embed_passages([CORPUS[0], text], [[], siblings])
    np.testing.assert_allclose(found.vectors[1], expected / np.linalg.norm(expected), atol=2e-6)
    assert np.abs(found.vectors[1] - windowed.embed_documents([text])[0]).max() > 1e-3


def test_nothing_is_cut_and_nobody_is_warned(windowed: ContextualEmbedder, cutting: ContextualEmbedder):
    text = long_text(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncationWarning)
        whole = windowed.embed_documents([text, text + " money"])
    assert np.abs(whole[0] - whole[1]).max() > 1e-5  # the last word is read
    with pytest.warns(TruncationWarning, match="1 of 1"):
        cutting.embed_documents([text])
    assert windowed.count_tokens([text, "bank"]) == 200 + 2 * 7 + 3
    assert cutting.count_tokens([text, "bank"]) == LIMIT + 3


def test_the_option_is_part_of_the_fingerprint_and_of_nothing_else(
    windowed: ContextualEmbedder, cutting: ContextualEmbedder, model: CDEModel, tmp_path: Path
):
    assert windowed.fingerprint != cutting.fingerprint
    assert windowed.context.with_windows(windows=False).fingerprint == cutting.fingerprint
    assert cutting.context.with_windows(windows=True).fingerprint == windowed.fingerprint
    assert windowed.context.with_windows(windows=True) is windowed.context
    np.testing.assert_array_equal(windowed.context.context_embeddings, cutting.context.context_embeddings)
    windowed.context.save(tmp_path / "c.context.safetensors")
    read = ContextualEmbedder(model, Context.load(tmp_path / "c.context.safetensors"))
    assert read.windows
    np.testing.assert_array_equal(read.embed_documents([long_text(99)]), windowed.embed_documents([long_text(99)]))
    null = Context.null(model)
    assert not null.identity.windows
    assert ContextualEmbedder(model, null.with_windows(windows=True)).windows
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(tiny_cde_model(seed=1), windowed.context)


def test_a_collection_reopens_with_its_windows_and_moves_to_others(tmp_path: Path):
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    stored = CDEModel.from_pretrained(tmp_path / "model", device="cpu", dtype="float32")
    texts = [*CORPUS, long_text(150), long_text(77, 1)]
    cutting = ContextualEmbedder.from_corpus(texts, model=stored, context_size=64)
    papers = Collection.create(FaissStore(tmp_path / "papers"), cutting)
    with pytest.warns(TruncationWarning, match="2 of"):
        papers.add(texts)
    assert not papers.inspect().windows

    report = papers.recontextualize(windows=True, context_size=64)
    assert report.embedded == len(texts)
    assert papers.recontextualize(context_size=64).embedded == 0  # the same sample, read in the same way
    with Collection.open(FaissStore(tmp_path / "papers"), model=stored) as opened:
        assert opened.inspect().windows
        expected = opened.embedder.embed_documents(texts)
        rows = opened.get([record.id for record in opened.scroll()])
        kept = opened.store.vectors([row.id for row in rows], fingerprint=opened.embedder.fingerprint)
        places = {text: place for place, text in enumerate(texts)}
        np.testing.assert_allclose(kept, expected[[places[row.text] for row in rows]], atol=2e-6)
        assert opened.search(long_text(150), k=1)[0].text == texts[-2]
        opened.rollback()
        assert not opened.inspect().windows
        with pytest.raises(TypeError, match="windows"):
            opened.recontextualize(embedder=cutting, windows=True)


def test_the_mean_of_opposite_windows_is_the_first():
    up = np.array([[1, 0], [-1, 0], [0, 1]], dtype=np.float32)
    np.testing.assert_array_equal(pool_windows(up, [5, 5, 9], [0, 2]), up[[0, 2]])

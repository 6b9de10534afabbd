"""Sampling: a matter of the set of texts and the seed, never of their order; unique texts, drawn evenly."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.context.sampling import Sample, sample_clusters, sample_random, sample_strata
from cde_rag.errors import CorpusError

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).filter(str.strip)
corpora = st.lists(texts, min_size=1, max_size=40)
sizes, seeds = st.integers(1, 50), st.integers(0, 5)


def stratum(text: str) -> str:
    return str(ord(text[0]) % 3) if text else "none"


def letters(batch: list[str]) -> np.ndarray:
    """A unit vector for each text: what characters it has."""
    vectors = np.array([[sum(map(ord, text)) % 7 + 1, len(text), ord(text[0]) % 5] for text in batch], dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_strata(corpus: list[str], size: int, *, seed: int) -> Sample:
    return sample_strata(corpus, [stratum(text) for text in corpus], size, seed=seed)


def by_clusters(corpus: list[str], size: int, *, seed: int) -> Sample:
    return sample_clusters(corpus, size, seed=seed, embed=letters)


strategies = pytest.mark.parametrize("sample", [sample_random, by_strata, by_clusters])
Strategy = Callable[..., Sample]


@strategies
@given(corpora, sizes, seeds, st.randoms(use_true_random=False))
def test_order_does_not_matter(sample: Strategy, corpus: list[str], size: int, seed: int, random):
    shuffled = random.sample(corpus, len(corpus))
    assert sample(shuffled, size, seed=seed) == sample(corpus, size, seed=seed)


@strategies
@given(corpora, sizes, seeds)
def test_sample_is_unique_texts_of_the_corpus(sample: Strategy, corpus: list[str], size: int, seed: int):
    drawn = sample(corpus, size, seed=seed)
    assert len(drawn.documents) == len(set(drawn.documents)) == min(size, len(set(corpus)))
    assert set(drawn.documents) <= set(corpus)
    assert drawn.documents_seen == len(corpus)


@pytest.mark.parametrize("sample", [sample_random, by_strata])
@given(corpora, sizes, seeds)
def test_smaller_sample_is_part_of_a_larger(sample: Strategy, corpus: list[str], size: int, seed: int):
    smaller, larger = sample(corpus, size, seed=seed), sample(corpus, size + 1, seed=seed)
    assert smaller.documents == larger.documents[:size]


@given(corpora, st.lists(texts), sizes, seeds)
def test_texts_of_the_sample_stay_while_a_corpus_grows(corpus: list[str], more: list[str], size: int, seed: int):
    before = sample_random(corpus, size, seed=seed)
    after = sample_random(corpus + more, size, seed=seed)
    assert set(after.documents) & set(corpus) <= set(before.documents)


def test_every_text_is_equally_likely():
    corpus, draws = [f"text {i}" for i in range(50)], 2000
    counts = Counter(text for seed in range(draws) for text in sample_random(corpus, 10, seed=seed).documents)
    observed = np.array([counts[text] for text in corpus])
    expected = draws * 10 / 50
    deviation = np.sqrt(draws * 0.2 * 0.8)  # of a binomial count
    assert np.abs(observed - expected).max() < 4 * deviation


def test_seeds_draw_differently():
    corpus = [f"text {i}" for i in range(1000)]
    drawn = {frozenset(sample_random(corpus, 20, seed=seed).documents) for seed in range(50)}
    assert len(drawn) == 50


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60), min_size=1), st.integers(1, 60), seeds)
def test_strata_are_met_in_proportion(stratum_sizes: dict[str, int], size: int, seed: int):
    strata = [name for name, count in stratum_sizes.items() for _ in range(count)]
    corpus = [f"{name} {i}" for i, name in enumerate(strata)]
    drawn = Counter(text[0] for text in sample_strata(corpus, strata, size, seed=seed).documents)
    for name, count in stratum_sizes.items():
        assert abs(drawn[name] - min(size / len(corpus), 1) * count) < 2


def test_strata_smaller_than_one_text_are_met_by_chance():
    corpus = [f"{i}" for i in range(100)]
    counts = Counter(
        text for seed in range(400) for text in sample_strata(corpus, corpus, 10, seed=seed).documents
    )  # each text a stratum of its own
    assert min(counts[text] for text in corpus) > 15
    assert max(counts[text] for text in corpus) < 70


def test_text_of_two_strata_is_taken_once():
    drawn = sample_strata(["same", "same", "other"], ["a", "b", "b"], 3, seed=0)
    assert sorted(drawn.documents) == ["other", "same"]


def test_clusters_hear_the_rare_subject():
    """230 texts near one axis and one near each of ten others: a random 20 would miss most of the ten."""
    rng = np.random.default_rng(0)
    vectors = np.eye(11, dtype=np.float32)[[0] * 230 + list(range(1, 11))]
    vectors += 0.01 * rng.normal(size=vectors.shape).astype(np.float32)
    corpus = [str(row) for row in range(len(vectors))]
    drawn = sample_clusters(corpus, 20, seed=0, embed=lambda batch: vectors[[int(text) for text in batch]])
    assert {str(row) for row in range(230, 240)} <= set(drawn.documents)


def test_streams_are_read_once():
    corpus = [f"text {i}" for i in range(300)]
    assert sample_random(iter(corpus), 7, seed=0) == sample_random(corpus, 7, seed=0)


@strategies
def test_blank_texts_are_no_documents(sample: Strategy):
    drawn = sample(["x", " \n\t", "y"], 5, seed=0)
    assert sorted(drawn.documents) == ["x", "y"]
    assert drawn.documents_seen == 2


def test_nul_is_a_character():
    assert sorted(sample_random(["a\0b", "a"], 5, seed=0).documents) == ["a", "a\0b"]


@pytest.mark.parametrize("corpus", [[], ["", "  "]])
@strategies
def test_corpus_without_texts(sample: Strategy, corpus: list[str]):
    with pytest.raises(CorpusError, match="no text that is not blank"):
        sample(corpus, 5, seed=0)


def test_lone_surrogate_is_named():
    with pytest.raises(CorpusError, match=r"text 1 is not valid Unicode.*'\\ud800' at character 2"):
        sample_random(["fine", "ab\ud800"], 5, seed=0)
    with pytest.raises(CorpusError, match="text 1 is not valid Unicode"):
        sample_strata(["fine", "ab\ud800"], ["a", "b"], 5, seed=0)


def test_one_str_shows_the_fix():
    with pytest.raises(TypeError, match=r"list of texts.*pass \["):
        sample_random("a text", 5, seed=0)
    with pytest.raises(TypeError, match=r"list of strata.*pass \["):
        sample_strata(["a text"], "a", 5, seed=0)


@strategies
def test_size_below_one(sample: Strategy):
    with pytest.raises(ValueError, match="size must be at least 1"):
        sample(["a"], 0, seed=0)


@pytest.mark.parametrize("strata", [["a"], ["a", "b", "c"]])
def test_strata_that_do_not_match_the_texts(strata: list[str]):
    with pytest.raises(CorpusError, match="end at different positions"):
        sample_strata(["x", "y"], strata, 5, seed=0)


NUMBERED = [f"text {number}" for number in range(200)]


def axes(batch: list[str]) -> np.ndarray:
    """Texts by turns on six axes: all products are whole numbers, so that every machine rounds alike."""
    return np.eye(6, dtype=np.float32)[[int(text.removeprefix("text ")) % 6 for text in batch]]


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (sample_random(NUMBERED, 5, seed=7), [120, 107, 162, 36, 138]),
        (sample_strata(NUMBERED, [str(number % 3) for number in range(200)], 5, seed=7), [120, 136, 107, 162, 184]),
        (sample_clusters(NUMBERED, 3, seed=7, embed=axes), [107, 80, 136]),
    ],
    ids=["random", "strata", "clusters"],
)
def test_a_seed_draws_what_it_drew_in_every_version(drawn: Sample, expected: list[int]):
    """Another draw would be another fingerprint, and `drift` and `recontextualize` would embed everything anew."""
    assert drawn.documents == [f"text {number}" for number in expected]

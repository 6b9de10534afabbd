"""Drift: what a new context would win, told without judgments and without a change to the collection."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_model import write_transformer
from tiny import WORDS

from cde_rag.collection.collection import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.plain_embedders import PlainEmbedder
from cde_rag.errors import ModelError, StoreError
from cde_rag.indexing import backfill as generations
from cde_rag.indexing.drift import (
    CALIBRATIONS,
    SUBSTITUTE,
    Calibration,
    Comparison,
    estimate_gain,
    neighbours_kept,
    own_ndcg,
    rare_words,
    run_of_words,
)
from cde_rag.indexing.upsert import Progress
from cde_rag.models import CDEModel
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

FITTED = Calibration(slope=0.77, offset=0.06, residual=0.07)
SIZE = 32  # context documents
WATER, MONEY = "river flood boat fish delta water".split(), "bank money loan credit rate interest".split()


def texts_of(words: Sequence[str], count: int, *, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(words, 6)) for _ in range(count)]


def made(place: Path, model: CDEModel, texts: Sequence[str], *, parent_key: str | None = None) -> Collection:
    """A collection whose context was sampled from its first texts."""
    embedder = ContextualEmbedder.from_corpus(texts, model=model, context_size=SIZE, seed=0)
    collection = Collection.create(FaissStore(place), embedder, parent_key=parent_key)
    collection.add(texts, metadata=[{"page": f"p{i // 3}"} for i in range(len(texts))])
    return collection


def vectors(rows: int, *, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_ndcg_of_one_relevant_document_is_that_of_its_rank():
    queries, documents = vectors(40, seed=1), vectors(40, seed=2)
    found = own_ndcg(queries, documents)
    for row, query in enumerate(queries):
        order = sorted(range(40), key=lambda i: -float(documents[i] @ query))
        rank = order.index(row) + 1
        assert found[row] == pytest.approx(1 / math.log2(rank + 1) if rank <= 10 else 0)


def test_the_same_text_twice_is_found_twice():
    documents = np.repeat(np.eye(2, dtype=np.float32), 2, axis=0)
    assert own_ndcg(documents, documents).tolist() == [1, 1, 1, 1]


def test_neighbours_kept_counts_those_that_are_near_in_both():
    documents = vectors(30)
    turned = documents @ np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))[0].astype(np.float32)
    assert neighbours_kept(documents, turned) == 1
    other = vectors(30, seed=4)
    kept = [len(set(_ten_nearest(documents, row)) & set(_ten_nearest(other, row))) / 10 for row in range(30)]
    assert neighbours_kept(documents, other) == pytest.approx(np.mean(kept))
    assert neighbours_kept(documents[:1], other[:1]) == 1


def _ten_nearest(documents: np.ndarray, row: int) -> list[int]:
    others = [i for i in range(len(documents)) if i != row]
    return sorted(others, key=lambda i: -float(documents[i] @ documents[row]))[:10]


def test_rare_words_are_those_of_few_other_texts_in_order():
    texts = ["bank of river money", "bank of river flood delta", "bank of loan"]
    assert rare_words(texts) == ["bank river money", "river flood delta", "bank loan"]
    assert rare_words(["a b", "…"]) == ["a b", "…"]  # no word of three letters: the text itself


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60))
def test_a_run_of_words_stands_in_the_text(words: list[str]):
    text = " ".join(words)
    run = run_of_words(text)
    assert f" {run} " in f" {text} "
    assert len(run.split()) == max(1, min(10, len(words) // 3))


@given(st.permutations(texts_of(WORDS, 8)))
def test_queries_do_not_depend_on_the_order(texts: list[str]):
    expected = dict(zip(texts_of(WORDS, 8), rare_words(texts_of(WORDS, 8)), strict=True))
    assert dict(zip(texts, rare_words(texts), strict=True)) == expected


def test_the_interval_holds_the_error_of_sample_and_method():
    few, many = np.tile([0.0, 0.2], 8), np.tile([0.0, 0.2], 800)
    for value in (few, many):
        gain, (low, high) = estimate_gain(Comparison(value, value_kept=0.5, kept=0.9), FITTED)
        assert gain == pytest.approx(0.1 * (FITTED.slope * 0.1 / 0.5 - FITTED.offset))
        error = 0.1 * math.hypot(FITTED.slope * 0.1 / 0.5 / math.sqrt(len(value)), FITTED.residual)
        assert (high - gain, gain - low) == pytest.approx((1.645 * error, 1.645 * error))


@given(st.floats(0, 1), st.floats(-0.2, 0.2), st.floats(0, 0.99))
def test_what_changes_no_neighbour_gains_nothing_and_what_changes_more_gains_or_loses_more(
    kept: float, worth: float, value_kept: float
):
    value = np.full(8, worth)
    assert estimate_gain(Comparison(value, value_kept, 1.0), FITTED) == (0, (0, 0))
    gain, all_gone = (estimate_gain(Comparison(value, value_kept, share), FITTED)[0] for share in (kept, 0.0))
    assert gain == pytest.approx((1 - kept) * all_gone, abs=1e-12)


def test_an_unchanged_collection_has_no_drift(tmp_path: Path, tiny_model: CDEModel):
    papers = made(tmp_path / "papers", tiny_model, texts_of(WORDS, 60))
    found = papers.drift(context_size=SIZE)
    assert (found.gain, found.interval, found.neighbours_kept, found.probes) == (0, (0, 0), 1, 0)
    assert found.candidate.fingerprint == found.present.fingerprint
    assert not found.pays()


@pytest.mark.parametrize("parent_key", [None, "page"])
def test_it_is_measured_with_the_context_that_recontextualize_makes(
    parent_key: str | None, tmp_path: Path, tiny_model: CDEModel
):
    papers = made(tmp_path / "papers", tiny_model, texts_of(WATER, 40), parent_key=parent_key)
    papers.add(texts_of(MONEY, 40), metadata=[{"page": f"m{i // 4}"} for i in range(40)])
    found = papers.drift(seed=3, context_size=SIZE)
    assert (found.documents, found.probes, found.embedded) == (80, 80, SIZE + 7 * 80)
    assert found.present.fingerprint == papers.embedder.fingerprint
    records = sorted(papers.scroll(), key=lambda record: record.text)
    before = papers.store.vectors([record.id for record in records], fingerprint=papers.embedder.fingerprint)
    report = papers.recontextualize(seed=3, context_size=SIZE)
    after = papers.store.vectors([record.id for record in records], fingerprint=papers.embedder.fingerprint)
    assert report.fingerprint == found.candidate.fingerprint
    assert found.neighbours_kept == pytest.approx(neighbours_kept(before, after), abs=0.02)  # equal texts: ties
    assert papers.drift(seed=3, context_size=SIZE).gain == 0


def test_a_model_has_its_own_calibration_or_it_is_said_whose_it_has(
    tmp_path: Path, tiny_model: CDEModel, monkeypatch: pytest.MonkeyPatch
):
    papers = made(tmp_path / "papers", tiny_model, texts_of(WATER, 40))
    papers.add(texts_of(MONEY, 40))
    assert papers.drift(context_size=SIZE).calibrated_on == SUBSTITUTE
    monkeypatch.setitem(CALIBRATIONS, tiny_model.identity.name, Calibration(slope=0, offset=0.1, residual=0.2))
    found = papers.drift(context_size=SIZE)
    assert found.calibrated_on == tiny_model.identity.name
    assert found.gain == pytest.approx(-0.1 * (1 - found.neighbours_kept))
    assert found.interval[1] - found.gain == pytest.approx(1.645 * 0.2 * (1 - found.neighbours_kept))


class ReadOnlyStore(FaissStore):
    """A store that may not be written."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise PermissionError("this store is read-only")

    add = update_metadata = delete = lease = create_generation = add_to_generation = activate = drop = _refuse


def test_it_reads_only_also_beside_a_killed_run(tmp_path: Path, tiny_model: CDEModel):
    papers = made(tmp_path / "papers", tiny_model, texts_of(WATER, 40))
    papers.add(texts_of(MONEY, 40))
    expected = papers.drift(context_size=SIZE)

    def kill(_: Progress) -> None:
        raise KeyboardInterrupt

    with mock.patch.object(generations, "ROWS_AT_ONCE", 16), pytest.raises(KeyboardInterrupt):
        papers.recontextualize(context_size=SIZE, on_progress=kill)
    assert len(papers.store.generations()) == 2
    found = Collection.open(ReadOnlyStore(tmp_path / "papers"), model=tiny_model).drift(context_size=SIZE)
    assert (found.gain, found.neighbours_kept) == (expected.gain, expected.neighbours_kept)
    assert found.present.fingerprint == expected.present.fingerprint


def test_the_order_of_records_and_a_repetition_change_nothing(tmp_path: Path, tiny_model: CDEModel):
    texts = texts_of(WORDS, 120)
    context = ContextualEmbedder.from_corpus(texts_of(WATER, 40), model=tiny_model, context_size=SIZE).context
    found = []
    for place, some in enumerate((texts, texts[::-1])):
        papers = Collection.create(FaissStore(tmp_path / str(place)), ContextualEmbedder(tiny_model, context))
        papers.add(some)
        found += [papers.drift(context_size=SIZE, probes=50) for _ in range(2)]
    assert len({one.candidate.fingerprint for one in found}) == 1
    np.testing.assert_allclose([one.gain for one in found], found[0].gain, atol=1e-6)
    assert {one.probes for one in found} == {50}
    assert papers.drift(seed=1, context_size=SIZE, probes=50).gain != found[0].gain


def test_a_foreign_domain_moves_neighbours_more_than_growth(tmp_path: Path, tiny_model: CDEModel):
    """In a model whose gates are random and wide open."""
    kept = []
    for name, later in (("growth", texts_of(WATER, 80, seed=1)), ("foreign", texts_of(MONEY, 80, seed=1))):
        papers = made(tmp_path / name, tiny_model, texts_of(WATER, 80))
        papers.add(later)
        kept.append(np.mean([papers.drift(seed=seed, context_size=SIZE).neighbours_kept for seed in range(3)]))
    assert kept[1] < kept[0]


def test_the_null_context_against_the_first_own_one(tmp_path: Path, tiny_model: CDEModel):
    null = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    papers = Collection.create(FaissStore(tmp_path / "papers"), null)
    papers.add(texts_of(WORDS, 60))
    found = papers.drift(context_size=SIZE)
    assert found.present.is_null
    assert found.candidate.size == SIZE
    assert found.neighbours_kept < 1


def test_one_record_says_nothing(tmp_path: Path, tiny_model: CDEModel):
    papers = Collection.create(FaissStore(tmp_path / "one"), ContextualEmbedder(tiny_model, Context.null(tiny_model)))
    papers.add_records([Record("1", "river")])
    found = papers.drift()
    assert (found.gain, found.neighbours_kept, found.probes, found.pays()) == (0, 1, 1, False)
    assert found.interval == (0, 0)


@pytest.mark.usefixtures("unchecked")
def test_mistakes(tmp_path: Path, tiny_model: CDEModel):
    papers = Collection.create(FaissStore(tmp_path / "none"), ContextualEmbedder(tiny_model, Context.null(tiny_model)))
    with pytest.raises(StoreError, match="empty collection"):
        papers.drift()
    papers.add(["river"])
    with pytest.raises(ValueError, match="probes must be at least 1"):
        papers.drift(probes=0)
    with pytest.raises(ValueError, match="strategy"):
        papers.drift(strategy="best")


def test_a_plain_model_cannot_drift(tmp_path: Path):
    plain = Collection.create(FaissStore(tmp_path / "papers"), PlainEmbedder(write_transformer(tmp_path / "model")))
    plain.add(["river"])
    with pytest.raises(ModelError, match="plain model"):
        plain.drift()


def test_it_pays_where_the_gain_is_sure_and_large_enough(tmp_path: Path, tiny_model: CDEModel):
    found = replace(made(tmp_path / "papers", tiny_model, texts_of(WATER, 40)).drift(context_size=SIZE), gain=0.03)
    assert replace(found, interval=(0.001, 0.059)).pays()
    assert not replace(found, interval=(0.001, 0.059)).pays(worth=0.04)
    assert not replace(found, interval=(-0.001, 0.061)).pays()


def test_what_it_tells_as_json(tmp_path: Path, tiny_model: CDEModel):
    papers = made(tmp_path / "papers", tiny_model, texts_of(WATER, 40))
    papers.add(texts_of(MONEY, 40))
    found = papers.drift(context_size=SIZE)
    told = found.to_json()
    assert (told["gain"], told["interval"]) == (found.gain, list(found.interval))
    assert (told["present"], told["candidate"]) == (found.present.fingerprint, found.candidate.fingerprint)
    assert Counter(map(type, told.values())) == Counter({float: 3, int: 3, str: 3, list: 1})

"""The scale of hybrid scores: nothing is found where random letters find as much, and the order of hits stays."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_collection import StubEmbedder

from cde_rag import Collection
from cde_rag.context.context import Context
from cde_rag.errors import CDEWarning, StoreError
from cde_rag.search import calibration
from cde_rag.search.calibration import (
    CALIBRATION,
    LEAST,
    ScoreCalibration,
    calibration_of,
    few_letter_queries,
    random_queries,
)

NOTES = [
    f"Note {number}: the {what} of pump {number % 7} was {how} in hall {number // 9}."
    for number, (what, how) in enumerate(
        zip(["valve", "seal", "motor", "pipe"] * 20, ["checked", "mended", "sold", "lost", "cleaned"] * 16, strict=True)
    )
]
KNOWN = ScoreCalibration(records=100, random_mean=0.25, random_limit=0.35, own=0.65, own_words=20.0)
unit = st.floats(0, 1)
words = st.none() | st.floats(0.01, 60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration") / "notes.faiss"
    Collection.from_texts(NOTES, store=folder).close()
    return folder


@pytest.fixture
def notes(made: Path) -> Iterator[Collection]:
    with Collection.open(made) as opened:
        kept = opened.store.manifest().settings[CALIBRATION]
        yield opened
        opened.store.update_settings({CALIBRATION: kept})


def test_letters_find_nothing_and_words_do(notes: Collection) -> None:
    for query in ("qqqqzzzz", "zzkqx vvrrt"):
        assert notes.search(query) == notes.search_groups(query, group_by="n") == []
        assert len(notes.search(query, by="vectors")) == 10
        assert notes.searcher(weight=1.0).search(query) == []
    assert notes.search("qqqqzzzz valve")[0].text.count("valve")
    assert len(notes.search("who mended the motor of pump 3?", k=200)) == 80
    assert notes.searcher(fusion="reciprocal_ranks").search("qqqqzzzz")


def test_the_order_is_that_without_a_calibration(notes: Collection) -> None:
    queries = ["valve of pump 3", "the machine that drives it", "hall 5", NOTES[7]]
    scaled = notes.search_batch(queries, k=200)
    notes.store.update_settings({CALIBRATION: {}})
    before = notes.search_batch(queries, k=200)
    for ours, theirs in zip(scaled, before, strict=True):
        assert [hit.id for hit in ours] == [hit.id for hit in theirs]
        scores = [hit.score for hit in ours]
        assert scores == sorted(scores, reverse=True)
        assert 0 <= scores[-1] <= scores[0] <= 1
    assert notes.search("qqqqzzzz")


def test_a_threshold_compares_queries(notes: Collection) -> None:
    own, foreign = (notes.search(query, k=1)[0].score for query in (NOTES[7], "the history of the hall of Versailles"))
    assert own > 0.8 > foreign
    assert notes.search("the history of the hall of Versailles", score_threshold=own) == []


def test_a_collection_of_an_earlier_version_is_searched_as_before(made: Path, tmp_path: Path) -> None:
    with Collection.from_texts(NOTES[:LEAST], store=tmp_path / "old.faiss") as old:
        settings = dict(old.store.manifest().settings)
        del settings[CALIBRATION]
        old.store.write(lambda state: state._session.put_settings(settings))
    with Collection.open(tmp_path / "old.faiss") as old:
        assert old.search("qqqqzzzz", k=1)[0].score == pytest.approx(0.65)
        old.add(NOTES[LEAST:])
        assert CALIBRATION not in old.store.manifest().settings
        assert old.calibrate() == calibration_of(old.store.manifest().settings, old.embedder.fingerprint)
        assert old.search("qqqqzzzz") == []
    with Collection.open(made) as new, Collection.open(tmp_path / "old.faiss") as old:
        query = "who mended the motor?"
        assert [hit.id for hit in new.search(query, by="bm25")] == [hit.id for hit in old.search(query, by="bm25")]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_it_grows_with_the_collection_and_follows_the_context(tmp_path: Path) -> None:
    with Collection.from_texts(NOTES[:10], store=tmp_path / "grows.faiss") as notes:
        assert notes.search("qqqqzzzz")  # too few to measure on
        numbers: list[int] = []
        for count in (LEAST - 1, LEAST, 80):
            notes.add(NOTES[:count])
            known = calibration_of(notes.store.manifest().settings, notes.embedder.fingerprint)
            numbers.append(0 if known is None else known.records)
        assert numbers == [0, LEAST, LEAST]
        before = notes.embedder.fingerprint
        for kind, expected in (("Letter", LEAST), ("Memo", LEAST), ("Log", 4 * 80)):
            notes.add(text.replace("Note", kind) for text in NOTES)
            assert (calibration_of(notes.store.manifest().settings, before) or KNOWN).records == expected
        notes.recontextualize(seed=3)
        assert set(notes.store.manifest().settings[CALIBRATION]) == {before, notes.embedder.fingerprint}
        assert notes.search("qqqqzzzz") == []
        notes.rollback()
        assert notes.embedder.fingerprint == before
        assert notes.search("qqqqzzzz") == []
        notes.delete(where={})
        with pytest.raises(StoreError, match="nothing to calibrate on"):
            notes.calibrate()


SHORT = [note[:40] for note in NOTES]  # of which the stub's model reads all


class Failing(StubEmbedder):
    """One that embeds documents, while `fails` no queries."""

    fails = True

    def embed_queries(self, texts: Sequence[str]) -> Any:
        if self.fails:
            raise ConnectionError("The API is down.")
        return super().embed_queries(texts)

    def with_context(self, context: Context) -> "Failing":
        other = copy.copy(self)
        other.context = context
        return other


def test_one_that_fails_leaves_the_collection_as_it_was(tmp_path: Path) -> None:
    embedder = Failing()
    with Collection.create(tmp_path / "fails.faiss", embedder) as notes:
        with pytest.warns(CDEWarning, match="The records are written, but .*ConnectionError: The API is down") as said:
            assert notes.add(SHORT[:70]).added == 70
        assert said[0].filename == __file__
        with pytest.raises(ConnectionError):
            notes.calibrate()
        assert (notes.count(), notes.store.manifest().settings[CALIBRATION]) == (70, {})
        assert notes.add(SHORT).added == 10  # said once
        with pytest.warns(CDEWarning, match="The API is down"):
            assert notes.recontextualize(embedder=Failing(("c", "d"))).documents == 80
        notes.embedder.fails = False
        notes.add(text.replace("Note", "Letter") for text in SHORT)
        assert calibration_of(notes.store.manifest().settings, notes.embedder.fingerprint)
        notes.embedder.fails = True
        with pytest.warns(CDEWarning, match="The API is down"):
            notes.rollback()
        assert notes.embedder.fingerprint == embedder.fingerprint


def test_collections_filled_by_any_call_are_calibrated(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "filled.faiss", StubEmbedder()) as notes:
        notes.add(SHORT, embed="later")
        notes.add(SHORT)  # this embeds what waits
        settings = notes.store.manifest().settings
        assert calibration_of(settings, notes.embedder.fingerprint)
        with mock.patch.object(ScoreCalibration, "scaled", return_value=[]):
            assert notes.search("valve") == []  # the scale applies, since nothing waits
    with Collection.create(tmp_path / "searched.faiss", StubEmbedder()) as notes:
        notes.add(SHORT, embed="later")
        notes.searcher(embed_budget_ms=60_000).search("Note")
        notes.searcher(embed_budget_ms=60_000).search_batch(["valve", "seal", "motor", "pipe"])
        assert notes.pending == 0
        assert notes.embed_pending().embedded == 0
        assert calibration_of(notes.store.manifest().settings, notes.embedder.fingerprint)


@given(nearest=unit, more=unit, by_words=words, weight=unit)
def test_strength_rises_with_both_sides(nearest: float, more: float, by_words: float | None, weight: float) -> None:
    strength = KNOWN.strength(nearest, by_words, weight)
    heard = (by_words is not None and weight < 1) or (nearest > KNOWN.random_limit and weight > 0)
    assert (strength is not None) == heard
    if strength is not None:
        assert 0 <= strength <= 1
        above = KNOWN.strength(max(nearest, more), None if by_words is None else by_words * 2, weight)
        assert above is not None
        assert above >= strength


@pytest.mark.parametrize(
    ("nearest", "by_words", "weight", "expected"),
    [
        (0.65, 20.0, 0.65, 1.0),
        (0.45, None, 0.65, 0.325),
        (0.25, 10.0, 0.65, 0.175),
        (0.35, None, 0.65, None),
        (0.9, None, 0.0, None),
        (0.3, 10.0, 1.0, None),
        (None, 20.0, 0.65, 0.35),
        (None, None, 0.65, None),
    ],
)
def test_strength(nearest: float | None, by_words: float | None, weight: float, expected: float | None) -> None:
    assert KNOWN.strength(nearest, by_words, weight) == (None if expected is None else pytest.approx(expected))


def test_the_best_hit_has_the_strength_and_the_last_half_of_it() -> None:
    near, written = [("a", 0.65), ("b", 0.45)], [("a", 20.0)]
    assert KNOWN.scaled([("a", 1.0), ("c", 0.5), ("b", 0.0)], near, written, 0.65) == [
        ("a", 1.0),
        ("c", 0.75),
        ("b", 0.5),
    ]
    assert KNOWN.scaled([], near, written, 0.65) == []
    assert KNOWN.scaled([("b", 1.0)], [("b", 0.3)], [], 0.65) == []


def test_random_letters_are_the_same_each_time() -> None:
    assert random_queries() == random_queries()
    assert len(set(random_queries())) == 32


def test_few_letters_are_few_and_half_of_them_in_order() -> None:
    made = few_letter_queries()
    assert made == few_letter_queries() != few_letter_queries(1)
    assert all(len(set(word)) <= 3 and 4 <= len(word) <= 10 for word in made)
    assert len(made) == 32
    assert 16 <= sum(list(word) == sorted(word) for word in made) < 32


def test_the_limit_is_above_words_of_few_letters(notes: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One held key may be nearer than any other letters; the mean, from which scores count, is of those alone."""

    def nearest(_store: object, _embedder: object, queries: Sequence[str]) -> list[float]:
        of_kinds = {tuple(random_queries()): [0.2] * 32, tuple(few_letter_queries()): [0.3] * 31 + [0.4]}
        return of_kinds.get(tuple(queries), [0.9] * len(queries))

    monkeypatch.setattr(calibration, "_nearest", nearest)
    known = notes.calibrate()
    assert known is not None
    assert (known.random_mean, known.random_limit) == pytest.approx((0.2, 0.4))

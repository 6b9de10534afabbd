"""What every store finds by words; `StoreContract` inherits it."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from filter_cases import filters, metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_scores import Scores, best, point_scores

from cde_rag.errors import FilterError, StoreFormatError
from cde_rag.records import Record, Row
from cde_rag.stores.filters import matches
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState
from cde_rag.stores.text_analysis import ANALYZER, IDENTIFIERS, NEWEST, PORTER, analyzer_of

SPACE = "a1" * 32
WORDS = (
    "banks bank banking river rivers money the flooded floods loan 日本 café हिन्दी 1984 ? river_bank riverBank".split()
)

texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
batches = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(texts, st.sampled_from(["", "River", "the"]), metadata), max_size=5
)


def vectors(rows: int) -> np.ndarray:
    return np.eye(4, dtype=np.float32)[np.arange(rows) % 4]


def row(id_: str, text: str, title: str = "", **metadata: Any) -> Row:
    return Row(Record(id_, text, title, metadata), f"digest of {title} {text}")


def made(place: Callable[[], Store]) -> Store:
    store = place()
    store.create(dim=4, fingerprint=SPACE, context=b"context", settings={ANALYZER: NEWEST.name})
    return store


def assert_found(
    store: Store, rows: Sequence[Row], query: str, k: int, scores: Scores, where: dict[str, Any] | None = None
) -> None:
    """The hits are those of brute force over the store's documented BM25; equal records in order of insertion."""
    every = scores([row.record for row in rows], query, analyzer_of(store.manifest().settings))
    kept = [
        score if where is None or matches(where, row.record.metadata) else 0.0
        for row, score in zip(rows, every, strict=True)
    ]
    (hits,) = store.search_text([query], k, where=where)
    expected = best(kept, k)
    np.testing.assert_allclose([hit.score for hit in hits], [kept[position] for position in expected], rtol=1e-5)
    places = {row.record.id: place for place, row in enumerate(rows)}
    assert len({hit.id for hit in hits}) == len(hits)
    for hit in hits:
        record = rows[places[hit.id]].record
        assert (hit.text, hit.title, hit.metadata) == (record.text, record.title, record.metadata)
        assert hit.score == pytest.approx(kept[places[hit.id]], rel=1e-5)
    for hit, following in itertools.pairwise(hits):
        if (hit.text, hit.title) == (following.text, following.title):
            assert places[hit.id] < places[following.id]


class TextContract:
    """Inherit it, say how `word_scores` scores, and give a fixture `new_place`."""

    word_scores: Scores = staticmethod(point_scores)

    @settings(
        max_examples=40,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(data=st.data())
    def test_words_agree_with_brute_force(
        self, new_place: Callable[[], Callable[[], Store]], data: st.DataObject
    ) -> None:
        store, rows = made(new_place()), dict[str, Row]()
        for _ in range(data.draw(st.integers(1, 3))):
            new = [Row(Record(id_, *found), str(found[:2])) for id_, found in data.draw(batches).items()]
            store.add(new, vectors(len(new)), fingerprint=SPACE)
            rows |= {row.record.id: row for row in new}
            gone = data.draw(st.sets(st.sampled_from("abcdefgh"), max_size=2))
            store.delete(sorted(gone))
            rows = {id_: row for id_, row in rows.items() if id_ not in gone}
        for _ in range(4):
            query, k = data.draw(texts), data.draw(st.integers(1, 9))
            where = data.draw(st.none() | filters)
            assert_found(store, list(rows.values()), query, k, self.word_scores, where)
        assert store.verify() == []
        store.close()

    def test_words_are_found_by_their_stem_without_case_and_in_titles(self, store: Store) -> None:
        rows = [
            row("a", "Relational databases"),
            row("b", "a relation"),
            row("c", "Straße", "DATABASE"),
            row("d", "???"),
            row("e", "it is the"),
        ]
        store.add(rows, vectors(5), fingerprint=SPACE)
        found = store.search_text(["database", "STRASSE", "of the", "?!", "", "elsewhere", "e\u0301"], 5)
        assert [sorted(hit.id for hit in hits) for hits in found] == [["a", "c"], ["c"], [], [], [], [], []]

    def test_equal_records_are_found_in_order_of_insertion_however_many(self, store: Store) -> None:
        rows = [row(f"{number:02}", "river bank") for number in range(40)]
        store.add(rows[::-1], vectors(40), fingerprint=SPACE)
        (hits,) = store.search_text(["bank"], 7)
        assert [hit.id for hit in hits] == [f"{number:02}" for number in range(39, 32, -1)]

    def test_words_are_no_part_of_generations(self, place: Callable[[], Store]) -> None:
        store = made(place)
        rows = [row("a", "river bank"), row("b", "money")]
        store.add(rows, vectors(2), fingerprint=SPACE)
        number = store.create_generation(fingerprint="b2" * 32, context=b"other")
        store.add_to_generation(number, store.lacking(number), ["1", "2"], vectors(2))
        store.add([row("b", "bank")], vectors(1), fingerprint=SPACE)
        store.update_metadata({"a": {"year": 1}})
        store.add_to_generation(number, store.lacking(number), ["2"], vectors(1))
        rows = [row("a", "river bank", year=1), row("b", "bank")]
        assert_found(store, rows, "banks of a river", 5, self.word_scores)
        store.activate(number)
        store.drop(1)
        store.close()
        store = place()
        assert_found(store, rows, "banks of a river", 5, self.word_scores)
        assert_found(store, rows, "bank", 5, self.word_scores, {"year": 1})
        assert store.verify() == []

    def test_words_can_be_made_anew(self, store: Store) -> None:
        rows = [row("a", "river bank"), row("b", "?"), row("c", "bank")]
        store.add(rows, vectors(3), fingerprint=SPACE)
        store.index_texts()
        assert_found(store, rows, "bank", 5, self.word_scores)
        assert store.verify() == []

    def test_words_can_be_made_anew_where_records_were_written(self, place: Callable[[], Store]) -> None:
        store = place()
        store.create(dim=4, fingerprint=SPACE, context=b"context", settings={ANALYZER: PORTER.name})

        def write(state: StoreState) -> None:
            state.add([row("a", "create_path")], vectors(1), fingerprint=SPACE)
            state.index_texts()

        store.write(write)
        assert [hit.id for hit in store.search_text(["path"], 3)[0]] == ["a"]
        assert store.verify() == []

    def test_parts_of_identifiers_are_terms(self, place: Callable[[], Store]) -> None:
        store = made(place)
        rows = [
            row("a", "def create_path(self)"),
            row("b", "createPath = HTTPServerError"),
            row("c", "x_ _y 3M_2022_10K"),
        ]
        store.add(rows, vectors(3), fingerprint=SPACE)
        found = store.search_text(["creating a path", "create_path", "http server", "10-K", "2022"], 5)
        assert [sorted(hit.id for hit in hits) for hits in found] == [["a", "b"], ["a", "b"], ["b"], ["c"], ["c"]]
        assert found[1][0].id == "a"
        for query in ("creating a path", "create_path", "path path"):
            assert_found(store, rows, query, 5, self.word_scores)

    def test_characters_that_are_not_shown_cut_no_word(self, place: Callable[[], Store]) -> None:
        store = made(place)
        rows = [
            row("a", "soft\u00adware up\u200bdates"),
            row("b", "\ufeffthe e\ufb03cient way", "می\u200cخواهم"),
            row("c", "ware for soft dates"),
            row("d", "ภาษา\u200bไทย"),
        ]
        store.add(rows, vectors(4), fingerprint=SPACE)
        asked = {"software": "a", "update": "a", "efficient": "b", "میخواهم": "b", "so\u00adft": "c", "ไทย": "d"}
        found = store.search_text(list(asked), 5)
        assert [[hit.id for hit in hits] for hits in found] == [[id_] for id_ in asked.values()]
        for query in ("software updates", "effi\u2060cient"):
            assert_found(store, rows, query, 5, self.word_scores)
        assert store.verify() == []

    def test_a_store_of_0_2_finds_what_it_found_until_its_texts_are_indexed_again(
        self, place: Callable[[], Store]
    ) -> None:
        store = place()
        store.create(dim=4, fingerprint=SPACE, context=b"context", settings={ANALYZER: IDENTIFIERS.name})
        rows = [row("a", "soft\u00adware of create_path"), row("b", "river")]
        store.add(rows, vectors(2), fingerprint=SPACE)
        found = [[hit.id for hit in hits] for hits in store.search_text(["software", "soft path", "river"], 5)]
        assert found == [[], ["a"], ["b"]]
        assert store.verify() == []
        store.index_texts()
        found = [[hit.id for hit in hits] for hits in store.search_text(["software", "soft", "river"], 5)]
        assert found == [["a"], [], ["b"]]
        assert store.verify() == []

    def test_a_store_keeps_its_analyzer_until_its_texts_are_indexed_again(self, place: Callable[[], Store]) -> None:
        store = place()
        store.create(dim=4, fingerprint=SPACE, context=b"context", settings={"parent_key": "book"})
        rows = [row("a", "create_path", year=1), row("b", "riverBank river_bank"), row("c", "a path", "path")]
        store.add(rows, vectors(3), fingerprint=SPACE)
        store.add(rows[1:2], vectors(1), fingerprint=SPACE)
        assert_found(store, rows, "path of create_path", 5, self.word_scores)
        assert [hit.id for hit in store.search_text(["path"], 5)[0]] == ["c"]
        assert store.verify() == []
        assert analyzer_of(store.manifest().settings) == PORTER
        store.index_texts()
        assert store.manifest().settings == {"parent_key": "book", ANALYZER: NEWEST.name}
        store.close()
        store = place()
        assert_found(store, rows, "path of create_path", 5, self.word_scores)
        assert [hit.id for hit in store.search_text(["path"], 5, where={"year": 1})[0]] == ["a"]
        store.add([row("b", "bank")], vectors(1), fingerprint=SPACE)
        assert store.delete(["c"]) == 1
        assert_found(store, [rows[0], row("b", "bank")], "path of river_bank", 5, self.word_scores)
        assert store.verify() == []

    def test_an_analyzer_of_a_newer_version_is_an_error_that_names_it(self, place: Callable[[], Store]) -> None:
        store = place()
        store.create(dim=4, fingerprint=SPACE, context=b"context", settings={ANALYZER: "snowball-3"})
        with pytest.raises(
            StoreFormatError, match=r"porter, porter-identifiers or porter-identifiers-2, found 'snowball-3'\. Update"
        ):
            store.search_text(["river"], 1)

    def test_senseless_questions_about_words_are_refused(self, store: Store) -> None:
        assert store.search_text([], 3) == []
        with pytest.raises(ValueError, match="k"):
            store.search_text(["bank"], 0)
        with pytest.raises(TypeError, match="list"):
            store.search_text("bank", 1)
        with pytest.raises(FilterError):
            store.search_text(["bank"], 1, where={"year": {"$gt": 1}})

    def test_a_query_may_have_very_many_words_and_any_characters(self, store: Store) -> None:
        rows = [row("a", "w7 " + "x" * 100), row("b", "NEAR(w1) AND \"w2\" * ^w3 : -w4 'w5'")]
        store.add(rows, vectors(2), fingerprint=SPACE)
        query = " ".join(f"w{number}" for number in range(3000))
        assert_found(store, rows, query, 5, self.word_scores)
        for query in ("x" * 100, "x" * 101, 'NEAR("w1", 2) OR NOT stems : w3* ^ {} () ;--', "\0w7\0", "😀 w7"):
            assert_found(store, rows, query, 5, self.word_scores)

    def test_long_queries_that_repeat_words_are_scored_like_short_ones_and_quickly(self, store: Store) -> None:
        dice, words = np.random.default_rng(0), [f"w{number}" for number in range(600)]
        some = [row(f"{number}", " ".join(dice.choice(words, 60))) for number in range(40)]
        rows = some + [row(f"again {one.record.id}", one.record.text) for one in some]
        store.add(rows, vectors(len(rows)), fingerprint=SPACE)
        started = time.process_time()  # which other work on the machine does not lengthen
        for length in (33, 70, 1500):
            query = " ".join(dice.choice(words, length))
            assert_found(store, rows, query, 100, self.word_scores)
        assert_found(store, rows, " ".join(words * 100), 5, self.word_scores)  # far from words² steps
        assert time.process_time() - started < 20

"""What every store does. A store's test class inherits `StoreContract` and says how to make an empty place.

`Life` draws whole lives of a store (add, replace, update, delete, generations, reopening) and compares it after every
step with a dictionary and brute force. The tests after it show each promise by itself.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from filter_cases import BOOK, CASES, filters, metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from text_contract import TextContract

from cde_rag.errors import ContextMismatchError, CorpusError, FilterError, StoreError
from cde_rag.records import Hits, Record, Row
from cde_rag.stores.filters import matches
from cde_rag.stores.store import Store
from cde_rag.stores.store_calls import StoreState

DIM = 4
SPACE = "a1" * 32
OTHER = "b2" * 32
Opener = Callable[[], Store]

# Unit vectors whose dot products are exact in float32, whatever the order of summation, and often equal.
EXACT = np.concatenate(
    [np.eye(4), -np.eye(4), [[x, y, z, 0.5] for x in (0.5, -0.5) for y in (0.5, -0.5) for z in (0.5, -0.5)]]
)
EXACT = EXACT.astype(np.float32)


def row(id_: str, text: str = "text", *, digest: str | None = None, **metadata: Any) -> Row:
    return Row(Record(id_, text, f"title of {id_}", metadata), digest if digest is not None else f"digest of {text}")


def nested(levels: int) -> dict[str, Any]:
    return functools.reduce(lambda inner, _: {"a": [inner]}, range(levels // 2), {})


def units(rows: int, dim: int = DIM, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def created(place: Opener, *, dim: int = DIM) -> Store:
    store = place()
    store.create(dim=dim, fingerprint=SPACE, context=b"context of " + SPACE.encode(), settings={"parent_key": "source"})
    return store


def brute_force(rows: Sequence[Row], matrix: np.ndarray, query: np.ndarray, k: int) -> list[tuple[Row, float]]:
    """The obvious way: every dot product, sorted; `sorted` keeps the order of insertion where scores are equal."""
    scores = (matrix.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    order = sorted(range(len(rows)), key=lambda position: -scores[position])
    return [(rows[position], scores[position]) for position in order[:k]]


def assert_hits(store: Store, rows: Sequence[Row], matrix: np.ndarray, query: np.ndarray, k: int, **asked: Any) -> None:
    (hits,) = store.search(query[None], k, **asked)
    expected = brute_force(rows, matrix, query, k)
    assert [hit.id for hit in hits] == [row.record.id for row, _ in expected]
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-6)
    for hit, (row, _) in zip(hits, expected, strict=True):
        assert (hit.title, hit.text, hit.metadata) == (row.record.title, row.record.text, row.record.metadata)


@dataclasses.dataclass
class Expected:
    """A generation as a dictionary."""

    number: int
    fingerprint: str
    vectors: dict[str, tuple[str, np.ndarray]]  # id → digest, vector


# The fixture `new_place` finds another place in every example; each store's test class is an executor of its own.
a_new_place_each_time = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
ids = st.sampled_from([f"id {number}" for number in range(8)])
vectors = st.integers(0, len(EXACT) - 1)
batches = st.dictionaries(ids, st.tuples(st.sampled_from("xyz"), vectors, metadata), min_size=1, max_size=4)


class Life(RuleBasedStateMachine):
    """One store beside what it has to hold."""

    def __init__(self, place: Opener) -> None:
        super().__init__()
        self.place = place
        self.store = created(place)
        self.rows: dict[str, Row] = {}  # in order of insertion
        self.active = Expected(1, SPACE, {})
        self.others: list[Expected] = []
        self.made = 1

    @rule(batch=batches)
    def add(self, batch: dict[str, tuple[str, int, dict[str, Any]]]) -> None:
        rows = [
            Row(Record(id_, text, f"title of {id_}", found), f"digest of {text}")
            for id_, (text, _, found) in batch.items()
        ]
        matrix = EXACT[[number for _, number, _ in batch.values()]]
        self.store.add(rows, matrix, fingerprint=self.active.fingerprint)
        for new, vector in zip(rows, matrix, strict=True):
            self.rows[new.record.id] = new
            self.active.vectors[new.record.id] = new.digest, vector
            for other in self.others:
                if other.vectors.get(new.record.id, ("", None))[0] != new.digest:
                    other.vectors.pop(new.record.id, None)

    @rule(batch=batches)
    def add_later(self, batch: dict[str, tuple[str, int, dict[str, Any]]]) -> None:
        rows = [
            Row(Record(id_, text, f"title of {id_}", found), f"digest of {text}")
            for id_, (text, _, found) in batch.items()
        ]
        self.store.add(rows, None, fingerprint=self.active.fingerprint)
        for new in rows:
            self.rows[new.record.id] = Row(new.record, "")
            self.active.vectors.pop(new.record.id, None)
            for other in self.others:
                if other.vectors.get(new.record.id, ("", None))[0] != new.digest:
                    other.vectors.pop(new.record.id, None)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def add_pending(self, data: st.DataObject) -> None:
        some = sorted(data.draw(st.sets(st.sampled_from(sorted(self.rows)), min_size=1)))
        rows, waiting = [self.rows[id_] for id_ in some], self.store.pending()
        assert waiting == [each for each in self.rows.values() if not each.digest]
        matrix = EXACT[data.draw(st.lists(vectors, min_size=len(some), max_size=len(some)))]
        digests = [f"digest of {each.record.text}" for each in rows]
        taken = self.store.add_pending(rows, digests, matrix, fingerprint=self.active.fingerprint)
        assert taken == sum(not each.digest for each in rows)
        for each, digest, vector in zip(rows, digests, matrix, strict=True):
            if not each.digest:
                self.rows[each.record.id] = Row(each.record, digest)
                self.active.vectors[each.record.id] = digest, vector
        assert self.store.settle() is (len(self.active.vectors) == len(self.rows))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), new=metadata)
    def update_metadata(self, data: st.DataObject, new: dict[str, Any]) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.rows))))
        self.store.update_metadata(dict.fromkeys(some, new))
        for id_ in some:
            old = self.rows[id_]
            self.rows[id_] = Row(dataclasses.replace(old.record, metadata=new), old.digest)

    @rule(some=st.lists(ids, max_size=4))
    def delete(self, some: list[str]) -> None:
        assert self.store.delete(some) == len(set(some) & set(self.rows))
        for id_ in some:
            self.rows.pop(id_, None)
            for generation in (self.active, *self.others):
                generation.vectors.pop(id_, None)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.place()

    @precondition(lambda self: len(self.others) < 2)
    @rule()
    def create_generation(self) -> None:
        self.made += 1
        fingerprint = f"{self.made:064d}"
        number = self.store.create_generation(fingerprint=fingerprint, context=fingerprint.encode())
        assert number == self.made
        self.others.append(Expected(number, fingerprint, {}))

    @precondition(lambda self: self.rows and self.others)
    @rule(data=st.data(), everything=st.booleans())
    def add_to_generation(self, data: st.DataObject, everything: bool) -> None:
        generation = data.draw(st.sampled_from(self.others))
        some = sorted(self.rows if everything else data.draw(st.sets(st.sampled_from(sorted(self.rows)))))
        matrix = EXACT[data.draw(st.lists(vectors, min_size=len(some), max_size=len(some)))]
        rows = [self.rows[id_] for id_ in some]
        digests = [row.digest or f"digest of {row.record.text}" for row in rows]
        assert self.store.add_to_generation(generation.number, rows, digests, matrix) == len(rows)
        for row, digest, vector in zip(rows, digests, matrix, strict=True):
            generation.vectors[row.record.id] = digest, vector

    @precondition(lambda self: self.others)
    @rule(data=st.data(), waiting=st.sampled_from(["all", frozenset()]))
    def activate(self, data: st.DataObject, waiting: Any) -> None:
        generation = data.draw(st.sampled_from(self.others))
        may_wait = {id_ for id_, row in self.rows.items() if waiting == "all" and not row.digest}
        if not self.rows.keys() - generation.vectors.keys() <= may_wait:
            with pytest.raises(StoreError):
                self.store.activate(generation.number, waiting=waiting)
            return
        self.store.activate(generation.number, waiting=waiting)
        self.others = sorted(
            [*(other for other in self.others if other is not generation), self.active], key=lambda one: one.number
        )
        self.active = generation
        digests = {id_: generation.vectors.get(id_, ("",))[0] for id_ in self.rows}
        self.rows = {id_: Row(old.record, digests[id_]) for id_, old in self.rows.items()}

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(self.others))
        self.store.drop(generation.number)
        self.others.remove(generation)

    @invariant()
    def rows_are_the_same(self) -> None:
        assert list(self.store.scroll()) == list(self.rows.values())
        assert self.store.count() == len(self.rows)

    @invariant()
    def generations_are_the_same(self) -> None:
        told = [(one.number, one.fingerprint, one.active, one.vectors) for one in self.store.generations()]
        expected = [
            (one.number, one.fingerprint, one is self.active, len(one.vectors))
            for one in sorted([self.active, *self.others], key=lambda one: one.number)
        ]
        assert told == expected
        assert self.store.manifest().fingerprint == self.active.fingerprint
        assert self.store.count_pending() == len(self.rows) - len(self.active.vectors)

    @rule(query=vectors, k=st.integers(1, 10), where=st.none() | filters)
    def search(self, query: int, k: int, where: dict[str, Any] | None) -> None:
        kept = [row for row in self.rows.values() if where is None or matches(where, row.record.metadata)]
        assert self.store.count(where) == len(kept)
        kept = [row for row in kept if row.digest]
        matrix = np.array([self.active.vectors[row.record.id][1] for row in kept]).reshape(-1, DIM)
        assert_hits(self.store, kept, matrix, EXACT[query], k, fingerprint=self.active.fingerprint, where=where)

    def teardown(self) -> None:
        assert self.store.verify() == []
        self.store.close()


class StoreContract(TextContract):
    """Inherit it, and give a fixture `new_place`."""

    @pytest.fixture
    def new_place(self) -> Callable[[], Opener]:
        """Finds an empty place; what it returns opens a store there, a new object each time it is called."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, new_place: Callable[[], Opener]) -> Opener:
        return new_place()

    @pytest.fixture
    def store(self, place: Opener) -> Store:
        return created(place)

    def test_life(self, new_place: Callable[[], Opener]) -> None:
        self.lead(new_place, lives=25)

    @staticmethod
    def lead(new_place: Callable[[], Opener], lives: int) -> None:
        run_state_machine_as_test(
            lambda: Life(new_place()), settings=settings(max_examples=lives, stateful_step_count=20)
        )

    @a_new_place_each_time
    @given(
        matrix=arrays(
            np.float32, st.tuples(st.integers(1, 60), st.integers(1, 33)), elements=st.floats(-1, 1, width=16)
        ),
        copies=st.lists(st.integers(0, 59), max_size=20),
        k=st.integers(1, 70),
    )
    def test_agrees_with_brute_force(
        self, new_place: Callable[[], Opener], matrix: np.ndarray, copies: list[int], k: int
    ) -> None:
        matrix = np.concatenate([matrix, matrix[[number % len(matrix) for number in copies]]])  # equal vectors tie
        matrix[:, 0] += np.where(np.linalg.norm(matrix, axis=1) < 0.1, 1, 0).astype(np.float32)
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        rows = [row(str(number)) for number in range(len(matrix))]
        store = created(new_place(), dim=matrix.shape[1])
        store.add(rows[:7], matrix[:7], fingerprint=SPACE)
        store.add(rows[7:], matrix[7:], fingerprint=SPACE)
        for query, hits in zip(matrix[:5], store.search(matrix[:5], k, fingerprint=SPACE), strict=True):
            expected = brute_force(rows, matrix, query, k)
            np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-6)
            assert len({hit.id for hit in hits}) == min(k, len(rows))
            for hit, following in itertools.pairwise(hits):
                if (matrix[int(hit.id)] == matrix[int(following.id)]).all():
                    assert int(hit.id) < int(following.id)

    def test_filters_keep_the_book(self, store: Store) -> None:
        other = Row(Record("other", "text", metadata={"unlike": "the book"}), "digest")
        store.add([Row(Record("book", "text", metadata=BOOK), "digest"), other], EXACT[:2], fingerprint=SPACE)
        for where, kept in CASES:
            assert ("book" in [row.record.id for row in store.scroll(where=where)]) is kept, where

    @a_new_place_each_time
    @given(found=st.lists(metadata, min_size=1, max_size=6), asked=st.lists(filters, min_size=1, max_size=8))
    def test_filters_agree_with_the_oracle(
        self, new_place: Callable[[], Opener], found: list[dict[str, Any]], asked: list[dict[str, Any]]
    ) -> None:
        store = created(new_place())
        rows = [Row(Record(str(number), "text", "", one), "digest") for number, one in enumerate(found)]
        store.add(rows, units(len(rows)), fingerprint=SPACE)
        for where in asked:
            kept = [row.record.id for row in rows if matches(where, row.record.metadata)]
            assert [row.record.id for row in store.scroll(where=where)] == kept
            assert store.count(where) == len(kept)
            (hits,) = store.search(units(1), len(rows), fingerprint=SPACE, where=where)
            assert sorted(hit.id for hit in hits) == kept
        store.close()

    def test_records_wait_for_their_vectors(self, place: Opener) -> None:
        store = created(place)
        store.add([row("a", "heron"), row("b", "swift")], EXACT[:2], fingerprint=SPACE)
        assert not store.manifest().may_wait
        store.add([row("b", "stork", kind="bird"), row("c", "crane")], None, fingerprint=SPACE)
        waiting = [row("b", "stork", digest="", kind="bird"), row("c", "crane", digest="")]
        for opened in (store, place()):
            assert opened.pending() == opened.get(["b", "c"]) == waiting
            assert (opened.count(), opened.count_pending(), opened.manifest().may_wait) == (3, 2, True)
            assert [row.record.id for row in opened.scroll()] == ["a", "b", "c"]
            (near,) = opened.search(EXACT[:1], 3, fingerprint=SPACE)
            assert isinstance(near, Hits)
            assert ([hit.id for hit in near], near.pending) == (["a"], 2)
            (near,) = opened.search(EXACT[:1], 3, fingerprint=SPACE, where={"kind": "bird"})
            assert near == []
            (words,) = opened.search_text(["stork swift"], 3)
            assert [hit.id for hit in words] == ["b"]
            with pytest.raises(KeyError):
                opened.vectors(["a", "b"], fingerprint=SPACE)
            assert opened.verify() == []
            assert not opened.settle()
        assert store.pending(after=waiting[0]) == waiting[1:]
        store.add_pending(waiting, ["d1", "d2"], EXACT[1:3], fingerprint=SPACE)
        assert store.settle()
        assert (store.count_pending(), store.manifest().may_wait) == (0, False)
        assert store.manifest().settings == {"parent_key": "source"}
        assert [row.digest for row in store.get(["a", "b", "c"])] == ["digest of heron", "d1", "d2"]
        np.testing.assert_array_equal(store.vectors(["b", "c"], fingerprint=SPACE), EXACT[1:3])
        assert place().verify() == []

    def test_a_vector_is_given_only_to_the_text_that_waits_for_it(self, store: Store) -> None:
        read = [row(id_, digest="") for id_ in "abcd"]
        store.add([row(id_) for id_ in "abcd"], None, fingerprint=SPACE)
        store.add([row("a", "new")], None, fingerprint=SPACE)
        store.add([row("b")], EXACT[:1], fingerprint=SPACE)
        store.delete(["c"])
        other = store.create_generation(fingerprint=OTHER, context=b"other")
        matrix = EXACT[[1, 1, 1, 1]]
        assert store.add_to_generation(other, read, ["d"] * 4, matrix) == 1
        assert store.add_pending(read, ["d"] * 4, matrix, fingerprint=SPACE) == 1
        assert store.get(list("abcd")) == [row("a", "new", digest=""), row("b"), row("d", digest="d")]
        np.testing.assert_array_equal(store.vectors(["b", "d"], fingerprint=SPACE), EXACT[:2])
        with pytest.raises(ContextMismatchError):
            store.add_pending(read, ["d"] * 4, matrix, fingerprint=OTHER)
        with pytest.raises(ContextMismatchError):
            store.add(read, None, fingerprint=OTHER)
        with pytest.raises(ValueError, match="norm 1"):
            store.add_pending(store.pending(), ["d"], 2 * EXACT[:1], fingerprint=SPACE)

    def test_what_waits_again_keeps_the_vectors_that_are_still_its_own(self, store: Store) -> None:
        rows = [row("a"), row("b")]
        store.add(rows, EXACT[:2], fingerprint=SPACE)
        other = store.create_generation(fingerprint=OTHER, context=b"other")
        store.add_to_generation(other, rows, [each.digest for each in rows], EXACT[2:4])
        store.add([row("a"), row("b", "new")], None, fingerprint=SPACE)
        assert [each.record.id for each in store.lacking(other)] == ["b"]
        store.add_to_generation(other, store.pending()[1:], ["d"], EXACT[:1])
        store.activate(other)
        assert store.settle()
        np.testing.assert_array_equal(store.vectors(["a", "b"], fingerprint=OTHER), EXACT[[2, 0]])
        assert [each.record.id for each in store.lacking(1)] == ["a", "b"]
        assert store.verify() == []

    def test_adding_twice_is_adding_once(self, store: Store) -> None:
        for _ in range(2):
            store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
        assert store.count() == 2
        assert [row.record.id for row in store.scroll()] == ["a", "b"]
        assert_hits(store, [row("a"), row("b")], EXACT[:2], EXACT[1], 5, fingerprint=SPACE)

    def test_another_object_at_the_same_place_sees_all(self, place: Opener) -> None:
        store, other = created(place), place()
        store.add([row("a", year=2024)], EXACT[:1], fingerprint=SPACE)
        assert other.exists()
        assert other.manifest() == store.manifest()
        assert other.manifest().settings == {"parent_key": "source"}
        assert other.context() == b"context of " + SPACE.encode()
        assert other.get(["a"]) == [row("a", year=2024)]
        store.close()
        np.testing.assert_array_equal(place().vectors(["a"], fingerprint=SPACE), EXACT[:1])

    def test_settings_are_added_and_replaced_and_the_analyzer_stays(self, place: Opener) -> None:
        store = created(place)
        store.add([row("a")], EXACT[:1], fingerprint=SPACE)
        store.update_settings({"hybrid_weight": 0.4, "größe": [1, None]})
        store.update_settings({"hybrid_weight": np.float64(0.5), "numbers": np.arange(2)})
        expected = {"parent_key": "source", "hybrid_weight": 0.5, "numbers": [0, 1], "größe": [1, None]}
        assert store.manifest().settings == expected
        with pytest.raises(ValueError, match=r"index_texts\(\) moves"):
            store.update_settings({"analyzer": "porter-identifiers"})
        with pytest.raises(CorpusError, match="JSON"):
            store.update_settings({"weight": float("nan")})
        store.close()
        other = place()
        assert other.manifest().settings == expected
        assert other.get(["a"]) == [row("a")]
        assert other.verify() == []

    def test_settings_that_a_caller_changes_are_a_copy(self, place: Opener) -> None:
        store = place()
        store.create(dim=4, fingerprint=SPACE, context=b"context", settings={"headers": ["section"]})
        for opened in (store, place(), store):
            found: Any = opened.manifest().settings
            assert found == {"headers": ["section"]}
            found["headers"].append("forged")
        store.update_settings({"weight": 1})
        assert store.manifest().settings == {"headers": ["section"], "weight": 1}

    def test_a_replaced_record_keeps_its_place_and_a_deleted_one_does_not(self, store: Store) -> None:
        store.add([row("a"), row("b"), row("c")], EXACT[[0, 0, 0]], fingerprint=SPACE)
        store.add([row("b", "new")], EXACT[:1], fingerprint=SPACE)
        (hits,) = store.search(EXACT[:1], 3, fingerprint=SPACE)
        assert [(hit.id, hit.text) for hit in hits] == [("a", "text"), ("b", "new"), ("c", "text")]
        assert store.delete(["a", "unknown", "a"]) == 1
        store.add([row("a")], EXACT[:1], fingerprint=SPACE)
        assert [row.record.id for row in store.scroll()] == ["b", "c", "a"]

    def test_metadata_is_updated_for_all_ids_or_none(self, store: Store) -> None:
        store.add([row("a", year=1), row("b", year=2)], EXACT[:2], fingerprint=SPACE)
        with pytest.raises(KeyError, match="nobody"):
            store.update_metadata({"a": {"year": 3}, "nobody": {}})
        assert store.count({"year": 1}) == 1
        store.update_metadata({"a": {"month": 3}})
        assert store.get(["a"]) == [row("a", month=3)]
        assert store.count({"year": 1}) == 0
        assert_hits(store, [row("a", month=3)], EXACT[:1], EXACT[0], 5, fingerprint=SPACE, where={"month": 3})

    def test_rows_come_in_the_order_asked(self, store: Store) -> None:
        store.add([row("a"), row("b"), row("c")], EXACT[:3], fingerprint=SPACE)
        assert [row.record.id for row in store.get(["c", "nobody", "\ud800", "a", "a"])] == ["c", "a", "a"]
        np.testing.assert_array_equal(store.vectors(["c", "a"], fingerprint=SPACE), EXACT[[2, 0]])
        with pytest.raises(KeyError, match="nobody"):
            store.vectors(["a", "nobody"], fingerprint=SPACE)

    def test_scroll_pages_through_all_once(self, store: Store) -> None:
        store.add([row(str(number), even=number % 2 == 0) for number in range(25)], units(25), fingerprint=SPACE)
        for where, expected in ((None, range(25)), ({"even": True}, range(0, 25, 2))):
            found = store.scroll(where=where, page=4)
            assert [row.record.id for row in found] == [str(number) for number in expected]

    @pytest.mark.parametrize("call", ["read", "write"])
    def test_a_state_ends_with_the_call_that_it_was_given_to(self, store: Store, call: str) -> None:
        """Not that it answers from a connection that is somebody else's by then, or with another state."""
        store.add([row("a")], EXACT[:1], fingerprint=SPACE)
        state, rows = getattr(store, call)(lambda state: (state, state.scroll()))
        for late in (
            lambda: list(rows),
            state.count,
            lambda: state.delete(["a"]),
            lambda: state.nearest(EXACT[:1], 1, fingerprint=SPACE),
            lambda: state.matching(["text"], 1),
        ):
            with pytest.raises(StoreError, match=r"This state of the store ended .* list\(state\.scroll\(\)\)"):
                late()
        assert store.count() == 1

    def test_a_sample_comes_from_all_quarters(self, store: Store) -> None:
        assert store.sample(5) == []
        store.add([row(str(number)) for number in range(200)], units(200), fingerprint=SPACE)
        numbers = [int(row.record.id) for row in store.sample(8)]
        assert numbers == sorted(set(numbers))
        assert [number // 50 for number in numbers] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [row.record.id for row in store.sample(500)] == [str(number) for number in range(200)]
        assert [len(store.sample(count)) for count in (1, 2, 3, 5, 199, 200)] == [1, 2, 3, 5, 199, 200]
        store.delete([str(number) for number in range(200) if number not in (3, 77, 199)])
        assert [row.record.id for row in store.sample(200)] == ["3", "77", "199"]
        with pytest.raises(ValueError, match="count must be at least 1, not 0"):
            store.sample(0)

    def test_a_sample_with_a_seed_comes_from_anywhere(self, store: Store) -> None:
        assert store.sample(5, seed=0) == []
        store.add([row(str(number)) for number in range(200)], units(200), fingerprint=SPACE)
        seen = set[int]()
        for seed in range(60):
            numbers = [int(row.record.id) for row in store.sample(20, seed=seed)]
            assert numbers == sorted(set(numbers))
            assert len(numbers) == 20
            seen.update(numbers)
        assert len(seen) > 190
        assert [row.record.id for row in store.sample(500, seed=1)] == [str(number) for number in range(200)]
        store.delete([str(number) for number in range(0, 200, 2)])
        found = [int(row.record.id) for row in store.sample(50, seed=1)]
        assert len(found) > 30
        assert found == sorted(set(found))
        assert all(number % 2 for number in found)

    @pytest.mark.parametrize("again", [False, True])
    def test_rows_that_are_there_all_the_time_come_once(self, store: Store, again: bool) -> None:
        """Whatever is deleted, and added again, between two pages; the last that was given out, above all."""
        store.add([row(str(number)) for number in range(25)], units(25), fingerprint=SPACE)
        going, seen = {"3": ["3"], "7": ["7", "9", "24"], "23": ["23"]}, list[str]()  # at these: what goes
        for found in store.scroll(page=4):
            seen.append(found.record.id)
            gone = going.pop(seen[-1], [])
            store.delete(gone)
            if gone and again:
                store.add([row(id_, "again") for id_ in gone], units(len(gone)), fingerprint=SPACE)
        others = [str(number) for number in range(25) if number not in (3, 7, 9, 23, 24)]
        assert [id_ for id_ in seen if id_ in others] == others

    def test_who_adds_for_each_row_comes_to_an_end(self, store: Store) -> None:
        store.add([row(str(number)) for number in range(6)], units(6), fingerprint=SPACE)
        for place, found in enumerate(store.scroll(page=2)):
            assert found.record.id == str(place)
            store.add([row(f"after {place}")], units(1), fingerprint=SPACE)
        assert store.count() == 12

    def test_a_foreign_fingerprint_is_refused(self, store: Store) -> None:
        store.add([row("a")], EXACT[:1], fingerprint=SPACE)
        for call in (
            lambda: store.add([row("b")], EXACT[:1], fingerprint=OTHER),
            lambda: store.search(EXACT[:1], 1, fingerprint=OTHER),
            lambda: store.vectors(["a"], fingerprint=OTHER),
        ):
            with pytest.raises(ContextMismatchError) as raised:
                call()
            assert (raised.value.expected, raised.value.found) == (SPACE, OTHER)
        assert store.count() == 1

    def test_generations_never_meet_in_one_search(self, place: Opener) -> None:
        """The spaces are orthogonal: one vector of the other generation would change every score."""
        store, reader = created(place), place()
        old, new = np.repeat(EXACT[[0]], 4, axis=0), np.repeat(EXACT[[1]], 4, axis=0)
        rows = [row(name) for name in "abcd"]
        store.add(rows, old, fingerprint=SPACE)
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        assert store.add_to_generation(number, rows[:2], ["1", "2"], new[:2]) == 2
        assert reader.lacking(number) == rows[2:]
        with pytest.raises(StoreError, match="4 records, found 2"):
            store.activate(number)
        assert store.add_to_generation(number, rows[2:], ["3", "4"], new[2:]) == 2
        assert reader.lacking(number) == []
        assert_hits(reader, rows, old, EXACT[0], 4, fingerprint=SPACE)
        store.activate(number)
        with pytest.raises(ContextMismatchError):
            reader.search(EXACT[:1], 4, fingerprint=SPACE)
        assert_hits(reader, rows, new, EXACT[1], 4, fingerprint=OTHER)
        assert reader.context() == reader.context(number) == b"other"
        assert reader.context(1) == b"context of " + SPACE.encode()
        assert [row.digest for row in reader.scroll()] == ["1", "2", "3", "4"]
        store.activate(1)
        assert_hits(reader, rows, old, EXACT[0], 4, fingerprint=SPACE)
        store.drop(number)
        assert [generation.number for generation in reader.generations()] == [1]
        assert store.create_generation(fingerprint=OTHER, context=b"other") == number + 1
        assert store.verify() == []

    def test_a_state_of_a_store_has_what_was_written_in_it(self, store: Store) -> None:
        def ids(state: StoreState, vector: int) -> list[str]:
            return [hit.id for hit in state.search(EXACT[[vector]], 5, fingerprint=SPACE)[0]]

        def work(state: StoreState) -> None:
            state.add([row("a")], EXACT[:1], fingerprint=SPACE)
            assert ids(state, 0) == ["a"]
            state.add([row("b"), row("c")], EXACT[1:3], fingerprint=SPACE)
            assert sorted(ids(state, 1)) == ["a", "b", "c"]
            assert ids(state, 1)[0] == "b"
            state.add([row("a", "new")], EXACT[3:4], fingerprint=SPACE)
            assert state.delete(["b"]) == 1
            assert ids(state, 3) == ["a", "c"]
            assert [found.record.text for found in state.scroll()] == [
                row("a", "new").record.text,
                row("c").record.text,
            ]
            number = state.create_generation(fingerprint=OTHER, context=b"other")
            rows = state.lacking(number)
            state.add_to_generation(number, rows, ["1", "2"], EXACT[4:6])
            state.activate(number)
            assert state.manifest().fingerprint == OTHER
            assert [hit.id for hit in state.search(EXACT[4:5], 1, fingerprint=OTHER)[0]] == ["a"]

        store.write(work)
        assert [found.record.id for found in store.scroll()] == ["a", "c"]
        assert store.count() == len(store.search(EXACT[4:5], 5, fingerprint=OTHER)[0]) == 2
        assert store.verify() == []

    def test_a_generation_needs_a_new_fingerprint(self, store: Store) -> None:
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        for fingerprint, taken in ((SPACE, 1), (OTHER, number)):
            with pytest.raises(StoreError, match=f"found that of generation {taken}"):
                store.create_generation(fingerprint=fingerprint, context=b"again")
        store.drop(number)
        assert store.create_generation(fingerprint=OTHER, context=b"other") == number + 1

    def test_a_new_text_has_no_vector_in_other_generations(self, store: Store) -> None:
        store.add([row("a"), row("b")], EXACT[:2], fingerprint=SPACE)
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        store.add_to_generation(number, [row("a"), row("b")], [row("a").digest] * 2, EXACT[2:4])
        store.add([row("a", "new"), row("b", year=1)], EXACT[:2], fingerprint=SPACE)
        assert [generation.vectors for generation in store.generations()] == [2, 1]
        assert store.lacking(number) == [row("a", "new")]
        with pytest.raises(StoreError):
            store.activate(number)

    def test_what_changed_since_it_was_read_gets_no_vector_in_a_generation(self, store: Store) -> None:
        """Otherwise the vector of an old text would be found under the new one."""
        store.add([row("a"), row("b"), row("c"), row("d")], EXACT[:4], fingerprint=SPACE)
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        read = store.lacking(number)
        assert store.lacking(number, limit=2) == read[:2]
        assert store.lacking(number, after=read[0]) == read[1:]
        assert store.lacking(number, limit=1, after=read[0]) == read[1:2]
        assert store.lacking(number, after=read[-1]) == []
        assert store.lacking(number, after=row("unknown", "text")) == read
        store.add([row("b", "new")], EXACT[4:5], fingerprint=SPACE)
        store.delete(["c"])
        store.update_metadata({"d": {"year": 1}})
        assert store.add_to_generation(number, read, [one.digest for one in read], EXACT[4:8]) == 2
        assert store.lacking(number) == [row("b", "new")]
        assert store.add_to_generation(number, store.lacking(number), ["digest"], EXACT[8:9]) == 1
        store.activate(number)
        np.testing.assert_array_equal(store.vectors(["a", "b", "d"], fingerprint=OTHER), EXACT[[4, 8, 7]])

    def test_one_run_at_a_time_works_on_generations(self, place: Opener) -> None:
        store = created(place)
        with store.lease():
            for other in (store, place()):
                with pytest.raises(StoreError, match="another"), other.lease():
                    pass
            store.add([row("a")], EXACT[:1], fingerprint=SPACE)  # the lease keeps nobody else waiting
            assert place().count() == 1
        with place().lease():
            pass

    def test_generations_are_refused_where_they_make_no_sense(self, store: Store) -> None:
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        with pytest.raises(StoreError):
            store.drop(1)
        with pytest.raises(StoreError):
            store.add_to_generation(1, [], [], EXACT[:0])
        with pytest.raises(StoreError):
            store.lacking(1)
        with pytest.raises(ValueError, match="limit"):
            store.lacking(number, limit=0)
        assert store.add_to_generation(number, [row("nobody")], ["digest"], EXACT[:1]) == 0
        for call in (store.activate, store.drop, store.lacking, store.context):
            with pytest.raises(StoreError, match="7"):
                call(7)

    def test_a_place_has_at_most_one_store(self, place: Opener) -> None:
        assert not place().exists()
        for call in (lambda: place().manifest(), lambda: place().count(), lambda: place().verify()):
            with pytest.raises(StoreError):
                call()
        created(place)
        with pytest.raises(StoreError, match="open"):
            created(place)

    def test_an_empty_store_answers(self, store: Store) -> None:
        assert store.search(EXACT[:2], 3, fingerprint=SPACE) == [[], []]
        assert store.search(EXACT[:0], 3, fingerprint=SPACE) == []
        assert list(store.scroll()) == store.get(["a"]) == []
        assert (store.count(), store.delete(["a"]), store.delete([])) == (0, 0, 0)
        store.add([], EXACT[:0], fingerprint=SPACE)
        store.update_metadata({})
        assert store.vectors([], fingerprint=SPACE).shape == (0, DIM)
        assert store.verify() == []

    @pytest.mark.parametrize(
        "record",
        [
            Record("nul\0", "a\0b", "\0", {"a\0": "\0"}),
            Record("😀 / .. ' \" %", "é\n\t", metadata={"": {"": []}, "a.b": [[1.5, None], True]}),
            Record("long", "x" * 2**20),
            Record("deep", "text", metadata=nested(90)),
        ],
    )
    def test_any_text_comes_back(self, store: Store, record: Record) -> None:
        store.add([Row(record, "digest")], EXACT[:1], fingerprint=SPACE)
        assert store.get([record.id]) == [Row(record, "digest")]
        assert store.search(EXACT[:1], 1, fingerprint=SPACE)[0][0].text == record.text
        number = store.create_generation(fingerprint=OTHER, context=b"context")
        assert store.add_to_generation(number, store.lacking(number), ["other"], EXACT[:1]) == 1
        assert store.delete([record.id]) == 1

    @pytest.mark.parametrize(
        "record",
        [
            Record("", "text"),
            Record("\ud800", "text"),
            Record("a", "\ud800"),
            Record("a", "text", "\ud800"),
            Record("a", "text", metadata={"a": "\ud800"}),
            Record("a", "text", metadata={"a": float("nan")}),
            Record("a", "text", metadata={"a": {1, 2}}),
            Record("a", "text", metadata={"a": [{1: 2}]}),
            Record("a", "text", metadata=nested(5000)),
        ],
    )
    def test_unusable_records_are_refused(self, store: Store, record: Record) -> None:
        with pytest.raises(CorpusError):
            store.add([row("good"), Row(record, "digest")], EXACT[:2], fingerprint=SPACE)
        assert store.count() == 0

    def test_an_id_comes_once_in_a_call(self, store: Store) -> None:
        with pytest.raises(CorpusError, match="twice"):
            store.add([row("a"), row("a", "other")], EXACT[:2], fingerprint=SPACE)
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        store.add([row("a")], EXACT[:1], fingerprint=SPACE)
        with pytest.raises(CorpusError, match="twice"):
            store.add_to_generation(number, [row("a")] * 2, ["digest", "digest"], EXACT[:2])

    @pytest.mark.parametrize(
        "matrix",
        [EXACT[:1], EXACT[:2, :3], EXACT[:2] * 2, EXACT[:2] * np.float32(np.nan), np.zeros((2, DIM), np.float32)],
    )
    def test_unusable_vectors_are_refused(self, store: Store, matrix: np.ndarray) -> None:
        with pytest.raises(ValueError, match="Expected"):
            store.add([row("a"), row("b")], matrix, fingerprint=SPACE)
        if len(matrix) == 2:
            with pytest.raises(ValueError, match="Expected"):
                store.search(matrix, 1, fingerprint=SPACE)
        assert store.count() == 0

    def test_the_layout_in_memory_means_nothing(self, store: Store) -> None:
        matrix = units(6)
        rows = [row(str(number)) for number in range(3)]
        store.add(rows, np.asfortranarray(matrix)[::2], fingerprint=SPACE)
        assert_hits(store, rows, matrix[::2], np.asfortranarray(matrix)[1], 3, fingerprint=SPACE)
        assert store.verify() == []

    def test_senseless_questions_are_refused(self, store: Store) -> None:
        for k in (0, -1):
            with pytest.raises(ValueError, match="k"):
                store.search(EXACT[:1], k, fingerprint=SPACE)
        with pytest.raises(ValueError, match="page"):
            store.scroll(page=0)
        with pytest.raises(FilterError):
            store.search(EXACT[:1], 1, fingerprint=SPACE, where={"year": {"$gt": 1}})
        with pytest.raises(TypeError, match="list"):
            store.delete("abc")
        with pytest.raises(TypeError, match="list"):
            store.get("abc")

    @pytest.mark.parametrize("most", [2**31, 2**63, 10**30])
    def test_any_number_is_enough(self, store: Store, most: int) -> None:
        rows = [row(str(number), year=number) for number in range(3)]
        store.add(rows, EXACT[:3], fingerprint=SPACE)
        (found,) = store.search(EXACT[:1], most, fingerprint=SPACE)
        assert len(found) == 3
        (some,) = store.search(EXACT[:1], most, fingerprint=SPACE, where={"year": {"gte": 1}})
        assert len(some) == 2
        assert list(store.scroll(page=most)) == store.sample(most) == rows
        number = store.create_generation(fingerprint=OTHER, context=b"other")
        assert store.lacking(number, limit=most) == rows

    def test_threads_add_and_search_together(self, store: Store) -> None:
        matrix = units(200, seed=1)

        def add(part: int) -> None:
            numbers = range(part * 50, part * 50 + 50)
            for start in range(0, 50, 10):
                some = numbers[start : start + 10]
                store.add([row(str(number)) for number in some], matrix[list(some)], fingerprint=SPACE)

        def search(_: int) -> None:
            for _ in range(15):
                (hits,) = store.search(matrix[:1], 200, fingerprint=SPACE)
                assert len(hits) % 10 == 0  # batches are seen whole or not at all
                scores = [hit.score for hit in hits]
                assert scores == sorted(scores, reverse=True)
                np.testing.assert_allclose(scores, [matrix[int(hit.id)] @ matrix[0] for hit in hits], atol=1e-6)

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(add, part) for part in range(4)] + [
                pool.submit(search, part) for part in range(4)
            ]:
                done.result()
        assert store.count() == 200
        assert store.verify() == []

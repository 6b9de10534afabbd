"""The passages of each parent: several of them in a batch, so that siblings are negatives, and siblings for each."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from cde_rag.context.siblings import SIBLINGS, siblings_by_position
from cde_rag_training.corpora.groups import Groups
from cde_rag_training.data.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class ParentConfig:
    """Batches that are made of several passages of each of some parents. All ours, design §9."""

    share: float = 0.5  # of batches
    passages: tuple[int, int] = (3, 7)  # of a parent in a batch, least and most
    no_siblings_share: float = 0.2  # of these batches, without siblings
    lone_share: float = 0.1  # of documents of a batch with siblings, that are given none
    wrong_share: float = 0.05  # of documents of a batch with siblings, that are given those of another parent
    apart_share: float = 0.0  # of the other batches, whose documents have siblings too, few of them in the batch
    siblings: int = SIBLINGS  # of a document, at most

    def __post_init__(self) -> None:
        """Refuse fewer than two passages of a parent, which are no siblings, and shares outside 0 … 1."""
        if not 2 <= self.passages[0] <= self.passages[1]:
            raise ValueError(
                f"Expected passages from 2 on, least and most, found {self.passages}. Without passages that are "
                "negatives of each other the model learns which parent and forgets which passage."
            )
        shares = (self.share, self.no_siblings_share, self.lone_share, self.wrong_share, self.apart_share)
        if not (min(shares) >= 0 and max(shares) <= 1) or self.siblings < 0:
            raise ValueError(f"Expected shares in 0 … 1 and siblings of at least 0, found {self}.")


class Parents:
    """Passages of each parent: its documents in input order, each once.

    Siblings are drawn from all passages that the data has of a parent, if any, else from the documents of its pairs.

    Args:
        prepared: The data.
        config: What batches of passages are made of.

    Attributes:
        families: True for a pair whose parent has other passages.
    """

    families: Bool[np.ndarray, " pairs"]

    def __init__(self, prepared: Prepared, config: ParentConfig) -> None:
        self._config = config
        self._documents = np.asarray(prepared.documents)
        self._parents = np.asarray(prepared.parents)
        held = np.flatnonzero(self._parents >= 0)
        keys = self._parents[held] * len(prepared.texts) + self._documents[held]
        _, first, passage = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)  # passages in the order of their first pairs
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        self._passage = np.full(len(prepared), -1)
        self._passage[held] = number[passage]
        self._rows = self._documents[held[first[order]]]
        self._pairs = Groups(self._passage)
        self._passages = Groups(self._parents[held[first[order]]])
        self.families = np.zeros(len(prepared), dtype=np.bool_)
        self.families[held] = self._passages.sizes[self._parents[held]] > 1
        given = np.zeros((0, 3), dtype=np.int64) if prepared.passages is None else np.asarray(prepared.passages)
        self._given = given[given[:, 2] >= 0]  # passages with a parent, whether pairs have them or not
        self._of_parent = Groups(np.ascontiguousarray(self._given[:, 2]))
        self._place_of = {(parent, row): place for place, (row, _, parent) in enumerate(self._given.tolist())}
        self._place_of_row = {row: place for place, row in enumerate(self._given[:, 0].tolist())}

    def draw(
        self, rings: Iterable[Int64[np.ndarray, " _"]], size: int, random: np.random.Generator
    ) -> Int64[np.ndarray, " drawn"]:
        """Draw several passages of each of some parents, one pair per passage.

        Args:
            rings: Pairs whose parents are drawn from; the next ring is used if those before do not suffice.
            size: Number of pairs; fewer are returned if there are no more.
            random: Draws parents (∝ their pairs in the ring), passages and pairs.
        """
        least, most = self._config.passages
        drawn: list[int] = []
        known = set[int]()
        for ring in rings:
            parents = self._parents[random.permutation(ring[self.families[ring]])]
            for parent in dict.fromkeys(parents.tolist()):
                if parent in known:
                    continue
                known.add(parent)
                passages = self._passages.of(parent)
                wanted = min(int(random.integers(least, most + 1)), len(passages), size - len(drawn))
                chosen = random.choice(passages, size=wanted, replace=False).tolist()
                drawn += [int(random.choice(self._pairs.of(passage))) for passage in chosen]
                if len(drawn) == size:
                    return np.array(drawn)
        return np.array(drawn, dtype=np.int64)

    def siblings(
        self,
        pairs: Int64[np.ndarray, " batch"],
        documents: Int64[np.ndarray, " batch"],
        random: np.random.Generator,
    ) -> list[list[int]]:
        """Draw text rows of the siblings of each document; none for some, and another parent's for a few.

        Args:
            pairs: Pairs of the batch.
            documents: Their documents as shown. Neither a text nor a copy of it is its own sibling. A document shown
                without the sentence that is its query is nobody's sibling: complete, it would contain that sentence.
            random: Draws the documents without siblings, and those that get the siblings of another pair.
        """
        lone, wrong = random.random((2, len(pairs)))
        others = random.permutation(len(pairs))
        whole = self._documents[pairs]
        in_part = set(whole[documents != whole].tolist())
        given: list[list[int]] = []
        for number, pair in enumerate(pairs.tolist()):
            if lone[number] < self._config.lone_share or not self._near(pair):
                given.append([])
                continue
            other = int(pairs[others[number]])
            swapped = wrong[number] < self._config.wrong_share and self._parents[other] != self._parents[pair]
            hidden = in_part | {int(documents[number])}
            given.append([row for row in self._near(other if swapped else pair) if row not in hidden])
        return given

    def siblings_of_negatives(
        self, rows: Int64[np.ndarray, "batch negatives"], random: np.random.Generator
    ) -> list[list[int]]:
        """Draw text rows of the siblings of hard negatives, pair by pair; none for some.

        Args:
            rows: Their text rows; one that is no passage of the data has no siblings.
            random: Draws those without siblings.
        """
        lone = random.random(rows.size) < self._config.lone_share
        places = [self._place_of_row.get(row) for row in rows.ravel().tolist()]
        return [
            [] if alone or place is None else self._around(place) for alone, place in zip(lone, places, strict=True)
        ]

    def _around(self, place: int) -> list[int]:
        """Return text rows of the siblings of a given passage, which are not the same text."""
        row, _, parent = self._given[place].tolist()
        passages = self._of_parent.of(parent)
        at = int(np.searchsorted(passages, place))
        near = self._given[passages[siblings_by_position(at, len(passages), self._config.siblings)], 0]
        return [other for other in near.tolist() if other != row]

    def _near(self, pair: int) -> list[int]:
        place = self._place_of.get((int(self._parents[pair]), int(self._documents[pair])))
        if place is not None:
            return self._around(place)
        if not self.families[pair]:
            return []
        passages = self._passages.of(int(self._parents[pair]))
        place = int(np.searchsorted(passages, self._passage[pair]))
        return self._rows[passages[siblings_by_position(place, len(passages), self._config.siblings)]].tolist()

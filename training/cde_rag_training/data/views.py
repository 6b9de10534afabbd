"""Views of a pair: its own query, that without its parent's name, keywords, or a sentence."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from cde_rag_training.data.layout import VIEW_KINDS
from cde_rag_training.data.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Probabilities of the views of a pair. All ours, design §9."""

    nameless_share: float = 0.5  # of the queries that are their pair's own, without their parent's name
    keywords_share: float = 0.1  # of queries, that are a few words of the document
    sentence_share: float = 0.1  # of queries, that are a sentence of the document, which loses it

    def __post_init__(self) -> None:
        """Refuse shares of more than all queries, or of less than none."""
        if min(self.keywords_share, self.sentence_share) < 0 or self.keywords_share + self.sentence_share > 1:
            raise ValueError(
                "Expected keywords_share and sentence_share of at least 0, and of 1 together at most, found "
                f"{self.keywords_share} and {self.sentence_share}."
            )
        if not 0 <= self.nameless_share <= 1:
            raise ValueError(f"Expected a nameless_share in 0 … 1, found {self.nameless_share}.")


OWN = ViewConfig(nameless_share=0.0, keywords_share=0.0, sentence_share=0.0)


class Views:
    """Sampler of views.

    Args:
        prepared: The data.
        config: How often there is which.
    """

    def __init__(self, prepared: Prepared, config: ViewConfig) -> None:
        self._config = config
        pairs, kinds, self._queries, self._documents = np.ascontiguousarray(prepared.views.T)
        place = pairs * len(VIEW_KINDS) + kinds
        self._order = np.argsort(place, kind="stable")
        self._counts = np.bincount(place, minlength=len(prepared) * len(VIEW_KINDS)).reshape(-1, len(VIEW_KINDS))
        self._starts = (self._counts.cumsum() - self._counts.ravel()).reshape(self._counts.shape)

    def draw(
        self, pairs: Int64[np.ndarray, " batch"], random: np.random.Generator
    ) -> tuple[Int64[np.ndarray, " batch"], Int64[np.ndarray, " batch"]]:
        """Draw a view of each pair; return text rows of queries and of documents.

        Args:
            pairs: Their positions.
            random: Draws the kind, and the view where there are several of it.
        """
        config, counts = self._config, self._counts[pairs]
        nameless, other, several = random.random((3, len(pairs)))
        kinds = np.full(len(pairs), VIEW_KINDS.index("own"))
        for name, drawn in (
            ("nameless", nameless < config.nameless_share),
            ("keywords", other >= 1 - config.keywords_share),
            ("sentence", other < config.sentence_share),
        ):
            kind = VIEW_KINDS.index(name)
            kinds[drawn & (counts[:, kind] > 0)] = kind
        places = self._starts[pairs, kinds] + (several * self._counts[pairs, kinds]).astype(np.int64)
        rows = self._order[places]
        return self._queries[rows], self._documents[rows]


class SameQueries:
    """Matrix of pairs in a batch that share a query, word for word.

    A heading without its parent's name is a query for the sections of all parents that have it.

    Args:
        prepared: The data.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._own = np.asarray(prepared.queries)
        self._nameless = self._own.copy()
        nameless = prepared.views[prepared.views[:, 1] == VIEW_KINDS.index("nameless")]
        self._nameless[nameless[:, 0]] = nameless[:, 2]

    def __call__(
        self, pairs: Int64[np.ndarray, " batch"], queries: Int64[np.ndarray, " batch"]
    ) -> Bool[np.ndarray, "batch batch"]:
        """Return a mask, True where query i is a query of pair j too: as shown, or with or without its parent's name.

        Args:
            pairs: Pairs of the batch.
            queries: Their text rows as they are shown.
        """
        shown = queries[:, None]
        return (shown == queries) | (shown == self._own[pairs]) | (shown == self._nameless[pairs])

"""Task prefixes of a phase's texts: those of a pair, or of its source, in place of the model's own."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from cde_rag_training.config import SourceConfig
from cde_rag_training.data.layout import NO_PREFIX
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.networks.stages import Stages

OWN = 0  # code of the model's own prefix, by role

Prefix = list[int] | None
"""Token ids without special tokens; None for the model's own."""


class Prefixes:
    """Prefixes of queries and documents, by pair, and of context documents, by text row.

    A prefix of a recipe's source has precedence over that of a pair, and this over the model's own. A document of
    several pairs has the prefix of the first of them as a context document; a passage without a pair that of its source
    in the recipe.

    Args:
        prepared: The data.
        sources: Prefixes of sources, from the recipe.
        stages: Who reads the texts.

    Raises:
        RecipeError: A one-way model, which has no prefixes, or a prefix after whose end the model cannot pool.

    Source: paper §5 and §10.7.
    """

    def __init__(self, prepared: Prepared, sources: Sequence[SourceConfig], stages: Stages) -> None:
        self._ids: list[Prefix] = [None]
        codes = np.full((len(prepared), 2), OWN, dtype=np.int64)
        if prepared.prefixes is not None:
            for row in np.unique(prepared.prefixes).tolist():
                if row != -1:
                    ids = [] if row == NO_PREFIX else prepared.texts[row][1:-1]
                    codes[np.asarray(prepared.prefixes) == row] = self._code(ids)
        passages = np.full(len(prepared.source_names), OWN, dtype=np.int64)
        for each in sources:
            source = prepared.source_names.index(each.name)
            for column, prefix in enumerate((each.query_prefix, each.document_prefix)):
                if prefix is not None:
                    codes[prepared.sources == source, column] = self._code(stages.prefix_ids(prefix))
            passages[source] = codes[prepared.sources == source, 1][0] if each.document_prefix is not None else OWN
        if len(self._ids) > 1:
            stages.check_prefixes([ids for ids in self._ids[1:] if ids is not None])
        self._pairs = codes
        self._rows = np.full(len(prepared.texts), OWN, dtype=np.int64)
        if prepared.passages is not None:
            source_of = np.zeros(len(prepared.domain_names), dtype=np.int64)
            source_of[prepared.domains] = prepared.sources
            self._rows[prepared.passages[:, 0]] = passages[source_of[prepared.passages[:, 1]]]
        views = prepared.views[::-1]  # the first pair is written last
        self._rows[views[:, 3]] = codes[views[:, 0], 1]

    def _code(self, ids: list[int]) -> int:
        if ids not in self._ids:
            self._ids.append(ids)
        return self._ids.index(ids)

    def __bool__(self) -> bool:
        """Return True if any text has another prefix than the model's own."""
        return len(self._ids) > 1

    def of_queries(self, pairs: Int64[np.ndarray, " some"]) -> list[Prefix]:
        """Return the prefixes of the pairs' queries."""
        return [self._ids[code] for code in self._pairs[pairs, 0].tolist()]

    def of_documents(self, pairs: Int64[np.ndarray, " some"]) -> list[Prefix]:
        """Return the prefixes of the pairs' documents, and so of their hard negatives."""
        return [self._ids[code] for code in self._pairs[pairs, 1].tolist()]

    def of_rows(self, rows: Sequence[int] | Int64[np.ndarray, " some"]) -> list[Prefix]:
        """Return the prefixes of documents and passages as context documents, by their text rows."""
        return [self._ids[code] for code in self._rows[np.asarray(rows, dtype=np.int64)].tolist()]

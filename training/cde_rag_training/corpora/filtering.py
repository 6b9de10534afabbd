"""False-negative filters: masks of a batch's documents by rules on surrogate scores, combinable with `|`.

Row i of the scores belongs to query i, whose own document is document i; it is never masked.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cde_rag.errors import CDEWarning

DUPLICATE = 0.95  # surrogate cosine from which two documents count as one
MARGIN = 0.10  # by how much a surrogate must prefer another document to be believed
ALL_OF_THEM = 0.95  # share of what a start model has to learn that, if masked, counts as all


class FilterWarning(CDEWarning):
    """Warning that a filter masks most of the signal to learn from."""


def _but_own(mask: Bool[Tensor, "queries documents"]) -> Bool[Tensor, "queries documents"]:
    return mask & ~torch.eye(*mask.shape, dtype=torch.bool, device=mask.device)


def preferred(scores: Float[Tensor, "queries documents"], *, margin: float = 0.0) -> Bool[Tensor, "queries documents"]:
    """Mask by the relative rule: documents that score at least as high as the query's own, or by `margin` higher.

    Args:
        scores: f(q, d') of a surrogate.
        margin: In the units of the scores; 0 is the paper's rule. A surrogate that is the start model needs one: the
            paper's rule masks all that such a model has to learn (`warn_of_start_model`).

    Source: paper §4.1, S(q, d) of eq. 4; the margin is ours.

    Examples:
        >>> preferred(torch.tensor([[0.6, 0.8], [0.1, 0.7]])).tolist()
        [[False, True], [False, False]]
    """
    return _but_own(scores >= scores.diagonal()[:, None] + margin)


def above(scores: Float[Tensor, "queries documents"], threshold: float) -> Bool[Tensor, "queries documents"]:
    """Mask by the absolute rule: documents that score `threshold` or more, regardless of the query's own score.

    Source: the paper's code.
    """
    return _but_own(scores >= threshold)


def agreed(
    dense: Float[Tensor, "queries documents"], lexical: Float[Tensor, "queries documents"]
) -> Bool[Tensor, "queries documents"]:
    """Mask by the relative rule where two different surrogates agree.

    Args:
        dense: Cosines.
        lexical: BM25 scores. Zero means that no term is shared, so that such a document is never masked.

    Source: ours, design §9.
    """
    return preferred(dense) & preferred(lexical) & (lexical > 0)


def duplicates(
    same_query: Int[Tensor, "queries"],
    same_document: Int[Tensor, "documents"],
    documents: Float[Tensor, "documents dim"],
    *,
    cosine: float = DUPLICATE,
) -> Bool[Tensor, "queries documents"]:
    """Mask certain false negatives: answers to the same query, and copies of its own document.

    Args:
        same_query: Equal numbers where two queries are the same text.
        same_document: Equal numbers where two documents are the same text.
        documents: Surrogate embeddings, unit norm.
        cosine: From which two documents count as one.

    Source: ours, design §9.
    """
    count = len(same_query)
    mask = (same_document[:count, None] == same_document[None, :]) | (documents[:count] @ documents.T >= cosine)
    mask[:, :count] |= same_query[:, None] == same_query[None, :]
    return _but_own(mask)


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Rule applied in addition to `duplicates`, which always applies. The defaults are ours, design §9."""

    rule: Literal["relative", "agreement", "absolute", "none"] = "relative"
    margin: float = MARGIN  # of the relative rule, cosine; 0 is the paper's rule
    threshold: float = 0.8  # of the absolute rule, cosine


def by_rule(
    config: FilterConfig,
    dense: Float[Tensor, "queries documents"],
    lexical: Float[Tensor, "queries documents"] | None = None,
) -> Bool[Tensor, "queries documents"]:
    """Compute the mask of the configured rule.

    Args:
        config: Names it.
        dense: Cosines of the surrogate.
        lexical: BM25 scores, for agreement only.

    Raises:
        ValueError: Agreement without lexical scores.
    """
    if config.rule == "agreement":
        if lexical is None:
            raise ValueError(
                "Expected BM25 scores for the rule 'agreement', found none. Make them with `lexical_pairs`, or choose "
                "the rule 'relative' with a margin."
            )
        return agreed(dense, lexical)
    if config.rule == "absolute":
        return above(dense, config.threshold)
    return preferred(dense, margin=config.margin) if config.rule == "relative" else torch.zeros_like(dense).bool()


class StartBatch(NamedTuple):
    """Scores of a batch by the model that training starts from.

    Attributes:
        scores: Scores of the start model.
        mask: Mask of the rule.
        known: Mask of `duplicates`.
    """

    scores: Float[Tensor, "queries documents"]
    mask: Bool[Tensor, "queries documents"]
    known: Bool[Tensor, "queries documents"]


def warn_of_start_model(batches: Iterable[StartBatch]) -> None:
    """Warn if a rule masks (nearly) every document that the start model wrongly ranks above the query's own.

    These are the errors that training has to correct. It happens when the surrogate is the start model and the rule is
    the plain relative one: 42 % of queries in clustered batches lose their hardest negative.

    Args:
        batches: Some tens of them: in a single one nothing may be left by chance.

    Source: ours, design §9.
    """
    count = masked = 0
    for scores, mask, known in batches:
        to_learn = preferred(scores) & ~known
        count += int(to_learn.sum())
        masked += int((to_learn & mask).sum())
    if count and masked >= ALL_OF_THEM * count:
        warnings.warn(
            f"Of {count} documents that the start model ranks above a query's own, the filter masks {masked}: the "
            "surrogate is the start model, or as good as, and nothing is left to learn. Give the rule a margin, let "
            "two surrogates agree, or filter with another surrogate.",
            FilterWarning,
            stacklevel=2,
        )


class FilteredBatch(NamedTuple):
    """Input of the filter report: a batch's source, its surrogate scores, and its mask."""

    source: str
    scores: Float[Tensor, "queries documents"]
    mask: Bool[Tensor, "queries documents"]


class FilterReport(NamedTuple):
    """Statistics of a filter on the batches of one source.

    Attributes:
        queries: Number of queries.
        masked: Share of (query, other document) that is masked.
        loses_hardest: Share of queries whose highest scored other document is masked.
    """

    queries: int
    masked: float
    loses_hardest: float


def report(batches: Iterable[FilteredBatch]) -> dict[str, FilterReport]:
    """Compute a filter's statistics for each source, in order of name.

    Args:
        batches: Each of two documents or more.
    """
    counts: dict[str, list[int]] = {}
    for source, scores, mask in batches:
        own = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        hardest = scores.masked_fill(own, float("-inf")).argmax(dim=1, keepdim=True)
        found = (mask.shape[0], int((~own).sum()), int(mask.sum()), int(mask.gather(1, hardest).sum()))
        counts[source] = [a + b for a, b in zip(counts.get(source, [0] * 4), found, strict=True)]
    return {
        source: FilterReport(queries, masked / others, lost / queries)
        for source, (queries, others, masked, lost) in sorted(counts.items())
    }

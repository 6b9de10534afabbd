"""Human-readable report of a batch: its pairs, their difficulty, filtered negatives by rule, its context."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from tokenizers import Tokenizer
from torch import Tensor

from cde_rag_training.corpora.batch import Batch
from cde_rag_training.corpora.filtering import FilterConfig, by_rule, duplicates
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import DocumentTokens
from cde_rag_training.data.views import SameQueries

SAME_QUERY, SAME_DOCUMENT = "same query", "same document"  # rules that always hold


@dataclass(frozen=True)
class ReportedPair:
    """One pair of a batch as training shows it.

    Attributes:
        query: As it is shown.
        document: As it is shown.
        parent: Name of its parent, empty where it has none.
        siblings: How many texts of a parent the document is given.
        similarity: Surrogate cosine of query and document.
        hardest: The other document that is nearest to the query.
        hardest_similarity: Its surrogate cosine.
        filtered: Why that one is no negative, empty where it is one.
    """

    query: str
    document: str
    parent: str
    siblings: int
    similarity: float
    hardest: str
    hardest_similarity: float
    filtered: str


@dataclass(frozen=True)
class BatchReport:
    """Report of one batch.

    Attributes:
        update: Number of its update.
        source: Source of its pairs.
        corpus: Name of the corpus it was drawn from.
        shown: Transformation of its documents, empty if there is none.
        size: Number of pairs.
        hard_negatives: Number of hard negatives per pair, random documents in their place included.
        filled: Number of those random documents, in all pairs together.
        parents: Number of different parents.
        difficulty: Mean surrogate cosine of a query with the other documents.
        hardest: Mean surrogate cosine of a query with the nearest other document.
        own: Mean surrogate cosine of a query with its own document.
        filtered: For each rule the share of (query, other document) that is masked by it.
        loses_hardest: Share of queries whose nearest other document is masked.
        context: Documents of the context.
        context_examples: Some of them.
        with_siblings: Documents that are given siblings.
        pairs: Some of the pairs, the hardest first.
    """

    update: int
    source: str
    corpus: str
    shown: str
    size: int
    hard_negatives: int
    filled: int
    parents: int
    difficulty: float
    hardest: float
    own: float
    filtered: Mapping[str, float]
    loses_hardest: float
    context: int
    context_examples: tuple[str, ...]
    with_siblings: int
    pairs: tuple[ReportedPair, ...]


class Masks(NamedTuple):
    """Masked negatives of a batch, by rule.

    Attributes:
        scores: Surrogate cosines.
        by_rule: Mask of each rule.
    """

    scores: Float[Tensor, "queries documents"]
    by_rule: dict[str, Bool[Tensor, "queries documents"]]


def masks(prepared: Prepared, batch: Batch, rule: FilterConfig) -> Masks:
    """Compute surrogate scores and masks of a batch's documents.

    Args:
        prepared: The data.
        batch: One batch of it.
        rule: The configured rule, in addition to the two that always apply.

    Raises:
        ValueError: The rule is agreement, and the data was prepared without BM25.
    """
    queries, documents = map(torch.from_numpy, prepared.filter_vectors_of(batch.pairs))
    scores = queries @ documents.T
    lexical = None if prepared.lexical is None else torch.from_numpy(prepared.lexical.scores(batch.pairs))
    own = torch.eye(len(batch.pairs), dtype=torch.bool)
    same_query = torch.from_numpy(SameQueries(prepared)(batch.pairs, batch.queries)) & ~own
    answers = torch.from_numpy(prepared.documents[batch.pairs])
    found = {SAME_QUERY: same_query, SAME_DOCUMENT: duplicates(torch.arange(len(batch.pairs)), answers, documents)}
    if rule.rule != "none":
        found[f"rule {rule.rule}"] = by_rule(rule, scores, lexical)
    return Masks(scores, found)


def report_batch(prepared: Prepared, batch: Batch, rule: FilterConfig, *, update: int, examples: int) -> BatchReport:
    """Report a batch's difficulty, masks and context, with examples.

    Args:
        prepared: The data.
        batch: One batch of it.
        rule: The configured rule, in addition to equal queries and documents.
        update: The batch's number.
        examples: Pairs and context documents that are shown.

    Raises:
        ValueError: As `masks`.
    """
    scores, by_name = masks(prepared, batch, rule)
    size = len(batch.pairs)
    own = torch.eye(size, dtype=torch.bool)
    hardest_score, hardest = scores.masked_fill(own, float("-inf")).max(dim=1)
    lost = torch.stack([mask.gather(1, hardest[:, None])[:, 0] for mask in by_name.values()])  # (rules, queries)
    texts, tokenizer = DocumentTokens(prepared), Tokenizer.from_str(prepared.tokenizer)

    def text(row: int) -> str:
        return tokenizer.decode(prepared.texts[row][1:-1])

    def shown(row: int) -> str:
        return tokenizer.decode(texts([row], batch.transformation)[0][1:-1])

    def pair(place: int) -> ReportedPair:
        title = int(prepared.titles[batch.pairs[place]])
        other = int(hardest[place])
        reasons = [name for name, gone in zip(by_name, lost[:, place].tolist(), strict=True) if gone]
        return ReportedPair(
            query=text(int(batch.queries[place])),
            document=shown(int(batch.documents[place])),
            parent=text(title) if title >= 0 else "",
            siblings=len(batch.siblings[place]),
            similarity=float(scores[place, place]),
            hardest=shown(int(batch.documents[other])),
            hardest_similarity=float(hardest_score[place]),
            filtered=", ".join(reasons),
        )

    order = (hardest_score - scores.diagonal()).argsort(descending=True, stable=True)[:examples].tolist()
    others = scores[~own]
    return BatchReport(
        update=update,
        source=prepared.source_names[int(prepared.sources[batch.pairs[0]])],
        corpus=batch.corpus,
        shown=_transformation(prepared, batch),
        size=size,
        hard_negatives=batch.hard_negatives.shape[1],
        filled=batch.random_negatives,
        parents=len(np.unique(prepared.parents[batch.pairs][prepared.parents[batch.pairs] >= 0])),
        difficulty=float(others.mean()),
        hardest=float(hardest_score.mean()),
        own=float(scores.diagonal().mean()),
        filtered={name: float(mask[~own].float().mean()) for name, mask in by_name.items()},
        loses_hardest=float(lost.any(dim=0).float().mean()),
        context=len(batch.context),
        context_examples=tuple(shown(int(row)) for row in batch.context[:examples]),
        with_siblings=sum(map(bool, batch.siblings)),
        pairs=tuple(pair(place) for place in order),
    )


def _transformation(prepared: Prepared, batch: Batch) -> str:
    how = batch.transformation
    parts = ["with titles"] if how.titled else []
    if how.cut is not None:
        parts.append(f"cut at {how.cut} tokens")
    if how.header >= 0:
        parts.append(f"under {how.header_tokens} tokens of {prepared.text(how.header)!r:.80}")
    return ", ".join(parts)

"""Batches of corpora of varying granularity: negatives, context and siblings from the same small or large corpus."""

from dataclasses import dataclass, field
from typing import Literal

from cde_rag_training.batch import Batch
from cde_rag_training.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Which of a pair's views is shown, where it has it. All ours, design §9."""

    nameless_share: float = 0.5  # of queries, that lose their parent's name
    sentence_share: float = 0.1  # of queries, that are a sentence of the document, which loses it
    keyword_share: float = 0.1  # of queries, that are a few words of the document


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """What the context of a batch is made of."""

    documents: Literal["corpus", "batch"] = (
        "corpus"  # apart from the batch and its near-duplicates (ours), or its own (paper §4.2)
    )
    smallest: int = 32  # documents; their number is drawn log-uniformly, design §9
    largest: int = 512  # documents, paper §5
    null_share: float = 0.2  # of batches, under the null context, design §9


@dataclass(frozen=True, kw_only=True)
class ParentConfig:
    """Batches that are made of several passages of each of some parents. All ours, design §9."""

    share: float = 0.5  # of batches
    passages: tuple[int, int] = (3, 7)  # of a parent in a batch, least and most
    no_siblings_share: float = 0.2  # of these batches, without siblings
    lone_share: float = 0.1  # of documents of a batch with siblings, that are given none
    wrong_share: float = 0.05  # of documents of a batch with siblings, that are given another parent's
    siblings: int = 16  # of a document, at most


@dataclass(frozen=True, kw_only=True)
class GranularityConfig:
    """Shares of batches whose corpus is of each kind; they sum to one. All ours, design §9."""

    cluster: float = 0.3  # about 512 pairs
    wide_cluster: float = 0.2  # about 4 096 pairs
    domain: float = 0.2
    domains: float = 0.15  # some of a source's
    source: float = 0.15


@dataclass(frozen=True, kw_only=True)
class TransformationConfig:
    """How often all documents of a corpus are changed alike. Ours; not measured, so off."""

    titled_share: float = 0.0  # of batches, documents with their titles
    cut_share: float = 0.0  # of batches, documents cut short
    shortest_cut: int = 32  # tokens; drawn log-uniformly up to max_length
    header_share: float = 0.0  # of batches, documents under a shared header, the start of a text of their source
    header_tokens: tuple[int, int] = (4, 24)  # least and most


@dataclass(frozen=True, kw_only=True)
class CorporaConfig:
    """What corpora and the batches from them are made of."""

    batch_size: int = 512  # pairs                                                              paper table 1
    source_exponent: float = 0.5  # α: a source is drawn with probability ∝ pairs^α             GTE §3.4
    clustered_share: float = 0.7  # of a batch, from a few clusters of about 512; the rest is from all of its corpus
    anchors: int = 4  # clusters of about 512 that this share comes from, where the corpus is wider
    hard_negatives: int = 1  # of each pair, at most                                            the paper's code
    granularity: GranularityConfig = field(default_factory=GranularityConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    parents: ParentConfig = field(default_factory=ParentConfig)
    transformations: TransformationConfig = field(default_factory=TransformationConfig)


class Corpora:
    """Draws batches. A batch is a pure function of the data, the config, the seed and the update's number.

    Args:
        prepared: The data.
        config: What batches are made of.
        seed: Of every draw.

    Raises:
        CorpusError: A source has fewer pairs than a batch and the smallest context.
        ValueError: The shares of granularity do not sum to one.
    """

    def __init__(self, prepared: Prepared, config: CorporaConfig, *, seed: int) -> None:
        raise NotImplementedError

    def batch(self, update: int) -> Batch:
        """What one update sees."""
        raise NotImplementedError

"""Clusters of prepared pairs, for people to look at; and prepared data with other clusters."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cde_rag_training.clustering.clusters import ClusterConfig, cluster_pairs
from cde_rag_training.clustering.packing import difficulty
from cde_rag_training.data.array_folder import PreparedError, manifest_of, open_array
from cde_rag_training.data.layout import ALL
from cde_rag_training.data.prepared import Facts, Prepared


@dataclass(frozen=True)
class ShownCluster:
    """One cluster.

    Attributes:
        pairs: How many it has.
        similarity: Mean surrogate cosine of a query with the documents of the others in it; NaN where it is alone.
        queries: Some of its queries.
    """

    pairs: int
    similarity: float
    queries: tuple[str, ...]


@dataclass(frozen=True)
class LevelReport:
    """The clusters of one source at one level.

    Attributes:
        level: From fine (0) to coarse.
        source: Its name.
        pairs: Pairs of the source.
        clusters: How many there are.
        smallest: Pairs.
        median: Pairs.
        largest: Pairs.
        examples: Some clusters, from the largest to the smallest.
    """

    level: int
    source: str
    pairs: int
    clusters: int
    smallest: int
    median: int
    largest: int
    examples: tuple[ShownCluster, ...]


def report_clusters(prepared: Prepared, *, examples: int, queries: int) -> list[LevelReport]:
    """Look at the clusters of each level and source.

    Args:
        prepared: The data.
        examples: Clusters that are shown of each.
        queries: That are shown of a cluster.
    """
    found: list[LevelReport] = []
    for level in range(prepared.clusters.shape[1]):
        for code, source in enumerate(prepared.source_names):
            pairs = np.flatnonzero(prepared.sources == code)
            _, clusters, sizes = np.unique(prepared.clusters[pairs, level], return_inverse=True, return_counts=True)
            order = np.argsort(-sizes, kind="stable")
            places = np.linspace(0, len(order) - 1, min(examples, len(order))).astype(np.int64)
            found.append(
                LevelReport(
                    level=level,
                    source=source,
                    pairs=len(pairs),
                    clusters=len(sizes),
                    smallest=int(sizes.min()),
                    median=int(np.median(sizes)),
                    largest=int(sizes.max()),
                    examples=tuple(
                        _shown(prepared, pairs[clusters == cluster], queries) for cluster in order[places].tolist()
                    ),
                )
            )
    return found


def recluster(prepared: Prepared, levels: Sequence[ClusterConfig], output: Path) -> Prepared:
    """Write the same data with other clusters into another folder.

    Args:
        prepared: The data.
        levels: From fine to coarse.
        output: Must not be the data's own folder.

    Raises:
        MissingExtraError: faiss is not installed.
        PreparedError: `output` is the data's own folder.
    """
    if output.resolve() == prepared.folder.resolve():
        raise PreparedError(f"{output}: expected another folder for other clusters, found the data's own. Name one.")
    stored = manifest_of(prepared.folder).files
    arrays = {name: open_array(prepared.folder / f"{name}.npy") for name in ALL if f"{name}.npy" in stored}
    pairs = np.arange(len(prepared))
    queries, documents = prepared.query_vectors_of(pairs), prepared.document_vectors_of(pairs)
    names = [prepared.source_names[source] for source in prepared.sources]
    arrays["clusters"] = np.stack([cluster_pairs(queries, documents, names, level) for level in levels], axis=1)
    facts = Facts(
        tokenizer_sha256=prepared.tokenizer_sha256,
        max_length=prepared.max_length,
        source_names=prepared.source_names,
        domain_names=prepared.domain_names,
        settings={**prepared.settings, "clusters": [asdict(level) for level in levels]},
    )
    return Prepared.save(output, arrays, facts, prepared.tokenizer)


def _shown(prepared: Prepared, pairs: np.ndarray, queries: int) -> ShownCluster:
    vectors = prepared.query_vectors_of(pairs), prepared.document_vectors_of(pairs)
    similarity = difficulty(np.arange(len(pairs))[None, :], *vectors)[0]
    texts = tuple(prepared.text(int(row)) for row in prepared.queries[pairs[:queries]])
    return ShownCluster(len(pairs), float(similarity), texts)

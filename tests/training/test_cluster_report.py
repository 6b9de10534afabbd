"""Clusters are told as they are, and data with other clusters is otherwise the same."""

from pathlib import Path

import numpy as np
import pytest
from prepared_stub import prepared_stub

from cde_rag_training.clustering.clusters import ClusterConfig
from cde_rag_training.data.array_folder import PreparedError
from cde_rag_training.data.cluster_report import recluster, report_clusters
from cde_rag_training.data.layout import LAYOUT
from cde_rag_training.data.prepared import Prepared


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return prepared_stub(tmp_path / "prepared")


def test_sizes_are_counted_by_level_and_source(prepared: Prepared):
    found = {(one.level, one.source): one for one in report_clusters(prepared, examples=2, queries=3)}
    assert set(found) == {(level, source) for level in (0, 1) for source in ("docs", "faq")}
    fine, coarse = found[0, "docs"], found[1, "docs"]
    assert (fine.pairs, fine.clusters, fine.smallest, fine.median, fine.largest) == (64, 8, 8, 8, 8)
    assert (coarse.clusters, coarse.largest) == (2, 32)
    assert [len(shown.queries) for shown in fine.examples] == [3, 3]
    first = np.flatnonzero(prepared.clusters[:, 0] == 0)
    cosines = prepared.query_vectors_of(first) @ prepared.document_vectors_of(first).T
    assert fine.examples[0].similarity == pytest.approx(cosines[~np.eye(8, dtype=bool)].mean(), abs=1e-5)
    assert fine.examples[0].queries[0] == prepared.text(int(prepared.queries[first[0]]))


def test_other_clusters_lie_beside_the_same_data(prepared: Prepared, tmp_path: Path):
    made = recluster(prepared, [ClusterConfig(size=4, steps=5, attempts=1), ClusterConfig(size=16, steps=5)], tmp_path)
    assert [level["size"] for level in made.settings["clusters"]] == [4, 16]
    for name in set(LAYOUT) - {"clusters", "tokens", "token_starts"}:
        np.testing.assert_array_equal(getattr(made, name), getattr(prepared, name))
    assert made.text(5) == prepared.text(5)
    fine, coarse = (len(np.unique(made.clusters[:, level])) for level in (0, 1))
    assert fine > coarse > 1
    for level in (0, 1):
        pairs = {
            (int(cluster), int(source)) for cluster, source in np.stack([made.clusters[:, level], made.sources], axis=1)
        }
        assert len({cluster for cluster, _ in pairs}) == len(pairs)  # a cluster lies in one source


def test_the_data_is_not_written_over(prepared: Prepared):
    with pytest.raises(PreparedError, match="the data's own"):
        recluster(prepared, [ClusterConfig()], prepared.folder)

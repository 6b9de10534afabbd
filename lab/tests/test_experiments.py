"""Figure 6 in the small: batches are harder the smaller their clusters, and harder than pairs at random."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prepared_stub import prepared_stub, stub_pairs

from cde_rag_training.data.prepared import Prepared
from lab.experiments import ON_PAIRS
from lab.experiments.difficulty import batch_difficulty


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Vectors with structure at two scales: 8 subjects, each of 4 smaller ones."""
    pairs = stub_pairs(768)
    stub = prepared_stub(tmp_path_factory.mktemp("data") / "prepared", pairs)
    random = np.random.default_rng(0)
    subject, smaller = np.arange(768) % 8, np.arange(768) % 32
    middle = random.normal(size=(8, 16))[subject] + 0.7 * random.normal(size=(32, 16))[smaller]
    arrays = {}
    for name in ("query_vectors", "document_vectors"):
        vectors = middle + 0.3 * random.normal(size=(768, 16))
        arrays[name] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    return replace(stub, **arrays)


def test_difficulty_rises_as_clusters_shrink(prepared: Prepared):
    rows = batch_difficulty(prepared, cluster_sizes=[16, 64, 0], batch_sizes=[16, 64], seed=0)
    found = {(row.cluster_size, row.batch_size): row.difficulty for row in rows}
    assert found[16, 16] > found[64, 16] + 0.05 > found[0, 16] + 0.2
    assert found[64, 64] > found[0, 64] + 0.2


def test_the_experiment_writes_its_table_and_its_figure(prepared: Prepared, tmp_path: Path):
    table, figure = ON_PAIRS["difficulty"].run(prepared, tmp_path, 0)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["cluster_size"], row["batch_size"]) for row in rows} == {
        (cluster, batch) for cluster in ("32", "128", "0") for batch in ("32", "128")
    }
    assert figure.read_text().startswith("<?xml")

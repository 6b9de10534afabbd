"""A prepared folder gives back what was written, on this machine or another, or says what is wrong with it."""

import numpy as np
import pytest
from prepared_stub import prepared_stub, stub_pairs, stub_vectors


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_stub(tmp_path_factory.mktemp("stub") / "pairs")


def test_texts_come_back(prepared):
    pairs = stub_pairs()
    assert len(prepared) == len(pairs) == 96
    for number, pair in enumerate(pairs):
        assert prepared.text(prepared.queries[number]) == f"[CLS] {pair.query.replace(':', ' [UNK]')} [SEP]"
        assert prepared.source_names[prepared.sources[number]] == pair.source
        assert prepared.domain_names[prepared.domains[number]] == pair.domain
        assert (prepared.titles[number] == -1) == (pair.parent == "")
    some = np.array([5, 2])
    np.testing.assert_allclose(
        prepared.query_vectors_of(some), stub_vectors([pairs[5].query, pairs[2].query]), atol=1e-3
    )

"""Vectors of other applications are moved to another model, searched by the application's code, and moved back."""

import numpy as np
import pytest
from applications import COUNT, TEXTS, Application

from cde_rag.adoption.reembedding import reembedding
from cde_rag.embedders.protocol import Embedder


def moved_to(application: Application, embedder: Embedder) -> None:
    with reembedding(application.target) as move:
        move.copy(embedder)
        move.switch(embedder)


def test_a_move_and_the_way_back(application: Application, old: Embedder, new: Embedder):
    before = application.rows()
    assert application.search(TEXTS[7], old)[0] == TEXTS[7]
    with reembedding(application.target) as move:
        copied = move.copy(new)
        assert (copied.rows, copied.embedded, copied.without_text_count) == (COUNT, COUNT, 0)
        assert copied.audit.share == 1.0
        assert application.rows() == before  # the application reads the old vectors
        assert application.search(TEXTS[7], old)[0] == TEXTS[7]
        assert move.copy(new).embedded == 0
        move.switch(new)
    after = application.rows()
    assert [row[:3] for row in after] == [row[:3] for row in before]
    assert application.search(TEXTS[7], new)[0] == TEXTS[7]
    assert len(after[0].vector) == new.dim
    with reembedding(application.target) as move:
        move.rollback()
    assert application.rows() == before
    assert application.search(TEXTS[7], old)[0] == TEXTS[7]
    with reembedding(application.target) as move:
        assert move.embedder().fingerprint == new.fingerprint
        move.switch(move.embedder())
        assert [row[:3] for row in application.rows()] == [row[:3] for row in before]
        assert application.rows()[3].vector == pytest.approx(after[3].vector)
        move.release()
        assert move.state is None
    assert np.isclose(np.linalg.norm(application.rows()[0].vector), 1, atol=1e-5)
    assert not application.folder.with_name("data.cde-move").exists() or not list(
        application.folder.with_name("data.cde-move").iterdir()
    )

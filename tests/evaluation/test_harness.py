"""The harness itself: known systems on a known set give the figures that others have published."""

from pathlib import Path

import pytest

from cde_rag.evaluation import read_beir
from cde_rag.evaluation.baselines import MiniLM, baseline_rankings
from cde_rag.evaluation.metrics import score


@pytest.fixture(scope="module")
def scifact(shared_data: Path):
    return read_beir(shared_data / "eval" / "scifact")


def test_scifact_is_read_as_beir_has_it(scifact) -> None:
    assert len(scifact.corpus.ids) == 5183
    assert len(scifact.query_ids) == 300
    assert sum(map(len, scifact.judgments)) == 339


def test_bm25_on_scifact(scifact) -> None:
    ((_, rankings),) = baseline_rankings(scifact, ["bm25"], None)
    assert 0.67 <= score(rankings, scifact.judgments)["ndcg@10"].mean() <= 0.69


@pytest.mark.long
def test_minilm_on_scifact(scifact) -> None:
    rankings = dict(baseline_rankings(scifact, ["minilm"], MiniLM(device="cpu")))
    figures = {system: score(found, scifact.judgments)["ndcg@10"].mean() for system, found in rankings.items()}
    assert figures["minilm"] == pytest.approx(0.645, abs=0.003)
    assert figures["centred"] == pytest.approx(0.639, abs=0.004)

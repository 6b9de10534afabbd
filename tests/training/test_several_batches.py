"""An update of several batches: their mean, in turn or in several processes; never the loss of one large batch."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from prepared_stub import prepared_stub, stub_pairs
from test_gradients import agree, batch_of, gradients_of, tiny_stages
from tiny_run import CORPORA, config, phase, rows, start_folder

from cde_rag.errors import CorpusError
from cde_rag_training.config import LossConfig, PhaseConfig
from cde_rag_training.corpora.corpus_batches import Corpora
from cde_rag_training.corpora.parent_batches import ParentConfig
from cde_rag_training.loop import trainer
from cde_rag_training.loop.gradients import Gradients
from cde_rag_training.loop.training import train
from cde_rag_training.losses.loss import contrastive_loss, graded_loss, improved_contrastive_loss


@pytest.mark.parametrize("kind", ["contrastive", "improved", "graded"])
def test_the_mean_of_batches_is_the_large_batch_without_the_others_documents(kind):
    """So accumulated batches have fewer negatives, and the large batch has another loss: a mask makes them equal."""
    drawn = torch.Generator().manual_seed(0)
    queries, documents = (F.normalize(torch.randn(6, 5, generator=drawn, dtype=torch.double), dim=1) for _ in range(2))
    grades = torch.rand(6, generator=drawn, dtype=torch.double)

    def loss(rows, mask):
        if kind == "graded":
            return graded_loss(queries[rows], documents[rows], mask, grades[rows], 0.1, -1.0)
        function = contrastive_loss if kind == "contrastive" else improved_contrastive_loss
        return function(queries[rows], documents[rows], mask, 0.1)

    none, apart = torch.zeros(6, 6, dtype=torch.bool), torch.block_diag(*[torch.ones(3, 3)] * 2) == 0
    parts = [loss(slice(start, start + 3), none[:3, :3]) for start in (0, 3)]
    torch.testing.assert_close(torch.stack(parts).mean(), loss(slice(0, 6), apart))
    assert loss(slice(0, 6), none) > torch.stack(parts).mean() + 1e-3


def test_gradients_of_batches_add_up_to_their_mean(tmp_path):
    pairs = [replace(pair, hard_negatives=(f"{pair.document} bank", f"{pair.query} loan")) for pair in stub_pairs(96)]
    prepared = prepared_stub(tmp_path, pairs)
    batches = [batch_of(prepared, siblings=False), batch_of(prepared, siblings=True, hard_negatives=False)]
    expected: dict[str, torch.Tensor] = {}
    for batch in batches:
        for name, gradient in gradients_of(prepared, batch)[1].items():
            if gradient is not None:
                expected[name] = expected.get(name, 0) + gradient / 2
    stages = tiny_stages()
    for batch in batches:
        figures, found = gradients_of(prepared, batch, stages=stages, scale=0.5)
    assert figures.total == pytest.approx(figures.contrastive, rel=1e-5)  # of the batch, not of its share
    agree(found, expected)


def test_every_batch_is_seen_once(tmp_path, monkeypatch):
    seen, add = [], Gradients.add

    def watched(self, batch, number, *, scale):
        seen.append((number, scale, batch.pairs.tolist()))
        return add(self, batch, number, scale=scale)

    monkeypatch.setattr(Gradients, "add", watched)
    prepared = prepared_stub(tmp_path / "prepared")
    train(prepared, config(start_folder(tmp_path / "start"), phase(3, batches_per_update=2)), tmp_path / "run")
    corpora = Corpora(prepared, CORPORA, seed=0)
    assert seen == [(number, 0.5, corpora.batch(number).pairs.tolist()) for number in range(6)]
    log = rows(tmp_path / "run")
    assert [row["update"] for row in log] == ["1", "2", "3"]
    assert log[-1]["corpus"] == corpora.batch(5).corpus


@pytest.mark.parametrize("per_update", [1, 3])
def test_random_documents_in_place_of_hard_negatives_are_logged(tmp_path, per_update):
    """The log counts those of all batches of an update, also where the last one's pairs have none at all."""
    pairs = stub_pairs(96)
    for number in range(0, 96, 5):
        if pairs[number].source == "docs":
            pairs[number] = replace(pairs[number], hard_negatives=(f"{pairs[number].document} bank",))
    prepared = prepared_stub(tmp_path / "prepared", pairs)
    corpora = replace(CORPORA, hard_negatives=1, parents=ParentConfig(share=0.0))
    run = config(start_folder(tmp_path / "start"), phase(6, batches_per_update=per_update, corpora=corpora))
    train(prepared, run, tmp_path / "run")
    batches = [Corpora(prepared, corpora, seed=0).batch(number) for number in range(6 * per_update)]
    found, lone = [], 0
    for update in range(6):
        some = batches[update * per_update : (update + 1) * per_update]
        with_negatives = [each for each in some if each.hard_negatives.size]
        lone += bool(with_negatives) and some[-1] not in with_negatives
        missing = sum(pairs[row].hard_negatives == () for each in with_negatives for row in each.pairs.tolist())
        found.append(str(missing) if with_negatives else "")
    assert [row["filled"] for row in rows(tmp_path / "run") if row["loss"]] == found
    assert any(found)
    assert lone or per_update == 1


def test_what_processes_cannot_divide_is_refused(tmp_path, monkeypatch):
    batches = Corpora(prepared_stub(tmp_path), CORPORA, seed=0)
    monkeypatch.setattr(trainer, "count", lambda: 3)
    trainer._check_processes(batches, 6)
    with pytest.raises(CorpusError, match="batches_per_update that 3 processes can divide, found 4"):
        trainer._check_processes(batches, 4)
    with pytest.raises(CorpusError, match="batches that 3 processes can share, found 8 pairs"):
        trainer._check_processes(batches, 1)
    with pytest.raises(ValueError, match="batches_per_update of at least 1"):
        PhaseConfig(batches_per_update=0)


@pytest.mark.long
def test_two_processes_with_batches_of_their_own_train_as_one_with_both(tmp_path):
    """Some of the batches have no context, and so no probe; the loss scores against the batch of one process alone."""
    start_folder(tmp_path / "start")
    prepared_stub(tmp_path / "prepared")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from dataclasses import replace
from pathlib import Path
from tiny_run import CORPORA, config, phase
from cde_rag_training.config import LossConfig
from cde_rag_training.loop.training import train
work = Path({str(tmp_path)!r})
corpora = replace(CORPORA, context=replace(CORPORA.context, null_share=0.5))
loss = LossConfig(teacher="start", temperature=0.1, kind="improved")
run = config(work / "start", phase(4, batches_per_update=2, corpora=corpora, loss=loss))
train(work / "prepared", run, work / sys.argv[1])
"""
    )
    path = os.pathsep.join(
        [*(str(Path(__file__).parents[level]) for level in (0, 1)), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, "one"], check=True, env=environment)
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, "two"]
    subprocess.run([sys.executable, *two], check=True, env=environment)
    for found, expected in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        for name in ("loss", "distillation", "masked", "tokens", "siblings", "norm", "gate"):
            if expected[name]:
                assert float(found[name]) == pytest.approx(float(expected[name]), rel=2e-3, abs=2e-4), name


def test_depths_of_2d_matryoshka_are_checked():
    with pytest.raises(ValueError, match="different layers of at least 1"):
        LossConfig(layers=(2, 2))
    with pytest.raises(ValueError, match="different layers of at least 1"):
        LossConfig(layers=(0,))

"""Training in float16: a scaled loss, updates that overflow, and a resume. The CPU stands in for a GPU without bf16."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from prepared_stub import prepared_stub
from tiny_run import MACHINE, config, phase, rows, start_folder

from cde_rag_training.config import EvaluationConfig
from cde_rag_training.loop import training
from cde_rag_training.loop.optimiser import STEADY, LossScale
from cde_rag_training.loop.state import RunProgress
from cde_rag_training.loop.trainer import Trainer
from cde_rag_training.loop.training import train


def test_a_run_in_float16(tmp_path, monkeypatch):
    """Updates whose gradients overflow are left out until the loss is scaled so that they fit, also over a resume."""
    prepared, start = prepared_stub(tmp_path / "prepared"), start_folder(tmp_path / "start")
    first = RunProgress(loss_scale=LossScale(2.0**30))
    monkeypatch.setattr(training, "RunProgress", lambda: first)
    machine, evaluation = replace(MACHINE, precision="float16", save_every=1), EvaluationConfig(every=0, probe_every=0)
    run = config(start, phase(30, average=0.0), machine=machine, evaluation=evaluation)
    train(prepared, run, tmp_path / "run")
    norms = [float(row["norm"]) for row in rows(tmp_path / "run")]
    fits = np.isfinite(norms)
    assert not fits[:3].any()
    assert fits[-3:].all()
    assert all(float(row["loss"]) < 20 for row in rows(tmp_path / "run"))
    stopped = mock.patch.object(Trainer, "_show", side_effect=[None] * 5 + [KeyboardInterrupt])
    with stopped, pytest.raises(KeyboardInterrupt):
        train(prepared, run, tmp_path / "again")
    train(prepared, run, tmp_path / "again")
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("again", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert rows(tmp_path / "again") == rows(tmp_path / "run")


def test_the_scale_of_the_loss():
    scale = LossScale(2.0)
    assert scale.after(1.0) == LossScale(2.0, 1)
    assert scale.after(float("inf")).after(float("nan")) == LossScale(1.0)
    assert LossScale(2.0, STEADY - 1).after(1.0) == LossScale(4.0)

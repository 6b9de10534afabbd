"""Checkpoints are whole or the one before; logs end where the checkpoint says."""

import resource
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
import torch

from cde_rag.errors import ResumeError
from cde_rag_training.loop import state
from cde_rag_training.loop.guard import TrainingError
from cde_rag_training.loop.logs import COLUMNS, Log
from cde_rag_training.loop.optimiser import LossScale
from cde_rag_training.loop.state import RunProgress, State, StateFile, differences

RUN = {"config": {"phases": [{"rate": 0.1, "dims": (4, 2)}]}, "data": ["a"]}


def state_of(update):
    tensors = {"weights:a": torch.full((3, 2), update / 3), "optimiser:a|step": torch.tensor(float(update))}
    given = {"seconds": 1 / 3, "log_bytes": 7, "gains": (0.1, -1 / 3), "loss_scale": LossScale(4.0, updates=7)}
    return State(RunProgress(phase=1, update=update, **given), tensors)


def same(one, other):
    return one.progress == other.progress and all(
        torch.equal(one.tensors[name], value) for name, value in other.tensors.items()
    )


def test_a_state_comes_back(tmp_path):
    file = StateFile(tmp_path / "state.safetensors", RUN)
    assert file.read() is None
    for update in (3, 6):
        file.write(state_of(update))
        assert same(file.read(), state_of(update))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_state_of_before_losses_were_scaled(tmp_path, monkeypatch):
    file = StateFile(tmp_path / "state.safetensors", RUN)
    older = {name: value for name, value in asdict(state_of(3).progress).items() if name != "loss_scale"}
    monkeypatch.setattr(state, "asdict", lambda _: older)
    file.write(state_of(3))
    assert file.read().progress == replace(state_of(3).progress, loss_scale=LossScale())


@contextmanager
def full_disk():
    """The operating system cuts files short, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_state_before_it(tmp_path):
    file = StateFile(tmp_path / "state.safetensors", RUN)
    with pytest.raises(TrainingError, match=r"update 3 could not be written .*There is none before it"), full_disk():
        file.write(state_of(3))
    file.write(state_of(3))
    with pytest.raises(TrainingError, match=r"update 6 could not be written .*is intact"), full_disk():
        file.write(state_of(6))
    assert same(file.read(), state_of(3))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_what_a_kill_left_half_written_is_deleted(tmp_path):
    (tmp_path / ".state.safetensors.0a1b2c3d.tmp").write_bytes(b"half")
    (tmp_path / ".other.safetensors.0a1b2c3d.tmp").write_bytes(b"another file's")
    StateFile(tmp_path / "state.safetensors", RUN).write(state_of(3))
    names = {".other.safetensors.0a1b2c3d.tmp", "state.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_state_of_another_run_or_none_at_all_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    StateFile(path, RUN).write(state_of(3))
    other = {**RUN, "config": {"phases": [{"rate": 0.2, "dims": (4, 2)}]}, "new": 1}
    with pytest.raises(ResumeError, match=r"config\.phases\[0\]\.rate was 0\.1, is 0\.2; new was None, is 1"):
        StateFile(path, other).read()
    whole = path.read_bytes()
    for damaged in (b"", whole[:50], whole[:-4]):
        path.write_bytes(damaged)
        with pytest.raises(ResumeError, match="Expected a checkpoint"):
            StateFile(path, RUN).read()


def test_a_changed_byte_is_seen(tmp_path):
    path = tmp_path / "state.safetensors"
    StateFile(path, RUN).write(state_of(3))
    whole = path.read_bytes()
    assert whole.count(b'"update\\": 3') == 1
    path.write_bytes(whole.replace(b'"update\\": 3', b'"update\\": 9'))
    with pytest.raises(ResumeError, match="bytes that were changed"):
        StateFile(path, RUN).read()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ResumeError):
            StateFile(path, RUN).read()


def test_differences_are_named_by_key():
    assert differences(RUN, RUN) == []
    assert differences({"a": [1, 2]}, {"a": [1]}) == ["a was [1, 2], is [1]"]
    assert differences({"a": 1, "b": 2}, {"b": 3}) == ["a was 1, is None", "b was 2, is 3"]


def test_a_log_goes_on_where_it_was_kept(tmp_path):
    log = Log(tmp_path)
    log.write({"phase": "one", "update": 1, "loss": 1 / 3, "corpus": 'a, "b"'})
    kept = log.keep()
    log.write({"phase": "one", "update": 2})
    log.close()
    with (tmp_path / "log.csv").open("ab") as file:
        file.write(b"one,3,half a r")
    for keep, lines in ((kept, 2), (10**9, 2), (0, 1)):
        Log(tmp_path, keep=keep).close()
        assert len((tmp_path / "log.csv").read_text().splitlines()) == lines
    first = (tmp_path / "log.csv").read_text()
    assert first == ",".join(COLUMNS) + "\n"
    log = Log(tmp_path)
    with pytest.raises(ValueError, match="Expected figures of the columns"):
        log.write({"lost": 1})
    log.close()

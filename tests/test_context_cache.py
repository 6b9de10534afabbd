"""The user's cache of contexts: any process finds what was written under a fingerprint, intact or not at all."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_context import DIM, IDENTITY

from cde_rag.context.cache import cache_context, cache_folder, cached_context, cached_path
from cde_rag.context.context import Context
from cde_rag.errors import ContextError, ContextFormatError


def context(seed: int = 0) -> Context:
    vectors = np.random.default_rng(seed).normal(size=(3, DIM)).astype("f4")
    texts = [f"text {seed} {number}" for number in range(3)]
    return Context.create(IDENTITY, texts, vectors, sampling="random", seed=0, documents_seen=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_context_is_found_by_its_fingerprint():
    kept, other = context(), context(1)
    assert cached_context(kept.fingerprint) is None
    cache_context(kept)
    found = cached_context(kept.fingerprint)
    assert found is not None
    assert found.to_bytes() == kept.to_bytes()
    assert cached_context(other.fingerprint) is None
    cache_context(other)
    assert sorted(path.name for path in cached_path(kept.fingerprint).parent.iterdir()) == sorted(
        f"{each.fingerprint}.context.safetensors" for each in (kept, other)
    )


def test_an_intact_copy_is_not_written_again():
    kept = context()
    cache_context(kept)
    before = cached_path(kept.fingerprint).stat()
    cache_context(kept)
    after = cached_path(kept.fingerprint).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_folder_is_the_users_alone(folder: Path):
    cache_context(context())
    assert (folder / "cde-rag" / "contexts").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_copy_is_refused_until_the_context_comes_again(cut: int):
    kept = context()
    cache_context(kept)
    path = cached_path(kept.fingerprint)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ContextFormatError, match=path.name):
        cached_context(kept.fingerprint)
    cache_context(kept)
    assert cached_context(kept.fingerprint) is not None


def test_a_renamed_copy_is_refused():
    kept, other = context(), context(1)
    cache_context(kept)
    cached_path(kept.fingerprint).rename(cached_path(other.fingerprint))
    with pytest.raises(ContextFormatError, match="renamed"):
        cached_context(other.fingerprint)


def test_a_cache_that_is_not_writable_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    with pytest.raises(ContextError, match="not readable"):
        cache_context(context())
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    with pytest.raises(ContextError, match="Set XDG_CACHE_HOME"):
        cache_context(context())


def test_the_default_is_in_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == folder / ".cache" / "cde-rag"


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ContextError, match="Set XDG_CACHE_HOME"):
        cache_folder()


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_context_cache import context
from cde_rag.context.cache import cache_context, cached_context, cached_path
kept = context()
for _ in range(30):
    cache_context(kept)
    found = cached_context(kept.fingerprint)  # None where another process has just removed it
    assert found is None or found.fingerprint == kept.fingerprint  # made in another second, if another's
    assert found is None or (found.context_embeddings == kept.context_embeddings).all()
    cached_path(kept.fingerprint).unlink(missing_ok=True)
"""


def test_processes_that_write_and_remove_it_at_once_never_read_a_part():
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors

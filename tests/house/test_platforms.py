"""Calls that only some systems have are guarded, and the pages say which systems are tested."""

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from cde_rag import _files, errors
from cde_rag.models.runtimes import runtime_choice, threads
from cde_rag.stores.faiss.folder import delete_unreferenced

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("cde_rag", "training/cde_rag_training") for path in (ROOT / folder).rglob("*.py")]
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios"}
CALLS = re.compile(
    r"os\.(fork|forkpty|setsid|get[ug]id|gete[ug]id|killpg|getpgid|mkfifo|sync|f?statvfs|sched_\w+|sysconf|wait\w*|nice"
    r"|f?chown|fchmod|pread|pwrite|posix_\w+|getloadavg|uname|register_at_fork|O_(NONBLOCK|DIRECTORY|NOFOLLOW))"
    r"|signal\.(SIGKILL|SIGALRM|SIGHUP|SIGCHLD|SIGUSR\w|alarm|setitimer|pthread\w+)|socket\.AF_UNIX"
    r"|\w+\.add_signal_handler"
)
GUARDED = {  # and how
    "cde_rag/models/runtimes/threads.py: os.sched_getaffinity": "hasattr",
    "cde_rag/readers/conversion.py: import resource": "an ImportError is no limit",
    "cde_rag/readers/conversion.py: os.sysconf": "after /proc, which no other system has",
}


def found_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"import {alias.name}" for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.add(f"import {node.module}")
        elif isinstance(node, ast.Attribute) and CALLS.fullmatch(ast.unparse(node)):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg in ("preexec_fn", "start_new_session", "pass_fds"):
            found.add(f"{node.arg}=")
    return {f"{path.relative_to(ROOT).as_posix()}: {each}" for each in found}


def test_a_call_that_not_all_systems_have_is_guarded() -> None:
    assert {each for path in SOURCES for each in found_in(path)} == set(GUARDED)


def test_a_lock_of_posix_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("import fcntl, os\nos.fork()\nrun(x, preexec_fn=None)\n")
    assert found_in(tmp_path / "a.py") == {"a.py: import fcntl", "a.py: os.fork", "a.py: preexec_fn="}


def test_the_branches_of_other_systems_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("index-1", "index-2", "mine.txt"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "resource", None)  # as where there is none
    assert errors._limit() == ""  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(os, "supports_dir_fd", frozenset[object]())
    delete_unreferenced(tmp_path, ["index-2"], lambda: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index-2", "mine.txt"]
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert threads.available_cores() >= 1
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "open", lambda *_: pytest.fail("Windows opens no folders"))
        _files.fsync_folder(tmp_path)

    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert (runtime_choice.cpu_flags(), bool(runtime_choice.cpu_name())) == ([], True)


def test_classifiers_and_page_name_the_systems_that_are_tested() -> None:
    systems = re.findall(r'"Operating System :: (?:\w+ :: )?(\w+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    tested = re.findall(r"^\| (\w+)[^|]*\| tested", page, re.MULTILINE)
    assert systems == tested == ["Linux"]

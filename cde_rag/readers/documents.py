"""PDF, HTML, Word and PowerPoint files as Markdown with their headings, by markitdown (extra `documents`)."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from cde_rag.errors import require
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.conversion import HTML, OFFICE
from cde_rag.readers.titles import LONGEST

DOCUMENTS: Final = HTML | OFFICE | {".pdf"}
SECONDS: Final = 60.0  # that a document may take, and as much again for each MiB of its file
MEMORY: Final = 2 * 2**30  # bytes that a document may take
_START: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; from cde_rag.readers.conversion import serve; serve(int(sys.argv[1]))"
)
_idle: "list[_Converter]" = []  # at most one, which the next document takes


def readable() -> bool:
    """Return True if the extra `documents` is installed."""
    return importlib.util.find_spec("markitdown") is not None


class Converted(NamedTuple):
    """A file as Markdown, and its own title: `<title>` of HTML, the metadata's of PDF, or ""."""

    markdown: str
    title: str


def convert(path: Path, *, by_page: bool = False) -> Converted:
    """Convert a file to Markdown, in another process, which bounds its time and memory; see `conversion`.

    Args:
        path: The file.
        by_page: As of `conversion.converted`.

    Raises:
        MissingExtraError: markitdown is not installed.
        UnusableError: The file is damaged, encrypted, of another format than its suffix says, or takes too much.
    """
    if not readable():
        require("markitdown", "documents")
    try:
        converter = _idle.pop()
    except IndexError:
        converter = _Converter()
    if not converter.is_usable():
        converter = _Converter()
    try:
        answer = converter.answer(path, by_page=by_page)
    except BaseException:  # its answer may come yet
        converter.end()
        raise
    if answer["last"] or _idle:
        converter.end()
    else:
        _idle.append(converter)
    if "refused" in answer:
        raise UnusableError(answer["refused"])
    return Converted(answer["markdown"], " ".join(answer["title"].split())[:LONGEST])


class _Converter:
    """A process that converts documents, one after another."""

    def __init__(self) -> None:
        self._caller = os.getpid()
        try:
            self._process = subprocess.Popen(  # -I: isolated from modules in the working folder
                [sys.executable, "-I", "-c", _START, str(MEMORY), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
                cwd=Path(sys.executable).anchor,  # the present folder may be gone, and its .env is not the converters'
            )
        except OSError as error:
            raise UnusableError(f"the process that converts documents does not start: {error}") from error
        self._ended = weakref.finalize(self, _end, self._process, self._caller)

    def is_usable(self) -> bool:
        """Return False if the process has ended, or belongs to the process that this one was forked from."""
        return self._caller == os.getpid() and self._process.poll() is None

    def answer(self, path: Path, *, by_page: bool) -> dict[str, Any]:
        """Return the answer of `conversion.serve`.

        Raises:
            UnusableError: The document takes too long, or ends the process.
        """
        requests, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        seconds = SECONDS * (1 + path.stat().st_size / 2**20)
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), self._process.kill()))
        timer.daemon = True
        timer.start()
        try:
            requests.write(json.dumps([str(path.absolute()), by_page]) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if late.is_set():
            raise UnusableError(f"not converted in {seconds:,.0f} s; split it, or convert it to text by other means")
        if not line:
            raise UnusableError(
                f"the process that converts it ended ({self._process.wait()}), mostly for lack of memory; split it, or "
                "convert it to text by other means"
            )
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        self._ended()


def _end(process: "subprocess.Popen[str]", caller: int) -> None:
    if caller != os.getpid():
        return
    process.kill()
    with suppress(OSError):  # of a request that was not sent
        cast(IO[str], process.stdin).close()
    cast(IO[str], process.stdout).close()
    process.wait()

"""A process that forks for each command on its standard input, so that what takes long to import is imported once.

    python moves.py KIND FOLDER

Each line is a command for a child, which has no threads of Chroma or FAISS: `build`, `move`, `back` or `state`; with a
number after it the child is killed after so many seconds. The answer is one line of JSON.
"""

import json
import os
import select
import signal
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.simplefilter("ignore")

from applications import APPLICATIONS, COUNT, Application, stub  # noqa: E402

from cde_rag.adoption.reembedding import reembedding  # noqa: E402


def build(application: Application) -> object:
    application.build(stub("old-1", 16))
    return None


def move(application: Application) -> object:
    new = stub("new-1", 24)
    with reembedding(application.target) as moving:
        moving.switch(new)
    return None


def back(application: Application) -> object:
    with reembedding(application.target) as moving:
        moving.rollback()
    return None


def state(application: Application) -> object:
    """The rows as the framework returns them; None in Chroma's gap between two renames."""
    try:
        rows = application.rows()
    except Exception as error:
        if type(error).__name__ != "NotFoundError":
            raise
        names = sorted(each.name for each in application.client.list_collections())  # type: ignore[attr-defined]
        assert names == ["papers-cde-new", "papers-cde-old"], names
        return None
    assert len(rows) == COUNT
    return [[row.id, row.text, row.metadata, row.vector] for row in rows]


COMMANDS = {"build": build, "move": move, "back": back, "state": state}


def main(kind: str, folder: str) -> None:
    os.chdir(Path(folder).parent)  # with the journals of servers
    if kind == "lancedb":
        import lancedb  # noqa: F401  # whose own loop begins anew in a fork
    for line in sys.stdin:
        name, *limit = line.split()
        receiver, sender = os.pipe()
        started = time.monotonic()
        if (child := os.fork()) == 0:
            os.close(receiver)
            status = 1
            try:
                with os.fdopen(sender, "w") as file:
                    file.write(json.dumps(COMMANDS[name](APPLICATIONS[kind](Path(folder)))))
                status = 0
            except BaseException:  # noqa: BLE001
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(sender)
        answer = b""
        while True:
            left = None if not limit else max(0.0, started + float(limit[0]) - time.monotonic())
            if not select.select([receiver], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                limit = []
                continue
            if not (piece := os.read(receiver, 2**16)):
                break
            answer += piece
        os.close(receiver)
        status = os.waitpid(child, 0)[1]
        told = {"killed": os.WIFSIGNALED(status), "failed": os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0}
        told |= {"seconds": time.monotonic() - started, "value": json.loads(answer) if answer else None}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

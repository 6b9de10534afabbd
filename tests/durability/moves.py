"""Two processes that fork for each command, so that what takes long to import is imported once.

    python moves.py READING WRITING     file descriptors of the commands and answers of the second one, a reader

Each line of the input is a command for a child, which has no threads of Chroma or FAISS, as JSON: the `kind` of the
application, its `folder`, the `call`, one of CALLS, and arguments. With `kill`, a step and seconds, the child is killed
so long after it told of the step: `begun`, or those of a move's journal. The answer is one line of JSON with all that
it told.
"""

import hashlib
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from applications import (  # noqa: E402
    APPLICATIONS,
    COUNT,
    TEXTS,
    Application,
    ChromaApplication,
    ChromaServerApplication,
    OpenWebUIApplication,
    QdrantFolderApplication,
    stub,
)

from cde_rag.adoption.move_journal import MoveJournal  # noqa: E402
from cde_rag.adoption.reembedding import Reembedding, reembedding  # noqa: E402

MOVED = APPLICATIONS | {
    "chroma-server": ChromaServerApplication,
    "open-webui": OpenWebUIApplication,
    "qdrant-folder": QdrantFolderApplication,
}
MODELS = {"old-1": 16, "new-1": 24}  # dimensions
PAUSE_S = 0.005  # between two looks of a reader
ROWS = 16  # a page, so that a move has several
PAGED = (
    "carrying",
    "chroma_collection",
    "folder_rows",
    "lance_table",
    "pgvector_source",
    "qdrant_source",
    "reembedding",
)

Tell = Callable[[str, Any], None]


def build(application: Application, tell: Tell) -> None:
    application.build(stub("old-1", MODELS["old-1"]))


def move(application: Application, tell: Tell, model: str) -> None:
    with reembedding(application.target) as moving:
        told(moving, tell)
        moving.switch(stub(model, MODELS[model]))


def back(application: Application, tell: Tell) -> None:
    with reembedding(application.target) as moving:
        told(moving, tell)
        moving.rollback()


def release(application: Application, tell: Tell) -> None:
    with reembedding(application.target) as moving:
        told(moving, tell)
        if moving.state is not None:  # a release that was killed after its last step
            moving.release()


def told(moving: Reembedding, tell: Tell) -> None:
    """Tell of the present step of a move, and of each that is noted."""
    write, last = MoveJournal.write, None if moving.state is None else moving.state.step

    def noted(self: MoveJournal, state: Any) -> None:
        nonlocal last
        write(self, state)
        if state.step != last:
            last = state.step
            tell("step", last)

    MoveJournal.write = noted  # of this child alone
    if last is not None:
        tell("step", last)


def late(application: Application, tell: Tell, model: str, edition: int) -> None:
    """Change a text among the old vectors, as a program does that had opened them before the switch."""
    with reembedding(application.target) as moving:
        assert moving.state is not None
        notes = moving.state.notes
    text = TEXTS[7] + " late" * edition
    application.write_old(notes, text, stub(model, MODELS[model]).embed_queries([text])[0].tolist())


def look(application: Application, tell: Tell) -> None:
    """Tell of the digests of all rows, by parts, as the framework returns them, and of what else is there."""
    tell("parts", seen(application))
    tell("places", application.places())
    journals = application.journals
    tell("journals", [path.name for path in journals.rglob("*") if path.is_file()] if journals.exists() else [])
    files = application.folder.iterdir() if application.target.startswith(("langchain", "llamaindex")) else ()
    tell("files", {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})


def watch(application: Application, tell: Tell, known: dict[str, list[str]], until: str) -> None:
    """Read all rows again and again until there is a file; each part has to be one of the known ones.

    Chroma reads texts and vectors one after the other, so that one of them may be those before a write.
    """
    if isinstance(application, ChromaApplication | OpenWebUIApplication):
        for name, states in known.items():
            texts, vectors = zip(*(state.split() for state in states), strict=True)
            known[name] = [f"{one} {other}" for one in texts for other in vectors]
    looks, missed = 0, list[tuple[float, float]]()
    while not Path(until).exists():
        began = time.monotonic()
        for name, found in seen(application).items():
            if found is None:
                missed.append((began, time.monotonic()))
            elif found not in known[name]:
                raise AssertionError(f"{name}: rows of neither model: {detailed(application, name)}")
        time.sleep(PAUSE_S)
        looks += 1
        if looks == 1:
            tell("watching", True)
    tell("looks", looks)
    tell("missed", missed)


def seen(application: Application) -> dict[str, str | None]:
    """The digests of the parts' rows, without and of their vectors; None in Chroma's gap between two renames."""
    found: dict[str, str | None] = {}
    for name in application.parts:
        try:
            rows = application.part(name)
        except Exception as error:
            if type(error).__name__ != "NotFoundError":
                raise
            found[name] = None
            continue
        in_order = sorted(rows, key=lambda row: row.id)
        halves = [[[row.id, row.text, row.metadata] for row in in_order], [[row.id, row.vector] for row in in_order]]
        written = [json.dumps(half, sort_keys=True).encode() for half in halves]
        found[name] = " ".join(hashlib.sha256(half).hexdigest() for half in written)
    return found


def detailed(application: Application, name: str) -> str:
    """Return numbers of rows by their length, for messages."""
    rows = application.part(name)
    lengths = [len(row.vector) for row in rows]
    return f"{len(rows)} of {COUNT // len(application.parts)}, {dict.fromkeys(lengths)}"


CALLS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (build, move, back, late, release, look, watch)
}  # fmt: skip


def child(kind: str, folder: Path, call: str, arguments: dict[str, Any], sender: int) -> None:
    """Do one command, and end this process."""
    status = 1
    try:
        with os.fdopen(sender, "w") as file:

            def tell(key: str, value: Any) -> None:
                file.write(json.dumps([key, value, time.monotonic()]) + "\n")
                file.flush()

            application = MOVED[kind](folder)
            tell("step", "begun")
            CALLS[call](application, tell, **arguments)
            tell("step", "ended")
        status = 0
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def main(reading: str, writing: str) -> None:
    """Serve two channels: the standard ones, and in a fork of its own those of a reader."""
    for name in PAGED:
        vars(importlib.import_module(f"cde_rag.adoption.{name}"))["PAGE"] = ROWS
    if os.fork() == 0:
        with os.fdopen(int(reading)) as asked, os.fdopen(int(writing), "w") as answers:
            serve(asked, answers)
        return
    os.close(int(reading))
    os.close(int(writing))
    serve(sys.stdin, sys.stdout)
    os.wait()


def serve(lines: TextIO, answers: TextIO) -> None:
    """Fork for each line."""
    for line in lines:
        asked = json.loads(line)
        kind, folder, call = asked.pop("kind"), Path(asked.pop("folder")), asked.pop("call")
        step, after_s = asked.pop("kill", None) or ("", 0.0)
        if kind == "lancedb":
            import lancedb  # noqa: F401  # whose own loop begins anew in a fork
        receiver, sender = os.pipe()
        if (process := os.fork()) == 0:
            os.close(receiver)
            os.chdir(folder.parent)  # with the journals of servers
            child(kind, folder, call, asked, sender)
        os.close(sender)
        answer = listened(process, receiver, step, after_s, answers)
        os.close(receiver)
        status = os.waitpid(process, 0)[1]
        answer |= {"killed": os.WIFSIGNALED(status), "failed": os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0}
        print(json.dumps(answer), file=answers, flush=True)


def listened(process: int, receiver: int, step: str, after_s: float, answers: TextIO) -> dict[str, Any]:
    """Return all that a child tells until it ends, or is killed so long after a step began."""
    found: dict[str, Any] = {"steps": []}
    rest, ends = b"", None
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not select.select([receiver], [], [], left)[0]:
            os.kill(process, signal.SIGKILL)
            found["killed_at"], ends = time.monotonic(), None
            continue
        if not (piece := os.read(receiver, 2**16)):
            return found
        *lines, rest = (rest + piece).split(b"\n")
        for key, value, at in map(json.loads, lines):
            if key == "watching":
                print(json.dumps({key: value}), file=answers, flush=True)
            elif key != "step":
                found[key] = value
            else:
                found["steps"].append((value, at))
                if value == step:
                    step, ends = "", at + after_s


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The states that a loss of power can leave of a folder, made of what `disk.c` wrote down.

What was synced is there: a file's bytes when the file was, its name when its folder was. Of the rest anything may be
there or not: whole writes, some of their sectors, zeros in place of them; names as far as they were made in order.
"""

import dataclasses
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

PAGE = 4096  # bytes
SECTOR = 512  # bytes, written wholly or not at all
VARIANTS = ("dropped", "kept", "torn", "names without data", "data without names", "zeros")


@dataclass(frozen=True)
class Event:
    """One thing that was done; `kind` as in `disk.c`."""

    kind: str
    inode: int
    offset: int
    data: bytes


def events(journal: Path) -> Iterator[Event]:
    with journal.open("rb") as file:
        while head := file.read(32):
            kind, inode, offset, length = struct.unpack("<4Q", head)
            yield Event(chr(kind), inode, offset, file.read(length))


class Content:
    """The bytes of a file, of which most may be a hole."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytes] = {}

    def copy(self) -> "Content":
        made = Content()
        made.size, made.pages = self.size, dict(self.pages)
        return made

    def write(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, PAGE)
            some = data[done : done + PAGE - start]
            page = self.pages.get(number, bytes(PAGE))
            self.pages[number] = page[:start] + some + page[start + len(some) :]
            done += len(some)
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            number, start = divmod(size, PAGE)
            self.pages = {one: page for one, page in self.pages.items() if one <= number}
            if number in self.pages:
                self.pages[number] = self.pages[number][:start].ljust(PAGE, b"\0")
        self.size = size

    def do(self, event: Event) -> None:
        if event.kind == "t":
            self.truncate(event.offset)
        else:
            self.write(event.offset, event.data)

    def put(self, path: Path) -> None:
        with path.open("wb") as file:
            for number, page in self.pages.items():
                file.seek(number * PAGE)
                file.write(page)
            file.truncate(self.size)


@dataclass(eq=False)
class File:
    """What is on the disk, and what was done since."""

    durable: Content = field(default_factory=Content)
    pending: list[Event] = field(default_factory=list)

    def now(self) -> Content:
        content = self.durable.copy()
        for event in self.pending:
            content.do(event)
        return content


Names = dict[str, "File | Folder"]
Change = Callable[[Names], object]


@dataclass(eq=False)
class Folder:
    """Names that are on the disk, and what was done to them since."""

    durable: Names = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    now: Names = field(default_factory=dict)

    def change(self, change: Change) -> None:
        change(self.now)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.now), []


class Disk:
    """A folder, event by event."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = Folder()
        self._inodes: dict[int, File | Folder] = {}

    def do(self, event: Event) -> None:
        match event.kind:
            case "o" | "d":
                self._open(event)
            case "w" | "t":
                self._file(event.inode).pending.append(event)
            case "m":
                file = self._file(event.inode)
                file.durable.do(event)
                if file.pending:
                    file.pending.append(event)
            case "s":
                self._sync(event.inode)
            case "r":
                source, target = (PurePath(path.decode()) for path in event.data.split(b"\0"))
                folder, old, new = self._folder(source), source.name, target.name
                assert folder is self._folder(target), "names are changed within one folder"
                folder.change(lambda names: names.__setitem__(new, names.pop(old)))
            case "u":
                path = PurePath(event.data.decode())
                self._folder(path).change(lambda names: names.pop(path.name))
            case "k":
                path, made = PurePath(event.data.decode()), Folder()
                self._folder(path).change(lambda names: names.__setitem__(path.name, made))
            case _:
                assert event.kind == "!"

    def leave(self, place: Path, variant: str, dice: random.Random) -> None:
        """Write to a new folder what a loss of power leaves now."""
        self._leave(self.root, place, variant, dice)

    def _open(self, event: Event) -> None:
        path = PurePath(event.data.decode())
        if path == self._root:
            self._inodes[event.inode] = self.root
            return
        folder = self._folder(path)
        if path.name not in folder.now:
            assert event.kind == "o"
            made = File()
            folder.change(lambda names: names.__setitem__(path.name, made))
        found = self._inodes[event.inode] = folder.now[path.name]
        if event.offset and isinstance(found, File) and (found.durable.size or found.pending):
            found.pending.append(dataclasses.replace(event, kind="t", offset=0))

    def _folder(self, path: PurePath) -> Folder:
        found = self.root
        for name in path.parent.relative_to(self._root).parts:
            inner = found.now[name]
            assert isinstance(inner, Folder)
            found = inner
        return found

    def _file(self, inode: int) -> File:
        found = self._inodes[inode]
        assert isinstance(found, File)
        return found

    def _sync(self, inode: int) -> None:
        found = self._inodes[inode]
        if isinstance(found, Folder):
            found.sync()
        else:
            found.durable, found.pending = found.now(), []

    def _leave(self, folder: Folder, place: Path, variant: str, dice: random.Random) -> None:
        place.mkdir()
        names = dict(folder.durable)
        count = len(folder.pending)
        kept = {"dropped": 0, "data without names": 0, "torn": dice.randint(0, count)}.get(variant, count)
        for change in folder.pending[:kept]:
            change(names)
        for name, found in names.items():
            if isinstance(found, Folder):
                self._leave(found, place / name, variant, dice)
            elif name.endswith("-shm"):  # memory that SQLite's processes share, and which outlives none of them
                (place / name).write_bytes(dice.randbytes(32768))
            else:
                _left(found, variant, dice).put(place / name)


def _left(file: File, variant: str, dice: random.Random) -> Content:
    content = file.durable.copy()
    if variant in ("dropped", "names without data"):
        return content
    for event in file.pending:
        if variant in ("kept", "data without names") or event.kind == "m":
            content.do(event)
        elif variant == "zeros":
            content.do(dataclasses.replace(event, data=bytes(len(event.data))))
        elif (choice := dice.randrange(3)) == 0:
            content.do(event)
        elif choice == 1 and event.kind == "w":
            for start in range(0, len(event.data), SECTOR):
                if dice.random() < 0.5:
                    content.write(event.offset + start, event.data[start : start + SECTOR])
    return content

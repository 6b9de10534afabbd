"""LangChain's docstore, read from its pickle by opcodes: nothing is unpickled, imported or called.

`FAISS.save_local` writes `pickle.dump((InMemoryDocstore, {position: id}))`. Loading such a file executes whatever it
names. Here opcodes are read as `pickletools` describes them, and a machine of the few that such a file has builds
dictionaries, lists and texts. Any other opcode or class is refused by its name, and metadata values of other classes
stay opaque.

Documents and ids go to a temporary file as they come. A pickle gives each of its values a number, by which it may be
read again: a first reading finds the few that are, and no other is kept.

Source: the descriptions of opcodes in Python's `pickletools`; the shapes of langchain-community 0.0.1 to 0.4 and of
langchain before.
"""

import io
import os
import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from cde_rag._files import open_file
from cde_rag.adoption.folder_rows import FolderDocument, FolderRows
from cde_rag.adoption.temporary_database import temporary_database, temporary_space
from cde_rag.errors import StoreFormatError

_DOCSTORES: Final = frozenset(
    {
        ("langchain.docstore.in_memory", "InMemoryDocstore"),
        ("langchain_community.docstore.in_memory", "InMemoryDocstore"),
    }
)
_DOCUMENTS: Final = frozenset(
    {
        ("langchain.docstore.document", "Document"),
        ("langchain.schema", "Document"),
        ("langchain.schema.document", "Document"),
        ("langchain_core.documents.base", "Document"),
    }
)
_VALUES: Final = frozenset(  # of metadata; they are not made here, and change nothing when the application loads them
    {
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("uuid", "UUID"),
    }
)
_PUSHED: Final = frozenset(  # opcodes whose argument is a value
    "BINBYTES BINFLOAT BININT BININT1 BININT2 BINUNICODE BINUNICODE8 LONG1 SHORT_BINBYTES SHORT_BINUNICODE".split()
)
_CONSTANTS: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK: Final = object()


class _Opcode(NamedTuple):
    """Description of an opcode.

    Attributes:
        name: Its name.
        size: Bytes of its argument; below 0 as in `pickletools`.
        read: Reads the argument of a file.
    """

    name: str
    size: int
    read: Callable[[Any], Any] | None


_OPCODES: Final = {
    opcode.code.encode("latin-1"): _Opcode(
        opcode.name, opcode.arg.n if opcode.arg else 0, opcode.arg.reader if opcode.arg else None
    )
    for opcode in pickletools.opcodes
}
_LENGTHS: Final = {  # bytes of the length before an argument
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_IN_MEMORY: Final = 1024  # values; the first ones are names of fields, which each document reads
_GETS: Final = ("BINGET", "LONG_BINGET")


@dataclass(eq=False)
class _Object:
    """Object that a pickle describes: its class and, once it is built, its state."""

    kind: tuple[str, str]
    state: Any = None


@dataclass(eq=False)
class _Class:
    """Class that a pickle names."""

    kind: tuple[str, str]


def read_docstore(path: Path) -> FolderRows:
    """Read the documents, also those that are in no index, and the ids of the vectors from `index.pkl`.

    Args:
        path: File that LangChain's `FAISS.save_local` wrote.

    Raises:
        OSError: There is no such file.
        StoreError: There is no room for the temporary file.
        StoreFormatError: It is damaged, of another shape, or names a class or opcode that such files do not have.
    """
    try:
        with open_file(path) as file:
            machine = _Machine(_read_again(file))
            file.seek(0)
            return machine.run(file)
    except _Refused as error:
        raise StoreFormatError(
            f"{path}: expected the docstore that LangChain's FAISS.save_local writes, found {error}. It is not opened, "
            "since unpickling it would execute the code that it names. Save the store again from its texts."
        ) from error


def _opcodes(file: BinaryIO) -> Iterator[tuple[_Opcode, bytes | None]]:
    """Yield the opcodes of a pickle, with the bytes of their arguments; None where these are lines, which follow.

    Raises:
        ValueError: The file ends before.
    """
    size, read = os.fstat(file.fileno()).st_size, file.read
    while (code := read(1)) != b".":
        opcode = _OPCODES.get(code)
        if opcode is None:
            raise ValueError("an unknown opcode" if code else "no end")
        if opcode.size >= 0:
            yield opcode, read(opcode.size)
        elif opcode.size in _LENGTHS:
            head = read(_LENGTHS[opcode.size])
            length = int.from_bytes(head, "little")
            if length > size:  # a lie, for which memory would be asked
                raise ValueError("a length beyond the end")
            yield opcode, head + read(length)
        else:
            yield opcode, None


def _argument(file: BinaryIO, opcode: _Opcode, found: bytes | None) -> Any:
    if opcode.read is None:
        return None
    return opcode.read(file if found is None else io.BytesIO(found))


def _read_again(file: BinaryIO) -> bytearray:
    """Return 1 for each number of a value that is read again, else 0."""
    found, size = bytearray(), os.fstat(file.fileno()).st_size
    try:
        for opcode, argument in _opcodes(file):
            if opcode.name in _GETS:
                place = int.from_bytes(argument or b"", "little")
                if place >= size:  # a lie: numbers are given one after the other
                    break
                found.extend(bytes(max(0, place + 1 - len(found))))
                found[place] = 1
            elif argument is None:
                _argument(file, opcode, argument)
    except ValueError:  # named by the machine, unless it refuses something before
        pass
    return found


class _Refused(Exception):  # noqa: N818 (it never leaves this module)
    """Content of a pickle that is no docstore."""


class _Machine:
    """Stack and memo of the opcodes.

    Args:
        again: Result of `_read_again`.
    """

    def __init__(self, again: bytearray) -> None:
        self._again, self._memoized = again, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._fetched: dict[int, Any] = {}  # what was last read again, by its place on the stack
        self._texts = temporary_database("CREATE TABLE texts (place INTEGER PRIMARY KEY, text BLOB NOT NULL)")
        self._rows = FolderRows()
        self._documents: dict[Any, Any] | None = None  # of the docstore; empty, since its items are in the rows
        self._places: dict[Any, Any] | None = None  # likewise
        self._named: dict[str, Callable[[Any], None]] = {
            "APPEND": lambda _: self._append([self._pop()]),
            "APPENDS": lambda _: self._append(self._since_mark()),
            "ADDITEMS": lambda _: self._append(self._since_mark()),
            "BINGET": self._get,
            "BINPUT": self._put,
            "BUILD": self._build,
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_SET": lambda _: self._stack.append([]),  # sets stay lists: hashing nested tuples can take for ever
            "FRAME": lambda _: None,
            "GLOBAL": lambda argument: self._global(*str(argument).split(" ", 1)),
            "LONG_BINGET": self._get,
            "LONG_BINPUT": self._put,
            "MARK": lambda _: self._stack.append(_MARK),
            "MEMOIZE": lambda _: self._put(self._memoized),
            "NEWOBJ": self._new,
            "PROTO": lambda _: None,
            "REDUCE": self._reduce,
            "SETITEM": lambda _: self._set([self._pop(), self._pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "STACK_GLOBAL": lambda _: self._global(*[self._pop(), self._pop()][::-1]),
            "TUPLE": lambda _: self._stack.append(tuple(self._since_mark())),
        }

    def run(self, file: BinaryIO) -> FolderRows:
        """Return the rows that a pickle describes.

        Raises:
            _Refused: It has an opcode, class or shape that is not allowed, or is damaged.
        """
        try:
            for opcode, found in _opcodes(file):
                self._step(opcode.name, _argument(file, opcode, found))
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise _Refused(f"a damaged file ({type(error).__name__}: {error!s:.80})") from error
        if len(self._stack) != 1 or file.read(1):
            raise _Refused("more than one value")
        self._check(self._stack[0])
        return self._rows

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            taken = [self._pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(taken)))
        elif name in self._named:
            self._named[name](argument)
        else:
            raise _Refused(f"the opcode {name}")

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark in place of a value")
        return value

    def _since_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:  # an IndexError below the stack's start
            place -= 1
            if place < 0:
                raise ValueError("no mark")
        found = self._stack[place + 1 :]
        del self._stack[place:]
        return found

    def _get(self, place: Any) -> None:
        if place in self._memo:
            self._fetched[len(self._stack)] = self._memo[place]
            self._stack.append(self._memo[place])
            return
        (found,) = self._texts.execute("SELECT text FROM texts WHERE place = ?", (place,)).fetchone()
        self._stack.append(found.decode("utf-8", "surrogatepass"))

    def _put(self, place: Any) -> None:
        """Keep a value that is read again. Most are the vectors' ids, which go to the temporary file."""
        self._memoized += 1
        if place >= len(self._again) or not self._again[place]:
            return
        value = self._stack[-1]
        if isinstance(value, str) and len(self._memo) >= _IN_MEMORY:
            data = value.encode("utf-8", "surrogatepass")
            with temporary_space():
                self._texts.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (place, data))
        else:
            self._memo[place] = value

    def _append(self, values: Sequence[Any]) -> None:
        self._top(list).extend(values)

    def _set(self, items: Sequence[Any]) -> None:
        there, pairs = self._top(dict), list(zip(items[::2], items[1::2], strict=True))
        for key, _ in pairs:
            if not isinstance(key, str | int | float | bytes | None):
                raise _Refused("a dictionary whose keys are no texts or numbers")
        if self._is_in_store() and (self._documents is None or self._documents is there):
            self._documents = there
            self._keep(pairs)
        elif len(self._stack) == 2 and _is_store(self._stack[0]) and self._stack[0].state is not None:
            self._places = there
            self._name(pairs)
        else:
            there.update(pairs)

    def _is_in_store(self) -> bool:
        """Return True if the top of the stack is the dictionary of the docstore's documents."""
        if len(self._stack) not in (4, 5) or self._stack[-2] != "_dict":
            return False
        return _is_store(self._stack[0]) and (len(self._stack) == 4 or self._stack[2] is _MARK)

    def _keep(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._rows.keep(FolderDocument(_text(id_), *_entry(value)) for id_, value in pairs)

    def _name(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        if any(not isinstance(place, int) or not 0 <= place < 2**40 for place, _ in pairs):
            raise _Refused("ids of vectors that are not numbered from 0")
        self._rows.name((place, _text(id_)) for place, id_ in pairs)

    def _top(self, kind: type) -> Any:
        value = self._pop()
        self._stack.append(value)
        if not isinstance(value, kind):
            raise _Refused(f"items of a {type(value).__name__}")
        if self._fetched.get(len(self._stack) - 1) is value:
            raise _Refused("a value that is changed once it is complete")  # and may be among the rows
        return value

    def _global(self, module: Any, name: Any) -> None:
        kind = (module, name)
        if kind not in _DOCSTORES | _DOCUMENTS | _VALUES:
            raise _Refused(f"{module!s:.80}.{name!s:.80}, which is no part of a docstore")
        self._stack.append(_Class(kind))

    def _new(self, _: Any) -> None:
        arguments, named = self._pop(), self._pop()
        if not isinstance(named, _Class) or (named.kind not in _VALUES and arguments != ()):
            raise _Refused("an object that is made of arguments")
        self._stack.append(_Object(named.kind))

    def _reduce(self, _: Any) -> None:
        self._pop()
        named = self._pop()
        if not isinstance(named, _Class) or named.kind not in _VALUES:
            raise _Refused("a call")
        self._stack.append(_Object(named.kind))

    def _build(self, _: Any) -> None:
        state = self._pop()
        self._top(_Object).state = state

    def _check(self, value: Any) -> None:
        """Check the shape of the value, and keep the parts that are not where LangChain writes them."""
        pair = cast(tuple[Any, ...], value) if isinstance(value, tuple) else ()
        if len(pair) != 2 or not _is_store(pair[0]) or not isinstance(pair[1], dict):
            raise _Refused("something else than a docstore with the ids of its vectors")
        documents, places = _field(pair[0].state, "_dict", dict), cast(dict[Any, Any], pair[1])
        is_other = self._documents is not None and self._documents is not documents
        if is_other or (self._places is not None and self._places is not places):
            raise _Refused("something else than a docstore with the ids of its vectors")
        self._keep(list(documents.items()))
        self._name(list(places.items()))
        if not self._rows.is_numbered():
            raise _Refused("ids of vectors that are not numbered from 0")
        if self._rows.repeated() is not None:
            raise _Refused("two vectors of one id")
        if (lost := self._rows.lost()) is not None:
            raise _Refused(f"vectors without a document, such as {lost!r:.80}")


def _is_store(value: Any) -> bool:
    return isinstance(value, _Object) and value.kind in _DOCSTORES


def _entry(value: Any) -> tuple[str, dict[Any, Any]]:
    if not isinstance(value, _Object) or value.kind not in _DOCUMENTS:
        raise _Refused("a document of another class")
    fields = _field(value.state, "__dict__", dict)
    return _field(fields, "page_content", str), _field(fields, "metadata", dict)


def _field(state: Any, name: str, kind: type) -> Any:
    found = cast(dict[Any, Any], state).get(name) if isinstance(state, dict) else None
    if not isinstance(found, kind):
        raise _Refused(f"no {name} of the type {kind.__name__}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused("an id that is no text")
    return value

"""LangChain's docstore, read from its pickle by opcodes: nothing is unpickled, imported or called.

`FAISS.save_local` writes `pickle.dump((InMemoryDocstore, {position: id}))`. Loading such a file executes whatever it
names. Here `pickletools` lists the opcodes, and a machine of the few that such a file has builds dictionaries, lists
and texts. Any other opcode or class is refused by its name, and metadata values of other classes stay opaque.

Source: the descriptions of opcodes in Python's `pickletools`; the shapes of langchain-community 0.0.1 to 0.4 and of
langchain before.
"""

import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from cde_rag._files import read_file
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


class DocstoreEntry(NamedTuple):
    """Document of a docstore.

    Attributes:
        text: Its `page_content`.
        metadata: Its metadata; values that JSON does not have are opaque.
    """

    text: str
    metadata: dict[Any, Any]


class Docstore(NamedTuple):
    """Documents of a FAISS folder of LangChain.

    Attributes:
        documents: By id, also those that are in no index.
        ids: Ids of the index' vectors, by position.
    """

    documents: dict[str, DocstoreEntry]
    ids: list[str]


@dataclass(eq=False)
class _Object:
    """Object that a pickle describes: its class and, once it is built, its state."""

    kind: tuple[str, str]
    state: Any = None


@dataclass(eq=False)
class _Class:
    """Class that a pickle names."""

    kind: tuple[str, str]


def read_docstore(path: Path) -> Docstore:
    """Read the docstore and the ids of the vectors from `index.pkl`.

    Args:
        path: File that LangChain's `FAISS.save_local` wrote.

    Raises:
        OSError: There is no such file.
        StoreFormatError: It is damaged, of another shape, or names a class or opcode that such files do not have.
    """
    try:
        return _docstore(_Machine().run(read_file(path)))
    except _Refused as error:
        raise StoreFormatError(
            f"{path}: expected the docstore that LangChain's FAISS.save_local writes, found {error}. It is not opened, "
            "since unpickling it would execute the code that it names. Save the store again from its texts."
        ) from error


class _Refused(Exception):  # noqa: N818 (it never leaves this module)
    """Content of a pickle that is no docstore."""


class _Machine:
    """Stack and memo of the opcodes."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
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
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "NEWOBJ": self._new,
            "PROTO": lambda _: None,
            "REDUCE": self._reduce,
            "SETITEM": lambda _: self._set([self._pop(), self._pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "STACK_GLOBAL": lambda _: self._global(*[self._pop(), self._pop()][::-1]),
            "TUPLE": lambda _: self._stack.append(tuple(self._since_mark())),
        }

    def run(self, data: bytes) -> Any:
        """Return the value that a pickle describes.

        Raises:
            _Refused: It has an opcode or class that is not allowed, or is damaged.
        """
        end = -1
        try:
            for opcode, argument, place in pickletools.genops(data):
                end = cast(int, place)
                self._step(opcode.name, argument)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise _Refused(f"a damaged file ({type(error).__name__}: {error!s:.80})") from error
        if len(self._stack) != 1 or end + 1 != len(data):
            raise _Refused("more than one value")
        return self._stack[0]

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
        elif name != "STOP":
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
        self._stack.append(self._memo[place])

    def _put(self, place: Any) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[place] = value

    def _append(self, values: Sequence[Any]) -> None:
        self._top(list).extend(values)

    def _set(self, items: Sequence[Any]) -> None:
        there = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | bytes | None):
                raise _Refused("a dictionary whose keys are no texts or numbers")
            there[key] = value

    def _top(self, kind: type) -> Any:
        value = self._pop()
        self._stack.append(value)
        if not isinstance(value, kind):
            raise _Refused(f"items of a {type(value).__name__}")
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


def _docstore(value: Any) -> Docstore:
    """Check the shape of the value."""
    if not (isinstance(value, tuple) and len(cast(tuple[Any, ...], value)) == 2):
        raise _Refused("something else than a docstore with the ids of its vectors")
    store, places = cast(tuple[Any, Any], value)
    if not isinstance(store, _Object) or store.kind not in _DOCSTORES or not isinstance(places, dict):
        raise _Refused("something else than a docstore with the ids of its vectors")
    entries = _field(store.state, "_dict", dict)
    documents = {_text(id_): _entry(each) for id_, each in entries.items()}
    by_place = cast(dict[Any, Any], places)
    if by_place.keys() != set(range(len(by_place))):
        raise _Refused("ids of vectors that are not numbered from 0")
    ids = [_text(by_place[place]) for place in range(len(by_place))]
    if len(set(ids)) != len(ids):
        raise _Refused("two vectors of one id")
    if lost := [id_ for id_ in ids if id_ not in documents]:
        raise _Refused(f"{len(lost)} vectors without a document, such as {lost[0]!r:.80}")
    return Docstore(documents, ids)


def _entry(value: Any) -> DocstoreEntry:
    if not isinstance(value, _Object) or value.kind not in _DOCUMENTS:
        raise _Refused("a document of another class")
    fields = _field(value.state, "__dict__", dict)
    return DocstoreEntry(_field(fields, "page_content", str), _field(fields, "metadata", dict))


def _field(state: Any, name: str, kind: type) -> Any:
    found = cast(dict[Any, Any], state).get(name) if isinstance(state, dict) else None
    if not isinstance(found, kind):
        raise _Refused(f"no {name} of the type {kind.__name__}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused("an id that is no text")
    return value

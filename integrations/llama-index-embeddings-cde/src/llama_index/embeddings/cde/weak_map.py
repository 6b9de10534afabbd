"""Mapping with weak keys by identity, for objects that are not hashable, such as LlamaIndex's stores."""

from typing import Generic, TypeVar
from weakref import ref

V = TypeVar("V")


class WeakMap(Generic[V]):
    """Mapping from objects to values; an entry ends with its object."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[object], V]] = {}

    def get(self, key: object) -> V | None:
        """Return the value of an object, or None."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: V) -> None:
        """Set the value of an object."""
        number = id(key)
        self._entries[number] = ref(key, lambda dead: self._forget(number, dead)), value

    def _forget(self, number: int, dead: "ref[object]") -> None:
        if number in self._entries and self._entries[number][0] is dead:
            del self._entries[number]

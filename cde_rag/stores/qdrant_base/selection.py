"""Selection of points: the few conditions of Qdrant's grammar that a store uses, independent of a client's classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Tagged:
    """A list of strings in the payload has one of these; true of no point for none."""

    key: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """A list of integers in the payload has one within bounds, which are called gt, gte, lt and lte."""

    key: str
    bounds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Having:
    """There is a vector of that name that counts."""

    vector: str


@dataclass(frozen=True, slots=True)
class Every:
    """All parts hold; true of no parts."""

    parts: tuple["Selection", ...] = ()


@dataclass(frozen=True, slots=True)
class Some:
    """Some part holds; there is at least one."""

    parts: tuple["Selection", ...]


@dataclass(frozen=True, slots=True)
class No:
    """The part does not hold."""

    part: "Selection"


Selection: TypeAlias = Tagged | Between | Having | Every | Some | No

ALL = Every()

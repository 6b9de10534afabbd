"""Names and values of metadata fields, in filters and wherever else one is named (groups, parents, headers, tenants).

A field's name is the keys on its path, joined by dots. A key may itself have dots in it, as pandas' `json_normalize`
makes them: `author.name` names the key `name` in the object `author`, and the key `author.name`. In filters `and`, `or`
and `not` are groups; a field that is called so has a dot in front of its name: `.and`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any, Final, cast

MAX_DOTS: Final = 8  # 256 paths
GROUPS: Final = ("and", "or", "not")
_GROUP: Final = re.compile(r"\.*(?:and|or|not)")


def field_name(key: str) -> str:
    """Return the name of the field at a key of the metadata.

    Examples:
        >>> field_name("year"), field_name("author.name"), field_name("and")
        ('year', 'author.name', '.and')
    """
    return f".{key}" if _GROUP.fullmatch(key) else key


def key_of(name: str) -> str:
    """Return the key at the top of the metadata that a name names, the inverse of `field_name`."""
    return name[1:] if name.startswith(".") and _GROUP.fullmatch(name) else name


@lru_cache(maxsize=4096)
def paths_of(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the paths that a name can have: each dot either separates two keys or is part of one.

    The first path is that of one key. Names of more than 8 dots have two: one key, and every dot a separator.

    Examples:
        >>> paths_of("author.name")
        (('author.name',), ('author', 'name'))
    """
    first, *rest = key_of(name).split(".")
    if len(rest) > MAX_DOTS:
        return (key_of(name),), (first, *rest)
    paths: list[tuple[str, ...]] = []
    for separates in product((False, True), repeat=len(rest)):
        path = [first]
        for separated, part in zip(separates, rest, strict=True):
            if separated:
                path.append(part)
            else:
                path[-1] += f".{part}"
        paths.append(tuple(path))
    return tuple(paths)


def names_of(metadata: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the joined keys of all fields, those of inner objects after their own; a name can come twice.

    Args:
        metadata: Metadata, or an object in it.
        at: Joined keys of the object, and a dot.

    Examples:
        >>> list(names_of({"year": 2024, "author": {"name": "Ann"}, "file.type": "pdf"}))
        ['year', 'author', 'author.name', 'file.type']
    """
    for key, value in metadata.items():
        yield f"{at}{key}"
        for inner in cast(list[object], value) if isinstance(value, list) else [cast(object, value)]:
            if isinstance(inner, Mapping):
                yield from names_of(cast(Mapping[str, Any], inner), f"{at}{key}.")


def value_at(metadata: Mapping[str, Any], name: str) -> object:
    """Return the value of a field, by which records are grouped; None if there is none, a list of them if several.

    Examples:
        >>> value_at({"author": {"name": "Ann"}}, "author.name"), value_at({"author.name": "Ann"}, "author.name")
        ('Ann', 'Ann')
    """
    if "." not in name:  # first, since it is called for each record
        return metadata.get(name)
    found = [value for path in paths_of(name) for value in values_on(metadata, path)]
    return found[0] if len(found) == 1 else found or None


def values_on(value: object, path: tuple[str, ...]) -> Iterator[object]:
    """Yield all values on a path of `paths_of`; lists on the way are traversed."""
    if not path:
        yield value
        return
    for element in elements(value):
        if isinstance(element, Mapping) and path[0] in element:
            yield from values_on(cast(Mapping[str, object], element)[path[0]], path[1:])


def elements(value: object) -> Iterator[object]:
    """Yield the elements of a list, and of the lists in it; any other value is its own only element."""
    if not isinstance(value, list | tuple):
        yield value
        return
    for element in cast(Iterable[object], value):
        yield from elements(element)

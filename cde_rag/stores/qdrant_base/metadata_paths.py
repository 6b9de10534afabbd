"""Metadata as Qdrant's own conditions read it: JSON paths of its values, and the differences to the grammar.

Conditions look at the object `metadata` in the payload, so that any other client of Qdrant can filter the same points.
Where Qdrant would not compare a value as `cde_rag.stores.filters` does, the payload says so (`cde_metadata.filters`),
and the filter is evaluated here for these points:

    qdrant      Qdrant compares as the grammar does
    rounded     numbers too long for JSON are rounded to 15 digits, or compared as float64
    cde-rag     lists in lists; dates that only one of the two reads; numbers far from 1; keys Qdrant cannot address
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, Literal, TypeAlias, cast

from cde_rag.field_names import field_name, paths_of
from cde_rag.stores.filter_conditions import instant

IndexKind: TypeAlias = Literal["keyword", "float", "bool", "datetime"]
Comparison: TypeAlias = Literal["qdrant", "rounded", "cde-rag"]

METADATA: Final = "metadata"
MOST_INDEXED: Final = 64  # keys, since metadata can have any number of paths, and each index costs memory
_LONGEST: Final = 256  # characters of a string that is indexed
_KEYS: Final = 4  # of a path in conditions
_LEVELS: Final = 16  # gRPC allows about thirty
DIGITS: Final = 15  # of a number that every reader of JSON reads alike
_DATE: Final = re.compile(  # read alike by both
    r"[1-8]\d{3}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)?)?", re.ASCII
)
_DATE_LIKE: Final = re.compile(  # read by one of the two
    r"\s*[+-]?\s*\d+\s*-\s*\d{1,2}\s*-\s*\d{1,2}\s*(?:$|t|\d{1,2}\s*:).*", re.IGNORECASE | re.DOTALL
)


def json_paths(at: str, names: tuple[str, ...]) -> list[str]:
    """Return the JSON paths that keys in the object at another path can have, as Qdrant spells them.

    Every key but the last can hold an object, or a list of objects. The first path is that of objects only. None are
    returned for keys that Qdrant cannot spell, and for more than four keys.
    """
    if not 0 < len(names) <= _KEYS or any('"' in name or "\\" in name for name in names):
        return []
    plain = (name and all(character.isalnum() or character in "_-" for character in name) for name in names)
    spelled = [name if simple else f'"{name}"' for name, simple in zip(names, plain, strict=True)]
    return [
        ".".join([at, *(f"{name}{suffix}" for name, suffix in zip(spelled, (*lists, ""), strict=True))])
        for lists in product(("", "[]"), repeat=len(names) - 1)
    ]


def filter_paths(at: str, paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the JSON paths of a field by all paths of its name, or none if Qdrant cannot spell one of them.

    Objects in Qdrant have no empty keys (`is_object`), so paths with one are left out.
    """
    spelled = [json_paths(at, names) for names in paths if "" not in names]
    return [path for found in spelled for path in found] if all(spelled) else []


def values(content: object, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield all scalars and inner objects, with their keys from the top."""
    match content:
        case dict():
            if names:
                yield names, cast(object, content)
            for name, inner in cast(dict[str, object], content).items():
                yield from values(inner, (*names, name))
        case list():
            for inner in cast(list[object], content):
                yield from values(inner, names)
        case _:
            yield names, content


def index_kinds(contents: Iterable[object], at: str) -> dict[str, IndexKind]:
    """Return the payload index that each JSON path needs, by its first value.

    A filter names all paths of a dotted name, and Qdrant searches by an index only where each of them has one. So those
    of other keys follow, after the paths of the values themselves.
    """
    kinds: dict[tuple[str, ...], IndexKind] = {}
    for content in contents:
        for names, value in values(content):
            if names not in kinds and (kind := _index_kind(value)) is not None:
                kinds[names] = kind
    found: dict[str, IndexKind] = {path: kind for names, kind in kinds.items() for path in json_paths(at, names)}
    for names, kind in kinds.items():
        for path in filter_paths(at, paths_of(field_name(".".join(names)))):
            found.setdefault(path, kind)
    return found


def _index_kind(value: object) -> IndexKind | None:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "float"
        case str() if instant(value) is not None:
            return "datetime"
        case str() if len(value) <= _LONGEST:
            return "keyword"
        case dict():
            return "keyword"  # for `exists`
        case _:
            return None


def is_object(value: object, levels: int = _LEVELS) -> bool:
    """Return True if JSON can be a payload's object, over HTTP and gRPC: few levels, no empty key, no huge number."""
    match value:
        case dict():
            inner = cast(dict[str, object], value)
            return levels > 0 and "" not in inner and all(is_object(one, levels - 1) for one in inner.values())
        case list():
            return levels > 0 and all(is_object(one, levels - 1) for one in cast(list[object], value))
        case int() | float():
            return abs(value) < 2**63
        case _:
            return True


def compared(value: object) -> Comparison:
    """Return by whom conditions on JSON are evaluated; "rounded" if its numbers have to be rounded for that."""
    match value:
        case dict():
            return _worst(map(compared, cast(dict[str, object], value).values()))
        case list():
            found = cast(list[object], value)
            return "cde-rag" if any(isinstance(one, list) for one in found) else _worst(map(compared, found))
        case str():
            read_alike = _DATE.fullmatch(value) is not None and instant(value) is not None
            return "qdrant" if read_alike or not (instant(value) or _DATE_LIKE.fullmatch(value)) else "cde-rag"
        case bool() | None:
            return "qdrant"
        case int():
            return "qdrant" if abs(value) < 10**DIGITS else "rounded" if abs(value) < 2**63 else "cde-rag"
        case float() if value == 0.0 or 1e-5 < abs(value) < 10**DIGITS:
            return "qdrant" if repr(rounded(value)) == repr(value) else "rounded"
        case _:
            return "cde-rag"


def _worst(found: Iterable[Comparison]) -> Comparison:
    kinds = set(found)
    return "cde-rag" if "cde-rag" in kinds else "rounded" if "rounded" in kinds else "qdrant"


def rounded(value: Any) -> Any:
    """Return JSON with floats of at most 15 digits, which every reader of JSON reads alike."""
    match value:
        case Mapping():
            return {name: rounded(inner) for name, inner in cast(Mapping[str, Any], value).items()}
        case list():
            return [rounded(inner) for inner in cast(list[Any], value)]
        case float():
            return float(f"{value:.{DIGITS}g}") + 0.0  # and no -0.0
        case _:
            return value

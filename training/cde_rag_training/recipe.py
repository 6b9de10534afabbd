"""A recipe: a TOML file as a tree of frozen dataclasses; unknown keys and values of other types are refused."""

import difflib
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from cde_rag.errors import CDEError
from cde_rag.readers.decoding import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")


class RecipeError(CDEError, ValueError):
    """A recipe that cannot be read, or a setting that does not exist or has an invalid value."""


def read_recipe(path: Path, kind: type[Config]) -> Config:
    """Read a TOML file into a dataclass; missing keys keep their defaults.

    Args:
        path: Path of the file.
        kind: A dataclass whose fields are numbers, texts, choices, tuples, or such dataclasses.

    Raises:
        RecipeError: The file is missing or no TOML; a key is unknown (the nearest known one is named), a value is of
            another type, or the dataclass refuses it. The message names file and key.
    """
    return recipe_of(read_tables(path), kind, file=str(path))


def read_tables(path: Path) -> dict[str, object]:
    """Parse a TOML file.

    Raises:
        RecipeError: The file is missing or no TOML.
    """
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:  # of TOML, or of UTF-8
        raise RecipeError(f"Expected a recipe (TOML) at {path}, found: {error}.") from error


def recipe_of(values: Mapping[str, object], kind: type[Config], *, file: str) -> Config:
    """Convert the tables of a TOML file to a dataclass.

    Args:
        values: The tables.
        kind: As for `read_recipe`.
        file: Name of the file in error messages.

    Raises:
        RecipeError: As for `read_recipe`, except errors of the file itself.
    """
    return cast(Config, _dataclass(kind, values, file, ""))


def changed(values: Mapping[str, object], change: Mapping[str, object]) -> dict[str, object]:
    """Merge changes into tables, and return the result.

    A table is changed key by key, a list of tables entry by entry; anything else is replaced.

    Args:
        values: The tables; not modified.
        change: Tables of the same form, with the differences only.

    Examples:
        >>> changed({"seed": 0, "phases": [{"name": "a", "average": 0.9}]}, {"phases": [{"average": 0.0}]})
        {'seed': 0, 'phases': [{'name': 'a', 'average': 0.0}]}
    """
    return {**values, **{key: _changed(values.get(key), value) for key, value in change.items()}}


def _changed(value: object, change: object) -> object:
    if isinstance(value, Mapping) and isinstance(change, Mapping):
        return changed(cast("Mapping[str, object]", value), cast("Mapping[str, object]", change))
    if not (_is_tables(value) and _is_tables(change)):
        return change
    old, new = cast("list[object]", value), cast("list[object]", change)
    return [*(_changed(*both) for both in zip(old, new, strict=False)), *old[len(new) :], *new[len(old) :]]


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in cast("list[object]", value))


def _dataclass(kind: Any, values: object, file: str, key: str) -> object:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{file}: expected a table [{key}], found {values!r}.")
    given = cast("Mapping[str, object]", values)
    hints, known = get_type_hints(kind), [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise RecipeError(
                f"{file}: unknown key {_inside(key, name)!r}; the nearest one is {_inside(key, near[0])!r}. There are "
                f"{', '.join(known)}."
            )
    read = {name: _value(hints[name], value, file, _inside(key, name)) for name, value in given.items()}
    try:
        return kind(**read)
    except ValueError as error:
        raise RecipeError(f"{file}{f', [{key}]' if key else ''}: {error}") from error


def _inside(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _value(hint: Any, value: object, file: str, key: str) -> object:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _dataclass(hint, value, file, key)
    if origin is Literal:
        if value not in arguments:
            raise RecipeError(f"{file}: {key} is one of {', '.join(map(repr, arguments))}, found {value!r}.")
        return value
    if origin in (Union, types.UnionType):  # of something and None, which TOML cannot say
        return _value(next(each for each in arguments if each is not type(None)), value, file, key)
    if origin is tuple:
        return _tuple(arguments, value, file, key)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise RecipeError(f"{file}: {key} is a finite number, found {value}.")
        return float(value)
    if type(value) is hint:
        return value
    raise RecipeError(f"{file}: {key} is of type {hint.__name__}, found {value!r}.")


def _tuple(arguments: tuple[Any, ...], value: object, file: str, key: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise RecipeError(f"{file}: {key} is a list, found {value!r}.")
    items = cast("list[object]", value)
    hints = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
    if len(items) != len(hints):
        raise RecipeError(f"{file}: {key} has {len(hints)} entries, found {len(items)}.")
    return tuple(
        _value(hint, item, file, f"{key}[{number}]")
        for number, (hint, item) in enumerate(zip(hints, items, strict=True))
    )

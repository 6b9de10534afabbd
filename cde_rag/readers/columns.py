"""From the fields of one line or row to a Record, or the reason why not."""

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias, cast

from cde_rag.errors import CorpusError
from cde_rag.records import Record, default_id, usable

FIELDS: Final = "fields"  # key of a collection's settings
NO_FIELD: Final = "no field"  # begins the reason of a row that lacks a column it is read by
_OTHER_IDS = "give each record one, or name another field of ids (--fields id=…; in Python Fields(id=…))"
_ROLES: Final = frozenset({"id", "text", "title"})
_EXACT = 2.0**53  # floats from here on stand for several whole numbers
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Fields:
    """Mapping of a line's or row's fields to a record; every other field is metadata.

    Attributes:
        id: A string or whole number, in each row; 7.0 is 7. `None`: the field `id`, else `_id`, else the id that
            `Collection.add` would make.
        text: A string that is not blank.
        title: A string; may be missing.
        parent: Field with the name of the longer document: a string or a whole number. It stays in the metadata, and is
            part of a generated id.
    """

    id: str | None = None
    text: str = "text"
    title: str = "title"
    parent: str | None = None

    @property
    def described(self) -> str:
        """Roles whose fields are not the default ones, such as "text=body,title=subject"; "" if all are."""
        return ",".join(f"{role}={field}" for role, field in self.settings().items())

    def settings(self) -> dict[str, str]:
        """Return the fields that are not the default ones, by role, as a collection's settings have them.

        The parent is none of them: a collection has its own setting of that.
        """
        default = asdict(_DEFAULT)
        return {role: field for role, field in asdict(self).items() if role != "parent" and field != default[role]}

    def are_in(self, names: Container[str]) -> bool:
        """Return True for a row that has the fields of id and text, and no title of the default name in place of ours.

        Args:
            names: Names of its fields.
        """
        named = self.text in names and (self.id is None or self.id in names)
        return named and (self.text != _DEFAULT.text or self.title in names or _DEFAULT.title not in names)


_DEFAULT: Final = Fields()


def kept_fields(settings: Mapping[str, Any]) -> Fields | None:
    """Return the fields that a collection keeps for files of records; None if it keeps none."""
    kept: Mapping[str, str] = settings.get(FIELDS) or {}
    return Fields(**{role: kept[role] for role in _ROLES & kept.keys()}) if kept else None


class UnusableError(ValueError):
    """A line, row or file is no usable record; the message has the expected and the found."""


class EmptyFileError(UnusableError):
    """A file holds no text; it is passed over."""


Found: TypeAlias = tuple[str, Record | UnusableError]
"""File and line, such as `"papers.jsonl, line 7"`, and what stands there."""


def to_record(values: Mapping[str, Any], fields: Fields) -> Record:
    """Sort the fields of one line into a Record.

    Raises:
        UnusableError: The text or a named id is missing, or a value is blank or of a wrong type.
    """
    rest = dict(values)
    text = _string(rest, fields.text)
    if not text.strip():
        raise UnusableError(f"the text in {fields.text!r} is blank")
    title = "" if rest.get(fields.title) is None else _string(rest, fields.title)
    rest.pop(fields.title, None)  # null
    if fields.parent in rest:
        rest[fields.parent] = _whole(rest[fields.parent])
    identifier = _identifier(rest, fields)
    record = Record(identifier or "", text, title, rest)
    try:
        return usable(record if identifier else replace(record, id=default_id(record, fields.parent)), fields.parent)
    except CorpusError as reason:
        raise UnusableError(str(reason).removesuffix(".")) from reason


def kind(value: object) -> str:
    """Return the JSON name of a value's type, with an article."""
    return "null" if value is None else _KINDS.get(type(value), f"a {type(value).__name__}")


def _string(rest: dict[str, Any], field: str) -> str:
    value = _take(rest, field)
    if not isinstance(value, str):
        raise UnusableError(f"expected a string in {field!r}, found {kind(value)}")
    return value


def id_field(names: Container[str], fields: Fields) -> str | None:
    """Return the field of ids among the names of a row's fields; None if ids are generated."""
    if fields.id is not None:
        return fields.id
    return next((name for name in ("id", "_id") if name in names), None)


def _identifier(rest: dict[str, Any], fields: Fields) -> str | None:
    if (field := id_field(rest, fields)) is None:
        return None
    value = _whole(_take(rest, field))
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UnusableError(f"expected a string or a whole number in {field!r}, found {kind(value)}; {_OTHER_IDS}")
    if not str(value).strip():
        raise UnusableError(f"the id in {field!r} is blank; {_OTHER_IDS}")
    return str(value)


def _whole(value: object) -> object:
    """Convert 7.0 to 7: pandas makes floats of whole numbers in a column that lacks one."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


def _take(rest: dict[str, Any], field: str) -> object:
    if field not in rest:
        found = ", ".join(repr(name) for name in rest) or "none"
        raise UnusableError(
            f"{NO_FIELD} {field!r} (found: {found}); name the fields that hold id, text and title "
            "(--fields id=…,text=…,title=…; in Python Fields(id=…, text=…, title=…))"
        )
    return cast(object, rest.pop(field))

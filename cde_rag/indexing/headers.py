"""Headers: titles and headings in front of passages, for embedding and for text search.

A collection that is made with `headers=["section"]` extends the title of each record that it is given by these metadata
fields, "Install > Linux". The title is embedded in front of the text, found by words, part of a record's digest, and
shown with hits; the text stays as it is. Source: ours; measured in lab/pages/headers.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, cast

from cde_rag.embedders.protocol import Embedder
from cde_rag.field_names import value_at
from cde_rag.records import PartialRecord, Record, check_key

SEPARATOR: Final = " > "
_SHARE: Final = 4  # of the window: headers have at most a quarter


def check_headers(headers: Sequence[str]) -> list[str]:
    """Return names of metadata fields as headers.

    Raises:
        TypeError: One `str` in place of a list, or an element that is none.
        ValueError: A name that is empty or one of and, or, not, or one that comes twice.
    """
    if isinstance(headers, str):
        raise TypeError(f"headers: expected a list of metadata keys, found the string {headers!r}.")
    for key in headers:
        check_key(key, "headers")
    if len(set(headers)) != len(headers):
        raise ValueError(f"headers: expected each key once, found {list(headers)}.")
    return list(headers)


def with_headers(records: Iterable[Record], settings: Mapping[str, Any], embedder: Embedder) -> Iterable[Record]:
    """Extend titles by a collection's headers; records of a collection without headers are returned unchanged.

    Args:
        records: Records to add. One whose title has its headers already stays as it is, and so does a partial one,
            which gets them when it is completed.
        settings: Settings of the store.
        embedder: Its tokenizer counts a title's tokens: headings are left out from the second on until the title
            takes at most a quarter of the window.
    """
    headers: list[str] = settings.get("headers", [])
    return records if not headers else _extended(records, headers, _counter(embedder))


def without_headers(record: Record, settings: Mapping[str, Any]) -> str:
    """Return the title of a stored record without the headers of its collection."""
    headers: list[str] = settings.get("headers", [])
    parts = _parts(record, headers)
    for first in range(len(parts)):  # the first ones were left out where the title was too long
        path = SEPARATOR.join(parts[first:])
        if record.title == path or record.title.endswith(f"{SEPARATOR}{path}"):
            return record.title.removesuffix(path).removesuffix(SEPARATOR)
    return record.title


def _counter(embedder: Embedder) -> Callable[[str], bool]:
    most = max(1, embedder.context.identity.max_length // _SHARE)

    @lru_cache(2**12)
    def fits(title: str) -> bool:
        return embedder.count_tokens([title]) <= most

    return fits


def _has_fields(record: object) -> bool:
    """Return True for a complete record. Other objects are refused later, where records are validated."""
    if not isinstance(record, Record) or isinstance(record, PartialRecord):
        return False
    title, metadata = cast(object, record.title), cast(object, record.metadata)
    return isinstance(title, str) and isinstance(metadata, Mapping)


def _parts(record: Record, headers: Sequence[str]) -> list[str]:
    """Return the headers of a record: the strings and numbers of its metadata, split at separators."""
    found = [value_at(record.metadata, key) for key in headers]
    texts = [str(value) for value in found if isinstance(value, str | int | float) and not isinstance(value, bool)]
    return [part for text in texts for part in text.split(SEPARATOR) if part.strip()]


def _extended(records: Iterable[Record], headers: Sequence[str], fits: Callable[[str], bool]) -> Iterator[Record]:
    for record in records:
        if not _has_fields(record):
            yield record
            continue
        parts, title = _parts(record, headers), record.title
        if not parts or title == (path := SEPARATOR.join(parts)) or title.endswith(f"{SEPARATOR}{path}"):
            yield record
            continue
        every = [title, *parts] if title else parts
        while len(every) > 2 and not fits(SEPARATOR.join(every)):
            del every[1]
        extended = SEPARATOR.join(every)
        yield replace(record, title=extended if fits(extended) else title)

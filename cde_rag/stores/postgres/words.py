"""Postings of terms: the rows of the table `words`, described in schema.py."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
from jaxtyping import Int64

from cde_rag.errors import StoreError, StoreFormatError
from cde_rag.stores.postgres.schema import FORMAT, PgNames

_ARRAY: Final = struct.Struct(">5i")  # dimensions, NULLs, type of the elements, their number, number of the first
_INT8, _INT4 = 20, 23


def live(names: PgNames) -> str:
    """Return the SQL that joins rows `w` of `words` with their entries `e` that count, and their records `r`."""
    return (
        "CROSS JOIN unnest(w.places, w.times) AS e (place, times) "
        f"JOIN {names.records} r ON r.place = e.place AND r.batch = w.batch"
    )


def sweep(names: PgNames) -> str:
    """Return the SQL that removes the entries that do not count."""
    return (
        f"WITH w AS (DELETE FROM {names.words} RETURNING term, batch, places, times) "  # noqa: S608
        f"INSERT INTO {names.words} (term, batch, places, times) "
        "SELECT w.term, w.batch, array_agg(e.place), array_agg(e.times) "
        f"FROM w {live(names)} GROUP BY w.term, w.batch"
    )


def check_postings(format_: int, error: type[StoreError] = StoreFormatError) -> None:
    """Refuse to write and to search the words of a collection of format 1.

    Args:
        format_: Format of the collection.
        error: What is raised if it is of format 1.
    """
    if format_ < FORMAT:
        raise error(
            f"Expected a collection of format {FORMAT}, found format {format_}, which can be searched by vectors. "
            "cde-rag reindex (store.index_texts()) moves it, without embedding; older versions cannot open it then."
        )


def postings(
    batch: int, places: Sequence[int], counts: Sequence[Counter[str]]
) -> Iterator[tuple[str, int, bytes, bytes]]:
    """Yield the rows of records that are written together, with arrays as binary COPY takes them.

    Args:
        batch: Number of the write.
        places: Places of the records.
        counts: Frequencies of each record's terms.
    """
    terms = list(chain.from_iterable(counts))
    numbers = {term: number for number, term in enumerate(sorted(set(terms)))}
    of = np.fromiter(map(numbers.__getitem__, terms), np.int64, len(terms))
    order = np.argsort(of, kind="stable")
    times = np.fromiter(chain.from_iterable(count.values() for count in counts), np.int64, len(terms))
    placed = np.repeat(np.array(places, np.int64), [len(count) for count in counts])
    place_data, time_data = _elements(placed[order], 8), _elements(times[order], 4)
    end = 0
    for term, many in zip(numbers, np.bincount(of, minlength=len(numbers)).tolist(), strict=True):
        start, end = end, end + many
        yield (
            term,
            batch,
            _ARRAY.pack(1, 0, _INT8, many, 1) + place_data[12 * start : 12 * end],
            _ARRAY.pack(1, 0, _INT4, many, 1) + time_data[8 * start : 8 * end],
        )


def _elements(values: Int64[np.ndarray, " values"], size: int) -> bytes:
    """Return integers as an array's elements on the wire, each after its size in bytes."""
    found = np.empty(len(values), [("size", ">i4"), ("value", f">i{size}")])
    found["size"], found["value"] = size, values
    return found.tobytes()

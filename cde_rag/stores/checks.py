"""Validation of arguments shared by all stores, and checksums of stored data."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, cast

import numpy as np

from cde_rag._validation import check_positive, utf8
from cde_rag.errors import CorpusError
from cde_rag.records import Record, Row, encode

MOST_ROWS: Final = 2**31 - 1  # that one call reads or returns
_UNIT: Final = 1e-3  # how far a norm may be from 1


def check_records(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Validate records; yield them with their metadata in JSON.

    Raises:
        CorpusError: A record is invalid: an empty or repeated id, a lone surrogate, metadata that is not JSON.
    """
    seen: set[str] = set()
    for record in records:
        of = f"Record {record.id!a:.80}"
        for name, value in (("id", record.id), ("title", record.title), ("text", record.text)):
            if not isinstance(cast(object, value), str):
                raise CorpusError(f"{of}: expected a {name} of type str, found {type(value).__name__}.")
        if not record.id or record.id in seen:
            raise CorpusError(f"{of}: expected ids that are not empty and not twice in one call.")
        seen.add(record.id)
        utf8(f"{record.id}{record.title}{record.text}", where=of)
        yield record, encode(record.metadata, f"{of}: its metadata")


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a collection as JSON has them, which every engine can write.

    Raises:
        CorpusError: They are no JSON object.
    """
    return json.loads(encode(settings, "The store's settings"))


def check_unit(vectors: np.ndarray, rows: int, dim: int) -> None:
    """Refuse arrays that are not `rows` unit vectors of a store.

    Raises:
        ValueError: Another shape or dtype than `(rows, dim)` float32, or a norm that is not 1 (as NaN's is not).
    """
    if vectors.dtype != np.float32 or vectors.shape != (rows, dim):
        found = f"{vectors.dtype} {vectors.shape}"
        raise ValueError(
            f"Expected float32 vectors of shape {(rows, dim)}, found {found}. Were they made by this model?"
        )
    norms = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= _UNIT))
    if len(wrong):
        raise ValueError(f"Expected vectors of norm 1, found norm {norms[wrong[0]]} in row {wrong[0]}. Normalise them.")


def check_once(rows: Sequence[Row]) -> None:
    """Refuse rows of one id in one call of `add_to_generation`.

    Raises:
        CorpusError: An id comes twice.
    """
    if len({row.record.id for row in rows}) != len(rows):
        raise CorpusError("Expected each id once in one call of add_to_generation, found one twice.")


def check_rows(number: int, what: str) -> int:
    """Validate a number of rows to read, and limit it to `MOST_ROWS`, the maximum of the engines.

    Args:
        number: Argument of the caller.
        what: Name of the argument.

    Raises:
        TypeError: `number` is no int.
        ValueError: `number` is below 1.
    """
    return min(check_positive(number, what), MOST_ROWS)


def check_k(k: int) -> int:
    """Validate a number of hits, and limit it, like `check_rows`."""
    return check_rows(k, "k")


def sample_places(last: int, count: int, seed: int) -> list[int]:
    """Draw random positions, ascending, after each of which one row is read.

    Args:
        last: The last position of a row.
        count: Maximum number of positions.
        seed: Random seed of the draw.
    """
    return sorted(Random(seed).sample(range(last), min(count, last)))


def encodable_ids(ids: Iterable[str]) -> list[str]:
    """Return the ids that UTF-8 can encode, once each; no store has others."""
    return [id_ for id_ in dict.fromkeys(ids) if id_.encode("utf-8", "ignore").decode() == id_]


def checksum_of(*parts: str | bytes | int) -> bytes:
    """Compute the sha256 over parts, so that moving a byte from one part to the next changes it."""
    pieces = list[bytes]()
    for part in parts:
        data = b"%d" % part if isinstance(part, int) else part
        data = data.encode(errors="surrogatepass") if isinstance(data, str) else data  # a damaged store may have any
        pieces += b"%d:" % len(data), data
    return hashlib.sha256(b"".join(pieces)).digest()

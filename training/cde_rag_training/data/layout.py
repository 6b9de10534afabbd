"""Layout of a prepared folder's arrays: types, shapes and references."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cde_rag_training.data.array_folder import PreparedError

NO_PREFIX = -2  # in place of a prefix's text row: none at all; -1: the model's own
VIEW_KINDS = ("own", "nameless", "keywords", "sentence")


class Layout(NamedTuple):
    """Layout of one array on disk.

    Attributes:
        dtypes: Allowed types.
        axes: A word is the same length in all arrays, `<word>+1` one more; a number is that length.
        none: The lowest number of a text row, -1 where there may be none; None: these are no text rows.
    """

    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    none: int | None = None


LAYOUT = {
    "tokens": Layout(("uint16", "uint32"), ("tokens",)),
    "token_starts": Layout(("int64",), ("texts+1",)),
    "queries": Layout(("int64",), ("pairs",), 0),
    "documents": Layout(("int64",), ("pairs",), 0),
    "titles": Layout(("int64",), ("pairs",), -1),
    "hard_negatives": Layout(("int64",), ("pairs", "negatives"), -1),
    "sources": Layout(("int64",), ("pairs",)),
    "domains": Layout(("int64",), ("pairs",)),
    "parents": Layout(("int64",), ("pairs",)),
    "views": Layout(("int64",), ("views", "4")),
    "query_vectors": Layout(("float16",), ("pairs", "dim")),
    "document_vectors": Layout(("float16",), ("pairs", "dim")),
    "clusters": Layout(("int64",), ("pairs", "levels")),
}
LEXICAL = {
    "lexical_query_starts": Layout(("int64",), ("pairs+1",)),
    "lexical_query_words": Layout(("int64",), ("query_words",)),
    "lexical_document_starts": Layout(("int64",), ("pairs+1",)),
    "lexical_document_words": Layout(("int64",), ("document_words",)),
    "lexical_document_weights": Layout(("float32",), ("document_words",)),
}

PASSAGES = {"passages": Layout(("int64",), ("passages", "3"))}  # text row, domain, parent or -1
FILTER = {  # of a surrogate of the filter's own
    "filter_query_vectors": Layout(("float16",), ("pairs", "filter_dim")),
    "filter_document_vectors": Layout(("float16",), ("pairs", "filter_dim")),
}
NEGATIVES = {  # hard negatives, each text once, by the filter's surrogate
    "negative_rows": Layout(("int64",), ("negative_texts",)),
    "negative_vectors": Layout(("float16",), ("negative_texts", "filter_dim")),
}
LEXICAL_NEGATIVES = {
    "lexical_negative_starts": Layout(("int64",), ("negative_texts+1",)),
    "lexical_negative_words": Layout(("int64",), ("negative_words",)),
    "lexical_negative_weights": Layout(("float32",), ("negative_words",)),
}
PREFIXES = {"prefixes": Layout(("int64",), ("pairs", "2"))}  # text rows of task prefixes: query, document
GRADES = {"grades": Layout(("float32",), ("pairs",))}  # relevance of each pair's document, 0 … 1
GROUPS = (
    LEXICAL,
    PASSAGES,
    FILTER,
    NEGATIVES,
    LEXICAL_NEGATIVES,
    PREFIXES,
    GRADES,
)  # each complete, or not there at all
ALL = {name: each for group in (LAYOUT, *GROUPS) for name, each in group.items()}


def check_layout(arrays: Mapping[str, np.ndarray], *, where: str) -> None:
    """Check types, shapes and references of a prepared folder's arrays.

    Args:
        arrays: By name; those of each of `GROUPS` all or none.
        where: Name of the arrays in error messages.

    Raises:
        PreparedError: One is missing or unknown, of another type or shape, or refers to what is not there.
    """
    layout = dict(LAYOUT)
    for more in GROUPS:
        layout |= more if arrays.keys() & more.keys() else {}
    if arrays.keys() != layout.keys():
        raise _wrong(where, f"the arrays {sorted(layout)}", f"{sorted(arrays)}")
    lengths: dict[str, int] = {}
    for name, (dtypes, axes, _) in layout.items():
        array = arrays[name]
        if array.dtype.name not in dtypes or array.ndim != len(axes):
            expected = f"{' or '.join(dtypes)} of {len(axes)} axes"
            raise _wrong(f"{where}: {name}", expected, f"{array.dtype.name} of {array.ndim}")
        for axis, found in zip(axes, array.shape, strict=True):
            word, _, more = axis.partition("+")
            expected = int(word) if word.isdigit() else lengths.setdefault(word, found - int(more or 0))
            if found != expected + int(more or 0):
                raise _wrong(f"{where}: {name}", f"{expected} {word}", f"{found - int(more or 0)}")
    dims = {lengths[axis] for axis in ("dim", "filter_dim") if axis in lengths}
    if "filter_query_vectors" not in arrays and len(dims) > 1:
        raise _wrong(
            f"{where}: negative_vectors", f"vectors of {lengths['dim']} dimensions", str(lengths["filter_dim"])
        )
    _check_rows(arrays, lengths, where)


def _check_rows(arrays: Mapping[str, np.ndarray], lengths: Mapping[str, int], where: str) -> None:
    """Check that row numbers refer to existing rows."""
    starts, views = arrays["token_starts"], arrays["views"]
    if starts[0] != 0 or starts[-1] != lengths["tokens"] or (np.diff(starts) < 1).any():
        raise _wrong(f"{where}: token_starts", f"ascending from 0 to {lengths['tokens']}", "other numbers")
    for name, (_, _, lowest) in LAYOUT.items():
        if lowest is not None:
            _check_range(f"{where}: {name}", arrays[name], lowest, lengths["texts"])
    _check_range(f"{where}: views", views[:, 2:], 0, lengths["texts"])
    _check_range(f"{where}: views", views[:, 1], 0, len(VIEW_KINDS))
    if "passages" in arrays:
        _check_range(f"{where}: passages", arrays["passages"][:, 0], 0, lengths["texts"])
    if "prefixes" in arrays:
        _check_range(f"{where}: prefixes", arrays["prefixes"], NO_PREFIX, lengths["texts"])
    if "grades" in arrays and not ((arrays["grades"] >= 0) & (arrays["grades"] <= 1)).all():
        raise _wrong(f"{where}: grades", "numbers in 0 … 1", "others")
    if "negative_rows" in arrays:
        held = arrays["hard_negatives"]
        if not np.array_equal(arrays["negative_rows"], np.unique(held[held >= 0])):
            raise _wrong(f"{where}: negative_rows", "each text row of the hard negatives once, ascending", "others")
    own = views[views[:, 1] == VIEW_KINDS.index("own"), 0]
    if (np.diff(views[:, 0]) < 0).any() or not np.array_equal(own, np.arange(lengths["pairs"])):
        raise _wrong(f"{where}: views", "sorted by pair, each with one view of its own", "others")


def _check_range(where: str, numbers: np.ndarray, lowest: int, end: int) -> None:
    if numbers.size and not (lowest <= numbers.min() and numbers.max() < end):
        raise _wrong(where, f"numbers from {lowest} to {end - 1}", f"some from {numbers.min()} to {numbers.max()}")


def _wrong(where: str, expected: str, found: str) -> PreparedError:
    return PreparedError(f"{where}: expected {expected}, found {found}. Make the folder again with prepare.")

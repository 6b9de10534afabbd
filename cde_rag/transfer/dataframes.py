"""Tables in and out: pandas, and Hugging Face's datasets. Parquet files are read by `cde_rag.readers.RecordReader`."""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from cde_rag._validation import check_texts
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import CorpusError, require
from cde_rag.readers import Fields
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.tables import arrow_rows, check_columns, python_rows
from cde_rag.readers.tables import records as parsed
from cde_rag.records import Hit, Record, embedded_text

EXTRA = "interop"
ROWS = 1024  # of a DataFrame that are converted at a time


def records(table: Any, *, fields: Fields | None = None) -> Iterator[Record]:
    """Yield the rows of a table as records, for `Collection.add_records`; streams if the table does.

    Args:
        table: A `pandas.DataFrame` (its index is no column), or a `datasets.Dataset` or `IterableDataset`.
        fields: Mapping of columns; by default `id` or `_id` (without such a column the id is a digest of the text),
            `text` and `title`. All others are metadata: missing values (None, NaN, NaT, NA) are left out, dates, times
            and durations become ISO strings, NumPy's numbers plain ones. Objects in one column get each other's fields,
            as null.

    Raises:
        CorpusError: Two columns of one name; while iterating, a row that is no record, or a value that JSON cannot
            hold, with the row's number, from 1.
        MissingExtraError: pyarrow is not installed.
        TypeError: `table` is of another type.

    Examples:
        >>> import pandas
        >>> birds = pandas.DataFrame({"text": ["Swifts sleep on the wing."], "id": [7], "year": [2016]})
        >>> list(records(birds))
        [Record(id='7', text='Swifts sleep on the wing.', title='', metadata={'year': 2016})]
    """
    for where, found in parsed(_rows(table, fields or Fields()), fields or Fields()):
        if isinstance(found, UnusableError):
            raise CorpusError(f"{where}: {found}. Mend it, or leave it out.")
        yield found


def rows(found: Iterable[Record | Hit]) -> Iterator[dict[str, Any]]:
    """Yield records or hits as flat rows: id, score (of hits), title, text, and one field per metadata key; streams.

    Raises:
        CorpusError: Metadata with a field of one of the other names.
    """
    for each in found:
        row: dict[str, Any] = {"id": each.id}
        if isinstance(each, Hit):
            row["score"] = each.score
        row |= {"title": each.title, "text": each.text}
        if both := sorted(row.keys() & each.metadata.keys()):
            raise CorpusError(f"The metadata of {each.id!r} has {', '.join(both)}, which is a column of its own.")
        yield row | dict(each.metadata)


def to_frame(found: Iterable[Record | Hit]) -> Any:
    """Convert to a `pandas.DataFrame` of `rows`, such as `collection.search(…)` or `collection.scroll()`.

    Its columns have Arrow's types: whole numbers stay whole numbers, also in columns with missing values.

    Raises:
        CorpusError: As `rows`; or a field that is a string here and a number there.
        MissingExtraError: pandas or pyarrow is not installed.
    """
    pandas: Any = require("pandas", EXTRA)
    return _arrow(found).to_pandas(types_mapper=pandas.ArrowDtype)


def to_dataset(found: Iterable[Record | Hit]) -> Any:
    """Convert to a `datasets.Dataset` of `rows`. Raises like `to_frame`."""
    return require("datasets", EXTRA).Dataset(_arrow(found))


def embed(dataset: Any, embedder: Embedder, *, column: str = "embedding", fields: Fields | None = None) -> Any:
    """Add a column with the embedding of each row's title and text to a dataset, float32 of a fixed length.

    Each row is embedded without siblings. For parents, and for runs that can be interrupted, use `Collection`.

    Args:
        dataset: A `datasets.Dataset`, or an `IterableDataset`, which is embedded as it is read.
        embedder: Embeds documents.
        column: Name of the new column.
        fields: Which columns are title and text; `title`, which may be missing, and `text` by default.

    Raises:
        CorpusError: A text is blank or no valid Unicode, with its row, from 0; there is no such column, or `column` is
            there already.
        MissingExtraError: datasets is not installed.
        TypeError: `dataset` is of another type.
    """
    datasets: Any = require("datasets", EXTRA)
    if not isinstance(dataset, datasets.Dataset | datasets.IterableDataset):
        raise TypeError(f"Expected a datasets.Dataset or an IterableDataset, found {type(dataset).__name__}.")
    named = fields or Fields()

    def check(names: Iterable[str]) -> None:
        if named.text not in names or column in names:
            raise CorpusError(f"Expected a column {named.text!r} and none named {column!r}, found {', '.join(names)}.")

    if dataset.column_names is not None:  # else it is a stream that knows them when it is read
        check(dataset.column_names)

    def add(batch: Mapping[str, Sequence[Any]], indices: Sequence[int]) -> dict[str, Any]:
        check(batch)
        titles = batch[named.title] if named.title in batch else [None] * len(indices)
        found = zip(titles, batch[named.text], strict=True)
        texts = [embedded_text(Record("", text, title or "")) for title, text in found]
        check_texts(texts, first=indices[0])
        return {column: embedder.embed_documents(texts)}

    options: dict[str, Any] = {"batched": True, "batch_size": ROWS, "with_indices": True}
    if dataset.features is not None:
        vector = datasets.Sequence(datasets.Value("float32"), length=embedder.dim)
        options["features"] = datasets.Features({**dataset.features, column: vector})
    if isinstance(dataset, datasets.Dataset):
        if not len(dataset):  # `map` would leave it without the column
            return datasets.Dataset.from_dict({key: [] for key in options["features"]}, features=options["features"])
        # which would pickle the embedder to name its cache
        options |= {"new_fingerprint": secrets.token_hex(8), "load_from_cache_file": False}
    return dataset.map(add, **options)


def _rows(table: Any, fields: Fields) -> Any:
    package = type(table).__module__.partition(".")[0]
    if package == "pandas" and isinstance(table, require("pandas", EXTRA).DataFrame):
        return arrow_rows(_batches(table), "DataFrame", fields)
    if package == "datasets":
        datasets: Any = require("datasets", EXTRA)
        if isinstance(table, datasets.Dataset | datasets.IterableDataset):
            return python_rows(table.with_format(None), type(table).__name__, fields)
    raise TypeError(
        f"Expected a pandas.DataFrame, a datasets.Dataset or an IterableDataset, found {type(table).__name__}. "
        "Of several splits choose one."
    )


def _batches(frame: Any) -> Iterator[Any]:
    pyarrow: Any = require("pyarrow", EXTRA)
    names: list[object] = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise CorpusError(f"DataFrame: expected columns with names, found {names}. Name them.")
    check_columns(cast(list[str], names), "DataFrame")
    try:
        for start in range(0, len(frame), ROWS):
            yield pyarrow.RecordBatch.from_pandas(frame.iloc[start : start + ROWS], preserve_index=False)
    except (ValueError, TypeError, NotImplementedError, OverflowError) as error:  # pyarrow's own errors are among these
        raise CorpusError(f"DataFrame: expected values of one type in a column, found others: {error}") from error


def _arrow(found: Iterable[Record | Hit]) -> Any:
    pyarrow: Any = require("pyarrow", EXTRA)
    table = list(rows(found))
    names = dict.fromkeys(name for row in table for name in row)
    try:
        return pyarrow.table({name: [row.get(name) for row in table] for name in names})
    except (ValueError, TypeError, OverflowError) as error:
        raise CorpusError(f"Expected values of one type in a field of the metadata, found others: {error}") from error

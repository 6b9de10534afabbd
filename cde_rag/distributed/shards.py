"""Shards: Parquet files of embedded records, each written by one worker.

The columns are those of an exported collection (`id`, `title`, `text`, `metadata`, `digest`, `vector`) and
`truncated`. A shard is named by its content, the fingerprint of the vector space and the digests of its rows in order:
a worker that is given the same records again finds the shard and embeds nothing. Parquet's page checksums cover every
page; a shard that is truncated or changed counts as missing, and is made again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float32

from cde_rag._files import replacing
from cde_rag.context.file_format import canonical_json
from cde_rag.errors import StoreError, require
from cde_rag.records import Row
from cde_rag.stores.checks import check_unit
from cde_rag.transfer.parquet_columns import COLUMNS, EXTRA, columns_of, row_of, table

SUFFIX: Final = ".parquet"


@dataclass(frozen=True)
class Shard:
    """Rows of one shard with their vectors.

    Attributes:
        rows: Records with their digests.
        vectors: Unit norm; row i belongs to `rows[i]`.
        truncated: True for texts that exceeded the model's token limit.
    """

    rows: list[Row]
    vectors: Float32[np.ndarray, "rows dim"]
    truncated: Bool[np.ndarray, " rows"]


def shard_name(fingerprint: str, rows: Sequence[Row]) -> str:
    """Return the name of the shard of some rows: a digest of the vector space, and of ids, metadata and digests."""
    name = hashlib.sha256(fingerprint.encode())
    for row in rows:
        for part in (row.record.id, row.digest, canonical_json(row.record.metadata)):
            data = part.encode()
            name.update(len(data).to_bytes(8, "big") + data)
    return f"{name.hexdigest()[:40]}{SUFFIX}"


def write_shard(folder: Path, name: str, shard: Shard) -> None:
    """Write a shard; killed at any instant there is none under its name.

    Raises:
        MissingExtraError: pyarrow is not installed.
        StoreError: It cannot be written.
    """
    arrow, parquet = require("pyarrow", EXTRA), require("pyarrow.parquet", EXTRA)
    columns = table(columns_of(shard.rows), shard.vectors).append_column("truncated", arrow.array(shard.truncated))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as temporary:
            parquet.write_table(columns, temporary, write_page_checksum=True, write_statistics=False)
    except OSError as error:
        raise StoreError(
            f"{folder / name}: not written ({error}). Choose a folder with space for the shards."
        ) from error


def read_shard(folder: Path, name: str, fingerprint: str) -> Shard | None:
    """Read a shard; None if there is none, or if it is damaged.

    Args:
        folder: Folder of the shards.
        name: Name of the file.
        fingerprint: Fingerprint of its vector space.
    """
    parquet, path = require("pyarrow.parquet", EXTRA), folder / name
    if not path.exists():
        return None
    try:
        columns: Any = parquet.read_table(path, page_checksum_verification=True)
        rows = [row_of(*values) for values in zip(*(columns.column(name).to_pylist() for name in COLUMNS), strict=True)]
        vectors = columns.column("vector").combine_chunks()
        found = np.asarray(vectors.flatten().to_numpy(), dtype=np.float32).reshape(len(rows), -1)
        check_unit(found, len(rows), found.shape[1])
        shard = Shard(rows, found, columns.column("truncated").to_numpy().astype(np.bool_))
    except (OSError, ValueError, TypeError, LookupError):  # as pyarrow's errors and our CorpusError are
        return None
    return shard if shard_name(fingerprint, rows) == name else None

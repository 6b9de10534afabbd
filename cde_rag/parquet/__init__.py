"""A whole collection as one Parquet file, which goes into a store of any kind without a model.

The columns are `id`, `title`, `text`, `metadata` (JSON), `digest` (over what was embedded, siblings too) and `vector`
(float32, as long as the collection's), one row for each record, in order of insertion. The footer's key `cde_rag` holds
one JSON object: settings, fingerprint, how many documents there are, and the Context's bytes in base64. Its `integrity`
is the sha256 of the whole file with 64 zeros in that place, so that no bit changes unnoticed.
"""

from cde_rag.parquet.transfer import Transfer, export_collection, import_collection

__all__ = ["Transfer", "export_collection", "import_collection"]

"""Input files to records: JSONL, CSV, Parquet, and folders of text and Markdown."""

from cde_rag.reading.reader import RecordReader
from cde_rag.reading.records import BadRecord, Fields

__all__ = ["BadRecord", "Fields", "RecordReader"]

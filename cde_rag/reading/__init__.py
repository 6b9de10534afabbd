"""Input files to records: JSONL, CSV, Parquet, and folders of text and Markdown."""

from cde_rag.reading.passages import FOLDER_KEY, PARENT_KEY, SECTION_KEY
from cde_rag.reading.reader import RecordReader
from cde_rag.reading.records import Fields

__all__ = ["FOLDER_KEY", "PARENT_KEY", "SECTION_KEY", "Fields", "RecordReader"]

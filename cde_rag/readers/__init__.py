"""Input files to records: JSONL, CSV, Parquet, and folders of text and Markdown."""

from cde_rag.readers.columns import Fields
from cde_rag.readers.passages import FOLDER_KEY, PARENT_KEY, SECTION_KEY
from cde_rag.readers.reader import RecordReader
from cde_rag.readers.reading_rules import ReadingRules

__all__ = ["FOLDER_KEY", "PARENT_KEY", "SECTION_KEY", "Fields", "ReadingRules", "RecordReader"]

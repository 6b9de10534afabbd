"""Text and Markdown files: a long one is split into passages that know their file and their place in it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cde_rag.errors import CorpusError, require
from cde_rag.reading.records import BadRecord
from cde_rag.stores.base import Record

MARKDOWN = frozenset({".md", ".markdown"})
TEXT = frozenset({".txt", ".text", ".rst"})
PARENT_KEY = "source"  # metadata key that names a passage's file


def text_files(folder: Path) -> list[Path]:
    """All text and Markdown files below a folder, sorted by path. Hidden files and folders are passed over.

    Raises:
        CorpusError: There is none.
    """
    found = [path for path in folder.rglob("*") if path.suffix.lower() in MARKDOWN | TEXT and path.is_file()]
    files = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        suffixes = ", ".join(sorted(MARKDOWN | TEXT))
        raise CorpusError(f"{folder} holds no text: expected files that end in {suffixes}, in it or below it.")
    return sorted(files, key=lambda path: path.relative_to(folder).parts)


def passages(path: Path, source: str, *, max_characters: int) -> Iterator[Record | BadRecord]:
    """Cut one file at its headings, paragraphs and sentences.

    Args:
        path: The file, in UTF-8.
        source: What the passages call it, in the metadata `source` and in their ids `source#0`, `source#1` …
        max_characters: Longest passage.

    Returns:
        Passages in order, titled with the file's first heading, else its name. `metadata["offset"]` is where the
        passage begins in the file, in characters: `text[offset : offset + len(passage)] == passage`.
    """
    splitters = require("semantic_text_splitter", "files")
    markdown = path.suffix.lower() in MARKDOWN
    splitter: Any = (splitters.MarkdownSplitter if markdown else splitters.TextSplitter)(max_characters)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CorpusError(f"{path}: not readable: {error.strerror}") from error
    except UnicodeDecodeError as error:
        yield BadRecord(str(path), f"not UTF-8: byte {error.object[error.start]:#04x} at byte {error.start}")
        return
    if not text.strip():
        yield BadRecord(str(path), "the file holds no text")
        return
    title = (_heading(text) if markdown else None) or path.stem
    for number, (offset, passage) in enumerate(splitter.chunk_indices(text)):
        yield Record(f"{source}#{number}", passage, title, {PARENT_KEY: source, "offset": offset})


def _heading(markdown: str) -> str | None:
    """The first heading in front of any code block, where `#` means something else."""
    before_code = re.split(r"^(?:```|~~~)", markdown, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", before_code, flags=re.MULTILINE)
    return found[1] if found else None

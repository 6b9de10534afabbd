"""PDF, HTML, Word and PowerPoint files as Markdown with their headings, by markitdown (extra `documents`)."""

import importlib.util
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from cde_rag.errors import require
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.headings import LONGEST

_HTML: Final = frozenset({".html", ".htm"})
_CLASSES: Final = re.compile(r"^[- ]*(\w+ threw \w+ with message: )?")  # of markitdown, in front of the reason
DOCUMENTS: Final = _HTML | {".pdf", ".docx", ".pptx"}


def readable() -> bool:
    """Return True if the extra `documents` is installed."""
    return importlib.util.find_spec("markitdown") is not None


class Converted(NamedTuple):
    """A file as Markdown, and its own title: `<title>` of HTML, or ""."""

    markdown: str
    title: str


def convert(path: Path) -> Converted:
    """Convert a file to Markdown. Nothing is fetched from elsewhere, and no plugin is loaded.

    Raises:
        MissingExtraError: markitdown is not installed.
        UnusableError: The file is damaged, encrypted, or of another format than its suffix says.
    """
    converter = _converter()
    try:
        converted = converter.convert_local(path)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UnusableError(f"not readable as {path.suffix}: {_CLASSES.sub('', reason):.200}") from error
    title = " ".join((converted.title or "").split()) if path.suffix.lower() in _HTML else ""
    return Converted(converted.markdown, title[:LONGEST])


@lru_cache(1)
def _converter() -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # markitdown imports ONNX Runtime, which reports its use
    markitdown, formats = require("markitdown", "documents"), require("markitdown.converters", "documents")
    converter = markitdown.MarkItDown(enable_builtins=False, enable_plugins=False)
    for each in (formats.PdfConverter, formats.HtmlConverter, formats.DocxConverter, formats.PptxConverter):
        converter.register_converter(each())  # and no other, which would read a damaged file as plain text
    return converter

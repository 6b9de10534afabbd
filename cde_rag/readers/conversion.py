"""Conversion of documents to Markdown, in a process of its own, within bounds of size, time and memory.

A document is a stranger's program for its converter: 18 kB of DOCX can take gigabytes. So the process checks what an
Office file declares before any of it is unpacked, has a limit of memory, and is ended when a document takes too long.
It reads requests and writes answers as lines of JSON.
"""

import io
import json
import os
import re
import signal
import sys
import xml.parsers.expat
import zipfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from cde_rag.errors import require
from cde_rag.readers.columns import UnusableError
from cde_rag.readers.decoding import decoded_html
from cde_rag.readers.printed_pages import has_tables, paragraphs_of

HTML: Final = frozenset({".html", ".htm"})
OFFICE: Final = frozenset({".docx", ".pptx"})  # ZIP archives of XML (ECMA-376)
UNPACKED: Final = 2**30  # bytes that the parts of an Office file may have in all
RATIO: Final = 100  # of an XML part's size to its packed size, as in Apache POI's ZipSecureFile
CHECKED: Final = 2**20  # bytes of an XML part; the ratio of a smaller one does not matter
CHARACTERS: Final = 32 * 2**20  # of the Markdown
_KEPT: Final = 4  # a process that kept one part in so many of a document's memory is replaced
_XML: Final = (".xml", ".rels")
_MIB: Final = 2**20


def serve(memory: int) -> None:
    """Convert the files that standard input names, one JSON array of path and `by_page` a line, until it ends.

    Args:
        memory: Bytes that a document may take.

    Each answer is a JSON object: `markdown` and `title`, or `refused` with the reason; `last` is true if the process
    ends after it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # libraries may print
    _converters()
    before = limit_memory(memory)
    for line in sys.stdin:
        path, by_page = json.loads(line)
        answer = _answer(Path(path), memory, by_page=by_page)
        answer["last"] |= taken() - before > memory // _KEPT
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer["last"]:
            return


def _answer(path: Path, memory: int, *, by_page: bool) -> dict[str, Any]:
    try:
        markdown, title = converted(path, by_page=by_page)
        return {"markdown": markdown, "title": title, "last": False}
    except UnusableError as error:
        return {"refused": str(error), "last": False}
    except MemoryError:
        found = f"it needs more than {memory // _MIB:,} MiB of memory; split it, or convert it to text by other means"
        return {"refused": found, "last": True}


def converted(path: Path, *, by_page: bool = False) -> tuple[str, str]:
    """Return a document's Markdown, and its title: `<title>` of HTML, the metadata's of PDF, or "".

    Nothing is fetched from elsewhere, no plugin is loaded.

    Args:
        path: The document.
        by_page: Form feeds stand between the pages of a PDF, also where its converter leaves them out, and its lines
            are joined to paragraphs, as by `printed_pages`.

    Raises:
        MemoryError: It needs more memory than there is.
        UnusableError: The file is damaged, encrypted, too large once unpacked, or of another format than its suffix.
    """
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            if suffix in OFFICE:
                _check_archive(file)
            stream: BinaryIO = io.BytesIO(decoded_html(file.read()).encode("utf-8")) if suffix in HTML else file
            converter, described = _converters()[suffix]
            found = converter.convert(stream, described)
            pages, title = [found.markdown], (found.title or "") if suffix in HTML else ""
            if by_page and suffix == ".pdf":
                pages, title = _pages_of_pdf(path, found.markdown)
    except (UnusableError, MemoryError):
        raise
    except OSError as error:
        raise UnusableError(f"not readable: {error.strerror or error}") from error
    except Exception as error:  # of five libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UnusableError(f"not readable as {path.suffix}: {reason:.200}") from error
    pages = [_clean(page) for page in pages]
    markdown = paragraphs_of(pages) if by_page and suffix == ".pdf" else "\f".join(pages)
    if len(markdown) > CHARACTERS:
        raise UnusableError(
            f"expected at most {CHARACTERS:,} characters of text in a document, found {len(markdown):,}; split it"
        )
    return markdown, title


def _clean(markdown: str) -> str:
    """Return Markdown without spaces at ends of lines and with single blank lines, as markitdown's own entry does."""
    lines = "\n".join(line.rstrip() for line in re.split(r"\r?\n", markdown))
    return re.sub(r"\n{3,}", "\n\n", lines)


def _pages_of_pdf(path: Path, markdown: str) -> tuple[list[str], str]:
    """Return the Markdown of each page of a PDF, and the title in its metadata or "".

    Where the converter sees a table on any page, it joins the pages; then each page is converted for itself, and the
    table is kept if it is one.

    Args:
        path: The PDF.
        markdown: Its Markdown, with form feeds after pages, unless it has tables.
    """
    pdfium: Any = require("pypdfium2", "documents")
    with pdfium.PdfDocument(path) as document:
        title: str = document.get_metadata_value("Title")
        if "\f" in markdown:
            return markdown.removesuffix("\f").split("\f"), title
        converter, described = _converters()[".pdf"]
        pages: list[str] = []
        for number in range(len(document)):
            with pdfium.PdfDocument.new() as one:
                one.import_pages(document, [number])
                stream = io.BytesIO()
                one.save(stream)
            stream.seek(0)
            page: str = converter.convert(stream, described).markdown
            if not page.endswith("\f"):
                stream.seek(0)
                plain: str = require("pdfminer.high_level", "documents").extract_text(stream)
                page = page if has_tables(page, plain) else plain
            pages.append(page.rstrip("\f"))
        return pages, title


@lru_cache(1)
def _converters() -> dict[str, tuple[Any, Any]]:
    """Return the converter of each suffix, with the description of its files."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # markitdown imports ONNX Runtime, which reports its use
    formats, described = require("markitdown.converters", "documents"), require("markitdown", "documents").StreamInfo
    html = {suffix: (formats.HtmlConverter(), described(extension=suffix, charset="utf-8")) for suffix in HTML}
    kinds = {".pdf": formats.PdfConverter, ".docx": formats.DocxConverter, ".pptx": formats.PptxConverter}
    return html | {suffix: (kind(), described(extension=suffix)) for suffix, kind in kinds.items()}


def _check_archive(file: BinaryIO) -> None:
    """Refuse an Office file that is too large once unpacked, or whose XML declares entities; leaves it at its begin.

    Python's zipfile unpacks no more of a part than the archive declares for it.
    """
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        if (total := sum(part.file_size for part in parts)) > UNPACKED:
            raise UnusableError(
                f"expected at most {UNPACKED // _MIB:,} MiB once unpacked, found {total // _MIB:,} MiB; split it, or "
                "leave its pictures and films out"
            )
        for part in parts:
            if not part.filename.lower().endswith(_XML):
                continue
            if part.file_size > max(CHECKED, RATIO * part.compress_size):
                times = part.file_size / max(1, part.compress_size)
                raise UnusableError(
                    f"{part.filename!r:.80} unpacks to {times:,.0f} times its size, {part.file_size / _MIB:,.0f} MiB, "
                    f"as in archives that are made to fill a memory; at most {RATIO} times is read. If you trust the "
                    "file, convert it to text by other means"
                )
            _check_entities(archive, part)
    file.seek(0)


def _check_entities(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """Refuse XML with a document type, which may define entities without end; Office files have none (ECMA-376, 2)."""
    parser = xml.parsers.expat.ParserCreate()
    begun: list[str] = []

    def refuse(*_: object) -> None:
        raise UnusableError(f"{part.filename!r:.80} declares a document type, which Office files may not; save it anew")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, _: begun.append(name)
    with archive.open(part) as file, suppress(xml.parsers.expat.ExpatError):  # which the converter reports
        while not begun and (block := file.read(2**12)):
            parser.Parse(block)


def limit_memory(further: int) -> int:
    """Limit the addresses that the process may take to so many bytes more; Linux alone has such limits.

    Returns:
        The bytes that it has taken by now; 0 where there is no limit.
    """
    before = taken()
    with suppress(ImportError, OSError, ValueError):  # no such limits, or a lower one that stays
        import resource

        if before:
            resource.setrlimit(resource.RLIMIT_AS, (before + further, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return before


def taken() -> int:
    """Return the size of the process's addresses in bytes, which `RLIMIT_AS` limits; 0 where it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")

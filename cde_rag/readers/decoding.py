"""Encodings of files: a byte order mark names one, HTML may declare one, and all else is UTF-8, or as a user says.

HTML that declares none and is not UTF-8 is in windows-1252, as for browsers, unless it looks like another encoding.
Other texts are read so where a guess is wanted, and are named then.
"""

import codecs
import re
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, Final

from cde_rag._files import user_path
from cde_rag.errors import CorpusError
from cde_rag.readers.columns import UnusableError

_WIDE: Final = (  # marks of encodings with units of several bytes; that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS: Final = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
_MOST_CONTROLS: Final = 0.1  # share of a text's bytes; UTF-16 of Latin or Cyrillic letters has about a half
_BLOCK: Final = 2**16  # bytes
_DECLARED: Final = re.compile(
    rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)|<meta[^>]*?[\s"';]charset\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE,
)
_LOOKED_AT: Final = 4096  # bytes of a page; the standard asks for the declaration in the first 1024
_LEADING: Final = bytes(range(0xC2, 0xF5))  # first bytes of letters beyond ASCII in UTF-8
_LETTERS: Final = 4  # other encodings' are valid UTF-8 by chance with less than one in a thousand
_OF_THE_WEB: Final = {  # what browsers read under a name (WHATWG, Encoding Standard, § 4.2), where Python reads less
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "tis-620": "cp874",
    "utf-16": "utf-8",  # a page whose declaration can be read byte by byte is not in UTF-16
    "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
}
_NOT_WESTERN: Final = re.compile(  # controls, bytes without a character in windows-1252, and words of other scripts
    rb"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f\x81\x8d\x8f\x90\x9d]|[\xa1-\xff]{4}"
)
_ACCENTED: Final = re.compile(rb"[\xc0-\xff]+")  # letters beyond ASCII
_ALONE: Final = re.compile(rb"(?<![A-Za-z\xc0-\xff])[\xc0-\xff]+(?![A-Za-z\xc0-\xff])")  # these without others
GUESS: Final = "windows-1252"
SAVE: Final = "save it as UTF-8, for instance with: iconv -f WINDOWS-1252 -t UTF-8"


def decoded(data: bytes) -> str:
    """Decode a text: UTF-8, or UTF-16 or UTF-32 with a byte order mark.

    Raises:
        UnusableError: The bytes are in another encoding, or no text.

    Examples:
        >>> decoded("Größe".encode("utf-16"))
        'Größe'
    """
    if (wide := _marked(data)) is not None:
        return _strict(data, wide)
    text = _strict(data, "utf-8-sig")
    if _is_noise(data):
        wide = "UTF-16LE" if data[1::2].count(0) > data[::2].count(0) else "UTF-16BE"
        remedy = SAVE.replace("WINDOWS-1252", wide) if 0 in data else SAVE
        raise UnusableError(f"more than {_MOST_CONTROLS:.0%} control characters, as in UTF-16 without a mark; {remedy}")
    return text


def decoded_html(data: bytes) -> str:
    """Decode a page of HTML: as `decoded`, but for the encoding that a page without a mark declares.

    A page that declares another encoding and is UTF-8 with `_LETTERS` letters beyond ASCII is UTF-8: servers name the
    encoding too, so that nobody notices a declaration that is wrong.

    Raises:
        UnusableError: The page is in another encoding than it declares, or declares none and is neither UTF-8 nor text
            of a western language in windows-1252.
    """
    found = _DECLARED.search(data[:_LOOKED_AT])
    if found is None and _marked(data) is None and not _is_utf8(data) and _is_western(data):
        return _strict(data, "cp1252")
    if _marked(data) is not None or found is None or _is_surely_utf8(data):
        return decoded(data)
    label = (found[1] or found[2]).decode("ascii", "replace")
    try:
        name = codecs.lookup(label).name
        "".encode(name)  # no codec of other things, such as "hex"
    except (LookupError, ValueError) as error:
        raise UnusableError(f"its declared encoding {label!r:.40} is not known; {SAVE}") from error
    name = _OF_THE_WEB.get(name, name)
    return decoded(data) if name == "utf-8" else _strict(data, name)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Encoding of texts and rows that are not UTF-8 and have no byte order mark.

    Attributes:
        encoding: Its name; None: they are refused, or guessed.
        guessed: Gets the names of the files that are read by a guess; None: nothing is guessed.
    """

    encoding: str | None = None
    guessed: list[str] | None = None

    def decoded(self, data: bytes, name: str) -> str:
        """Decode the text of a file with this name; as the function `decoded`.

        Raises:
            UnusableError: The bytes are in another encoding, or no text.
        """
        if _marked(data) is None and not (_is_utf8(data) and not _is_noise(data)):
            encoding = self._of(data, name)
            if encoding is not None:
                return _strict(data, encoding)
        return decoded(data)

    def rows(self, file: BufferedIOBase, name: str) -> BufferedIOBase:
        """Return a file of lines as UTF-8; as `as_utf8`.

        Args:
            file: Open for reading, at its begin; it is read twice.
            name: Name of the file.

        Raises:
            OSError: It cannot be read.
            UnicodeDecodeError: While the result is read: it is in another encoding.
        """
        found = self._of_rows(file, name) if self.encoding is not None or self.guessed is not None else None
        file.seek(0)
        return as_utf8(file) if found is None else BufferedReader(_Utf8(file, found), _BLOCK)

    def _of_rows(self, file: BufferedIOBase, name: str) -> str | None:
        """Return the encoding of a file of lines that is not UTF-8, from its first block that shows it."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        block = file.read(_BLOCK)
        if _marked(block) is not None:
            return None
        while block:
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return self._of(block, name)
            if _is_noise(block):
                return self.encoding
            block = file.read(_BLOCK)
        return None

    def _of(self, data: bytes, name: str) -> str | None:
        if self.encoding is not None or self.guessed is None or not _is_western(data):
            return self.encoding
        self.guessed.append(name)
        return "cp1252"


STRICT: Final = Fallback()


def read_text(path: Path) -> str:
    """Read a text file that a user hands over; as `decoded`.

    Raises:
        CorpusError: It cannot be read, or decoded.
    """
    try:
        return decoded(user_path(path).read_bytes())
    except OSError as error:
        raise CorpusError(f"{path}: not readable: {error.strerror}.") from error
    except UnusableError as reason:
        raise CorpusError(f"{path}: {reason}.") from reason


def as_utf8(file: BufferedIOBase) -> BufferedIOBase:
    """Return a file of lines as UTF-8 without a byte order mark; one in UTF-16 or UTF-32 has to have such a mark.

    Args:
        file: Open for reading, at its begin.

    Raises:
        OSError: It cannot be read.
        UnicodeDecodeError: While the result is read: the mark is another encoding's.
    """
    head = file.read(4)
    file.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
    wide = _marked(head)
    return file if wide is None else BufferedReader(_Utf8(file, wide), _BLOCK)


class _Utf8(RawIOBase):
    """A file in another encoding, read as UTF-8."""

    def __init__(self, file: BufferedIOBase, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        ended = False
        while not self._ready and not ended:
            block = self._file.read(_BLOCK)
            ended = not block
            self._ready = self._decoder.decode(block, ended).encode("utf-8")
        view = memoryview(buffer)
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _marked(data: bytes) -> str | None:
    """Return the encoding whose byte order mark begins the data; None without a mark, and for that of UTF-8."""
    return next((encoding for mark, encoding in _WIDE if data.startswith(mark)), None)


def _is_noise(data: bytes) -> bool:
    """Return True for more control characters than a text has, as in UTF-16 without a mark."""
    return len(data) - len(data.translate(None, _CONTROLS)) > _MOST_CONTROLS * len(data)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_western(data: bytes) -> bool:
    """Return True for bytes that look like windows-1252, the encoding of browsers for a page that declares none."""
    if _NOT_WESTERN.search(data) is not None:
        return False
    text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    letters = len(text) - damaged - sum(byte < 0x80 for byte in data)
    if letters >= damaged:  # it is UTF-8, damaged in some places
        return False
    return 2 * len(_ALONE.findall(data)) <= len(_ACCENTED.findall(data))


def _is_surely_utf8(data: bytes) -> bool:
    if data.startswith(codecs.BOM_UTF8):
        return True
    return _is_utf8(data) and len(data) - len(data.translate(None, _LEADING)) >= _LETTERS


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        shown = encoding.removesuffix("-sig").upper()
        raise UnusableError(f"not {shown}: byte {data[error.start]:#04x} at byte {error.start}; {SAVE}") from error

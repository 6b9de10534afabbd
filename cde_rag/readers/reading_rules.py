"""Rules by which files become passages. A collection keeps the ones that it was made with."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cde_rag.errors import StoreFormatError
from cde_rag.readers.token_splitting import TokenSplitter

READING: Final = "reading"  # key of a collection's settings
NEWEST_RULES: Final = 2
_SMALLEST: Final = 2  # times the overlap that a passage has


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRules:
    """Rules by which files become passages.

    Attributes:
        tokens: Tokens of a passage, as the collection's model counts them; None where characters are counted.
        characters: Characters of a passage; None where tokens are counted.
        overlap: Tokens that a passage repeats of the one before in its section.
        rules: 1 as in 0.2: a page's title is its first heading, of any level, or its file's name, and comments and
            front matter's kin are text. 2: the title is the page's own name (front matter, a heading of level 1,
            metadata, else the file's name in words); MDX, Quarto, notebooks, AsciiDoc and Org are read; markup without
            words is left out.
        code: True if the source code in folders is read; None: where most of a folder's texts are code.
        encoding: Encoding of texts and rows that are not UTF-8 and have no byte order mark; None: they are refused.

    Raises:
        ValueError: Both or neither of tokens and characters, a length below 1, an overlap of more than half of it, or
            an encoding that Python does not know.
    """

    tokens: int | None = None
    characters: int | None = None
    overlap: int = 0
    rules: int = NEWEST_RULES
    code: bool | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.characters is None):
            raise ValueError("A passage is measured in tokens or in characters: give one of them.")
        check_encoding(self.encoding)
        if (self.tokens or self.characters or 0) < 1:
            raise ValueError(f"A passage has at least one token or character, found {self.tokens or self.characters}.")
        if self.overlap and (self.tokens is None or not 0 < self.overlap * _SMALLEST <= self.tokens):
            raise ValueError(
                f"An overlap is counted in tokens, and at most half of a passage, found {self.overlap} with passages "
                f"of {f'{self.characters} characters' if self.tokens is None else f'{self.tokens} tokens'}."
            )

    @property
    def described(self) -> str:
        """Passages in words, such as "160 tokens"."""
        size = f"{self.characters} characters" if self.tokens is None else f"{self.tokens} tokens"
        overlap = f", {self.overlap} of them repeated" if self.overlap else ""
        encoding = "" if self.encoding is None else f", {self.encoding}"
        return f"{size}{overlap}{encoding}{'' if self.rules == NEWEST_RULES else ', titles as in 0.2'}"

    def settings(self) -> dict[str, Any]:
        """Return the rules as a collection's settings have them."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def with_changes(self, changes: Mapping[str, Any]) -> "ReadingRules":
        """Return the rules with other values of some fields; a length in tokens takes the place of one in characters.

        Args:
            changes: New values by their fields; None leaves a field as it is.

        Raises:
            ValueError: They do not go together.
        """
        changes = {name: value for name, value in changes.items() if value is not None}
        if "tokens" in changes:
            changes.setdefault("characters", None)
        elif "characters" in changes:
            changes |= {"tokens": None, "overlap": changes.get("overlap", 0)}
        return replace(self, **changes)

    def splitter(self, count_tokens: Callable[[Sequence[str]], int], window: int | None) -> TokenSplitter | None:
        """Return the splitter that counts a model's tokens; None where characters are counted.

        Args:
            count_tokens: Counts the tokens of all texts as the model reads them, as of an Embedder.
            window: Tokens that it reads of a text; None or 0 if it has no limit.
        """
        return None if self.tokens is None else TokenSplitter(count_tokens, window or None, self.tokens, self.overlap)


def check_encoding(name: str | None) -> None:
    """Refuse names of encodings that texts are not in.

    Raises:
        ValueError: Python knows none of this name.
    """
    try:
        if name is not None:
            codecs.lookup(name)
            "".encode(name)  # no codec of other things, such as "hex"
    except (LookupError, ValueError) as error:
        raise ValueError(f"Expected an encoding such as 'windows-1252' or 'utf-16-le', found {name!r:.40}.") from error


OLD: Final = ReadingRules(characters=600, rules=1, code=False)  # of collections that name no rules: those of 0.2
NEWEST: Final = ReadingRules(tokens=160)  # of new collections


def reading_of(settings: Mapping[str, Any]) -> ReadingRules:
    """Return the rules of a collection.

    Raises:
        StoreFormatError: A newer version of the library made it.
    """
    found: Mapping[str, Any] | None = settings.get(READING)
    if found is None:
        return OLD
    try:
        reading = ReadingRules(**found)
    except TypeError as error:
        raise StoreFormatError(
            f"The collection reads files by rules of a newer version: {error}. Update cde-rag."
        ) from error
    if reading.rules > NEWEST_RULES:
        raise StoreFormatError(
            f"The collection reads files by rules {reading.rules}; this version knows {NEWEST_RULES}. Update cde-rag."
        )
    return reading

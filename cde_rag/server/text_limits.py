"""Limits of the texts in requests, checked before any tokenizer reads them.

A tokenizer reads a text to its end, also where a model reads only the beginning, and others wait meanwhile.
"""

from typing import Annotated, Final, TypeAlias

from pydantic import Field

QUERY_CHARACTERS: Final = 32_000  # of a query; no model here reads as many
TEXT_CHARACTERS: Final = 200_000  # of a text to embed or to store: about 100 pages
REQUEST_TOKENS: Final = 300_000  # of all texts of a request for embeddings, as read by the model; OpenAI's bound

QueryText: TypeAlias = Annotated[str, Field(max_length=QUERY_CHARACTERS)]
"""Text that searches."""
DocumentText: TypeAlias = Annotated[str, Field(max_length=TEXT_CHARACTERS)]
"""Text to embed or to store."""


def check_length(text: str, most: int, *, where: str) -> None:
    """Refuse a text that is too long.

    Args:
        text: Any text.
        most: Maximum number of its characters.
        where: Name of the text in the message.

    Raises:
        ValueError: It is longer.
    """
    if len(text) > most:
        raise ValueError(too_long(len(text), most, where=where))


def too_long(found: int, most: int, *, where: str) -> str:
    """Return the message for a text of too many characters, without its full stop."""
    return f"{where}: expected at most {most:,} characters, found {found:,}. Shorten it, or send it in parts"

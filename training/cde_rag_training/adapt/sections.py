"""Sections of a corpus's records, cut at Markdown headings."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cde_rag.evaluation.own_questions import parent_name
from cde_rag.records import Record

_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*?)[ \t#]*")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")


@dataclass(frozen=True, slots=True)
class Section:
    """Text under one heading of a record, or a complete record.

    Attributes:
        id: The record's id, with the section's place where a record has several.
        record: The record's id.
        title: Title of the record, empty where it has none.
        heading: That stood over the text, empty where none did.
        text: Without title and heading.
        parent: What it was cut from: the record's parent, else its title, else its id. Sections of one parent never
            stand on both sides of a comparison.
    """

    id: str
    record: str
    title: str
    heading: str
    text: str
    parent: str

    @property
    def whole(self) -> str:
        """Title and text, as a collection embeds them."""
        return f"{self.title} {self.text}" if self.title else self.text


def sections(records: Iterable[Record], *, parent_key: str | None) -> Iterator[Section]:
    """Cut records at their Markdown headings; a record without headings is one section.

    Args:
        records: Records of a corpus.
        parent_key: Metadata key of the parent.
    """
    for record in records:
        parts = list(_parts(record.text))
        for place, (heading, text) in enumerate(parts):
            yield Section(
                id=record.id if len(parts) == 1 else f"{record.id}#{place}",
                record=record.id,
                title=record.title,
                heading=heading,
                text=text,
                parent=parent_name(record, parent_key),
            )


def sampled(records: Iterable[Record], *, parent_key: str | None, limit: int, seed: int) -> Iterator[Record]:
    """Yield about `limit` records in order, without splitting parents; independent of the records' order.

    Args:
        records: Read twice.
        parent_key: Metadata key of the parent.
        limit: Records that are wanted; fewer are passed as they are.
        seed: Random seed of the choice.
    """
    count = sum(1 for _ in records)
    for record in records:
        if count <= limit or place_of(parent_name(record, parent_key), seed) * count < limit:
            yield record


def place_of(parent: str, seed: int) -> float:
    """Hash a parent's name and the seed to a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{parent}".encode()).digest()[:8], "big") / 2**64


def _parts(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each section that has a text; headings in code blocks are ignored."""
    heading, lines, in_code = "", list[str](), False
    for line in markdown.splitlines():
        in_code ^= _FENCE.match(line) is not None
        found = None if in_code else _HEADING.fullmatch(line)
        if found is None:
            lines.append(line)
            continue
        if text := "\n".join(lines).strip():
            yield heading, text
        heading, lines = found[1], []
    if text := "\n".join(lines).strip():
        yield heading, text

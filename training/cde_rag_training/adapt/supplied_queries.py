"""A user's own queries for documents of a corpus: JSON lines with `query` and the document's `id` or its text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cde_rag.errors import CorpusError
from cde_rag.readers import tables
from cde_rag.readers.columns import UnusableError, kind
from cde_rag_training.adapt.corpus_pairs import Asked, usable
from cde_rag_training.adapt.sections import Section

UNKNOWN_ID = "a supplied query for an id that the corpus does not have"
UNKNOWN_TEXT = "a supplied query for a text that the corpus does not have"
UNUSABLE = "a supplied query without words, or for a text of too few"


def read_supplied(path: Path, records: Sequence[Section]) -> tuple[list[Asked], Counter[str]]:
    """Read the user's queries from JSON Lines, and match them to the corpus's documents.

    Args:
        path: JSON lines, also as `.gz`: `query`, and either `id` or `document`, which is compared without regard to
            case and white space, with the title or without.
        records: The corpus's records, one section each.

    Returns:
        The queries that name a document of the corpus, and the number of dropped queries by reason.

    Raises:
        CorpusError: No such file, or a line is not such an object; the message names file, line and reason.
    """
    by_id = {record.record: record for record in records}
    by_text = {_key(record.text): record for record in records}
    asked: list[Asked] = []
    dropped: Counter[str] = Counter()
    with tables.opened(path) as file:
        for where, parse in tables.jsonl_rows(file, str(path)):
            try:
                query, found, reason = _found(parse(), by_id, by_text)
            except UnusableError as error:
                raise CorpusError(f"{where}: {error}. A line has query, and id or document; mend it.") from error
            if found is None:
                dropped[reason] += 1
                continue
            one = Asked(found, "supplied", query, found.text, found.text)
            if usable(one):
                asked.append(one)
            else:
                dropped[UNUSABLE] += 1
    return asked, dropped


def _found(
    row: Mapping[str, Any], by_id: Mapping[str, Section], by_text: Mapping[str, Section]
) -> tuple[str, Section | None, str]:
    """Return a query, its document, and the reason if there is none."""
    query, given = row.get("query"), row.get("id", row.get("_id"))
    if not isinstance(query, str):
        raise UnusableError(f"expected a string in 'query', found {kind(query)}")
    if isinstance(given, (str, int)):
        return query, by_id.get(str(given)), UNKNOWN_ID
    if not isinstance(text := row.get("document"), str):
        raise UnusableError(f"expected a string in 'id' or 'document', found {kind(text)}")
    return query, by_text.get(_key(text)), UNKNOWN_TEXT


def _key(text: str) -> str:
    return " ".join(text.lower().split())

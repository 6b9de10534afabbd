"""Reads that both servers need: hits with matching words, the passages around one, and the rankings that there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from cde_rag.collection.collection import Collection
from cde_rag.errors import StoreError, UnknownFieldWarning, adapter_warns
from cde_rag.readers import FOLDER_KEY, PARENT_KEY, SECTION_KEY
from cde_rag.readers.passages import document_of, place_in_file
from cde_rag.readers.row_origin import public_origin
from cde_rag.records import Hit, Record, parent_of
from cde_rag.search.grouping import Group, ParentHit
from cde_rag.search.query_language import foreign_query
from cde_rag.search.query_words import QueryWords
from cde_rag.search.searcher import fields_of, unknown_fields

Result = TypeVar("Result")
MOST_FIELDS: Final = 8  # of a filter that finds nothing, which are looked for in the records


def public_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the folder that `cde-rag index` read, which is a path of the server's machine."""
    return {key: value for key, value in public_origin(metadata).items() if key != FOLDER_KEY}


def as_json(found: Hit | Record | Group | ParentHit) -> dict[str, Any]:
    """Return a result as a JSON object, with its metadata and that of the hits in it as `public_metadata` has them."""
    fields = asdict(found)
    for each in (fields, *fields.get("hits", ()), *fields.get("passages", ())):
        if "metadata" in each:
            each["metadata"] = public_metadata(each["metadata"])
    return fields


def with_matches(hit: Hit, query: str) -> dict[str, Any]:
    """Return a hit as a JSON object for people: `as_json` with its section, its place in the file, and `matches`.

    Args:
        hit: Result of a search.
        query: The query, whose words `matches` has as they stand in title and text; see `QueryWords`.
    """
    section = hit.metadata.get(SECTION_KEY)
    return {
        **as_json(hit),
        "section": section if isinstance(section, str) else "",
        "place": place_in_file(hit.metadata),
        "matches": sorted(QueryWords(query).words_in(f"{hit.title} {hit.text}")),
    }


def with_warnings(
    collection: Collection, search: Callable[[], Sequence[Result]], where: Mapping[str, Any] | None, query: str
) -> tuple[Sequence[Result], list[str]]:
    """Return the results of a search, and if there are none, sentences on the reasons.

    The reasons are fields that no record has, and a query in another language than the model reads.

    Args:
        collection: Collection that is searched.
        search: Searches it.
        where: Filter of the search; its fields are looked for if it finds nothing.
        query: The query.
    """
    with adapter_warns(UnknownFieldWarning):
        results = search()
    if results:
        return results, []
    fields = list(dict.fromkeys(fields_of(where or {})))[:MOST_FIELDS]
    unknown = unknown_fields(collection.store, fields) if fields else []
    foreign = foreign_query(query, collection.embedder.context.identity.name)
    return results, [*unknown, *([foreign] if foreign else [])]


def neighbours_of(collection: Collection, id_: str, around: int) -> list[Record]:
    """Return a record between its neighbours of the same document, else of the same parent; none without such a record.

    Args:
        collection: Collection of the record.
        id_: Id of the record.
        around: Maximum number of neighbours on each side.
    """
    records = collection.get([id_])
    if not records:
        return records
    if (source := document_of(records[0])) is not None:
        passages = [record for record in collection.scroll({PARENT_KEY: source}) if document_of(record) == source]
        passages.sort(key=lambda record: int(record.id.rpartition("#")[2]))
    else:
        key, parent = collection.parent_key, parent_of(records[0], collection.parent_key)
        passages = records if key is None or parent is None else list(collection.scroll({key: parent}))
    place = next((place for place, record in enumerate(passages) if record.id == id_), None)
    if place is None:  # it was deleted, or moved to another parent, meanwhile
        return records
    return passages[max(0, place - around) : place + around + 1]


def has_bm25(collection: Collection) -> bool:
    """Return True if a collection can be searched by BM25."""
    try:
        collection.search(".", k=1, by="bm25")  # a query without terms: costs nothing
    except StoreError:
        return False
    return True

"""Payload schemas of other applications: location of a text and its metadata in a point's payload."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from cde_rag.records import Record

Reading: TypeAlias = Callable[[Mapping[str, Any]], Record | None]  # the point gives the record its id
Texts: TypeAlias = str | Reading  # the name of a dialect, else a key of the payload; or what reads it


def reading(texts: Texts) -> Reading:
    """Return a function from a payload to a record, or None for payloads without a text.

    Args:
        texts: `"langchain"`, `"llamaindex"`, or the key of the payload whose value is the text, and all others
            metadata; or a function of the payload, whose records' ids are ignored.
    """
    if callable(texts):
        return texts
    return _DIALECTS.get(texts, lambda payload: _of_key(payload, texts))


def _langchain(payload: Mapping[str, Any]) -> Record | None:
    """Read langchain-qdrant's schema: `page_content`, and `metadata` as an object."""
    return _record(payload.get("page_content"), payload.get("metadata"))


def _llamaindex(payload: Mapping[str, Any]) -> Record | None:
    """Read llama-index's schema: the node in `_node_content` as JSON text, and its document outside of that."""
    try:
        found: object = json.loads(payload.get("_node_content") or "null")
    except (TypeError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    node = cast(dict[str, Any], found)
    record = _record(node.get("text"), node.get("metadata"))
    document = payload.get("ref_doc_id")
    if record is None or document in (None, "None") or "ref_doc_id" in record.metadata:
        return record
    return Record("", record.text, metadata={**record.metadata, "ref_doc_id": document})


def _of_key(payload: Mapping[str, Any], key: str) -> Record | None:
    return _record(payload.get(key), {name: value for name, value in payload.items() if name != key})


def _record(text: object, metadata: object) -> Record | None:
    kept = cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}
    return Record("", text, metadata=kept) if isinstance(text, str) and text.strip() else None


_DIALECTS: Final[Mapping[str, Reading]] = {"langchain": _langchain, "llamaindex": _llamaindex}

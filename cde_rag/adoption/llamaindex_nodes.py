"""LlamaIndex' nodes: their text as LlamaIndex embeds it, with metadata by the node's templates.

Source: `TextNode.get_content(MetadataMode.EMBED)` of llama-index-core 0.14.
"""

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final, cast

from cde_rag.adoption.positions import is_text

NODE: Final = "_node_content"  # key of the node's JSON in the metadata of its row


def embedded_text(text: Any, metadata: Any) -> str | None:
    """Return the text of a row as it was embedded: LlamaIndex adds metadata by a template, in its node.

    Args:
        text: Text of the row, if it has one.
        metadata: Its metadata, if it has any.
    """
    if not is_text(text):
        return None
    node: object = cast(dict[str, Any], metadata).get(NODE) if isinstance(metadata, dict) else None
    return embedded_node_text(node, text) if isinstance(node, str) else text


def embedded_node_text(node: str | Mapping[str, Any], text: str) -> str | None:
    """Return the text of a node as it is embedded; None if it has none, or is no node.

    Args:
        node: The node, or its JSON.
        text: Its text, which stores may keep apart.
    """
    try:
        found: object = json.loads(node) if isinstance(node, str) else node
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, Mapping) or not is_text(text):
        return None
    fields = cast(Mapping[str, Any], found)
    metadata: object = fields.get("metadata") or {}
    excluded: object = fields.get("excluded_embed_metadata_keys") or []
    template = fields.get("metadata_template") or fields.get("metadata_tmpl") or "{key}: {value}"
    separator = fields.get("metadata_separator") or fields.get("metadata_seperator") or "\n"
    around = fields.get("text_template") or "{metadata_str}\n\n{content}"
    if not (_is_of(template, "key", "value") and _is_of(around, "metadata_str", "content")):
        return None
    if not isinstance(metadata, Mapping) or not isinstance(excluded, list):
        return None
    values, hidden = cast(Mapping[str, Any], metadata), cast(list[str], excluded)
    lines = [template.format(key=key, value=str(value)) for key, value in values.items() if key not in hidden]
    written = str(separator).join(lines).strip()
    made = around.format(content=text, metadata_str=written).strip() if written else text
    return made if is_text(made) else None


def _is_of(template: object, *names: str) -> bool:
    """Return True for a template with these fields, once each: others could read attributes, or fill memory."""
    if not isinstance(template, str):
        return False
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        return False
    fields = [name for _, name, _, _ in parts if name is not None]
    plain = all(not form and not conversion for _, _, form, conversion in parts)
    return plain and len(fields) == len(set(fields)) and set(fields) <= set(names)

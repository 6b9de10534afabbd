"""Nodes of LlamaIndex as records of a collection, and back."""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, cast

from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, RelatedNodeInfo, RelatedNodeType, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from pydantic_core import to_jsonable_python

from cde_rag import Hit, Record
from cde_rag._validation import check_list
from cde_rag.collection.foreign_documents import shown_metadata
from cde_rag.errors import CorpusError
from cde_rag.records import MAX_LEVELS, encode

SOURCE = "ref_doc_id"  # LlamaIndex's key for the document that a node was cut from
NODE_ID = "_node_id"
NODE = "_node_content"


def content(node: BaseNode) -> str:
    """Return the text of a node that is embedded."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)


def nodes_only(nodes: Iterable[object], call: str) -> list[BaseNode]:
    """Check that all elements are nodes, and return them as a list; `call` is for the message.

    Raises:
        TypeError: One is no Document or node, or that is no list.
    """
    taken: list[BaseNode] = []
    check_list(nodes, call=call, what="nodes")
    for node in nodes:
        if not isinstance(node, BaseNode):
            raise TypeError(
                f"{call} expects a list of Documents or nodes of LlamaIndex, found {type(node).__name__} in it. Give "
                "[Document(text=…)]."
            )
        taken.append(node)
    return taken


def record_of(node: BaseNode) -> Record:
    """Convert a node to a record: its embedded text, and metadata from which the node can be restored.

    NumPy's numbers and arrays become plain numbers and lists, as in a collection, and what LlamaIndex writes as a str
    (dates, decimals, paths) is one.

    Raises:
        CorpusError: Metadata that JSON cannot hold, such as NaN and sets; the message names the field.
    """
    metadata = node_to_metadata_dict(_plain(node))
    sources = dict.fromkeys((SOURCE, "doc_id", "document_id"), node.ref_doc_id)  # LlamaIndex writes "None" for none
    return Record(node.node_id, content(node), metadata={**metadata, **sources, NODE_ID: node.node_id})


def _plain(node: BaseNode) -> BaseNode:
    """Return a copy with the metadata, and those of related nodes, as JSON has them; pydantic makes None of NaN."""
    try:
        relationships: dict[NodeRelationship, RelatedNodeType] = {
            kind: [_plain_related(one, kind) for one in related]
            if isinstance(related, list)
            else _plain_related(related, kind)
            for kind, related in node.relationships.items()
        }
        update = {"metadata": _exact(node.metadata, "metadata"), "relationships": relationships}
    except CorpusError as error:
        raise CorpusError(f"Node {node.node_id}: {error}") from error
    return node.model_copy(update=update)


def _plain_related(related: RelatedNodeInfo, kind: NodeRelationship) -> RelatedNodeInfo:
    return related.model_copy(update={"metadata": _exact(related.metadata, f"metadata of its {kind.name.lower()}")})


def _exact(metadata: dict[str, Any], of: str) -> dict[str, Any]:
    """Return metadata as JSON has them.

    Raises:
        CorpusError: JSON cannot hold them.
    """
    return json.loads(encode(cast(dict[str, Any], _written(metadata)), of))


def _written(value: object, depth: int = 0) -> object:
    """Return dates, decimals and objects as LlamaIndex writes them, and the rest as it is, for `encode`."""
    if depth > MAX_LEVELS:
        return value
    if isinstance(value, Mapping):
        return {key: _written(inner, depth + 1) for key, inner in cast(Mapping[object, object], value).items()}
    if isinstance(value, list | tuple):
        return [_written(inner, depth + 1) for inner in cast(Sequence[object], value)]
    if value is None or isinstance(value, str | int | float | Set):
        return value
    try:
        return to_jsonable_python(value)
    except ValueError:  # of numpy, bytes that are no text, or nothing that pydantic knows
        return value


def node_of(found: Record | Hit) -> BaseNode:
    """Convert a record back to its node, with relationships; other records become a TextNode.

    A title comes as metadata. What was not embedded with the record's text is not embedded with that of its node.
    """
    shown = shown_metadata(found)
    if NODE not in found.metadata:
        return TextNode(id_=found.id, text=found.text, metadata=shown, excluded_embed_metadata_keys=list(shown))
    node = metadata_dict_to_node(dict(found.metadata))
    if found.title and "title" not in node.metadata:
        node.metadata["title"] = found.title
        node.excluded_embed_metadata_keys.append("title")
    return node

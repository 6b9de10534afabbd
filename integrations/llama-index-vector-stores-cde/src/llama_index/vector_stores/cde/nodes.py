"""Nodes of LlamaIndex as records of a collection, and back."""

from collections.abc import Iterable

from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from cde_rag import Hit, Record
from cde_rag._validation import check_list
from cde_rag.collection.foreign_documents import shown_metadata
from cde_rag.errors import CorpusError

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

    Raises:
        CorpusError: Metadata that JSON cannot hold.
    """
    try:
        metadata = node_to_metadata_dict(node)
    except (TypeError, ValueError) as error:
        raise CorpusError(
            f"Node {node.node_id}: expected metadata that JSON can hold, found other values ({error}). Make strings or "
            "numbers of them, or leave them out."
        ) from error
    sources = dict.fromkeys((SOURCE, "doc_id", "document_id"), node.ref_doc_id)  # LlamaIndex writes "None" for none
    return Record(node.node_id, content(node), metadata={**metadata, **sources, NODE_ID: node.node_id})


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

"""Nodes that are longer than the model reads, as parts: the best part of a node counts for it.

A part is an IndexNode, LlamaIndex's own form of a small text that stands for a larger one: retrievers return the larger
one, once, with the score of its best part.
"""

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID, uuid5

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, ImageNode, IndexNode, MetadataMode, NodeRelationship
from llama_index.embeddings.cde.texts import content

from cde_rag import CDEModel
from cde_rag.models.model import Model

_IDS: Final = UUID("5b6f0f43-8d0c-4d0e-9d5c-2f9e6f1a7c11")  # namespace of the ids of parts
_SHARE: Final = 0.5  # of the model's window that a part fills, at most: shorter ones are found better
_OVERLAP: Final = 8  # a part begins with an eighth of the one before it, at most
_TEMPLATES: Final = ("metadata_template", "metadata_separator", "text_template")


def divided(nodes: Sequence[BaseNode], model: Model) -> list[list[BaseNode]]:
    """Divide nodes that the model would truncate into parts, which end between sentences where they can.

    Args:
        nodes: Nodes with text.
        model: Model that embeds them; nodes are divided for those of cde-rag, whose tokens can be counted.

    Returns:
        For each node its parts; the node itself, if the model reads all of it or it is no plain text.
    """
    if not isinstance(model, CDEModel):
        return [[node] for node in nodes]
    read = model.tokenize([content(node) for node in nodes])
    return [
        list(_parts(node, model)) or [node]
        if tokens.truncated and not isinstance(node, ImageNode | IndexNode)
        else [node]
        for node, tokens in zip(nodes, read, strict=True)
    ]


def _parts(node: BaseNode, model: CDEModel) -> Iterator[BaseNode]:
    """Yield the parts of a node; none if its metadata leave no room for text."""
    window, ids = model.identity.max_length, model.tokenizer.ids
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    taken = len(model.tokenize(["a"])[0].ids) + len(ids(node.get_metadata_str(mode=MetadataMode.EMBED)))
    size = min(int(window * _SHARE), window - taken)
    if size < window // _OVERLAP:
        return
    splitter = SentenceSplitter(chunk_size=size, chunk_overlap=size // _OVERLAP, tokenizer=ids)
    whole = node.model_copy(update={"embedding": None})
    shared = {name: getattr(node, name) for name in _TEMPLATES if hasattr(node, name)}
    source = {} if node.source_node is None else {NodeRelationship.SOURCE: node.source_node}
    for number, part in enumerate(splitter.split_text(text)):
        yield IndexNode(
            id_=str(uuid5(_IDS, f"{number} {node.node_id}")),
            index_id=node.node_id,
            obj=whole,
            text=part,
            metadata=node.metadata,
            excluded_embed_metadata_keys=node.excluded_embed_metadata_keys,
            excluded_llm_metadata_keys=node.excluded_llm_metadata_keys,
            relationships=source,
            **shared,
        )

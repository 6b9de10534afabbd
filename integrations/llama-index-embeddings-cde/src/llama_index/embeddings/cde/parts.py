"""Nodes that are longer than the model reads, as parts: the best part of a node counts for it.

A part is an IndexNode, LlamaIndex's own form of a small text that stands for a larger one: retrievers return the larger
one, once, with the score of its best part.
"""

from collections.abc import Iterator, Sequence
from typing import Final, cast
from uuid import UUID, uuid5

from llama_index.core.base.embeddings.base import Embedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    RelatedNodeType,
)
from llama_index.embeddings.cde.callers import Caller
from llama_index.embeddings.cde.marks import mark_nodes
from llama_index.embeddings.cde.texts import content

from cde_rag.models.model import Model, cut_texts

_IDS: Final = UUID("5b6f0f43-8d0c-4d0e-9d5c-2f9e6f1a7c11")  # namespace of the ids of parts
_SHARE: Final = 0.5  # of the model's window that a part fills, at most: shorter ones are found better
_OVERLAP: Final = 8  # a part begins with an eighth of the one before it, at most
_TEMPLATES: Final = ("metadata_template", "metadata_separator", "text_template")


def divided(nodes: Sequence[BaseNode], model: Model) -> list[tuple[BaseNode, BaseNode]]:
    """Divide nodes that the model would truncate into parts, which end between sentences where they can.

    Args:
        nodes: Nodes whose text is not blank.
        model: Model that embeds them.

    Returns:
        Each node with each of its parts; with itself, if the model reads all of it or it is no plain text.
    """
    found: list[tuple[BaseNode, BaseNode]] = []
    for node, is_cut in zip(nodes, cut_texts(model, [content(node) for node in nodes]), strict=True):
        plain = not isinstance(node, ImageNode | IndexNode)
        parts = list(_parts(node, model)) if is_cut and plain else []
        found += [(node, part) for part in parts or [node]]
    return found


def waiting_nodes(caller: Caller, texts: int) -> list[BaseNode]:
    """Return the nodes that a vector index waits for vectors of; none if they are not seen, or its store embeds.

    Args:
        caller: The caller.
        texts: Number of texts that it gave.
    """
    store = None if caller.index is None else caller.index.storage_context.vector_store
    waiting = [node for node in caller.nodes if node.embedding is None]
    seen = caller.made is not None and isinstance(caller.nodes, list) and len(waiting) == texts
    return waiting if seen and getattr(store, "is_embedding_query", False) else []


def insert_parts(
    caller: Caller, parts: Sequence[tuple[BaseNode, BaseNode]], embeddings: Sequence[Embedding], fingerprint: str
) -> list[Embedding]:
    """Put parts into the place of their nodes in the list that an index goes on with, and mark them.

    LlamaIndex has one vector for a node, and no other place for those of its parts.

    Args:
        caller: The index.
        parts: Its nodes with their parts, as `divided` returns them.
        embeddings: Vectors of the parts.
        fingerprint: Fingerprint of their space.

    Returns:
        For each node the vector of its first part.
    """
    mark_nodes((part for _, part in parts), fingerprint)
    first: dict[int, Embedding] = {}
    for (node, part), embedding in zip(parts, embeddings, strict=True):
        first.setdefault(id(node), embedding)
        cast(dict[str, Embedding], caller.made)[part.node_id] = embedding
    nodes = cast(list[BaseNode], caller.nodes)
    nodes[:] = in_place(nodes, parts)
    return list(first.values())


def in_place(nodes: Sequence[BaseNode], parts: Sequence[tuple[BaseNode, BaseNode]]) -> list[BaseNode]:
    """Return nodes in their order, those that are divided as their parts."""
    of_node: dict[int, list[BaseNode]] = {}
    for node, part in parts:
        of_node.setdefault(id(node), []).append(part)
    return [part for node in nodes for part in of_node.get(id(node), [node])]


def _parts(node: BaseNode, model: Model) -> Iterator[BaseNode]:
    """Yield the parts of a node; none if its metadata leave no room for text."""
    window, one = model.identity.max_length, model.count_tokens(["a"], windows=False)  # with prefix and special tokens

    def tokens(text: str) -> list[int]:  # of which a splitter takes the length
        count = model.count_tokens([text], windows=True) - one + 1 if text.strip() else 0
        return list(range(count))

    text = node.get_content(metadata_mode=MetadataMode.NONE)
    taken = one + len(tokens(node.get_metadata_str(mode=MetadataMode.EMBED)))
    size = min(int(window * _SHARE), window - taken)
    if size < window // _OVERLAP:
        return
    splitter = SentenceSplitter(chunk_size=size, chunk_overlap=size // _OVERLAP, tokenizer=tokens)
    whole = node.model_copy(update={"embedding": None})
    shared = {name: getattr(node, name) for name in _TEMPLATES if hasattr(node, name)}
    source: dict[NodeRelationship, RelatedNodeType] = {}
    if node.source_node is not None:
        source[NodeRelationship.SOURCE] = node.source_node
    for number, part in enumerate(splitter.split_text(text)):
        yield IndexNode(
            id_=str(uuid5(_IDS, f"{number} {node.node_id}")),
            index_id=node.node_id,
            obj=whole,
            text=part,
            extra_info=node.metadata,
            excluded_embed_metadata_keys=node.excluded_embed_metadata_keys,
            excluded_llm_metadata_keys=node.excluded_llm_metadata_keys,
            relationships=source,
            **shared,
        )

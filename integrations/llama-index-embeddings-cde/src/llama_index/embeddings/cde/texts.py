"""Input of the embedder: texts of nodes, with a warning if they exceed the model's token limit."""

from collections.abc import Iterable, Sequence

from llama_index.core.base.embeddings.base import Embedding
from llama_index.core.schema import BaseNode, MetadataMode

from cde_rag.context.siblings import sibling_texts
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import TruncationWarning, warn_user
from cde_rag.models.model import Model, check_read


def content(node: BaseNode) -> str:
    """Return the text of a node that is embedded."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)


def nodes_only(nodes: Iterable[object], *, call: str) -> list[BaseNode]:
    """Check that all elements are nodes, and return them as a list.

    Args:
        nodes: Argument of the caller.
        call: Name of the called function, for the message.

    Raises:
        TypeError: One is no Document or node.
    """
    taken: list[BaseNode] = []
    for node in nodes:
        if not isinstance(node, BaseNode):
            raise TypeError(
                f"{call} expects a list of Documents or nodes of LlamaIndex, found {type(node).__name__} in it. Give "
                "[Document(text=…)], or make the context of bare texts: embedding = CDEEmbedding(); "
                "embedding.fit(texts)."
            )
        taken.append(node)
    return taken


def check_fits(texts: Sequence[str], model: Model) -> None:
    """Refuse texts of which the model would leave a considerable part unread.

    Raises:
        TruncationError: More than 5 % of their tokens are beyond its limit.
    """
    check_read(model, texts, f"{_setting(model.identity.max_length)} Or read them in windows: windows=True.")


def _setting(limit: int) -> str:
    size = limit * 2 // 3  # a splitter counts other tokens, and fewer of them
    overlap = size // 80 * 10
    return (
        f"LlamaIndex's splitter makes chunks of 1024 of its tokens by default; {size} fit most texts, fewer code and "
        f"tables: set Settings.chunk_size, Settings.chunk_overlap = {size}, {overlap}, or give "
        f"SentenceSplitter(chunk_size={size}, chunk_overlap={overlap})."
    )


def embed_documents(
    embedder: Embedder, texts: Sequence[str], parents: Sequence[str | None] | None, *, progress: bool
) -> list[Embedding]:
    """Embed documents, with a truncation warning that names LlamaIndex's setting.

    The core's own warning is not caught and changed, since filters of warnings are shared by all threads.

    Warns:
        TruncationWarning: Texts exceed the model's token limit.
    """
    identity, siblings = embedder.context.identity, None
    if parents is not None:
        rule = embedder.context.manifest.sibling_rule
        siblings = sibling_texts(parents, texts, embedder.max_siblings, rule=rule)
    embedded = embedder.embed_passages(texts, siblings, progress=progress)
    if count := int(embedded.truncated.sum()):
        warn_user(
            f"{count} of {len(texts)} texts exceed the limit of {identity.limit} of {identity.name} and "
            f"were truncated. {_setting(identity.max_length)}",
            TruncationWarning,
        )
    return embedded.vectors.tolist()

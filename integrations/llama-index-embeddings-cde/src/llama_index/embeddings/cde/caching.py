"""LlamaIndex's `embeddings_cache`, under keys that name the vector space and the role."""

from collections.abc import Callable, Sequence

from llama_index.core.base.embeddings.base import Embedding
from llama_index.core.storage.kvstore.types import BaseKVStore

COLLECTION = "embeddings"  # where LlamaIndex keeps them too, by the bare text: what it wrote is not found here


def through_cache(
    cache: BaseKVStore,
    space: str,
    texts: Sequence[str],
    embed: Callable[[Sequence[str]], list[Embedding]],
) -> list[Embedding]:
    """Embed only the texts that are not in the cache.

    Args:
        cache: The store.
        space: Fingerprint and role.
        texts: Texts to embed.
        embed: Computes the missing vectors.
    """
    found: dict[str, Embedding] = {}
    for text in dict.fromkeys(texts):
        value = cache.get(f"{space}:{text}", collection=COLLECTION)
        if value is not None:
            found[text] = value["embedding"]
    missing = [text for text in dict.fromkeys(texts) if text not in found]
    for text, embedding in zip(missing, embed(missing) if missing else [], strict=True):
        cache.put(f"{space}:{text}", {"embedding": embedding}, collection=COLLECTION)
        found[text] = embedding
    return [found[text] for text in texts]

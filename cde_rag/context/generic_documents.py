"""Context documents beside the sample: a small corpus repeated, and texts for when there is no corpus."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from cde_rag._validation import digest

GENERIC = Path(__file__).with_name("generic_documents.txt")  # one text a line; ours, about everything and nothing


def repeated(documents: Sequence[str], size: int) -> list[str]:
    """Go through documents again and again until there are `size`; what is as large already stays as it is.

    They are visited in the order of their digests, so the same set gives the same documents as often each.

    Args:
        documents: At least one.
        size: Context documents that a model expects.

    Raises:
        CorpusError: A document with a lone surrogate.

    Source: the model card of jxm/cde-small-v2, which asks to oversample a small corpus.

    Example:
        >>> sorted(repeated(["a", "b", "c"], 5))
        ['a', 'b', 'b', 'c', 'c']
    """
    if len(documents) >= size:
        return list(documents)
    return list(islice(cycle(sorted(documents, key=digest)), size))


def generic_documents(size: int | None) -> list[str]:
    """The texts that come with the library, as context documents.

    Args:
        size: How many; repeated if there are fewer. None: all of them.
    """
    documents = GENERIC.read_text(encoding="utf-8").splitlines()
    return documents if size is None else repeated(documents[:size], size)

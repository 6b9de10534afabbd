"""Context documents beyond a plain sample: a small corpus repeated, and generic texts for no corpus."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from cde_rag._validation import digest

GENERIC = Path(__file__).with_name("generic_documents.txt")  # one text a line; ours, about everything and nothing


def repeated(documents: Sequence[str], size: int) -> list[str]:
    """Repeat documents in turn until there are `size`; a larger list is returned unchanged.

    They are taken in the order of their digests, so that equal sets give equal numbers of repetitions.

    Args:
        documents: At least one.
        size: Context documents that a model expects.

    Raises:
        CorpusError: A document with a lone surrogate.

    Source: the model card of jxm/cde-small-v2, which asks to oversample a small corpus.

    Examples:
        >>> sorted(repeated(["a", "b", "c"], 5))
        ['a', 'b', 'b', 'c', 'c']
    """
    if len(documents) >= size:
        return list(documents)
    return list(islice(cycle(sorted(documents, key=digest)), size))


def generic_documents(size: int | None) -> list[str]:
    """Return the generic texts bundled with the library, as context documents.

    Args:
        size: Number of texts; repeated if there are fewer. None: all of them.
    """
    documents = GENERIC.read_text(encoding="utf-8").splitlines()
    return documents if size is None else repeated(documents[:size], size)

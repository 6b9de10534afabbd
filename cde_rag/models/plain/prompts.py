"""Prompts of a query and a document, as a model's files name them."""

from collections.abc import Mapping
from typing import Final

DOCUMENT_PROMPTS: Final = ("document", "passage", "corpus")  # what models call the prompt of a document


def prefixes_of(name: str, prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prefixes of a "query" and a "document".

    Args:
        name: Exact name of the model.
        prompts: The prompts in its files, by name.
    """
    document = next((prompts[each] for each in DOCUMENT_PROMPTS if prompts.get(each)), "")
    return {"query": prompts.get("query", ""), "document": document}

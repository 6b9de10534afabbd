"""The names of a vector space at LangChain's borders: in keys, namespaces and on vectors themselves."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from cde_rag.errors import ContextMismatchError

Role: TypeAlias = Literal["document", "query"]
_RECORDS = re.compile("cde/[0-9a-f]{64}/")


class SpaceVector(list[float]):
    """A vector that knows its space; otherwise the list of floats that LangChain requires."""

    def __init__(self, numbers: Iterable[float], fingerprint: str) -> None:
        super().__init__(numbers)
        self.fingerprint = fingerprint

    def copy(self) -> "SpaceVector":
        """Copy the vector with its space; other conversions, such as `list(vector)` and slices, lose it."""
        return SpaceVector(self, self.fingerprint)


def require_same_space(vector: Sequence[float], fingerprint: str) -> None:
    """Refuse a vector of another space; a list that does not know its space passes.

    Raises:
        ContextMismatchError: The vector was made in another context.
    """
    if isinstance(vector, SpaceVector) and vector.fingerprint != fingerprint:
        raise ContextMismatchError(
            expected=fingerprint,
            found=vector.fingerprint,
            remedy="Embed the query with the `embeddings` of the vector store that is searched.",
        )


def cache_namespace(fingerprint: str, role: Role) -> str:
    """Return the prefix of a cache's keys; also valid as a path."""
    return f"cde/{fingerprint}/{role}/"


def record_namespace(fingerprint: str, name: str) -> str:
    """Return the namespace of a record manager; `name` may be a namespace of another space."""
    return f"cde/{fingerprint}/{record_name(name)}"


def record_name(namespace: str) -> str:
    """Return the name of the index in a namespace made by `record_namespace`."""
    found = _RECORDS.match(namespace)
    return namespace[found.end() :] if found else namespace

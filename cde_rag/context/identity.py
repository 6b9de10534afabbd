"""What a Context needs to know of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """What of a model determines the vector space. All but `name` goes into the fingerprint.

    Attributes:
        name: Exact name of the model, for people.
        weights_sha256: 64 hex digits.
        tokenizer_sha256: 64 hex digits.
        attention: `"one_way"`, `"two_way"` (design §4), `"two_way_cached"`, which approximates the second, or `"none"`
            for a plain embedder, which reads no context.
        semantics: Which reading of the architecture the weights are for.
        roles: How the model is told query from document: `"prefix"` or `"vector"`.
        prefixes: The string before a text, for `"query"` and `"document"`.
        max_length: Tokens of a text that are read; 0 where none are cut off.
        pooling: How token states become one vector, such as `"mean"`.
        normalisation: Such as `"unit"`.
        dim: Length of a vector.
    """

    name: str
    weights_sha256: str
    tokenizer_sha256: str
    attention: str
    semantics: str
    roles: str
    prefixes: Mapping[str, str]
    max_length: int
    pooling: str
    normalisation: str
    dim: int


@runtime_checkable
class HasIdentity(Protocol):
    """A model, as far as a Context needs to know it."""

    @property
    def identity(self) -> ModelIdentity:
        """What of the model determines the vector space."""
        ...


@runtime_checkable
class ReadsContexts(HasIdentity, Protocol):
    """A model that context documents can be given to."""

    @property
    def context_size(self) -> int | None:
        """Context documents that a context has to have; None where any number will do."""
        ...

    def first_stage(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """Read each text by itself."""
        ...

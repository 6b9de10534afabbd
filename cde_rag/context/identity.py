"""Model identity: the properties of a model that a Context depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

PLAIN: Final = "none"  # the context attention of a plain model
WINDOWS: Final = "; windows mean"  # in the semantics: longer texts are read in windows, whose vectors are averaged


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """Properties of a model that determine the vector space. All but `name` are part of the fingerprint.

    Attributes:
        name: Exact name of the model, for people.
        weights_sha256: 64 hex digits.
        tokenizer_sha256: 64 hex digits.
        attention: `"one_way"`, `"two_way"` (design §4), `"two_way_cached"`, which approximates the second, or `"none"`
            for a plain embedder, which reads no context.
        semantics: Interpretation of the architecture that the weights were trained with.
        roles: Means by which the model distinguishes queries from documents: `"prefix"` or `"vector"`.
        prefixes: The string before a text, for `"query"` and `"document"`.
        max_length: Maximum tokens of a text; 0 if texts are not truncated.
        pooling: Pooling of token states into one vector, such as `"mean"`.
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

    @property
    def windows(self) -> bool:
        """True if texts longer than `max_length` are read in windows; else they are cut."""
        return WINDOWS in self.semantics

    def reading(self, *, windows: bool) -> "ModelIdentity":
        """Return the identity of the same model that reads longer texts in windows, or cuts them."""
        if windows == self.windows:
            return self
        return replace(self, semantics=f"{self.semantics}{WINDOWS}" if windows else self.semantics.replace(WINDOWS, ""))


@runtime_checkable
class HasIdentity(Protocol):
    """Interface of a model that a Context can belong to."""

    @property
    def identity(self) -> ModelIdentity:
        """Properties of the model that determine the vector space."""
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

"""Model identity: the properties of a model that a Context depends on."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Protocol, cast, get_origin, runtime_checkable

import numpy as np
from jaxtyping import Float32

PLAIN: Final = "none"  # the context attention of a plain model
ARITHMETIC: Final = "arithmetic"  # that of a plain model whose vectors are mapped by a corpus, or mixed with siblings'
_FACTS: Final = (
    "windows",
    "sibling_weight",
    "corpus_map",
    "tokens_per_document",
)  # are written at the end of the semantics
_WINDOWS: Final = "; windows mean"
_TOKENS: Final = re.compile(r"(.*); ([1-9][0-9]*) tokens per document", re.DOTALL)
_ARITHMETIC: Final = re.compile(r"(.*); siblings ([0-9.e+-]+); corpus (none|whitened)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """Properties of a model that determine the vector space. All but `name` are part of the fingerprint.

    Attributes:
        name: Exact name of the model, for people.
        weights_sha256: 64 hex digits.
        tokenizer_sha256: 64 hex digits.
        attention: `"one_way"`, `"two_way"` (design §4), `"two_way_cached"`, which approximates the second, or of a
            plain model, which reads no context, `PLAIN` or `ARITHMETIC`.
        semantics: Interpretation of the architecture that the weights were trained with.
        roles: Means by which the model distinguishes queries from documents: `"prefix"` or `"vector"`.
        prefixes: The string before a text, for `"query"` and `"document"`.
        max_length: Maximum tokens of a text; 0 if texts are not truncated.
        pooling: Pooling of token states into one vector, such as `"mean"`.
        normalisation: Such as `"unit"`.
        dim: Length of a vector.
        windows: True if texts longer than `max_length` are read in windows, whose vectors are averaged; else they are
            cut.
        sibling_weight: Weight of the siblings' mean in a vector, by arithmetic; the document's own vector has 1.
        corpus_map: True if vectors are mapped by a sample of the corpus, by arithmetic.
        tokens_per_document: Context embeddings of each context document.
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
    windows: bool = False
    sibling_weight: float = 0.0
    corpus_map: bool = False
    tokens_per_document: int = 1

    @property
    def context_dim(self) -> int:
        """Length of a context document's row: all its embeddings, one after the other."""
        return self.tokens_per_document * self.dim

    @property
    def is_plain(self) -> bool:
        """True for a model that reads each text by itself; corpus and siblings come in by arithmetic."""
        return self.attention in (PLAIN, ARITHMETIC)

    @property
    def limit(self) -> str:
        """Tokens of a text that are read, for messages about texts that have more."""
        return f"{self.max_length} tokens" if self.max_length else "tokens in the tokenizer's file"

    @property
    def plain(self) -> "ModelIdentity":
        """Identity of the same model without arithmetic."""
        return replace(self, attention=PLAIN, sibling_weight=0.0, corpus_map=False) if self.is_plain else self

    def with_windows(self, *, windows: bool) -> "ModelIdentity":
        """Return the identity of the same model that reads longer texts in windows, or cuts them."""
        return replace(self, windows=windows)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that fingerprints and Contexts hold: windows and arithmetic are in the semantics."""
        written = asdict(self)
        windows, weight, mapped, tokens = (written.pop(name) for name in _FACTS)
        written["semantics"] += f"; {tokens} tokens per document" if tokens > 1 else ""
        written["semantics"] += _WINDOWS * windows
        if self.attention == ARITHMETIC:
            written["semantics"] += f"; siblings {weight!r}; corpus {'whitened' if mapped else 'none'}"
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "ModelIdentity":
        """Read the result of `to_json`.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is of another type, or unknown.
            ValueError: The semantics are not written as `to_json` writes them.
        """
        check_types(cls, written, but=_FACTS)
        semantics = written["semantics"]
        facts: dict[str, Any] = {}
        if written["attention"] == ARITHMETIC:
            if (found := _ARITHMETIC.fullmatch(semantics)) is None:
                raise ValueError(f"semantics without arithmetic: {semantics!r}")
            semantics = found[1]
            facts |= {"sibling_weight": float(found[2]), "corpus_map": found[3] == "whitened"}
        facts["windows"] = semantics.endswith(_WINDOWS)
        semantics = semantics.removesuffix(_WINDOWS)
        if (found := _TOKENS.fullmatch(semantics)) is not None:
            semantics, facts["tokens_per_document"] = found[1], int(found[2])
        made = cls(**{**written, "semantics": semantics}, **facts)
        if made.to_json() != written:
            raise ValueError(f"semantics that are written otherwise: {written['semantics']!r}")
        return made


def check_types(kind: type[Any], values: Mapping[str, Any], *, but: Collection[str] = ()) -> None:
    """Check the values of a dataclass' fields, but for some. Raises `TypeError` or `KeyError` for any others."""
    for each in fields(kind):
        expected = cast(type, get_origin(each.type) or each.type)
        if each.name not in but and not isinstance(values[each.name], expected):
            raise TypeError(f"{each.name} is no {expected.__name__}")


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

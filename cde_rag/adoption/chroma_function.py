"""Embedding function of Chroma that makes the vectors of an embedder.

    from cde_rag.adoption.chroma_function import CDEFunction

    function = CDEFunction.load("papers.context.safetensors")
    papers = client.get_or_create_collection("papers", embedding_function=function)
    papers.query(query_texts=["late interaction"])

A collection keeps the name of its function, which has the space of the vectors in it, and Chroma refuses functions of
other names. So a program that goes on with the function of the old model or of another Context, or with none, gets an
error, not wrong hits.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.embedders.active import loaded
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import ContextMissingError, require

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import AnyModel

_CLASS: Final = "cde_rag"  # name of the class, and the begin of those of functions
_DIGITS: Final = 16  # of a fingerprint


class _Name:
    """Name of a function in configurations, of which Chroma reads the class's, too."""

    def __get__(self, function: "CDEFunction | None", owner: type["CDEFunction"]) -> Callable[[], str]:
        config = {} if function is None else function.get_config()
        return lambda: name_of(config["fingerprint"]) if "fingerprint" in config else _CLASS


class CDEFunction:
    """Embedding function of Chroma.

    Args:
        embedder: Embedder of the collection's vectors; None for a function that a program did not name, which Chroma
            makes of the configuration, and which embeds nothing.

    Attributes:
        name: Returns the name in configurations; Chroma compares nothing else.

    Raises:
        MissingExtraError: Chroma is not installed.
    """

    name = _Name()

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._config: dict[str, Any] = {} if embedder is None else config_of(embedder)
        functions: Any = require("chromadb.utils.embedding_functions", "chroma")
        functions.known_embedding_functions[self.name()] = CDEFunction  # else Chroma warns in each write

    @classmethod
    def load(cls, path: str | Path, *, model: "AnyModel | None" = None) -> "CDEFunction":
        """Make the function of a Context, such as the one that a move keeps.

        Args:
            path: File of the Context.
            model: Model of an API, or one that moved to another folder; by default the one that the Context names.

        Raises:
            ContextFormatError: The file is damaged.
            ContextMismatchError: `model` has not made the Context.
            MissingExtraError: Chroma, or the runtime of the model, is not installed.
            ModelError: The model is not found.
        """
        return cls(loaded(Context.load(path), model=model))

    def __call__(self, input: list[str]) -> list[Float32[np.ndarray, " dim"]]:  # noqa: A002 (Chroma's name)
        """Embed documents."""
        return list(self._named().embed_documents(input))

    def embed_query(self, input: list[str]) -> list[Float32[np.ndarray, " dim"]]:  # noqa: A002
        """Embed queries."""
        return list(self._named().embed_queries(input))

    @staticmethod
    def is_legacy() -> bool:
        """Return False: the name is written into configurations."""
        return False

    def default_space(self) -> str:
        """Return the distance of new collections."""
        return "cosine"

    def supported_spaces(self) -> list[str]:
        """Return the distances by which unit vectors rank alike."""
        return ["cosine", "l2", "ip"]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration that is written: the model's name and the fingerprint, but no address."""
        return dict(self._config)

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "CDEFunction":
        """Return a function that embeds nothing: the Context is in a file, which the program names."""
        made = CDEFunction(None)
        made._config = dict(config)
        return made

    @staticmethod
    def validate_config(config: Mapping[str, Any]) -> None:
        """Accept every configuration."""
        del config

    def validate_config_update(self, old_config: Mapping[str, Any], new_config: Mapping[str, Any]) -> None:
        """Refuse a change to another vector space.

        Raises:
            ValueError: The fingerprints differ.
        """
        if old_config != new_config:
            raise ValueError(f"Expected {old_config}, found {new_config}. Its vectors are moved by cde-rag reembed.")

    def _named(self) -> Embedder:
        if self._embedder is None:
            raise ContextMissingError(
                "Expected the embedding function of the collection, found none. Give it to get_collection and "
                "get_or_create_collection: embedding_function=CDEFunction.load(…), as cde-rag reembed printed it."
            )
        return self._embedder


def name_of(fingerprint: str) -> str:
    """Return the name of the function of a space in configurations."""
    return f"{_CLASS}-{fingerprint[:_DIGITS]}"


def config_of(embedder: Embedder) -> dict[str, Any]:
    """Return the configuration of an embedder's function."""
    return {"model": embedder.context.identity.name, "fingerprint": embedder.fingerprint}

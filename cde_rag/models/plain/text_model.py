"""Interface of a sentence-transformers model in a runtime: texts in, vectors out."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32


class ReadText(NamedTuple):
    """A text as its model reads it.

    Attributes:
        content: Token ids; or the text's beginning, where the model has a tokenizer of its own.
        tokens: Number of its tokens, special tokens included; above the model's limit if it is cut. 0 without limit.
    """

    content: list[int] | str
    tokens: int


@runtime_checkable
class TextModel(Protocol):
    """A sentence-transformers model on one device. Thread-safe.

    Attributes:
        runtime: "torch", "openvino" or "onnx".
        device: Such as "cpu" or "cuda:0".
        dtype: Dtype of the layers.
        has_offsets: True if the tokenizer has the positions of tokens, which `reach` needs.
        special_tokens: Number of tokens that are added to a text, such as [CLS] and [SEP].
    """

    runtime: str
    device: str
    dtype: str
    has_offsets: bool
    special_tokens: int

    def lengths(self, texts: Sequence[str], prefix: str) -> list[int]:
        """Count the tokens of each text without truncation, prefix and special tokens included."""
        ...

    def read(self, texts: Sequence[str], prefix: str) -> list[ReadText]:
        """Tokenize texts, up to the model's limit."""
        ...

    def reach(self, text: str, tokens: int) -> int:
        """Return the number of characters of a text that its first tokens take, special tokens apart."""
        ...

    def embed(
        self, texts: Sequence[ReadText], *, role: str, prefix: str, batch_size: int, progress: bool
    ) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts.

        Args:
            texts: Result of `read`.
            role: "query" or "document"; a single query takes one thread.
            prefix: As given to `read`.
            batch_size: Texts per forward pass.
            progress: Show a bar on stderr.

        Returns:
            Float32, of any norm.
        """
        ...


class OtherArchitectureError(Exception):
    """A model that the graph writer cannot express; the message names the setting or part found."""


def check_settings(path: str, found: Mapping[str, Any], *, known: Mapping[str, Any]) -> None:
    """Check that all settings of a file are known, or off.

    Args:
        path: Path of the file, for the message.
        found: Its settings.
        known: The only value of each known setting; None for any.

    Raises:
        OtherArchitectureError: There is another setting, or another value.
    """
    for name, value in found.items():
        if name in known and (known[name] is None or value in (None, known[name])):
            continue
        if name in known or value not in (None, False, "", [], {}):
            raise OtherArchitectureError(f"{name} {value!r:.80} in {path}")

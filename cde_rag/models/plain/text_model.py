"""Interface of a sentence-transformers model in a runtime: texts in, vectors out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32


class ReadText(NamedTuple):
    """A text as its model reads it.

    Attributes:
        content: Token ids; or the text's beginning, where the model has a tokenizer of its own.
        tokens: Number of its tokens, special tokens included; above the model's limit if it is cut. 0 without limit.
        is_cut: True if a tokenizer has cut it by its own file, as of some static tables, which have no other limit.
    """

    content: list[int] | str
    tokens: int
    is_cut: bool = False


@runtime_checkable
class TextModel(Protocol):
    """A sentence-transformers model on one device. Thread-safe.

    Attributes:
        runtime: "torch", "openvino", "onnx" or "numpy".
        device: Such as "cpu" or "cuda:0".
        dtype: Dtype of the layers.
        max_length: Maximum tokens of a text; `checkpoint.UNLIMITED` if texts are never cut.
        dim: Length of a vector.
        prompts: The model's own prompts, by name.
        has_offsets: True if the tokenizer has the positions of tokens, which `reach` needs.
        special_tokens: Number of tokens that are added to a text, such as [CLS] and [SEP].
    """

    runtime: str
    device: str
    dtype: str
    max_length: int
    dim: int
    prompts: Mapping[str, str]
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

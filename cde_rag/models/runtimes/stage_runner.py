"""Interface of a model's two stages: token ids and arrays in, arrays out, whatever computes them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int

if TYPE_CHECKING:
    from cde_rag.models.families import AnyConfig

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
"""Values of `dtype` where a model is loaded: of its layers."""

DTYPES: Final[tuple[str, ...]] = get_args(Dtype)

QUERY: Final = 0  # rows of the second stage's `roles`
DOCUMENT: Final = 1


@runtime_checkable
class StageRunner(Protocol):
    """Both stages of a model on one device. Thread-safe.

    Attributes:
        runtime: "torch", "openvino" or "onnx".
        device: Such as "cpu" or "cuda".
        dtype: Dtype of the second stage's layers.
        threads: CPU threads of a batch, at least 1; a single query takes one.
        tokens_at_once: Maximum tokens of a batch, padding included, where one text alone may have more; None: no limit.
    """

    runtime: str
    device: str
    dtype: str
    threads: int
    tokens_at_once: int | None

    @property
    def config(self) -> "AnyConfig":
        """Config of the model."""
        ...

    def read(self, rows: Sequence[Sequence[int]]) -> Float32[np.ndarray, "batch dim"]:
        """Embed token ids with the first stage."""
        ...

    def prepare(self, context: Float32[np.ndarray, "context dim"], counts: Int[np.ndarray, " context"]) -> Any:
        """Compute the input of the second stage from context embeddings, once per Context."""
        ...

    def embed(
        self,
        rows: Sequence[Sequence[int]],
        role: int,
        prepared: Any,
        siblings: Float32[np.ndarray, "batch siblings dim"] | None,
        sibling_mask: Bool[np.ndarray, "batch siblings"] | None,
    ) -> Float32[np.ndarray, "batch dim"]:
        """Embed one batch of token ids with the second stage.

        Args:
            rows: Token ids of each text.
            role: `roles.QUERY` or `roles.DOCUMENT`.
            prepared: Result of `prepare`.
            siblings: First-stage vectors of each text's siblings, padded; for one-way models. None if there are none.
            sibling_mask: True if there is a sibling.

        Returns:
            Float32, unit norm.

        Raises:
            ModelError: Siblings were given to a two-way model.
            TypeError: `prepared` is of another kind of model or runtime.
        """
        ...


def not_prepared(prepared: object) -> TypeError:
    """Return the error for the prepared context of another kind of model."""
    return TypeError(f"{type(prepared).__name__} was not prepared by this model; use model.prepare(context).")

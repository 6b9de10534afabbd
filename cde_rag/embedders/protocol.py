"""Interface of embedders, contextual or plain."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_positive
from cde_rag.context.context import Context
from cde_rag.errors import warn_of_old_name
from cde_rag.models.model import Embedded
from cde_rag.models.runtimes.attention import AUTO, Attention, check_attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype

if TYPE_CHECKING:
    from cde_rag.embedders.pool import Pool

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderOptions:
    """Options of an embedder that change no vector space. They go with it to every Context and model that it follows.

    Attributes:
        device: Such as "cpu" or "cuda"; None: CUDA where there is one. Like dtype and runtime it is for a model given
            by name: one that is loaded has its own.
        dtype: "float32", "bfloat16" or "float16"; None: as the model's class says.
        runtime: "torch", "openvino" or "onnx"; None: the fastest, see `CDEModel.from_pretrained` and `PlainEmbedder`.
        attn_implementation: Attention in torch: "sdpa", "flash_attention_2", or "auto": flash attention where the model
            is a plain one or a published one of ModernBERT, the device is CUDA, the dtype half, and `flash-attn` is
            installed. It stays with its model: another one that a collection moves to takes "auto".
        mini_batch_size: Texts per forward pass, or per call of an API; lower it when memory runs out. None: that of a
            given embedder, or 32, and 256 for an API.
        pool: Worker processes for the passages of long calls, such as `ProcessPool(4)`. Queries stay in this process,
            and so do passages of plain models. None: that of a given embedder, or none.

    Raises:
        TypeError: A batch size that is no int.
        ValueError: A batch size below 1, or another attention.
    """

    device: str | None = None
    dtype: Dtype | None = None
    runtime: Runtime | None = None
    attn_implementation: Attention = AUTO
    mini_batch_size: int | None = None
    pool: "Pool | None" = None

    def __post_init__(self) -> None:
        check_attention(self.attn_implementation)
        if self.mini_batch_size is not None:
            check_positive(self.mini_batch_size, "mini_batch_size")

    @property
    def of_loading(self) -> tuple[str | None, Dtype | None, Runtime | None, Attention]:
        """Options for loading a model: device, dtype, runtime and attention."""
        return self.device, self.dtype, self.runtime, self.attn_implementation

    @property
    def of_loaded(self) -> "EmbedderOptions":
        """Options for a model that is loaded: batch size and pool."""
        return EmbedderOptions(mini_batch_size=self.mini_batch_size, pool=self.pool)


def old_options(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function with `options` take their fields as keywords, as it did in 0.2, with a warning."""

    @functools.wraps(function)
    def _call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        given: dict[str, Any] = dict(named)
        if old := {name: given.pop(name) for name in _FIELDS if name in given}:
            said = ", ".join(f"{name}=…" for name in old)
            warn_of_old_name(said, f"options=EmbedderOptions({said})")
            given["options"] = replace(given.get("options", EmbedderOptions()), **old)
        return cast(Callable[..., Result], function)(*arguments, **given)

    return _call


_FIELDS = ("device", "dtype", "runtime", "mini_batch_size", "pool")


@runtime_checkable
class Embedder(Protocol):
    """Texts in, unit vectors out, all in the one vector space that `fingerprint` names. Thread-safe."""

    @property
    def context(self) -> Context:
        """Context stored with the vectors; the null context if the model reads none."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        ...

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        ...

    @property
    def options(self) -> EmbedderOptions:
        """Device, dtype and batch size, for the embedder that follows this one."""
        ...

    @property
    def max_siblings(self) -> int:
        """Siblings that are read with a document, at most; 0 for a model that reads none."""
        ...

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found; see `ContextualEmbedder.embed_documents`."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search."""
        ...

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents, each given exactly these siblings."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts after truncation."""
        ...

    def with_context(self, context: Context) -> "Embedder":
        """Return an embedder of the same model in another Context.

        Raises:
            ContextMismatchError: The Context was made by other weights.
        """
        ...


@runtime_checkable
class EmbedderWrapper(Protocol):
    """Interface of an embedder whose texts are embedded by another one, such as through the batches of a server."""

    @property
    def embedder(self) -> Embedder:
        """Embedder that embeds."""
        ...

    def with_embedder(self, embedder: Embedder) -> Embedder:
        """Return the same wrapper of another embedder."""
        ...


def unwrapped(embedder: Embedder) -> Embedder:
    """Return the embedder that embeds, without its wrapper."""
    return embedder.embedder if isinstance(embedder, EmbedderWrapper) else embedder


def wrapped_like(embedder: Embedder, other: Embedder) -> Embedder:
    """Wrap an embedder as another one is wrapped, if that is."""
    return other.with_embedder(embedder) if isinstance(other, EmbedderWrapper) else embedder

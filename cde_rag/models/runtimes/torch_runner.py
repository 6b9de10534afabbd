"""Stages of a model run by torch, on any device that it has."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from cde_rag.models.batching import padded
from cde_rag.models.runtimes.attention import AUTO, use_attention
from cde_rag.models.runtimes.stage_runner import QUERY
from cde_rag.models.runtimes.threads import batch_threads, limited_threads

if TYPE_CHECKING:
    from cde_rag.models.families import AnyNetwork

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchRunner:
    """A network of torch with arrays in and out. The first stage and the path of the context run in float32.

    Args:
        network: Both stages, float32.
        device: Device of the computation, such as "cpu" or "cuda".
        dtype: "float32", "bfloat16" or "float16", for the second stage's layers.
        attention: Attention of the second stage, as in `use_attention`.

    Attributes:
        attention: "sdpa" or "flash_attention_2".
        threads: CPU threads of a batch, at least 1; a single query takes one.
    """

    def __init__(self, network: "AnyNetwork", device: str, dtype: str, attention: str = AUTO) -> None:
        self.runtime = "torch"
        self.device, self.dtype = device, dtype
        self.threads = batch_threads()
        self.tokens_at_once: int | None = None
        self.config = network.config
        self.network = network.to(device)
        self.network.set_dtype(DTYPES[dtype])
        self.attention = use_attention(self.network.native_encoder, attention, device=device, dtype=dtype)

    def read(self, rows: Sequence[Sequence[int]]) -> Float32[np.ndarray, "batch dim"]:
        """Embed token ids with the first stage."""
        ids, mask = pad(rows)
        with torch.inference_mode(), limited_threads(self.threads):
            return self.network.read(ids.to(self.device), mask.to(self.device)).cpu().numpy()

    def prepare(self, context: Float32[np.ndarray, "context dim"], counts: Int[np.ndarray, " context"]) -> object:
        """Compute the input of the second stage from context embeddings, once per Context."""
        with torch.inference_mode():
            return self.network.prepare(
                torch.tensor(context, device=self.device), torch.tensor(counts, device=self.device)
            ).to(DTYPES[self.dtype])

    def embed(
        self,
        rows: Sequence[Sequence[int]],
        role: int,
        prepared: Any,
        siblings: Float32[np.ndarray, "batch siblings dim"] | None,
        sibling_mask: Bool[np.ndarray, "batch siblings"] | None,
    ) -> Float32[np.ndarray, "batch dim"]:
        """Embed one batch of token ids with the second stage."""
        ids, mask = (each.to(self.device) for each in pad(rows))
        given = None if siblings is None else torch.tensor(siblings, device=self.device)
        there = None if sibling_mask is None else torch.tensor(sibling_mask, device=self.device)
        threads = 1 if role == QUERY and len(rows) == 1 else self.threads
        with torch.inference_mode(), limited_threads(threads):
            vectors: Tensor = self.network(ids, mask, role, prepared, given, there)
        return vectors.cpu().numpy()


def pad(rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
    """Pad token ids as `batching.padded`, as tensors."""
    ids, mask = padded(rows)
    return torch.as_tensor(ids), torch.as_tensor(mask)

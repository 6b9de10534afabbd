"""Late chunking: chunks of a document are read together in windows, and each is pooled over its own tokens.

Source: Günther et al. (2024), without overlap between windows; context and siblings come in as for single texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float32

from cde_rag.context.siblings import sibling_positions
from cde_rag.errors import CorpusError
from cde_rag.models.batching import tight_buckets
from cde_rag.models.model import Embedded
from cde_rag.models.one_way.array_context import ArrayContext
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.threads import limited_threads
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag.models.token_batches import SiblingVectors

if TYPE_CHECKING:
    from cde_rag.models.cde_model import CDEModel


@dataclass(frozen=True)
class _ChunkWindow:
    """Consecutive chunks of a document that are read together.

    Attributes:
        chunks: Positions of the chunks.
        ids: Token ids, the special tokens at begin and end included.
        starts: First token of each chunk, and the end of the last.
    """

    chunks: Sequence[int]
    ids: list[int]
    starts: list[int]


class LateChunking:
    """Late chunking by a one-way model in a context; the second stage runs in torch, on the model's device.

    Args:
        model: A one-way model in any runtime.
        network: Its network.
        prepared: Context that the model prepared.
        sibling_rule: Rule by which siblings are chosen.
    """

    def __init__(
        self, model: "CDEModel", network: TwoStage, prepared: PreparedContext | ArrayContext, sibling_rule: int
    ) -> None:
        self._model, self._network, self._rule = model, network, sibling_rule
        self._prepared = (
            PreparedContext(**{name: torch.as_tensor(value) for name, value in vars(prepared).items()})  # no copies
            if isinstance(prepared, ArrayContext)
            else prepared
        )

    def __call__(self, documents: Sequence[Sequence[str]], mini_batch_size: int) -> Embedded:
        """Embed all chunks, in their order.

        Args:
            documents: Chunks of each document, in its order.
            mini_batch_size: Windows per forward pass.

        Raises:
            CorpusError: A chunk is blank or holds a lone surrogate, or a document has no chunk.
        """
        if (empty := next((place for place, one in enumerate(documents) if not one), None)) is not None:
            raise CorpusError(f"Document {empty} has no chunk. Leave it out.")
        texts = [chunk for document in documents for chunk in document]
        parents = [str(place) for place, document in enumerate(documents) for _ in document]
        tokens = self._model.tokenize(texts)
        truncated = np.array([each.truncated for each in tokens], np.bool_)
        vectors = np.empty((len(texts), self._model.dim), np.float32)
        limit = self._model.config.max_siblings
        rows = sibling_positions(parents, texts, limit, rule=self._rule)
        windows = list(chunk_windows([each.ids for each in tokens], parents, self._model.config.max_length))
        outside = [_outside(window, rows) for window in windows]
        own = SiblingVectors(self._model, [[texts[place] for place in row] for row in rows])
        around = SiblingVectors(self._model, [[texts[place] for place in row] for row in outside])
        for bucket in tight_buckets([len(window.ids) for window in windows], mini_batch_size):
            batch = [windows[place] for place in bucket]
            members = [place for window in batch for place in window.chunks]
            vectors[members] = self._embedded(batch, own.padded(members), around.padded(bucket))
        return Embedded(vectors, truncated)

    def _embedded(
        self,
        batch: Sequence[_ChunkWindow],
        own: tuple[Float32[np.ndarray, "chunks siblings dim"] | None, Bool[np.ndarray, "chunks siblings"] | None],
        around: tuple[Float32[np.ndarray, "windows others dim"] | None, Bool[np.ndarray, "windows others"] | None],
    ) -> Float32[np.ndarray, "chunks dim"]:
        device = self._model.device
        ids, mask = (each.to(device) for each in pad([window.ids for window in batch]))
        rows = [row for row, window in enumerate(batch) for _ in window.chunks]
        spans = torch.zeros(len(rows), ids.shape[1], dtype=torch.bool)
        chunk = 0
        for window in batch:
            first, last = window.starts[0], window.starts[-1]
            for start, end in zip(window.starts, window.starts[1:], strict=False):
                spans[chunk, :first] = spans[chunk, start:end] = spans[chunk, last : len(window.ids)] = True
                chunk += 1
        given = [None if each is None else torch.tensor(each, device=device) for each in (*own, *around)]
        with torch.inference_mode(), limited_threads(self._model.threads):
            made = self._network.chunks(ids, mask, spans.to(device), torch.tensor(rows), self._prepared, *given)
        return made.cpu().numpy()


def chunk_windows(tokens: Sequence[list[int]], parents: Sequence[str], most: int) -> Iterator[_ChunkWindow]:
    """Yield windows of consecutive chunks of one parent with at most `most` tokens; a longer chunk is one alone.

    Args:
        tokens: Token ids of each chunk, with one special token at its begin and one at its end.
        parents: Parent of each chunk; those of one parent are consecutive.
        most: Maximum number of tokens of a window, special ones included.
    """
    begin = 0
    while begin < len(tokens):
        end, length = begin + 1, len(tokens[begin])
        while end < len(tokens) and parents[end] == parents[begin] and length + len(tokens[end]) - 2 <= most:
            length += len(tokens[end]) - 2
            end += 1
        starts = [1]
        for place in range(begin, end):
            starts.append(starts[-1] + len(tokens[place]) - 2)
        inner = [token for place in range(begin, end) for token in tokens[place][1:-1]]
        yield _ChunkWindow(range(begin, end), [tokens[begin][0], *inner, tokens[begin][-1]], starts)
        begin = end


def _outside(window: _ChunkWindow, rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the siblings of a window's first chunk that are not in the window."""
    return [place for place in rows[window.chunks[0]] if place not in window.chunks]

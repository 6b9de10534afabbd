"""Pools of worker processes that embed passages.

A pool splits the passages of one call into slices, embeds these on its workers, and puts the vectors together again in
order. A worker loads the model by name, or from its folder, and reads the Context from the pool: nothing but texts,
vectors and the Context's bytes goes from one process to another.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from cde_rag._validation import check_texts
from cde_rag.embedders.protocol import Embedded
from cde_rag.models.runtimes.attention import AUTO, Attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import ContextualEmbedder

SLICE: Final = 256  # passages of one slice: some seconds on a CPU, so that a killed worker costs little


@dataclass(frozen=True, slots=True)
class EmbedderSpec:
    """Description of an embedder, from which a worker loads it.

    Attributes:
        model: Name of the model.
        folder: Folder of its files on the machine of the pool; empty for a model of the hub.
        context: The Context's bytes.
        dtype: Dtype of the model as it was given; None: as the model's class says.
        mini_batch_size: Texts per forward pass.
        runtime: Runtime of the model as it was given; None: the fastest of the worker's machine.
        attention: Attention of the model as it was given, as in `EmbedderOptions`.
    """

    model: str
    folder: str
    context: bytes
    dtype: Dtype | None
    mini_batch_size: int
    runtime: Runtime | None = None
    attention: Attention = AUTO

    @classmethod
    def of(cls, embedder: "ContextualEmbedder") -> "EmbedderSpec":
        """Describe an embedder."""
        folder = embedder.model.folder
        return cls(
            model=embedder.context.identity.name,
            folder="" if folder is None else str(Path(folder).resolve()),
            context=embedder.context.to_bytes(),
            dtype=embedder.model.given_dtype,
            runtime=embedder.model.given_runtime,
            attention=embedder.model.given_attention,
            mini_batch_size=embedder.mini_batch_size,
        )


@runtime_checkable
class Pool(Protocol):
    """Worker processes that embed passages. Thread-safe."""

    workers: int
    """Number of worker processes."""

    def embed(self, spec: EmbedderSpec, slices: Sequence["Slice"]) -> Iterator[tuple[int, Embedded]]:
        """Embed slices; yields the position of each with its vectors, in any order.

        Raises:
            PoolError: Workers ended again and again, or none finished a slice in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Passages that one worker embeds at once.

    Attributes:
        texts: Documents.
        siblings: For each text the texts of its siblings; None where no text has any.
    """

    texts: list[str]
    siblings: list[list[str]] | None


def embed_on(
    pool: Pool, embedder: "ContextualEmbedder", texts: Sequence[str], siblings: Sequence[Sequence[str]] | None
) -> Embedded:
    """Embed passages on a pool; equal to `embed_passages` of the embedder up to rounding.

    Args:
        pool: Workers.
        embedder: Embedder of the space.
        texts: Documents.
        siblings: As in `ContextualEmbedder.embed_passages`.

    Raises:
        CorpusError: A text is blank, or no valid Unicode; with its position.
        PoolError: As `Pool.embed`.
    """
    check_texts(texts)
    slices = _slices(texts, siblings, -(-len(texts) // pool.workers))
    starts = np.cumsum([0, *(len(each.texts) for each in slices)])
    vectors = np.empty((len(texts), embedder.dim), dtype=np.float32)
    truncated = np.zeros(len(texts), dtype=np.bool_)
    for position, embedded in pool.embed(EmbedderSpec.of(embedder), slices):
        part = slice(starts[position], starts[position + 1])
        vectors[part], truncated[part] = embedded.vectors, embedded.truncated
    return Embedded(vectors, truncated)


def _slices(texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, longest: int) -> list[Slice]:
    """Cut passages, in order, into slices of about SLICE passages, at most `longest`, that end where a parent ends.

    Passages of one slice share the vectors of their siblings. A parent that is longer than a slice is cut.
    """
    cuts, size = [0], min(SLICE, longest)
    for place in range(1, len(texts)):
        long = place - cuts[-1]
        if long >= 2 * size or (long >= size and (siblings is None or texts[place - 1] not in siblings[place])):
            cuts.append(place)
    return [
        Slice(list(texts[start:end]), None if siblings is None else [list(row) for row in siblings[start:end]])
        for start, end in itertools.pairwise([*cuts, len(texts)])
    ]

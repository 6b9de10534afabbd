"""Concatenation of two encoders to one model, their scores scaled alike and their embeddings rotated: `make_pair`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CorpusError, ModelError
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.pair import checkpoint as pair_checkpoint
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.pair.network import PairNetwork
from cde_rag.models.pair.tokenizer import PairTokenizer
from cde_rag_training.data.pairs import Pair
from cde_rag_training.networks.e5_file import E5File
from cde_rag_training.networks.rotation import shared_axes


def make_pair(
    second: E5File,
    pairs: Sequence[Pair],
    kept: np.ndarray,
    folder: Path,
    *,
    first: str = "cde-mini-1",
) -> Path:
    """Write a pair of a bundled one-way model and e5, both on the scale that training pairs have.

    Args:
        second: The second half.
        pairs: Say what the scale and the rotation are; the same number of each source is best.
        kept: Ids of the second half's pieces that are kept.
        folder: Of the new model, which has its name; must not exist.
        first: Bundled name of the first half.

    Returns:
        The folder.

    Raises:
        CorpusError: Fewer pairs than dimensions.
        ModelError: No such first half, or a folder that exists.
    """
    if folder.exists():
        raise ModelError(f"{folder}: expected a name for a new folder, found one that exists. Choose another.")
    one_way, tokenizer, digest = checkpoints.read(checkpoints.find(first))
    config = PairConfig(
        name=folder.name,
        first=first,
        first_sha256=digest,
        dim=one_way.config.dim + second.dim,
        second_dim=second.dim,
        vocab_size=len(kept),
        layers=second.layers,
        first_stage_max_length=one_way.config.first_stage_max_length,
        max_siblings=one_way.config.max_siblings,
    )
    if len(pairs) < config.dim:
        raise CorpusError(f"Expected {config.dim} pairs or more, one for each axis, found {len(pairs)}.")
    network = PairNetwork(config, one_way).eval().requires_grad_(requires_grad=False)
    network.second.load_state_dict(second.state(kept))
    both = PairTokenizer(tokenizer, one_way.config.vocab_size, second.tokenizer(kept))
    model = CDEModel(network, both, "0" * 64, device="cpu", dtype="float32")
    plain = ContextualEmbedder(model, Context.null(model))
    asked = plain.embed_queries([pair.query for pair in pairs])
    told = plain.embed_documents([pair.document for pair in pairs])
    share = second_share(asked, told, [pair.source for pair in pairs], one_way.config.dim)
    scales = torch.full((config.dim,), (2 * (1 - share)) ** 0.5)
    scales[one_way.config.dim :] = (2 * share) ** 0.5
    network.rotation = shared_axes(torch.from_numpy(asked) * scales, torch.from_numpy(told) * scales)
    network.config = replace(config, second_share=share)
    pair_checkpoint.write(folder, network, both)
    return folder


def second_share(
    queries: Float32[np.ndarray, "pairs dim"],
    documents: Float32[np.ndarray, "pairs dim"],
    sources: Sequence[str],
    first_dim: int,
) -> float:
    """The second half's share of a score that gives both halves' scores the same spread.

    The spread is the standard deviation over each query and all documents of its source but its own.

    Args:
        queries: Both halves' vectors, one behind the other, each of norm √½.
        documents: Row i answers query i.
        sources: Of each pair.
        first_dim: Dimensions of the first half.
    """
    names = np.asarray(sources)
    compared = (names[:, None] == names[None, :]) & ~np.eye(len(names), dtype=np.bool_)
    spreads = [
        float((queries[:, half] @ documents[:, half].T)[compared].std())
        for half in (slice(None, first_dim), slice(first_dim, None))
    ]
    return spreads[0] / (spreads[0] + spreads[1])

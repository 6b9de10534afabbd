"""Embeddings of a pair of encoders for millions of texts, on a GPU."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.models.pair import checkpoint as pair_checkpoint
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from lab.experiments.gpu_distillation.stage_material import log
from lab.experiments.gpu_distillation.text_pool import TextPool
from lab.experiments.gpu_distillation.token_rows import (
    GROUP_TOKENS,
    FlatTokens,
    autocast,
    embed,
    in_groups,
    null_context,
    tokenized,
)


@torch.no_grad()
def teacher_vectors(
    texts: TextPool, folder: Path, processes: int, device: str
) -> tuple[Float[Tensor, "texts teacher"], FlatTokens]:
    """Embed all texts with the pair under its null context; also return the student's token ids.

    Returns:
        Float16, unit norm; rows of the student's tokenizer, which is the first half's.
    """
    network, tokenizer, _ = pair_checkpoint.read(folder)
    network = network.to(device)
    config = network.config
    first_rows = tokenized(texts.texts, tokenizer.first.serialised, processes, device)
    prefixes = {QUERY: config.query_prefix, DOCUMENT: config.document_prefix}
    prefixed = [prefixes[role] + text for text, role in zip(texts.texts, texts.roles.tolist(), strict=True)]
    second_rows = tokenized(prefixed, tokenizer.serialised, processes, device)
    log(f"tokenized {len(texts.texts):,} texts: {first_rows.starts[-1]:,} and {second_rows.starts[-1]:,} tokens")
    everything, null, tokens = np.arange(len(texts.texts)), null_context(network.first), 4 * GROUP_TOKENS
    with autocast(device, torch.float16):
        first = embed(network.first, first_rows, everything, texts.roles, null, tokens)
        second = in_groups(
            everything,
            texts.roles,
            second_rows.lengths,
            tokens,
            lambda _, places: network.second(*second_rows.gather(places)),
        )
    return network.joined(first, second).half(), first_rows

"""Embeddings of a pair of encoders for millions of texts, on a GPU."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cde_rag.model.attention import mean_pool
from cde_rag.model.pair import pair_checkpoint
from cde_rag.model.roles import DOCUMENT, QUERY
from experiments.gpu_distillation.stage_material import log
from experiments.gpu_distillation.text_pool import TextPool
from experiments.gpu_distillation.token_rows import GROUP_TOKENS, FlatTokens, autocast, groups, null_context, tokenized


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
    null = null_context(network.first)
    everything = np.arange(len(texts.texts))
    halves: list[Tensor] = []
    for rows in (first_rows, second_rows):
        found = torch.zeros(len(everything), 384, dtype=torch.float32, device=device)
        for role, places in groups(everything, texts.roles, rows.lengths, 4 * GROUP_TOKENS):
            ids, mask = rows.gather(places)
            with autocast(device, torch.float16):
                if rows is first_rows:
                    vectors = network.first.second_stage(network.first.embeddings, ids, mask, role, null)
                else:
                    x = network.second.embeddings(ids)
                    for layer in network.second.layers:
                        x = layer(x, mask[:, None, None, :])
                    vectors = mean_pool(x, mask)
            found[torch.from_numpy(places).to(device)] = F.normalize(vectors.float(), dim=-1)
        halves.append(found)
    share = config.second_share
    both = torch.cat([(1 - share) ** 0.5 * halves[0], share**0.5 * halves[1]], dim=1) @ network.rotation
    return F.normalize(both, dim=-1).half(), first_rows

"""Turning a finished model's embeddings so that their first dimensions tell most: `rotate_model`."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.model import checkpoints, loading
from cde_rag.model.names import ModelName
from cde_rag.model.second_stage import DOCUMENT
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.prepared import Prepared
from cde_rag_training.stages import OneWayStages

MINI_BATCH = 64  # texts per forward pass


def principal_axes(vectors: Float[Tensor, "texts dim"]) -> Float[Tensor, "dim dim"]:
    """The orthogonal directions in which vectors are longest, most first, as columns.

    Cut after their first n dimensions, vectors turned this way keep the most of their squared length that any n
    directions keep; uncut, their products are as before.

    Source: principal component analysis without centring (Pearson 1901).
    """
    rows = vectors.double()
    axes = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(rows.T @ rows))[1]  # pyright: ignore[reportUnknownMemberType]
    return axes.flip(1).float().contiguous()


def rotate_model(trained: Path | str, prepared: Prepared, folder: Path, *, texts: int = 8192, seed: int = 0) -> Path:
    """Write a model whose embeddings are a trained one's, turned to the principal axes of documents.

    What Matryoshka training is for, without training: embeddings cut to their first dimensions keep most of what they
    find. Uncut they find what they found before, but for rounding. The rotation is one for all contexts; each context's
    own would depend, in directions that tell equally much, on the machine that computes it.

    Args:
        trained: Folder of the model, or a bundled name; one-way.
        prepared: Documents of it, under the null context, say what the axes are.
        folder: Of the new model, which has its name; must not exist.
        texts: Documents that are drawn, at most.
        seed: Of the draw.

    Returns:
        The folder.

    Raises:
        ModelError: No such model, a two-way one, or a folder that exists.
        ValueError: Fewer documents than dimensions.

    Source: ours; Kusupati et al. 2022 train such embeddings with a loss of their own.
    """
    if folder.exists():
        raise ModelError(f"{folder}: expected a name for a new folder, found one that exists. Choose another.")
    network, tokenizer, *_ = loading.load(ModelName.parse(str(trained)), token=None)
    if not isinstance(network, TwoStage):
        raise ModelError(f"{trained}: expected a one-way model, whose output map a rotation is part of, found another.")
    stages = OneWayStages(network, device="cpu", precision="float32")
    rows = np.unique(prepared.documents)
    if len(rows) > texts:
        rows = np.random.default_rng(seed).choice(rows, size=texts, replace=False)
    if len(rows) < stages.dim:
        raise ValueError(f"Expected {stages.dim} documents or more, one for each axis, found {len(rows)}.")
    ids = [stages.second_ids(prepared.texts[row], DOCUMENT) for row in rows.tolist()]
    given = stages.prepare(torch.zeros(0, stages.dim), [], [])
    axes = principal_axes(stages.embed(ids, DOCUMENT, given, mini_batch_size=MINI_BATCH))
    network.rotation = axes if network.rotation is None else network.rotation @ axes
    network.config = replace(network.config, name=folder.name, rotated=True)
    checkpoints.write(folder, network, tokenizer.serialised)
    return folder

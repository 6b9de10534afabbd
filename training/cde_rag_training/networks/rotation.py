"""Rotation of a finished model's embeddings for truncation to their first dimensions: `rotate_model`."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.errors import CorpusError, ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.networks.stages import OneWayStages

MINI_BATCH = 64  # texts per forward pass


def shared_axes(queries: Float[Tensor, "pairs dim"], documents: Float[Tensor, "pairs dim"]) -> Float[Tensor, "dim dim"]:
    """Compute orthogonal directions in which queries agree with their documents, most first, as columns.

    Truncated to their first n dimensions, vectors rotated this way keep the most of the pairs' dot products that any n
    directions keep; at full length, their dot products are unchanged.

    Source: ours; the eigenvectors of the symmetric part of the pairs' second moment. The principal axes of documents
    alone also keep differences between documents that no query depends on.
    """
    moment = queries.double().T @ documents.double()
    axes = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(moment + moment.T))[1]  # pyright: ignore[reportUnknownMemberType]
    return axes.flip(1).float().contiguous()


def rotate_model(trained: Path | str, prepared: Prepared, folder: Path, *, pairs: int = 8192, seed: int = 0) -> Path:
    """Write a copy of a model whose embeddings are rotated to the axes that queries share with their documents.

    An alternative to Matryoshka training that needs no training: embeddings truncated to their first dimensions keep
    most of their retrieval quality. Full embeddings give the same results, except for rounding. The rotation is the
    same for all contexts; one per context would depend, in directions of equal weight, on the machine that computes it.

    Args:
        trained: Folder of the model, or a bundled name; one-way.
        prepared: Pairs to compute the axes from, under the null context.
        folder: Folder of the new model, which takes its name; must not exist.
        pairs: Maximum number of sampled pairs.
        seed: Random seed of the sample.

    Returns:
        The folder.

    Raises:
        CorpusError: Fewer pairs than dimensions, or prepared with another tokenizer.
        ModelError: No such model, a two-way one, or a folder that exists.

    Source: ours; Kusupati et al. 2022 train such embeddings with a loss of their own.
    """
    if folder.exists():
        raise ModelError(f"{folder}: expected a name for a new folder, found one that exists. Choose another.")
    network, tokenizer, _ = ModelSource.find(ModelName.parse(str(trained))).network()
    if not isinstance(network, TwoStage):
        raise ModelError(f"{trained}: expected a one-way model, whose output map a rotation is part of, found another.")
    if prepared.tokenizer_sha256 != tokenizer.sha256:
        raise CorpusError(
            f"{prepared.folder}: expected pairs that were prepared with the tokenizer of {trained}, found another one. "
            "Prepare them with the model that this one was trained from."
        )
    stages = OneWayStages(network, device="cpu", precision="float32")
    drawn = np.random.default_rng(seed).permutation(len(prepared))[:pairs]
    if len(drawn) < stages.dim:
        raise CorpusError(f"Expected {stages.dim} pairs or more, one for each axis, found {len(drawn)}.")
    given = stages.prepare(torch.zeros(0, stages.dim), [], [])
    queries, documents = (
        stages.embed(
            [stages.second_ids(prepared.texts[row], role) for row in rows[drawn].tolist()],
            role,
            given,
            mini_batch_size=MINI_BATCH,
        )
        for rows, role in ((prepared.queries, QUERY), (prepared.documents, DOCUMENT))
    )
    axes = shared_axes(queries, documents)
    network.rotation = axes if network.rotation is None else network.rotation @ axes
    network.config = replace(network.config, name=folder.name, rotated=True)
    checkpoints.write(folder, network, tokenizer.serialised)
    return folder

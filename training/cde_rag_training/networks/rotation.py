"""Turning a finished model's embeddings so that their first dimensions tell most: `rotate_model`."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cde_rag.errors import CorpusError, ModelError
from cde_rag.model import checkpoints, loading
from cde_rag.model.names import ModelName
from cde_rag.model.second_stage import DOCUMENT, QUERY
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.networks.stages import OneWayStages

MINI_BATCH = 64  # texts per forward pass


def shared_axes(queries: Float[Tensor, "pairs dim"], documents: Float[Tensor, "pairs dim"]) -> Float[Tensor, "dim dim"]:
    """The orthogonal directions in which queries agree with their documents, most first, as columns.

    Cut after their first n dimensions, vectors turned this way keep the most of the pairs' products that any n
    directions keep; uncut, their products are as before.

    Source: ours; the eigenvectors of the symmetric part of the pairs' second moment. The principal axes of documents
    alone keep what tells documents apart also where no query asks for it.
    """
    moment = queries.double().T @ documents.double()
    axes = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(moment + moment.T))[1]  # pyright: ignore[reportUnknownMemberType]
    return axes.flip(1).float().contiguous()


def rotate_model(trained: Path | str, prepared: Prepared, folder: Path, *, pairs: int = 8192, seed: int = 0) -> Path:
    """Write a model whose embeddings are a trained one's, turned to the axes that queries share with their documents.

    What Matryoshka training is for, without training: embeddings cut to their first dimensions keep most of what they
    find. Uncut they find what they found before, but for rounding. The rotation is one for all contexts; each context's
    own would depend, in directions that tell equally much, on the machine that computes it.

    Args:
        trained: Folder of the model, or a bundled name; one-way.
        prepared: Pairs of it, under the null context, say what the axes are.
        folder: Of the new model, which has its name; must not exist.
        pairs: That are drawn, at most.
        seed: Of the draw.

    Returns:
        The folder.

    Raises:
        CorpusError: Fewer pairs than dimensions, or prepared with another tokenizer.
        ModelError: No such model, a two-way one, or a folder that exists.

    Source: ours; Kusupati et al. 2022 train such embeddings with a loss of their own.
    """
    if folder.exists():
        raise ModelError(f"{folder}: expected a name for a new folder, found one that exists. Choose another.")
    network, tokenizer, *_ = loading.load(ModelName.parse(str(trained)), token=None)
    if not isinstance(network, TwoStage):
        raise ModelError(f"{trained}: expected a one-way model, whose output map a rotation is part of, found another.")
    if prepared.tokenizer_sha256 != tokenizer.sha256:
        raise CorpusError(
            f"{prepared.folder}: expected pairs that were prepared with the tokenizer of {trained}, found another one. "
            "Prepare them with what the model was trained from."
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

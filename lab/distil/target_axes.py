"""Target space of a distillation: the teacher's embeddings in the student's dimensions, near the student's start."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cde_rag.errors import CorpusError

Projection = Literal["leading", "principal"]


@dataclass(frozen=True)
class TargetSpace:
    """Linear map of the teacher's embeddings to the student's space.

    Attributes:
        axes: Orthonormal columns; a target is the normalised product of an embedding with them.
        mean: Mean target of the texts that the axes were computed from.
    """

    axes: Float[Tensor, "teacher student"]
    mean: Float[Tensor, " student"]

    def targets(self, vectors: Float[Tensor, "texts teacher"]) -> Float[Tensor, "texts student"]:
        """Compute targets of unit norm."""
        return F.normalize(vectors.float() @ self.axes, dim=-1)


def projection_axes(
    vectors: Float[Tensor, "texts teacher"], is_query: Float[Tensor, " texts"], dim: int, kind: Projection
) -> Float[Tensor, "teacher student"]:
    """Compute the directions of the teacher's space that the student's dimensions stand for.

    Args:
        vectors: The teacher's embeddings of training texts.
        is_query: 1 for queries, 0 for documents; both roles have equal weight.
        dim: Dimensions of the student.
        kind: "leading": the teacher's first dimensions, for a teacher whose axes are sorted by what they tell;
            "principal": the principal axes of the uncentred second moment, which keep the most of the squared norms.

    Raises:
        CorpusError: Fewer texts or dimensions than the student has.
    """
    if min(vectors.shape) < dim:
        raise CorpusError(
            f"Expected texts and dimensions of the teacher for {dim} axes, found {vectors.shape[0]} and "
            f"{vectors.shape[1]}. Give more texts, or a smaller student."
        )
    if kind == "leading":
        return torch.eye(vectors.shape[1])[:, :dim].contiguous()
    shares = is_query / is_query.sum().clamp(min=1) + (1 - is_query) / (1 - is_query).sum().clamp(min=1)
    rows = vectors.double()
    moment = (rows * shares.double()[:, None]).T @ rows
    axes = cast("tuple[Tensor, Tensor]", torch.linalg.eigh(moment))[1]  # pyright: ignore[reportUnknownMemberType]
    return axes.flip(1)[:, :dim].float().contiguous()


def aligned(
    axes: Float[Tensor, "teacher student"],
    vectors: Float[Tensor, "texts teacher"],
    student: Float[Tensor, "texts student"],
) -> tuple[TargetSpace, Float[Tensor, " student"]]:
    """Rotate the target space to be as near as possible to the student's embeddings, which changes no score.

    Both sets of embeddings are centred first, so that what all targets have in common does not decide the rotation.

    Args:
        axes: Result of `projection_axes`.
        vectors: The teacher's embeddings.
        student: The student's embeddings of the same texts, unit norm.

    Returns:
        The target space, and the constant which, added to the student's unit vectors before they are normalised again,
        gives them the targets' mean direction.

    Source: Schönemann 1966 (orthogonal Procrustes); the constant is ours.
    """
    targets = F.normalize(vectors.float() @ axes, dim=-1).double()
    ours = student.double()
    centred, own = targets - targets.mean(0), ours - ours.mean(0)
    left, singular, right = cast("tuple[Tensor, Tensor, Tensor]", torch.linalg.svd(centred.T @ own))  # pyright: ignore[reportUnknownMemberType]
    rotation = left @ right
    scale = singular.sum() / own.square().sum()  # of the student's centred embeddings, by least squares
    mean = targets.mean(0) @ rotation
    shift = mean / scale.clamp(min=1e-6) - ours.mean(0)
    return TargetSpace((axes.double() @ rotation).float().contiguous(), mean.float()), shift.float()

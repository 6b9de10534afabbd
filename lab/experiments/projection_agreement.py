"""Agreement of a teacher's projections with the teacher, on training texts: the choice of a distillation's target.

python -m lab.experiments.projection_agreement runs/texts
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CorpusError
from cde_rag.models.runtimes.stage_runner import QUERY
from lab.distil.target_axes import projection_axes
from lab.distil.teacher_shards import TeacherShards

NEAREST = 10


def sampled(
    shards: TeacherShards, count: int = 2
) -> tuple[Bool[np.ndarray, " texts"], Float32[np.ndarray, "texts dim"]]:
    """Read the roles (True for queries) and the teacher's embeddings of the first shards.

    Raises:
        CorpusError: The embeddings are not there yet.
    """

    def missing() -> ContextualEmbedder:
        raise CorpusError(f"{shards.folder}: run python -m lab.distil prepare with --embed {count} first.")

    roles = [each.role for number in range(count) for each in shards.read(number)]
    vectors = [shards.vectors(number, missing) for number in range(count)]
    return np.array(roles) == QUERY, np.concatenate(vectors).astype(np.float32)


def projections(shards: TeacherShards, dim: int) -> dict[str, Float32[np.ndarray, "dim few"]]:
    """Compute both projections of a distillation from its first shards."""
    is_query, vectors = sampled(shards)
    given = torch.from_numpy(vectors), torch.from_numpy(is_query).float()
    return {kind: projection_axes(*given, dim, kind).numpy() for kind in ("leading", "principal")}


def agreement(
    queries: Float32[np.ndarray, "queries dim"],
    documents: Float32[np.ndarray, "documents dim"],
    axes: Float32[np.ndarray, "dim few"],
) -> float:
    """Return the share of each query's ten nearest documents that are also its ten nearest after a projection."""
    few = [each @ axes for each in (queries, documents)]
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in few]
    before, after = (
        np.argsort(-(one @ other.T), axis=1, kind="stable")[:, :NEAREST] for one, other in ((queries, documents), unit)
    )
    shared = [len(set(one) & set(other)) for one, other in zip(before.tolist(), after.tolist(), strict=True)]
    return float(np.mean(shared) / NEAREST)


def main() -> None:
    """Print the agreement of each projection."""
    parser = argparse.ArgumentParser(description="Agreement of projections with the teacher on training texts.")
    parser.add_argument("texts", type=Path, help="folder of python -m lab.distil prepare")
    parser.add_argument("--dim", type=int, default=384, help="dimensions of the student")
    asked = parser.parse_args()
    shards = TeacherShards(asked.texts)
    is_query, vectors = sampled(shards)
    for kind, axes in projections(shards, asked.dim).items():
        share = agreement(vectors[is_query], vectors[~is_query], axes)
        sys.stdout.write(f"{kind:<10} {100 * share:5.1f} %\n")


if __name__ == "__main__":
    main()

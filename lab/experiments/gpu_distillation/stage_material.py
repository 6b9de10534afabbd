"""Material of the training stages: token ids, the teacher's embeddings, target space, development sets."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from safetensors.torch import load_file
from torch import Tensor

from cde_rag.context.siblings import siblings_by_position
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from lab.experiments.gpu_distillation.token_rows import FlatTokens, embed_all, null_context, tokenized

STARTED: Final = time.monotonic()
FEWEST_HEADINGS: Final = 20  # of a set that is evaluated by headings alone


def log(message: str) -> None:
    """Print a line with the time since the start."""
    memory = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    print(f"{time.monotonic() - STARTED:7.1f} s  {memory:.0f} GB  {message}", flush=True)


@dataclass
class StageMaterial:
    """Texts, pairs, the teacher's embeddings and development sets, on the GPU.

    Attributes:
        rows: The student's token ids.
        roles: Of each text.
        pairs: As in `TextPool`.
        trained: As in `TextPool`.
        teacher: The teacher's embeddings, float16.
        axes: Of the target space.
        mean: Mean target.
        development: Development sets.
    """

    rows: FlatTokens
    roles: Int64[np.ndarray, " texts"]
    pairs: Int64[np.ndarray, "pairs 6"]
    trained: int
    teacher: Float[Tensor, "texts teacher"]
    axes: Float[Tensor, "teacher student"]
    mean: Float[Tensor, " student"]
    development: list["DevelopmentSet"]

    def targets(self, chosen: Tensor) -> Float[Tensor, "chosen student"]:
        """Return targets of unit norm."""
        return F.normalize(self.teacher[chosen].float() @ self.axes, dim=-1)


class DevelopmentSet(NamedTuple):
    """A development set with token ids, judgments and siblings.

    Attributes:
        name: Of the set.
        queries: Token ids.
        documents: Token ids.
        gains: Judgments, 0 where there is none.
        siblings: Numbers of each document's siblings; empty without parents.
        headings: Token ids of queries that are a heading alone, and their judgments; None if there are few.
    """

    name: str
    queries: FlatTokens
    documents: FlatTokens
    gains: Float[Tensor, "queries documents"]
    siblings: list[list[int]]
    headings: tuple[FlatTokens, Float[Tensor, "headings documents"]] | None


def development_sets(path: Path, serialised: str, device: str) -> list[DevelopmentSet]:
    """Read a file of `write_development`."""
    return [_development_set(one, serialised, device) for one in json.loads(path.read_text(encoding="utf-8"))]


def _development_set(one: dict[str, Any], serialised: str, device: str) -> DevelopmentSet:
    gains = torch.zeros(len(one["queries"]), len(one["documents"]), device=device)
    for number, judged in enumerate(one["judgments"]):
        for place, gain in judged:
            gains[number, place] = gain
    queries, documents = (tokenized(one[kind], serialised, 2, device) for kind in ("queries", "documents"))
    kept = [number for number, heading in enumerate(one["headings"]) if heading]
    headings = None
    if len(kept) > FEWEST_HEADINGS:
        rows = tokenized([one["headings"][number] for number in kept], serialised, 2, device)
        headings = rows, gains[torch.tensor(kept, device=device)]
    return DevelopmentSet(one["name"], queries, documents, gains, one["siblings"], headings)


def ndcg(scores: Float[Tensor, "queries documents"], gains: Float[Tensor, "queries documents"]) -> float:
    """Return NDCG@10 × 100, the mean over queries."""
    depth = min(10, scores.shape[1])
    discount = 1 / torch.log2(torch.arange(depth, device=scores.device) + 2.0)
    reached = (gains.gather(1, scores.topk(depth, dim=1).indices) * discount).sum(1)
    best = (gains.topk(depth, dim=1).values * discount).sum(1)
    return 100 * float((reached / best.clamp(min=1e-9)).mean())


@torch.no_grad()
def evaluate(network: TwoStage, material: StageMaterial) -> list[float]:
    """Return NDCG@10 × 100 of each development set under the null context."""
    null = null_context(network)
    return [null_ndcg(network, one, null) for one in material.development]


def null_ndcg(network: TwoStage, one: DevelopmentSet, null: PreparedContext) -> float:
    """Return NDCG@10 × 100 of a development set under the null context."""
    queries, documents = embed_all(network, one.queries, QUERY, null), embed_all(network, one.documents, DOCUMENT, null)
    return ndcg(queries @ documents.T, one.gains)


def load_material(keep: Path, device: str) -> StageMaterial:
    """Read the folder that the command texts made."""
    tensors = load_file(keep / "material.safetensors", device=device)
    kept = np.load(keep / "material.npz")
    serialised = (keep / "tokenizer.json").read_text(encoding="utf-8")
    rows = FlatTokens(tensors["ids"], kept["starts"])
    development = development_sets(keep / "development.json", serialised, device)
    return StageMaterial(
        rows,
        kept["roles"],
        kept["pairs"],
        int(kept["trained"]),
        tensors["teacher"],
        tensors["axes"],
        tensors["mean"],
        development,
    )


def write_development(toml: Path, data: Path, output: Path) -> None:
    """Write development sets as one JSON file, which travels to the GPU's machine."""
    from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
    from cde_rag_training.recipe import read_recipe

    found = []
    for one in read_sets(read_recipe(toml, SetsConfig), data):
        places = {name: place for place, name in enumerate(one.corpus.ids)}
        judgments = [
            [[places[name], gain] for name, gain in judged.items() if name in places] for judged in one.judgments
        ]
        parents = one.corpus.parents or (None,) * len(places)
        pages: dict[str, list[int]] = {}
        for place, parent in enumerate(parents):
            if parent is not None:
                pages.setdefault(parent, []).append(place)
        siblings = [[] if parent is None else _siblings(pages[parent], place) for place, parent in enumerate(parents)]
        bare = [query.partition(": ")[2] for query in one.queries]
        headed = one.corpus.name.startswith("parents_")
        found.append(
            {
                "name": one.corpus.name,
                "queries": list(one.queries),
                "documents": list(one.corpus.texts),
                "judgments": judgments,
                "siblings": siblings,
                "headings": [each if headed and len(each.split()) > 1 else "" for each in bare],
            }
        )
    output.write_text(json.dumps(found), encoding="utf-8")


def _siblings(page: list[int], place: int) -> list[int]:
    return [page[other] for other in siblings_by_position(page.index(place), len(page))]

"""Choice of a run, its share of the weights, the exponent and the siblings' weight, on development sets."""

import argparse
import json
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.context_path import PreparedContext, sibling_weight
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from lab.experiments.gpu_distillation.stage_material import DevelopmentSet, development_sets, log, ndcg, null_ndcg
from lab.experiments.gpu_distillation.token_rows import embed_all, first_vectors, null_context, siblings_of

SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the student at the start to a run's, in all tensors
EXPONENTS: Final = (0.0, 0.05, 0.1, 0.2)  # of the output map
SIBLINGS: Final = (0.5, 1.0)  # times the trained weight of siblings


class FirstVectors(NamedTuple):
    """First-stage vectors and own context of a set.

    Attributes:
        vectors: First-stage vectors of the documents.
        own: The corpus's own context, its output map the identity.
        maps: Output map of each exponent.
        likeness: Of the corpus, as in `sibling_weight`.
    """

    vectors: Float[Tensor, "documents dim"]
    own: PreparedContext
    maps: list[Float[Tensor, "dim dim"]]
    likeness: float


@torch.no_grad()
def read(network: TwoStage, one: DevelopmentSet) -> FirstVectors:
    """Read a set's documents with the first stage, and prepare the context of up to 512 of them."""
    count = len(one.documents.lengths)
    vectors = first_vectors(network, one.documents, np.arange(count))
    sample = np.random.default_rng(0).permutation(count)[:512]
    context = vectors[torch.from_numpy(sample).to(vectors.device)]
    counts = torch.ones(len(context), dtype=torch.long, device=vectors.device)
    own = network.second_stage.prepare(
        network.set_attention(context, counts),
        torch.eye(network.config.dim, device=vectors.device),
        sibling_weight(context, counts, network.config.full_likeness),
    )
    maps: list[Tensor] = []
    for exponent in EXPONENTS:
        network.output_map.exponent.fill_(exponent)
        maps.append(network.output_map(context, counts))
    return FirstVectors(vectors, own, maps, float(sibling_weight(context, counts, 1.0)))


def choice_figures(network: TwoStage, one: DevelopmentSet, reading: FirstVectors) -> list[dict[str, Any]]:
    """Return NDCG@10 × 100 of one set under null and own context, with siblings, and for each exponent."""
    null = null_ndcg(network, one, null_context(network))
    found: list[dict[str, Any]] = [{"system": "null", "ndcg": round(null, 3)}]
    asked = {"queries": (embed_all(network, one.queries, QUERY, reading.own), one.gains)}
    if one.headings is not None:
        asked["headings"] = (embed_all(network, one.headings[0], QUERY, reading.own), one.headings[1])
    answers = {0.0: embed_all(network, one.documents, DOCUMENT, reading.own)}
    if (siblings := siblings_of(reading.vectors, one.siblings)) is not None:
        for weight in SIBLINGS:
            weighed = replace(reading.own, sibling_weight=reading.own.sibling_weight * weight)
            answers[weight] = embed_all(network, one.documents, DOCUMENT, weighed, siblings)
    for kind, (ours, gains) in asked.items():
        for weight, theirs in answers.items():
            for exponent, each in zip(EXPONENTS, reading.maps, strict=True):
                queries, documents = (F.normalize(vectors @ each, dim=-1) for vectors in (ours, theirs))
                figure = round(ndcg(queries @ documents.T, gains), 3)
                found.append({"system": kind, "siblings": weight, "exponent": exponent, "ndcg": figure})
    found.append({"system": "likeness", "ndcg": reading.likeness})
    return [{"set": one.name, **row} for row in found]


def run_choice(arguments: argparse.Namespace, device: str) -> None:
    """Evaluate interpolations of the student at the start and a run on the development sets."""
    keep, out = arguments.keep, arguments.out
    serialised = (keep / "tokenizer.json").read_text(encoding="utf-8")
    sets = development_sets(arguments.development, serialised, device)
    network, _, _ = checkpoints.read(arguments.student)
    network = network.to(device)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    trained = load_file(keep / f"{arguments.name}.safetensors", device=device)
    found: list[dict[str, Any]] = []
    for share in SHARES:
        network.load_state_dict({name: torch.lerp(value, trained[name], share) for name, value in start.items()})
        for one in sets:
            rows = choice_figures(network, one, read(network, one))
            found += [{"run": arguments.name, "share": share, **row} for row in rows]
        (out / f"choice-{arguments.name}.json").write_text(json.dumps(found), encoding="utf-8")
        means = [row["ndcg"] for row in found if row["share"] == share and row["system"] == "null"]
        owns = [
            row["ndcg"]
            for row in found
            if row["share"] == share and row["system"] == "queries" and row["siblings"] == row["exponent"] == 0
        ]
        log(f"{arguments.name} {share}: null {np.mean(means):.2f}, own {np.mean(owns):.2f}")

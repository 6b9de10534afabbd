"""Choice of a run, its share of the weights, the exponent and the siblings' weight, on development sets."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from cde_rag.model import checkpoints
from cde_rag.model.context_path import PreparedContext, sibling_weight
from cde_rag.model.roles import DOCUMENT, QUERY
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.networks.interpolation import interpolate
from experiments.gpu_distillation.stage_material import DevelopmentSet, development_sets, log, ndcg
from experiments.gpu_distillation.token_rows import (
    GROUP_TOKENS,
    FlatTokens,
    autocast,
    embed,
    first_vectors,
    null_context,
    tokenized,
)

SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from stage 1's encoder to a run's


EXPONENTS: Final = (0.0, 0.05, 0.1, 0.2)  # of the output map


SIBLINGS: Final = (0.5, 1.0)  # times the trained weight of siblings


class ChoiceSet(NamedTuple):
    """A development set with contexts and siblings.

    Attributes:
        base: Token ids and judgments.
        siblings: Numbers of each document's siblings; none without parents.
        headings: Token ids of queries that are a heading alone, and their judgments; none if there are no such queries.
    """

    base: DevelopmentSet
    siblings: list[list[int]]
    headings: tuple[FlatTokens, Float[Tensor, "queries documents"]] | None


def choice_sets(path: Path, serialised: str, device: str) -> list[ChoiceSet]:
    """Read the 26 development sets."""
    found: list[ChoiceSet] = []
    for one, base in zip(
        json.loads(path.read_text(encoding="utf-8")), development_sets(path, serialised, device), strict=True
    ):
        kept = [number for number, heading in enumerate(one["headings"]) if heading]
        headings = None
        if len(kept) > 20:
            rows = tokenized([one["headings"][number] for number in kept], serialised, 1, device)
            headings = rows, base.gains[torch.tensor(kept, device=device)]
        found.append(ChoiceSet(base, one["siblings"], headings))
    return found


@torch.no_grad()
def choice_figures(network: TwoStage, one: ChoiceSet, device: str) -> list[dict[str, Any]]:
    """Return NDCG@10 × 100 of one set under null and own context, with siblings, and for each exponent."""
    documents, queries = one.base.documents, one.base.queries
    count = len(documents.lengths)
    everything = np.arange(count)
    read = first_vectors(network, documents, everything)
    sample = np.random.default_rng(0).permutation(count)[:512]
    context = read[torch.from_numpy(sample).to(device)]
    counts = torch.ones(len(context), dtype=torch.long, device=device)
    own = network.second_stage.prepare(
        network.set_attention(context, counts),
        torch.eye(network.config.dim, device=device),
        sibling_weight(context, counts, network.config.full_likeness),
    )
    null = null_context(network)
    moments = (context.double().T @ context.double()) / len(context)
    values, axes = torch.linalg.eigh(moments)
    relative, shift = (values.clamp(min=0) / values.mean()).float(), network.output_map.log_shift.exp()
    maps = [(axes.float() * ((relative + shift) / (1 + shift)) ** -exponent) @ axes.float().T for exponent in EXPONENTS]

    def vectors(rows: FlatTokens, role: int, prepared: PreparedContext, siblings: Any = None) -> Tensor:
        places = np.arange(len(rows.lengths))
        with autocast(device, torch.bfloat16):
            return embed(network, rows, places, np.full(len(places), role), prepared, 2 * GROUP_TOKENS, siblings)

    def figure(asked: Tensor, answers: Tensor, gains: Tensor) -> float:
        return round(ndcg(F.normalize(asked, dim=-1) @ F.normalize(answers, dim=-1).T, gains), 3)

    name = one.base.name
    found = [
        {
            "set": name,
            "system": "null",
            "ndcg": figure(vectors(queries, QUERY, null), vectors(documents, DOCUMENT, null), one.base.gains),
        }
    ]
    asked = {"queries": (vectors(queries, QUERY, own), one.base.gains)}
    if one.headings is not None:
        asked["headings"] = (vectors(one.headings[0], QUERY, own), one.headings[1])
    answers = {0.0: vectors(documents, DOCUMENT, own)}
    if any(one.siblings):
        width = max(map(len, one.siblings))
        rows = torch.tensor([[*each, *[0] * (width - len(each))] for each in one.siblings], device=device)
        there = torch.tensor(
            [[*[True] * len(each), *[False] * (width - len(each))] for each in one.siblings], device=device
        )
        given = read[rows] * there[:, :, None]
        for weight in SIBLINGS:
            weighed = replace(own, sibling_weight=own.sibling_weight * weight)
            answers[weight] = vectors(documents, DOCUMENT, weighed, (given, there))
    for kind, (ours, gains) in asked.items():
        for weight, theirs in answers.items():
            for exponent, each in zip(EXPONENTS, maps, strict=True):
                found.append(
                    {
                        "set": name,
                        "system": kind,
                        "siblings": weight,
                        "exponent": exponent,
                        "ndcg": figure(ours @ each, theirs @ each, gains),
                    }
                )
    found.append({"set": name, "system": "likeness", "ndcg": float(sibling_weight(context, counts, 1.0))})
    return found


def run_choice(arguments: argparse.Namespace, device: str) -> None:
    """Evaluate interpolations of stage 1 and a run on the development sets."""
    keep, out = arguments.keep, arguments.out
    serialised = (keep / "tokenizer.json").read_text(encoding="utf-8")
    sets = choice_sets(arguments.development, serialised, device)
    network, _, _ = checkpoints.read(arguments.student)
    network = network.to(device)
    start, trained = (
        load_file(keep / f"{name}.safetensors", device=device) for name in (arguments.start, arguments.name)
    )
    found: list[dict[str, Any]] = []
    for share in SHARES:
        network.load_state_dict(interpolate(start, trained, share))
        for one in sets:
            found += [{"run": arguments.name, "share": share, **row} for row in choice_figures(network, one, device)]
        (out / f"choice-{arguments.name}.json").write_text(json.dumps(found), encoding="utf-8")
        means = [row["ndcg"] for row in found if row["share"] == share and row["system"] == "null"]
        owns = [
            row["ndcg"]
            for row in found
            if row["share"] == share and row["system"] == "queries" and row["siblings"] == row["exponent"] == 0
        ]
        log(f"{arguments.name} {share}: null {np.mean(means):.2f}, own {np.mean(owns):.2f}")

"""Stages 2 and 3: training on pairs of one corpus, in a context and with siblings."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from cde_rag.model.context_path import sibling_weight
from cde_rag.model.two_stage import TwoStage
from lab.experiments.gpu_distillation.stage_material import StageMaterial
from lab.experiments.gpu_distillation.token_rows import (
    Siblings,
    autocast,
    embed,
    first_vectors,
    null_context,
    siblings_of,
)
from lab.experiments.gpu_distillation.vector_stage import Settings, VectorLoss, optimiser, train_by_clock


class CorpusBatch(NamedTuple):
    """Pairs of one corpus.

    Attributes:
        pairs: Rows of the pairs.
        queries: Rows of the queries' texts.
        documents: Rows of the documents' texts.
        headed: Rows of the documents headed by their parent's name and query.
        context: Rows of first-stage vectors; none: the null context.
        siblings: First-stage vectors of the documents' siblings and their mask; None without.
    """

    pairs: Int64[np.ndarray, " pairs"]
    queries: Int64[np.ndarray, " pairs"]
    documents: Int64[np.ndarray, " pairs"]
    headed: Int64[np.ndarray, " pairs"]
    context: Int64[np.ndarray, " context"]
    siblings: Siblings | None


class CorpusDraws:
    """Draws batches of pairs from one corpus, with a context from its other documents and siblings.

    Args:
        material: What is trained on.
        settings: Sizes and shares.
        vectors: First-stage vectors of the documents in `places`.
        places: Place of each text's vector, −1 where there is none.
        seed: Of the draws.
    """

    def __init__(
        self,
        material: StageMaterial,
        settings: Settings,
        vectors: Float[Tensor, "documents dim"],
        places: Int64[np.ndarray, " texts"],
        seed: int,
    ) -> None:
        self._material, self._settings, self._vectors, self._places = material, settings, vectors, places
        self._random = np.random.default_rng(seed)
        pairs = material.pairs
        order = np.argsort(pairs[:, 4], kind="stable")
        corpora = np.split(order, np.flatnonzero(np.diff(pairs[order, 4])) + 1)
        self._corpora = [each for each in corpora if len(each) >= settings.pairs + 32]
        sizes = np.sqrt([len(each) for each in self._corpora])
        self._shares = sizes / sizes.sum()
        with_parent = np.flatnonzero(pairs[:, 5] >= 0)
        by_parent = with_parent[np.argsort(pairs[with_parent, 5], kind="stable")]
        cut = np.flatnonzero(np.diff(pairs[by_parent, 5])) + 1
        self._pages = {int(pairs[page[0], 5]): pairs[page, 2] for page in np.split(by_parent, cut) if len(page) > 1}

    def draw(self) -> "CorpusBatch":
        """Draw one batch."""
        material, settings, random = self._material, self._settings, self._random
        corpus = self._corpora[int(random.choice(len(self._corpora), p=self._shares))]
        pairs = material.pairs
        if random.random() < 0.7:  # neighbours of one pair, among more or fewer others
            device = material.teacher.device
            wanted = int(settings.pairs * 2 ** random.uniform(0, 4))
            some = random.choice(corpus, min(len(corpus), max(4096, wanted)), replace=False)
            documents = torch.from_numpy(pairs[some, 2]).to(device)
            near = material.teacher[documents] @ material.teacher[documents[0]]
            nearest = near.topk(min(wanted, len(some))).indices.cpu().numpy()
            chosen = some[random.choice(nearest, settings.pairs, replace=False)]
        else:
            chosen = random.choice(corpus, settings.pairs, replace=False)
        context = np.zeros(0, dtype=np.int64)
        if random.random() >= settings.null_share:
            others = np.setdiff1d(corpus, chosen)
            size = min(len(others), int(2 ** random.uniform(5, 9)))
            context = self._places[pairs[random.choice(others, size, replace=False), 2]]
        siblings = None
        if random.random() < settings.sibling_share:
            siblings = self._siblings(chosen)
        asked = pairs[chosen, np.where(random.random(len(chosen)) < 0.5, 0, 1)]
        return CorpusBatch(chosen, asked, pairs[chosen, 2], pairs[chosen, 3], context, siblings)

    def _siblings(self, chosen: Int64[np.ndarray, " pairs"]) -> Siblings | None:
        pairs, most = self._material.pairs, self._settings.most_siblings
        found: list[list[int]] = []
        for row in chosen:
            page = self._pages.get(int(pairs[row, 5]))
            others = np.zeros(0, dtype=np.int64) if page is None else page[page != pairs[row, 2]]
            if len(others) > most:
                start = int(self._random.integers(0, len(others) - most + 1)) if self._random.random() < 0.5 else 0
                others = others[start : start + most]
            found.append(self._places[others].tolist())
        return siblings_of(self._vectors, found)


def corpus_loss(
    network: TwoStage, material: StageMaterial, settings: Settings, batch: CorpusBatch, vectors: Tensor
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Compute the contrastive loss and the distance to the targets of one corpus.

    A document with siblings has the middle of its own target and that of its headed text as its target. A document is
    no negative of a query if the teacher scores it above the query's own, or if it is the same.
    """
    device = material.teacher.device
    context = vectors[torch.from_numpy(batch.context).to(device)]
    counts = torch.ones(len(context), dtype=torch.long, device=device)
    with torch.autocast(device.type, enabled=False):
        latents = network.set_attention(context, counts)
        weight = sibling_weight(context, counts, network.config.full_likeness)
        turned = network.turned(torch.eye(network.config.dim, device=device))
        prepared = network.second_stage.prepare(latents, turned, weight)
    queries = embed(network, material.rows, batch.queries, material.roles, prepared)
    documents = embed(network, material.rows, batch.documents, material.roles, prepared, siblings=batch.siblings)
    rows = [torch.from_numpy(each).to(device) for each in (batch.queries, batch.documents, batch.headed)]
    asked, plain, headed = (material.teacher[each].float() for each in rows)
    with torch.autocast(device.type, enabled=False):
        target = plain
        if batch.siblings is not None:
            there = batch.siblings[1].any(dim=1, keepdim=True)
            target = torch.where(there, F.normalize(plain + headed, dim=-1), plain)
        goal = [F.normalize(each @ material.axes, dim=-1) for each in (asked, target)]
        distance = (torch.cat([queries, documents]) - torch.cat(goal)).square().sum(1).mean()
        scores = asked @ target.T
        same = (rows[1][:, None] == rows[1][None, :]) | (rows[0][:, None] == rows[0][None, :])
        mask = (scores > scores.diagonal()[:, None] - settings.margin) | same
        mask.fill_diagonal_(False)
        logits = queries @ documents.T / settings.temperature
        contrastive = F.cross_entropy(logits.masked_fill(mask, float("-inf")), torch.arange(len(logits), device=device))
        loss = settings.contrastive_weight * contrastive + settings.vector_weight * distance
    return loss, {"contrastive": contrastive, "target": distance}


def train_contexts(
    network: TwoStage, material: StageMaterial, settings: Settings, seconds: float, device: str
) -> list[dict[str, float]]:
    """Stages 2 and 3: half of each batch has a corpus and siblings, half is that of stage 1."""
    adam = optimiser(network, ("second_stage.", "set_attention."), settings.later_rate, settings)
    vector_loss = VectorLoss(material, settings, seed=3)
    documents = np.unique(material.pairs[:, 2])
    places = np.full(len(material.roles), -1)
    places[documents] = np.arange(len(documents))
    with torch.no_grad():
        vectors = first_vectors(network, material.rows, documents)
    corpora = CorpusDraws(material, settings, vectors, places, seed=4)

    def step() -> tuple[Float[Tensor, ""], dict[str, Tensor], int]:
        with autocast(device, torch.bfloat16):
            loss, parts, _ = vector_loss(network, null_context(network))
            for _ in range(settings.corpora):
                one, more = corpus_loss(network, material, settings, corpora.draw(), vectors)
                loss = loss + one / settings.corpora
                parts |= {name: value / settings.corpora + parts.get(name, 0) for name, value in more.items()}
        return loss, parts, settings.corpora * settings.pairs

    return train_by_clock(network, material, adam, step, settings, rate=settings.later_rate, seconds=seconds)

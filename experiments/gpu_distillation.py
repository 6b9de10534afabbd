"""Distillation of cde-base-1 into cde-mini-1's size on one GPU, in minutes; plan in docs/experiments/distillation.md.

Three commands, which share a folder on the GPU's machine: `texts` embeds the pool of texts with the teacher, `vectors`
trains towards the embeddings (stage 1), `contexts` trains with corpora and siblings (stages 2 and 3). Batches are groups
of texts of similar length, gathered on the GPU; the schedules follow the clock, so that a run fits a lent machine.
"""

import argparse
import json
import lzma
import math
import multiprocessing
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int64
from safetensors.torch import load_file, save_file
from torch import Tensor

from cde_rag.model import checkpoints
from cde_rag.model.attention import mean_pool
from cde_rag.model.context_path import PreparedContext, siblings_weight
from cde_rag.model.pair import pair_checkpoint
from cde_rag.model.roles import DOCUMENT, QUERY
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.distil.target_axes import aligned, projection_axes
from cde_rag_training.networks.interpolation import interpolate

LENGTH: Final = 256  # tokens that teacher and student read
FIRST_LENGTH: Final = 128  # tokens that the first stage reads
SENTENCES: Final = 3  # of a document, at most
GROUP_TOKENS: Final = 2**15 if torch.cuda.is_available() else 2**12  # of a forward pass with gradients
FILES: Final = {"student": "tokenizer.json", "teacher": "teacher-tokenizer.json"}
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n{2,}")


class Rows(NamedTuple):
    """Token ids of many texts, one behind the other.

    Attributes:
        ids: Of all texts.
        starts: Position of each text's first id, and the end.
    """

    ids: Int[Tensor, " tokens"]
    starts: Int64[np.ndarray, " ends"]

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """Number of tokens of each text."""
        return np.diff(self.starts)

    def gather(self, chosen: Int64[np.ndarray, " chosen"], most: int = LENGTH) -> tuple[Tensor, Tensor]:
        """Return padded ids and mask of some texts; a cut text keeps its separator."""
        lengths = np.minimum(self.lengths[chosen], most)
        width = min(most, -(-int(lengths.max()) // 16) * 16)
        device = self.ids.device
        both = torch.from_numpy(np.stack([self.starts[chosen], self.starts[chosen + 1] - 1, lengths])).to(device)
        start, last, length = both[:, :, None]
        places = torch.arange(width, device=device)[None]
        mask = places < length
        where = torch.where(places == length - 1, last, start + places)
        return self.ids[where.where(mask, 0)].where(mask, 0).long(), mask


@dataclass
class Pool:
    """Texts of the distillation, and pairs as rows of them.

    Attributes:
        texts: Different in text or role.
        roles: Of each text.
        pairs: Rows of query, query without its parent's name, document, document headed by its parent's name and query
            (the plain one again where there is none); number of the corpus, and of the parent (−1: none).
        trained: Number of texts at the beginning that the student is trained on; the headed documents follow.
    """

    texts: list[str]
    roles: Int64[np.ndarray, " texts"]
    pairs: Int64[np.ndarray, "pairs 6"]
    trained: int


def pool(pairs: Iterable[dict[str, Any]], seed: int = 0) -> Pool:
    """Collect documents, queries, headings, sentences and beginnings of pairs."""
    random = np.random.default_rng(seed)
    places: dict[tuple[str, int], int] = {}

    def place(text: str, role: int) -> int:
        return places.setdefault((text.strip(), role), len(places))

    corpora: dict[tuple[str, str], int] = {}
    parents: dict[tuple[str, str, str], int] = {}
    rows: list[list[int]] = []
    heads: list[tuple[str, int]] = []
    for pair in pairs:
        query, document, parent = pair["query"].strip(), pair["document"].strip(), (pair.get("parent") or "").strip()
        if not query or not document:
            continue
        asked, answer = place(query, QUERY), place(document, DOCUMENT)
        bare = query.removeprefix(f"{parent}: ").strip() if parent else query
        short = place(bare or query, QUERY)
        if parent:
            place(parent, QUERY)
        corpus = corpora.setdefault((pair["source"], pair["domain"]), len(corpora))
        page = parents.setdefault((pair["source"], pair["domain"], parent), len(parents)) if parent else -1
        rows.append([asked, short, answer, answer, corpus, page])
        if parent:
            heads.append((f"{query}\n{document}", len(rows) - 1))
        sentences = [part.strip() for part in _SENTENCE.split(document) if 4 <= len(part.split()) <= 60]
        if len(sentences) > 1:
            for number in random.permutation(len(sentences))[:SENTENCES].tolist():
                place(sentences[number], DOCUMENT if random.random() < 0.75 else QUERY)
        words = document.split(" ")
        if len(words) > 24:
            size = int(random.integers(12, len(words) * 2 // 3))
            start = int(random.integers(0, len(words) - size))
            place(" ".join(words[start : start + size]), DOCUMENT)
    texts = [text or "." for text, _ in places]
    roles = [role for _, role in places]
    trained = len(texts)
    for text, row in heads:
        rows[row][3] = len(texts)
        texts.append(text)
        roles.append(DOCUMENT)
    return Pool(texts, np.array(roles), np.array(rows), trained)


def read_pairs(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON Lines files, also .xz."""
    for path in paths:
        with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


_TOKENIZER: Any = None  # of a process


def _start_tokenizer(serialised: str) -> None:
    global _TOKENIZER
    from tokenizers import Tokenizer

    _TOKENIZER = Tokenizer.from_str(serialised)
    _TOKENIZER.no_padding()
    _TOKENIZER.enable_truncation(LENGTH)


def _tokenize(texts: list[str]) -> tuple[np.ndarray, list[int]]:
    found = [each.ids for each in _TOKENIZER.encode_batch_fast(texts)]
    return np.array([token for ids in found for token in ids], dtype=np.int32), list(map(len, found))


def tokenized(texts: Sequence[str], serialised: str, processes: int, device: str) -> Rows:
    """Tokenize texts, many of them in several processes."""
    parts = [list(texts[start : start + 4096]) for start in range(0, len(texts), 4096)]
    if len(parts) < 8:
        _start_tokenizer(serialised)
        found = list(map(_tokenize, parts))
    else:
        with multiprocessing.get_context("fork").Pool(processes, _start_tokenizer, (serialised,)) as workers:
            found = list(workers.imap(_tokenize, parts))
    starts = np.concatenate([[0], np.cumsum([length for _, lengths in found for length in lengths])])
    return Rows(torch.from_numpy(np.concatenate([ids for ids, _ in found])).to(device), starts)


def groups(
    chosen: Int64[np.ndarray, " chosen"],
    roles: Int64[np.ndarray, " texts"],
    lengths: Int64[np.ndarray, " texts"],
    tokens: int,
) -> Iterator[tuple[int, Int64[np.ndarray, " group"]]]:
    """Yield role and places in `chosen` of groups of one role and similar length, of at most so many tokens."""
    for role in (QUERY, DOCUMENT):
        places = np.flatnonzero(roles[chosen] == role)
        places = places[np.argsort(-lengths[chosen[places]], kind="stable")]
        while len(places):
            size = max(1, tokens // int(lengths[chosen[places[0]]]))
            # A group also ends where its texts have half the length of its first, so that little is padding.
            short = int((lengths[chosen[places[:size]]] * 2 >= lengths[chosen[places[0]]]).sum())
            size = max(min(size, short), min(size, 128))
            yield role, places[:size]
            places = places[size:]


def autocast(device: str, dtype: torch.dtype) -> torch.autocast:
    """Return the precision of the encoders' matrix products."""
    return torch.autocast(torch.device(device).type, dtype=dtype if device == "cuda" else torch.bfloat16)


@torch.no_grad()
def teacher_vectors(
    texts: Pool, folder: Path, processes: int, device: str
) -> tuple[Float[Tensor, "texts teacher"], Rows]:
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


def null_context(network: TwoStage) -> PreparedContext:
    """Prepare the null context."""
    device = network.embeddings.word.weight.device
    empty = torch.zeros(0, network.config.dim, device=device)
    with torch.autocast(device.type, enabled=False):
        return network.prepare(empty, torch.zeros(0, dtype=torch.long, device=device))


def log(message: str) -> None:
    """Print a line with the time since the start."""
    memory = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    print(f"{time.monotonic() - STARTED:7.1f} s  {memory:.0f} GB  {message}", flush=True)


STARTED: Final = time.monotonic()


@dataclass
class Material:
    """What the stages train on, on the GPU.

    Attributes:
        rows: The student's token ids.
        roles: Of each text.
        pairs: As in `Pool`.
        trained: As in `Pool`.
        teacher: The teacher's embeddings, float16.
        axes: Of the target space.
        mean: Mean target.
        development: Development sets.
    """

    rows: Rows
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
    """A development set with token ids and judgments.

    Attributes:
        name: Of the set.
        queries: Token ids.
        documents: Token ids.
        gains: Judgments, 0 where there is none.
    """

    name: str
    queries: Rows
    documents: Rows
    gains: Float[Tensor, "queries documents"]


def development_sets(path: Path, serialised: str, device: str) -> list[DevelopmentSet]:
    """Read the sets that `--write-development` wrote."""
    found: list[DevelopmentSet] = []
    for one in json.loads(path.read_text(encoding="utf-8")):
        gains = torch.zeros(len(one["queries"]), len(one["documents"]))
        for number, judged in enumerate(one["judgments"]):
            for place, gain in judged:
                gains[number, place] = gain
        both = (tokenized(one[kind], serialised, 2, device) for kind in ("queries", "documents"))
        found.append(DevelopmentSet(one["name"], *both, gains.to(device)))
    return found


def ndcg(scores: Float[Tensor, "queries documents"], gains: Float[Tensor, "queries documents"]) -> float:
    """Return NDCG@10 × 100, the mean over queries."""
    depth = min(10, scores.shape[1])
    discount = 1 / torch.log2(torch.arange(depth, device=scores.device) + 2.0)
    reached = (gains.gather(1, scores.topk(depth, dim=1).indices) * discount).sum(1)
    best = (gains.topk(depth, dim=1).values * discount).sum(1)
    return 100 * float((reached / best.clamp(min=1e-9)).mean())


@torch.no_grad()
def evaluate(network: TwoStage, material: Material, device: str) -> list[float]:
    """Return NDCG@10 × 100 of each development set under the null context."""
    null, found = null_context(network), []
    for one in material.development:
        vectors = []
        for role, rows in ((QUERY, one.queries), (DOCUMENT, one.documents)):
            places = np.arange(len(rows.lengths))
            with autocast(device, torch.bfloat16):
                vectors.append(embed(network, rows, places, np.full(len(places), role), null, 4 * GROUP_TOKENS))
        found.append(ndcg(vectors[0] @ vectors[1].T, one.gains))
    return found


def embed(
    network: TwoStage,
    rows: Rows,
    chosen: Int64[np.ndarray, " chosen"],
    roles: Int64[np.ndarray, " texts"],
    prepared: PreparedContext,
    tokens: int = GROUP_TOKENS,
    siblings: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "chosen dim"]:
    """Embed texts, group by group."""
    device = rows.ids.device
    vectors, order = [], []
    for role, places in groups(chosen, roles, rows.lengths, tokens):
        ids, mask = rows.gather(chosen[places])
        where = torch.from_numpy(places).to(device)
        given = (None, None) if siblings is None or role == QUERY else (siblings[0][where], siblings[1][where])
        vectors.append(network.second_stage(network.embeddings, ids, mask, role, prepared, *given))
        order.append(where)
    return torch.cat(vectors)[torch.argsort(torch.cat(order))]


def first_vectors(network: TwoStage, rows: Rows, chosen: Int64[np.ndarray, " chosen"]) -> Float[Tensor, "chosen dim"]:
    """Embed texts with the first stage."""
    device = rows.ids.device
    vectors, order = [], []
    lengths = np.minimum(rows.lengths, FIRST_LENGTH)
    for _, places in groups(chosen, np.full(len(lengths), DOCUMENT), lengths, 4 * GROUP_TOKENS):
        ids, mask = rows.gather(chosen[places], FIRST_LENGTH)
        vectors.append(network.first_stage(network.embeddings, ids, mask))
        order.append(torch.from_numpy(places).to(device))
    return torch.cat(vectors)[torch.argsort(torch.cat(order))]


class Neighbourhoods:
    """Draws texts that are near each other in the target space, many draws at a time.

    Args:
        material: The texts.
        count: Neighbourhoods of a draw.
        size: Texts of each.
        random: Of the draws.
    """

    def __init__(self, material: Material, count: int, size: int, random: np.random.Generator) -> None:
        self._material, self._count, self._size, self._random = material, count, size, random
        self._ready: list[np.ndarray] = []

    @torch.no_grad()
    def draw(self) -> Int64[np.ndarray, " texts"]:
        """Return the texts of `count` neighbourhoods, one behind the other."""
        if not self._ready:
            trained, device = self._material.trained, self._material.teacher.device
            some = torch.from_numpy(self._random.choice(trained, min(trained, 2**18), replace=False)).to(device)
            seeds = some[: 32 * self._count]
            scores = self._material.teacher[seeds] @ self._material.teacher[some].T
            near = scores.topk(min(2 * self._size, len(some)), dim=1).indices
            near = near[:, torch.from_numpy(self._random.permutation(near.shape[1])[: self._size]).to(device)]
            drawn = some[near].cpu().numpy().reshape(-1, self._count * near.shape[1])
            self._ready = list(drawn)
        return self._ready.pop()


def score_error(
    ours: Float[Tensor, "sets texts dim"], theirs: Float[Tensor, "sets texts teacher"]
) -> Float[Tensor, ""]:
    """Mean squared difference of the scores of texts with each other, each text's mean difference apart."""
    difference = ours @ ours.transpose(1, 2) - theirs @ theirs.transpose(1, 2)
    return (difference - difference.mean(dim=2, keepdim=True)).square().mean()


@dataclass(frozen=True)
class Settings:
    """Settings of both stages."""

    random_texts: int = 512  # of a batch
    neighbourhoods: int = 4  # of a batch
    neighbours: int = 128  # texts of each
    score_weight: float = 20.0
    first_weight: float = 0.5  # of the first stage's loss
    rate: float = 6e-4  # of AdamW, stage 1
    later_rate: float = 2e-4  # stages 2 and 3
    weight_decay: float = 0.01
    warmup: float = 0.04  # share of the time
    corpora: int = 2  # of a batch of stages 2 and 3
    pairs: int = 192  # of each
    temperature: float = 0.02
    contrastive_weight: float = 0.02
    vector_weight: float = 1.0
    null_share: float = 0.2  # of corpora
    sibling_share: float = 0.5  # of corpora
    most_siblings: int = 16
    margin: float = 0.0  # a document is no negative if the teacher's score is above the positive's less this


def optimiser(network: TwoStage, trained: Sequence[str], rate: float, settings: Settings) -> torch.optim.AdamW:
    """Return AdamW over the parameters whose names begin with `trained`; embeddings and vectors do not decay."""
    decayed, kept = [], []
    for name, value in network.named_parameters():
        value.requires_grad_(name.startswith(tuple(trained)))
        if value.requires_grad:
            (decayed if value.ndim == 2 and not name.startswith("embeddings.") else kept).append(value)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8, fused=decayed[0].is_cuda)


def schedule(progress: float, settings: Settings, end: float) -> float:
    """Return the factor of the rate: a warm-up, then a cosine down to `end`."""
    if progress < settings.warmup:
        return max(1e-3, progress / settings.warmup)
    share = min(1.0, (progress - settings.warmup) / (1 - settings.warmup))
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * share))


def update(network: TwoStage, adam: torch.optim.AdamW, loss: Float[Tensor, ""], rate: float) -> None:
    """Take one step."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_([value for group in adam.param_groups for value in group["params"]], 1.0)
    for group in adam.param_groups:
        group["lr"] = rate
    adam.step()
    adam.zero_grad(set_to_none=True)


class VectorLoss:
    """Loss of one batch of texts under the null context: distance to the targets, and error of scores.

    Args:
        material: What is trained on.
        settings: Sizes and weights.
        seed: Of the batches.
    """

    def __init__(self, material: Material, settings: Settings, seed: int) -> None:
        self._material, self._settings = material, settings
        self._random = np.random.default_rng(seed)
        self._near = Neighbourhoods(material, settings.neighbourhoods, settings.neighbours, self._random)
        self._order: Int64[np.ndarray, " texts"] = np.zeros(0, dtype=np.int64)

    def __call__(self, network: TwoStage, null: PreparedContext) -> tuple[Float[Tensor, ""], dict[str, Tensor], int]:
        """Return loss, its parts and the number of texts."""
        material, settings = self._material, self._settings
        if len(self._order) < settings.random_texts:
            self._order = self._random.permutation(material.trained)
        drawn, self._order = self._order[: settings.random_texts], self._order[settings.random_texts :]
        near = self._near.draw()
        chosen = np.concatenate([drawn, near])
        where = torch.from_numpy(chosen).to(material.teacher.device)
        vectors = embed(network, material.rows, chosen, material.roles, null)
        targets = material.targets(where)
        with torch.autocast(vectors.device.type, enabled=False):
            distance = (vectors - targets).square().sum(1).mean()
            teacher = material.teacher[where].float()
            parts = [each.split([len(drawn), len(near)]) for each in (vectors, teacher)]
            width = len(near) // settings.neighbourhoods
            shapes = ((1, len(drawn)), (settings.neighbourhoods, width))
            errors = [
                score_error(ours.reshape(*shape, -1), theirs.reshape(*shape, -1))
                for ours, theirs, shape in zip(*parts, shapes, strict=True)
            ]
            loss = distance + settings.score_weight * (errors[0] + errors[1])
        return loss, {"distance": distance, "random": errors[0], "near": errors[1]}, len(chosen)


def train_vectors(
    network: TwoStage, material: Material, settings: Settings, seconds: float, device: str
) -> list[dict[str, float]]:
    """Stage 1: train the whole network towards the targets, the first stage towards the centred targets."""
    trained = ("second_stage.layers.", "second_stage.roles", "embeddings.", "first_stage.")
    adam = optimiser(network, trained, settings.rate, settings)
    vector_loss = VectorLoss(material, settings, seed=1)
    random = np.random.default_rng(2)
    documents = np.flatnonzero(material.roles[: material.trained] == DOCUMENT)
    turned = torch.eye(network.config.dim, device=device) if network.rotation is None else network.rotation.T
    with torch.no_grad():
        null = null_context(network)
    network.train()
    began, seen, step, curve, sums = time.monotonic(), 0, 0, [point(network, material, 0, 0, {}, device)], {}
    following = 0.1
    while (progress := (time.monotonic() - began) / seconds) < 1:
        with autocast(device, torch.bfloat16):
            loss, parts, count = vector_loss(network, null)
            some = random.choice(documents, min(512, len(documents)), replace=False)
            first = first_vectors(network, material.rows, some)
        centred = F.normalize(material.targets(torch.from_numpy(some).to(device)) - material.mean, dim=-1) @ turned
        parts["first"] = (first.float() - centred).square().sum(1).mean()
        update(
            network,
            adam,
            loss + settings.first_weight * parts["first"],
            settings.rate * schedule(progress, settings, 0.02),
        )
        seen, step = seen + count, step + 1
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + value.detach()
        sums["steps"] = sums.get("steps", 0) + 1
        if progress > following:
            curve.append(point(network, material, seen, step, sums, device))
            sums, following = {}, following + 0.1
    curve.append(point(network, material, seen, step, sums, device))
    return curve


def point(
    network: TwoStage, material: Material, texts: int, steps: int, sums: dict[str, Any], device: str
) -> dict[str, float]:
    """Return one point of the curve."""
    network.eval()
    figures = evaluate(network, material, device)
    network.train()
    count = max(1, sums.get("steps", 1))
    found: dict[str, float] = {"texts": texts, "steps": steps, "seconds": round(time.monotonic() - STARTED, 1)}
    found |= {name: float(value) / count for name, value in sums.items() if name != "steps"}
    found |= {"mean": sum(figures) / max(1, len(figures))}
    found |= {one.name: figure for one, figure in zip(material.development, figures, strict=True)}
    log(" ".join(f"{name} {value:.5g}" for name, value in found.items()))
    return found


class Corpora:
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
        material: Material,
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

    def _siblings(self, chosen: Int64[np.ndarray, " pairs"]) -> tuple[Tensor, Tensor] | None:
        pairs, most = self._material.pairs, self._settings.most_siblings
        found: list[np.ndarray] = []
        for row in chosen:
            page = self._pages.get(int(pairs[row, 5]))
            others = np.zeros(0, dtype=np.int64) if page is None else page[page != pairs[row, 2]]
            if len(others) > most:
                start = int(self._random.integers(0, len(others) - most + 1)) if self._random.random() < 0.5 else 0
                others = others[start : start + most]
            found.append(self._places[others])
        width = max(map(len, found))
        if width == 0:
            return None
        rows = np.zeros((len(found), width), dtype=np.int64)
        mask = np.zeros((len(found), width), dtype=np.bool_)
        for number, each in enumerate(found):
            rows[number, : len(each)], mask[number, : len(each)] = each, True
        there = torch.from_numpy(mask).to(self._vectors.device)
        return self._vectors[torch.from_numpy(rows).to(self._vectors.device)] * there[:, :, None], there


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
    siblings: tuple[Tensor, Tensor] | None


def corpus_loss(
    network: TwoStage, material: Material, settings: Settings, batch: CorpusBatch, vectors: Tensor
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
        weight = siblings_weight(context, counts, network.config.full_likeness)
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
        distance = 0.5 * sum(
            (ours - theirs).square().sum(1).mean() for ours, theirs in zip((queries, documents), goal, strict=True)
        )
        scores = asked @ target.T
        same = (rows[1][:, None] == rows[1][None, :]) | (rows[0][:, None] == rows[0][None, :])
        mask = (scores > scores.diagonal()[:, None] - settings.margin) | same
        mask.fill_diagonal_(False)
        logits = queries @ documents.T / settings.temperature
        contrastive = F.cross_entropy(logits.masked_fill(mask, float("-inf")), torch.arange(len(logits), device=device))
        loss = settings.contrastive_weight * contrastive + settings.vector_weight * distance
    return loss, {"contrastive": contrastive, "target": distance}


def train_contexts(
    network: TwoStage, material: Material, settings: Settings, seconds: float, device: str
) -> list[dict[str, float]]:
    """Stages 2 and 3: half of each batch has a corpus and siblings, half is that of stage 1."""
    adam = optimiser(network, ("second_stage.", "set_attention."), settings.later_rate, settings)
    vector_loss = VectorLoss(material, settings, seed=3)
    documents = np.unique(material.pairs[:, 2])
    places = np.full(len(material.roles), -1)
    places[documents] = np.arange(len(documents))
    with torch.no_grad():
        vectors = first_vectors(network, material.rows, documents)
    corpora = Corpora(material, settings, vectors, places, seed=4)
    network.train()
    began, seen, step, curve, sums = time.monotonic(), 0, 0, [point(network, material, 0, 0, {}, device)], {}
    following = 0.1
    while (progress := (time.monotonic() - began) / seconds) < 1:
        with autocast(device, torch.bfloat16):
            loss, parts, count = vector_loss(network, null_context(network))
            for _ in range(settings.corpora):
                one, more = corpus_loss(network, material, settings, corpora.draw(), vectors)
                loss = loss + one / settings.corpora
                parts |= {name: value / settings.corpora + parts.get(name, 0) for name, value in more.items()}
        update(network, adam, loss, settings.later_rate * schedule(progress, settings, 0.02))
        seen, step = seen + settings.corpora * settings.pairs, step + 1
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + value.detach()
        sums["steps"] = sums.get("steps", 0) + 1
        if progress > following:
            curve.append(point(network, material, seen, step, sums, device))
            sums, following = {}, following + 0.1
    curve.append(point(network, material, seen, step, sums, device))
    return curve


def write_state(network: TwoStage, out: Path, name: str, only: Sequence[str], most: int = 15 * 2**20) -> None:
    """Write tensors whose names begin with `only` in float16, in files of at most `most` bytes."""
    files: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in network.state_dict().items():
        if not key.startswith(tuple(only)):
            continue
        half = value.detach().half().cpu().contiguous()
        parts = half.split(max(1, most // max(1, half[0].nbytes))) if half.ndim == 2 and half.nbytes > most else (half,)
        for number, part in enumerate(parts):
            if size + part.nbytes > most:
                files.append({})
                size = 0
            files[-1][f"{key}#{number}" if len(parts) > 1 else key] = part.contiguous()
            size += part.nbytes
    for number, tensors in enumerate(files):
        save_file(tensors, out / f"{name}-{number}.safetensors")


def read_state(folder: Path, name: str) -> dict[str, Tensor]:
    """Read what `write_state` wrote, in float32."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        tensors |= load_file(path)
    joined: dict[str, list[Tensor]] = {}
    for key in sorted(tensors, key=lambda each: (each.split("#")[0], int(f"0{each.partition('#')[2]}"))):
        joined.setdefault(key.split("#")[0], []).append(tensors[key])
    return {key: torch.cat(parts).float() if len(parts) > 1 else parts[0].float() for key, parts in joined.items()}


def load_material(keep: Path, device: str) -> Material:
    """Read what `texts` wrote."""
    tensors = load_file(keep / "material.safetensors", device=device)
    kept = np.load(keep / "material.npz")
    serialised = (keep / "tokenizer.json").read_text(encoding="utf-8")
    rows = Rows(tensors["ids"], kept["starts"])
    development = development_sets(keep / "development.json", serialised, device)
    return Material(
        rows,
        kept["roles"],
        kept["pairs"],
        int(kept["trained"]),
        tensors["teacher"],
        tensors["axes"],
        tensors["mean"],
        development,
    )


def run_texts(arguments: argparse.Namespace, device: str) -> None:
    """Embed the pool with the teacher, compute the target space, and write the student's start."""
    keep = arguments.keep
    keep.mkdir(parents=True, exist_ok=True)
    pairs = list(read_pairs(arguments.pairs))
    if arguments.limit:
        pairs = [pairs[place] for place in np.random.default_rng(5).permutation(len(pairs))[: arguments.limit]]
        pairs.sort(key=lambda each: (each["source"], each["domain"], each.get("parent", "")))
    texts = pool(pairs)
    log(f"{len(pairs):,} pairs, {len(texts.texts):,} texts")
    teacher, rows = teacher_vectors(texts, arguments.teacher, arguments.processes, device)
    log("teacher's vectors")
    network, tokenizer, _ = checkpoints.read(arguments.student)
    network = network.to(device)
    random = np.random.default_rng(6)
    sample = random.choice(texts.trained, min(texts.trained, 60_000), replace=False)
    where = torch.from_numpy(sample).to(device)
    is_query = torch.from_numpy((texts.roles[sample] == QUERY).astype(np.float32))
    vectors = teacher[where].float().cpu()
    axes = projection_axes(vectors, is_query, network.config.dim, "principal")
    with torch.no_grad():
        norms: list[Tensor] = []
        hook = network.second_stage.layers[-1].register_forward_hook(
            lambda _, given, x: norms.append(mean_pool(x, given[1][:, 0, 0, :]).norm(dim=1))
        )
        with autocast(device, torch.bfloat16):
            ours = embed(network, rows, sample, texts.roles, null_context(network), 4 * GROUP_TOKENS).float().cpu()
        hook.remove()
        space, shift = aligned(axes, vectors, ours)
        scaled = (shift * torch.cat(norms).mean().cpu()).to(device)
        last = network.second_stage.layers[-1].get_submodule("output_norm")
        last.bias.add_(scaled if network.rotation is None else scaled @ network.rotation.T)
    mean = F.normalize(vectors @ space.axes, dim=-1).mean(0)
    kept_scores = _kept(teacher[where[:4096]].float(), space.axes.to(device))
    log(f"share of ten nearest kept by the projection {kept_scores:.4f}, mean target's norm {float(mean.norm()):.3f}")
    save_file(
        {"ids": rows.ids.cpu(), "teacher": teacher.cpu(), "axes": space.axes, "mean": mean},
        keep / "material.safetensors",
    )
    np.savez(keep / "material.npz", starts=rows.starts, roles=texts.roles, pairs=texts.pairs, trained=texts.trained)
    (keep / "tokenizer.json").write_text(tokenizer.serialised, encoding="utf-8")
    (keep / "development.json").write_text(arguments.development.read_text(encoding="utf-8"), encoding="utf-8")
    save_file(
        {name: value.cpu().contiguous() for name, value in network.state_dict().items()}, keep / "start.safetensors"
    )
    log("written")


def _kept(teacher: Tensor, axes: Tensor) -> float:
    projected = F.normalize(teacher @ axes, dim=-1)
    tops = [(each @ each.T).fill_diagonal_(-1).topk(10, dim=1).indices for each in (teacher, projected)]
    return float((tops[0][:, :, None] == tops[1][:, None, :]).any(2).float().mean())


def run_stage(arguments: argparse.Namespace, device: str) -> None:
    """Train one stage from the state that the one before left, and write its curve and weights."""
    keep, out = arguments.keep, arguments.out
    material = load_material(keep, device)
    network, _, _ = checkpoints.read(arguments.student)
    network.load_state_dict(load_file(keep / f"{arguments.start}.safetensors"))
    network = network.to(device)
    log("loaded")
    changes = dict(pair.split("=", 1) for pair in arguments.set)
    settings = Settings(**{name: type(getattr(Settings, name))(value) for name, value in changes.items()})
    train = {"vectors": train_vectors, "contexts": train_contexts}[arguments.command]
    curve = train(network, material, settings, arguments.seconds, device)
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    save_file(state, keep / f"{arguments.name}.safetensors")
    (out / f"{arguments.name}.json").write_text(json.dumps(curve), encoding="utf-8")
    if arguments.command == "vectors":
        write_state(network, out, arguments.name, ("",))
        save_file({"axes": material.axes.cpu(), "mean": material.mean.cpu()}, out / "space.safetensors")
    else:
        changed = {name: value for name, value in state.items() if name.startswith(("second_stage.", "set_attention."))}
        save_file(checkpoints.quantise(changed), out / f"{arguments.name}.safetensors")
    log("written")


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
    headings: tuple[Rows, Float[Tensor, "queries documents"]] | None


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
        siblings_weight(context, counts, network.config.full_likeness),
    )
    null = null_context(network)
    moments = (context.double().T @ context.double()) / len(context)
    values, axes = torch.linalg.eigh(moments)
    relative, shift = (values.clamp(min=0) / values.mean()).float(), network.output_map.log_shift.exp()
    maps = [(axes.float() * ((relative + shift) / (1 + shift)) ** -exponent) @ axes.float().T for exponent in EXPONENTS]

    def vectors(rows: Rows, role: int, prepared: PreparedContext, siblings: Any = None) -> Tensor:
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
            "ndcg": figure(
                *(vectors(rows, role, null) for rows, role in ((queries, QUERY), (documents, DOCUMENT))), one.base.gains
            ),
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
            weighed = replace(own, siblings=own.siblings * weight)
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
    found.append({"set": name, "system": "likeness", "ndcg": float(siblings_weight(context, counts, 1.0))})
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
        siblings = [
            [other for other in pages.get(parent or "", []) if other != place][:16]
            for place, parent in enumerate(parents)
        ]
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


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("development", "texts", "vectors", "contexts", "choice"))
    parser.add_argument("--pairs", type=Path, nargs="+", help="JSON Lines, also .xz")
    parser.add_argument("--keep", type=Path, help="folder that the commands share")
    parser.add_argument("--out", type=Path, help="folder of results")
    parser.add_argument("--teacher", type=Path, default=Path("cde_rag/model/bundled/cde-base-1"))
    parser.add_argument("--student", type=Path, default=Path("cde_rag/model/bundled/cde-mini-1"))
    parser.add_argument("--development", type=Path, help="file of the development sets")
    parser.add_argument("--toml", type=Path, default=Path("docs/experiments/distillation.toml"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--name", default="vectors", help="of the results")
    parser.add_argument("--start", default="start", help="name of the results to begin with")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training")
    parser.add_argument("--limit", type=int, default=0, help="pairs; 0: all")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if arguments.command == "development":
        write_development(arguments.toml, arguments.data, arguments.development)
    elif arguments.command == "texts":
        run_texts(arguments, device)
    elif arguments.command == "choice":
        run_choice(arguments, device)
    else:
        run_stage(arguments, device)


if __name__ == "__main__":
    main()

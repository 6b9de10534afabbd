"""Drift against judged queries: what `Collection.drift` estimates, and what a new context then wins.

Three measurements on cuts of development sets, each corpus 400 documents of 320 characters, contexts of 256 documents:

* moves: a corpus under an old context and under its own. Old contexts are those of another domain, whose documents are
  replaced step by step by those of a new one; the null context; and the generic one.
* growths: the first half of a domain gives the old context, the corpus is the whole. Nothing has to be done.
* budgets: a part of a corpus is embedded anew, the rest is left, or brought over by a linear map (a bridge).

Run with: python lab/benchmarks/drift.py run DATA --model cde-mini-2 --cache runs/drift, where DATA holds the folders of
`DOMAINS` in BEIR's layout; interrupted, it goes on. Then: python lab/benchmarks/drift.py report --cache runs/drift
"""

import argparse
import csv
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from cde_rag.context.context import Context
from cde_rag.context.sampling import sample_random
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import fit
from cde_rag.embedders.protocol import Embedded, EmbedderOptions
from cde_rag.errors import require
from cde_rag.evaluation.beir import read_beir
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_vectors
from cde_rag.indexing.drift import REACH, WORTH, Calibration, ask, compare
from cde_rag.models import CDEModel

TABLE = Path(__file__).parents[1] / "tables/drift.csv"
DRAWING = TABLE.with_suffix(".png")
DOMAINS = {
    "redis": "parents_redis",
    "helm": "parents_helm",
    "govuk": "parents_govuk",
    "prometheus": "parents_prometheus",
    "newwiki": "squadshifts_newwiki",
    "cosqa": "cosqa",
    "nfcorpus": "nfcorpus_processed",
}
SPLITS = {"cosqa": "dev"}
PAIRS = (
    ("redis", "newwiki"),
    ("newwiki", "redis"),
    ("govuk", "cosqa"),
    ("cosqa", "prometheus"),
    ("nfcorpus", "helm"),
)
BUDGETS = (("null", "redis"), ("null", "govuk"), ("cosqa", "prometheus"))
STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)  # share of the new domain
SEEDS = range(2)  # growths of each domain
SHARES = (0.05, 0.2)  # of a corpus, embedded anew
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # of a map's distance from the identity; chosen by leaving out every fifth row
CONTEXT_SIZE = 256  # documents
DOCUMENTS = 400  # of a corpus; twice as many where a budget is measured
CHARACTERS = 320  # of a document that are read
QUERIES = 450  # of a domain, at most


@dataclass(frozen=True)
class Domain:
    """A cut of a retrieval set, in an order that depends on ids alone."""

    ids: list[str]
    texts: list[str]
    queries: list[tuple[str, dict[str, int]]]

    @classmethod
    def read(cls, data: Path, name: str) -> "Domain":
        found = read_beir(data / DOMAINS[name], split=SPLITS.get(name, "test"))
        texts = {f"{name}:{i}": text[:CHARACTERS] for i, text in zip(found.corpus.ids, found.corpus.texts, strict=True)}
        asked = {
            query: {f"{name}:{document}": grade for document, grade in judged.items() if document != query_id}
            for query_id, query, judged in zip(found.query_ids, found.queries, found.judgments, strict=True)
        }
        judged = {document for grades in asked.values() for document in grades}
        ids = sorted(texts, key=lambda i: (name == "cosqa" and i not in judged, _hash(i)))  # few of cosqa's are judged
        queries = [(query, asked[query]) for query in sorted(asked, key=_hash)]
        return cls(ids, [texts[i] for i in ids], queries)


class CachedSpace:
    """The embedder of a context; what it embedded once lies in a file."""

    def __init__(self, model: CDEModel, context: Context, cache: Path) -> None:
        self.model, self.context, self.cache = model, context, cache
        self._embedder: ContextualEmbedder | None = None
        self._known: dict[str, dict[bytes, np.ndarray]] = {}

    def embed_passages(self, texts: Sequence[str], siblings: None) -> Embedded:
        return Embedded(self._vectors("documents", texts), np.zeros(len(texts), dtype=np.bool_))

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._vectors("queries", texts)

    def _vectors(self, role: str, texts: Sequence[str]) -> np.ndarray:
        path = self.cache / f"{self.context.fingerprint[:24]}-{role}.npz"
        if role not in self._known:
            stored = np.load(path) if path.exists() else {"keys": [], "vectors": []}
            self._known[role] = {key.tobytes(): row for key, row in zip(stored["keys"], stored["vectors"], strict=True)}
        known, keys = self._known[role], [_hash(text) for text in texts]
        if missing := list({key: text for key, text in zip(keys, texts, strict=True) if key not in known}.values()):
            self._embedder = self._embedder or ContextualEmbedder(
                self.model, self.context, options=EmbedderOptions(mini_batch_size=128)
            )
            if role == "documents":
                vectors = self._embedder.embed_passages(missing, None).vectors
            else:
                vectors = self._embedder.embed_queries(missing)
            known.update((_hash(text), vector) for text, vector in zip(missing, vectors, strict=True))
            written = np.array([np.frombuffer(key, dtype=np.uint8) for key in known])
            np.savez(path.with_suffix(".part.npz"), keys=written, vectors=np.array(list(known.values())))
            path.with_suffix(".part.npz").rename(path)
        return np.array([known[key] for key in keys])


@dataclass(frozen=True)
class Bench:
    """What the measurements share."""

    model: CDEModel
    data: Path
    cache: Path
    domains: dict[str, Domain]

    def domain(self, name: str) -> Domain:
        if name not in self.domains:
            self.domains[name] = Domain.read(self.data, name)
        return self.domains[name]

    def space(self, texts: Sequence[str], seed: int) -> CachedSpace:
        """Of a context that is sampled from texts."""
        path = self.cache / f"{_hash(json.dumps([sorted(texts), seed])).hex()[:24]}.context.safetensors"
        if not path.exists():
            fit(self.model, sample_random(texts, CONTEXT_SIZE, seed=seed), strategy="random", seed=seed).save(path)
        return CachedSpace(self.model, Context.load(path), self.cache)

    def old(self, name: str) -> CachedSpace:
        """Of a domain's context, the null context or the generic one."""
        if name in DOMAINS:
            return self.space(self.domain(name).texts[:DOCUMENTS], 0)
        context = Context.null(self.model) if name == "null" else Context.generic(self.model)
        return CachedSpace(self.model, context, self.cache)


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()


def judged_ndcg(
    space: CachedSpace,
    ids: Sequence[str],
    documents: np.ndarray,
    queries: Sequence[tuple[str, Mapping[str, int]]],
) -> np.ndarray:
    """NDCG@10 of each query over document vectors of its space."""
    asked = space.embed_queries([query for query, _ in queries])
    rankings = rank_vectors(asked, documents, ids, [""] * len(queries))
    return np.array([ndcg(found, judged, 10) for found, (_, judged) in zip(rankings, queries, strict=True)])


def asked_of(domain: Domain, ids: Sequence[str], limit: int) -> list[tuple[str, dict[str, int]]]:
    """The first queries with a relevant document among those that are there."""
    here = set(ids)
    judged = ((query, {i: grade for i, grade in found.items() if i in here}) for query, found in domain.queries)
    return [(query, found) for query, found in judged if found][:limit]


def move(bench: Bench, old: str, new: str, step: float) -> dict[str, Any]:
    """What the estimate and judged queries say of one corpus under an old context and under its own."""
    before, after, space = round((1 - step) * DOCUMENTS), round(step * DOCUMENTS), bench.old(old)
    sources = [(bench.domain(name), count) for name, count in ((old, before), (new, after)) if count]
    ids = [i for domain, count in sources for i in domain.ids[:count]]
    texts = [text for domain, count in sources for text in domain.texts[:count]]
    queries = [query for domain, _ in sources for query in asked_of(domain, ids, QUERIES)]
    fresh = bench.space(texts, 1)
    scores = [judged_ndcg(each, ids, each.embed_passages(texts, None).vectors, queries) for each in (space, fresh)]
    judged = scores[1] - scores[0]
    halves = [float(judged[place::2].mean()) for place in (0, 1)]
    error = float(judged.std()) / math.sqrt(len(judged))
    return {
        "old": old, "new": new, "step": step, "queries": len(queries), "ndcg": float(scores[0].mean()),
        "judged": float(judged.mean()), "judged_error": error, "even": halves[0], "odd": halves[1],
        **signals(bench, space, fresh, texts),
    }  # fmt: skip


def signals(bench: Bench, present: CachedSpace, candidate: CachedSpace, probes: Sequence[str]) -> dict[str, float]:
    """What is seen without judgments: what the estimate is made of, and two signals that it was chosen against."""
    found = compare(present, candidate, bench.old("null"), probes, None)
    direct = ask(candidate, probes, None)[0] - ask(present, probes, None)[0]
    return {
        "value": float(found.value.mean()), "value_error": float(found.value.std()) / math.sqrt(len(probes)),
        "value_kept": found.value_kept, "kept": found.kept, "direct": float(direct.mean()),
        "energy": energy(present.context, candidate.context),
    }  # fmt: skip


def energy(one: Context, other: Context) -> float:
    """The energy distance of two samples' first-stage directions: a sketch of the corpus, without any query.

    Source: Székely & Rizzo (2013). Not a number for the null context.
    """
    if one.is_null or other.is_null:
        return math.nan
    rows = [each.context_embeddings / np.linalg.norm(each.context_embeddings, axis=1)[:, None] for each in (one, other)]
    between, first, second = (
        float(np.sqrt((2 - 2 * a @ b.T).clip(min=0)).mean())
        for a, b in ((rows[0], rows[1]), (rows[0], rows[0]), (rows[1], rows[1]))
    )
    return 2 * between - first - second


def growth(bench: Bench, name: str, seed: int) -> dict[str, Any]:
    """What the estimate says of a domain under the context of its first half; 256 probes."""
    texts = sorted(bench.domain(name).texts[:DOCUMENTS], key=lambda text: _hash(f"{seed}\0{text}"))
    old, new = bench.space(texts[: DOCUMENTS // 2], seed), bench.space(texts, seed)
    return {"old": name, "new": name, "seed": seed, **signals(bench, old, new, sorted(texts, key=_hash)[:256])}


def budget(bench: Bench, old: str, new: str) -> dict[str, Any]:
    """NDCG@10 where some documents are in the new space, chosen at random or by how far they move; queries are in it.

    Beside each figure stands the standard error of its difference to all documents in the new space.
    """
    domain, limit = bench.domain(new), 2 * DOCUMENTS
    ids, texts = domain.ids[:limit], domain.texts[:limit]
    queries, space, fresh = asked_of(domain, ids, 2 * QUERIES), bench.old(old), bench.space(texts, 1)
    before, after = (each.embed_passages(texts, None).vectors for each in (space, fresh))
    far = np.argsort((before * after).sum(axis=1), kind="stable")  # those that move most come first
    drawn = np.random.default_rng(0).permutation(len(ids))
    spaces = {"all": (fresh, after), "stay": (space, before), "queries": (fresh, before)}
    for share in SHARES:
        count = round(share * len(ids))
        for order, chosen in (("random", drawn[:count]), ("far", far[:count])):
            spaces[f"mixed {order} {share}"] = (fresh, exchanged(before, after, chosen))
        sample = drawn[:count]
        for kind, found in (("ridge", ridge), ("rotation", rotation)):
            bridged = before @ found(before[sample], after[sample])
            bridged /= np.linalg.norm(bridged, axis=1, keepdims=True)
            spaces[f"{kind} {share}"] = (fresh, bridged)
            spaces[f"{kind}, mixed {share}"] = (fresh, exchanged(bridged, after, sample))
    found = {name: judged_ndcg(asked, ids, documents, queries) for name, (asked, documents) in spaces.items()}
    errors = {name: float((each - found["all"]).std()) / math.sqrt(len(queries)) for name, each in found.items()}
    told = {name: [float(each.mean()), errors[name]] for name, each in found.items()}
    return {"old": old, "new": new, "queries": len(queries), "documents": len(ids), "found": told}


def exchanged(before: np.ndarray, after: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The one's vectors, and the other's in some rows."""
    mixed = before.copy()
    mixed[rows] = after[rows]
    return mixed


def ridge(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The linear map from one space to the other, held to the identity: ridge regression of the differences."""

    def fitted(rows: np.ndarray, penalty: float) -> np.ndarray:
        gram = before[rows].T @ before[rows] + penalty * np.eye(before.shape[1])
        return np.eye(before.shape[1]) + np.linalg.solve(gram, before[rows].T @ (after[rows] - before[rows]))

    held = np.arange(len(before)) % 5 == 0
    errors = {each: np.square(before[held] @ fitted(~held, each) - after[held]).sum() for each in PENALTIES}
    return fitted(np.ones(len(before), dtype=np.bool_), min(errors, key=errors.__getitem__)).astype(np.float32)


def rotation(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The orthogonal map from one space to the other, held to the identity by as much as the rows weigh.

    Source: Schönemann (1966), orthogonal Procrustes; the identity is ours, for fewer rows than dimensions.
    """
    weight = len(before) / before.shape[1]
    left, _, right = np.linalg.svd(before.T @ after + weight * np.eye(before.shape[1]))
    return (left @ right).astype(np.float32)


def run(model: CDEModel, data: Path, cache: Path) -> None:
    """Measure what is not measured yet, one line of JSON each."""
    cache.mkdir(parents=True, exist_ok=True)
    bench = Bench(model, data, cache, {})
    results = cache / "results.jsonl"
    known = (
        {json.dumps(json.loads(line)["job"]) for line in results.read_text().splitlines()} if results.exists() else ()
    )
    for kind, *arguments in jobs():
        if json.dumps([kind, *arguments]) not in known:
            found = {"move": move, "growth": growth, "budget": budget}[kind](bench, *arguments)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"job": [kind, *arguments], **found}) + "\n")
            print(json.dumps(found), flush=True)


def jobs() -> Iterator[list[Any]]:
    """All measurements."""
    yield from (["move", old, name, 1.0] for old in ("null", "generic") for name in DOMAINS)
    yield from (["move", old, new, step] for old, new in PAIRS for step in STEPS)
    yield from (["growth", name, seed] for seed in SEEDS for name in DOMAINS)
    yield from (["budget", old, new] for old, new in BUDGETS)


COLUMNS = ("kind", "old", "new", "step", "seed", "queries", "ndcg", "judged", "judged_error", "even", "odd", "value",
           "value_error", "value_kept", "kept", "direct", "energy")  # fmt: skip


def report(cache: Path) -> None:
    """Fit the `Calibration` of cde_rag/indexing/drift.py, print the figures, and write the table and the drawing."""
    rows = [json.loads(line) for line in (cache / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    moves, growths, budgets = ([row for row in rows if row["job"][0] == kind] for kind in ("move", "growth", "budget"))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in moves + growths:
            numbers = {
                key: round(value, 5) for key, value in row.items() if isinstance(value, float) and value == value
            }
            writer.writerow({**row, "energy": "", **numbers, "kind": row["job"][0]})
    calibration = fitted(moves)
    print("Calibration({:.2f}, {:.3f}, {:.3f})".format(*calibration), f"of {len(moves)} moves")
    told = [estimated(row, calibration) for row in moves]
    starts = [place for place, row in enumerate(moves) if row["old"] in ("null", "generic")]
    pairs = [place for place in range(len(moves)) if place not in starts]
    apart = held_out(moves)
    within = [abs(row["judged"] - gain) <= math.hypot(reach, REACH * row["judged_error"])
              for row, (gain, reach) in zip(moves, apart, strict=True)]  # fmt: skip
    print(f"held out: 90 % intervals hold {np.mean(within):.0%} of the judged gains")
    for name, some in (("all", range(len(moves))), ("null and generic", starts), ("another domain", pairs)):
        judged = [moves[place]["judged"] for place in some]
        signs = {
            "estimate": [told[place][0] for place in some],
            "held out": [apart[place][0] for place in some],
            "direct": [moves[place]["direct"] for place in some],
            "neighbours changed": [1 - moves[place]["kept"] for place in some],
            "energy": [moves[place]["energy"] for place in some],
        }
        halves = spearman(*([moves[place][half] for place in some] for half in ("even", "odd")))
        figures = [f"{sign} {spearman(each, judged):.2f}" for sign, each in signs.items() if np.isfinite(each).all()]
        print(f"Spearman, from {name} ({len(some)}): {', '.join(figures)}; halves of the queries {halves:.2f}")
    for row, (gain, reach) in zip(moves, told, strict=True):
        judged = f"{100 * row['judged']:+.1f} ± {100 * REACH * row['judged_error']:.1f}"
        told_it = f"{100 * gain:+.1f} ± {100 * reach:.1f}{' pays' if gain > max(reach, WORTH) else ''}"
        name = f"{row['old']} → {row['new']} {row['step']:.0%}"
        print(f"| {name} | {100 * row['ndcg']:.1f} | {judged} | {told_it} | {row['kept']:.0%} |")
    same = [estimated(row, calibration) for row in growths + [row for row in moves if row["step"] == 0]]
    alarms = [gain for gain, reach in same if gain > reach]
    print(f"same domain: {len(same)} growths, {len(alarms)} with an interval above 0, "
          f"{sum(gain >= WORTH for gain in alarms)} that would be worth it; "
          f"estimates {100 * min(same)[0]:+.2f} … {100 * max(same)[0]:+.2f}")  # fmt: skip
    for row in budgets:
        print(f"{row['old']} → {row['new']}, {row['documents']} documents, {row['queries']} queries")
        best = row["found"]["all"][0]
        for name, (mean, deviation) in row["found"].items():
            print(f"  {name:<22} {100 * mean:.1f}  {100 * (mean - best):+.1f} ± {100 * REACH * deviation:.1f}")
    figure = {"the null or generic": starts, "another domain's": pairs}
    draw({name: [(moves[i], told[i]) for i in some] for name, some in figure.items()}, same, DRAWING)


def held_out(moves: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """What the moves without a domain, its old context included, give that domain's moves."""
    return [
        estimated(row, fitted([other for other in moves if row["new"] not in (other["old"], other["new"])]))
        for row in moves
    ]


def estimated(row: Mapping[str, Any], calibration: Calibration) -> tuple[float, float]:
    """The gain and how far its interval reaches, as `estimate_gain` would give them."""
    slope, offset, residual = calibration
    changed, slope = 1 - row["kept"], slope / (1 - row["value_kept"])
    gain = changed * (slope * row["value"] - offset)
    return gain, REACH * changed * math.hypot(slope * row["value_error"], residual)


def fitted(moves: Sequence[Mapping[str, Any]]) -> Calibration:
    """Slope, offset, and what is left beside the noise of probes and queries, each for the neighbours that change."""
    changed = np.array([1 - row["kept"] for row in moves])
    judged = np.array([row["judged"] for row in moves]) / changed
    value = np.array([row["value"] / (1 - row["value_kept"]) for row in moves])
    noise = np.array([row["judged_error"] for row in moves]) / changed
    residual = 0.0
    for _ in range(20):  # a move weighs by how sure it is, which the residual says, too
        slope, intercept = np.polyfit(value, judged, 1, w=1 / np.hypot(noise, residual))
        left = (judged - slope * value - intercept) ** 2 - noise**2
        residual = math.sqrt(max(float(np.average(left, weights=1 / (noise**2 + residual**2))), 1e-4))
    return Calibration(float(slope), -float(intercept), residual)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def draw(
    moves: Mapping[str, Sequence[tuple[Mapping[str, Any], tuple[float, float]]]],
    growths: Sequence[tuple[float, float]],
    path: Path,
) -> None:
    """Judged over estimated gains; the second panel is the middle of the first."""
    figure = require("matplotlib.figure", "train").Figure(figsize=(10, 4.4), layout="constrained")
    for axes, limit in zip(figure.subplots(1, 2), (7.0, 2.5), strict=True):
        for name, some in moves.items():
            axes.errorbar(
                [100 * gain for _, (gain, _) in some],
                [100 * row["judged"] for row, _ in some],
                xerr=[100 * reach for _, (_, reach) in some],
                yerr=[100 * REACH * row["judged_error"] for row, _ in some],
                fmt="o", markersize=4, linewidth=0.6, label=f"from {name} context",
            )  # fmt: skip
        axes.plot([100 * gain for gain, _ in growths], [-0.9 * limit] * len(growths), "|k", label="growth in a domain")
        axes.axline((0, 0), slope=1, color="grey", linewidth=0.8)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), xlabel="estimated gain, NDCG@10 × 100, 90 %")
        axes.set_ylabel("gain of judged queries")
    figure.axes[0].legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, or report."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "report"):
        command = commands.add_parser(name)
        command.add_argument("--cache", type=Path, default=Path("runs/drift"), help="of one model")
        if name == "run":
            command.add_argument("data", type=Path)
            command.add_argument("--model", default="cde-mini-2", help="bundled name or folder, one-way")
    options = parser.parse_args()
    if options.command == "run":
        run(CDEModel.from_pretrained(options.model), options.data, options.cache)
    else:
        report(options.cache)


if __name__ == "__main__":
    main()

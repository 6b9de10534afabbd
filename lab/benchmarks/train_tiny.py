"""A real tiny model on real pairs, in a few minutes of CPU time: do loss and held-out retrieval move the right way?

Two layers of 128 dimensions. The word embeddings are those of cde-mini, cut down to their 128 main directions; all else
starts at random. For each seed: the training loss of the first and the last updates, and NDCG@10 on pairs whose parents
were kept apart, before and after, with the 95 % interval of the difference. Exit code 1 where one does not move.

Run with: make train-tiny, or python lab/benchmarks/train_tiny.py [--seeds 0 1 2] [--updates 60] [--json]
"""

import argparse
import csv
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.model import CDEModel, checkpoints
from cde_rag.model.config import ModelConfig
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.adapt.before_after import model_scores
from cde_rag_training.adapt.sections import place_of
from cde_rag_training.clustering.surrogate import tfidf_svd
from cde_rag_training.config import (
    EvaluationConfig,
    GuardConfig,
    LossConfig,
    MachineConfig,
    PhaseConfig,
    RatesConfig,
    ScheduleConfig,
    StartConfig,
    TrainingConfig,
)
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.data.pairs import Pair, per_source, without_duplicates
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.reading import read_sources
from cde_rag_training.loop.logs import LOG
from cde_rag_training.loop.training import train

DATA = Path(__file__).resolve().parents[3] / "shared/data/train"
SOURCES = {"factbook": 2000, "medquad": 2000, "movies": 1000, "tldr": 2000}  # about so many pairs of each
HELD_OUT = 0.15  # share of the parents, or of the pairs without one
QUERIES = 200  # held out, of each source at most
FEW = 10  # updates whose mean is the loss at the beginning, and at the end
SIZES = {"dim": 128, "layers": 2, "context_layers": 2, "heads": 4, "intermediate": 512}
SIZES |= {"max_length": 64, "first_stage_max_length": 64}  # tokens


def split(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Training pairs and held-out pairs; no parent in both."""
    places = [place_of(f"{pair.source} {pair.parent or pair.document}", 0) for pair in pairs]
    training = [pair for pair, place in zip(pairs, places, strict=True) if place >= HELD_OUT]
    return training, [pair for pair, place in zip(pairs, places, strict=True) if place < HELD_OUT]


def retrieval_sets(pairs: list[Pair]) -> list[RetrievalSet]:
    """The held-out pairs of each source: queries that have to find their document among all of them."""
    sets: list[RetrievalSet] = []
    for source in SOURCES:
        answers: dict[str, dict[str, int]] = {}
        documents = {f"d{number}": pair for number, pair in enumerate(pairs) if pair.source == source}
        for name, pair in documents.items():
            answers.setdefault(pair.query, {})[name] = 1
        corpus = Corpus(source, tuple(documents), tuple(pair.document for pair in documents.values()))
        queries = tuple(f"q{number}" for number in range(len(answers)))
        sets.append(RetrievalSet(corpus, queries, tuple(answers), tuple(answers.values())).sample_queries(QUERIES))
    return sets


def write_start(folder: Path, *, seed: int) -> str:
    """A tiny model's folder; returns its tokenizer's JSON."""
    network, tokenizer, *_ = checkpoints.read(checkpoints.find("cde-mini"))
    words = network.embeddings.word.weight.detach()
    _, directions = torch.linalg.eigh(words.T @ words)
    torch.manual_seed(seed)
    tiny = TwoStage(ModelConfig(name="tiny", latents=16, **SIZES))
    with torch.no_grad():
        tiny.embeddings.word.weight.copy_(words @ directions[:, -SIZES["dim"] :])
        tiny.embeddings.position.weight.zero_()
        tiny.first_stage.down.weight.zero_()
        tiny.first_stage.down.bias.zero_()
        tiny.second_stage.sibling_output.weight.zero_()
    checkpoints.write(folder, tiny, tokenizer.serialised)
    return tokenizer.serialised


def recipe(start: Path, *, updates: int, seed: int) -> TrainingConfig:
    """All of the model is trained."""
    phase = PhaseConfig(
        corpora=CorporaConfig(batch_size=128, context=ContextConfig(smallest=16, largest=64)),
        loss=LossConfig(temperature=0.05),
        schedule=ScheduleConfig(updates=updates),
        rates=RatesConfig(encoder=1e-3, layer_decay=1.0, embeddings=1e-3, first_stage=1e-3, context=1e-3, gates=1e-2),
    )
    return TrainingConfig(
        seed=seed,
        start=StartConfig(model=str(start), name="trained"),
        phases=(phase,),
        evaluation=EvaluationConfig(every=0, probe_every=0),
        guard=GuardConfig(action="none"),
        machine=MachineConfig(mini_batch_size=128, gradient_caching=False, save_every=10**6),
    )


def measured(model: Path, sets: list[RetrievalSet]) -> list[np.ndarray]:
    """NDCG@10 of each query of each set."""
    loaded = CDEModel.from_pretrained(model, dtype="float32", runtime="torch")
    return [model_scores(loaded, one) for one in sets]


def row_of(seed: int, prepared: Prepared, sets: list[RetrievalSet], folder: Path, *, updates: int) -> dict[str, float]:
    """Train with one seed, and tell what moved."""
    began = time.process_time()
    write_start(folder / "start", seed=seed)
    before = measured(folder / "start", sets)
    after = measured(train(prepared, recipe(folder / "start", updates=updates, seed=seed), folder / "run"), sets)
    with (folder / "run" / LOG).open(encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    gains = [PairedQueries(b - a, one.blocks) for a, b, one in zip(before, after, sets, strict=True)]
    difference = compare(gains)
    return {
        "seed": seed,
        "loss_before": float(np.mean(losses[:FEW])),
        "loss_after": float(np.mean(losses[-FEW:])),
        "ndcg_before": float(np.mean([one.mean() for one in before])),
        "ndcg_after": float(np.mean([one.mean() for one in after])),
        "gain_low": difference.queries[0],
        "gain_high": difference.queries[1],
        "cpu_seconds": time.process_time() - began,
    }


def moved(row: dict[str, float]) -> bool:
    """Whether the loss fell, and the whole interval of the gain lies above zero."""
    return row["loss_after"] < row["loss_before"] and row["gain_low"] > 0


def main() -> int:
    """Train, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not DATA.is_dir():
        print(f"Expected training pairs in {DATA}, found no such folder: they are on the project's own machines.")
        return 1
    sources = read_sources(DATA, SOURCES)
    pairs = per_source(without_duplicates(pair for group in sources.values() for pair in group), SOURCES)
    training, held_out = split(pairs)
    sets = retrieval_sets(held_out)
    with tempfile.TemporaryDirectory(prefix="train-tiny-") as place:
        folder = Path(place)
        surrogate = tfidf_svd([text for pair in training for text in (pair.query, pair.document)], dims=128)
        tokenizer = checkpoints.read(checkpoints.find("cde-mini"))[1]
        settings = PrepareConfig(max_length=SIZES["max_length"], surrogate="tfidf-128")
        prepared = prepare(training, tokenizer, folder / "prepared", settings, surrogate=surrogate)
        rows = []
        for seed in arguments.seeds:
            rows.append(row_of(seed, prepared, sets, folder / str(seed), updates=arguments.updates))
            if not arguments.json:
                tell(rows[-1], first=len(rows) == 1, training=len(training), queries=sum(len(s.queries) for s in sets))
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 0 if all(map(moved, rows)) else 1


def tell(row: dict[str, float], *, first: bool, training: int, queries: int) -> None:
    """One line of the table."""
    if first:
        print(f"{training:,} pairs of {', '.join(SOURCES)}; NDCG@10 × 100 on {queries:,} held-out queries")
        print("seed  loss before  after  NDCG before  after   gain (95 %)         CPU seconds")
    low, high = 100 * row["gain_low"], 100 * row["gain_high"]
    gain = 100 * (row["ndcg_after"] - row["ndcg_before"])
    print(
        f"{row['seed']:4.0f}  {row['loss_before']:11.3f}  {row['loss_after']:5.3f}  {100 * row['ndcg_before']:11.1f}  "
        f"{100 * row['ndcg_after']:5.1f}  {gain:+5.1f} ({low:+.1f} … {high:+.1f})  {row['cpu_seconds']:12.0f}"
        + ("" if moved(row) else "  did not move"),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())

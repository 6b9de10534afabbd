"""How the development build of the bundled model is made: data, start, training, choice, file."""

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64
from safetensors.torch import load_file, save_file

from cde_rag.evaluation import evaluate
from cde_rag.model import CDEModel, checkpoints
from cde_rag.model.config import ModelConfig
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_stage import TwoStage
from cde_rag_training.batches import BatchConfig, Batches
from cde_rag_training.clusters import paired_kmeans
from cde_rag_training.development import development_sets, parent_sets
from cde_rag_training.distillation import distil_first_stage
from cde_rag_training.pairs import Pair, per_source, without_duplicates
from cde_rag_training.reading import read_sources
from cde_rag_training.start import bert_tokenizer, from_bert
from cde_rag_training.surrogate import cached, minilm, minilm_folder
from cde_rag_training.trainer import Surroundings, Trainer, TrainingConfig

# Left out: ansible and git are GPL, math_stacks is GFDL, subjqa's terms are unclear (so no weights are made from them);
# redis, helm, govuk and prometheus, manpages, pystdlib and misc are development sets.
SOURCES = {  # about so many pairs of each, parents kept whole
    "docs": 18_000,
    "medquad": 8_000,
    "factbook": 4_000,
    "lfrqa": 5_000,
    "debian": 4_000,
    "tldr": 2_500,
    "movies": 1_000,
    "dictionary": 1_000,
    "gsm8k": 1_000,
}
HELD_OUT_DOMAINS = {
    "doc_redis", "doc_helm", "doc_govuk", "doc_prometheus", "doc_ansible", "doc_git",
    "lfrqa_recreation", "lfrqa_science",
    "debian_admin", "debian_editors", "debian_graphics", "debian_kde", "debian_mail", "debian_math", "debian_php",
    "debian_ruby", "debian_sound", "debian_web",
}  # fmt: skip
SURROGATE_TOKENS = 96
SHARE = 0.6  # of the encoder's training, chosen on development sets
EXPONENT = 0.15  # of the output map, chosen on development sets; training ended at 0.07
SIBLINGS = 0.5  # of their trained weight in the output: more helps documentation, and harms squadshifts_newwiki


def _evaluation_texts(folder: Path) -> list[str]:
    texts: list[str] = []
    for path in sorted(folder.glob("*/corpus.jsonl.gz")) + sorted(folder.glob("*/queries*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def load_pairs(data: Path) -> list[Pair]:
    """The pairs that train cde-mini-0: at most so many of each source, no evaluation text among them."""
    sources = read_sources(data / "train", SOURCES, without_domains=HELD_OUT_DOMAINS)
    pairs = without_duplicates(
        (pair for group in sources.values() for pair in group), against=_evaluation_texts(data / "eval")
    )
    return per_source(pairs, SOURCES)


def start(folder: Path) -> TwoStage:
    """All-MiniLM-L6-v2 as a one-way model, its first stage not yet distilled."""
    return from_bert(folder, ModelConfig(name="cde-mini-0"), seed=0)


def train(data: Path, output: Path, minutes: float, distillation_minutes: float) -> None:
    """Make the trained model. Finished steps are kept in `output`: a second call goes on where the first stopped."""
    teacher = minilm_folder()
    pairs = load_pairs(data)
    surrogate = cached(minilm(max_length=SURROGATE_TOKENS), f"minilm-{SURROGATE_TOKENS}", output / "surrogate")
    queries = surrogate([pair.query for pair in pairs])
    documents = surrogate([pair.document for pair in pairs])
    network, tokenizer = start(teacher), TextTokenizer(bert_tokenizer(teacher))
    _first_stage(network, tokenizer, pairs, documents, output, seconds=60 * distillation_minutes)
    first_stage = CDEModel(network, tokenizer, "", device="cpu", dtype="float32").first_stage
    version = hashlib.sha256((output / "first_stage.safetensors").read_bytes()).hexdigest()[:16]
    vectors = cached(first_stage, f"first-stage-{version}", output / "surrogate")([pair.document for pair in pairs])
    print(f"first stage against its teacher: mean cosine {(vectors * documents).sum(axis=1).mean():.3f}", flush=True)
    batches = Batches(pairs, documents, _clusters(pairs, queries, documents), BatchConfig(), seed=0)
    config = TrainingConfig(seconds=60 * minutes)
    Trainer(network, tokenizer, batches, Surroundings(vectors, queries, documents), config, output / "run").run()


def interpolated(output: Path, share: float, *, exponent: float = EXPONENT) -> TwoStage:
    """The trained model, its encoder layers taken back towards the start: share 0 has the start's, share 1 the trained.

    Source: Wortsman et al. 2022 (WiSE-FT): in between lies what a short training adds without what it forgets. The path
    of the context is new and stays as trained, but for the output map's exponent, which training hardly moves, and the
    weight of the siblings in the output.
    """
    network = start(minilm_folder())
    first = load_file(output / "first_stage.safetensors")
    trained = load_file(output / "run" / "state.safetensors")
    state = network.state_dict()
    for key, value in state.items():
        name = key.removeprefix("first_stage.")
        target = first[name] if key != name else trained[f"network.{key}"]
        state[key] = torch.lerp(value, target, share) if key.startswith("second_stage.layers.") else target
    network.load_state_dict(state)
    network.output_map.exponent.data.fill_(exponent)
    network.second_stage.sibling_output.weight.data.mul_(SIBLINGS)
    return network.eval().requires_grad_(requires_grad=False)


def choose(data: Path, output: Path, shares: Sequence[float]) -> None:
    """Measure shares of the training on small development sets, as `evaluate` does."""
    tokenizer = TextTokenizer(bert_tokenizer(minilm_folder()))
    plain, with_parents = development_sets(data), parent_sets(data)
    for share in shares:
        model = CDEModel(interpolated(output, share), tokenizer, f"{share}", device="cpu")
        print(
            f"share {share}",
            evaluate(plain, model=model, systems=("own", "null", "foreign", "minilm")),
            sep="\n",
            flush=True,
        )
        print(evaluate(with_parents, model=model, systems=("own", "parents", "minilm", "siblings_mean")), flush=True)


def ship(output: Path, share: float, folder: Path) -> None:
    """Write the chosen model to a folder of bundled models."""
    checkpoints.write(folder, interpolated(output, share), bert_tokenizer(minilm_folder()))


def _first_stage(
    network: TwoStage,
    tokenizer: TextTokenizer,
    pairs: list[Pair],
    targets: Float32[np.ndarray, "pairs dim"],
    output: Path,
    *,
    seconds: float,
) -> None:
    path = output / "first_stage.safetensors"
    if not path.exists():
        texts = [pair.document for pair in pairs]
        rows = [tokens.ids for tokens in tokenizer(texts, SURROGATE_TOKENS)]

        def log(update: int, cosine: float) -> None:
            if update % 20 == 0:
                print(f"distillation {update}: cosine {cosine:.3f}", flush=True)

        distil_first_stage(network, rows, targets, seconds=seconds, log=log)
        save_file(network.first_stage.state_dict(), path)
    network.first_stage.load_state_dict(load_file(path))


def _clusters(
    pairs: list[Pair], queries: Float32[np.ndarray, "pairs dim"], documents: Float32[np.ndarray, "pairs dim"]
) -> Int64[np.ndarray, " pairs"]:
    clusters = np.zeros(len(pairs), dtype=np.int64)
    sources = np.array([pair.source for pair in pairs])
    for source in SOURCES:
        rows = np.flatnonzero(sources == source)
        count = -(-len(rows) // 128)
        clusters[rows] = paired_kmeans(queries[rows], documents[rows], count=count, steps=20, attempts=1, seed=0)
    return clusters


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["train", "choose", "ship"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with train/ and eval/")
    parser.add_argument("--output", type=Path, default=Path("runs/cde-mini-0"))
    parser.add_argument("--minutes", type=float, default=34.0, help="train: of contrastive training")
    parser.add_argument("--distillation-minutes", type=float, default=7.0, help="train: of the first stage")
    parser.add_argument(
        "--share", type=float, nargs="+", default=[SHARE], help="choose, ship: of the encoder's training"
    )
    arguments = parser.parse_args()
    if arguments.step == "train":
        train(arguments.data, arguments.output, arguments.minutes, arguments.distillation_minutes)
    elif arguments.step == "choose":
        choose(arguments.data, arguments.output, arguments.share)
    else:
        ship(arguments.output, arguments.share[0], checkpoints.BUNDLED / "cde-mini-0")

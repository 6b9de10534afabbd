"""A small NomicBERT of random weights that has seen masked-language training alone: the backbone of the paper's plan.

Run `python -m lab.experiments.masked_backbone all.jsonl ../shared-backbone --minutes 110`; the same command resumes.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from cde_rag._files import write_durably
from cde_rag.errors import CorpusError, require
from cde_rag.models.cde_model import native_dtype
from cde_rag.models.files.weights import TOKENIZER
from cde_rag.models.runtimes.torch_runner import DTYPES, pad
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.config import ScheduleConfig
from cde_rag_training.data.reading import PairReader
from cde_rag_training.loop.optimiser import Optimiser, ParameterGroup
from cde_rag_training.loop.state import STATE, RunProgress, State, StateFile
from cde_rag_training.loop.trainer import OPTIMISER, WEIGHTS, Schedule, part_of
from cde_rag_training.networks.start import MINILM, start_tokenizer

MASK = "[MASK]"
KINDS = (0.8, 0.1)  # of the chosen tokens: masked, another at random; the rest stays   Devlin et al. 2019 §3.1
HELD_OUT, MEASURED = 100, 256  # every so manieth document is not trained on; so many of these measure the loss
COLUMNS = ("update", "loss", "held_out", "seconds")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Sizes and training of a backbone, as lab/pages/paper-plan.md has them."""

    layers: int = 4
    dim: int = 256
    heads: int = 4
    intermediate: int = 768
    max_positions: int = 512
    max_length: int = 64  # tokens of a text
    share: float = 0.3  # of tokens to name, as NomicBERT
    batch_size: int = 64
    mini_batch_size: int = 32
    updates: int = 1000
    warmup: int = 100  # updates
    rate: float = 5e-4
    weight_decay: float = 0.01
    save_every: int = 50  # updates
    measure_every: int = 250
    seed: int = 0


class Masked(NamedTuple):
    """Texts with hidden tokens.

    Attributes:
        ids: Token ids, some of them hidden.
        there: True if there is a token.
        chosen: True for the tokens to name.
        names: The tokens to name, in the order of `chosen`.
    """

    ids: Int[Tensor, "texts tokens"]
    there: Bool[Tensor, "texts tokens"]
    chosen: Bool[Tensor, "texts tokens"]
    names: Int[Tensor, " chosen"]


class MaskedBackbone(nn.Module):
    """NomicBERT, and a head that names hidden tokens by its word embeddings.

    Args:
        config: Sizes.
        vocabulary: Number of word pieces.
    """

    def __init__(self, config: BackboneConfig, vocabulary: int) -> None:
        super().__init__()
        transformers: Any = require("transformers", "transformers")
        sizes = transformers.NomicBertConfig(
            vocab_size=vocabulary,
            hidden_size=config.dim,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.max_positions,
            pad_token_id=0,
        )
        self.native: Any = transformers.NomicBertModel(sizes)
        self.head = nn.Sequential(nn.Linear(config.dim, config.dim), nn.GELU(), nn.LayerNorm(config.dim))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, texts: Masked) -> Float[Tensor, ""]:
        """Compute the cross-entropy of the hidden tokens, summed, in nats."""
        states = self.native(input_ids=texts.ids, attention_mask=texts.there).last_hidden_state[texts.chosen]
        words = self.native.embeddings.word_embeddings.weight
        return F.cross_entropy(F.linear(self.head(states), words, self.bias).float(), texts.names, reduction="sum")


def masked(texts: Sequence[Sequence[int]], mask: int, vocabulary: int, share: float, seed: Sequence[int]) -> Masked:
    """Hide a share of each text's tokens, special ones apart: at least one, drawn by the seed."""
    random = np.random.default_rng(list(seed))
    ids, there = pad([list(text) for text in texts])
    chosen = torch.zeros_like(there)
    for row, text in enumerate(texts):
        inner = len(text) - 2
        places = 1 + random.choice(inner, size=min(inner, max(1, round(share * inner))), replace=False)
        chosen[row, torch.from_numpy(places)] = True
    names = ids[chosen]
    drawn = torch.from_numpy(random.random(len(names)))
    others = torch.from_numpy(random.integers(vocabulary, size=len(names)))
    shown = torch.where(drawn < KINDS[0], mask, torch.where(drawn < sum(KINDS), others, names))
    return Masked(ids.masked_scatter(chosen, shown), there, chosen, names)


class BackboneTraining:
    """Masked-language training of one backbone, from its beginning or from a checkpoint.

    Args:
        documents: Texts to train on, each once.
        tokenizer: Their tokenizer.
        config: Sizes and duration.
        output: Folder of the backbone; checkpoint and log.csv are in `run` inside of it.
        device: Such as "cpu" or "cuda".

    Raises:
        CorpusError: Too few documents, or a tokenizer without a token for hidden words.
        ResumeError: The folder holds a run with other settings or texts.
    """

    def __init__(
        self, documents: Sequence[str], tokenizer: TextTokenizer, config: BackboneConfig, output: Path, *, device: str
    ) -> None:
        self._config, self._output, self._device = config, output, device
        self._tokenizer, self._mask = tokenizer, tokenizer.first_id(MASK)
        ids = [tokens.ids for tokens in tokenizer(documents, config.max_length)]
        rows = [text for text in ids if len(text) > 2]
        self._held_out = rows[::HELD_OUT][:MEASURED]
        self._rows = [text for place, text in enumerate(rows) if place % HELD_OUT]
        if len(self._rows) < config.batch_size:
            raise CorpusError(
                f"Expected {config.batch_size} documents or more, a batch, found {len(self._rows)}. Give more."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = MaskedBackbone(config, tokenizer.size).to(device)
        named = dict(self.network.named_parameters())
        decaying = {name: value for name, value in named.items() if value.ndim > 1}
        other = {name: value for name, value in named.items() if value.ndim == 1}
        groups = [ParameterGroup("encoder", config.rate, config.weight_decay, decaying)]
        self._optimiser = Optimiser([*groups, ParameterGroup("encoder", config.rate, 0.0, other)], clip=1.0)
        schedule = ScheduleConfig(updates=config.updates, warmup=config.warmup / config.updates)
        self._schedule, self._run = Schedule(schedule), output / "run"
        self._run.mkdir(parents=True, exist_ok=True)
        texts = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        kept = {name: value for name, value in asdict(config).items() if name not in ("mini_batch_size", "save_every")}
        self._file = StateFile(self._run / STATE, {"config": kept, "texts": texts, "tokenizer": tokenizer.sha256})
        self.progress = self._resumed()

    def _resumed(self) -> RunProgress:
        state = self._file.read()
        if state is None:
            return RunProgress()
        self.network.load_state_dict(part_of(state, WEIGHTS))
        self._optimiser.restore(part_of(state, OPTIMISER))
        return state.progress

    def train(self, *, minutes: float | None = None, progress: bool = False) -> bool:
        """Train to the end, or as long as there is time, and save.

        Args:
            minutes: Time of this call; None: to the end.
            progress: True to show a bar.

        Returns:
            True if the backbone is finished, and written.
        """
        began, before = time.monotonic(), self.progress.seconds
        with (
            (self._run / "log.csv").open("ab") as file,
            tqdm(
                total=self._config.updates, initial=self.progress.update, desc="backbone", disable=not progress
            ) as bar,
        ):
            file.truncate(self.progress.log_bytes)
            while self.progress.update < self._config.updates:
                self._update(file, began - before)
                bar.update()
                over = minutes is not None and time.monotonic() - began > 60 * minutes
                if over or self.progress.update % self._config.save_every == 0:
                    self._save()
                if over:
                    break
        if self.progress.update < self._config.updates:
            return False
        self.network.native.save_pretrained(self._output)
        write_durably(self._output / TOKENIZER, self._tokenizer.serialised.encode())
        return True

    def _update(self, file: Any, began: float) -> None:
        config, number = self._config, self.progress.update
        self.network.train()
        self._optimiser.zero_grad()
        loss = self._loss(self._batch(number), (config.seed, 1, number), backward=True)
        self._optimiser.clip()
        self._optimiser.step(self._schedule.factor(number, seconds=0.0))
        done, seconds = number + 1, time.monotonic() - began
        measured = done % config.measure_every == 0 or done in (1, config.updates)
        held_out = self.held_out_loss() if measured else None
        row = (done, f"{loss:.5f}", "" if held_out is None else f"{held_out:.5f}", f"{seconds:.1f}")
        lines = ([",".join(COLUMNS)] if number == 0 else []) + [",".join(map(str, row))]
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        self.progress = replace(self.progress, update=done, seconds=seconds, log_bytes=file.tell())

    def held_out_loss(self) -> float:
        """Compute the mean cross-entropy of hidden tokens of documents that are not trained on, in nats."""
        self.network.eval()
        with torch.no_grad():
            return self._loss(self._held_out, (self._config.seed, 2), backward=False)

    def _batch(self, number: int) -> list[list[int]]:
        """Return the texts of an update; each text once in an epoch, less than a batch apart."""
        size = self._config.batch_size
        epoch, place = divmod(number, len(self._rows) // size)
        order = np.random.default_rng([self._config.seed, 0, epoch]).permutation(len(self._rows))
        return [self._rows[row] for row in order[place * size : (place + 1) * size].tolist()]

    def _loss(self, texts: Sequence[list[int]], seed: Sequence[int], *, backward: bool) -> float:
        """Compute the mean loss of the hidden tokens, and add its gradients if `backward`."""
        parts = list(self._parts(texts, seed))
        count, total = sum(len(part.names) for part in parts), 0.0
        dtype = DTYPES[native_dtype(self._device)]
        for part in parts:
            with torch.autocast(torch.device(self._device).type, dtype=dtype, enabled=dtype == torch.bfloat16):
                value = self.network(Masked(*(each.to(self._device) for each in part))) / count
            if backward:
                value.backward()
            total += float(value.detach())
        return total

    def _parts(self, texts: Sequence[list[int]], seed: Sequence[int]) -> Iterator[Masked]:
        size, config = self._config.mini_batch_size, self._config
        for start in range(0, len(texts), size):
            some = texts[start : start + size]
            yield masked(some, self._mask, self._tokenizer.size, config.share, (*seed, start))

    def _save(self) -> None:
        tensors = {f"{WEIGHTS}{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"{OPTIMISER}{name}": value for name, value in self._optimiser.state()}
        self._file.write(State(self.progress, tensors))


def main() -> None:
    """Train the backbone of lab/pages/paper-plan.md, or resume, and print its loss on held-out documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path, help="file of pairs, whose documents are read")
    parser.add_argument("output", type=Path, help="folder of the backbone, the start.model of a recipe")
    parser.add_argument("--minutes", type=float, default=None, help="stop after this time; the same command resumes")
    parser.add_argument("--updates", type=int, default=BackboneConfig().updates, help="for a trial of less time")
    parser.add_argument("--warmup", type=int, default=BackboneConfig().warmup, help="updates of warm-up")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    documents = list(dict.fromkeys(pair.document for pair in PairReader(given.pairs)))
    config = BackboneConfig(updates=given.updates, warmup=given.warmup)
    training = BackboneTraining(documents, start_tokenizer(MINILM), config, given.output, device=given.device)
    finished = training.train(minutes=given.minutes, progress=True)
    done = f"update {training.progress.update} of {config.updates}, held-out loss {training.held_out_loss():.3f} nats"
    print(f"{given.output}: {done}" if finished else f"{done}; run the same command again")


if __name__ == "__main__":
    main()

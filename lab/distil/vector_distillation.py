"""Training of a one-way model towards a teacher's embeddings; resumes bit by bit when interrupted."""

import hashlib
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from tqdm import tqdm

from cde_rag._files import write_durably
from cde_rag.errors import ModelError, ResumeError
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.models.batching import length_buckets
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.attention import mean_pool
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.loop.averaging import WeightAverage
from cde_rag_training.loop.guard import TrainingError
from cde_rag_training.loop.optimiser import Optimiser, ParameterGroup
from cde_rag_training.loop.state import RunProgress, State, StateFile
from cde_rag_training.networks.stages import OneWayStages, TextBatch
from lab.distil.development_curve import CURVE, CurvePoint, DevelopmentSets, read_curve, write_curve
from lab.distil.student import read_start
from lab.distil.target_axes import Projection, TargetSpace, aligned, projection_axes
from lab.distil.teacher_shards import Teacher, TeacherShards

STATE, TARGET, START, MODEL = "state.safetensors", "target.safetensors", "start", "model"
WEIGHTS, AVERAGE, OPTIMISER, SUMS = "weights:", "average:", "optimiser:", "sums"
TRAINED = ("second_stage.layers.", "second_stage.roles")


@dataclass(frozen=True, kw_only=True)
class VectorDistillationConfig:
    """Settings of a distillation; all of them determine the weights."""

    projection: Projection = "principal"  # of the teacher's embeddings to the student's dimensions
    sample: int = 2  # shards from which the target space is computed
    batch_size: int = 32  # texts of one role and similar length; Vujanic & Rueckstiess 2025: small batches
    rate: float = 1e-4  # of AdamW, topmost layer; constant after the warm-up
    layer_decay: float = 0.95  # each lower layer learns by so much less
    warmup: int = 100  # updates
    weight_decay: float = 0.01  # of matrices
    clip: float = 1.0  # largest norm of all gradients together
    average: float = 0.999  # decay of the weights' moving average, which is evaluated and exported
    precision: str = "auto"  # of matrix products; auto: bf16 if the CPU has it natively
    seed: int = 0  # of the order of batches

    def __post_init__(self) -> None:
        if min(self.sample, self.batch_size, self.warmup) < 1 or min(self.rate, self.clip) <= 0:
            raise ValueError(
                f"Expected sample, batch_size and warmup of at least 1, rate and clip above 0; got {self}."
            )
        if not (0 < self.layer_decay <= 1 and 0 <= self.average < 1 and self.weight_decay >= 0):
            raise ValueError(f"Expected layer_decay and average in 0 … 1, weight_decay of at least 0; got {self}.")


class Position(NamedTuple):
    """Position of an update in the data.

    Attributes:
        epoch: Passes over all shards that are complete.
        shard: Number of the shard.
        batch: Number of the batch in the shard's order.
    """

    epoch: int
    shard: int
    batch: int


class ShardBatches:
    """Order of the batches: shard by shard, each shard's batches in another order at every pass.

    Args:
        counts: Number of queries and documents of each shard.
        size: Texts of a batch, at most.
        seed: Random seed of the order.
    """

    def __init__(self, counts: Sequence[tuple[int, int]], size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._ends = list(accumulate(sum(-(-count // size) for count in shard) for shard in counts))
        self._texts = [0, *accumulate(map(sum, counts))]

    def position(self, update: int) -> Position:
        """Return the position of an update, counted from 0."""
        epoch, batch = divmod(update, self._ends[-1])
        shard = bisect_right(self._ends, batch)
        return Position(epoch, shard, batch - (self._ends[shard - 1] if shard else 0))

    def ends_shard(self, update: int) -> bool:
        """Return True if an update is the last one of its shard."""
        return update % self._ends[-1] + 1 in self._ends

    def texts_before(self, update: int) -> int:
        """Return the number of texts in the shards before an update's shard, repetitions included."""
        position = self.position(update)
        return position.epoch * self._texts[-1] + self._texts[position.shard]

    def batches(self, position: Position, roles: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return the places of the texts of each batch of a shard, in the order of its pass.

        Args:
            position: Its pass and shard.
            roles: Role of each text of the shard.
            lengths: Number of tokens of each text.
        """
        found: list[list[int]] = []
        for role in (QUERY, DOCUMENT):
            places = [place for place, each in enumerate(roles) if each == role]
            buckets = length_buckets([lengths[place] for place in places], self._size)
            found += [[places[place] for place in bucket] for bucket in buckets]
        order = np.random.default_rng([self._seed, position.epoch, position.shard]).permutation(len(found))
        return [found[number] for number in order.tolist()]


class LoadedShard(NamedTuple):
    """Shard in memory.

    Attributes:
        rows: Token ids of each text.
        roles: Role of each text.
        targets: Unit norm.
    """

    rows: list[list[int]]
    roles: list[int]
    targets: Float[Tensor, "texts dim"]


class DistillationRun:
    """Distillation in a folder: start, target space, checkpoint, curve and, after each evaluation, the model.

    Args:
        shards: Texts and teacher.
        folder: Holds `start`, as `student.write_start` wrote it.
        config: Settings; the same ones for a run that is resumed.
        teacher: Loads the teacher, when embeddings are missing.
        development: Sets of the curve.
        continued: File of an earlier run, from `export_weights`, whose weights and position this run begins with.

    Raises:
        ModelError: The folder has no start.
        ResumeError: The folder holds another run, or `continued` is of other texts, start or settings.
    """

    def __init__(
        self,
        shards: TeacherShards,
        folder: Path,
        config: VectorDistillationConfig,
        *,
        teacher: Callable[[], Teacher],
        development: Sequence[RetrievalSet] = (),
        continued: Path | None = None,
    ) -> None:
        self._shards, self._folder, self._config, self._teacher = shards, folder, config, teacher
        network, self._tokenizer, start = read_start(folder / START)
        self._network: TwoStage = network
        self._stages = OneWayStages(network, device="cpu", precision=config.precision)
        with torch.no_grad():
            self._null = self._stages.prepare(torch.zeros(0, network.config.dim), [], [])
        self._batches = ShardBatches(shards.counts, config.batch_size, config.seed)
        self._development = DevelopmentSets(development, self._tokenizer, network.config.max_length)
        self._run = {**asdict(config), "texts": shards.digest, "start": start}
        earlier = None if continued is None else _read_weights(continued, self._run)
        self._target = self._target_space(earlier)
        identity = self._run | {"continued": "" if earlier is None else earlier.digest}
        self._file = StateFile(folder / STATE, identity)
        self._parameters = trained_parameters(network)
        for parameter in self._parameters.values():
            parameter.requires_grad_()
        self._optimiser = Optimiser(_groups(self._parameters, network.config.layers, config), clip=config.clip)
        if earlier is not None:
            _copy(earlier.weights, self._parameters)
        self._average = WeightAverage(self._parameters, decay=config.average)
        if earlier is not None:
            self._average.restore(earlier.average)
        self.progress = RunProgress(earlier_updates=0 if earlier is None else earlier.updates)
        self._sums = torch.zeros(4, dtype=torch.float64)  # updates, loss, cosine, centred cosine
        self._restore()

    @property
    def updates(self) -> int:
        """Updates done, those of continued runs included."""
        return self.progress.earlier_updates + self.progress.update

    @property
    def texts(self) -> int:
        """Texts of the complete shards that the run has been trained on, repetitions included."""
        return self._batches.texts_before(self.updates)

    def train(
        self,
        texts: int,
        *,
        evaluate_every: int = 4,
        save_every: int = 16,
        progress: bool = False,
        log: Callable[[int, float], None] | None = None,
    ) -> list[CurvePoint]:
        """Train up to a number of texts, shard by shard; a second call goes on from there.

        Args:
            texts: Training ends after the shard that reaches this number, repetitions and earlier runs included.
            evaluate_every: Shards between points of the curve.
            save_every: Updates between checkpoints within a shard; 0: only at the end of a shard.
            progress: Show texts, texts a second and the time left on stderr.
            log: Called with the number of updates and the loss of the last one.

        Returns:
            The curve so far, which is also in `curve.csv`.

        Raises:
            TrainingError: The loss is not finite, or the checkpoint cannot be written.
        """
        began, before = time.monotonic(), self.progress.seconds
        path = self._folder / CURVE
        points = read_curve(path, self._development.names, updates=self.updates)
        if not points:
            points.append(self._point(before))
            self._finish_point(points)
        loaded: tuple[Position, LoadedShard, list[list[int]]] | None = None
        with tqdm(
            total=max(texts, self.texts), initial=self.texts, unit="text", disable=not progress, mininterval=10
        ) as bar:
            while self.texts < texts:
                position = self._batches.position(self.updates)
                if loaded is None or loaded[0][:2] != position[:2]:
                    shard = self._load(position.shard)
                    lengths = [len(row) for row in shard.rows]
                    loaded = position, shard, self._batches.batches(position, shard.roles, lengths)
                _, shard, batches = loaded
                chosen = batches[position.batch]
                loss = self._update(shard, chosen)
                bar.update(len(chosen))
                ended = self._batches.ends_shard(self.updates - 1)
                self.progress = replace(self.progress, seconds=before + time.monotonic() - began)
                if log is not None:
                    log(self.updates, loss)
                if ended and (position.shard + 1) % evaluate_every == 0:
                    points.append(self._point(self.progress.seconds))
                    self._finish_point(points)
                    bar.set_postfix(ndcg=f"{100 * float(np.mean(points[-1].ndcg or (0,))):.1f}")
                if ended or (save_every and self.progress.update % save_every == 0):
                    self._file.write(State(self.progress, self._tensors()))
        return points

    def export_weights(self, path: Path) -> Path:
        """Write trained weights and their average in float16, and the target space, as one file to continue from.

        Frozen weights are those of the start and are not in the file; neither is the optimiser's state.
        """
        tensors = {f"{WEIGHTS}{name}": value.detach().half() for name, value in self._parameters.items()}
        tensors |= {f"{AVERAGE}{name}": value.half() for name, value in self._average.weights.items()}
        tensors |= {"target:axes": self._target.axes, "target:mean": self._target.mean}
        stated = {name: str(value) for name, value in self._run.items()} | {"updates": str(self.updates)}
        write_durably(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata=stated))
        return path

    def _target_space(self, earlier: "_Earlier | None") -> TargetSpace:
        path = self._folder / TARGET
        if earlier is not None and not path.exists():
            tensors = {"axes": earlier.target.axes, "mean": earlier.target.mean, "shift": torch.zeros(())}
            write_durably(path, save(tensors))
        if not path.exists():
            sample = range(min(self._config.sample, len(self._shards)))
            texts = [each for number in sample for each in self._shards.read(number)]
            vectors = torch.cat([torch.from_numpy(self._shards.vectors(number, self._teacher)) for number in sample])
            is_query = torch.tensor([float(each.role == QUERY) for each in texts])
            dim = self._network.config.dim
            axes = projection_axes(vectors.float(), is_query, dim, self._config.projection)
            with _pooled_norms(self._network) as norms:
                ours = self._embedded([each.text for each in texts], [each.role for each in texts])
            space, shift = aligned(axes, vectors, ours)
            scaled = shift * torch.cat(norms).mean()
            write_durably(path, save({"axes": space.axes, "mean": space.mean, "shift": scaled}))
        try:
            tensors = load_file(path)
            space = TargetSpace(tensors["axes"], tensors["mean"])
        except (SafetensorError, KeyError) as error:
            raise ResumeError(f"{path}: expected a target space, found: {error}. Start in another folder.") from error
        if tensors["shift"].ndim:
            _shift_output(self._network, tensors["shift"])
        return space

    def _embedded(self, texts: Sequence[str], roles: Sequence[int]) -> Float[Tensor, "texts dim"]:
        rows = [tokens.ids for tokens in self._tokenizer(texts, self._network.config.max_length)]
        vectors = torch.zeros(len(rows), self._network.config.dim)
        for role in (QUERY, DOCUMENT):
            places = [place for place, each in enumerate(roles) if each == role]
            if places:
                vectors[places] = self._stages.embed(
                    [rows[place] for place in places], role, self._null, mini_batch_size=64
                )
        return vectors

    def _load(self, number: int) -> LoadedShard:
        texts = self._shards.read(number)
        vectors = torch.from_numpy(self._shards.vectors(number, self._teacher))
        rows = [
            tokens.ids for tokens in self._tokenizer([each.text for each in texts], self._network.config.max_length)
        ]
        return LoadedShard(rows, [each.role for each in texts], self._target.targets(vectors))

    def _update(self, shard: LoadedShard, chosen: list[int]) -> float:
        self._network.second_stage.train()
        role = shard.roles[chosen[0]]
        vectors = self._stages.second(
            TextBatch([shard.rows[place] for place in chosen], role, [[] for _ in chosen]), self._null
        )
        targets = shard.targets[chosen]
        loss = (vectors - targets).square().sum(dim=1).mean()
        if not torch.isfinite(loss):
            raise TrainingError(
                f"Update {self.updates}: expected a finite loss, found {float(loss)}. Nothing was changed by it. Begin "
                "again in another folder with a lower rate."
            )
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.clip()
        self._optimiser.step(min(1.0, (self.progress.update + 1) / self._config.warmup))
        self._network.second_stage.eval()
        self.progress = replace(self.progress, update=self.progress.update + 1)
        self._average.update(self.updates)
        with torch.no_grad():
            centred = F.cosine_similarity(vectors - self._target.mean, targets - self._target.mean, dim=1).mean()
            cosine = (vectors * targets).sum(dim=1).mean()
            self._sums += torch.stack([torch.ones(()), loss.detach(), cosine, centred]).double()
        return float(loss.detach())

    def _point(self, seconds: float) -> CurvePoint:
        with _averaged(self._parameters, self._average.weights):
            figures = self._development.ndcg(self._stages, self._null, mini_batch_size=64)
        count, *sums = self._sums.tolist()
        means = [value / count if count else float("nan") for value in sums]
        self._sums.zero_()
        loss, cosine, centred = means
        return CurvePoint(self.texts, self.updates, round(seconds / 3600, 4), loss, cosine, centred, figures)

    def _finish_point(self, points: Sequence[CurvePoint]) -> None:
        with _averaged(self._parameters, self._average.weights):
            checkpoints.write(self._folder / MODEL, self._network, self._tokenizer.serialised)
        write_curve(self._folder / CURVE, self._development.names, points)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"{WEIGHTS}{name}": value for name, value in self._parameters.items()}
        tensors |= {f"{AVERAGE}{name}": value for name, value in self._average.weights.items()}
        tensors |= {f"{OPTIMISER}{name}": value for name, value in self._optimiser.state()}
        return {**tensors, SUMS: self._sums}

    def _restore(self) -> None:
        state = self._file.read()
        if state is None:
            return
        self.progress = state.progress
        _copy(_named(state.tensors, WEIGHTS), self._parameters)
        self._average.restore(_named(state.tensors, AVERAGE))
        self._optimiser.restore(_named(state.tensors, OPTIMISER))
        self._sums = state.tensors[SUMS].clone()


def trained_parameters(network: TwoStage) -> dict[str, nn.Parameter]:
    """Return the parameters that a distillation trains: encoder layers of the second stage, and roles."""
    return {name: value for name, value in network.named_parameters() if name.startswith(TRAINED)}


class _Earlier(NamedTuple):
    weights: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    target: TargetSpace
    updates: int
    digest: str


def _read_weights(path: Path, run: Mapping[str, object]) -> _Earlier:
    try:
        with safe_open(path, framework="pt") as file:
            stated: dict[str, str] = file.metadata() or {}
        tensors = load_file(path)
        target = TargetSpace(tensors["target:axes"], tensors["target:mean"])
        updates = int(stated["updates"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ModelError(f"Expected exported weights of a distillation at {path}, found: {error!r}.") from error
    differing = [name for name in ("texts", "start", "projection") if stated.get(name) != str(run[name])]
    if differing:
        raise ResumeError(
            f"{path} was exported by a run with other {' and '.join(differing)}. Prepare the same texts from the same "
            "pairs and package versions, and name the same student."
        )
    weights, average = (
        {name: value.float() for name, value in _named(tensors, kind).items()} for kind in (WEIGHTS, AVERAGE)
    )
    return _Earlier(weights, average, target, updates, digest)


def _named(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}


@torch.no_grad()
def _copy(weights: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


@torch.no_grad()
def _shift_output(network: TwoStage, shift: Float[Tensor, " dim"]) -> None:
    """Add a constant to all pooled embeddings before they are normalised, through the bias of the last norm."""
    last = network.second_stage.layers[-1].get_submodule("output_norm")
    assert isinstance(last, nn.LayerNorm)
    last.bias.add_(shift if network.rotation is None else shift @ network.rotation.T)


@contextmanager
def _pooled_norms(network: TwoStage) -> Generator[list[Float[Tensor, " texts"]], None, None]:
    """Collect the norms of mean-pooled texts, before they are normalised, of all that is embedded inside the block."""
    norms: list[Tensor] = []

    def collect(_: nn.Module, given: tuple[Tensor, Tensor | None, object], x: Tensor) -> None:
        mask = None if given[1] is None else given[1][:, 0, 0, :]
        norms.append(mean_pool(x, mask).norm(dim=1))

    hook = network.second_stage.layers[-1].register_forward_hook(collect)
    try:
        yield norms
    finally:
        hook.remove()


@contextmanager
def _averaged(parameters: Mapping[str, nn.Parameter], average: Mapping[str, Tensor]) -> Generator[None, None, None]:
    """Put the average in the weights' place inside the block."""
    weights = {name: value.detach().clone() for name, value in parameters.items()}
    _copy(average, parameters)
    try:
        yield
    finally:
        _copy(weights, parameters)


def _groups(
    parameters: Mapping[str, nn.Parameter], layers: int, config: VectorDistillationConfig
) -> list[ParameterGroup]:
    groups: dict[tuple[float, float], dict[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        in_layer = name.startswith(TRAINED[0])
        height = layers - 1 - int(name.removeprefix(TRAINED[0]).split(".")[0]) if in_layer else layers
        decay = config.weight_decay if in_layer and parameter.ndim == 2 else 0.0
        groups.setdefault((config.rate * config.layer_decay**height, decay), {})[name] = parameter
    return [ParameterGroup("encoder", rate, decay, members) for (rate, decay), members in groups.items()]

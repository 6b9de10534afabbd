"""Training configuration: all settings of a run. A field without a source is ours.

A run goes through one or more phases (such as many weak pairs first, then fewer with hard negatives); what the paper
calls stages of training is called phases here, since the model has stages.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from cde_rag_training.clustering.packing import PackingConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.data.preparation import PrepareConfig
from cde_rag_training.data.views import OWN
from cde_rag_training.recipe import read_recipe

ONE_WAY, TWO_WAY = "one_way", "two_way"  # kinds of context attention
READ_BY_PACKED = ("hard_negatives", "context")  # of corpora; packed batches read nothing else of it
CONTEXT_SIZE, MAX_LENGTH, CONTEXT_LAYERS = 512, 256, 6  # of new models, where the recipe leaves them out


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Duration of a phase and its learning-rate schedule: linear warm-up, then linear decay to zero.

    Where both a number of updates (or epochs) and a time are given, what ends first ends the phase. A schedule with a
    time depends on the clock, so that only one without can be repeated bit by bit.
    """

    updates: int = 1000  # 0: as many as the epochs have, or the time allows
    epochs: int = 0  # passes over all pairs, in place of updates; 0: by updates or time.   paper §5: 3
    minutes: float = 0.0  # of wall clock, resumed parts included; 0: as many as the updates need
    warmup: float = 0.05  # share of the phase
    warmup_updates: int = 0  # in place of that share; 0: by the share.   paper §5: 1000

    def __post_init__(self) -> None:
        if min(self.updates, self.minutes, self.epochs, self.warmup_updates) < 0:
            raise ValueError(f"Expected updates, epochs, minutes and warmup_updates of at least 0, found {self}.")
        if self.updates + self.minutes + self.epochs == 0:
            raise ValueError(
                f"Expected updates or minutes above 0, found {self.updates} updates and {self.minutes} minutes. Give "
                "at least one of them, or epochs."
            )
        if self.updates and self.epochs:
            raise ValueError(
                f"Expected updates or epochs, found {self.updates} updates and {self.epochs} epochs. Set "
                "updates to 0 to "
                "count by epochs."
            )
        if self.warmup_updates and not self.updates + self.epochs:
            raise ValueError("Expected updates or epochs with warmup_updates, found a time alone. Set warmup, a share.")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"Expected a warmup in 0 … 1, a share of the phase, found {self.warmup}.")


@dataclass(frozen=True, kw_only=True)
class RatesConfig:
    """Learning rates of AdamW at their highest; a part whose rate is 0 is frozen."""

    encoder: float = 2e-5  # topmost layer of the second stage, paper §5
    layer_decay: float = 0.9  # each lower layer learns by so much less
    embeddings: float = 0.0  # word and position embeddings
    first_stage: float = 0.0  # frozen: its vectors of all documents are computed once and looked up
    context: float = 3e-4  # path of context and siblings between the stages
    gates: float = 1e-2  # gates and output map
    weight_decay: float = 0.01  # of weights of linear layers and embeddings; norms, biases, gates, latents have none
    clip: float = 1.0  # largest norm of all gradients together; transformers' default, as in the paper's code

    def __post_init__(self) -> None:
        rates = (self.encoder, self.embeddings, self.first_stage, self.context, self.gates)
        if min(*rates, self.weight_decay) < 0 or max(rates) == 0 or not 0 < self.layer_decay <= 1 or self.clip <= 0:
            raise ValueError(
                "Expected rates and weight_decay of at least 0, one rate above it, a layer_decay in 0 … 1 and a clip "
                f"above 0, found {self}."
            )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Configuration of the training loss."""

    kind: Literal["contrastive", "improved", "graded"] = "contrastive"  # paper eq. 4, GTE eq. 5–6, or BiXSE by grades
    temperature: float = 0.02  # τ, divides scores; paper §5.   graded: take 0.1
    bias: float = -10.0  # of graded alone, added to the divided scores   SigLIP §3.2
    dims: tuple[int, ...] = ()  # of Matryoshka embeddings, the whole included; empty: the whole only
    layers: tuple[int, ...] = ()  # of 2-D Matryoshka embeddings: each batch is embedded by all layers of the second
    # stage, and by the lowest of one of these numbers, in up to twice the time; the mean of both losses counts.
    # A model of each number is written too, of the last phase's.   empty: all layers only
    teacher: Literal["none", "start", "surrogate"] = "none"  # whose scores are kept to: start model under null context
    teacher_sources: tuple[str, ...] = ()  # sources whose batches have the teacher; empty: all
    teacher_weight: float = 0.5  # share of the distillation in the loss
    teacher_temperature: float = 0.05  # divides the teacher's scores
    lexical_share: float = 0.0  # of BM25 in the teacher's scores of queries that are their pair's own

    def __post_init__(self) -> None:
        if min(self.temperature, self.teacher_temperature) <= 0:
            raise ValueError(f"Expected temperatures above 0, found {self}.")
        if len(set(self.layers)) < len(self.layers) or min(self.layers, default=1) < 1:
            raise ValueError(f"Expected different layers of at least 1, found {list(self.layers)}.")
        if not (0 <= self.teacher_weight <= 1 and 0 <= self.lexical_share <= 1):
            raise ValueError(f"Expected teacher_weight and lexical_share in 0 … 1, found {self}.")


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Task prefixes of one source, in place of those of its pairs; two-way models only.

    The model's own, by role, are for all others: "search_query: " and "search_document: ". Also of use are
    "classification: " and "clustering: ", on both sides.   paper §10.7
    """

    name: str = ""  # of the source
    query_prefix: str | None = None  # None: as the pairs say; "": none
    document_prefix: str | None = None  # likewise, of documents, hard negatives and context documents


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One phase of training, with data, batches, losses and rates of its own."""

    name: str = "contrastive"  # for logs and the model card
    data: str = ""  # a prepared folder; empty: the one that `train` was given
    batches: Literal["corpora", "packed"] = "corpora"  # design §9, or the paper's
    corpora: CorporaConfig = field(default_factory=CorporaConfig)  # packed batches have its context and hard_negatives
    # alone; its other settings are refused with them
    packing: PackingConfig = field(default_factory=PackingConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batches_per_update: int = 1  # whose losses' mean is the update's; negatives and context stay those of each batch.
    # Several processes share a batch, or have some of these each: as many as processes is the paper's code, 8 x 512
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    rates: RatesConfig = field(default_factory=RatesConfig)
    sources: tuple[SourceConfig, ...] = ()  # task prefixes by source
    context_dropout: float = 0.005  # probability that a context embedding is left out, paper §5
    context_dropout_by: Literal["batch", "text"] = "batch"  # drawn once for a batch, or for each text as in the paper's
    # code, which puts the null embedding in its place: two-way models only
    average: float = (
        0.0  # decay of the weights' moving average, which the phase ends with; 0: it ends with the last ones
    )

    @property
    def is_lexical(self) -> bool:
        """True if the phase needs BM25 scores."""
        taught = self.loss.teacher != "none" and self.loss.lexical_share > 0
        return self.filter.rule == "agreement" or taught

    def _ignored_settings(self) -> list[str]:
        """Return the settings of corpora that packed batches would ignore."""
        usual = CorporaConfig(**{name: getattr(self.corpora, name) for name in READ_BY_PACKED})
        names = [each.name for each in fields(usual)] if self.batches == "packed" else []
        return [name for name in names if getattr(self.corpora, name) != getattr(usual, name)]

    def __post_init__(self) -> None:
        if not (0 <= self.context_dropout < 1 and 0 <= self.average < 1):
            raise ValueError(
                f"Expected context_dropout and average in 0 … 1, found {self.context_dropout} and {self.average}."
            )
        if self.batches_per_update < 1:
            raise ValueError(f"Expected batches_per_update of at least 1, found {self.batches_per_update}.")
        if other := self._ignored_settings():
            raise ValueError(
                f"Expected of corpora no more than {' and '.join(READ_BY_PACKED)} with packed batches, found "
                f"{', '.join(other)}. Leave them out, or set them in packing."
            )
        names = [each.name for each in self.sources]
        if len(set(names)) < len(names) or "" in names:
            raise ValueError(f"Expected sources of different names, found {names}. Name each one.")
        if self.loss.teacher == "surrogate" and self.batches == "corpora" and self.corpora.views != OWN:
            raise ValueError(
                'Expected pairs that are shown with their own queries, whose scores the teacher "surrogate" has, found '
                f'{self.corpora.views}. Set its shares to 0, or choose the teacher "start".'
            )


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Distillation of a plain embedder's vectors into the new first stage of a model made from it."""

    updates: int = 2000
    batch_size: int = 64  # texts of like length
    rate: float = 1e-3  # of AdamW at the start, linear decay to 0
    max_length: int = 96  # tokens of a text

    def __post_init__(self) -> None:
        if min(self.updates, self.batch_size) < 1 or self.rate <= 0 or self.max_length < 3:
            raise ValueError(
                "Expected updates and batch_size of at least 1, a rate above 0 and a max_length of at least 3, found "
                f"{self}."
            )


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """Start model of a run.

    Settings that are None have the default of the model that is made, or the value that a finished model has; another
    value than a finished model's is refused.
    """

    model: str = "minilm"  # a bundled model, a model's folder, "minilm", or a folder of a BERT, NomicBERT or ModernBERT
    name: str = "trained"  # of the model that is made
    attention: Literal["one_way", "two_way"] | None = (
        None  # None: one_way from a BERT, two_way (paper §4.2) from others
    )
    distillation: DistillationConfig = field(default_factory=DistillationConfig)  # where the first stage is new
    limit_layers: int | None = None  # of the second stage, from the bottom; None: all.   paper §5: 6 or 12
    first_stage_layers: int | None = None  # None: as many, paper §5; of one-way models 1 (0: word embeddings alone)
    context_size: int | None = None  # documents that a new two-way model is for; None: 512, paper §5 (64 in the small)
    tokens_per_document: int | None = None  # context embeddings of each, a total of context_size times so many; None: 1
    context_positions: bool | None = None  # None, True: a new ModernBERT's context has an order; False: none, as paper
    soft_tokens: int | None = None  # learned tokens of a new two-way model; None: 8, the paper's code
    max_length: int | None = None  # tokens of a text that a new model reads; None: 256.   paper §5: 512, or 64
    context_layers: int | None = None  # topmost layers of a new one-way model that attend to context; None: 6
    lead_share: float | None = None  # of a new one-way model: what of the siblings' weight in the output the first has
    full_likeness: float | None = None  # of a new one-way model: of a corpus, from which siblings have all their weight


@dataclass(frozen=True, kw_only=True)
class AdaptersConfig:
    """Low-rank adapters of the second stage's encoder, which is frozen itself; they are merged at the end.

    Source: Hu et al. 2021 (LoRA), through peft.
    """

    rank: int = 0  # 0: none, the encoder itself is trained
    alpha: float = 16.0  # the adapter's output is scaled by alpha / rank
    dropout: float = 0.0  # of the adapter's input
    rate: float = 1e-4  # learning rate


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """NDCG@10 on held-out pairs during training: each query has its own document to find among its set's."""

    every: int = 100  # updates; 0: never
    documents: int = 300  # of each source, at most
    queries: int = 100  # of each source, at most
    probe_every: int = 10  # updates between looks at the same batch under null and foreign context; 0: never

    def __post_init__(self) -> None:
        if min(self.every, self.probe_every) < 0 or min(self.documents, self.queries) < 1:
            raise ValueError(
                f"Expected every and probe_every of at least 0, documents and queries of at least 1, found {self}."
            )


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Reaction to an ignored context: the loss under it is not clearly below that without it."""

    action: Literal["none", "warn", "stop"] = "warn"
    after: int = 200  # updates of a phase before the first look
    window: int = 20  # probes that are looked at
    errors: float = 2.0  # standard errors by which the mean gain has to exceed zero

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"Expected a window of at least 2 probes, which have a spread, found {self.window}.")


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Hardware settings, which do not change the training objective."""

    device: str = "cpu"  # or "cuda"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = (
        "auto"  # of the layers; weights stay float32. auto: bf16 if native, else fp16 on GPUs, whose loss is scaled
    )
    mini_batch_size: int = 64  # texts per forward pass; lower when memory runs out
    gradient_caching: bool = True  # memory of one mini-batch; without it, that of the batch, and a quarter less time
    layer_checkpoints: bool = False  # of a mini-batch keep the layers' inputs alone, and compute the rest again: a
    # third more time, for long texts and deep models
    save_every: int = 50  # updates between checkpoints; slow updates are kept every two minutes
    tensorboard: bool = False  # logs for TensorBoard too; needs the extra `tensorboard`

    def __post_init__(self) -> None:
        if min(self.mini_batch_size, self.save_every) < 1:
            raise ValueError(f"Expected mini_batch_size and save_every of at least 1, found {self}.")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Configuration of a run: start model, phases, and the parts that are kept."""

    seed: int = 0  # of every draw
    start: StartConfig = field(default_factory=StartConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)  # of data that is given as pairs
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    adapters: AdaptersConfig = field(default_factory=AdaptersConfig)
    share: float = 1.0  # of the way from the start to the trained encoder, at the end   Wortsman et al. 2022 (WiSE-FT)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    @property
    def is_lexical(self) -> bool:
        """True if a phase needs BM25 scores."""
        return any(phase.is_lexical for phase in self.phases)

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("Expected one phase or more, found none. Leave phases out for the default one.")
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ValueError(f"Expected phases of different names, found {names}. Name each one.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"Expected a share in 0 … 1, found {self.share}.")

    @classmethod
    def from_toml(cls, path: Path) -> "TrainingConfig":
        """Read a recipe from TOML; missing keys keep their defaults.

        Raises:
            RecipeError: Unreadable file, unknown key, or invalid value.
        """
        return read_recipe(path, cls)

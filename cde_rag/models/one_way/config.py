"""Config of a one-way model: sizes in tokens, dimensions and counts."""

from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, ClassVar

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ModelError

FORMAT = 1
LARGEST = 2**20  # that any size in a config may be
LATER: Mapping[str, Any] = {"rotated": False, "lead_share": 0.0, "full_likeness": 0.0}  # what older configs mean


def is_one_way(config: Mapping[str, Any]) -> bool:
    """Return True if a model's config.json is of our own layout, which holds the digests of its files."""
    return "weights_sha256" in config


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a two-stage model with one-way context attention.

    Source: design ours; the encoder's sizes are those of all-MiniLM-L6-v2.
    """

    name: str
    vocab_size: int = 30522  # word pieces
    dim: int = 384  # of every hidden state and of the embedding
    layers: int = 6  # second stage
    context_layers: int = 6  # of these the topmost, whose text attends to context and siblings
    heads: int = 12
    intermediate: int = 1536  # hidden units of a feed-forward layer
    max_positions: int = 512  # tokens that have a position embedding
    max_length: int = 256  # tokens of a text that the second stage reads
    norm_eps: float = 1e-12
    first_stage_layers: int = 1  # 0: word and position embeddings alone
    first_stage_max_length: int = 128  # tokens of a text that the first stage reads
    latents: int = 64  # vectors that a context is condensed to
    max_siblings: int = 16  # siblings given to a document's text
    rotated: bool = False  # True if embeddings are rotated so that their first dimensions carry the most information
    lead_share: float = 0.0  # of the siblings' weight in the output, the first sibling's; the rest is their mean's
    full_likeness: float = 0.0  # of a corpus, from which on siblings have their full weight in the output; 0: any
    context_size: ClassVar[None] = None  # any number of context documents
    null_embedding: ClassVar[bool] = True  # it learned to do without a corpus
    late_chunks: ClassVar[bool] = True  # chunks that are read together are pooled apart

    def __post_init__(self) -> None:
        if min(self.dim, self.heads, self.vocab_size, self.latents) < 1 or self.dim % self.heads:
            raise ModelError(
                f"Sizes must be at least 1 and dim a multiple of heads, found dim {self.dim}, heads {self.heads}, "
                f"{self.vocab_size} word pieces and {self.latents} latents."
            )
        if not 1 <= self.context_layers <= self.layers:
            raise ModelError(f"context_layers must be in 1 … layers ({self.layers}), found {self.context_layers}.")
        if not 0 <= self.first_stage_layers <= self.layers:
            raise ModelError(
                f"first_stage_layers must be in 0 … layers ({self.layers}), found {self.first_stage_layers}."
            )
        if not (0 <= self.lead_share <= 1 and 0 <= self.full_likeness <= 1):
            raise ModelError(
                f"lead_share and full_likeness must be in 0 … 1, found {self.lead_share} and {self.full_likeness}."
            )
        if not max(self.max_length, self.first_stage_max_length) <= self.max_positions:
            raise ModelError(f"Texts may not be longer than max_positions {self.max_positions}; lower the max lengths.")

    @property
    def head_dim(self) -> int:
        """Dimensions of one attention head."""
        return self.dim // self.heads

    def identity(self, weights_sha256: str, tokenizer_sha256: str) -> ModelIdentity:
        """Return the properties of the model that determine the vector space."""
        return ModelIdentity(
            name=self.name,
            weights_sha256=weights_sha256,
            tokenizer_sha256=tokenizer_sha256,
            attention="one_way",
            semantics="cde-rag",
            roles="vector",
            prefixes={"query": "", "document": ""},
            max_length=self.max_length,
            pooling="mean",
            normalisation="unit",
            dim=self.dim,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the format's number, without fields that have the value of older configs."""
        sizes = asdict(self)
        for name, usual in {"context_layers": self.layers, **LATER}.items():
            if sizes[name] == usual:
                del sizes[name]  # cde-mini-0, whose contexts are bound to its config, has no such field
        return {"format": FORMAT, "attention": "one_way", **sizes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ModelConfig":
        """Read the result of `to_json`.

        Raises:
            ModelError: Another format or attention, or fields that are missing, unknown, of another type or out of
                range.
        """
        if value.get("format") != FORMAT or value.get("attention") != "one_way":
            raise ModelError(
                f"Expected a one_way config of format {FORMAT}, found attention {value.get('attention')!r} of format "
                f"{value.get('format')!r}. Update cde-rag, or give the folder of another model."
            )
        given = {key: item for key, item in value.items() if key not in ("format", "attention")}
        for name, usual in {"context_layers": given.get("layers"), **LATER}.items():
            given.setdefault(name, usual)
        check_fields(fields(cls), given)
        return cls(**given)


def check_fields(expected: tuple[Field[Any], ...], given: Mapping[str, Any]) -> None:
    """Check the values of a config's fields.

    Raises:
        ModelError: Fields are missing, unknown, of another type or out of range.
    """
    if wrong := set(given) ^ {field.name for field in expected}:
        raise ModelError(f"The config's fields differ: {sorted(wrong)} are missing or unknown.")
    for field in expected:
        if type(given[field.name]) is not field.type:
            raise ModelError(f"The config's {field.name} has to be {field.type}, found {given[field.name]!r}.")
        if field.type is int and not 0 <= given[field.name] <= LARGEST:
            raise ModelError(f"The config's {field.name} has to be in 0 … {LARGEST}, found {given[field.name]}.")

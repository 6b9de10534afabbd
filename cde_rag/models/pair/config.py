"""Config of a pair of encoders: name of the first half's model, sizes of the second, weights of both."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ModelError
from cde_rag.models.one_way.config import ModelConfig, check_fields

FORMAT = 1
PAIR = "pair"  # what a pair's config.json has as its attention


def is_pair(config: Mapping[str, Any]) -> bool:
    """Return True if a model's config.json is that of a pair."""
    return config.get("attention") == PAIR


@dataclass(frozen=True, kw_only=True)
class PairConfig:
    """The sizes of a model whose vectors are those of two encoders, concatenated.

    Source: ours; the second encoder's sizes are those of multilingual-e5-small.
    """

    name: str
    first: str  # bundled name of the one-way model that is the first half
    first_sha256: str  # its digest: what its Contexts are bound to
    dim: int  # of the embedding, both halves
    second_dim: int = 384  # of the second half, and of its hidden states
    vocab_size: int = 40000  # pieces, of the second half
    layers: int = 12  # of the second half
    heads: int = 12
    intermediate: int = 1536
    max_positions: int = 512
    max_length: int = 256  # tokens of a text that each half reads
    norm_eps: float = 1e-12
    query_prefix: str = "query: "  # the second half reads it before a query
    document_prefix: str = "passage: "
    second_share: float = 0.5  # of a score, the second half's
    first_stage_max_length: int = 128  # as the first half's
    max_siblings: int = 16
    context_size: ClassVar[None] = None  # any number of context documents
    null_embedding: ClassVar[bool] = True  # its first half learned to do without a corpus; its second reads none
    late_chunks: ClassVar[bool] = False  # only one-way models pool chunks apart

    def __post_init__(self) -> None:
        if not 0 < self.second_share < 1:
            raise ModelError(f"second_share has to lie between 0 and 1, found {self.second_share}.")
        if self.dim <= self.second_dim:
            raise ModelError(f"dim has to be both halves', more than the second's {self.second_dim}; found {self.dim}.")
        _ = self.second  # whose sizes are checked there

    @property
    def second(self) -> ModelConfig:
        """Sizes of the second half, as a config for its layers."""
        return ModelConfig(
            name=self.name,
            vocab_size=self.vocab_size,
            dim=self.second_dim,
            layers=self.layers,
            context_layers=self.layers,
            heads=self.heads,
            intermediate=self.intermediate,
            max_positions=self.max_positions,
            max_length=self.max_length,
            norm_eps=self.norm_eps,
            first_stage_layers=0,
            first_stage_max_length=self.first_stage_max_length,
        )

    def identity(self, weights_sha256: str, tokenizer_sha256: str) -> ModelIdentity:
        """Return the properties of the model that determine the vector space."""
        return ModelIdentity(
            name=self.name,
            weights_sha256=weights_sha256,
            tokenizer_sha256=tokenizer_sha256,
            attention="one_way",
            semantics="cde-rag-pair",
            roles="vector",
            prefixes={"query": self.query_prefix, "document": self.document_prefix},
            max_length=self.max_length,
            pooling="mean",
            normalisation="unit",
            dim=self.dim,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the format's number."""
        return {"format": FORMAT, "attention": PAIR, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PairConfig":
        """Read the result of `to_json`.

        Raises:
            ModelError: Another format, or fields that are missing, unknown, of another type or out of range.
        """
        if value.get("format") != FORMAT:
            raise ModelError(
                f"Expected a pair's config of format {FORMAT}, found format {value.get('format')!r}. Update cde-rag, "
                "or give the folder of another model."
            )
        given = {key: item for key, item in value.items() if key not in ("format", "attention")}
        check_fields(fields(cls), given)
        return cls(**given)

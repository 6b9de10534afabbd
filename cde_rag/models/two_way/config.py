"""Config of a two-way model, with the options of its reading."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ContextError, ModelError

BERT, NOMIC_BERT, MODERN_BERT = "bert", "nomic_bert", "modernbert"
TRAIN = "train"  # what the weights were trained with
OTHER_SEMANTICS = {
    NOMIC_BERT: "hf_model_py",
    MODERN_BERT: "hub",
    BERT: TRAIN,
}  # what each family's remote code computes; BERT has none
EXACT, CACHED = "two_way", "two_way_cached"  # kinds of context attention; the second approximates the first
POOLINGS = {
    "text": "mean",
    "text_after_prefix": "mean_after_prefix",
    "sequence": "mean_of_sequence",
}  # as identities say
SOFT_TOKENS = 8  # learned tokens between context and text, of published models
THETA = {NOMIC_BERT: 1000.0, MODERN_BERT: 160_000.0, BERT: 0.0}  # bases of the rotary angles; BERT rotates nothing
LOCAL_THETA = 10_000.0  # that of local layers
EPS = {NOMIC_BERT: 1e-12, MODERN_BERT: 1e-5, BERT: 1e-12}  # of the layer norms
ADDED = (  # fields that older digests lack
    "first_stage_layers",
    "soft_tokens",
    "theta",
    "local_theta",
    "eps",
    "tokens_per_document",
    "context_positions",
)


def is_published(value: Mapping[str, Any]) -> bool:
    """Return True if a config is of the published layout."""
    return "embedder" in value and "transductive_corpus_size" in value


@dataclass(frozen=True, kw_only=True)
class TwoWayConfig:
    """The sizes of a two-stage model with two-way context attention; both stages have a backbone of one family.

    Source: the published configs, and the backbones' own.
    """

    name: str
    family: str  # "nomic_bert", "modernbert" or "bert"
    attention: str = EXACT  # or "two_way_cached": the context does not attend to the text, so it is read once
    semantics: str = TRAIN  # or what the family's remote code computes: "hf_model_py" or "hub"
    pooling: str = "text"  # which token states are averaged: "text", "text_after_prefix" or "sequence"
    query_prefix: str = "search_query: "
    document_prefix: str = "search_document: "
    vocab_size: int
    dim: int  # of every hidden state and of the embedding
    layers: int  # of the second stage
    heads: int
    intermediate: int  # hidden units of a feed-forward layer
    max_positions: int  # tokens of a sequence, the context's included; of a BERT, whose context has none, of a text
    window: int = 0  # tokens that a local layer sees, both sides together; 0: all layers are global
    global_every: int = 1  # every so manieth layer is global, the first one too
    trained_context_size: int  # context documents (J) that the weights were trained with
    context_size: int  # context documents that a context has to have
    max_length: int  # tokens of a text that are read, in both stages
    null_embedding: bool = False  # True if there is a learned embedding that stands for the null context
    first_stage_layers: int | None = None  # layers of the first stage; None: as many as the second has
    soft_tokens: int = SOFT_TOKENS  # learned tokens between context and text
    theta: float | None = None  # base of the rotary angles (of global layers); None: the family's
    local_theta: float | None = None  # base of the rotary angles of local layers; None: the family's
    eps: float | None = None  # of the layer norms; None: the family's
    tokens_per_document: int = 1  # context embeddings of a document, means of equal segments; paper §10.11
    context_positions: bool = True  # False: ModernBERT's context has none; that of the other families never has
    max_siblings: ClassVar[int] = 0  # parent context is for one-way models
    late_chunks: ClassVar[bool] = False  # only one-way models pool chunks apart

    def __post_init__(self) -> None:
        if self.family not in OTHER_SEMANTICS:
            raise ModelError(
                f"Expected a backbone of the families {' or '.join(OTHER_SEMANTICS)}, found {self.family!r}."
            )
        known = (TRAIN, OTHER_SEMANTICS[self.family])
        if self.semantics not in known:
            raise ModelError(
                f"Expected semantics {' or '.join(map(repr, dict.fromkeys(known)))}, found {self.semantics!r}."
            )
        if self.pooling not in POOLINGS:
            raise ModelError(f"Expected pooling {', '.join(POOLINGS)}, found {self.pooling!r}.")
        if self.attention not in (EXACT, CACHED) or (self.attention == CACHED and self.pooling == "sequence"):
            raise ModelError(
                f"Expected attention {EXACT!r} or, pooling over text, {CACHED!r}; found {self.attention!r} and pooling "
                f"{self.pooling!r}."
            )
        sizes = (self.vocab_size, self.dim, self.heads, self.global_every, self.context_size, self.max_length)
        first = self.layers if self.first_stage_layers is None else self.first_stage_layers
        if min(*sizes, self.layers, first, self.soft_tokens, self.tokens_per_document) < 1 or self.dim % (
            2 * self.heads
        ):
            raise ModelError(
                f"Sizes must be at least 1 and dim an even multiple of heads, found dim {self.dim}, heads {self.heads}"
                f", {self.vocab_size} word pieces, {self.context_size} context documents, texts of {self.max_length}, "
                f"{first} and {self.layers} layers, {self.soft_tokens} soft tokens, {self.tokens_per_document} "
                "tokens of a "
                "document."
            )
        if self.context_size > self.trained_context_size:
            raise ModelError(
                f"The model was trained with {self.trained_context_size} context documents; found {self.context_size}. "
                "Request at most as many."
            )
        if self.family == BERT and self.max_length > self.max_positions:
            raise ModelError(
                f"Texts of {self.max_length} tokens are longer than the {self.max_positions} positions of the "
                "backbone; "
                "lower the max length."
            )
        if self.family != BERT and self.given + self.max_length > self.max_positions:
            raise ModelError(
                f"{self.context_tokens} context embeddings, {self.soft_tokens} soft tokens and "
                f"{self.max_length} tokens of "
                f"text are more than the {self.max_positions} positions of the backbone; lower the max length."
            )

    @property
    def first_stage_max_length(self) -> int:
        """Maximum number of tokens of a text in the first stage."""
        return self.max_length

    @property
    def head_dim(self) -> int:
        """Length of a head's keys and values."""
        return self.dim // self.heads

    @property
    def given(self) -> int:
        """Number of tokens before a text: context embeddings and soft tokens."""
        return self.context_tokens + self.soft_tokens

    @property
    def context_tokens(self) -> int:
        """Number of context embeddings."""
        return self.context_size * self.tokens_per_document

    @property
    def unplaced(self) -> int:
        """Number of the first tokens of a sequence that have no position of their own; all stand at position 0."""
        if self.family == BERT or (self.is_modern and self.context_positions):
            return 0
        return self.trained_context_size * self.tokens_per_document

    @property
    def of_first_stage(self) -> "TwoWayConfig":
        """Config whose layers are those of the first stage."""
        layers = self.first_stage_layers
        return self if layers is None else replace(self, layers=layers, first_stage_layers=None)

    @property
    def is_modern(self) -> bool:
        """True if the backbone is ModernBERT."""
        return self.family == MODERN_BERT

    @property
    def by_head(self) -> bool:
        """True if tokens are rotated by the number of the head, as in the remote code of cde-small-v1."""
        return self.family == NOMIC_BERT and self.semantics != TRAIN

    @property
    def norm_eps(self) -> float:
        """Epsilon of the layer norms."""
        return EPS[self.family] if self.eps is None else self.eps

    @property
    def adds_pooled(self) -> bool:
        """True if the mean of the states is added to the output."""
        return self.is_modern and self.semantics == TRAIN

    def check_context(self, documents: int) -> None:
        """Check the number of context documents, repeated ones included; 0 for the null context.

        Raises:
            ContextError: Another number of documents, or the null context of a model that never learned one.
        """
        if documents == 0 and not self.null_embedding:
            raise ContextError(
                f"{self.name} has no null embedding: it never learned to do without a corpus. Use "
                "Context.generic(model), or fit a context with ContextualEmbedder.from_corpus."
            )
        if documents not in (0, self.context_size):
            raise ContextError(
                f"{self.name} expects a context of {self.context_size} documents, found {documents}. Fit it with "
                f"ContextualEmbedder.from_corpus(texts, model=model, context_size={self.context_size}), which repeats "
                "the documents of a small corpus; or load the model with another context_size (at most "
                f"{self.trained_context_size})."
            )

    def rotary_theta(self, *, local: bool = False) -> float:
        """Return the base of the rotary angles, of local or global layers."""
        given, own = (self.local_theta, LOCAL_THETA) if local else (self.theta, THETA[self.family])
        return own if given is None else given

    def is_local(self, layer: int) -> bool:
        """Return True if a layer lets a token attend to its neighbours alone, half a window on each side."""
        return self.window > 0 and layer % self.global_every > 0

    def theta_of(self, layer: int) -> float:
        """Return the base of a layer's rotary angles."""
        return self.rotary_theta(local=self.is_local(layer))

    def identity(self, weights_sha256: str, tokenizer_sha256: str) -> ModelIdentity:
        """Return the properties of the model that determine the vector space."""
        return ModelIdentity(
            name=self.name,
            weights_sha256=weights_sha256,
            tokenizer_sha256=tokenizer_sha256,
            attention=self.attention,
            semantics=self.semantics,
            roles="prefix",
            prefixes={"query": self.query_prefix, "document": self.document_prefix},
            max_length=self.max_length,
            pooling=POOLINGS[self.pooling],
            normalisation="unit",
            dim=self.dim,
            tokens_per_document=self.tokens_per_document,
        )

    def sizes(self) -> dict[str, Any]:
        """Return all fields but the name, for a digest; fields that older digests lack only if they say something."""
        usual = {each.name: each.default for each in fields(self) if each.name in ADDED}
        return {
            key: value
            for key, value in asdict(self).items()
            if key != "name" and (key not in usual or value != usual[key])
        }


def reads_no_siblings(name: str) -> ModelError:
    """Return the error for siblings that are given to a two-way model."""
    return ModelError(f"{name} reads no siblings: only one-way models do. Leave parents out.")


def round_robin(counts: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " places"]:
    """Return rows in the order of repeated passes over all of them, each as often as its count.

    Examples:
        >>> round_robin(np.array([2, 1, 2])).tolist()
        [0, 1, 2, 0, 2]
    """
    rounds = np.arange(int(counts.max()))[:, None]
    return np.nonzero(np.less(rounds, counts))[1]
